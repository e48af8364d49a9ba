"""The example agent, beside a server and with a stand-in for bandit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import API
from tests.documents import HERE
from tests.servers import PATIENCE, Server, environment, reset_signals

# What it does, files say that are in the folder which it looks through.
BANDIT = """
import json, pathlib
if pathlib.Path("broken").exists():
    raise SystemExit("bandit broke")
code = "3 exec(user_input) " + "x" * 300_000 * pathlib.Path("refused").exists()
errors = [{"filename": "./b.py", "reason": "syntax error"}] * pathlib.Path("unread").exists()
print(json.dumps({"errors": errors, "results": 2 * (not pathlib.Path("mended").exists()) * [{
    "test_id": "B102", "filename": "./a.py", "line_number": 3, "code": code, "issue_text": "Use of exec.",
    "issue_severity": "HIGH", "issue_confidence": "HIGH", "issue_cwe": {"id": 78}, "more_info": "https://example.com/",
}]}))
raise SystemExit(1)
"""
FILES = {
    "lib/bandit/__init__.py": "",  # else one that is installed would come before it
    "lib/bandit/__main__.py": BANDIT,
    "without/sitecustomize.py": "import sys; sys.modules['bandit'] = None\n",
}
Agent = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def agent(tmp_path: Path, server: Server) -> Agent:
    """Start the agent, with bandit's stand-in or without, on a folder with such files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "code").mkdir()

    def start(*files: str, folder: str = "code", lib: str = "lib", **env: str) -> subprocess.Popen[str]:
        for name in files:
            (tmp_path / "code" / name).touch()
        line = [sys.executable, str(HERE / "examples" / "bandit_agent.py"), str(tmp_path / folder)]
        given = server.variables | {"PYTHONPATH": f"{tmp_path / lib}{os.pathsep}{HERE}"} | env
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": reset_signals}
        return subprocess.Popen([*line, "--target", "https://example.com/"], env=environment(**given), **options)

    return start


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Return how an agent ended: the exit code, what it said, and the lines of its errors."""
    out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out, errors.strip().splitlines()


def runs_of(server: Server) -> list[tuple[str, str | None]]:
    """Return how a server's runs stand, newest first."""
    runs = server.request("GET", f"{API}/runs").json["runs"]
    return [(run["status"], run["statusReason"]) for run in runs]


def test_the_example_agent_knows_its_findings_again_and_resolves_what_is_gone(agent: Agent, server: Server) -> None:
    twice = "0 created, 0 updated, 0 reopened, 2 unchanged"
    for files, told in (
        ((), "2 created, 0 updated, 0 reopened, 0 unchanged"),
        ((), twice),
        (("mended",), "2 resolved"),
    ):
        code, out, errors = end_of(agent(*files))
        assert (code, errors, told in out) == (0, [], True), out
    assert runs_of(server) == [("completed", None)] * 3


MISSING = (
    ({"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
    ({"FINDINGS_KEY": "fts_x"}, "API key"),
    ({"FINDINGS_URL": "http://127.0.0.1:9"}, "no answer from http://127.0.0.1:9: Connection refused"),
    ({"FINDINGS_URL": "nowhere"}, "the service's URL: 'nowhere' is not a URL"),
    ({"lib": "without"}, "bandit is not installed"),
    ({"folder": "none"}, "There is no folder"),
)


def test_the_example_agent_says_in_one_line_what_is_missing(agent: Agent, server: Server) -> None:
    for without, told in MISSING:
        code, out, errors = end_of(agent(**without))
        assert (code, out, len(errors)) == (1, "", 1), errors
        assert told in errors[0]
    assert runs_of(server) == []


FAILING = {"broken": "bandit failed: bandit broke", "unread": "bandit could not read ./b.py", "refused": "2 findings "}


@pytest.mark.parametrize("file", FAILING)
def test_a_run_of_the_example_agent_fails_with_it(agent: Agent, server: Server, file: str) -> None:
    code, _, errors = end_of(agent(file))
    assert (code, len(errors)) == (1, 1), errors
    [(status, told)] = runs_of(server)
    assert (status, told.startswith(FAILING[file])) == ("failed", True)
