"""Lists of tasks in other forms than JSON."""

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


def add_form(form: exports.ListFormat, patch: pytest.MonkeyPatch) -> None:
    """Have lists go out in a form until the patch is undone."""
    patch.setitem(findings_service.REGISTRY.list_exports, form.media_type, None)
    exports.add(form)


def written_lines(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Write a list of tasks as lines of its titles and comments, the way a part writes one."""
    for listed in tasks:
        yield f"{listed.task.title} {listed.comment or ''}".rstrip().encode() + b"\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> str:
    """The media type of another form of lists, of which a few tasks are read at once."""
    form = exports.ListFormat(media_type="text/lines", write=written_lines)
    add_form(form, monkeypatch)
    monkeypatch.setattr(exports, "EXPORT_LOT", 3)
    patch_core(monkeypatch, "DOCUMENT_PIECE", 1)
    return form.media_type


def exported(client: Client, query: str = "", accept: str = "text/lines", **how: Any) -> Any:
    """Return a list of tasks in another form, which OpenAPI does not tell of."""
    headers = {"Authorization": f"Bearer {client.key}", "Accept": accept}
    return FlaskClient(client.application, flask.Response).get(f"{API}/tasks{query}", headers=headers, **how)


def query_behind(response: Any) -> str:
    """Return the query of the link to what follows a list, empty where nothing does."""
    return str(response.headers.get("Link", "")).partition(f"<{API}/tasks")[2].removesuffix('>; rel="next"')


WANTED = ("text/lines", "application/json;q=0.9, text/lines", "text/lines; charset=utf-8", "text/lines, */*;q=0.1")
NOT_WANTED = (
    *("text/lines;q=0.5, application/json", "text/lines;q=0.5, application/json; charset=utf-8", "*/*", "image/png"),
    *("text/html, application/xhtml+xml, */*;q=0.8", "text/lines;q=0", "", "text/lines;q=x;;,,;"),
)


@pytest.mark.usefixtures("lines")
def test_a_list_goes_out_in_the_form_that_is_wanted_most(client: Client, run: str) -> None:
    client.add(run, title="One")
    for accept in (*WANTED, *NOT_WANTED):
        kind, start = ("text/lines", b"One\n") if accept in WANTED else ("application/json", b'{"page"')
        response = exported(client, accept=accept)
        assert (response.status_code, response.content_type, response.data[: len(start)]) == (200, kind, start), accept


@pytest.fixture
def listed(client: Client, run: str, lines: str) -> Client:
    """A client with 25 tasks, five of each severity."""
    client.submit(run, *(task(title=f"T{n:02}", severity=SEVERITIES[n % 5], externalId=f"{n}") for n in range(25)))
    return client


def test_a_list_in_another_form_has_everything_that_the_filters_leave(listed: Client) -> None:
    assert exported(listed).data.split() == [b"T%02d" % n for n in reversed(range(25))]
    assert exported(listed, "?severity=low&sort=createdAt").data.split() == [b"T03", b"T08", b"T13", b"T18", b"T23"]
    by_severity = exported(listed, "?sort=severity").data.split()
    assert by_severity[:6] == [b"T20", b"T15", b"T10", b"T05", b"T00", b"T21"]
    assert exported(listed, "?status=dismissed").data == b""
    assert "Link" not in exported(listed, "?limit=25").headers


def walked(client: Client, query: str) -> list[list[bytes]]:
    """Return the titles of each part of a list, by its links."""
    response = exported(client, query)
    behind = query_behind(response)
    return [response.data.split(), *(walked(client, behind) if behind else ())]


def test_a_long_list_in_another_form_goes_on_behind_its_link(listed: Client) -> None:
    for query in ("sort=-createdAt", "sort=createdAt", "sort=severity&status=open,resolved"):
        found = walked(listed, f"?{query}&limit=7")
        assert [len(each) for each in found] == [7, 7, 7, 4]
        assert list(itertools.chain(*found)) == exported(listed, f"?{query}").data.split()


@pytest.mark.usefixtures("lines")
def test_a_list_in_another_form_refuses_what_is_of_pages_or_makes_no_sense(client: Client) -> None:
    for query in ("page=1", "view=full", "limit=100001", "limit=0", "sevrity=low", "after=x"):
        assert_problem(exported(client, f"?{query}"), 400, "invalid_parameter", query.partition("=")[0])


def test_a_list_in_another_form_is_of_one_moment(listed: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    select, written = exports.select_listed, itertools.count()

    def select_and_write(*given: Any) -> Any:
        read = select(*given)
        listed.submit(run, task(title=f"new {next(written)}"), task(title="changed", externalId="9"))
        return read

    monkeypatch.setattr(exports, "select_listed", select_and_write)
    assert exported(listed, "?limit=15").data.split() == [b"T%02d" % n for n in range(24, 9, -1)]
    assert next(written) == 5


def test_a_list_whose_connection_is_lost_is_written_again(listed: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    write, lost = exports.ExportFile.write, iter([False, True])

    def write_or_lose(document: exports.ExportFile, piece: bytes) -> None:
        write(document, piece)
        if next(lost, False):
            raise findings_service.TryAgain

    monkeypatch.setattr(exports.ExportFile, "write", write_or_lose)
    assert exported(listed).data.split() == [b"T%02d" % n for n in reversed(range(25))]
    assert next(lost, None) is None


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_a_walk_has_every_task_once_where_two_servers_clocks_differ(
    app: flask.Flask, client: Client, run: str, sort: str
) -> None:
    tasks = client.submit(run, *(task(title=f"T{n}") for n in range(6)))["tasks"]
    early, late = tasks[1]["id"], tasks[4]["id"]
    with clients.database_of(app).transaction() as connection:
        for old, new in ((early, "x"), (late, early), ("x", late)):
            connection.execute("UPDATE tasks SET id = ? WHERE client_id = 'default' AND id = ?", (new, old))
    newest_first = [[b"T5", b"T4", b"T3"], [b"T2", b"T1", b"T0"]]
    oldest_first = [[b"T0", b"T1", b"T2"], [b"T3", b"T4", b"T5"]]
    assert walked(client, f"?sort={sort}&limit=3") == (oldest_first if sort == "createdAt" else newest_first)


def made_by_two_servers(monkeypatch: pytest.MonkeyPatch, make: Callable[[], str]) -> list[str]:
    """Return the ids of eight things that two servers make in turn, of which the clock of the second one is slow."""
    makers, now = [findings_service.IdMaker(), findings_service.IdMaker()], time.time_ns
    ids = []
    for turn in range(8):
        with monkeypatch.context() as patched:
            patch_core(patched, "new_ids", makers[turn % 2])
            patched.setattr(findings_service.time, "time_ns", lambda late=turn % 2: now() - late * 50_000_000)
            ids.append(make())
    return ids


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("kind", "sort"), [("tasks", "-createdAt"), ("tasks", "createdAt"), ("tasks", "severity"), ("runs", "")]
)
def test_a_walk_goes_on_behind_what_was_deleted_where_two_servers_clocks_differ(
    client: Client, run: str, kind: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = made_by_two_servers(monkeypatch, lambda: client.add(run) if kind == "tasks" else client.start())
    assert sorted(ids) == ids
    order = ids if sort == "createdAt" else ids[::-1]
    query = f"?limit=3&sort={sort}" if sort else "?limit=3"
    page, link = client.read(f"{kind}{query}"), query_behind(exported(client, query)) if sort else ""
    assert [each["id"] for each in page[kind]] == order[:3]
    client.remove(f"{kind}/{order[2]}")
    assert [each["id"] for each in client.read(page["next"])[kind]] == order[3:6]
    assert not link or exported(client, link.replace("limit=3", "limit=9")).data.count(b"\n") == 5


def test_a_list_of_the_default_length_goes_out_behind_what_was_just_submitted(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_form(exports.ListFormat(media_type="text/lines", write=written_lines, whole=True), monkeypatch)
    for first in range(0, 10_001, 1000):
        client.submit(run, *(task(title=f"T{n}") for n in range(first, min(first + 1000, 10_001))))
    answer = exported(client)
    assert (answer.status_code, "Link" in answer.headers) == (200, True)
    assert answer.data.split() == [b"T%d" % n for n in range(10_000, 0, -1)]


def breaks(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Write a task, and fail."""
    yield next(tasks).task.title.encode()
    raise engine_error("disk I/O error")


def full(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_list_in_another_form_is_whole_or_an_error(
    listed: Client, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SimpleNamespace(write=len, flush=full, close=full)
    for _ in range(exports.MOST_DOCUMENTS + 1):
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "TemporaryFile", lambda **_: file)
            assert_storage_problem(exported(listed), "storage_full")
        with monkeypatch.context() as patched:
            add_form(exports.ListFormat(media_type=lines, write=breaks), patched)
            assert_problem(exported(listed), 500, "internal_error")
    monkeypatch.setattr(exports, "DOCUMENT_SIZE", 10)
    assert_problem(exported(listed), 400, "invalid_parameter", "limit")
    assert exported(listed, "?limit=2").data == b"T24\nT23\n"


LINES_PROGRAM = (
    "import findings_service as fs; from findings_features import exports;"
    " exports.add(exports.ListFormat(media_type='text/lines',"
    " whole=True, write=lambda tasks: (fs.msgspec.json.encode(each.task) + b'\\n' for each in tasks))); "
)
HASTY = "from findings_adapters.serving import rsgi; rsgi.UNTAKEN = 0.5; "


@pytest.fixture
def lister(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with 5,000 tasks, twenty megabytes, that can list them in lines."""
    program = f"{LINES_PROGRAM}{getattr(request, 'param', '')}fs.main()"
    line = [sys.executable, "-c", program, "serve", "--db", str(tmp_path / "x.db"), "--port", "0"]
    server = start_process(line, tmp_path / "x.db", "TASKS_URL|api/v1/tasks", FINDINGS_LOG="json")
    run = server.start_run()
    for first in range(0, 5000, 1000):
        tasks = [task(title=f"T{n}", description="x" * 4000) for n in range(first, first + 1000)]
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": tasks})
    yield server
    assert server.stop() == 0


def list_of(server: Server, query: str = "", method: str = "GET") -> Any:
    """Return a server's list in lines."""
    return server.request(method, f"{API}/tasks{query}", Accept="text/lines")


def listed_bytes(server: Server, lists: int) -> list[int]:
    """Return how many bytes of so many lists a server says that it sent, once it does."""

    def sizes() -> list[int]:
        return [json.loads(each)["bytes"] for each in server.log_text().splitlines() if '"/api/v1/tasks"' in each]

    wait_until(lambda: len(sizes()) >= lists)
    return sizes()


def test_a_real_server_sends_a_long_list_whole_in_little_memory(lister: Server) -> None:
    first = list_of(lister, "?limit=1")  # what it loads for that stays
    before = resident_memory(lister)
    answer = list_of(lister)
    assert answer.headers["Content-Length"] == str(len(answer.data))
    assert [json.loads(each)["title"] for each in answer.data.splitlines()] == [f"T{n}" for n in range(4999, -1, -1)]
    assert resident_memory(lister) < before + Settings().cache / findings_service.READERS_SHARE / KIB**2 + 12
    assert list_of(lister, method="HEAD").data == b""
    assert listed_bytes(lister, 3) == [len(first.data), len(answer.data), 0]


@contextmanager
def asked_for(server: Server, room: int = 4 * KIB) -> Iterator[socket.socket]:
    """Give a connection that has asked for a list in lines, and takes as many bytes as it has room for."""
    head = (f"GET {API}/tasks HTTP/1.1", "Host: x", f"Authorization: Bearer {server.key}", "Accept: text/lines", "", "")
    with half_open(server, 1, b"") as (slow,):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        slow.sendall("\r\n".join(head).encode())
        yield slow


def test_lists_wait_for_clients_that_take_their_time_at_no_cost_and_only_for_some(
    lister: Server, tmp_path: Path
) -> None:
    size = len(list_of(lister).data)
    before, names = resident_memory(lister), {path.name for path in tmp_path.iterdir()}
    with ExitStack() as stack:
        for _ in range(exports.MOST_DOCUMENTS):
            slow = stack.enter_context(asked_for(lister))
            assert slow.recv(12) == b"HTTP/1.1 200"
        assert len(listed_bytes(lister, 1)) == 1
        assert resident_memory(lister) < before + 12
        assert {path.name for path in tmp_path.iterdir()} == names  # so a kill leaves nothing either
        refused = list_of(lister)
        assert_problem(refused, 503, "busy")
        assert refused.headers["Retry-After"] == "1"
        other = command("keys", "create", "other", "--client", "other", "--db", str(lister.db)).stdout.strip()
        assert lister.request("GET", f"{API}/tasks", key=other, Accept="text/csv").status_code == 200
        assert lister.request("GET", f"{API}/tasks").status_code == 200
    wait_until(lambda: list_of(lister).status_code == 200)
    wait_until(lambda: sum(100_000 < sent < size for sent in listed_bytes(lister, 1)) == exports.MOST_DOCUMENTS)
    assert "Traceback" not in lister.log_text()


def test_each_of_four_clients_gets_a_place_for_an_export() -> None:
    with ExitStack() as stack:
        for client_id in "aaaabcd":
            stack.enter_context(closing(exports.ExportFile(None, client_id)))
        for client_id in "ae":
            with pytest.raises(Busy):
                exports.ExportFile(None, client_id)


def test_clients_that_ask_for_lists_and_go_leave_nothing_behind(lister: Server, tmp_path: Path) -> None:
    names = {path.name for path in tmp_path.iterdir()}

    used = []
    for _ in range(2):  # first, each thread and connection takes what it keeps
        for _ in range(60):
            with asked_for(lister):
                time.sleep(0.01)
        wait_until(lambda: list_of(lister).status_code == 200)
        used.append(resident_memory(lister))
    assert {path.name for path in tmp_path.iterdir()} == names
    assert used[1] < used[0] + 20
    assert len(list(Path(f"/proc/{lister.process.pid}/fd").iterdir())) < 60


@pytest.mark.parametrize("lister", [HASTY], indirect=True, ids=["hasty"])
def test_a_client_that_takes_nothing_of_a_list_is_cut_off(lister: Server) -> None:
    with asked_for(lister, KIB * KIB) as slow:
        (sent,) = listed_bytes(lister, 1)
        took = 0
        while taken := slow.recv(1 << 20):
            took += len(taken)
    assert sent < 5000 * 4000
    assert took < sent + 1000
