"""The brief: what an agent is told of before it examines something."""

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
    """Return the brief of the runs' target, or another."""
    return client.read("brief", **{"projectType": "web", "targetUrl": TARGET} | query)


def briefed(client: Client, **query: Any) -> list[str]:
    """Return the external ids of a brief."""
    return [each["externalId"] for each in brief_of(client, **query)["tasks"]]


def test_a_brief_tells_all_that_the_contract_names_in_its_order(client: Client) -> None:
    schema = {"minProperties": 0, "type": "object"}
    client.register("web", schema)
    run = client.start(targetUrl=TARGET)
    finding = {"externalId": "a", "title": "Contrast", "rule": "1.4.3", "location": "a.css:7", "severity": "low"}
    noted = client.add(run, **finding, evidence=[{"content": "\n  p { color: #aaa }\n}"}, {"content": "Another"}])
    client.submit(run, task(), task(externalId="b", status="resolved"))
    client.triage(noted, "dismissed", reason="accepted_risk", comment="The brand's colour")
    severities = dict.fromkeys(SEVERITIES, 0) | {"high": 2, "low": 1}
    statuses = {"open": 1, "in_progress": 0, "resolved": 1, "dismissed": 1}
    finding |= {"status": "dismissed", "reason": "accepted_risk", "lastComment": "The brand's colour"}
    right = {
        "projectType": "web",
        "targetUrl": TARGET,
        "branch": None,
        "summary": {"total": 3, "bySeverity": severities, "byStatus": statuses},
        "extensionSchema": schema,
        "resolved": [{"externalId": "b", "title": "Image without alt text", "rule": None, "location": None}],
        "tasks": [finding | {"excerpt": "  p { color: #aaa }"}],
        "omitted": 0,
    }
    assert json.dumps(brief_of(client)) == json.dumps(right)  # the order of the members, too


def test_a_brief_begins_with_the_worst_and_then_with_what_was_seen_last(client: Client, run: str) -> None:
    for severity in ("low", "critical", "high"):
        client.submit(run, *(task(externalId=f"{severity}-{number}", severity=severity) for number in range(3)))
    later = client.start(targetUrl=TARGET)
    client.submit(later, task(externalId="critical-0", severity="critical"), task(externalId="high-1"))
    right = ["critical-0", "critical-2", "critical-1", "high-1", "high-2", "high-0", "low-2", "low-1", "low-0"]
    for limit in (1, 4, 9, 50):
        assert briefed(client, limit=limit) == right[:limit]
        assert brief_of(client, limit=limit)["omitted"] == max(0, 9 - limit)


def test_a_brief_is_of_what_the_main_line_and_the_branch_know_of_ones_own(
    app: flask.Flask, client: Client, run: str
) -> None:
    client.add(run, externalId="main")
    start_on(client, "a", "a's", "both's", "main")
    client.submit(start_on(client, "b", "both's", "b's"), task())
    start_on(client, "c", "c's")
    for branch, right in (("a", {"main", "a's", "both's"}), ("b", {"main", "both's", "b's"}), ("none", {"main"})):
        assert {*briefed(client, branch=branch)} == right
    assert briefed(client) == ["main"]
    told = brief_of(client, branch="b", limit=1)
    assert (told["branch"], told["summary"]["total"], told["omitted"]) == ("b", 4, 2)
    stranger = client_of(app, client="other")
    stranger.register("web")
    for branch in ({}, {"branch": "b"}):
        told = brief_of(stranger, **branch)
        assert (told["tasks"], told["summary"]["total"], told["omitted"]) == ([], 0, 0)


def test_a_brief_is_of_one_type_and_one_target(client: Client) -> None:
    for name in ("web", "app"):
        client.register(name)
        for target in (None, TARGET, TARGETS[2]):
            client.add(client.start(name, targetUrl=target), externalId=f"{name} {target}")
    assert [each["externalId"] for each in client.read("brief", projectType="web")["tasks"]] == ["web None"]
    assert briefed(client, targetUrl=TARGETS[2]) == [f"web {TARGETS[2]}"]
    assert briefed(client, targetUrl=f"{TARGETS[2]}x") == []


def test_resolved_findings_of_the_lines_are_listed_most_severe_first(client: Client, run: str) -> None:
    for number, severity in enumerate(("low", "critical", "high", "high")):
        client.add(
            run, externalId=f"{severity}-{number}", severity=severity, status="resolved", location=f"{number}.py"
        )
    client.submit(run, task(status="resolved"))  # it has no id to report it by
    client.submit(start_on(client, "a"), task(externalId="a's", severity="medium", status="resolved"))
    right = ["critical-1", "high-3", "high-2", "low-0"]
    for limit in (1, 3, 50):
        told = brief_of(client, limit=limit)
        assert ([each["externalId"] for each in told["resolved"]], told["omitted"]) == (right[:limit], 0)
    on_branch = brief_of(client, branch="a", limit=4)["resolved"]
    assert [each["externalId"] for each in on_branch] == [*right[:3], "a's"]


