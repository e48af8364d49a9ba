"""Server processes, one or several on a port: signals, the access log and the shutdown."""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import logging
import os
import queue
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NoReturn

from findings_adapters.serving import commits, rsgi
from findings_adapters.serving.greeting import free_port, greet, listening_address, reachable, url_of
from findings_features import streams
from findings_service import (
    ENGINE_ERRORS,
    KIB,
    STOPPING,
    ConfigurationError,
    DatabaseUnusable,
    Service,
    Settings,
    exposure_warning,
    load_module,
    log,
    running_companions,
    start_service,
    timestamp,
)

Greeting = Callable[[], object]  # prints that the service is ready
WAITING_LINES = 10_000  # lines of the log that may be queued
LAST_LINES = 1.0  # seconds for writing queued lines at the end


class LineWriter(logging.Handler):
    """A log handler that writes in a thread, so that requests never wait for a full pipe.

    If the queue is full, lines are dropped; a line of the log says how many.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None is the end
        self._dropped = 0
        self._thread = commits.critical_thread(self._work, "findings-log")
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record of the service's own log."""
        self.put(self.format(record))

    def put(self, line: str) -> None:
        """Queue a line, or drop it if the queue is full."""
        if self._lines.qsize() < WAITING_LINES:
            self._lines.put(line)
        else:
            self._dropped += 1

    def finish(self) -> None:
        """End the thread after the queued lines, and wait for it, but at most `LAST_LINES` seconds."""
        self._lines.put(None)
        self._thread.join(LAST_LINES)

    def _work(self) -> None:
        for line in iter(self._lines.get, None):
            streams.write_unlocked(line)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                streams.write_unlocked(f"{dropped} lines of the log were dropped, because standard error was full")


def as_json(text: str) -> str:
    """Return a message as a JSON line. A line of the access log is JSON already."""
    if text.startswith('{"time":'):
        return text
    return json.dumps({"time": timestamp(), "message": text.strip()}, separators=(",", ":"))


class JSONLines(logging.Formatter):
    """A JSON formatter for records without a handler, such as those of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a JSON line."""
        return as_json(super().format(record))


def announce(host: str, port: int, greeting: Greeting, ended: threading.Event) -> None:
    """Call `greeting` as soon as `/healthz` returns 200. If either fails, retry until `ended` is set."""
    while not ended.wait(0.01):
        with suppress(OSError, HTTPException, DatabaseUnusable, *ENGINE_ERRORS):
            with closing(HTTPConnection(host, port, timeout=1.0)) as connection:
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
            if status == 200:
                greeting()
                return


MOST_CONNECTIONS = 2048  # with granian's defaults, 300 half-open connections stall it
OWN_FILES = 60  # files that the process itself opens, including documents and their pipes


