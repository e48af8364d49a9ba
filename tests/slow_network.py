"""A network for tests and benchmarks, which delays what passes to a server, stalls, cuts connections and goes away."""

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
READ = 1 << 18  # bytes at once
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what a closed socket had still to send is dropped, and the peer told so
Address = tuple[str, int] | str


def connect(address: Address) -> socket.socket:
    """Return a connection to a host and port, or to a socket's path."""
    if isinstance(address, str):
        found = socket.socket(socket.AF_UNIX)
        found.connect(address)
        return found
    return without_delay(socket.create_connection(address))


def without_delay(found: socket.socket) -> socket.socket:
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


class Way:
    """One direction of a connection: the bytes in transit, and when each piece arrives."""

    def __init__(self, begin: socket.socket, end: socket.socket) -> None:
        self.begin, self.end = begin, end
        self.under_way: deque[tuple[float, bytes]] = deque()
        self.ended = False

    def take(self, delay: float) -> None:
        """Read what is there; no data is the end."""
        try:
            data = self.begin.recv(READ)
        except OSError:
            data = b""
        self.under_way.append((time.monotonic() + delay, data))
        self.ended = not data

    def deliver(self, now: float) -> None:
        """Write what has arrived. :raises OSError: when the other side is gone, or wants no more."""
        while self.under_way and self.under_way[0][0] <= now:
            due, data = self.under_way.popleft()
            if not data:
                raise ConnectionError
            try:
                sent = self.end.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self.under_way.appendleft((due, data[sent:]))
                return


class Router:
    """What passes the network on, in one loop: the clock of `select` is finer than that of event loops."""

    def __init__(self, target: Address, seconds: float, orders: Connection) -> None:
        self.target, self.seconds, self.orders = target, seconds, orders
        self.port = 0
        self.stalls = False
        self.listener: socket.socket | None = None
        self.ways: dict[socket.socket, Way] = {}  # by where they begin

    def turn(self) -> None:
        now = time.monotonic()
        ways = [] if self.stalls else [*self.ways.values()]
        listeners = [self.listener] if self.listener and not self.stalls else []
        reading: list[Any] = [self.orders, *listeners, *(way.begin for way in ways if not way.ended)]
        dues = {way.end: way.under_way[0][0] for way in ways if way.under_way}
        blocked = [end for end, due in dues.items() if due <= now]
        later = min((due for due in dues.values() if due > now), default=None)
        ready, _, _ = select.select(reading, blocked, [], None if later is None else later - now)
        for each in ready:
            if each is self.orders:
                name, value = self.orders.recv()
                self.orders.send(getattr(self, name)(*value))
            elif each is self.listener:
                self.accept()
            elif each in self.ways:
                self.ways[each].take(self.seconds)
        for way in [] if self.stalls else [*self.ways.values()]:
            try:
                way.deliver(time.monotonic())
            except OSError:
                self.drop(way, reset=False)

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
            self.ways[client], self.ways[server] = Way(client, server), Way(server, client)

    def drop(self, way: Way, *, reset: bool) -> None:
        for end in (way.begin, way.end):
            if self.ways.pop(end, None):
                if reset:
                    with suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.close()

    # Orders

    def come_back(self) -> int:
        """Take connections, again at the same port, which is returned."""
        if self.listener is None:
            self.listener = socket.create_server((HOST, self.port), backlog=512)
            self.listener.setblocking(False)
            self.port = self.listener.getsockname()[1]
        return self.port

    def delay(self, seconds: float) -> None:
        """Let everything take some seconds each way from now on."""
        self.seconds = seconds

    def stall(self) -> None:
        """Let nothing arrive any more, without a word."""
        self.stalls = True

    def go_on(self) -> None:
        """Let everything arrive again."""
        self.stalls = False

    def cut(self) -> None:
        """Cut all connections."""
        for way in list(self.ways.values()):
            self.drop(way, reset=True)

    def go_away(self) -> None:
        """Cut all connections, and take no more."""
        self.cut()
        if self.listener:
            self.listener.close()
        self.listener = None


def run_router(target: Address, delay: float, orders: Connection) -> None:
    """Pass on what comes, until the one who gives orders is gone."""
    router = Router(target, delay, orders)
    with suppress(EOFError):
        while True:
            router.turn()


class SlowNetwork:
    """A network to a server, in a process of its own: whoever connects to `port` reaches the server.

    Its other methods are the orders that a `Router` takes.
    """

    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self.port: int = self.come_back()

    def __getattr__(self, order: str) -> Callable[..., Any]:
        def give(*values: Any) -> Any:
            self._orders.send((order, values))
            return self._orders.recv()

        return give


@contextmanager
def slow_network(target: Address, delay: float = 0.0) -> Iterator[SlowNetwork]:
    """Start a network to a server, and end its process afterwards.

    :param target: host and port of the server, or the path of its socket.
    :param delay: seconds that everything takes each way.
    """
    context = multiprocessing.get_context("spawn")
    orders, theirs = context.Pipe()
    process = context.Process(target=run_router, args=(target, delay, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield SlowNetwork(orders)
    finally:
        orders.close()
        process.join(5)
        process.kill()
        process.join()
