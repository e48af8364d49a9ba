"""Claims, comments, verifications and proposals: how agents that fix findings work beside each other and people."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from typing import Any

import flask
import pytest

import findings_service
from findings_features import fixing
from tests.clients import (
    API,
    KIB,
    SEVERITIES,
    UNKNOWN_ID,
    Client,
    assert_problem,
    cases,
    client_of,
    database_of,
    task,
    users_of,
)
from tests.scenarios import expire, gate, post, run_clock, sqlite_steps

LATER = "2120-01-01T00:00:00.000Z"
LINKS = [{"rel": "pull_request", "url": f"https://code.example/{n}"} for n in range(21)]
WONT_FIX = {"status": "dismissed", "reason": "wont_fix", "comment": "It is a test."}
FIXED = {"outcome": "fixed", "comment": "Ran it again."}
CLAIM, PATCH, REPORT = "POST tasks/claim", "PATCH tasks/TASK", "POST runs/RUN/tasks"
VERIFY, PROPOSE, COMMENT = "POST tasks/TASK/verifications", "PUT tasks/TASK/proposal", "POST tasks/TASK/comments"


def claim(client: Client, *ids: str, **wanted: Any) -> dict[str, Any]:
    return client.request_json("POST", "tasks/claim", 200, json={"ids": ids or None, **wanted})


def verify(client: Client, task_id: str, outcome: str, **more: Any) -> dict[str, Any]:
    body = {**FIXED, "outcome": outcome, **more}
    return client.request_json("POST", f"tasks/{task_id}/verifications", 201, json=body)


def propose(client: Client, task_id: str, **more: Any) -> dict[str, Any]:
    return client.request_json("PUT", f"tasks/{task_id}/proposal", 200, json=WONT_FIX | more)


def send(client: Client, request: str, body: Any = None, headers: Any = None, **ids: str) -> Any:
    """Send a request "METHOD path", and replace the names of ids in its path and body."""
    text = json.dumps([request, body])
    for name, value in ids.items():
        text = text.replace(name, value)
    line, body = json.loads(text)
    method, path = line.split()
    return client.open(f"{API}/{path}", method=method, json=body, headers=headers)


def heads(client: Client, **query: Any) -> dict[str, dict[str, Any]]:
    """Return list items by external id, in the order of the list."""
    return {each["externalId"]: each for each in client.read("tasks", **query)["tasks"]}


def events_of(client: Client, task_id: str) -> str:
    """Return the events in a task's history after its creation."""
    return " ".join(each["event"] for each in client.history(task_id)[1:])


def last_entry(client: Client, task_id: str) -> dict[str, Any]:
    """Return the members of a task's last history entry that are set, and its key."""
    entry = client.history(task_id)[-1]
    return {name: value for name, value in entry.items() if name == "by" or (value and name != "at")}


def state_of(client: Client, task_id: str) -> list[Any]:
    """Return all that a request about a task might change."""
    return [client.read(f"tasks/{task_id}"), client.history(task_id), client.read("events")["events"]]


@pytest.fixture
def agent(app: flask.Flask) -> Client:
    return client_of(app, "agent", name="agent")


# Claims


@pytest.fixture
def found(client: Client, run: str) -> dict[str, str]:
    """The ids, by external id, of tasks of two project types, one of them of a branch only."""
    client.register("docs")
    client.submit(
        run,
        task(externalId="low", severity="low", rule="S1", tags=["fast", "b"], location="src/a.py:1"),
        task(externalId="old"),
        task(externalId="new", rule="S1", location="src/b.py"),
        task(externalId="critical", severity="critical", location="src2/a.py"),
        task(externalId="assigned", severity="critical"),
        *(task(externalId=each, severity="critical", status=each) for each in ("in_progress", "resolved", "dismissed")),
    )
    client.submit(client.start("docs"), task(externalId="docs", severity="info"))
    topic = client.start(targetUrl="https://example.com/", branch="topic")
    client.submit(topic, task(externalId="topic", severity="medium"), task(externalId="low", severity="low"))
    found = {name: each["id"] for name, each in heads(client).items()}
    client.triage(found["assigned"], assignee="Ada")
    return found