def most_connections() -> int:
    """Return how many connections to accept at once. Further ones wait in the kernel's backlog.

    Beyond the limit of open files, accept() would fail again and again, in a loop that uses a whole core.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # granian raises the soft limit to the hard one
    return MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, allowed - OWN_FILES))


def pipe_of_signals() -> tuple[int, int]:
    """Return the read end and write end of a pipe that becomes readable when a signal asks the service to stop.

    The event loop's own wakeup pipe can be full, and removing its handlers restores the default action for a moment, in
    which a second signal would kill the process. A signal that arrives just before a blocking call would not run its
    Python handler until that call returns.
    """
    listened, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for name in STOPPING:
        signal.signal(name, lambda *_: None)
    return listened, written


SENDING = 60_000  # milliseconds without progress in sending a response, after which the connection is closed


async def limit_sending(port: int) -> None:
    """Set TCP_USER_TIMEOUT (tcp(7), RFC 5482) on the listening socket once it exists.

    Connections inherit it. granian gives access to neither socket, and has no timeout of its own for sending.
    """
    found = not hasattr(socket, "TCP_USER_TIMEOUT")
    while not found:
        await asyncio.sleep(0.01)
        # Only sockets: closing a copy of the database's descriptor would release SQLite's locks.
        for file in filter(Path.is_socket, Path("/dev/fd").iterdir()):
            with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as each:
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and each.getsockname()[1] == port:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SENDING)
                    found = True


LEAVING = 60.0  # seconds for requests in progress after the service is asked to stop
HEADER_TIMEOUT = 5  # seconds
READ_AHEAD = 128 * KIB  # bytes buffered for a connection, and so the longest request head


async def serve_until_stopped(
    app: Any, host: str, port: int, greeting: Greeting | None, *parent: int, interface: str = "rsgi"
) -> None:
    """Serve until a signal asks to stop, then finish requests in at most `LEAVING` seconds.

    :param app: a `RSGIApp`, or an app for another of granian's interfaces that has `leave` and `close` as well.
    :param greeting: called once the service is ready.
    :param parent: in a worker, a pipe that becomes readable when the parent process stops or dies.
    """
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server.embed import Server

    server = Server(
        app,
        host,
        port,
        interface=Interfaces(interface),
        http=HTTPModes.http1,  # an idle HTTP/2 connection would keep the server from ever stopping
        websockets=False,
        backlog=MOST_CONNECTIONS,
        backpressure=most_connections(),
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT * 1000, max_buffer_size=READ_AHEAD),
        log_level=LogLevels.error,
    )

    def stop() -> None:
        for pipe in pipes:
            loop.remove_reader(pipe)
        app.leave()
        server.stop()  # type: ignore[no-untyped-call]
        loop.call_later(LEAVING, serving.cancel)

    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve())
    limiting = loop.create_task(limit_sending(port))
    pipes = (pipe_of_signals()[0], *parent)
    for pipe in pipes:
        loop.add_reader(pipe, stop)
    ended = threading.Event()
    if greeting is not None:  # in a thread, because writing to a full pipe blocks
        arguments = (reachable(host), port, greeting, ended)
        threading.Thread(target=announce, args=arguments, name="findings-greeting", daemon=True).start()
    with suppress(asyncio.CancelledError):
        await serving
    limiting.cancel()
    for name in STOPPING:  # a second signal must not interrupt the shutdown
        signal.signal(name, signal.SIG_IGN)
    app.close()
    ended.set()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, of uvloop if it is installed, otherwise of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_worker(service: Service, host: str, port: int, greeting: Greeting | None, *parent: int) -> None:
    """Serve in this process until a signal, or a pipe of the parent process, asks it to stop."""
    service.database.run_maintenance()  # opens the database now, before another file can replace it at its path
    sys.setswitchinterval(0.001)  # so that threads that write or validate delay the event loop less
    gc.collect()
    gc.freeze()  # exempt the modules' objects; a batch creates tens of thousands of objects, but no reference cycles
    gc.set_threshold(10_000, 10, 10)
    lines = LineWriter()
    service.listeners.write_line = lines.put
    log.addHandler(lines)
    with running_companions(service), asyncio.Runner(loop_factory=new_event_loop) as runner:
        app = rsgi.RSGIApp(service)
        runner.run(serve_until_stopped(app, host, port, greeting, *parent))
    log.removeHandler(lines)
    lines.finish()


def ask_to_stop(written: int) -> None:
    """Stop all workers: write to the pipe that they watch. A full pipe is readable already."""
    with suppress(BlockingIOError):
        os.write(written, b"\0")


def run_workers(service: Service, host: str, port: int, greeting: Greeting, count: int) -> None:
    """Start several worker processes on one port, and wait until all have ended. When one ends, the others are stopped.

    :raises ChildProcessError: if one of them failed.
    """
    listened, written = pipe_of_signals()  # workers watch it: it closes when this process ends in any way

    def work(number: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            os.close(written)
            with closing(service.database):
                run_worker(service, host, port, None if number else greeting, listened)
            status = 0
        except Exception as error:
            log.error("a worker failed", exc_info=error)
        finally:  # skip the cleanup that the parent process does
            os._exit(status)

    started, failed = set[int](), False
    gc.freeze()  # otherwise the first collection of each worker would write to, and so copy, all shared pages
    try:
        for number in range(count):
            if (worker := os.fork()) == 0:
                work(number)
            started.add(worker)
    except OSError:
        ask_to_stop(written)
        raise
    finally:
        while started:
            ended, status = os.wait()  # may be another child: process 1 of a container adopts orphans
            if ended in started:
                started.remove(ended)
                failed = failed or bool(status)
                ask_to_stop(written)
        service.database.run_maintenance()  # checkpoints: two workers that close at the same instant both leave the WAL
    if failed:
        raise ChildProcessError("a worker process died, so all were stopped")


def leave() -> NoReturn:
    """Run `atexit` functions, flush streams, and exit without finalizing the interpreter.

    One of granian's threads may need the interpreter's lock during finalization, which would abort the process
    (https://github.com/PyO3/pyo3/issues/4874), and another signal would kill it. Python has no public function that
    runs the `atexit` functions.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


# Environment variable with the folder of several workers' metrics. prometheus-client reads it when it is imported.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def serve(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until a signal asks to stop, then end the process.

    :raises ConfigurationError: if a setting requires a module that is not installed.
    :raises ChildProcessError: if one of several workers failed.
    """
    if settings.keep and (missing := load_module("findings_features.deletion")):
        raise ConfigurationError(f"FINDINGS_KEEP needs {missing}")
    host = listening_address(host)
    if settings.log == "json" and logging.lastResort:
        streams.log_form = as_json
        logging.lastResort.setFormatter(JSONLines())
    os.environ.pop(METRICS_FOLDER, None)  # inherited from another service
    with ExitStack() as stack:
        if settings.metrics and workers > 1:  # a new folder, because metrics begin at zero with each start
            folder = tempfile.TemporaryDirectory(prefix="findings-metrics-", ignore_cleanup_errors=True)
            os.environ[METRICS_FOLDER] = stack.enter_context(folder)
        port = free_port(host, port)
        service = start_service(settings)
        greeting = partial(greet, service, exposure_warning(host), url_of(host, port))
        stack.enter_context(closing(service.database))  # after all workers: the last close checkpoints the WAL
        if workers == 1:
            run_worker(service, host, port, greeting)
        else:
            run_workers(service, host, port, greeting, workers)
    leave()
