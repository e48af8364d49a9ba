"""The server: bodies on their way, signals, locks, and what takes long."""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from findings_adapters.serving import rsgi
from findings_service import Busy
from tests import servers
from tests.clients import API, KIB, assert_problem, cases, task
from tests.documents import HERE
from tests.engines import ON_POSTGRES, connect_directly, db_at, locked, with_databases
from tests.hostile import half_open, raw_request, send_raw, status_of
from tests.scenarios import BACKTRACKING, in_a
from tests.servers import IMPORT_CORE, LISTENING, PATIENCE, PROGRAM, SECRET, Server, at_most, command, environment


@pytest.fixture(scope="module")
def user_key(hostile_server: Server) -> str:
    return command("keys", "create", "proxy", "--for-users", "--db", str(hostile_server.db)).stdout.strip()


FAILING = f"""{IMPORT_CORE}
from findings_adapters.serving import commits, processes

def fail(*_, **__):
    raise BaseException("assertion failed")  # as a library written in Rust does
"""


def program_that_fails(*functions: str) -> tuple[str, ...]:
    """Return the program with functions that raise what is no `Exception`."""
    patched = "".join(f"{name} = fail\n" for name in functions)
    return (sys.executable, "-c", f"{FAILING}{patched}findings_service.main()")


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("thread", "function"),
    cases(
        writer=("findings-writer", "commits.CommitScheduler._commit_group"),
        log=("findings-log", "processes.LineWriter._work"),
    ),
)
def test_a_thread_that_others_need_ends_the_process_where_it_fails(
    serve: Callable[..., Server], thread: str, function: str
) -> None:
    server = serve(
        until=f"{LISTENING}|process ends",
        program=program_that_fails(function),
        FINDINGS_LOG="text",
        FINDINGS_API_KEY=SECRET,
    )
    if re.search(LISTENING, server.startup_output):  # the line of the first request may have been one too many
        with suppress(OSError, http.client.HTTPException):
            server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    assert server.process.wait(PATIENCE) == 1
    assert f"the thread {thread} failed, and so the process ends" in server.log_text()


def test_a_server_goes_on_behind_what_no_exception_is(serve: Callable[..., Server]) -> None:
    server = serve(program=program_that_fails("findings_service.insert_run", "findings_service.select_task"))
    server.request("POST", f"{API}/project-types", {"name": "web"})
    for _ in range(3):
        assert_problem(server.request("POST", f"{API}/runs", {"projectType": "web"}), 500, "internal_error")
        assert_problem(server.request("GET", f"{API}/tasks/x"), 500, "internal_error")
        assert server.request("POST", f"{API}/project-types", {"name": "web"}).status_code == 200
    assert server.request("GET", "/healthz").status_code == 200
    assert server.stop() == 0


@pytest.mark.sqlite
def test_health_is_told_within_its_time_while_the_writing_thread_hangs(serve: Callable[..., Server]) -> None:
    server = serve()
    time.sleep(1.1)
    with locked(server.db), at_most(30), ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: server.request("GET", "/healthz"), range(30)))
    assert {answer.status_code for answer in answers} == {503}
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_finishes_the_request_under_way(serve: Callable[..., Server], how: signal.Signals) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="4s")
    run, body = (server.start_run(in_a({"pattern": "^(a|aa)+$"})), json.dumps(task(extensions=BACKTRACKING)).encode())
    with server.begin_post(f"{API}/runs/{run}/tasks", len(body)) as connection:
        connection.sendall(body)
        time.sleep(0.15)
        assert server.stop(how) == 0
        assert b"extension_check_timeout" in connection.recv(65536)


@pytest.mark.signals
def test_a_stop_waits_for_a_body_that_is_still_coming(server: Server) -> None:
    run, body = server.start_run(), json.dumps(task()).encode()
    with server.begin_post(f"{API}/runs/{run}/tasks", len(body)) as connection:
        connection.sendall(body[:10])
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        connection.sendall(body[10:])
        assert b"201 Created" in connection.recv(65536)
    assert server.stop() == 0