@pytest.mark.parametrize(
    ("wanted", "claimed"),
    cases(
        one=({}, "critical"),
        ordered=({"limit": 50}, "critical new old low docs"),
        limited=({"limit": 2, "rule": None}, "critical new"),
        project_type=({"projectType": "docs", "limit": 9}, "docs"),
        target=({"targetUrl": "https://example.com/", "limit": 9}, "critical new old low"),
        severity=({"severity": ["low", "high"], "limit": 9}, "new old low"),
        rule=({"rule": "S1", "limit": 9}, "new low"),
        tag=({"tag": "fast"}, "low"),
        location=({"location": "src", "limit": 9}, "new low"),
        several=({"rule": "S1", "severity": ["low", "info"], "location": "src/a.py"}, "low"),
        branch=({"branch": "topic", "limit": 9}, "topic low"),
        unknown_branch=({"branch": "other"}, ""),
        nothing=({"rule": "S2", "limit": 9}, ""),
        ids=({"ids": ["low", "assigned", "in_progress", "resolved", UNKNOWN_ID, "topic"]}, "assigned topic low"),
        ids_limited=({"ids": ["low", "old", "low"], "limit": 1}, "old"),
        ids_and_filter=({"ids": ["low", "old"], "rule": "S1"}, "low"),
    ),
)
def test_claim_takes_open_tasks_that_match_worst_first(
    client: Client, agent: Client, found: dict[str, str], wanted: dict[str, Any], claimed: str
) -> None:
    before = heads(client)
    response = claim(agent, *(found.get(name, name) for name in wanted.pop("ids", ())), seconds=60, **wanted)
    assert [each["externalId"] for each in response["tasks"]] == claimed.split()
    assert response["tasks"] == [*heads(client, claimed="true", sort="severity").values()]
    holder = {"id": response["id"], "by": "agent", "user": None, "until": response["until"]}
    for each in response["tasks"]:
        old = before.pop(each["externalId"])
        assert each == old | {"status": "in_progress", "claim": holder, "etag": each["etag"]}
        assert each["etag"] != old["etag"]
        entry = {"event": "claimed", "by": "agent", "from": "open", "to": "in_progress"}
        assert last_entry(client, each["id"]) == entry
        assert findings_service.timestamp(ago=-50) < response["until"] < findings_service.timestamp(ago=-61)
    assert heads(client, claimed="false") == before
    assert claimed or response == {"id": None, "until": None, "tasks": []}


CHANGES = cases(  # a request, whether the claim and the proposal stay, and its events
    same_status=(PATCH, {"status": "in_progress"}, True, True, ""),
    same_assignee=(PATCH, {"assignee": ""}, True, True, ""),
    fields=(PATCH, {"severity": "low", "links": LINKS[:1], "comment": "x"}, True, True, "severity linked comment"),
    several=("PATCH tasks", {"ids": ["TASK"], "severity": "low"}, True, True, "severity"),
    comment=(COMMENT, {"comment": "x", "links": LINKS[:1]}, True, True, "linked comment"),
    proposal=(PROPOSE, {**WONT_FIX, "status": "resolved"}, True, True, "proposed"),
    fixed=(VERIFY, FIXED, True, True, "verified"),
    still_present=(VERIFY, {**FIXED, "outcome": "still_present", "claim": "CLAIM"}, True, True, "verified"),
    fixed_under_it=(VERIFY, {**FIXED, "claim": "CLAIM"}, False, True, "verified"),
    report=(REPORT, task(externalId="x", title="New"), True, True, "reported"),
    suppression=(REPORT, task(externalId="x", status="dismissed"), False, False, "reported"),
    opened=(PATCH, {"status": "open"}, False, True, "status"),
    assigned=(PATCH, {"assignee": "Ada"}, False, True, "assigned"),
    several_assigned=("PATCH tasks", {"ids": ["TASK"], "assignee": "Ada"}, False, True, "assigned"),
    resolved=(PATCH, {"status": "resolved"}, False, False, "status"),
    several_dismissed=("PATCH tasks", {"ids": ["TASK"], "status": "dismissed"}, False, False, "status"),
    missing=("PATCH runs/RUN", {"status": "completed", "resolveMissing": True}, False, False, "status"),
)


