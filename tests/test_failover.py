"""The load and the audit of `examples/failover.py` on one server. The failover itself needs a cluster and minutes."""

from __future__ import annotations

import json

import pytest

from examples import failover
from findings_client import Client, Remote
from tests.servers import Server, wait_until


@pytest.fixture
def service(server: Server) -> Client:
    service = Client(Remote(f"http://127.0.0.1:{server.port}", server.key))
    service.request("POST", "project-types", {"name": "web"})
    return service


@pytest.fixture
def acked(server: Server, service: Client) -> failover.Ledger:
    acked = failover.Ledger()
    remotes = [Remote(f"http://127.0.0.1:{server.port}", server.key) for _ in range(2)]
    writers = [failover.Writer(f"writer {number}", remotes, acked) for number in range(3)]
    for writer in writers:
        writer.start()
    wait_until(lambda: len(acked.tasks) > 50 and len(acked.comments) > 1 and acked.deleted)
    for writer in writers:
        writer.is_over.set()
        writer.join()
    assert all(attempt.is_good for writer in writers for attempt in writer.attempts)
    return acked


def test_audit_reports_lost_duplicated_and_changed_data(service: Client, acked: failover.Ledger) -> None:
    assert acked.runs
    assert list(failover.faults_of(service, acked)) == []
    commented = next(iter(acked.comments))
    text = next(iter(acked.comments[commented]))
    lost, duplicated, changed = [title for title in acked.tasks if title not in {*acked.deleted, *acked.comments}][:3]
    run = json.loads(service.request("GET", "runs?limit=1").body)["runs"][0]
    service.request("DELETE", f"tasks/{acked.tasks[lost]}")
    service.request("POST", f"runs/{run['id']}/tasks", {"title": duplicated, "severity": "low"})
    service.request("PATCH", f"tasks/{acked.tasks[changed]}", {"status": "dismissed"})
    service.request("PATCH", f"tasks/{acked.tasks[commented]}", {"comment": text})
    acked.comments[commented]["unheard"] = 1
    service.request("POST", "runs", {"projectType": "web", "metadata": run["metadata"]})
    restored = next(iter(acked.deleted))
    service.request("POST", f"runs/{run['id']}/tasks", {"title": restored, "severity": "low"})
    found = {*failover.faults_of(service, acked)}
    assert {
        f"task {lost} is lost",
        f"task {duplicated} exists 2 times",
        f"task {changed} is dismissed instead of open",
        f"comment {text} was sent 1 times, but is stored 2 times",
        "comment unheard was sent 1 times, but is stored 0 times",
        f"run {run['metadata']['name']} exists 2 times",
        f"task {restored} is back after its deletion",
    } <= found
    assert len(found) == 9  # two tasks are also reported as having another id


def test_missing_programs_are_reported_with_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PATH", "")
    monkeypatch.setattr("sys.argv", ["failover.py"])
    with pytest.raises(SystemExit) as raised:
        failover.main()
    packages = "patroni python3-etcd etcd-server haproxy postgresql"
    assert f"apt-get install --no-install-recommends {packages}" in str(raised.value)
