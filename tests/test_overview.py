"""The overview: counts of open tasks, and the changes of the last days."""

from __future__ import annotations

from typing import Any

import flask
import pytest

import findings_service
from tests.clients import API, SEVERITIES, STATUSES, Client, database_of, patch_core, task
from tests.engines import integrity_errors_of
from tests.scenarios import field_values, start_on
from tests.surveys import TARGETS

TIMESTAMP = findings_service.timestamp


def test_etag_of_an_overview_changes_with_the_date(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    etag = client.get(f"{API}/overview").headers["ETag"]
    set_days_ago(monkeypatch, -1)
    assert client.get(f"{API}/overview", headers={"If-None-Match": etag}).status_code == 200


def set_days_ago(monkeypatch: pytest.MonkeyPatch, days: int) -> str:
    """Set the clock back by some days and return the date."""
    patch_core(monkeypatch, "timestamp", lambda ago=0.0: TIMESTAMP(ago + days * 86_400))
    return TIMESTAMP(days * 86_400)[:10]


def test_overview_counts_tasks_by_severity_status_type_and_target(client: Client, run: str) -> None:
    client.register("app")
    without_target, branch_run = client.start("app"), start_on(client, "a", "y")
    task_id = client.add(run, severity="low", externalId="x")
    client.submit(run, task(severity="critical"), task(severity="critical", status="in_progress"))
    client.submit(without_target, task(severity="critical"), task(severity="critical"))
    client.submit(branch_run, task(externalId="x"))
    client.triage(task_id, "resolved")
    zeros = dict.fromkeys(STATUSES, 0)
    overview = client.read("overview")
    assert overview["total"] == 5
    assert overview["bySeverity"] == dict.fromkeys(SEVERITIES, zeros) | {
        "critical": zeros | {"open": 3, "in_progress": 1},
        "low": zeros | {"resolved": 1},
    }
    assert field_values(overview["byProjectType"]) == [("app", 2, 2), ("web", 3, 1)]
    assert field_values(overview["byTarget"]) == [(None, 2, 2), ("https://example.com/", 3, 1)]


OVERVIEWS: tuple[tuple[dict[str, str], int, list[Any], list[Any], int], ...] = (
    ({"projectType": "web"}, 3, [("web", 3, 3)], [(TARGETS[1], 2, 2), (TARGETS[2], 1, 1)], 3),
    ({"targetUrl": TARGETS[1]}, 3, [("web", 2, 2), ("app", 1, 1)], [(TARGETS[1], 3, 3)], 3),
    ({"projectType": "app", "targetUrl": TARGETS[1]}, 1, [("app", 1, 1)], [(TARGETS[1], 1, 1)], 1),
    ({"projectType": "none"}, 0, [], [], 0),
    ({"branch": "a"}, 2, [("app", 2, 2)], [(TARGETS[1], 2, 2)], 2),
    ({"branch": "a", "projectType": "web"}, 0, [], [], 0),
    ({"branch": "b"}, 0, [], [], 0),
)


def test_overview_covers_only_the_requested_filters(client: Client) -> None:
    for name in ("web", "app"):
        client.register(name)
    client.submit(client.start(targetUrl=TARGETS[1]), task(), task(externalId="x"))
    client.submit(client.start(targetUrl=TARGETS[2]), task())
    client.submit(client.start("app", targetUrl=TARGETS[1]), task(externalId="x"))
    client.submit(client.start("app", targetUrl=TARGETS[1], branch="a"), task(externalId="x"), task(externalId="y"))
    for query, *expected in OVERVIEWS:
        overview = client.read("overview", **query)
        values = (field_values(overview["byProjectType"]), field_values(overview["byTarget"]))
        assert [overview["total"], *values, overview["days"][-1]["created"]] == expected, query


def test_overview_counts_created_resolved_and_reopened_tasks_per_day(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = set_days_ago(monkeypatch, 2)
    fixed, wrong = client.add(run, externalId="x"), client.add(run, status="dismissed")
    client.triage(fixed, "in_progress")
    adopted = client.submit(start_on(client, "a"), task(externalId="y"))["tasks"][0]["id"]
    client.triage(adopted, "dismissed")
    middle = set_days_ago(monkeypatch, 1)
    client.triage(fixed, "resolved")
    client.triage(wrong, "resolved")
    last = set_days_ago(monkeypatch, 0)
    client.submit(run, task(externalId="x"), task(externalId="y", title="Taken over"))
    days = client.read("overview", days=4)["days"]
    assert field_values(days[1:]) == [(first, 3, 0, 0, 1, 1), (middle, 0, 0, 2, 0, 0), (last, 0, 1, 0, 0, 1)]
    assert set(field_values(days[:1])[0][1:]) == {0}
    client.remove(f"tasks/{fixed}")
    days = client.read("overview", days=3)["days"]
    assert field_values(days) == [(first, 2, 0, 0, 1, 0), (middle, 0, 0, 1, 0, 0), (last, 0, 0, 0, 0, 0)]
    assert integrity_errors_of(database_of(app).settings.db) == []


def test_overview_counts_unfinished_tasks_at_each_days_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("web", "app"):
        client.register(name)
    set_days_ago(monkeypatch, 9)  # before the first day of the response
    run, branch, app = start_on(client, None), start_on(client, "a"), client.start("app")
    old, kept, deleted = (client.add(run, externalId=name) for name in ("old", "kept", "deleted"))
    branch_task = client.add(branch, externalId="own", status="in_progress")
    set_days_ago(monkeypatch, 3)
    client.add(run, status="dismissed")  # never unfinished
    client.add(app)
    client.triage(old, "in_progress")  # still unfinished
    client.triage(branch_task, "dismissed")
    set_days_ago(monkeypatch, 2)
    client.triage(old, "resolved")
    client.triage(branch_task, "resolved")
    client.add(branch, externalId="kept")
    set_days_ago(monkeypatch, 1)
    client.add(run, externalId="old")  # reopened
    client.triage(kept, "dismissed")
    client.triage(kept, "open")  # on the same day
    client.triage(branch_task, "open")
    set_days_ago(monkeypatch, 0)
    client.add(run)
    client.triage(deleted, "in_progress")

    def unfinished(**query: Any) -> list[int]:
        overview = client.read("overview", days=5, **query)
        expected = sum(each["open"] + each["in_progress"] for each in overview["bySeverity"].values())
        assert overview["days"][-1]["unfinished"] == expected
        return [each["unfinished"] for each in overview["days"]]

    assert unfinished() == [3, 4, 3, 4, 5]
    client.remove(f"tasks/{deleted}")
    assert unfinished() == [2, 3, 2, 3, 4]
    assert unfinished(projectType="app") == [0, 1, 1, 1, 1]
    assert unfinished(branch="a") == [2, 1, 1, 2, 2]