@pytest.mark.parametrize(("request_line", "body", "is_claimed", "is_proposed", "events"), CHANGES)
def test_claims_and_proposals_end_without_an_entry_when_a_change_overtakes_them(
    client: Client, run: str, request_line: str, body: Any, is_claimed: bool, is_proposed: bool, events: str
) -> None:
    task_id, other = client.add(run, externalId="x"), client.add(run)
    propose(client, task_id)
    held = claim(client, task_id, other)["id"]
    ids = {"TASK": task_id, "CLAIM": held, "RUN": client.start(targetUrl="https://example.com/")}
    assert send(client, request_line, body, **ids).status_code in (200, 201)
    assert events_of(client, task_id) == f"proposed claimed {events}".strip()
    whole = client.read(f"tasks/{task_id}")
    assert (whole["claim"] is not None, whole["proposal"] is not None) == (is_claimed, is_proposed)
    assert sorted(send(client, "PUT claims/CLAIM", {}, **ids).json["tasks"]) == [task_id, other][not is_claimed :]
    if not is_claimed:
        assert_problem(send(client, "DELETE claims/CLAIM?task=TASK", **ids), 404, "not_found")
        client.triage(other, "open")
        assert_problem(send(client, "DELETE claims/CLAIM", **ids), 404, "not_found")
    if not is_proposed:
        assert_problem(send(client, PROPOSE, WONT_FIX, **ids), 422, "validation_failed", "/status")
        assert_problem(send(client, "DELETE tasks/TASK/proposal", **ids), 404, "not_found")