@pytest.mark.signals
@pytest.mark.parametrize(("workers", "how"), [("1", signal.SIGTERM), ("1", signal.SIGINT), ("2", signal.SIGTERM)])
def test_signals_without_end_are_one_stop(serve: Callable[..., Server], workers: str, how: signal.Signals) -> None:
    server = serve("--workers", workers)
    server.start_run()

    def has_ended() -> bool:
        for _ in range(200):
            with suppress(ProcessLookupError):
                os.kill(server.process.pid, how)
        return server.process.poll() is not None

    servers.wait_until(has_ended)
    assert server.process.returncode == 0


@pytest.mark.signals
@pytest.mark.parametrize(
    ("query", "accept"), cases(page=("limit=200&view=full", "application/json"), stream=("", "application/sarif+json"))
)
def test_an_answer_that_nobody_takes_does_not_keep_a_server_from_stopping(
    serve: Callable[..., Server], query: str, accept: str
) -> None:
    server = serve(program=servers.program_with(LEAVING=0.5))
    path, bulky = f"{API}/runs/{server.start_run()}/tasks", task(description="x" * 60_000)
    assert server.request("POST", path, {"tasks": [bulky] * 150}).status_code == 201
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(raw_request(server, "GET", f"{API}/tasks?{query}", b"", f"Accept: {accept}"))
        assert stalled.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        with suppress(ConnectionResetError):
            taken = b"".join(iter(partial(stalled.recv, 1 << 20), b""))
            assert not taken.endswith((b"}", b"0\r\n\r\n"))


