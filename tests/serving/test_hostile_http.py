"""Clients that mean no good, and those that go wrong."""

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
from tests.hostile import READ_BOUND, another_client, assert_refused, half_open, raw_request, send_raw, status_of
from tests.servers import PATIENCE, Server, at_most, program_with, wait_until

UNENDED = b"GET /api/v1/tasks HTTP/1.1\r\nHost: loc"  # headers that never end


def test_half_open_connections_hold_nobody_up(hostile_server: Server) -> None:
    with (
        half_open(hostile_server, 300, b""),
        half_open(hostile_server, 150, b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-"),
        half_open(hostile_server, 50, hostile_server.post_head(f"{API}/runs", 100) + b"{"),
        another_client(hostile_server),
    ):
        for _ in range(20):
            assert hostile_server.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_a_slow_body_and_headers_that_never_end_are_given_up(hostile_server: Server) -> None:
    with half_open(hostile_server, 20, hostile_server.post_head(f"{API}/runs", 10_000) + b"{") as connections:
        with another_client(hostile_server):
            wait_until(lambda: select.select(connections[:1], [], [], 0.05)[0] or connections[0].sendall(b" "))
        for connection in connections:
            assert b"malformed_json" in connection.recv(65536)
    with half_open(hostile_server, 1, UNENDED) as connections, suppress(ConnectionResetError):
        assert not connections[0].recv(1) or connections[0].recv(65536)


BOTH_LENGTHS = cases(
    chunked_last=["Content-Length: 5", "Transfer-Encoding: chunked"],
    chunked_first=["Transfer-Encoding: chunked", "Content-Length: 62"],
)


@pytest.mark.parametrize("headers", BOTH_LENGTHS)
def test_a_request_with_both_lengths_is_one_request(hostile_server: Server, headers: list[str]) -> None:
    hidden = raw_request(hostile_server, "POST", f"{API}/project-types", b'{"name": "smuggled"}')
    for body in (b"14\r\n" + b'{"name": "twofold"} ' + b"\r\n0\r\n\r\n", b"0\r\n\r\n"):
        heard = send_raw(
            hostile_server, raw_request(hostile_server, "POST", f"{API}/project-types", body, *headers) + hidden
        )
        assert heard.count(b"HTTP/1.1 ") <= 1
        assert status_of(heard) in (0, 200, 201, 400)
    assert hostile_server.request("GET", f"{API}/project-types/smuggled").status_code == 404


NEW_TYPE = b'{"name": "smuggled"}'
CUT = b'{"name": "smuggled" '
LIES = cases(
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
    unending_chunks=(b"14\r\n" + CUT + b"\r\n", ["Transfer-Encoding: chunked"]),
    cut_chunk=(b"ff\r\n" + CUT, ["Transfer-Encoding: chunked"]),
    enormous_chunk=(b"f" * 30 + b"\r\n" + CUT, ["Transfer-Encoding: chunked"]),
)


@pytest.mark.parametrize("ends", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize(("body", "headers"), LIES)
def test_a_lie_about_the_length_is_refused_and_stores_nothing(
    hostile_server: Server, body: bytes, headers: list[str], ends: bool
) -> None:
    with another_client(hostile_server):
        heard = send_raw(
            hostile_server, raw_request(hostile_server, "POST", f"{API}/project-types", body, *headers), ends=ends
        )
    assert_refused(heard)
    assert hostile_server.request("GET", f"{API}/project-types/smuggled").status_code == 404


def test_an_oversized_chunked_body_is_refused_before_its_end(server: Server) -> None:
    server.start_run()
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    text = raw_request(server, "POST", f"{API}/project-types", NEW_TYPE, "Transfer-Encoding: chunked")
    with another_client(server), half_open(server, 1, b"") as (connection,):
        connection.sendall(text.removesuffix(NEW_TYPE))
        with suppress(OSError):
            for _ in range(17):
                connection.sendall(chunk)
        assert b" 413 " in connection.recv(65536)


STRANGE = cases(
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


@pytest.mark.parametrize("text", STRANGE)
def test_what_is_no_request_of_ours_is_refused(hostile_server: Server, text: bytes) -> None:
    with another_client(hostile_server):
        assert_refused(send_raw(hostile_server, text))


STRANGE_HEADERS = cases(
    no_utf8="Cookie: \xff\xfe\r\nAccept: \xff\r\nX-Forwarded-For: \xff\r\nIf-None-Match: \xff",
    spoofed="Script-Name: /evil\r\nPath-Info: /x\r\nWsgi.Input: 1\r\nQuery-String: a=b\r\nX-HTTP-Method-Override: PUT",
    conditional="Range: bytes=0-1\r\nIf-Match: *\r\nIf-Modified-Since: Sat, 21 Nov 2026 00:00:00 GMT",
    expectation="Expect: 100-continue",
    strange_expectation="Expect: a miracle",
)


@pytest.mark.parametrize("headers", STRANGE_HEADERS)
def test_strange_headers_change_nothing(hostile_server: Server, headers: str) -> None:
    plain, strange = (
        raw_request(hostile_server, "GET", f"{API}/project-types", b"", *more) for more in ((), (headers,))
    )
    heard = [send_raw(hostile_server, text) for text in (plain, strange.decode().encode("latin-1"))]
    assert [status_of(each) for each in heard] == [200, 200]
    assert heard[0].split(b"\r\n\r\n")[1] == heard[1].split(b"\r\n\r\n")[-1]


@pytest.mark.signals
def test_a_stop_waits_for_half_open_connections_but_not_for_long(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_BODY_TIMEOUT="3")
    texts = [b"", UNENDED, server.post_head(f"{API}/runs", 1000) + b"{", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    with ExitStack() as stack:
        for text in (*texts, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            stack.enter_context(half_open(server, 20, text))
        time.sleep(0.2)
        assert server.stop() == 0


@pytest.mark.parametrize("headers", [["Content-Length: 20000"], ["Transfer-Encoding: chunked"]])
def test_a_read_that_announces_a_body_holds_nobody_up_beside_a_lock(server: Server, headers: list[str]) -> None:
    server.start_run()
    head = "\r\n".join(["GET /healthz HTTP/1.1", "Host: x", *headers, "\r\n"]).encode()
    with locked(server.db), half_open(server, 1, head):
        time.sleep(0.1)
        with at_most(READ_BOUND):
            assert server.request("GET", f"{API}/runs").status_code == 200


@pytest.mark.parametrize("length", [1, 16_000])
def test_the_key_is_judged_before_a_small_body(serve: Callable[..., Server], length: int) -> None:
    server = serve(FINDINGS_BODY_TIMEOUT="1h")
    request = server.post_head(f"{API}/runs", length).replace(server.key.encode(), b"fts_unknown")
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(request)  # and nothing of the body
        assert status_of(connection.recv(65536)) == 401


def test_a_client_that_sends_a_refused_body_first_reads_the_response(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(DRAINING=PATIENCE, DRAINING_UNKNOWN=PATIENCE))
    for key in (server.key, "fts_unknown"):
        head = server.post_head(f"{API}/runs", 32 * KIB * KIB).replace(server.key.encode(), key.encode())
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(head + b"x" * (32 * KIB * KIB))
            assert status_of(connection.recv(65536)) == (413 if key == server.key else 401)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux limits the time for sending")
def test_a_client_that_takes_nothing_of_a_response_is_cut_off(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(SENDING=500))
    tasks = [task(description="x" * 60_000)] * 150
    assert server.request("POST", f"{API}/runs/{server.start_run()}/tasks", {"tasks": tasks}).status_code == 201

    def opened() -> set[int]:
        inodes = set()
        for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                inodes.add(file.stat().st_ino)
        return inodes

    before = opened()
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(raw_request(server, "GET", f"{API}/tasks?limit=200&view=full"))
        assert stalled.recv(12) == b"HTTP/1.1 200"
        own = opened() - before
        wait_until(lambda: not own & opened())
        with pytest.raises(ConnectionResetError):
            deque(iter(partial(stalled.recv, 1 << 20), b""), maxlen=0)


BEFORE_THE_BODY = cases(
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


@pytest.mark.parametrize(("method", "path", "headers", "status"), BEFORE_THE_BODY)
def test_what_can_be_judged_before_a_large_body_is(
    hostile_server: Server, hostile_key: str, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    sent = {"Host": "x", "Authorization": f"Bearer {hostile_key}", "Content-Type": "application/json"} | headers
    if "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", "1000000")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    with half_open(hostile_server, 1, "\r\n".join([*lines, "\r\n"]).encode()) as (connection,):
        heard = connection.recv(65536)  # although none of the body was sent
    assert status_of(heard) == status
    assert b"connection: close" in heard.lower()
