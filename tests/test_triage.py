"""Decisions about several tasks alike: all of them or none."""

from __future__ import annotations

import json
from typing import Any

import flask

from tests.clients import API, UNKNOWN_ID, Client, assert_problem, client_of, task


def triage_all(client: Client, *ids: str, **decision: Any) -> Any:
    """Make a decision about several tasks, and return the answer."""
    return client.patch(f"{API}/tasks", json={"ids": ids, **decision})


def told_of(client: Client, *ids: str) -> list[dict[str, Any]]:
    """Return what a decision about several tells of them."""
    tasks = (client.read(f"tasks/{task_id}") for task_id in ids)
    return [{name: each[name] for name in ("id", "status", "etag")} for each in tasks]


def test_several_tasks_are_triaged_in_the_order_sent(client: Client, run: str) -> None:
    ids = [client.add(run, status=status) for status in ("open", "dismissed", "resolved")][::-1]
    before = client.read(f"tasks/{ids[1]}")
    done = triage_all(client, *ids, status="dismissed").json
    assert done == {"updated": 2, "unchanged": 1, "tasks": told_of(client, *ids)}
    assert {each["status"] for each in done["tasks"]} == {"dismissed"}
    assert client.read(f"tasks/{ids[1]}") == before
    assert [len(client.history(task_id)) for task_id in ids] == [2, 1, 2]
    done = triage_all(client, *ids, reason="wont_fix", assignee="Ada", comment="Old.").json
    assert done == {"updated": 3, "unchanged": 0, "tasks": told_of(client, *ids)}
    assert {client.read(f"tasks/{task_id}")["reason"] for task_id in ids} == {"wont_fix"}
    assert triage_all(client, *ids, comment="Very old.").json == done | {"tasks": told_of(client, *ids)}
    last = client.history(ids[0])[-1]
    assert (last["event"], last["comment"]) == ("comment", "Very old.")


SEVERAL_REJECTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown_field": ({"ids": ["OPEN"], "title": "x"}, ["/title"]),
    "ids_left_out": ({"ids": ...}, ["/ids"]),
    "ids_that_are_null": ({"ids": None}, ["/ids"]),
    "nul": ({"ids": ["OPEN", "\0"]}, ["/ids/1"]),
    "none": ({"ids": []}, ["/ids"]),
    "too_many": ({"ids": ["x"] * 1001}, ["/ids"]),
    "no_list": ({"ids": "OPEN"}, ["/ids"]),
    "number": ({"ids": ["OPEN", 1]}, ["/ids/1"]),
    "unknown": ({"ids": ["x", "OPEN", UNKNOWN_ID, "y" * 300]}, ["/ids/0", "/ids/2", "/ids/3"]),
    "doubled": ({"ids": ["OPEN", "DONE", "OPEN", "OPEN"]}, ["/ids/2", "/ids/3"]),
    "anothers": ({"ids": ["OPEN", "THEIRS"]}, ["/ids/1"]),
    "no_decision": ({"ids": ["OPEN", "x"], "status": None}, ["", "/ids/1"]),
    "reason_of_an_open_status": ({"ids": ["DONE"], "reason": "fixed"}, ["/reason"]),
    "tag_of_another": ({"ids": ["OPEN"], "ifMatch": {"OPEN": '"a"', "a/~": '"a"'}}, ["/ifMatch/a~1~0"]),
    "tag_that_is_none": ({"ids": ["OPEN"], "ifMatch": {"OPEN": 1}}, ["/ifMatch/OPEN"]),
    "tags_that_are_none": ({"ids": ["OPEN"], "ifMatch": ['"a"']}, ["/ifMatch"]),
    "unknown_before_a_tag": ({"ids": ["OPEN", "x"], "ifMatch": {"OPEN": '"a"', "x": '"a"'}}, ["/ids/1"]),
    "reason_that_fits_some": ({"ids": ["DONE", "OPEN", "x"], "status": None, "reason": "fixed"}, ["/ids/1", "/ids/2"]),
}


def test_a_decision_about_several_tasks_is_stored_for_all_or_none(app: flask.Flask, client: Client, run: str) -> None:
    stranger = client_of(app, client="other")
    stranger.register("web")
    ids = {"OPEN": client.add(run), "DONE": client.add(run, status="resolved")}
    before = [client.read(f"tasks/{each}") for each in ids.values()]
    ids["THEIRS"] = stranger.add(stranger.start())
    for name, (body, pointers) in SEVERAL_REJECTIONS.items():
        sent = {"status": "in_progress", **body}
        text = json.dumps({field: value for field, value in sent.items() if value is not ...})
        for each, task_id in ids.items():
            text = text.replace(f'"{each}"', f'"{task_id}"')
        problem = assert_problem(client.send("PATCH", f"{API}/tasks", text), 422, "validation_failed")
        assert [each["pointer"] for each in problem["errors"]] == [
            each.replace("OPEN", ids["OPEN"]) for each in pointers
        ], name
        assert [client.read(f"tasks/{ids[each]}") for each in ("OPEN", "DONE")] == before, name


def test_a_decision_about_several_may_depend_on_what_they_were(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 4)["tasks"]]
    seen = {each["id"]: each["etag"] for each in client.read("tasks")["tasks"]}
    done = triage_all(client, *ids, status="in_progress", ifMatch=seen)
    now = {each["id"]: each["etag"] for each in done.json["tasks"]}
    assert (done.status_code, done.json["updated"]) == (200, 4)
    given = now | {ids[0]: seen[ids[0]], ids[2]: "W/" + now[ids[2]]}
    refused = triage_all(client, *ids, reason="fixed", ifMatch=given)
    problem = assert_problem(refused, 412, "changed_meanwhile", f"/ifMatch/{ids[0]}")
    assert [each["pointer"] for each in problem["errors"]] == [f"/ifMatch/{ids[0]}", f"/ifMatch/{ids[2]}"]
    assert told_of(client, *ids) == done.json["tasks"]
    unfit = triage_all(client, *ids, reason="fixed", ifMatch=now)
    assert_problem(unfit, 422, "validation_failed", "/ids/0")
    assert triage_all(client, *ids, status="resolved", ifMatch={ids[1]: now[ids[1]]}).json["updated"] == 4


def test_a_thousand_tasks_are_triaged_at_once_and_what_changed_is_told_of_the_first_hundred(
    client: Client, run: str
) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 1000)["tasks"]]
    before = client.read("tasks", limit=200)
    refused = triage_all(client, *ids, status="dismissed", ifMatch=dict.fromkeys(ids, '"a"'))
    problem = assert_problem(refused, 412, "changed_meanwhile")
    assert (len(problem["errors"]), problem["detail"].split()[0]) == (100, "1,000")
    assert client.read("tasks", limit=200) == before
    done = triage_all(client, *ids, status="dismissed", reason="duplicate", assignee="Ada", comment="x").json
    assert (done["updated"], done["unchanged"], [each["id"] for each in done["tasks"]]) == (1000, 0, ids)
    assert client.read("tasks", status="dismissed")["total"] == 1000
    assert client.read(f"runs/{run}")["summary"]["byStatus"]["dismissed"] == 1000
