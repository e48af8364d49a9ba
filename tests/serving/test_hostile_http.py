"""Hostile and faulty HTTP clients: slow, malformed and oversized requests."""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.clients import API, KIB, cases, task
from tests.engines import locked
from tests.hostile import READ_BOUND, assert_rejected, concurrent_reads, half_open, raw_request, send_raw, status_of
from tests.servers import PATIENCE, Server, at_most, program_with, wait_until

ENDLESS_HEADERS = b"GET /api/v1/tasks HTTP/1.1\r\nHost: loc"


def test_half_open_connections_do_not_delay_other_clients(hostile_server: Server) -> None:
    with (
        half_open(hostile_server, 300, b""),
        half_open(hostile_server, 150, b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-"),
        half_open(hostile_server, 50, hostile_server.post_head(f"{API}/runs", 100) + b"{"),
        concurrent_reads(hostile_server),
    ):
        for _ in range(20):
            assert hostile_server.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_slow_bodies_and_endless_headers_time_out(hostile_server: Server) -> None:
    with half_open(hostile_server, 20, hostile_server.post_head(f"{API}/runs", 10_000) + b"{") as connections:
        with concurrent_reads(hostile_server):
            wait_until(lambda: select.select(connections[:1], [], [], 0.05)[0] or connections[0].sendall(b" "))
        for connection in connections:
            assert b"malformed_json" in connection.recv(65536)
    with half_open(hostile_server, 1, ENDLESS_HEADERS) as connections, suppress(ConnectionResetError):
        assert not connections[0].recv(1) or connections[0].recv(65536)


BOTH_LENGTHS = cases(
    chunked_last=["Content-Length: 5", "Transfer-Encoding: chunked"],
    chunked_first=["Transfer-Encoding: chunked", "Content-Length: 62"],
)


@pytest.mark.parametrize("headers", BOTH_LENGTHS)
def test_content_length_and_chunked_together_smuggle_no_request(hostile_server: Server, headers: list[str]) -> None:
    hidden = raw_request(hostile_server, "POST", f"{API}/project-types", b'{"name": "smuggled"}')
    for body in (b"14\r\n" + b'{"name": "twofold"} ' + b"\r\n0\r\n\r\n", b"0\r\n\r\n"):
        received = send_raw(
            hostile_server, raw_request(hostile_server, "POST", f"{API}/project-types", body, *headers) + hidden
        )
        assert received.count(b"HTTP/1.1 ") <= 1
        assert status_of(received) in (0, 200, 201, 400)
    assert hostile_server.request("GET", f"{API}/project-types/smuggled").status_code == 404


NEW_TYPE = b'{"name": "smuggled"}'
PARTIAL = b'{"name": "smuggled" '
FALSE_LENGTHS = cases(
    too_short=(NEW_TYPE, ["Content-Length: 5"]),
    too_long=(NEW_TYPE, ["Content-Length: 500"]),
    negative=(NEW_TYPE, ["Content-Length: -1"]),
    no_number=(NEW_TYPE, ["Content-Length: all"]),
    signed=(NEW_TYPE, ["Content-Length: +20"]),
    enormous=(NEW_TYPE, [f"Content-Length: {10**30}"]),
    over_the_limit=(NEW_TYPE, [f"Content-Length: {10**9}"]),
    two_different=(NEW_TYPE, ["Content-Length: 20", "Content-Length: 5"]),
    unknown_coding=(NEW_TYPE, ["Transfer-Encoding: gzip"]),
    coded_twice=(b"14\r\n" + NEW_TYPE + b"\r\n0\r\n\r\n", ["Transfer-Encoding: chunked, identity"]),
    bad_chunks=(b"zz\r\n" + NEW_TYPE + b"\r\n0\r\n\r\n", ["Transfer-Encoding: chunked"]),
    unending_chunks=(b"14\r\n" + PARTIAL + b"\r\n", ["Transfer-Encoding: chunked"]),
    cut_chunk=(b"ff\r\n" + PARTIAL, ["Transfer-Encoding: chunked"]),
    enormous_chunk=(b"f" * 30 + b"\r\n" + PARTIAL, ["Transfer-Encoding: chunked"]),
)


@pytest.mark.parametrize("ends", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize(("body", "headers"), FALSE_LENGTHS)
def test_false_body_lengths_are_rejected_and_store_nothing(
    hostile_server: Server, body: bytes, headers: list[str], ends: bool
) -> None:
    with concurrent_reads(hostile_server):
        received = send_raw(
            hostile_server, raw_request(hostile_server, "POST", f"{API}/project-types", body, *headers), ends=ends
        )
    assert_rejected(received)
    assert hostile_server.request("GET", f"{API}/project-types/smuggled").status_code == 404


def test_oversized_chunked_body_is_rejected_before_its_end(server: Server) -> None:
    server.start_run()
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    text = raw_request(server, "POST", f"{API}/project-types", NEW_TYPE, "Transfer-Encoding: chunked")
    with concurrent_reads(server), half_open(server, 1, b"") as (connection,):
        connection.sendall(text.removesuffix(NEW_TYPE))
        with suppress(OSError):
            for _ in range(17):
                connection.sendall(chunk)
        assert b" 413 " in connection.recv(65536)


MALFORMED = cases(
    no_path=b"GET\r\n\r\n",
    other_version=b"GET / HTTP/9.9\r\n\r\n",
    no_host=b"GET /api/v1/tasks HTTP/1.1\r\nConnection: close\r\n\r\n",
    no_colon=b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    nul=b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    long_header=b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2_000_000 + b"\r\n\r\n",
    long_path=b"GET /" + b"x" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    many_headers=b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: 1\r\n" % n for n in range(10_000)) + b"\r\n",
    chunked_1_0=b"POST /api/v1/runs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    proxy=b"GET http://other.example/api/v1/tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    options=b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    connect=b"CONNECT other.example:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    brew=b"BREW /api/v1/tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    key_no_utf8=b"GET /api/v1/tasks HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n",
    tls=bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    http_2=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(100, 200)),
    noise=random.Random(1).randbytes(5000),
)


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_requests_are_rejected(hostile_server: Server, text: bytes) -> None:
    with concurrent_reads(hostile_server):
        assert_rejected(send_raw(hostile_server, text))


UNUSUAL_HEADERS = cases(
    no_utf8="Cookie: \xff\xfe\r\nAccept: \xff\r\nX-Forwarded-For: \xff\r\nIf-None-Match: \xff",
    spoofed="Script-Name: /evil\r\nPath-Info: /x\r\nWsgi.Input: 1\r\nQuery-String: a=b\r\nX-HTTP-Method-Override: PUT",
    conditional="Range: bytes=0-1\r\nIf-Match: *\r\nIf-Modified-Since: Sat, 21 Nov 2026 00:00:00 GMT",
    expectation="Expect: 100-continue",
    strange_expectation="Expect: a miracle",
)


@pytest.mark.parametrize("headers", UNUSUAL_HEADERS)
def test_unusual_headers_do_not_change_the_response(hostile_server: Server, headers: str) -> None:
    plain, unusual = (
        raw_request(hostile_server, "GET", f"{API}/project-types", b"", *more) for more in ((), (headers,))
    )
    received = [send_raw(hostile_server, text) for text in (plain, unusual.decode().encode("latin-1"))]
    assert [status_of(each) for each in received] == [200, 200]
    assert received[0].split(b"\r\n\r\n")[1] == received[1].split(b"\r\n\r\n")[-1]


@pytest.mark.signals
def test_shutdown_is_not_blocked_by_half_open_connections(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_BODY_TIMEOUT="3")
    texts = [b"", ENDLESS_HEADERS, server.post_head(f"{API}/runs", 1000) + b"{", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    with ExitStack() as stack:
        for text in (*texts, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            stack.enter_context(half_open(server, 20, text))
        time.sleep(0.2)
        assert server.stop() == 0


@pytest.mark.parametrize("headers", [["Content-Length: 20000"], ["Transfer-Encoding: chunked"]])
def test_read_with_a_pending_body_does_not_delay_others_during_a_lock(server: Server, headers: list[str]) -> None:
    server.start_run()
    head = "\r\n".join(["GET /healthz HTTP/1.1", "Host: x", *headers, "\r\n"]).encode()
    with locked(server.db), half_open(server, 1, head):
        time.sleep(0.1)
        with at_most(READ_BOUND):
            assert server.request("GET", f"{API}/runs").status_code == 200


@pytest.mark.parametrize("length", [1, 16_000])
def test_key_is_checked_before_the_body_arrives(serve: Callable[..., Server], length: int) -> None:
    server = serve(FINDINGS_BODY_TIMEOUT="1h")
    request = server.post_head(f"{API}/runs", length).replace(server.key.encode(), b"fts_unknown")
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(request)  # without the body
        assert status_of(connection.recv(65536)) == 401


def test_client_that_sends_a_rejected_body_can_read_the_response(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(DRAINING=PATIENCE, DRAINING_UNKNOWN=PATIENCE))
    for key in (server.key, "fts_unknown"):
        head = server.post_head(f"{API}/runs", 32 * KIB * KIB).replace(server.key.encode(), key.encode())
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(head + b"x" * (32 * KIB * KIB))
            assert status_of(connection.recv(65536)) == (413 if key == server.key else 401)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP_USER_TIMEOUT is available on Linux only")
def test_client_that_stops_reading_a_response_is_disconnected(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(SENDING=500))
    tasks = [task(description="x" * 60_000)] * 150
    assert server.request("POST", f"{API}/runs/{server.start_run()}/tasks", {"tasks": tasks}).status_code == 201

    def open_files() -> set[int]:
        inodes = set()
        for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                inodes.add(file.stat().st_ino)
        return inodes

    before = open_files()
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(raw_request(server, "GET", f"{API}/tasks?limit=200&view=full"))
        assert stalled.recv(12) == b"HTTP/1.1 200"
        connection_files = open_files() - before
        wait_until(lambda: not connection_files & open_files())
        with pytest.raises(ConnectionResetError):
            deque(iter(partial(stalled.recv, 1 << 20), b""), maxlen=0)


HEADER_ERRORS = cases(
    path=("POST", "/nowhere", {}, 404),
    method=("PUT", f"{API}/runs", {}, 405),
    key=("POST", f"{API}/runs", {"Authorization": "Bearer fts_no"}, 401),
    level=("PUT", f"{API}/project-types/web", {}, 403),
    size=("POST", f"{API}/runs", {"Content-Length": str(17 * KIB * KIB)}, 413),
    huge=("POST", f"{API}/runs", {"Content-Length": str(10**18)}, 413),
    most_that_is_a_number=("POST", f"{API}/runs", {"Content-Length": str(2**63 - 1)}, 413),
    more_than_a_number=("POST", f"{API}/runs", {"Content-Length": str(2**63)}, 413),
    chunked=("POST", f"{API}/runs", {"Transfer-Encoding": "chunked", "Authorization": "Bearer fts_no"}, 401),
    kind=("POST", f"{API}/runs", {"Content-Type": "text/plain"}, 415),
    encoding=("POST", f"{API}/runs", {"Content-Encoding": "gzip"}, 415),
)


@pytest.mark.parametrize(("method", "path", "headers", "status"), HEADER_ERRORS)
def test_errors_in_headers_are_returned_before_a_large_body_arrives(
    hostile_server: Server, hostile_key: str, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    sent = {"Host": "x", "Authorization": f"Bearer {hostile_key}", "Content-Type": "application/json"} | headers
    if "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", "1000000")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    with half_open(hostile_server, 1, "\r\n".join([*lines, "\r\n"]).encode()) as (connection,):
        received = connection.recv(65536)  # before any of the body is sent
    assert status_of(received) == status
    assert b"connection: close" in received.lower()
