"""Raw connections, and a server that hostile clients share with others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.clients import API
from tests.servers import PATIENCE, PROGRAM, Server, at_most, command, start_process

READ_BOUND = 1.5  # seconds for a plain read; the contract promises 0.3, but other tests run at the same time


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that hostile clients share with others. A body must arrive within 2 seconds."""
    db = tmp_path_factory.mktemp("hostile") / "hostile.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, FINDINGS_BODY_TIMEOUT="2s", FINDINGS_SCHEMA_TIMEOUT="2s")
    try:
        server.start_run()
        yield server
        assert server.process.poll() is None
    finally:
        code = server.stop()
    assert code == 0


@pytest.fixture(scope="module")
def hostile_key(hostile_server: Server) -> str:
    return command("keys", "create", "hostile", "--client", "hostile", "--db", str(hostile_server.db)).stdout.strip()


@contextmanager
def concurrent_reads(server: Server) -> Iterator[None]:
    """Send plain reads as another client, and check that none waits for long (contract §1, Time)."""
    done = threading.Event()

    def read() -> None:
        stopped = False
        while not stopped:
            with at_most(READ_BOUND):
                assert server.request("GET", f"{API}/runs").json["total"] >= 1
            stopped = done.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(read)
        try:
            yield
        finally:
            done.set()
        reads.result()


def send_raw(server: Server, text: bytes, *, ends: bool = False) -> bytes:
    """Send bytes and return everything until the server closes the connection.

    :param ends: whether to close our side after sending.
    """
    received = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(text)
        if ends:
            with suppress(OSError):  # already closed by the server
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
    return bytes(received)


def raw_request(server: Server, method: str, path: bytes | str, body: bytes = b"", *headers: str) -> bytes:
    """Return a request with Connection: close, and a Content-Length unless `headers` has a length."""
    lines = ["Host: localhost", "Connection: close", f"Authorization: Bearer {server.key}", *headers]
    if body:
        lines.append("Content-Type: application/json")
        if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
            lines.append(f"Content-Length: {len(body)}")
    start = path.encode() if isinstance(path, str) else path
    return method.encode() + b" " + start + b" HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_of(response: bytes) -> int:
    """Return the status of a response, 0 if the connection was closed without one."""
    return int(response.split(b" ", 2)[1]) if response.startswith(b"HTTP/1.1 ") else 0


def assert_rejected(response: bytes) -> None:
    """Check for a problem response, a short 4xx response of the HTTP server, or a closed connection."""
    assert status_of(response) in (0, *range(400, 500)), response[:300]
    assert b"application/problem+json" in response or len(response) < 300


@contextmanager
def half_open(server: Server, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    """Keep connections open that have sent part of a request."""
    with ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        connections = [stack.enter_context(socket.create_connection(address, timeout=PATIENCE)) for _ in range(count)]
        for connection in connections:
            connection.sendall(text)
        yield connections
