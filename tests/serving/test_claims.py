"""Claims of fifty agents on two hundred tasks, while the service and some of the agents are killed."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tests.clients import API, task
from tests.engines import connect_directly
from tests.servers import LISTENING, PATIENCE, HttpResponse, Server, command, connection_to, free_port, wait_until

PAST = "2026-01-01T00:00:00.000Z"
AGENTS, TASKS, KILLS = 50, 200, 3
RELEASE_TIME = 5  # seconds in which an expired claim must be released


class Agents:
    """Agents that claim tasks of a server that may be killed and replaced at any time."""

    def __init__(self, server: Server, *keys: str) -> None:
        self.server = server
        self.keys = keys
        self.lock = threading.Lock()
        self.holders: dict[str, str] = {}  # claim by task, of agents that still work on it
        self.fixed = list[str]()  # tasks whose verification was acknowledged
        self.lost = set[str]()  # claims of agents that stopped
        self.expired = set[str]()
        self.finished = threading.Event()

    def send(self, key: str, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        """Send a request, again and again until there is a response."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(OSError, http.client.HTTPException):
                response = self.server.request(method, f"{API}/{path}", body, key, **headers)
                if response.status_code != 503:
                    return response
            time.sleep(0.02)
        raise TimeoutError

    def work(self, number: int) -> None:
        """Claim and handle tasks until the end. Every third agent stops during its second claim or a later one."""
        key = self.keys[number % 2]
        for turn in itertools.count():
            wanted = {"limit": 1 + (number + turn) % 3, "seconds": 30}
            claimed = self.send(key, "POST", "tasks/claim", wanted, **{"Idempotency-Key": f"{number} {turn}"}).json
            ids = [each["id"] for each in claimed["tasks"]]
            if ids and turn and number % 3 == 0:
                self.return_late(key, claimed["id"], ids)
                return
            with self.lock:
                assert not self.holders.keys() & {*ids}
                self.holders |= dict.fromkeys(ids, claimed["id"])
            if ids:
                self.handle(key, claimed["id"], ids, number + turn)
            if self.finished.wait(0 if ids else 0.1):
                return

    def handle(self, key: str, claim: str, ids: list[str], number: int) -> None:
        """Extend a claim, then release each fifth task of it and verify the others as fixed."""
        extended = self.send(key, "PUT", f"claims/{claim}", {"seconds": 30})
        assert (extended.status_code, sorted(extended.json["tasks"])) == (200, sorted(ids))
        for place, task_id in enumerate(ids):
            with self.lock:
                del self.holders[task_id]
            if (number + place) % 5 == 0:  # 404 if the service was killed before it sent the response
                assert self.send(key, "DELETE", f"claims/{claim}?task={task_id}").status_code in (204, 404)
            else:
                assert self.verify(key, claim, task_id).status_code == 201
                self.fixed.append(task_id)

    def verify(self, key: str, claim: str, task_id: str) -> HttpResponse:
        proof = {"outcome": "fixed", "claim": claim, "comment": "Ran it again."}
        return self.send(key, "POST", f"tasks/{task_id}/verifications", proof, **{"Idempotency-Key": claim})

    def return_late(self, key: str, claim: str, ids: list[str]) -> None:
        """Return to a claim that has run out, while others have the tasks."""
        self.lost.add(claim)
        wait_until(lambda: claim in self.expired)
        responses = [self.verify(key, claim, task_id) for task_id in ids]
        responses += [self.send(key, "PUT", f"claims/{claim}", {}), self.send(key, "DELETE", f"claims/{claim}")]
        assert {each.status_code for each in responses} == {404}

    def vanish(self, key: str) -> None:
        """Claim tasks and disconnect before the response."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with suppress(OSError), connection_to(self.server.port) as connection:
            connection.request("POST", f"{API}/tasks/claim", '{"limit": 2, "seconds": 30}', headers)

    def expire_lost(self) -> None:
        """Move the ends of lost claims into the past, and wait for the release of their tasks."""
        with connect_directly(self.server.db) as connection:
            stored = connection.execute("SELECT id, holder FROM claims").fetchall()
            gone = [claim for claim, holder in stored if claim in self.lost or "ghost" in holder]
            connection.executemany("UPDATE claims SET until = ? WHERE id = ?", [(PAST, claim) for claim in gone])
        self.expired.update(gone)
        wait_until(lambda: not self.claims().intersection(gone), RELEASE_TIME)

    def claims(self) -> set[str]:
        """Return the claims that hold tasks."""
        listed = self.send(self.keys[0], "GET", f"tasks?claimed=true&limit={TASKS}").json["tasks"]
        return {each["claim"]["id"] for each in listed}


def assert_held_by_one_claim_at_a_time(whole: dict[str, Any], history: list[dict[str, Any]]) -> None:
    """Check a task's history: it was held by one claim at a time, and fixed once if at all."""
    holder = None
    for entry in history[1:]:
        assert (holder is None) == (entry["event"] == "claimed"), history
        assert entry["by"] in (holder or entry["by"], None), history
        holder = entry["by"] if entry["event"] == "claimed" else None
    fixed = [entry["event"] for entry in history].count("verified")
    assert (whole["claim"], holder) == (None, None)
    assert (whole["status"], fixed) == (("in_progress", 1) if whole["verification"] else ("open", 0))