def test_a_location_limits_the_findings_of_a_brief_and_not_its_summary(client: Client, run: str) -> None:
    for place in ("src/a.py", "src/a.py:7", "src/ab.py", "docs/a.py", None):
        for status in ("open", "resolved"):
            client.add(run, externalId=f"{status} {place}", location=place, status=status)
    for location, right in (
        ("src/a.py", {"src/a.py", "src/a.py:7"}),
        ("src/", {"src/a.py", "src/a.py:7", "src/ab.py"}),
    ):
        told = brief_of(client, location=location)
        assert {each["location"] for each in told["tasks"]} == {each["location"] for each in told["resolved"]} == right
        assert (told["summary"]["total"], told["omitted"]) == (10, 0)
    told = brief_of(client, location="src", limit=1)
    assert (len(told["tasks"]), len(told["resolved"]), told["omitted"]) == (1, 1, 2)


def test_the_last_comment_of_a_brief_is_that_of_a_change_of_status_if_there_is_one(client: Client, run: str) -> None:
    decided = {
        None: [],
        "First": [{"comment": "Zeroth"}, {"comment": "First"}],
        "Why": [{"status": "dismissed", "comment": "Why"}, {"comment": "Later"}],
        "No": [{"status": "dismissed", "comment": "No"}, {"status": "open"}, {"assignee": "kim"}],
        "Mine": [{"comment": "Other"}, {"status": "in_progress", "comment": "Mine"}],
    }
    for last, decisions in decided.items():
        found = client.add(run, externalId=str(last))
        for decision in decisions:
            client.triage(found, **decision)
    assert {each["lastComment"] for each in brief_of(client)["tasks"]} == {*decided}
    assert all(str(each["lastComment"]) == each["externalId"] for each in brief_of(client)["tasks"])


def test_an_excerpt_is_the_first_line_of_the_first_evidence(client: Client, run: str) -> None:
    excerpts = {
        "none": ([], None),
        "second": ([{"url": "https://example.com/a"}, {"content": "x"}], None),
        "blank": ([{"content": " \n\t\r\n"}], None),
        "short": ([{"content": "x" * 120}], "x" * 120),
        "long": ([{"content": "x" * 121}], "x" * 119 + "…"),
        "escaped": ([{"label": '"content":"y', "content": "\"\\\x1b'é😀\x85z"}], "\"\\\x1b'é😀"),
    }
    client.submit(run, *(task(externalId=name, evidence=evidence) for name, (evidence, _) in excerpts.items()))
    told = {each["externalId"]: each["excerpt"] for each in brief_of(client)["tasks"]}
    assert told == {name: excerpt for name, (_, excerpt) in excerpts.items()}


def test_of_large_evidence_no_more_is_read_than_an_excerpt_needs(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"url": f"data:image/png;base64,{'A' * 200_000}", "content": "\x01" * 40_000}
    for name in "abc":
        client.add(run, externalId=name, evidence=[large] * 3)
    read: list[int] = []
    excerpt_of = brief.excerpt_of
    monkeypatch.setattr(brief, "excerpt_of", lambda text: (read.append(len(text)), excerpt_of(text))[1])
    told = brief_of(client, limit=2)["tasks"]
    assert [each["excerpt"] for each in told] == ["\x01" * 119 + "…"] * 2
    assert (len(read), max(read) <= 1000) == (2, True)


def test_a_brief_of_an_unregistered_type_says_which_there_are(app: flask.Flask, client: Client) -> None:
    client.register("web")
    assert_problem(client.get(f"{API}/brief"), 400, "invalid_parameter", "projectType")
    for asking, unknown, registered in ((client, "wbe", "web."), (client_of(app, client="other"), "web", "none yet.")):
        refused = asking.get(f"{API}/brief?projectType={unknown}")
        problem = assert_problem(refused, 422, "unknown_project_type", "projectType")
        assert f"Registered: {registered}" in problem["detail"]


@pytest.mark.parametrize(
    ("there", "accept", "other"),
    cases(
        wanted=(True, "text/markdown", True),
        wanted_more=(True, "application/json;q=0.9, text/markdown;variant=CommonMark", True),
        wanted_less=(True, "text/markdown;q=0.5, */*", False),
        absent=(False, "text/markdown", False),
    ),
)
def test_a_brief_goes_out_in_the_form_that_is_wanted_most(
    client: Client, there: bool, accept: str, other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(brief.EXPORTS, "text/markdown")
    if there:
        brief.add("text/markdown", lambda _, about: about.label.encode())
    client.register("web")
    response = client.get(f"{API}/brief?projectType=web", headers={"Accept": accept})
    assert response.content_type == ("text/markdown; charset=utf-8" if other else "application/json")
    assert response.data == b"web" if other else response.json["projectType"] == "web"
