"""The load and the audit of `examples/failover.py`, on one server. The trial itself takes a cluster, and minutes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from findings_adapters.client import Remote, Service
from tests.support import HERE, Server

SCRIPT = HERE / "examples" / "failover.py"


@pytest.fixture(scope="module")
def failover() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("failover", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["failover"] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules["failover"]


@pytest.fixture
def service(server: Server) -> Service:
    service = Service(Remote(f"http://127.0.0.1:{server.port}", server.key))
    service.request("POST", "project-types", {"name": "web"})
    return service


@pytest.fixture
def told(failover: Any, server: Server, service: Service) -> Any:
    """What some writers were told in a second."""
    told = failover.Told()
    remotes = [Remote(f"http://127.0.0.1:{server.port}", server.key) for _ in range(2)]
    writers = [failover.Writer(f"writer {number}", remotes, told) for number in range(3)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 20
    while time.monotonic() < end and not (len(told.tasks) > 50 and len(told.comments) > 1 and told.deleted):
        time.sleep(0.01)
    for writer in writers:
        writer.is_over.set()
    for writer in writers:
        writer.join()
    assert all(attempt.is_good for writer in writers for attempt in writer.attempts)
    return told


def test_a_load_that_nobody_disturbs_leaves_no_fault(failover: Any, service: Service, told: Any) -> None:
    assert told.runs
    assert list(failover.faults_of(service, told)) == []


def test_the_audit_sees_what_is_lost_doubled_or_changed(failover: Any, service: Service, told: Any) -> None:
    commented = next(iter(told.comments))
    text = next(iter(told.comments[commented]))
    lost, doubled, moved = [title for title in told.tasks if title not in {*told.deleted, *told.comments}][:3]
    run = json.loads(service.request("GET", "runs?limit=1").body)["runs"][0]
    service.request("DELETE", f"tasks/{told.tasks[lost]}")
    service.request("POST", f"runs/{run['id']}/tasks", {"title": doubled, "severity": "low"})
    service.request("PATCH", f"tasks/{told.tasks[moved]}", {"status": "dismissed"})
    service.request("PATCH", f"tasks/{told.tasks[commented]}", {"comment": text})
    told.comments[commented]["unheard"] = 1
    service.request("POST", "runs", {"projectType": "web", "metadata": run["metadata"]})
    back = next(iter(told.deleted))
    service.request("POST", f"runs/{run['id']}/tasks", {"title": back, "severity": "low"})
    found = {*failover.faults_of(service, told)}
    assert {
        f"task {lost} is lost",
        f"task {doubled} is there 2 times",
        f"task {moved} is dismissed instead of open",
        f"comment {text} was sent 1 times, and is there 2 times",
        "comment unheard was sent 1 times, and is there 0 times",
        f"run {run['metadata']['name']} is there 2 times",
        f"task {back} is back",
    } <= found
    assert len(found) == 9  # two of those are also other tasks than those that were told


def test_a_machine_without_the_programs_is_told_what_to_install() -> None:
    program = f"import runpy, sys; sys.argv = ['failover.py']; module = runpy.run_path({str(SCRIPT)!r}); "
    program += "module['main'].__globals__['PATH'] = ''; module['main']()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "apt-get install --no-install-recommends patroni python3-etcd etcd-server haproxy postgresql" in done.stderr
