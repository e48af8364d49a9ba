"""The example agent."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import API, Server, cases


def runs_of(server: Server) -> list[tuple[str, str | None]]:
    """Return how a server's runs stand, newest first."""
    runs = server.request("GET", f"{API}/runs").json["runs"]
    return [(run["status"], run["statusReason"]) for run in runs]


def test_the_example_agent_reports_and_knows_its_findings_again(agent: Any, server: Server) -> None:
    for created, unchanged in ((2, 0), (0, 2)):
        out, errors = (process := agent()).communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert f"{created} created, 0 updated, 0 reopened, {unchanged} unchanged" in out
    assert runs_of(server) == [("completed", None)] * 2


def test_what_is_gone_is_resolved_by_the_example_agent(agent: Any, server: Server) -> None:
    for file, told in (("there", "2 created"), ("mended", "2 resolved")):
        out, errors = (process := agent(file)).communicate(timeout=20)
        assert (process.returncode, errors, told in out) == (0, "", True), out


MISSING = cases(
    key=({"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
    bad_key=({"FINDINGS_KEY": "fts_x"}, "API key"),
    service=({"FINDINGS_URL": "http://127.0.0.1:9"}, "no answer from http://127.0.0.1:9: Connection refused"),
    url=({"FINDINGS_URL": "nowhere"}, "the service's URL: 'nowhere' is no URL"),
    bandit=({"lib": "without"}, "bandit is not installed"),
    folder=({"folder": "none"}, "There is no folder"),
)


@pytest.mark.parametrize(("without", "told"), MISSING)
def test_the_example_agent_says_in_one_line_what_is_missing(
    agent: Any, server: Server, without: dict[str, str], told: str
) -> None:
    out, errors = (process := agent(**without)).communicate(timeout=20)
    assert (process.returncode, out, len(errors.splitlines())) == (1, "", 1), errors
    assert told in errors
    assert runs_of(server) == []


FAILING = [
    ("broken", "bandit failed: bandit broke"),
    ("unread", "bandit could not read ./b.py"),
    ("refused", "2 findings "),
]


@pytest.mark.parametrize(("file", "reason"), FAILING)
def test_a_run_of_the_example_agent_fails_with_it(agent: Any, server: Server, file: str, reason: str) -> None:
    _, errors = (process := agent(file)).communicate(timeout=20)
    assert (process.returncode, len(errors.strip().splitlines())) == (1, 1), errors
    [(status, told)] = runs_of(server)
    assert (status, told.startswith(reason)) == ("failed", True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_of_the_example_agent_ends_when_it_is_stopped(
    agent: Any, server: Server, tmp_path: Path, how: Any
) -> None:
    process, deadline = agent("slow"), time.monotonic() + 10
    while not (tmp_path / "code" / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    assert process.communicate(timeout=20)[1].splitlines() == [f"stopped by {how.name}"]
    assert runs_of(server) == [("failed", f"stopped by {how.name}")]