# asyncio's own event loop: a signal's byte finds no room in its pipe when that is full of wake-ups.
WITHOUT_UVLOOP = f"{IMPORT_CORE}, sys; sys.modules['uvloop'] = None; findings_service.main()"


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_at_a_thousand_busy_connections_ends_and_loses_nothing(
    serve: Callable[..., Server], how: signal.Signals
) -> None:
    server = serve(program=(sys.executable, "-c", WITHOUT_UVLOOP))
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    read, write = raw_request(server, "GET", f"{API}/runs"), raw_request(server, "POST", path, body)
    requests = [each.replace(b"Connection: close\r\n", b"") for each in (write, *[read] * 9)]
    answers, halves = list[bytes](), list[bytes]()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 1200 if hard == resource.RLIM_INFINITY else min(1200, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))

    async def ask_until_the_end(requests: Iterable[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionError), closing(writer):
            try:
                for request in requests:
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 20")
                    length = int(head.lower().split(b"content-length: ")[1].split()[0])
                    answer = await reader.readexactly(length)
                    answers.extend([answer] if answer.startswith(b'{"created":') else [])
            except asyncio.IncompleteReadError as error:
                halves.extend(filter(None, [error.partial]))

    async def stop_while_busy() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(files - 200):
                group.create_task(ask_until_the_end(itertools.cycle(requests[number % 10 :])))
            async with asyncio.timeout(PATIENCE):  # until it is busy
                while len(answers) <= 10:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            server.process.send_signal(how)
            await asyncio.to_thread(server.process.wait, PATIENCE)

    asyncio.run(stop_while_busy())
    assert (server.process.returncode, halves) == (0, [])
    stored = {item["id"] for each in answers for item in json.loads(each)["tasks"]}
    with connect_directly(server.db) as connection:
        assert stored <= {task_id for (task_id,) in connection.execute("SELECT id FROM tasks")}


def test_a_server_takes_chunked_bodies_up_to_the_limit(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    run, chunked = server.start_run(), {"Transfer-Encoding": "chunked"}
    whole = json.dumps(task()).encode()
    answer = server.request("POST", f"{API}/runs/{run}/tasks", iter([whole[:20], whole[20:]]), **chunked)
    assert answer.status_code == 201
    large = json.dumps(task(description="x" * 1000)).encode()
    answer = server.request("POST", f"{API}/runs/{run}/tasks", iter([large[:600], large[600:]]), **chunked)
    assert_problem(answer, 413, "body_too_large")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process")
@pytest.mark.parametrize("known", [False, True], ids=["without_a_key", "with_a_key"])
def test_bodies_on_their_way_take_bounded_memory(server: Server, known: bool) -> None:
    run, key = server.start_run(), server.key if known else "fts_no"
    head = server.post_head(f"{API}/runs/{run}/tasks", 16 * KIB * KIB).replace(server.key.encode(), key.encode())
    before, peak = servers.resident_memory(server), 0.0
    with half_open(server, 40, head) as connections:
        for turn in range(60):
            for connection in connections:
                connection.setblocking(False)
                with suppress(OSError):  # a server that has refused it may have closed it
                    connection.send(b" " * 512 * KIB)
            peak = max(peak, servers.resident_memory(server))
            if turn % 20 == 0:
                assert server.request("GET", f"{API}/runs").status_code == 200
    assert peak - before < 130
    assert server.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_large_bodies_that_come_slowly_hold_up_no_other_client_and_no_smaller_body(
    serve: Callable[..., Server],
) -> None:
    server = serve(FINDINGS_BODY_TIMEOUT="2m")
    create = ("keys", "create", "--client", "hostile", "--db", str(server.db))
    keys = [command(*create, name).stdout.strip() for name in ("one", "two")]
    head = server.post_head(f"{API}/runs", 16 * KIB * KIB)
    heads = [head.replace(server.key.encode(), key.encode()) + b"{" for key in keys]
    with half_open(server, 20, heads[0]), half_open(server, 20, heads[1]):
        for key, size in ((server.key, 2 * KIB * KIB), (server.key, 100 * KIB), (keys[0], 100 * KIB)):
            body = b'{"name": "web"' + b" " * size + b"}"
            with at_most(60):
                assert server.request("POST", f"{API}/project-types", body, key).status_code in (200, 201)


def test_large_bodies_beyond_what_is_held_of_all_and_of_each_client_are_busy() -> None:
    budget = rsgi.BodyBudget(100)
    with budget.holding("a") as hold, budget.holding("a") as more, budget.holding("b") as other:
        hold(30)
        more(20)
        with pytest.raises(Busy), budget.holding("a") as too_many:
            too_many(1)
        other(50)
        with pytest.raises(Busy), budget.holding("c") as too_many:
            too_many(1)
    with budget.holding("c") as hold:
        hold(50)


@pytest.mark.sqlite
def test_a_large_body_counts_for_its_client_until_it_is_stored(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000000", FINDINGS_MAX_SARIF="1000000")  # two of these are held, one of a client
    path = f"{API}/runs/{server.start_run()}/tasks"
    batch = {"tasks": [task(description="x" * 60_000)] * 10}
    with ThreadPoolExecutor(1) as pool:
        with locked(server.db):
            first = pool.submit(server.request, "POST", path, batch)
            time.sleep(1)
            assert_problem(server.request("POST", path, batch), 503, "busy")
        assert first.result().status_code == 201
    assert server.request("POST", path, batch).status_code == 201


def test_what_needs_no_check_waits_for_none_of_its_client(server: Server) -> None:
    slow = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    server.request("POST", f"{API}/project-types", {"name": "plain"})
    run = server.request("POST", f"{API}/runs", {"projectType": "plain"}).json["id"]
    with ThreadPoolExecutor(4) as pool:
        hostile = task(extensions=BACKTRACKING)
        checks = [pool.submit(server.request, "POST", f"{API}/runs/{slow}/tasks", hostile) for _ in range(4)]
        time.sleep(0.1)
        refused = server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [{}]})
        chunked = {"Transfer-Encoding": "chunked"}
        small = server.request("POST", f"{API}/runs/{run}/tasks", iter([json.dumps(task()).encode()]), **chunked)
        assert not any(each.done() for each in checks)
        assert (refused.status_code, small.status_code) == (422, 201)
        server.stop(signal.SIGKILL)


def test_a_header_that_is_no_ascii_is_not_left_out_and_one_with_an_underscore_is_another(server: Server) -> None:
    server.start_run()
    for line, status in (("Idempotency-Key: é", 400), ("Content-Encoding: é", 415), *[("Idempotency_Key: k", 201)] * 2):
        request = raw_request(server, "POST", f"{API}/runs", b'{"projectType": "web"}', line)
        assert status_of(send_raw(server, request)) == status
    assert server.request("GET", f"{API}/runs").json["total"] == 3


@pytest.mark.signals
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_end_of_a_terminal_ends_a_service_as_a_stop_does(serve: Callable[..., Server], workers: str) -> None:
    server = serve("--workers", workers)
    assert server.stop(signal.SIGHUP) == 0
    assert not server.db.with_name("served.db-wal").exists() or ON_POSTGRES


@pytest.mark.signals
def test_a_service_that_is_to_outlive_its_terminal_does(serve: Callable[..., Server]) -> None:
    server = serve(program=("nohup", *PROGRAM))
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert server.request("GET", f"{API}/tasks").status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("lines", "status"),
    cases(
        one=(["findings-user: anna"], 200),
        none=([], 401),
        twice=(["Findings-User: anna", "Findings-User: otto"], 400),
        twice_beside_what_is_no_ascii=(["Findings-User: é", "Findings-User: anna", "Findings-User: otto"], 400),
        with_an_underscore=(["Findings_User: anna"], 400),
        also_with_an_underscore=(["Findings-User: anna", "FINDINGS_user: otto"], 400),
        no_ascii=(["Findings-User: Jürgen"], 400),
    ),
)
def test_a_user_is_named_once_and_in_ascii(
    hostile_server: Server, user_key: str, lines: list[str], status: int
) -> None:
    request = raw_request(hostile_server, "GET", f"{API}/me", b"", *lines)
    heard = send_raw(hostile_server, request.replace(hostile_server.key.encode(), user_key.encode()))
    assert status_of(heard) == status
    assert (b'"user":"anna"' in heard, b"`serve` reads ASCII only" in heard) == (status == 200, status == 400)
    with_any_key = hostile_server.request("GET", f"{API}/me", Findings_User="anna")
    assert_problem(with_any_key, 400, "invalid_parameter")


