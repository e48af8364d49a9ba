"""The brief: the known findings that an agent reads before it scans a target."""

from __future__ import annotations

import json
from typing import Any

import flask
import pytest

from findings_features import brief
from tests.clients import API, SEVERITIES, Client, assert_problem, cases, client_of, task
from tests.scenarios import start_on
from tests.surveys import TARGETS

TARGET = "https://example.com/"


def brief_of(client: Client, **query: Any) -> dict[str, Any]:
    """Return the brief of a target, by default the target of the runs."""
    return client.read("brief", **{"projectType": "web", "targetUrl": TARGET} | query)


def ids_in_brief(client: Client, **query: Any) -> list[str]:
    """Return the external ids of the tasks in a brief."""
    return [each["externalId"] for each in brief_of(client, **query)["tasks"]]


def test_brief_has_exactly_the_documented_members_in_order(client: Client) -> None:
    schema = {"minProperties": 0, "type": "object"}
    client.register("web", schema)
    run = client.start(targetUrl=TARGET)
    finding = {"externalId": "a", "title": "Contrast", "rule": "1.4.3", "location": "a.css:7", "severity": "low"}
    task_id = client.add(run, **finding, evidence=[{"content": "\n  p { color: #aaa }\n}"}, {"content": "Another"}])
    client.submit(run, task(), task(externalId="b", status="resolved"))
    client.triage(task_id, "dismissed", reason="accepted_risk", comment="The brand's colour")
    severities = dict.fromkeys(SEVERITIES, 0) | {"high": 2, "low": 1}
    statuses = {"open": 1, "in_progress": 0, "resolved": 1, "dismissed": 1}
    finding |= {"status": "dismissed", "reason": "accepted_risk", "lastComment": "The brand's colour"}
    expected = {
        "projectType": "web",
        "targetUrl": TARGET,
        "branch": None,
        "summary": {"total": 3, "bySeverity": severities, "byStatus": statuses},
        "extensionSchema": schema,
        "resolved": [{"externalId": "b", "title": "Image without alt text", "rule": None, "location": None}],
        "tasks": [finding | {"excerpt": "  p { color: #aaa }"}],
        "omitted": 0,
    }
    assert json.dumps(brief_of(client)) == json.dumps(expected)  # compares the order of the members, too


def test_brief_is_sorted_by_severity_then_by_last_sighting(client: Client, run: str) -> None:
    for severity in ("low", "critical", "high"):
        client.submit(run, *(task(externalId=f"{severity}-{number}", severity=severity) for number in range(3)))
    later_run = client.start(targetUrl=TARGET)
    client.submit(later_run, task(externalId="critical-0", severity="critical"), task(externalId="high-1"))
    expected = ["critical-0", "critical-2", "critical-1", "high-1", "high-2", "high-0", "low-2", "low-1", "low-0"]
    for limit in (1, 4, 9, 50):
        assert ids_in_brief(client, limit=limit) == expected[:limit]
        assert brief_of(client, limit=limit)["omitted"] == max(0, 9 - limit)


def test_brief_covers_the_main_line_and_the_branch_of_the_own_client(
    app: flask.Flask, client: Client, run: str
) -> None:
    client.add(run, externalId="main")
    start_on(client, "a", "a's", "both's", "main")
    client.submit(start_on(client, "b", "both's", "b's"), task())
    start_on(client, "c", "c's")
    for branch, expected in (("a", {"main", "a's", "both's"}), ("b", {"main", "both's", "b's"}), ("none", {"main"})):
        assert {*ids_in_brief(client, branch=branch)} == expected
    assert ids_in_brief(client) == ["main"]
    response = brief_of(client, branch="b", limit=1)
    assert (response["branch"], response["summary"]["total"], response["omitted"]) == ("b", 4, 2)
    other_client = client_of(app, client="other")
    other_client.register("web")
    for query in ({}, {"branch": "b"}):
        response = brief_of(other_client, **query)
        assert (response["tasks"], response["summary"]["total"], response["omitted"]) == ([], 0, 0)


def test_brief_covers_one_project_type_and_one_target(client: Client) -> None:
    for name in ("web", "app"):
        client.register(name)
        for target in (None, TARGET, TARGETS[2]):
            client.add(client.start(name, targetUrl=target), externalId=f"{name} {target}")
    assert [each["externalId"] for each in client.read("brief", projectType="web")["tasks"]] == ["web None"]
    assert ids_in_brief(client, targetUrl=TARGETS[2]) == [f"web {TARGETS[2]}"]
    assert ids_in_brief(client, targetUrl=f"{TARGETS[2]}x") == []


def test_brief_lists_resolved_findings_most_severe_first(client: Client, run: str) -> None:
    for number, severity in enumerate(("low", "critical", "high", "high")):
        client.add(
            run, externalId=f"{severity}-{number}", severity=severity, status="resolved", location=f"{number}.py"
        )
    client.submit(run, task(status="resolved"))  # not listed: it has no external id
    client.submit(start_on(client, "a"), task(externalId="a's", severity="medium", status="resolved"))
    expected = ["critical-1", "high-3", "high-2", "low-0"]
    for limit in (1, 3, 50):
        response = brief_of(client, limit=limit)
        assert ([each["externalId"] for each in response["resolved"]], response["omitted"]) == (expected[:limit], 0)
    on_branch = brief_of(client, branch="a", limit=4)["resolved"]
    assert [each["externalId"] for each in on_branch] == [*expected[:3], "a's"]


