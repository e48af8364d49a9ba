"""Decisions about several tasks alike: all of them or none."""

from __future__ import annotations

import time
from typing import Any

import flask
import pytest

from tests.support import API, UNKNOWN_ID, Client, assert_problem, cases, client_of, task


def triage_all(client: Client, *ids: str, **decision: Any) -> Any:
    """Make a decision about several tasks, and return the answer."""
    return client.patch(f"{API}/tasks", json={"ids": ids, **decision})


def test_several_tasks_are_triaged_in_the_order_sent(client: Client, run: str) -> None:
    ids = [client.add(run, status=status) for status in ("open", "dismissed", "resolved")][::-1]
    before = client.read(f"tasks/{ids[1]}")
    done = triage_all(client, *ids, status="dismissed").json
    tasks = [{"id": task_id, "status": "dismissed"} for task_id in ids]
    assert done == {"updated": 2, "unchanged": 1, "tasks": tasks}
    assert client.read(f"tasks/{ids[1]}") == before
    assert [len(client.history(task_id)) for task_id in ids] == [2, 1, 2]
    done = triage_all(client, *ids, reason="wont_fix", assignee="Ada", comment="Old.").json
    assert done == {"updated": 3, "unchanged": 0, "tasks": tasks}
    assert {client.read(f"tasks/{task_id}")["reason"] for task_id in ids} == {"wont_fix"}
    assert triage_all(client, *ids, comment="Very old.").json == done
    last = client.history(ids[0])[-1]
    assert (last["event"], last["comment"]) == ("comment", "Very old.")


SEVERAL_REJECTIONS = cases(
    unknown_field=({"ids": ["OPEN"], "title": "x"}, ["/title"]),
    ids_left_out=({"ids": ...}, ["/ids"]),
    ids_that_are_null=({"ids": None}, ["/ids"]),
    nul=({"ids": ["OPEN", "\0"]}, ["/ids/1"]),
    none=({"ids": []}, ["/ids"]),
    too_many=({"ids": ["x"] * 1001}, ["/ids"]),
    no_list=({"ids": "OPEN"}, ["/ids"]),
    number=({"ids": ["OPEN", 1]}, ["/ids/1"]),
    unknown=({"ids": ["x", "OPEN", UNKNOWN_ID, "y" * 300]}, ["/ids/0", "/ids/2", "/ids/3"]),
    doubled=({"ids": ["OPEN", "DONE", "OPEN", "OPEN"]}, ["/ids/2", "/ids/3"]),
    anothers=({"ids": ["OPEN", "THEIRS"]}, ["/ids/1"]),
    no_decision=({"ids": ["OPEN", "x"], "status": None}, ["", "/ids/1"]),
    reason_of_an_open_status=({"ids": ["DONE"], "reason": "fixed"}, ["/reason"]),
    reason_that_fits_some=({"ids": ["DONE", "OPEN", "x"], "status": None, "reason": "fixed"}, ["/ids/1", "/ids/2"]),
)


@pytest.mark.parametrize(("body", "pointers"), SEVERAL_REJECTIONS)
def test_a_decision_about_several_tasks_is_stored_for_all_or_none(
    app: flask.Flask, client: Client, run: str, body: dict[str, Any], pointers: list[str]
) -> None:
    stranger = client_of(app, client="other")
    stranger.register("web")
    ids = {
        "OPEN": client.add(run),
        "DONE": client.add(run, status="resolved"),
        "THEIRS": stranger.add(stranger.start()),
    }
    named = [ids.get(each, each) for each in body["ids"]] if isinstance(body["ids"], list) else body["ids"]
    before = [client.read(f"tasks/{ids[name]}") for name in ("OPEN", "DONE")]
    sent = {"status": "in_progress", **body, "ids": named}
    response = client.patch(f"{API}/tasks", json={name: each for name, each in sent.items() if each is not ...})
    problem = assert_problem(response, 422, "validation_failed", pointers[0])
    assert [each["pointer"] for each in problem["errors"]] == pointers
    assert [client.read(f"tasks/{ids[name]}") for name in ("OPEN", "DONE")] == before


def test_a_thousand_tasks_are_triaged_at_once(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 1000)["tasks"]]
    began = time.perf_counter()
    done = triage_all(client, *ids, status="dismissed", reason="duplicate", assignee="Ada", comment="x").json
    assert time.perf_counter() - began < 1
    assert (done["updated"], done["unchanged"], [each["id"] for each in done["tasks"]]) == (1000, 0, ids)
    assert client.read("tasks", status="dismissed")["total"] == 1000
    assert client.read(f"runs/{run}")["summary"]["byStatus"]["dismissed"] == 1000