def cpu_seconds(server: Server) -> float:
    """Return the processor time that a server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells a process's time")
def test_more_connections_than_open_files_do_not_spin(serve: Callable[..., Server]) -> None:
    small = serve(program=("sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *PROGRAM))
    with half_open(small, 120, b""):
        began, used = time.monotonic(), cpu_seconds(small)
        time.sleep(1)
        assert cpu_seconds(small) - used < 0.5 * (time.monotonic() - began)
    assert small.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.sqlite
def test_of_what_takes_long_a_client_has_one_under_way_and_others_come_between(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="4s")  # half a second for one task
    run = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    other = command("keys", "create", "other", "--client", "other", "--db", str(server.db)).stdout.strip()
    schemes = ("Bearer", "bearer", "BEARER", "bEARER")

    def submit(scheme: str) -> int:
        headers = {"Authorization": f"{scheme} {server.key}"}
        return server.request("POST", f"{API}/runs/{run}/tasks", task(extensions=BACKTRACKING), **headers).status_code

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(submit, scheme) for scheme in schemes]
        time.sleep(0.1)
        assert server.request("POST", f"{API}/project-types", {"name": "web"}, key=other).status_code == 201
        assert not all(each.done() for each in answers)
        assert {each.result() for each in answers} == {422}
    assert time.monotonic() - began > 3 * 0.5  # one after the other


@pytest.mark.signals
@pytest.mark.parametrize("started", [1, 7])
def test_a_stop_while_workers_are_starting_is_no_failure(tmp_path: Path, started: int) -> None:
    line = [*PROGRAM, "serve", "--port", "0", "--workers", "8", "--db", str(tmp_path / "starting.db")]
    process = subprocess.Popen(
        line, cwd=HERE, stderr=subprocess.PIPE, text=True, env=environment(FINDINGS_API_KEY=SECRET)
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text("ascii").split()) < started:
        assert process.poll() is None
    process.terminate()
    said = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, "Traceback" in said) == (0, False), said


SIGNALLED = """
import os, signal, threading, findings_service

def wait(wait=os.wait):
    os.wait = wait
    threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    return wait()

os.wait = wait
findings_service.main()
"""


@pytest.mark.signals
def test_a_signal_that_does_not_interrupt_the_waiting_process_stops_the_service(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2", program=(sys.executable, "-c", SIGNALLED))
    assert server.process.wait(PATIENCE) == 0


FULL = """
import os, findings_service
from contextlib import suppress
from findings_adapters.serving import processes

def full(make=processes.pipe_of_signals):
    listened, written = make()
    with suppress(BlockingIOError):
        while True:
            os.write(written, bytes(4096))
    return listened, written

