"""Tests of `serve --demo`, which serves two weeks of sample data from a temporary database."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.clients import API
from tests.documents import HERE
from tests.servers import PROGRAM, environment, invoke, start_process


def test_demo_serves_two_weeks_of_runs_and_decisions_and_deletes_them(tmp_path: Path) -> None:
    line = [*PROGRAM, "serve", "--demo", "--port", "0"]
    server = start_process(line, tmp_path / "unused.db")
    folder = Path(re.findall(r"data in (.*)/demo\.db", server.startup_output)[0])
    assert f"{server.url}/#key={server.key}\n" in server.startup_output
    runs = server.request("GET", f"{API}/runs?limit=100").json["runs"]
    tasks = server.request("GET", f"{API}/tasks?limit=100").json["tasks"]
    events = server.request("GET", f"{API}/events?limit=1000").json["events"]
    assert (len(runs), len(tasks), {run["status"] for run in runs}) == (10, 28, {"completed"})
    assert {run["branch"] for run in runs} == {None, "checkout-redesign"}
    assert len({run["targetUrl"] for run in runs}) == 2
    assert {task["status"] for task in tasks} == {"open", "in_progress", "resolved", "dismissed"}
    assert {event["user"] for event in events} == {None, "Ada", "Grace", "Lin"}
    first, last = (datetime.fromisoformat(runs[index]["createdAt"]) for index in (-1, 0))
    assert timedelta(days=13) < last - first < timedelta(days=14)
    assert last < datetime.now(UTC)
    assert server.stop() == 0
    assert not folder.exists()


def test_demo_does_not_accept_a_database(tmp_path: Path) -> None:
    done = invoke("serve", "--demo", "--db", str(tmp_path / "own.db"))
    assert (done.exit_code, not any(tmp_path.iterdir())) == (2, True)
    assert "--demo uses its own temporary database; leave out --db" in done.output


def run_python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", program]
    return subprocess.run(line, env=environment(**env), cwd=HERE, capture_output=True, text=True, check=False)


def test_demo_stopped_while_it_starts_deletes_its_folder(tmp_path: Path) -> None:
    stop = "demo.create_app = lambda _: os.kill(os.getpid(), signal.SIGTERM)"
    program = f"import os, signal; from findings_features import demo; {stop}; demo.make_demo()"
    done = run_python(program, TMPDIR=str(tmp_path))
    assert (done.returncode, [*tmp_path.iterdir()]) == (1, [])


def test_demo_ignores_settings_that_would_change_its_data() -> None:
    show = "core.REGISTRY.serve = lambda settings, *_: print(settings.keep, settings.run_timeout, settings.api_key)"
    program = f"import findings_service as core; core.load_module(core.SERVING); {show}; core.main(['serve', '--demo'])"
    done = run_python(program, FINDINGS_KEEP="7d", FINDINGS_RUN_TIMEOUT="7d", FINDINGS_API_KEY="a-key-to-be-ignored")
    assert (done.stdout, done.stderr) == ("0.0 0.0 \n", "")
