"""Tests of the example agent, with a server and a stub of bandit."""

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

# Files in the scanned folder control what it does.
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
    "lib/bandit/__init__.py": "",  # a regular package, so that it takes precedence over an installed bandit
    "lib/bandit/__main__.py": BANDIT,
    "without/sitecustomize.py": "import sys; sys.modules['bandit'] = None\n",
}
Agent = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def agent(tmp_path: Path, server: Server) -> Agent:
    """A function that starts the agent on a folder with the given files, with or without the stub of bandit."""
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


def result_of(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Wait for an agent, and return its exit code, its output and the lines of its standard error."""
    out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out, errors.strip().splitlines()


def runs_of(server: Server) -> list[tuple[str, str | None]]:
    """Return the status of each run of a server, with its reason, newest first."""
    runs = server.request("GET", f"{API}/runs").json["runs"]
    return [(run["status"], run["statusReason"]) for run in runs]


def test_example_agent_recognizes_findings_and_resolves_missing_ones(agent: Agent, server: Server) -> None:
    unchanged = "0 created, 0 updated, 0 reopened, 2 unchanged"
    for files, expected in (
        ((), "2 created, 0 updated, 0 reopened, 0 unchanged"),
        ((), unchanged),
        (("mended",), "2 resolved"),
    ):
        code, out, errors = result_of(agent(*files))
        assert (code, errors, expected in out) == (0, [], True), out
    assert runs_of(server) == [("completed", None)] * 3


MISSING = (
    ({"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
    ({"FINDINGS_KEY": "fts_x"}, "API key"),
    ({"FINDINGS_URL": "http://127.0.0.1:9"}, "no response from http://127.0.0.1:9: Connection refused"),
    ({"FINDINGS_URL": "nowhere"}, "the service's URL: 'nowhere' is not a URL"),
    ({"lib": "without"}, "bandit is not installed"),
    ({"folder": "none"}, "is not a folder"),
)


def test_example_agent_reports_missing_requirements_in_one_line(agent: Agent, server: Server) -> None:
    for options, expected in MISSING:
        code, out, errors = result_of(agent(**options))
        assert (code, out, len(errors)) == (1, "", 1), errors
        assert expected in errors[0]
    assert runs_of(server) == []


FAILING = {"broken": "bandit failed: bandit broke", "unread": "bandit could not read ./b.py", "refused": "2 findings "}


@pytest.mark.parametrize("file", FAILING)
def test_run_fails_if_the_example_agent_fails(agent: Agent, server: Server, file: str) -> None:
    code, _, errors = result_of(agent(file))
    assert (code, len(errors)) == (1, 1), errors
    [(status, reason)] = runs_of(server)
    assert (status, reason.startswith(FAILING[file])) == ("failed", True)
