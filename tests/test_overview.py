"""The overview: what is open, and what the last days brought."""

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


def test_an_overview_of_yesterday_is_not_todays(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = client.get(f"{API}/overview").headers["ETag"]
    at_day(monkeypatch, -1)
    assert client.get(f"{API}/overview", headers={"If-None-Match": tag}).status_code == 200


def at_day(monkeypatch: pytest.MonkeyPatch, days: int) -> str:
    """Let it be some days ago for what follows, and return the date."""
    patch_core(monkeypatch, "timestamp", lambda ago=0.0: TIMESTAMP(ago + days * 86_400))
    return TIMESTAMP(days * 86_400)[:10]


def test_an_overview_tells_where_the_main_line_stands(client: Client, run: str) -> None:
    client.register("app")
    bare, branch = client.start("app"), start_on(client, "a", "y")
    fixed = client.add(run, severity="low", externalId="x")
    client.submit(run, task(severity="critical"), task(severity="critical", status="in_progress"))
    client.submit(bare, task(severity="critical"), task(severity="critical"))
    client.submit(branch, task(externalId="x"))
    client.triage(fixed, "resolved")
    nothing = dict.fromkeys(STATUSES, 0)
    told = client.read("overview")
    assert told["total"] == 5
    assert told["bySeverity"] == dict.fromkeys(SEVERITIES, nothing) | {
        "critical": nothing | {"open": 3, "in_progress": 1},
        "low": nothing | {"resolved": 1},
    }
    assert field_values(told["byProjectType"]) == [("app", 2, 2), ("web", 3, 1)]
    assert field_values(told["byTarget"]) == [(None, 2, 2), ("https://example.com/", 3, 1)]


ASKED: tuple[tuple[dict[str, str], int, list[Any], list[Any], int], ...] = (
    ({"projectType": "web"}, 3, [("web", 3, 3)], [(TARGETS[1], 2, 2), (TARGETS[2], 1, 1)], 3),
    ({"targetUrl": TARGETS[1]}, 3, [("web", 2, 2), ("app", 1, 1)], [(TARGETS[1], 3, 3)], 3),
    ({"projectType": "app", "targetUrl": TARGETS[1]}, 1, [("app", 1, 1)], [(TARGETS[1], 1, 1)], 1),
    ({"projectType": "none"}, 0, [], [], 0),
    ({"branch": "a"}, 2, [("app", 2, 2)], [(TARGETS[1], 2, 2)], 2),
    ({"branch": "a", "projectType": "web"}, 0, [], [], 0),
    ({"branch": "b"}, 0, [], [], 0),
)


def test_an_overview_is_of_what_it_is_asked_for(client: Client) -> None:
    for name in ("web", "app"):
        client.register(name)
    client.submit(client.start(targetUrl=TARGETS[1]), task(), task(externalId="x"))
    client.submit(client.start(targetUrl=TARGETS[2]), task())
    client.submit(client.start("app", targetUrl=TARGETS[1]), task(externalId="x"))
    client.submit(client.start("app", targetUrl=TARGETS[1], branch="a"), task(externalId="x"), task(externalId="y"))
    for query, *expected in ASKED:
        told = client.read("overview", **query)
        stand = (field_values(told["byProjectType"]), field_values(told["byTarget"]))
        assert [told["total"], *stand, told["days"][-1]["created"]] == expected, query


def test_the_days_of_an_overview_count_what_happened_on_them(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = at_day(monkeypatch, 2)
    fixed, wrong = client.add(run, externalId="x"), client.add(run, status="dismissed")
    client.triage(fixed, "in_progress")
    taken = client.submit(start_on(client, "a"), task(externalId="y"))["tasks"][0]["id"]
    client.triage(taken, "dismissed")
    middle = at_day(monkeypatch, 1)
    client.triage(fixed, "resolved")
    client.triage(wrong, "resolved")
    last = at_day(monkeypatch, 0)
    client.submit(run, task(externalId="x"), task(externalId="y", title="Taken over"))
    told = client.read("overview", days=4)["days"]
    assert field_values(told[1:]) == [(first, 3, 0, 0, 1, 1), (middle, 0, 0, 2, 0, 0), (last, 0, 1, 0, 0, 1)]
    assert set(field_values(told[:1])[0][1:]) == {0}
    client.remove(f"tasks/{fixed}")
    told = client.read("overview", days=3)["days"]
    assert field_values(told) == [(first, 2, 0, 0, 1, 0), (middle, 0, 0, 1, 0, 0), (last, 0, 0, 0, 0, 0)]
    assert integrity_errors_of(database_of(app).settings.db) == []


def test_a_day_tells_how_many_were_unfinished_at_its_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("web", "app"):
        client.register(name)
    at_day(monkeypatch, 9)  # before the first day that is told of
    run, branch, app = start_on(client, None), start_on(client, "a"), client.start("app")
    old, kept, deleted = (client.add(run, externalId=name) for name in ("old", "kept", "deleted"))
    own = client.add(branch, externalId="own", status="in_progress")
    at_day(monkeypatch, 3)
    client.add(run, status="dismissed")  # never unfinished
    client.add(app)
    client.triage(old, "in_progress")  # as before
    client.triage(own, "dismissed")
    at_day(monkeypatch, 2)
    client.triage(old, "resolved")
    client.triage(own, "resolved")
    client.add(branch, externalId="kept")
    at_day(monkeypatch, 1)
    client.add(run, externalId="old")  # reopened
    client.triage(kept, "dismissed")
    client.triage(kept, "open")  # on the same day
    client.triage(own, "open")
    at_day(monkeypatch, 0)
    client.add(run)
    client.triage(deleted, "in_progress")

    def unfinished(**query: Any) -> list[int]:
        told = client.read("overview", days=5, **query)
        now = sum(each["open"] + each["in_progress"] for each in told["bySeverity"].values())
        assert told["days"][-1]["unfinished"] == now
        return [each["unfinished"] for each in told["days"]]

    assert unfinished() == [3, 4, 3, 4, 5]
    client.remove(f"tasks/{deleted}")
    assert unfinished() == [2, 3, 2, 3, 4]
    assert unfinished(projectType="app") == [0, 1, 1, 1, 1]
    assert unfinished(branch="a") == [2, 1, 1, 2, 2]
