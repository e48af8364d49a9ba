"""The load and the audit of `examples/failover.py`, on one server. The trial itself takes a cluster, and minutes."""

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
def told(server: Server, service: Client) -> failover.Told:
    """What some writers were told in a second."""
    told = failover.Told()
    remotes = [Remote(f"http://127.0.0.1:{server.port}", server.key) for _ in range(2)]
    writers = [failover.Writer(f"writer {number}", remotes, told) for number in range(3)]
    for writer in writers:
        writer.start()
    wait_until(lambda: len(told.tasks) > 50 and len(told.comments) > 1 and told.deleted)
    for writer in writers:
        writer.is_over.set()
        writer.join()
    assert all(attempt.is_good for writer in writers for attempt in writer.attempts)
    return told


def test_the_audit_finds_no_fault_but_what_is_lost_doubled_or_changed(service: Client, told: failover.Told) -> None:
    assert told.runs
    assert list(failover.faults_of(service, told)) == []
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


def test_a_machine_without_the_programs_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PATH", "")
    monkeypatch.setattr("sys.argv", ["failover.py"])
    with pytest.raises(SystemExit) as told:
        failover.main()
    packages = "patroni python3-etcd etcd-server haproxy postgresql"
    assert f"apt-get install --no-install-recommends {packages}" in str(told.value)
