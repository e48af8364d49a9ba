"""The HTTP server: request bodies, signals, locks and slow requests."""

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
    raise BaseException("assertion failed")  # like a panic of a library written in Rust
"""


def program_that_fails(*functions: str) -> tuple[str, ...]:
    """Return a command line of the service in which these functions raise a `BaseException`."""
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
def test_process_exits_if_the_writer_or_log_thread_fails(
    serve: Callable[..., Server], thread: str, function: str
) -> None:
    server = serve(
        until=f"{LISTENING}|process exits",
        program=program_that_fails(function),
        FINDINGS_LOG="text",
        FINDINGS_API_KEY=SECRET,
    )
    if re.search(LISTENING, server.startup_output):  # the log thread may have failed at the first request
        with suppress(OSError, http.client.HTTPException):
            server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    assert server.process.wait(PATIENCE) == 1
    assert f"the thread {thread} failed, so the process exits" in server.log_text()


def test_server_continues_after_a_base_exception_in_a_request(serve: Callable[..., Server]) -> None:
    server = serve(program=program_that_fails("findings_service.insert_run", "findings_service.select_task"))
    server.request("POST", f"{API}/project-types", {"name": "web"})
    for _ in range(3):
        assert_problem(server.request("POST", f"{API}/runs", {"projectType": "web"}), 500, "internal_error")
        assert_problem(server.request("GET", f"{API}/tasks/x"), 500, "internal_error")
        assert server.request("POST", f"{API}/project-types", {"name": "web"}).status_code == 200
    assert server.request("GET", "/healthz").status_code == 200
    assert server.stop() == 0


@pytest.mark.sqlite
def test_health_check_returns_503_while_the_writer_thread_is_blocked(serve: Callable[..., Server]) -> None:
    server = serve()
    time.sleep(1.1)
    with locked(server.db), at_most(30), ThreadPoolExecutor(30) as pool:
        responses = list(pool.map(lambda _: server.request("GET", "/healthz"), range(30)))
    assert {response.status_code for response in responses} == {503}
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_finishes_the_current_request(serve: Callable[..., Server], how: signal.Signals) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="4s")
    run, body = (server.start_run(in_a({"pattern": "^(a|aa)+$"})), json.dumps(task(extensions=BACKTRACKING)).encode())
    with server.begin_post(f"{API}/runs/{run}/tasks", len(body)) as connection:
        connection.sendall(body)
        time.sleep(0.15)
        assert server.stop(how) == 0
        assert b"extension_check_timeout" in connection.recv(65536)


@pytest.mark.signals
def test_shutdown_waits_for_a_body_that_is_still_arriving(server: Server) -> None:
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
def test_repeated_signals_cause_one_shutdown(serve: Callable[..., Server], workers: str, how: signal.Signals) -> None:
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
def test_unread_response_does_not_block_shutdown(serve: Callable[..., Server], query: str, accept: str) -> None:
    server = serve(program=servers.program_with(LEAVING=0.5))
    path, bulky = f"{API}/runs/{server.start_run()}/tasks", task(description="x" * 60_000)
    assert server.request("POST", path, {"tasks": [bulky] * 150}).status_code == 201
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(raw_request(server, "GET", f"{API}/tasks?{query}", b"", f"Accept: {accept}"))
        assert stalled.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        with suppress(ConnectionResetError):
            received = b"".join(iter(partial(stalled.recv, 1 << 20), b""))
            assert not received.endswith((b"}", b"0\r\n\r\n"))


# In asyncio's own event loop a signal is lost if the self-pipe is full of wake-ups.
WITHOUT_UVLOOP = f"{IMPORT_CORE}, sys; sys.modules['uvloop'] = None; findings_service.main()"


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_with_a_thousand_busy_connections_loses_no_write(
    serve: Callable[..., Server], how: signal.Signals
) -> None:
    server = serve(program=(sys.executable, "-c", WITHOUT_UVLOOP))
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    read, write = raw_request(server, "GET", f"{API}/runs"), raw_request(server, "POST", path, body)
    requests = [each.replace(b"Connection: close\r\n", b"") for each in (write, *[read] * 9)]
    responses, partial_responses = list[bytes](), list[bytes]()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 1200 if hard == resource.RLIM_INFINITY else min(1200, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))

    async def send_until_closed(requests: Iterable[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionError), closing(writer):
            try:
                for request in requests:
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 20")
                    length = int(head.lower().split(b"content-length: ")[1].split()[0])
                    response = await reader.readexactly(length)
                    responses.extend([response] if response.startswith(b'{"created":') else [])
            except asyncio.IncompleteReadError as error:
                partial_responses.extend(filter(None, [error.partial]))

    async def stop_while_busy() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(files - 200):
                group.create_task(send_until_closed(itertools.cycle(requests[number % 10 :])))
            async with asyncio.timeout(PATIENCE):  # until it is busy
                while len(responses) <= 10:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            server.process.send_signal(how)
            await asyncio.to_thread(server.process.wait, PATIENCE)

    asyncio.run(stop_while_busy())
    assert (server.process.returncode, partial_responses) == (0, [])
    stored = {item["id"] for each in responses for item in json.loads(each)["tasks"]}
    with connect_directly(server.db) as connection:
        assert stored <= {task_id for (task_id,) in connection.execute("SELECT id FROM tasks")}


def test_chunked_bodies_are_accepted_up_to_the_size_limit(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    run, chunked = server.start_run(), {"Transfer-Encoding": "chunked"}
    whole = json.dumps(task()).encode()
    response = server.request("POST", f"{API}/runs/{run}/tasks", iter([whole[:20], whole[20:]]), **chunked)
    assert response.status_code == 201
    large = json.dumps(task(description="x" * 1000)).encode()
    response = server.request("POST", f"{API}/runs/{run}/tasks", iter([large[:600], large[600:]]), **chunked)
    assert_problem(response, 413, "body_too_large")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reading a process's memory use requires Linux")
@pytest.mark.parametrize("has_key", [False, True], ids=["without_a_key", "with_a_key"])
def test_incomplete_bodies_take_bounded_memory(server: Server, has_key: bool) -> None:
    run, key = server.start_run(), server.key if has_key else "fts_no"
    head = server.post_head(f"{API}/runs/{run}/tasks", 16 * KIB * KIB).replace(server.key.encode(), key.encode())
    before, peak = servers.resident_memory(server), 0.0
    with half_open(server, 40, head) as connections:
        for turn in range(60):
            for connection in connections:
                connection.setblocking(False)
                with suppress(OSError):  # the server may have closed it after rejecting the request
                    connection.send(b" " * 512 * KIB)
            peak = max(peak, servers.resident_memory(server))
            if turn % 20 == 0:
                assert server.request("GET", f"{API}/runs").status_code == 200
    assert peak - before < 130
    assert server.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_slow_large_bodies_do_not_delay_other_clients_or_smaller_bodies(serve: Callable[..., Server]) -> None:
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


def test_body_budget_limits_the_bytes_in_total_and_per_client() -> None:
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
def test_large_body_uses_its_clients_budget_until_it_is_stored(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000000", FINDINGS_MAX_SARIF="1000000")  # the budget: two such, one per client
    path = f"{API}/runs/{server.start_run()}/tasks"
    batch = {"tasks": [task(description="x" * 60_000)] * 10}
    with ThreadPoolExecutor(1) as pool:
        with locked(server.db):
            first = pool.submit(server.request, "POST", path, batch)
            time.sleep(1)
            assert_problem(server.request("POST", path, batch), 503, "busy")
        assert first.result().status_code == 201
    assert server.request("POST", path, batch).status_code == 201


def test_requests_without_a_schema_check_do_not_wait_for_running_checks(server: Server) -> None:
    slow = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    server.request("POST", f"{API}/project-types", {"name": "plain"})
    run = server.request("POST", f"{API}/runs", {"projectType": "plain"}).json["id"]
    with ThreadPoolExecutor(4) as pool:
        hostile = task(extensions=BACKTRACKING)
        checks = [pool.submit(server.request, "POST", f"{API}/runs/{slow}/tasks", hostile) for _ in range(4)]
        time.sleep(0.1)
        invalid = server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [{}]})
        chunked = {"Transfer-Encoding": "chunked"}
        valid = server.request("POST", f"{API}/runs/{run}/tasks", iter([json.dumps(task()).encode()]), **chunked)
        assert not any(each.done() for each in checks)
        assert (invalid.status_code, valid.status_code) == (422, 201)
        server.stop(signal.SIGKILL)


def test_non_ascii_headers_are_rejected_and_underscores_are_distinct(server: Server) -> None:
    server.start_run()
    for line, status in (("Idempotency-Key: é", 400), ("Content-Encoding: é", 415), *[("Idempotency_Key: k", 201)] * 2):
        request = raw_request(server, "POST", f"{API}/runs", b'{"projectType": "web"}', line)
        assert status_of(send_raw(server, request)) == status
    assert server.request("GET", f"{API}/runs").json["total"] == 3


@pytest.mark.signals
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_stops_the_service_cleanly(serve: Callable[..., Server], workers: str) -> None:
    server = serve("--workers", workers)
    assert server.stop(signal.SIGHUP) == 0
    assert not server.db.with_name("served.db-wal").exists() or ON_POSTGRES


@pytest.mark.signals
def test_service_started_with_nohup_ignores_sighup(serve: Callable[..., Server]) -> None:
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
        twice_and_one_not_ascii=(["Findings-User: é", "Findings-User: anna", "Findings-User: otto"], 400),
        with_an_underscore=(["Findings_User: anna"], 400),
        also_with_an_underscore=(["Findings-User: anna", "FINDINGS_user: otto"], 400),
        not_ascii=(["Findings-User: Jürgen"], 400),
    ),
)
def test_findings_user_header_must_be_single_and_ascii(
    hostile_server: Server, user_key: str, lines: list[str], status: int
) -> None:
    request = raw_request(hostile_server, "GET", f"{API}/me", b"", *lines)
    received = send_raw(hostile_server, request.replace(hostile_server.key.encode(), user_key.encode()))
    assert status_of(received) == status
    assert (b'"user":"anna"' in received, b"`serve` accepts ASCII only" in received) == (status == 200, status == 400)
    with_other_key = hostile_server.request("GET", f"{API}/me", Findings_User="anna")
    assert_problem(with_other_key, 400, "invalid_parameter")


def cpu_seconds(server: Server) -> float:
    """Return the CPU seconds that a server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reading a process's CPU time requires Linux")
