"""Tests of `serve --demo`, which serves two weeks of sample data from a temporary database."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from findings_features import demo
from tests.clients import API
from tests.servers import PROGRAM, invoke, start_process


def test_demo_serves_two_weeks_of_runs_and_decisions_and_deletes_them(tmp_path: Path) -> None:
    line = [*PROGRAM, "serve", "--demo", "--port", "0"]
    server = start_process(
        line, tmp_path / "unused.db", FINDINGS_API_KEY="a-key-that-the-demo-ignores", FINDINGS_KEEP="1h"
    )
    folder = Path(re.findall(r"data in (.*)/demo\.db", server.startup_output)[0])
    assert f"{server.url}/#key={server.key}\n" in server.startup_output
    runs = server.request("GET", f"{API}/runs?limit=100").json["runs"]
    tasks = server.request("GET", f"{API}/tasks?limit=100").json["tasks"]
    events = server.request("GET", f"{API}/events?limit=1000").json["events"]
    assert (len(runs), {run["status"] for run in runs}) == (10, {"completed"})
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


def test_sample_data_uses_all_its_findings() -> None:
    story = json.loads(demo.STORY.read_text("utf-8"))
    assert {name for event in story["events"] for name in event.get("finds", ())} == set(story["findings"])
