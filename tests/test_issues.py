"""The example that keeps GitHub issues, against a small stand-in of GitHub's API."""

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
    """Issues and their comments, as https://docs.github.com/en/rest/issues has them; `asked` is each change."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[str, list[dict[str, Any]]] = {}
        self.busy = 0
        self.asked: list[str] = []

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Return what a request is answered with, None for what there is not."""
        parts, _, query = path.partition("?")
        number, _, comments = parts.removeprefix("/repos/o/r/issues").strip("/").partition("/")
        if method != "GET":
            self.asked.append(f"{method} {parts}")
        kept = self.comments.setdefault(number, []) if comments else self.issues
        if method == "GET":
            page = int(re.findall(r"\bpage=(\d+)", query)[0])
            return kept[100 * (page - 1) : 100 * page]
        if method == "POST":
            kept.append({"number": len(kept) + 1, "state": "open", **body})
            return kept[-1]
        self.issues[int(number) - 1].update(body)
        return self.issues[int(number) - 1]


class Asked(StubHandler):
    protocol_version = "HTTP/1.1"
    server: GitHub

    def do(self) -> None:
        body, told, status = json.loads(self.body() or b"null"), None, 401
        if self.server.busy and self.command == "POST":
            self.server.busy, status = self.server.busy - 1, 503
        elif self.headers["Authorization"] == "Bearer of-github":
            told, status = self.server.answer(self.command, self.path, body), 200
        self.reply(status, json.dumps(told).encode())

    do_GET = do_POST = do_PATCH = do


@pytest.fixture
def github() -> Iterator[GitHub]:
    with running_stub(GitHub()) as github:
        yield github


Keeper = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def keeper(server: Server, github: GitHub, tmp_path: Path) -> Iterator[Keeper]:
    """Start the example beside a server and the stand-in."""
    started: list[subprocess.Popen[str]] = []

    def start(**env: str) -> subprocess.Popen[str]:
        given = {"GITHUB_TOKEN": "of-github", "GITHUB_API_URL": f"http://127.0.0.1:{github.server_port}"}
        given |= server.variables | {"PYTHONPATH": str(HERE)} | env
        line = [sys.executable, str(HERE / "examples" / "issues.py"), "o/r", str(tmp_path / "place")]
        how = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": reset_signals}
        started.append(subprocess.Popen(line, env=environment(**given), **how))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def add(server: Server, run: str, **fields: Any) -> str:
    """Report a finding and return its id."""
    return server.request("POST", f"{API}/runs/{run}/tasks", task(**fields)).json["tasks"][0]["id"]


def decide(server: Server, found: str, **fields: Any) -> None:
    """Make a decision about a finding."""
    assert server.request("PATCH", f"{API}/tasks/{found}", fields).status_code == 200


def test_a_critical_finding_has_one_issue_that_lives_as_it_does(server: Server, github: GitHub, keeper: Keeper) -> None:
    run = server.start_run()
    found = add(server, run, severity="critical", title="Ask @ada", externalId="x")
    add(server, run, severity="high")
    github.busy = 2  # and is asked again
    keeper()
    wait_until(lambda: github.issues)
    decide(server, found, status="dismissed", comment="not @ours")
    wait_until(lambda: github.issues[0]["state"] == "closed")
    add(server, run, severity="critical", title="Ask @ada", externalId="x")
    decide(server, found, status="open", comment="it is <!-- so -->")
    wait_until(lambda: github.issues[0]["state"] == "open")
    (issue,), (first, second) = github.issues, github.comments["1"]
    assert (issue["title"], issue["labels"]) == ("Ask @\u200bada", ["finding"])
    assert issue["body"].endswith(f"<!-- finding {found} -->")
    assert first["body"].splitlines()[0] == "first: not @\u200bours"
    assert second["body"].splitlines()[0] == "first: it is <!- - so -->"


def test_issues_are_known_again_after_a_restart_and_nothing_is_said_twice(
    server: Server, github: GitHub, keeper: Keeper, tmp_path: Path
) -> None:
    run = server.start_run()
    found = [add(server, run, severity="critical", externalId=str(number)) for number in range(120)]
    decide(server, found[0], status="open", comment="seen")
    first = keeper()
    wait_until(lambda: github.comments.get("1") and (tmp_path / "place").exists())
    first.send_signal(signal.SIGKILL)
    first.wait(PATIENCE)
    before = list(github.asked)
    (tmp_path / "place").unlink()  # as after a crash before it was written: all that happened comes again
    decide(server, found[119], status="resolved")
    keeper()
    wait_until(lambda: github.issues[119]["state"] == "closed")
    assert github.asked == [*before, "PATCH /repos/o/r/issues/120"]


def test_what_github_refuses_is_said(keeper: Keeper) -> None:
    process = keeper(GITHUB_TOKEN="wrong")
    assert process.wait(PATIENCE) == 1
    assert "GitHub answered 401 to GET" in process.communicate()[1]