def test_connections_beyond_the_file_limit_use_little_cpu(serve: Callable[..., Server]) -> None:
    small = serve(program=("sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *PROGRAM))
    with half_open(small, 120, b""):
        began, used = time.monotonic(), cpu_seconds(small)
        time.sleep(1)
        assert cpu_seconds(small) - used < 0.5 * (time.monotonic() - began)
    assert small.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.sqlite
def test_checks_of_one_client_run_one_at_a_time_without_delaying_others(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="4s")  # half a second for one task
    run = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    other = command("keys", "create", "other", "--client", "other", "--db", str(server.db)).stdout.strip()
    schemes = ("Bearer", "bearer", "BEARER", "bEARER")

    def submit(scheme: str) -> int:
        headers = {"Authorization": f"{scheme} {server.key}"}
        return server.request("POST", f"{API}/runs/{run}/tasks", task(extensions=BACKTRACKING), **headers).status_code

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        statuses = [pool.submit(submit, scheme) for scheme in schemes]
        time.sleep(0.1)
        assert server.request("POST", f"{API}/project-types", {"name": "web"}, key=other).status_code == 201
        assert not all(each.done() for each in statuses)
        assert {each.result() for each in statuses} == {422}
    assert time.monotonic() - began > 3 * 0.5  # one at a time


@pytest.mark.signals
@pytest.mark.parametrize("started", [1, 7])
def test_shutdown_while_workers_start_exits_with_0(tmp_path: Path, started: int) -> None:
    line = [*PROGRAM, "serve", "--port", "0", "--workers", "8", "--db", str(tmp_path / "starting.db")]
    process = subprocess.Popen(
        line, cwd=HERE, stderr=subprocess.PIPE, text=True, env=environment(FINDINGS_API_KEY=SECRET)
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text("ascii").split()) < started:
        assert process.poll() is None
    process.terminate()
    output = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, "Traceback" in output) == (0, False), output


SIGNAL_IN_OTHER_THREAD = """
import os, signal, threading, findings_service

def wait(wait=os.wait):
    os.wait = wait
    threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    return wait()

os.wait = wait
findings_service.main()
"""


@pytest.mark.signals
def test_signal_that_does_not_interrupt_wait_stops_the_service(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2", program=(sys.executable, "-c", SIGNAL_IN_OTHER_THREAD))
    assert server.process.wait(PATIENCE) == 0


FULL_PIPE = """
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
def test_full_signal_pipe_stops_the_service(tmp_path: Path) -> None:
    line = [sys.executable, "-c", FULL_PIPE, "serve", "--port", "0", "--workers", "2", "--db", str(tmp_path / "x.db")]
    done = subprocess.run(
        line, cwd=HERE, capture_output=True, text=True, check=False, env=environment(FINDINGS_API_KEY=SECRET)
    )
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


def test_end_of_an_inherited_child_process_does_not_stop_the_service(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2", program=("sh", "-c", 'sleep 1 & exec "$@"', "sh", *PROGRAM))
    time.sleep(1.5)
    assert server.request("GET", "/healthz").status_code == 200
    assert server.stop() == 0


@pytest.mark.signals
@pytest.mark.sqlite
def test_shutdown_waits_for_a_database_lock_only_once(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "3", FINDINGS_BUSY_TIMEOUT="5s")
    key = command("keys", "create", "used", "--db", str(server.db)).stdout.strip()
    with locked(server.db):
        for _ in range(30):  # each on a new connection, which any worker may accept
            assert server.request("GET", f"{API}/tasks", key=key).status_code == 200
        with at_most(9):
            assert server.stop() == 0


@contextmanager
def piped_server(program: Sequence[str], db: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server with standard error on a pipe that is not read any more once the port is known."""
    line = with_databases([*program, "serve", "--port", "0", "--db", db_at(db, ready=True)], HERE)
    env_variables = environment(FINDINGS_API_KEY=SECRET, **env)
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=env_variables, cwd=HERE) as process:
        try:
            assert process.stderr is not None
            port = next(int(found[1]) for each in process.stderr if (found := re.search(rb":(\d+), data", each)))
            yield process, port
        finally:
            process.kill()


def test_unread_access_log_does_not_delay_requests(tmp_path: Path) -> None:
    program = servers.program_with(WAITING_LINES=100, LAST_LINES=PATIENCE)
    with piped_server(program, tmp_path / "x.db", FINDINGS_LOG="text") as (process, port):
        with servers.connection_to(port) as connection:
            for _ in range(2500):
                connection.request("GET", "/nowhere")
                assert connection.getresponse().read()
        process.terminate()
        logged = 0
        for each in process.stderr:
            dropped = re.match(rb"(\d+) lines of the log were dropped", each)
            logged += int(dropped[1]) if dropped else b"GET - 404" in each
        assert process.wait(PATIENCE) == 0
    assert logged == 2500


@pytest.mark.sqlite
def test_database_path_may_contain_invalid_utf8(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(FINDINGS_DB=os.fsdecode(bytes(tmp_path) + b"/x\xff.db"))
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.sqlite
@pytest.mark.parametrize("fails", [False, True], ids=["moved", "failed"])
def test_full_standard_error_pipe_does_not_block_the_service(tmp_path: Path, fails: bool) -> None:
    program = program_that_fails("commits.CommitScheduler._commit_group") if fails else PROGRAM
    with piped_server(program, tmp_path / "x.db") as (process, port):
        pipe = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"x" * fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))  # fill the pipe
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


EXTRA_THREAD = r"""
import atexit, os, threading
import findings_service

threading.Thread(target=threading.Event().wait).start()  # Python's shutdown would wait for it
atexit.register(os.write, 2, b"said at exit\n")
findings_service.main()
"""


@pytest.mark.signals
def test_shutdown_runs_atexit_handlers_and_does_not_wait_for_threads(serve: Callable[..., Server]) -> None:
    server = serve(program=(sys.executable, "-c", EXTRA_THREAD))
    assert server.stop() == 0
    assert "said at exit" in server.log_text()
