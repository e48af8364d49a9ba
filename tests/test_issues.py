"""Tests of the example that keeps GitHub issues, with a small stub of GitHub's API."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.clients import API, task
from tests.documents import HERE
from tests.servers import PATIENCE, Server, StubHandler, environment, reset_signals, running_stub, wait_until


class GitHub(ThreadingHTTPServer):
    """Issues and their comments, as in https://docs.github.com/en/rest/issues; `changes` are the write requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), GitHubHandler)
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[str, list[dict[str, Any]]] = {}
        self.busy = 0
        self.changes: list[str] = []

    def respond(self, method: str, path: str, body: Any) -> Any:
        """Apply a request, and return the JSON of the response."""
        parts, _, query = path.partition("?")
        number, _, comments = parts.removeprefix("/repos/o/r/issues").strip("/").partition("/")
        if method != "GET":
            self.changes.append(f"{method} {parts}")
        kept = self.comments.setdefault(number, []) if comments else self.issues
        if method == "GET":
            page = int(re.findall(r"\bpage=(\d+)", query)[0])
            return kept[100 * (page - 1) : 100 * page]
        if method == "POST":
            kept.append({"number": len(kept) + 1, "state": "open", **body})
            return kept[-1]
        self.issues[int(number) - 1].update(body)
        return self.issues[int(number) - 1]


class GitHubHandler(StubHandler):
    protocol_version = "HTTP/1.1"
    server: GitHub

    def do(self) -> None:
        body, response, status = json.loads(self.body() or b"null"), None, 401
        if self.server.busy and self.command == "POST":
            self.server.busy, status = self.server.busy - 1, 503
        elif self.headers["Authorization"] == "Bearer of-github":
            response, status = self.server.respond(self.command, self.path, body), 200
        self.reply(status, json.dumps(response).encode())

    do_GET = do_POST = do_PATCH = do


@pytest.fixture
def github() -> Iterator[GitHub]:
    with running_stub(GitHub()) as github:
        yield github


Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_example(server: Server, github: GitHub, tmp_path: Path) -> Iterator[Starter]:
    """A function that starts the example, with a server and the stub of GitHub."""
    started: list[subprocess.Popen[str]] = []

    def start(**env: str) -> subprocess.Popen[str]:
        given = {"GITHUB_TOKEN": "of-github", "GITHUB_API_URL": f"http://127.0.0.1:{github.server_port}"}
        given |= server.variables | {"PYTHONPATH": str(HERE)} | env
        line = [sys.executable, str(HERE / "examples" / "issues.py"), "o/r", str(tmp_path / "place")]
        options = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": reset_signals}
        started.append(subprocess.Popen(line, env=environment(**given), **options))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def report(server: Server, run: str, **fields: Any) -> str:
    return server.request("POST", f"{API}/runs/{run}/tasks", task(**fields)).json["tasks"][0]["id"]


def triage(server: Server, finding_id: str, **fields: Any) -> None:
    """Change the status of a finding, or comment on it."""
    assert server.request("PATCH", f"{API}/tasks/{finding_id}", fields).status_code == 200


def test_issue_follows_the_status_of_its_finding(server: Server, github: GitHub, start_example: Starter) -> None:
    run = server.start_run()
    finding_id = report(server, run, severity="critical", title="Ask @ada", externalId="x")
    report(server, run, severity="high")
    github.busy = 2  # responds with 503 to two requests, which are repeated
    start_example()
    wait_until(lambda: github.issues)
    triage(server, finding_id, status="dismissed", comment="not @ours")
    wait_until(lambda: github.issues[0]["state"] == "closed")
    report(server, run, severity="critical", title="Ask @ada", externalId="x")
    triage(server, finding_id, status="open", comment="it is <!-- so -->")
    wait_until(lambda: github.issues[0]["state"] == "open")
    (issue,), (first, second) = github.issues, github.comments["1"]
    assert (issue["title"], issue["labels"]) == ("Ask @\u200bada", ["finding"])
    assert issue["body"].endswith(f"<!-- finding {finding_id} -->")
    assert first["body"].splitlines()[0] == "first: not @\u200bours"
    assert second["body"].splitlines()[0] == "first: it is <!- - so -->"


def test_issues_are_recognized_after_a_restart_and_no_change_is_repeated(
    server: Server, github: GitHub, start_example: Starter, tmp_path: Path
) -> None:
    run = server.start_run()
    finding_ids = [report(server, run, severity="critical", externalId=str(number)) for number in range(120)]
    triage(server, finding_ids[0], status="open", comment="seen")
    first = start_example()
    wait_until(lambda: github.comments.get("1") and (tmp_path / "place").exists())
    first.send_signal(signal.SIGKILL)
    first.wait(PATIENCE)
    before = list(github.changes)
    (tmp_path / "place").unlink()  # as after a crash before it was written: all events are read again
    triage(server, finding_ids[119], status="resolved")
    start_example()
    wait_until(lambda: github.issues[119]["state"] == "closed")
    assert github.changes == [*before, "PATCH /repos/o/r/issues/120"]


def test_error_response_of_github_is_reported(start_example: Starter) -> None:
    process = start_example(GITHUB_TOKEN="wrong")
    assert process.wait(PATIENCE) == 1
    assert "GitHub returned 401 for GET" in process.communicate()[1]