@pytest.mark.parametrize("more", [0, 200])
def test_claim_leaves_out_tasks_that_others_take_meanwhile(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    ids = [client.add(run) for _ in range(3)]
    select = fixing.select_free

    def select_before_others(*arguments: Any) -> Any:
        free = select(*arguments)
        monkeypatch.setattr(fixing, "select_free", select)
        client.triage(ids[2], "in_progress")
        client.triage(ids[1], assignee="Ada")
        return free

    monkeypatch.setattr(fixing, "SPARE_TASKS", more)
    monkeypatch.setattr(fixing, "select_free", select_before_others)
    assert [each["id"] for each in claim(client)["tasks"]] == ids[:1]


def test_heartbeat_changes_nothing_but_the_end_of_the_claim(client: Client, run: str) -> None:
    task_id = client.add(run)
    held = claim(client, task_id, seconds=30)["id"]
    before, tag = state_of(client, task_id), client.get(f"{API}/tasks").headers["ETag"]
    for seconds, least, most in ((86_400, 86_000, 86_401), (None, 1700, 1801)):
        extended = client.request_json("PUT", f"claims/{held}", 200, json={"seconds": seconds})
        assert extended == {"id": held, "until": extended["until"], "tasks": [task_id]}
        assert findings_service.timestamp(ago=-least) < extended["until"] < findings_service.timestamp(ago=-most)
        assert client.get(f"{API}/tasks", headers={"If-None-Match": tag}).status_code == 304
        assert client.read("tasks")["tasks"][0]["claim"]["until"] == extended["until"]
        for shown in (before[0], *(event["task"] for event in before[2] if "task" in event)):
            shown["claim"]["until"] = extended["until"]
        assert state_of(client, task_id) == before


@pytest.mark.sqlite
def test_claim_of_one_task_costs_the_same_with_more_tasks(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "in_list_time", nullcontext)  # it would replace the progress handler
    wanted = fixing.ClaimRequest(ids=[client.add(run)])

    def steps() -> int:
        """Return the SQLite steps of selecting the task of a claim."""
        with database_of(app).snapshot() as connection:
            return sqlite_steps(connection, lambda: fixing.select_free(connection, "default", wanted, 200))

    client.submit(run, *(task(severity=each) for each in SEVERITIES))
    before = steps()
    client.submit(run, *(task(severity=each) for each in SEVERITIES * 100))
    assert steps() < 2 * before


def test_finished_claims_of_a_caller_are_deleted_with_its_next_claim(
    app: flask.Flask, client: Client, run: str
) -> None:
    tasks = [client.add(run) for _ in range(3)]
    held, *_ = [claim(client, each)["id"] for each in tasks[:2]]
    client.triage(tasks[1], "resolved")
    last = claim(client, tasks[2])["id"]
    with database_of(app).reading() as connection:
        assert {name for (name,) in connection.execute("SELECT id FROM claims")} == {held, last}


def test_released_tasks_are_open_again(client: Client, run: str) -> None:
    ids = [client.add(run) for _ in range(3)]
    held, before = claim(client, *ids)["id"], client.read(f"tasks/{ids[0]}")
    assert_problem(client.delete(f"{API}/claims/{held}?task={client.add(run)}"), 404, "not_found")
    client.remove(f"claims/{held}?task={ids[0]}")
    released = client.read(f"tasks/{ids[0]}")
    assert released == before | {"status": "open", "claim": None, "etag": released["etag"]}
    assert client.request_json("PUT", f"claims/{held}", 200, json={})["tasks"] == ids[1:]
    client.remove(f"claims/{held}")
    for task_id in ids:
        entry = {"event": "released", "by": "tests", "from": "in_progress", "to": "open"}
        assert (events_of(client, task_id), last_entry(client, task_id)) == ("claimed released", entry)
    assert client.read("overview")["days"][-1]["reopened"] == 0
    assert claim(client, limit=9)["id"] not in (None, held)


@pytest.mark.parametrize(
    ("who", "statuses"),
    cases(
        owner=("owner", (200, 201, 204)),
        another_agent=("another", (404, 404, 404)),
        triage=("triage", (404, 404, 204)),
        full=("full", (404, 404, 204)),
        another_client=("other", (404, 404, 404)),
        user=("Ada", (200, 201, 204)),
        another_user=("Bob", (404, 404, 404)),
    ),
)
def test_claim_belongs_to_its_key_and_user(
    app: flask.Flask, client: Client, run: str, who: str, statuses: tuple[int, ...]
) -> None:
    callers = dict(zip(("Ada", "Bob"), users_of(app, "Ada", "Bob", level="agent"), strict=True))
    for name, level in (("owner", "agent"), ("another", "agent"), ("triage", "triage"), ("full", "full")):
        callers[name] = client_of(app, level, name=name)
    callers["other"], task_id = client_of(app, client="other"), client.add(run)
    owner = ("proxy", "Ada") if who in ("Ada", "Bob") else ("owner", None)
    held = claim(callers[owner[1] or "owner"], task_id)
    assert (held["tasks"][0]["claim"]["by"], held["tasks"][0]["claim"]["user"]) == owner
    before, under = state_of(client, task_id), {**FIXED, "outcome": "inconclusive", "claim": "CLAIM"}
    requests = (("PUT claims/CLAIM", {}), (VERIFY, under), ("DELETE claims/CLAIM", None))
    sent = [send(callers[who], line, body, CLAIM=held["id"], TASK=task_id) for line, body in requests]
    assert tuple(each.status_code for each in sent) == statuses
    assert (state_of(client, task_id) == before) == (204 not in statuses)


def test_expired_claim_is_useless_also_beside_its_successor(app: flask.Flask, client: Client, run: str) -> None:
    task_id = client.add(run)
    lost, before = claim(client)["id"], client.read(f"tasks/{task_id}")

    def use_lost_claim() -> None:
        state = state_of(client, task_id)
        for line, body in (
            *(("PUT claims/CLAIM", {}), ("DELETE claims/CLAIM", None), ("DELETE claims/CLAIM?task=TASK", None)),
            (VERIFY, {**FIXED, "claim": "CLAIM"}),
        ):
            assert_problem(send(client, line, body, CLAIM=lost, TASK=task_id), 404, "not_found")
        assert state_of(client, task_id) == state

    expire(app)
    use_lost_claim()
    run_clock(app)
    whole = client.read(f"tasks/{task_id}")
    assert whole == before | {"status": "open", "claim": None, "etag": whole["etag"]}
    assert last_entry(client, task_id) == {"event": "released", "by": None, "from": "in_progress", "to": "open"}
    use_lost_claim()
    assert [each["id"] for each in claim(client)["tasks"]] == [task_id]
    use_lost_claim()
    expire(app)
    app.extensions["findings"]._next_due.clear()
    successor = claim(client)["id"]  # a claim first releases what has expired
    verify(client, task_id, "fixed", claim=successor)
    use_lost_claim()
    assert events_of(client, task_id) == "claimed released claimed released claimed verified"


def test_repeated_request_with_an_idempotency_key_is_done_once(client: Client, run: str) -> None:
    client.submit(run, task(), task())
    first, again = (post(client, "tasks/claim", {}) for _ in range(2))
    assert (first.status_code, first.data, client.read("tasks", claimed="true")["total"]) == (200, again.data, 1)
    assert_problem(post(client, "tasks/claim", {"limit": 2}), 409, "idempotency_conflict")
    task_id = first.json["tasks"][0]["id"]
    for path, body in (("verifications", {**FIXED, "claim": first.json["id"]}), ("comments", {"comment": "x"})):
        one, two = (post(client, f"tasks/{task_id}/{path}", body) for _ in range(2))
        assert (one.status_code, one.data) == (201, two.data)
    assert events_of(client, task_id) == "claimed verified comment"


# Rejected requests


def bad(request: str, good: dict[str, Any], **changes: list[Any]) -> list[tuple[str, Any, str]]:
    """Return a request for each bad value of a member, and one with an unknown member, with the error's pointer."""
    rows = [({name: value}, f"/{name}") for name, values in {"x": [1], **changes}.items() for value in values]
    return [(request, good | change, pointer) for change, pointer in rows]


TEXTS = [None, "", " \n", "x" * 4001, "\0", 1]
LABELLED = [{"label": "x"}]
DUPLICATE = {**WONT_FIX, "reason": "duplicate"}
INVALID = [
    *bad(CLAIM, {}, limit=[0, 51, 1.5, "1"], seconds=[29, 86_401, True], severity=["high", []], targetUrl=["x"]),
    *bad(CLAIM, {}, ids=[[], ["TASK"] * 51, "TASK"], projectType=[""], branch=["", "a\tb"], location=[""]),
    *bad(CLAIM, {}, rule=[" ", ["S1"]], tag=["a\n"]),
    *((CLAIM, {name: ["high", "\0"]}, f"/{name}/1") for name in ("ids", "severity")),
    *bad("PUT claims/CLAIM", {}, seconds=[29, 86_401, "60"]),
    *bad(COMMENT, {"comment": "x"}, comment=TEXTS, links=[LINKS, {}]),
    (COMMENT, {"comment": "x", "links": [LINKS[0], LINKS[1] | {"rel": "a b"}]}, "/links/1/rel"),
    (COMMENT, {"comment": "x", "links": [LINKS[0] | {"url": "javascript:x"}]}, "/links/0/url"),
    *bad(VERIFY, FIXED, outcome=[None, "resolved"], comment=TEXTS[1:], criterion=["It works.", "It has one", ""]),
    *bad(VERIFY, FIXED, evidence=[LABELLED * 11, [{"content": "x" * 13 * KIB}] * 5, {}], links=[LINKS], claim=[""]),
    *((VERIFY, {"outcome": "fixed", **proof}, "") for proof in ({}, {"comment": None, "evidence": []})),
    *((VERIFY, {**FIXED, "evidence": [*LABELLED, each]}, "/evidence/1") for each in ({}, {"type": "log"})),
    *((VERIFY, {**FIXED, "evidence": [{name: "\0"}]}, f"/evidence/0/{name}") for name in ("content", "url")),
    *bad(PROPOSE, WONT_FIX, status=[None, "open", "in_progress"], reason=[None, "bored"], comment=TEXTS),
    *bad(PROPOSE, WONT_FIX, until=["2020-01-01", "soon"], duplicateOf=["OTHER", UNKNOWN_ID, ""]),
    *bad(PROPOSE, {**WONT_FIX, "status": "resolved"}, until=[LATER]),
    *bad(PROPOSE, DUPLICATE, duplicateOf=["TASK", UNKNOWN_ID, "THEIRS", "COPY"]),
    ("PUT tasks/ORIGINAL/proposal", DUPLICATE | {"duplicateOf": "OTHER"}, "/duplicateOf"),
]


def test_invalid_request_is_rejected_with_a_pointer_and_changes_nothing(
    app: flask.Flask, client: Client, run: str
) -> None:
    other_client = client_of(app, client="other")
    other_client.register("web")
    ids = {name: client.add(run) for name in ("OTHER", "ORIGINAL", "COPY")}
    ids["THEIRS"] = other_client.add(other_client.start())
    ids["TASK"] = client.add(run, successCriteria=[{"description": "It has one."}])
    client.triage(ids["COPY"], "dismissed", reason="duplicate", duplicateOf=ids["ORIGINAL"])
    ids["CLAIM"] = claim(client, ids["TASK"])["id"]
    before = state_of(client, ids["TASK"])
    for request, body, pointer in INVALID:
        assert_problem(send(client, request, body, **ids), 422, "validation_failed", pointer)
        assert state_of(client, ids["TASK"]) == before


def test_missing_proof_is_named_beside_other_problems(client: Client, run: str) -> None:
    response = send(client, VERIFY, {"outcome": "done"}, TASK=client.add(run))
    problems = assert_problem(response, 422, "validation_failed")["errors"]
    assert {"detail": "must have a comment or evidence", "pointer": ""} in problems


REQUESTS = (
    *((CLAIM, {}), ("PUT claims/CLAIM", {}), ("DELETE claims/CLAIM", None)),
    *((COMMENT, {"comment": "x"}), (VERIFY, FIXED), (PROPOSE, WONT_FIX), ("DELETE tasks/TASK/proposal", None)),
)


def test_if_match_and_unknown_ids_are_rejected(client: Client, run: str) -> None:
    task_id = client.add(run)
    ids = {"TASK": task_id, "CLAIM": claim(client)["id"]}
    propose(client, task_id)
    before = state_of(client, task_id)
    for request, body in REQUESTS:
        tagged = send(client, request, body, {"If-Match": "*"}, **ids)
        assert_problem(tagged, 400, "invalid_parameter", "If-Match")
        if request != CLAIM:  # the id is checked before the body
            unknown = send(client, request, body and {"x": 1}, TASK=UNKNOWN_ID, CLAIM=UNKNOWN_ID)
            assert_problem(unknown, 404, "not_found")
    for claim_id in (UNKNOWN_ID, claim(client, client.add(run))["id"]):  # the second one holds another task
        assert_problem(send(client, VERIFY, {**FIXED, "claim": claim_id}, TASK=task_id), 404, "not_found")
    assert state_of(client, task_id)[:2] == before[:2]


@pytest.mark.parametrize("kind", ["client", "server"])
def test_path_of_claims_is_not_a_task_under_flask_and_serve(kind: str, request: pytest.FixtureRequest) -> None:
    caller, path = request.getfixturevalue(kind), f"{API}/tasks/claim"
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"):
        response = caller.open(path, method=method) if kind == "client" else caller.request(method, path)
        assert (response.status_code, response.headers["Allow"]) == (405, "POST"), method
    for method, rest in (("GET", "history"), ("DELETE", "proposal"), ("GET", "claim")):
        below = f"{path}/{rest}"
        response = caller.open(below, method=method) if kind == "client" else caller.request(method, below)
        assert_problem(response, 404, "not_found")


# Comments and verifications


def test_comment_adds_links_and_decides_nothing(client: Client, agent: Client, run: str) -> None:
    task_id = client.add(run)
    whole = [send(agent, COMMENT, {"comment": "Why?"}, TASK=task_id).json]
    assert (whole[0], whole[0]["updatedAt"]) == (client.read(f"tasks/{task_id}"), whole[0]["createdAt"])
    again = {**LINKS[0], "rel": "issue"}
    for links, known in (([LINKS[1], LINKS[0], LINKS[1]], []), ([LINKS[0], again], LINKS[1::-1])):
        whole.append(send(agent, COMMENT, {"comment": "Here.", "links": links}, TASK=task_id).json)
        assert whole[-1]["links"] == [*(known or links[:2]), *(links[1:] if known else ())]
    assert events_of(client, task_id) == "comment linked comment linked comment"
    entry = {"event": "comment", "by": "agent", "comment": "Here."}
    assert (last_entry(client, task_id), whole[-1]["status"]) == (entry, "open")
    assert len({each["etag"] for each in whole}) == 3
    for _ in range(2):  # the second one adds none
        send(agent, COMMENT, {"comment": "All.", "links": LINKS[:19]}, TASK=task_id)
    assert events_of(client, task_id).endswith("linked comment linked comment comment")
    before = state_of(client, task_id)
    assert before[0]["links"] == [LINKS[1], LINKS[0], again, *LINKS[2:19]]
    for request, body in ((COMMENT, {"comment": "x"}), (VERIFY, FIXED)):
        response = send(agent, request, {**body, "links": [LINKS[0], LINKS[20]]}, TASK=task_id)
        assert_problem(response, 422, "validation_failed", "/links")
    assert state_of(client, task_id) == before


def test_verification_is_stored_with_its_proof(app: flask.Flask, client: Client, run: str) -> None:
    (ada,) = users_of(app, "Ada", level="agent")
    task_id = client.add(run, successCriteria=[{"description": "It has one."}, {"description": "It is right."}])
    before = client.read(f"tasks/{task_id}")
    evidence = [{"type": "diff", "label": "Fix", "content": "-a\n+b"}, {"label": "x"}]
    latest = {"outcome": "inconclusive", "criterion": "It is right.", "commit": "abc1"}
    time.sleep(0.002)  # longer than the resolution of updatedAt
    head = verify(ada, task_id, comment=None, evidence=evidence, links=LINKS[:1], **latest)
    assert head == client.read("tasks", verified="inconclusive")["tasks"][0]
    assert head["verification"] == {**latest, "by": "proxy", "user": "Ada", "at": head["updatedAt"]}
    assert (head["updatedAt"] > before["updatedAt"], head["etag"] != before["etag"]) == (True, True)
    assert (head["links"], events_of(client, task_id)) == (LINKS[:1], "linked verified")
    entry = last_entry(client, task_id)
    stored = [{name: value for name, value in each.items() if value} for each in entry.pop("evidence")]
    assert (stored, entry) == (evidence, {"event": "verified", "by": "proxy", "user": "Ada", **latest})
    again = verify(client, task_id, "fixed", evidence=[{"content": "x" * (64 * KIB - 16)}])
    assert again["verification"] == {**again["verification"], "outcome": "fixed", "criterion": None, "commit": None}
    assert again["updatedAt"] == head["updatedAt"]


@pytest.mark.parametrize(
    ("status", "steps", "status_after", "is_claimed", "opens"),
    cases(  # status before, steps (+ is under the claim), status after, whether claimed, whether the last step opens it
        open_fixed=("open", "fixed", "open", False, False),
        open_still_present=("open", "fixed still_present", "open", False, False),
        resolved=("resolved", "still_present", "resolved", False, False),
        dismissed=("dismissed", "fixed still_present", "dismissed", False, False),
        fixed_by_a_person=("in_progress", "fixed", "in_progress", False, False),
        still_present=("in_progress", "still_present", "in_progress", False, False),
        no_longer_fixed=("in_progress", "fixed still_present", "open", False, True),
        fixed_before=("in_progress", "fixed inconclusive still_present", "in_progress", False, False),
        fixed_again=("in_progress", "inconclusive fixed fixed still_present", "open", False, True),
        fixed_under_a_claim=("open", "claim fixed+", "in_progress", False, False),
        still_present_after_a_claim=("open", "claim fixed+ still_present", "open", False, True),
        still_present_under_a_claim=("open", "fixed claim still_present+", "in_progress", True, False),
        still_present_beside_a_claim=("open", "fixed claim still_present", "in_progress", True, False),
        inconclusive_under_a_claim=("open", "claim inconclusive+", "in_progress", True, False),
    ),
)
def test_verification_leaves_the_status_alone_with_two_exceptions(
    client: Client, run: str, status: str, steps: str, status_after: str, is_claimed: bool, opens: bool
) -> None:
    task_id, held, head = client.add(run, status=status), None, dict[str, Any]()
    for step in steps.split():
        if step == "claim":
            held = claim(client, task_id)["id"]
        else:
            head = verify(client, task_id, step.strip("+"), claim=held if "+" in step else None)
    assert (head["status"], head["claim"] is not None) == (status_after, is_claimed)
    assert events_of(client, task_id).split() == [{"claim": "claimed"}.get(step, "verified") for step in steps.split()]
    entry = client.history(task_id)[-1]
    assert (entry["from"], entry["to"]) == (("in_progress", "open") if opens else (None, None))


@pytest.mark.parametrize(
    ("query", "listed"),
    cases(
        fixed=({"verified": "fixed"}, "a"),
        still_present=({"verified": "still_present"}, "b"),
        not_verified=({"verified": "none"}, "d e"),
        several=({"verified": "inconclusive,none"}, "c d e"),
        every=({"verified": "fixed,still_present,inconclusive,none"}, "a b c d e"),
        fixed_but_found_again=({"verified": "fixed", "status": "in_progress"}, "a"),
        claimed=({"claimed": "true"}, "b"),
        not_claimed=({"claimed": "false"}, "a c d e"),
        proposed=({"proposed": "true"}, "d"),
        not_proposed=({"proposed": "false"}, "a b c e"),
        none=({"claimed": "false", "proposed": "false", "verified": "none"}, "e"),
        branch=({"verified": "none", "branch": "topic"}, "e"),
        main_line=({"proposed": "false", "mainLine": "true"}, "a b c"),
        words=({"proposed": "true", "q": "image"}, "d"),
    ),
)
def test_lists_and_groups_are_filtered_by_claim_proposal_and_verification(
    client: Client, run: str, query: dict[str, str], listed: str
) -> None:
    found = {name: client.add(run, externalId=name) for name in "abcd"}
    found["e"] = client.add(client.start(targetUrl="https://example.com/", branch="topic"), externalId="e")
    verify(client, found["a"], "fixed", claim=claim(client, found["a"])["id"])
    for name, outcome in (("b", "fixed"), ("b", "still_present"), ("c", "fixed"), ("c", "inconclusive")):
        verify(client, found[name], outcome)
    claim(client, found["b"])
    propose(client, found["d"])
    assert sorted(heads(client, **query)) == listed.split()
    groups = client.read("groups", by="projectType", **query)["groups"]
    assert [each["total"] for each in groups] == [len(listed.split())]
    for name, value in (("claimed", "yes"), ("proposed", "true,false"), ("verified", "maybe"), ("verified", "")):
        assert_problem(client.get(f"{API}/tasks?{name}={value}"), 400, "invalid_parameter", name)


# Proposals


def test_proposal_without_an_end_has_none(client: Client, run: str) -> None:
    task_id = client.add(run)
    assert propose(client, task_id, until="")["proposal"]["until"] is None
    propose(client, task_id)
    assert events_of(client, task_id) == "proposed"


def test_proposal_is_shown_replaced_and_accepted_by_a_patch(
    app: flask.Flask, client: Client, agent: Client, run: str
) -> None:
    original, task_id = client.add(run), client.add(run)
    another = client_of(app, "agent", name="another")

    def read_lists() -> list[Any]:
        """Return the task as listed, and what must not depend on its proposal."""
        judged = gate(client, run)
        counts = [client.read("overview"), client.read("groups", by="rule"), judged["pass"], judged["offendersTotal"]]
        return [client.read("tasks", limit=1)["tasks"][0], *counts]

    before = read_lists()
    first = propose(agent, task_id, until="2120-01-01")
    proposal = {**WONT_FIX, "duplicateOf": None, "until": LATER, "by": "agent", "user": None}
    assert first["proposal"] == {**proposal, "at": first["proposal"]["at"]}
    assert findings_service.timestamp(ago=60) < first["proposal"]["at"] < findings_service.timestamp(ago=-1)
    assert first["etag"] != before[0]["etag"]
    before[0] |= {"proposal": first["proposal"], "etag": first["etag"]}
    assert [first, *before[1:]] == before == read_lists()
    same = state_of(client, task_id)
    assert propose(agent, task_id, until=LATER) == first
    assert state_of(client, task_id) == same
    duplicate = {"reason": "duplicate", "duplicateOf": original}
    for proposer, more in ((another, {"until": LATER}), (another, duplicate), (agent, duplicate)):
        replaced = propose(proposer, task_id, **more)
        assert replaced["proposal"]["by"] == ("agent" if proposer is agent else "another")
    entry = {"event": "proposed", "by": "agent", "reason": "duplicate", "comment": WONT_FIX["comment"]}
    assert (events_of(client, task_id), last_entry(client, task_id)) == ("proposed " * 3 + "proposed", entry)
    values = {name: replaced["proposal"][name] for name in ("status", "reason", "comment", "duplicateOf", "until")}
    stale = client.patch(f"{API}/tasks/{task_id}", json=values, headers={"If-Match": first["etag"]})
    assert_problem(stale, 412, "changed_meanwhile")
    accepted = client.patch(f"{API}/tasks", json={**values, "ids": [task_id], "ifMatch": {task_id: replaced["etag"]}})
    assert accepted.json["updated"] == 1
    whole = client.read(f"tasks/{task_id}")
    assert (whole["status"], whole["duplicateOf"], whole["proposal"]) == ("dismissed", original, None)


def test_proposal_is_withdrawn_by_its_key_and_user_or_rejected_by_triage(
    app: flask.Flask, client: Client, agent: Client, run: str
) -> None:
    ada, bob = users_of(app, "Ada", "Bob", level="agent")
    another, triage = client_of(app, "agent", name="another"), client_of(app, "triage", name="triage")
    task_id = client.add(run)
    path, rejecters = f"tasks/{task_id}/proposal", (agent, ada, triage, client)
    for proposer, others, rejecter in zip((agent, ada) * 2, ((another, ada), (agent, bob)) * 2, rejecters, strict=True):
        propose(another, task_id)  # its key loses it to the next one
        propose(proposer, task_id)
        before = state_of(client, task_id)
        for other in (*others, another):
            assert_problem(other.delete(f"{API}/{path}"), 403, "forbidden")
        assert state_of(client, task_id) == before
        rejecter.remove(path)
        assert client.read(f"tasks/{task_id}")["proposal"] is None
        assert_problem(rejecter.delete(f"{API}/{path}"), 404, "not_found")
    assert events_of(client, task_id) == "proposed proposed withdrawn " * 3 + "proposed proposed withdrawn"
