"""Exports: task lists in formats other than the JSON of the API."""

from __future__ import annotations

import errno
import itertools
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import flask
import pytest
from flask.testing import FlaskClient

import findings_service
from findings_features import exports
from findings_service import Busy, Settings
from tests import clients
from tests.clients import API, KIB, SEVERITIES, Client, assert_problem, assert_storage_problem, patch_core, task
from tests.engines import engine_error
from tests.hostile import half_open
from tests.servers import Server, command, resident_memory, start_process, wait_until


def register_format(form: exports.ListFormat, patch: pytest.MonkeyPatch) -> None:
    """Register a list format until the patch is undone."""
    patch.setitem(findings_service.REGISTRY.list_exports, form.media_type, None)
    exports.add(form)


def write_lines(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Yield a line with title and comment for each task, like the writer of a module."""
    for listed in tasks:
        yield f"{listed.task.title} {listed.comment or ''}".rstrip().encode() + b"\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> str:
    """The media type of a registered list format; three tasks are read at a time."""
    form = exports.ListFormat(media_type="text/lines", write=write_lines)
    register_format(form, monkeypatch)
    monkeypatch.setattr(exports, "EXPORT_BATCH", 3)
    patch_core(monkeypatch, "DOCUMENT_PIECE", 1)
    return form.media_type


def get_export(client: Client, query: str = "", accept: str = "text/lines", **how: Any) -> Any:
    """Return the response with an export, not checked against OpenAPI."""
    headers = {"Authorization": f"Bearer {client.key}", "Accept": accept}
    return FlaskClient(client.application, flask.Response).get(f"{API}/tasks{query}", headers=headers, **how)


def next_query(response: Any) -> str:
    """Return the query string of the next link, or an empty string if there is none."""
    return str(response.headers.get("Link", "")).partition(f"<{API}/tasks")[2].removesuffix('>; rel="next"')


WITH_LINES = ("text/lines", "application/json;q=0.9, text/lines", "text/lines; charset=utf-8", "text/lines, */*;q=0.1")
WITHOUT_LINES = (
    *("text/lines;q=0.5, application/json", "text/lines;q=0.5, application/json; charset=utf-8", "*/*", "image/png"),
    *("text/html, application/xhtml+xml, */*;q=0.8", "text/lines;q=0", "", "text/lines;q=x;;,,;"),
)


@pytest.mark.usefixtures("lines")
def test_accept_header_selects_the_format_of_a_list(client: Client, run: str) -> None:
    client.add(run, title="One")
    for accept in (*WITH_LINES, *WITHOUT_LINES):
        media_type, start = ("text/lines", b"One\n") if accept in WITH_LINES else ("application/json", b'{"page"')
        response = get_export(client, accept=accept)
        assert (response.status_code, response.content_type, response.data[: len(start)]) == (200, media_type, start), (
            accept
        )


@pytest.fixture
def listed(client: Client, run: str, lines: str) -> Client:
    """A client with 25 tasks, five of each severity."""
    client.submit(run, *(task(title=f"T{n:02}", severity=SEVERITIES[n % 5], externalId=f"{n}") for n in range(25)))
    return client


def test_export_contains_all_tasks_that_match_the_filters(listed: Client) -> None:
    assert get_export(listed).data.split() == [b"T%02d" % n for n in reversed(range(25))]
    assert get_export(listed, "?severity=low&sort=createdAt").data.split() == [b"T03", b"T08", b"T13", b"T18", b"T23"]
    by_severity = get_export(listed, "?sort=severity").data.split()
    assert by_severity[:6] == [b"T20", b"T15", b"T10", b"T05", b"T00", b"T21"]
    assert get_export(listed, "?status=dismissed").data == b""
    assert "Link" not in get_export(listed, "?limit=25").headers


def pages_of(client: Client, query: str) -> list[list[bytes]]:
    """Return the titles on each page of an export by following its links."""
    response = get_export(client, query)
    following = next_query(response)
    return [response.data.split(), *(pages_of(client, following) if following else ())]


def test_long_export_continues_at_its_next_link(listed: Client) -> None:
    for query in ("sort=-createdAt", "sort=createdAt", "sort=severity&status=open,resolved"):
        pages = pages_of(listed, f"?{query}&limit=7")
        assert [len(each) for each in pages] == [7, 7, 7, 4]
        assert list(itertools.chain(*pages)) == get_export(listed, f"?{query}").data.split()


@pytest.mark.usefixtures("lines")
def test_export_rejects_page_parameters_and_invalid_values(client: Client) -> None:
    for query in ("page=1", "view=full", "limit=100001", "limit=0", "sevrity=low", "after=x"):
        assert_problem(get_export(client, f"?{query}"), 400, "invalid_parameter", query.partition("=")[0])


def test_export_reads_one_snapshot(listed: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    select, numbers = exports.select_listed, itertools.count()

    def select_and_write(*arguments: Any) -> Any:
        rows = select(*arguments)
        listed.submit(run, task(title=f"new {next(numbers)}"), task(title="changed", externalId="9"))
        return rows

    monkeypatch.setattr(exports, "select_listed", select_and_write)
    assert get_export(listed, "?limit=15").data.split() == [b"T%02d" % n for n in range(24, 9, -1)]
    assert next(numbers) == 5


def test_export_restarts_after_a_lost_connection(listed: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    write, lost = exports.ExportFile.write, iter([False, True])

    def write_or_lose(document: exports.ExportFile, piece: bytes) -> None:
        write(document, piece)
        if next(lost, False):
            raise findings_service.TryAgain

    monkeypatch.setattr(exports.ExportFile, "write", write_or_lose)
    assert get_export(listed).data.split() == [b"T%02d" % n for n in reversed(range(25))]
    assert next(lost, None) is None


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_pages_have_every_task_once_if_server_clocks_differ(
    app: flask.Flask, client: Client, run: str, sort: str
) -> None:
    tasks = client.submit(run, *(task(title=f"T{n}") for n in range(6)))["tasks"]
    early, late = tasks[1]["id"], tasks[4]["id"]
    with clients.database_of(app).transaction() as connection:
        for old, new in ((early, "x"), (late, early), ("x", late)):
            connection.execute("UPDATE tasks SET id = ? WHERE client_id = 'default' AND id = ?", (new, old))
    newest_first = [[b"T5", b"T4", b"T3"], [b"T2", b"T1", b"T0"]]
    oldest_first = [[b"T0", b"T1", b"T2"], [b"T3", b"T4", b"T5"]]
    assert pages_of(client, f"?sort={sort}&limit=3") == (oldest_first if sort == "createdAt" else newest_first)


def ids_of_two_servers(monkeypatch: pytest.MonkeyPatch, make: Callable[[], str]) -> list[str]:
    """Return eight ids made in turn by two servers; the clock of the second is 50 ms late."""
    makers, now = [findings_service.IdMaker(), findings_service.IdMaker()], time.time_ns
    ids = []
    for turn in range(8):
        with monkeypatch.context() as patched:
            patch_core(patched, "new_ids", makers[turn % 2])
            patched.setattr(findings_service, "now_ns", lambda late=turn % 2: now() - late * 50_000_000)
            ids.append(make())
    return ids


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("kind", "sort"), [("tasks", "-createdAt"), ("tasks", "createdAt"), ("tasks", "severity"), ("runs", "")]
)
def test_cursor_at_a_deleted_item_works_if_server_clocks_differ(
    client: Client, run: str, kind: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of_two_servers(monkeypatch, lambda: client.add(run) if kind == "tasks" else client.start())
    assert sorted(ids) == ids
    order = ids if sort == "createdAt" else ids[::-1]
    query = f"?limit=3&sort={sort}" if sort else "?limit=3"
    page, link = client.read(f"{kind}{query}"), next_query(get_export(client, query)) if sort else ""
    assert [each["id"] for each in page[kind]] == order[:3]
    client.remove(f"{kind}/{order[2]}")
    assert [each["id"] for each in client.read(page["next"])[kind]] == order[3:6]
    assert not link or get_export(client, link.replace("limit=3", "limit=9")).data.count(b"\n") == 5


def test_export_has_10000_full_tasks_by_default_and_a_next_link(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_format(exports.ListFormat(media_type="text/lines", write=write_lines, whole=True), monkeypatch)
    for first in range(0, 10_001, 1000):
        client.submit(run, *(task(title=f"T{n}") for n in range(first, min(first + 1000, 10_001))))
    response = get_export(client)
    assert (response.status_code, "Link" in response.headers) == (200, True)
    assert response.data.split() == [b"T%d" % n for n in range(10_000, 0, -1)]


def write_then_fail(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    yield next(tasks).task.title.encode()
    raise engine_error("disk I/O error")


def raise_disk_full(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_export_is_complete_or_an_error(listed: Client, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SimpleNamespace(write=len, flush=raise_disk_full, close=raise_disk_full)
    for _ in range(exports.MOST_DOCUMENTS + 1):
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "TemporaryFile", lambda **_: file)
            assert_storage_problem(get_export(listed), "storage_full")
        with monkeypatch.context() as patched:
            register_format(exports.ListFormat(media_type=lines, write=write_then_fail), patched)
            assert_problem(get_export(listed), 500, "internal_error")
    monkeypatch.setattr(exports, "DOCUMENT_SIZE", 10)
    assert_problem(get_export(listed), 400, "invalid_parameter", "limit")
    assert get_export(listed, "?limit=2").data == b"T24\nT23\n"


LINES_PROGRAM = (
    "import findings_service as fs; from findings_features import exports;"
    " exports.add(exports.ListFormat(media_type='text/lines',"
    " whole=True, write=lambda tasks: (fs.msgspec.json.encode(each.task) + b'\\n' for each in tasks))); "
)
SHORT_TIMEOUT = "from findings_adapters.serving import rsgi; rsgi.SEND_TIMEOUT = 0.5; "


@pytest.fixture
def export_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with 5,000 tasks (20 MB) that can export them as lines."""
    program = f"{LINES_PROGRAM}{getattr(request, 'param', '')}fs.main()"
    line = [sys.executable, "-c", program, "serve", "--db", str(tmp_path / "x.db"), "--port", "0"]
    server = start_process(line, tmp_path / "x.db", "TASKS_URL|api/v1/tasks", FINDINGS_LOG="json")
    run = server.start_run()
    for first in range(0, 5000, 1000):
        tasks = [task(title=f"T{n}", description="x" * 4000) for n in range(first, first + 1000)]
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": tasks})
    yield server
    assert server.stop() == 0


def get_lines(server: Server, query: str = "", method: str = "GET") -> Any:
    """Return the response with a server's export as lines."""
    return server.request(method, f"{API}/tasks{query}", Accept="text/lines")


def listed_bytes(server: Server, lists: int) -> list[int]:
    """Return the bytes sent per list by the log, once it has at least `lists` entries."""

    def sizes() -> list[int]:
        return [json.loads(each)["bytes"] for each in server.log_text().splitlines() if '"/api/v1/tasks"' in each]

    wait_until(lambda: len(sizes()) >= lists)
    return sizes()


def test_server_sends_a_long_export_in_bounded_memory(export_server: Server) -> None:
    first = get_lines(export_server, "?limit=1")  # loads what stays in memory
    before = resident_memory(export_server)
    response = get_lines(export_server)
    assert response.headers["Content-Length"] == str(len(response.data))
    assert [json.loads(each)["title"] for each in response.data.splitlines()] == [f"T{n}" for n in range(4999, -1, -1)]
    assert (
        resident_memory(export_server) < before + Settings().cache / findings_service.READER_CACHE_PARTS / KIB**2 + 12
    )
    assert get_lines(export_server, method="HEAD").data == b""
    assert listed_bytes(export_server, 3) == [len(first.data), len(response.data), 0]


@contextmanager
def export_requested(server: Server, room: int = 4 * KIB) -> Iterator[socket.socket]:
    """Yield a connection that has requested an export, with a receive buffer of `room` bytes."""
    head = (f"GET {API}/tasks HTTP/1.1", "Host: x", f"Authorization: Bearer {server.key}", "Accept: text/lines", "", "")
    with half_open(server, 1, b"") as (slow,):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        slow.sendall("\r\n".join(head).encode())
        yield slow


def test_slow_export_clients_use_no_memory_and_are_limited(export_server: Server, tmp_path: Path) -> None:
    size = len(get_lines(export_server).data)
    before, names = resident_memory(export_server), {path.name for path in tmp_path.iterdir()}
    with ExitStack() as stack:
        for _ in range(exports.MOST_DOCUMENTS):
            slow = stack.enter_context(export_requested(export_server))
            assert slow.recv(12) == b"HTTP/1.1 200"
        assert len(listed_bytes(export_server, 1)) == 1
        assert resident_memory(export_server) < before + 12
        assert {path.name for path in tmp_path.iterdir()} == names  # so that a killed server leaves no files
        response = get_lines(export_server)
        assert_problem(response, 503, "busy")
        assert response.headers["Retry-After"] == "1"
        other_key = command(
            "keys", "create", "other", "--client", "other", "--db", str(export_server.db)
        ).stdout.strip()
        assert export_server.request("GET", f"{API}/tasks", key=other_key, Accept="text/csv").status_code == 200
        assert export_server.request("GET", f"{API}/tasks").status_code == 200
    wait_until(lambda: get_lines(export_server).status_code == 200)
    wait_until(lambda: sum(100_000 < sent < size for sent in listed_bytes(export_server, 1)) == exports.MOST_DOCUMENTS)
    assert "Traceback" not in export_server.log_text()


def test_each_of_four_clients_can_start_an_export() -> None:
    with ExitStack() as stack:
        for client_id in "aaaabcd":
            stack.enter_context(closing(exports.ExportFile(None, client_id)))
        for client_id in "ae":
            with pytest.raises(Busy):
                exports.ExportFile(None, client_id)


def test_disconnected_export_clients_leave_no_files_or_memory(export_server: Server, tmp_path: Path) -> None:
    names = {path.name for path in tmp_path.iterdir()}

    used = []
    for _ in range(2):  # the first round allocates what threads and connections keep
        for _ in range(60):
            with export_requested(export_server):
                time.sleep(0.01)
        wait_until(lambda: get_lines(export_server).status_code == 200)
        used.append(resident_memory(export_server))
    assert {path.name for path in tmp_path.iterdir()} == names
    assert used[1] < used[0] + 20
    assert len(list(Path(f"/proc/{export_server.process.pid}/fd").iterdir())) < 60


@pytest.mark.parametrize("export_server", [SHORT_TIMEOUT], indirect=True, ids=["short_timeout"])
def test_client_that_reads_nothing_of_an_export_is_disconnected(export_server: Server) -> None:
    with export_requested(export_server, KIB * KIB) as slow:
        (sent,) = listed_bytes(export_server, 1)
        received = 0
        while data := slow.recv(1 << 20):
            received += len(data)
    assert sent < 5000 * 4000
    assert received < sent + 1000
