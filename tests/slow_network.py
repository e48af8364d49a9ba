"""A network simulator for tests and benchmarks: it delays, stalls and cuts the connections to a server."""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

HOST = "127.0.0.1"
READ = 1 << 18  # bytes per read
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards unsent data and sends RST
Address = tuple[str, int] | str


def connect(address: Address) -> socket.socket:
    """Return a connection to a host and port, or to the path of a Unix socket."""
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    return without_delay(socket.create_connection(address))


def without_delay(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Flow:
    """One direction of a connection: the bytes in transit, each piece with its time of arrival."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.in_transit: deque[tuple[float, bytes]] = deque()
        self.ended = False

    def receive(self, delay: float) -> None:
        """Read the available data; an empty read is the end of the stream."""
        try:
            data = self.source.recv(READ)
        except OSError:
            data = b""
        self.in_transit.append((time.monotonic() + delay, data))
        self.ended = not data

    def deliver(self, now: float) -> None:
        """Write the data whose time has come. :raises OSError: at the end of the stream, or if the target is closed."""
        while self.in_transit and self.in_transit[0][0] <= now:
            due, data = self.in_transit.popleft()
            if not data:
                raise ConnectionError
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self.in_transit.appendleft((due, data[sent:]))
                return


class Router:
    """The loop that forwards data. It uses `select`, whose timeouts are finer than those of event loops."""

    def __init__(self, target: Address, seconds: float, pipe: Connection) -> None:
        self.target, self.seconds, self.pipe = target, seconds, pipe
        self.port = 0
        self.stalls = False
        self.listener: socket.socket | None = None
        self.flows: dict[socket.socket, Flow] = {}  # by their source

    def step(self) -> None:
        now = time.monotonic()
        flows = [] if self.stalls else [*self.flows.values()]
        listeners = [self.listener] if self.listener and not self.stalls else []
        reading: list[Any] = [self.pipe, *listeners, *(flow.source for flow in flows if not flow.ended)]
        due_times = {flow.target: flow.in_transit[0][0] for flow in flows if flow.in_transit}
        blocked = [end for end, due in due_times.items() if due <= now]
        next_due = min((due for due in due_times.values() if due > now), default=None)
        ready, _, _ = select.select(reading, blocked, [], None if next_due is None else next_due - now)
        for each in ready:
            if each is self.pipe:
                name, value = self.pipe.recv()
                self.pipe.send(getattr(self, name)(*value))
            elif each is self.listener:
                self.accept()
            elif each in self.flows:
                self.flows[each].receive(self.seconds)
        for flow in [] if self.stalls else [*self.flows.values()]:
            try:
                flow.deliver(time.monotonic())
            except OSError:
                self.drop(flow, reset=False)

    def accept(self) -> None:
        assert self.listener
        with suppress(BlockingIOError):
            client, _ = self.listener.accept()
            try:
                server = connect(self.target)
            except OSError:
                client.close()
                return
            for end in (without_delay(client), server):
                end.setblocking(False)
            self.flows[client], self.flows[server] = Flow(client, server), Flow(server, client)

    def drop(self, flow: Flow, *, reset: bool) -> None:
        for end in (flow.source, flow.target):
            if self.flows.pop(end, None):
                if reset:
                    with suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.close()

    # Commands of the test process

    def come_back(self) -> int:
        """Accept connections (again), always at the same port, and return the port."""
        if self.listener is None:
            self.listener = socket.create_server((HOST, self.port), backlog=512)
            self.listener.setblocking(False)
            self.port = self.listener.getsockname()[1]
        return self.port

    def delay(self, seconds: float) -> None:
        """Set the delay of each direction, in seconds."""
        self.seconds = seconds

    def stall(self) -> None:
        """Stop forwarding, but keep the connections open."""
        self.stalls = True

    def go_on(self) -> None:
        """Forward data again after `stall`."""
        self.stalls = False

    def cut(self) -> None:
        """Reset all connections."""
        for flow in list(self.flows.values()):
            self.drop(flow, reset=True)

    def go_away(self) -> None:
        """Reset all connections, and refuse new ones."""
        self.cut()
        if self.listener:
            self.listener.close()
        self.listener = None


def run_router(target: Address, delay: float, pipe: Connection) -> None:
    """Run a router until the pipe of its commands is closed."""
    router = Router(target, delay, pipe)
    with suppress(EOFError):
        while True:
            router.step()


class SlowNetwork:
    """A network to a server, in a process of its own; connections to `port` reach the server.

    Its other methods are the commands of `Router`.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.port: int = self.come_back()

    def __getattr__(self, command: str) -> Callable[..., Any]:
        def send(*values: Any) -> Any:
            self._pipe.send((command, values))
            return self._pipe.recv()

        return send


@contextmanager
def slow_network(target: Address, delay: float = 0.0) -> Iterator[SlowNetwork]:
    """Start a network to a server in a process, and end the process afterwards.

    :param target: host and port of the server, or the path of its socket.
    :param delay: the delay of each direction, in seconds.
    """
    context = multiprocessing.get_context("spawn")
    pipe, child_end = context.Pipe()
    process = context.Process(target=run_router, args=(target, delay, child_end), daemon=True)
    process.start()
    child_end.close()
    try:
        yield SlowNetwork(pipe)
    finally:
        pipe.close()
        process.join(5)
        process.kill()
        process.join()