processes.pipe_of_signals = full
findings_service.main()
"""


@pytest.mark.signals
def test_more_signals_than_a_pipe_holds_stop_the_service(tmp_path: Path) -> None:
    line = [sys.executable, "-c", FULL, "serve", "--port", "0", "--workers", "2", "--db", str(tmp_path / "full.db")]
    done = subprocess.run(
        line, cwd=HERE, capture_output=True, text=True, check=False, env=environment(FINDINGS_API_KEY=SECRET)
    )
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


def test_the_end_of_another_child_is_not_that_of_a_worker(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2", program=("sh", "-c", 'sleep 1 & exec "$@"', "sh", *PROGRAM))
    time.sleep(1.5)
    assert server.request("GET", "/healthz").status_code == 200
    assert server.stop() == 0


@pytest.mark.signals
@pytest.mark.sqlite
def test_a_stop_waits_only_once_for_a_program_that_has_the_file_locked(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "3", FINDINGS_BUSY_TIMEOUT="5s")
    key = command("keys", "create", "used", "--db", str(server.db)).stdout.strip()
    with locked(server.db):
        for _ in range(30):  # each over a connection of its own, which any process may have
            assert server.request("GET", f"{API}/tasks", key=key).status_code == 200
        with at_most(9):
            assert server.stop() == 0


@contextmanager
def on_a_pipe(program: Sequence[str], db: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server whose words go into a pipe, of which nothing is read any more once its port is known."""
    line = with_databases([*program, "serve", "--port", "0", "--db", db_at(db, ready=True)], HERE)
    asked = environment(FINDINGS_API_KEY=SECRET, **env)
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=asked, cwd=HERE) as process:
        try:
            assert process.stderr is not None
            port = next(int(found[1]) for each in process.stderr if (found := re.search(rb":(\d+), data", each)))
            yield process, port
        finally:
            process.kill()


def test_nobody_waits_for_who_does_not_read_the_access_log(tmp_path: Path) -> None:
    program = servers.program_with(WAITING_LINES=100, LAST_LINES=PATIENCE)
    with on_a_pipe(program, tmp_path / "x.db", FINDINGS_LOG="text") as (process, port):
        with servers.connection_to(port) as connection:
            for _ in range(2500):
                connection.request("GET", "/nowhere")
                assert connection.getresponse().read()
        process.terminate()
        logged = 0
        for each in process.stderr:
            dropped = re.match(rb"(\d+) lines of the access log were dropped", each)
            logged += int(dropped[1]) if dropped else b"GET - 404" in each
        assert process.wait(PATIENCE) == 0
    assert logged == 2500


@pytest.mark.sqlite
def test_a_service_names_a_file_whose_name_is_no_utf8(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(FINDINGS_DB=os.fsdecode(bytes(tmp_path) + b"/x\xff.db"))
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.sqlite
@pytest.mark.parametrize("fails", [False, True], ids=["moved", "failed"])
def test_a_service_whose_words_nobody_reads_says_them_to_nobody(tmp_path: Path, fails: bool) -> None:
    program = program_that_fails("commits.CommitScheduler._commit_group") if fails else PROGRAM
    with on_a_pipe(program, tmp_path / "x.db") as (process, port):
        pipe = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"x" * fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))  # all that the pipe takes
        os.close(pipe)
        if not fails:
            (tmp_path / "x.db").rename(tmp_path / "moved.db")
        with servers.connection_to(port) as connection:
            headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
            with suppress(http.client.RemoteDisconnected, ConnectionResetError):
                connection.request("POST", f"{API}/project-types", '{"name": "web"}', headers)
                assert connection.getresponse().status == 503
        if not fails:
            process.terminate()
        assert process.wait(PATIENCE) == int(fails)


LEFT_BEHIND = r"""
import atexit, os, threading
import findings_service

threading.Thread(target=threading.Event().wait).start()  # for which Python waits when it ends the interpreter
atexit.register(os.write, 2, b"said at exit\n")
findings_service.main()
"""


@pytest.mark.signals
def test_a_stop_calls_what_is_registered_and_waits_for_no_interpreter(serve: Callable[..., Server]) -> None:
    server = serve(program=(sys.executable, "-c", LEFT_BEHIND))
    assert server.stop() == 0
    assert "said at exit" in server.log_text()
