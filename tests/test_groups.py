"""Groups of a task list: counts by rule, location, tag and other labels."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from tests.clients import API, SEVERITIES, STATUSES, Client, assert_problem, client_of, rows_of, task
from tests.scenarios import start_on
from tests.surveys import RULES, TAGS, Survey

BY = ("rule", "location", "tag", "projectType", "targetUrl", "assignee")
FILES = {  # by location of the survey
    "src/app.py:42": "src/app.py",
    "src/app.py:42:7": "src/app.py",
    "https://h:80/a:1": "https://h:80/a",
}


def values_of(item: dict[str, Any], by: str) -> list[str | None]:
    """Return the values under which a task is counted."""
    if by == "tag":
        return item["tags"] or [None]
    return [FILES.get(item[by], item[by])]


def expected_groups(tasks: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return the expected groups of a list of tasks."""
    groups: dict[str | None, list[dict[str, Any]]] = {}
    for item in tasks:
        for value in values_of(item, by):
            groups.setdefault(value, []).append(item)
    result = []
    for value, items in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0] is None, each[0] or "")):
        severities, statuses = (Counter(item[name] for item in items) for name in ("severity", "status"))
        result.append(
            {
                "value": value,
                "total": len(items),
                "bySeverity": {name: severities[name] for name in SEVERITIES},
                "byStatus": {name: statuses[name] for name in STATUSES},
            }
        )
    return result


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"status": "open,dismissed", "severity": "low,high"},
    {"mainLine": "true", "status": "open"},
    {"mainLine": "false"},
    {"projectType": "web"},
    {"targetUrl": "https://example.com/", "severity": "critical"},
    {"rule": RULES[1]},
    {"tag": ",".join(TAGS)},
    {"location": "src"},
    {"without": "tag"},
    {"branch": ["a", "b,c"]},
    {"assigned": "true"},
    {"q": "src"},
)


def test_groups_count_the_tasks_of_the_filtered_list(survey: Survey) -> None:
    run_filters = [{"runId": ",".join(run["id"] for run in survey.runs[:9])}, {"missingFrom": survey.runs[12]["id"]}]
    for query in (*FILTERS, *run_filters):
        expected_ids = set(survey.expected_tasks(query))
        tasks = [item for item in survey.tasks if item["id"] in expected_ids]
        for by, limit in itertools.product(BY, (200, 2)):
            expected = expected_groups(tasks, by)
            others = sum(group["total"] for group in expected[limit:])
            response = survey.client.read("groups", by=by, limit=limit, **query)
            assert response == {"by": by, "groups": expected[:limit], "others": others}, query


FILE_OF_LOCATION = {
    "a.py:1": "a.py",
    "a.py:1:2": "a.py",
    "b.py:1:2:3": "b.py:1",
    "a.py:b": "a.py:b",
    "a.py:١": "a.py:١",  # digits that are not ASCII
    ":1": ":1",
    "C:\\a.py:7": "C:\\a.py",
    "http://h:80": "http://h:80",
    "http://i:80:7:9": "http://i:80",
    "http://[::1]:80": "http://[::1]:80",
    "http://u:p@h:80": "http://u:p@h:80",
    "http://h:80/a.js:7:9": "http://h:80/a.js",
    "http://h?a:7": "http://h?a",
}


def test_location_groups_ignore_line_and_column(client: Client, run: str) -> None:
    client.submit(run, *(task(location=location) for location in FILE_OF_LOCATION))
    groups = client.read("groups", by="location")["groups"]
    assert {group["value"]: group["total"] for group in groups} == Counter(FILE_OF_LOCATION.values())


@pytest.mark.usefixtures("run")
def test_groups_and_filters_match_values_with_unicode_white_space(client: Client) -> None:
    for space in "\u00a0\u3000\u2028\u0085":
        label = "a" if space == "\u0085" else f"{space}a{space}b branches"  # U+0085 is a control character
        values = {"targetUrl": f"https://h/{space}b", **dict.fromkeys(("rule", "tag", "location", "assignee"), label)}
        for branch in (None, label):
            run = client.start(targetUrl=values["targetUrl"], branch=branch)
            task_id = client.add(run, rule=label, tags=[label, "other"], location=label)
            client.triage(task_id, "open", assignee=label)
        for by, value in values.items():
            groups = client.read("groups", by=by)["groups"]
            assert [group["total"] for group in groups if group["value"] == value] == [2], (by, value)
            assert client.read("tasks", **{by: value})["total"] == 2, (by, value)


def test_groups_follow_reports_status_changes_and_deletions(client: Client, run: str) -> None:
    def groups_of(by: str, **query: Any) -> list[tuple[Any, ...]]:
        groups = client.read("groups", by=by, **query)["groups"]
        return [(group["value"], group["total"], group["byStatus"]["open"]) for group in groups]

    task_id = client.add(run, externalId="x", rule="R1", tags=["a", "b"])
    client.submit(start_on(client, "topic"), task(externalId="y", rule="R1", tags=["a"]))
    client.triage(task_id, "resolved")
    assert groups_of("rule") == [("R1", 2, 1)]
    assert groups_of("rule", mainLine="true") == [("R1", 1, 0)]
    assert groups_of("tag") == [("a", 2, 1), ("b", 1, 0)]
    client.submit(run, task(externalId="x", rule="R2"), task(externalId="y"))
    assert groups_of("rule") == [("R2", 1, 1), (None, 1, 1)]
    assert groups_of("tag") == [(None, 2, 2)]
    stale_counters = "SELECT scope FROM counters WHERE scope LIKE '%R1%' OR scope LIKE 'tasks tag:%'"
    assert rows_of(client.application, stale_counters) == []
    assert rows_of(client.application, "SELECT tag FROM task_tags") == []
    client.remove(f"tasks/{task_id}")
    assert groups_of("rule") == [(None, 1, 1)]


def test_groups_cover_only_the_own_client(client: Client, run: str) -> None:
    client.add(run, rule="R", location="l", tags=["t"])
    other_client = client_of(client.application, client="other")
    assert [other_client.read("groups", by=by)["groups"] for by in BY] == [[]] * len(BY)


def test_invalid_group_parameters_are_rejected(client: Client) -> None:
    assert_problem(client.get(f"{API}/groups"), 400, "invalid_parameter", "by")
    for name, value in {"by": "title", "limit": "201", "page": "1", "sort": "severity", "status": "opn"}.items():
        response = client.get(f"{API}/groups", query_string={"by": "rule", name: value})
        assert_problem(response, 400, "invalid_parameter", name)


@pytest.mark.usefixtures("zero_list_time")
def test_groups_have_the_time_limit_of_a_list(client: Client, run: str) -> None:
    client.add(run, location="a.py:1")
    assert_problem(client.get(f"{API}/groups?by=location"), 400, "invalid_parameter", "query string")
