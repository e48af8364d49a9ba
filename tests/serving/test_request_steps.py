"""Trace of a request through the running service: each step runs once, one after the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import API, task
from tests.servers import Server

STEPS = ["ApiRequest.open", "ApiRequest.read", "ApiRequest.check", "PendingWrite.apply"]
# Runs the service, and writes the call stack of each call to a function of the project, as a list of function names.
TRACED = """
import atexit, json, os, sys, threading
import findings_service

FOLDER, entered = os.path.dirname(findings_service.__file__) + os.sep, []

def is_ours(code):
    path = code.co_filename
    return path.startswith(FOLDER) and "site-packages" not in path and "<" not in code.co_name

def callers(frame):
    while frame:
        code, frame = frame.f_code, frame.f_back
        if is_ours(code):
            yield code.co_qualname

def note(frame, event, argument):
    if event == "call" and is_ours(frame.f_code):
        entered.append([*callers(frame)])

@atexit.register
def write():
    sys.setprofile(None)
    with open(os.environ["TRACED"], "w") as file:
        json.dump(entered, file)

threading.setprofile(note)
sys.setprofile(note)
findings_service.main()
"""


def calls_of_writes(traced: Path) -> list[list[list[str]]]:
    """Return the call stacks of each completed write, from the creation of its environment to its `settle`."""
    entered = json.loads(traced.read_text())
    requests: list[list[list[str]]] = []
    for stack in entered:
        if stack[0] == "environ_of":
            requests.append([])
        if requests and not stack[-1].startswith("Deliverer."):  # runs in a thread of its own
            requests[-1].append(stack)
    settled = [[stack[0].endswith("settle") for stack in request] for request in requests]
    return [request[: flags.index(True)] for request, flags in zip(requests, settled, strict=True) if True in flags]


@pytest.mark.sqlite
def test_write_request_runs_each_step_once_and_in_order(serve: Callable[..., Server], tmp_path: Path) -> None:
    traced = tmp_path / "traced.json"
    program = (sys.executable, "-c", TRACED)
    server = serve(program=program, TRACED=str(traced))
    run = server.start_run({"type": "object", "properties": {"n": {"type": "integer"}}})
    for batch in "ab":
        tasks = [task(externalId=f"{batch}{number}", extensions={"n": number}) for number in range(20)]
        submitted = server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": tasks}).json["tasks"]
    triaged = server.request("PATCH", f"{API}/tasks/{submitted[0]['id']}", {"status": "dismissed", "comment": "x"})
    assert triaged.status_code == 200
    assert server.stop() == 0
    batch_calls, update_calls = calls_of_writes(traced)[-2:]  # the first batch has filled the caches
    for stacks in (batch_calls, update_calls):
        assert [stack[0] for stack in stacks if stack[0] in STEPS] == STEPS
        assert all(len(set(stack) & set(STEPS)) <= 1 for stack in stacks)  # each returns before the next is called