def test_no_task_is_claimed_twice_or_lost_while_agents_and_service_are_killed(serve: Callable[..., Server]) -> None:
    server, port = serve(), str(free_port())
    reports = json.dumps({"tasks": [task(externalId=str(n)) for n in range(TASKS)]})
    server.request("POST", f"{API}/runs/{server.start_run()}/tasks", reports)
    made = [command("keys", "create", name, "--db", str(server.db)) for name in ("one", "two", "ghost")]
    *keys, ghost = (each.stdout.strip() for each in made)
    agents = Agents(server, *keys)
    with ThreadPoolExecutor(AGENTS) as pool:
        working = [pool.submit(agents.work, number) for number in range(AGENTS - KILLS)]
        for kill in range(KILLS):
            wait_until(lambda kill=kill: len(agents.fixed) > 10 + 50 * kill)
            pool.submit(agents.vanish, ghost)
            assert agents.server.stop(signal.SIGKILL) == -signal.SIGKILL
            agents.server = serve("--port", port, until=LISTENING)
            agents.expire_lost()
        agents.finished.set()
        while not all(each.done() for each in working):
            agents.expire_lost()
        assert [each.result() for each in working] == [None] * len(working)
    agents.expire_lost()
    assert (agents.claims(), len(agents.lost) > 0) == (set(), True)
    tasks = agents.send(server.key, "GET", f"tasks?limit={TASKS}").json["tasks"]
    assert sorted(agents.fixed) == sorted(each["id"] for each in tasks if each["verification"])
    entries = Counter[tuple[str, str]]()
    for each in tasks:
        history = agents.send(server.key, "GET", f"tasks/{each['id']}/history").json["history"]
        assert_held_by_one_claim_at_a_time(each, history)
        entries.update((each["id"], f"finding.{entry['event']}") for entry in history)
    page, feed = agents.send(server.key, "GET", "events?limit=1000").json, []
    while page["events"]:
        feed += page["events"]
        page = agents.server.request("GET", page["next"], key=server.key).json
    assert len({each["id"] for each in feed}) == len(feed)
    assert Counter((each["task"]["id"], each["type"]) for each in feed if "task" in each) == entries
    assert command("check", "--db", str(server.db)).returncode == 0


def test_idle_service_opens_tasks_soon_after_their_claim_or_dismissal_ends(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_RUN_TIMEOUT="0")  # idle runs are not failed
    reports = json.dumps({"tasks": [task(), task()]})
    submitted = server.request("POST", f"{API}/runs/{server.start_run()}/tasks", reports).json["tasks"]
    dismissal = {"status": "dismissed", "until": "2120-01-01"}
    assert server.request("PATCH", f"{API}/tasks/{submitted[0]['id']}", dismissal).status_code == 200
    assert server.request("POST", f"{API}/tasks/claim", {}).json["tasks"][0]["id"] == submitted[1]["id"]
    with connect_directly(server.db) as connection:
        connection.execute("UPDATE claims SET until = ?", (PAST,))
        connection.execute("UPDATE tasks SET until = ? WHERE until IS NOT NULL", (PAST,))
    wait_until(lambda: server.request("GET", f"{API}/tasks?status=open").json["total"] == 2, RELEASE_TIME)
