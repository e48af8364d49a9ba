"""PATCH of several tasks: one decision is stored for all of them or for none."""

from __future__ import annotations

import json
from typing import Any

import flask

from tests.clients import API, UNKNOWN_ID, Client, assert_problem, client_of, task


def triage_all(client: Client, *ids: str, **decision: Any) -> Any:
    """Send one decision about several tasks and return the response."""
    return client.patch(f"{API}/tasks", json={"ids": ids, **decision})


def listed(client: Client, *ids: str) -> list[dict[str, Any]]:
    """Return the tasks as the response to a batch decision lists them."""
    tasks = (client.read(f"tasks/{task_id}") for task_id in ids)
    return [{name: each[name] for name in ("id", "status", "etag")} for each in tasks]


def test_batch_decision_updates_tasks_in_the_order_sent(client: Client, run: str) -> None:
    ids = [client.add(run, status=status) for status in ("open", "dismissed", "resolved")][::-1]
    before = client.read(f"tasks/{ids[1]}")
    response = triage_all(client, *ids, status="dismissed").json
    assert response == {"updated": 2, "unchanged": 1, "tasks": listed(client, *ids)}
    assert {each["status"] for each in response["tasks"]} == {"dismissed"}
    assert client.read(f"tasks/{ids[1]}") == before
    assert [len(client.history(task_id)) for task_id in ids] == [2, 1, 2]
    response = triage_all(client, *ids, reason="wont_fix", assignee="Ada", comment="Old.").json
    assert response == {"updated": 3, "unchanged": 0, "tasks": listed(client, *ids)}
    assert {client.read(f"tasks/{task_id}")["reason"] for task_id in ids} == {"wont_fix"}
    assert triage_all(client, *ids, comment="Very old.").json == response | {"tasks": listed(client, *ids)}
    entry = client.history(ids[0])[-1]
    assert (entry["event"], entry["comment"]) == ("comment", "Very old.")


REJECTED_BATCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown_field": ({"ids": ["OPEN"], "title": "x"}, ["/title"]),
    "ids_missing": ({"ids": ...}, ["/ids"]),
    "ids_null": ({"ids": None}, ["/ids"]),
    "nul": ({"ids": ["OPEN", "\0"]}, ["/ids/1"]),
    "none": ({"ids": []}, ["/ids"]),
    "too_many": ({"ids": ["x"] * 1001}, ["/ids"]),
    "not_a_list": ({"ids": "OPEN"}, ["/ids"]),
    "number": ({"ids": ["OPEN", 1]}, ["/ids/1"]),
    "unknown": ({"ids": ["x", "OPEN", UNKNOWN_ID, "y" * 300]}, ["/ids/0", "/ids/2", "/ids/3"]),
    "duplicate": ({"ids": ["OPEN", "DONE", "OPEN", "OPEN"]}, ["/ids/2", "/ids/3"]),
    "of_another_client": ({"ids": ["OPEN", "THEIRS"]}, ["/ids/1"]),
    "no_decision": ({"ids": ["OPEN", "x"], "status": None}, ["", "/ids/1"]),
    "reason_of_an_open_status": ({"ids": ["DONE"], "reason": "fixed"}, ["/reason"]),
    "etag_of_another_task": ({"ids": ["OPEN"], "ifMatch": {"OPEN": '"a"', "a/~": '"a"'}}, ["/ifMatch/a~1~0"]),
    "etag_not_a_string": ({"ids": ["OPEN"], "ifMatch": {"OPEN": 1}}, ["/ifMatch/OPEN"]),
    "etags_not_an_object": ({"ids": ["OPEN"], "ifMatch": ['"a"']}, ["/ifMatch"]),
    "unknown_id_before_etag": ({"ids": ["OPEN", "x"], "ifMatch": {"OPEN": '"a"', "x": '"a"'}}, ["/ids/1"]),
    "reason_valid_for_some": ({"ids": ["DONE", "OPEN", "x"], "status": None, "reason": "fixed"}, ["/ids/1", "/ids/2"]),
}


def test_rejected_batch_decision_changes_no_task(app: flask.Flask, client: Client, run: str) -> None:
    other_client = client_of(app, client="other")
    other_client.register("web")
    ids = {"OPEN": client.add(run), "DONE": client.add(run, status="resolved")}
    before = [client.read(f"tasks/{each}") for each in ids.values()]
    ids["THEIRS"] = other_client.add(other_client.start())
    for name, (body, pointers) in REJECTED_BATCHES.items():
        sent = {"status": "in_progress", **body}
        text = json.dumps({field: value for field, value in sent.items() if value is not ...})
        for each, task_id in ids.items():
            text = text.replace(f'"{each}"', f'"{task_id}"')
        problem = assert_problem(client.send("PATCH", f"{API}/tasks", text), 422, "validation_failed")
        assert [each["pointer"] for each in problem["errors"]] == [
            each.replace("OPEN", ids["OPEN"]) for each in pointers
        ], name
        assert [client.read(f"tasks/{ids[each]}") for each in ("OPEN", "DONE")] == before, name


def test_batch_decision_checks_if_match_for_each_task(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 4)["tasks"]]
    old_etags = {each["id"]: each["etag"] for each in client.read("tasks")["tasks"]}
    response = triage_all(client, *ids, status="in_progress", ifMatch=old_etags)
    new_etags = {each["id"]: each["etag"] for each in response.json["tasks"]}
    assert (response.status_code, response.json["updated"]) == (200, 4)
    etags = new_etags | {ids[0]: old_etags[ids[0]], ids[2]: "W/" + new_etags[ids[2]]}
    conflict = triage_all(client, *ids, reason="fixed", ifMatch=etags)
    problem = assert_problem(conflict, 412, "changed_meanwhile", f"/ifMatch/{ids[0]}")
    assert [each["pointer"] for each in problem["errors"]] == [f"/ifMatch/{ids[0]}", f"/ifMatch/{ids[2]}"]
    assert listed(client, *ids) == response.json["tasks"]
    rejected = triage_all(client, *ids, reason="fixed", ifMatch=new_etags)
    assert_problem(rejected, 422, "validation_failed", "/ids/0")
    assert triage_all(client, *ids, status="resolved", ifMatch={ids[1]: new_etags[ids[1]]}).json["updated"] == 4


def test_batch_of_1000_tasks_lists_at_most_100_errors(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 1000)["tasks"]]
    before = client.read("tasks", limit=200)
    conflict = triage_all(client, *ids, status="dismissed", ifMatch=dict.fromkeys(ids, '"a"'))
    problem = assert_problem(conflict, 412, "changed_meanwhile")
    assert (len(problem["errors"]), problem["detail"].split()[0]) == (100, "1,000")
    assert client.read("tasks", limit=200) == before
    response = triage_all(client, *ids, status="dismissed", reason="duplicate", assignee="Ada", comment="x").json
    assert (response["updated"], response["unchanged"], [each["id"] for each in response["tasks"]]) == (1000, 0, ids)
    assert client.read("tasks", status="dismissed")["total"] == 1000
    assert client.read(f"runs/{run}")["summary"]["byStatus"]["dismissed"] == 1000