def test_location_filters_the_findings_of_a_brief_but_not_its_summary(client: Client, run: str) -> None:
    for path in ("src/a.py", "src/a.py:7", "src/ab.py", "docs/a.py", None):
        for status in ("open", "resolved"):
            client.add(run, externalId=f"{status} {path}", location=path, status=status)
    for location, paths in (
        ("src/a.py", {"src/a.py", "src/a.py:7"}),
        ("src/", {"src/a.py", "src/a.py:7", "src/ab.py"}),
    ):
        body = brief_of(client, location=location)
        assert {each["location"] for each in body["tasks"]} == {each["location"] for each in body["resolved"]} == paths
        assert (body["summary"]["total"], body["omitted"]) == (10, 0)
    body = brief_of(client, location="src", limit=1)
    assert (len(body["tasks"]), len(body["resolved"]), body["omitted"]) == (1, 1, 2)


def test_last_comment_prefers_the_comment_of_a_status_change(client: Client, run: str) -> None:
    decisions_by_comment = {
        None: [],
        "First": [{"comment": "Zeroth"}, {"comment": "First"}],
        "Why": [{"status": "dismissed", "comment": "Why"}, {"comment": "Later"}],
        "No": [{"status": "dismissed", "comment": "No"}, {"status": "open"}, {"assignee": "kim"}],
        "Mine": [{"comment": "Other"}, {"status": "in_progress", "comment": "Mine"}],
    }
    for comment, decisions in decisions_by_comment.items():
        task_id = client.add(run, externalId=str(comment))
        for decision in decisions:
            client.triage(task_id, **decision)
    assert {each["lastComment"] for each in brief_of(client)["tasks"]} == {*decisions_by_comment}
    assert all(str(each["lastComment"]) == each["externalId"] for each in brief_of(client)["tasks"])


def test_excerpt_is_the_first_line_of_the_first_evidence(client: Client, run: str) -> None:
    excerpts = {
        "none": ([], None),
        "second": ([{"url": "https://example.com/a"}, {"content": "x"}], None),
        "blank": ([{"content": " \n\t\r\n"}], None),
        "short": ([{"content": "x" * 120}], "x" * 120),
        "long": ([{"content": "x" * 121}], "x" * 119 + "…"),
        "escaped": ([{"label": '"content":"y', "content": "\"\\\x1b'é😀\x85z"}], "\"\\\x1b'é😀"),
    }
    client.submit(run, *(task(externalId=name, evidence=evidence) for name, (evidence, _) in excerpts.items()))
    actual = {each["externalId"]: each["excerpt"] for each in brief_of(client)["tasks"]}
    assert actual == {name: excerpt for name, (_, excerpt) in excerpts.items()}


def test_excerpt_reads_only_the_beginning_of_large_evidence(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"url": f"data:image/png;base64,{'A' * 200_000}", "content": "\x01" * 40_000}
    for name in "abc":
        client.add(run, externalId=name, evidence=[large] * 3)
    read_lengths: list[int] = []
    excerpt_of = brief.excerpt_of
    monkeypatch.setattr(brief, "excerpt_of", lambda text: (read_lengths.append(len(text)), excerpt_of(text))[1])
    tasks = brief_of(client, limit=2)["tasks"]
    assert [each["excerpt"] for each in tasks] == ["\x01" * 119 + "…"] * 2
    assert (len(read_lengths), max(read_lengths) <= 1000) == (2, True)


def test_unknown_project_type_error_lists_the_registered_types(app: flask.Flask, client: Client) -> None:
    client.register("web")
    assert_problem(client.get(f"{API}/brief"), 400, "invalid_parameter", "projectType")
    for caller, unknown, registered in ((client, "wbe", "web."), (client_of(app, client="other"), "web", "none yet.")):
        response = caller.get(f"{API}/brief?projectType={unknown}")
        problem = assert_problem(response, 422, "unknown_project_type", "projectType")
        assert f"Registered: {registered}" in problem["detail"]


@pytest.mark.parametrize(
    ("installed", "accept", "is_markdown"),
    cases(
        only_markdown=(True, "text/markdown", True),
        markdown_preferred=(True, "application/json;q=0.9, text/markdown;variant=CommonMark", True),
        json_preferred=(True, "text/markdown;q=0.5, */*", False),
        not_installed=(False, "text/markdown", False),
    ),
)
def test_accept_header_selects_the_format_of_a_brief(
    client: Client, installed: bool, accept: str, is_markdown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(brief.EXPORTS, "text/markdown")
    if installed:
        brief.add("text/markdown", lambda _, about: about.label.encode())
    client.register("web")
    response = client.get(f"{API}/brief?projectType=web", headers={"Accept": accept})
    assert response.content_type == ("text/markdown; charset=utf-8" if is_markdown else "application/json")
    assert response.data == b"web" if is_markdown else response.json["projectType"] == "web"
