"""A process that serves, or several on one port: signals, the access log, and the end."""

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
    accompanied,
    exposure_warning,
    load_module,
    log,
    start_service,
    timestamp,
)

Greeting = Callable[[], object]  # what says that the service answers
WAITING_LINES = 10_000  # of the access log
LAST_LINES = 1.0  # seconds that there are to write them at the end


class LineWriter(logging.Handler):
    """Writes lines to standard error in a thread of its own: who puts them there waits for nobody who reads them.

    Lines for which there is no room any more are dropped, and counted in one.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None is the end
        self._dropped = 0
        self._thread = commits.needed_thread(self._work, "findings-log")
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have what the service says of itself written, too."""
        self.put(self.format(record))

    def put(self, line: str) -> None:
        """Have a line written."""
        if self._lines.qsize() < WAITING_LINES:
            self._lines.put(line)
        else:
            self._dropped += 1

    def finish(self) -> None:
        """Wait until all is written, for a moment."""
        self._lines.put(None)
        self._thread.join(LAST_LINES)

    def _work(self) -> None:
        for line in iter(self._lines.get, None):
            streams.write_unlocked(line)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                streams.write_unlocked(f"{dropped} lines of the access log were dropped: nobody read them in time")


def as_json(text: str) -> str:
    """Return a message as a line of the log in JSON. A line of the access log already is one."""
    if text.startswith('{"time":'):
        return text
    return json.dumps({"time": timestamp(), "message": text.strip()}, separators=(",", ":"))


class JSONLines(logging.Formatter):
    """Formats what no handler takes, such as messages of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        return as_json(super().format(record))


def announce(host: str, port: int, greeting: Greeting, ended: threading.Event) -> None:
    """Say that the service runs, as soon as it answers; where that cannot be yet, it is tried again."""
    while not ended.wait(0.01):
        with suppress(OSError, HTTPException, DatabaseUnusable, *ENGINE_ERRORS):
            with closing(HTTPConnection(host, port, timeout=1.0)) as asking:
                asking.request("GET", "/healthz")
                status = asking.getresponse().status
            if status == 200:
                greeting()
                return


MOST_CONNECTIONS = 2048  # at granian's defaults, 300 half-open connections stall it
OWN_FILES = 60  # that the process itself has open, its documents and their pipes among them


def most_connections() -> int:
    """Return how many connections to take at once; further ones wait with the system.

    Accepting more than there may be open files for would fail at once, again and again, and take a whole core.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # granian raises the soft limit to the hard one
    return MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, allowed - OWN_FILES))


def pipe_of_signals() -> tuple[int, int]:
    """Return both ends of a pipe that says something on the signals that end a service.

    The loop's own is full when others have much to wake it for, and taking its handlers away leaves a signal to its
    default for a moment, in which a second one would kill. A handler in Python would not run until a waiting call
    returns, if the signal came just before that call.
    """
    listened, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for name in STOPPING:
        signal.signal(name, lambda *_: None)
    return listened, written


SENDING = 60_000  # milliseconds after which a connection is closed whose client takes nothing of a response


async def limit_sending(port: int) -> None:
    """Set TCP_USER_TIMEOUT (tcp(7), RFC 5482) on the listening socket of this process, as soon as it is there.

    Connections inherit it. granian gives access to neither, and has no time limit of its own for sending.
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


LEAVING = 60.0  # seconds that clients have to take their answers once the service is to stop
HEADER_TIMEOUT = 5  # seconds
READ_AHEAD = 128 * KIB  # bytes of a connection that wait to be taken, and of the longest head there may be


async def serve_until_stopped(
    app: Any, host: str, port: int, greeting: Greeting | None, *parent: int, interface: str = "rsgi"
) -> None:
    """Serve until one of the signals that end it, and finish what is under way, but for answers that nobody takes.

    :param app: a `RSGIApp`, or what has its `leave` and `close` and speaks another interface of granian's.
    :param greeting: what says that the service answers, once it does.
    :param parent: a pipe, if a process of this service started this one: readable once that is asked to stop, or ends.
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
        http=HTTPModes.http1,  # an idle HTTP/2 connection would keep the server from stopping for ever
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
    if greeting is not None:  # in a thread of its own: to write to a full pipe is to wait
        saying = (reachable(host), port, greeting, ended)
        threading.Thread(target=announce, args=saying, name="findings-greeting", daemon=True).start()
    with suppress(asyncio.CancelledError):
        await serving
    limiting.cancel()
    for name in STOPPING:  # no further one is to end what is ending
        signal.signal(name, signal.SIG_IGN)
    app.close()
    ended.set()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, asyncio's elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_worker(service: Service, host: str, port: int, greeting: Greeting | None, *parent: int) -> None:
    """Serve with this process."""
    service.database.run_maintenance()  # with which what is there now is open, before something else may take its place
    sys.setswitchinterval(0.001)  # so that what writes or checks holds up what reads for less
    gc.collect()
    gc.freeze()  # what the modules made stays; a batch makes objects by the ten thousand, and none in circles
    gc.set_threshold(10_000, 10, 10)
    lines = LineWriter()
    service.listeners.write_line = lines.put
    log.addHandler(lines)
    with accompanied(service), asyncio.Runner(loop_factory=new_event_loop) as runner:
        app = rsgi.RSGIApp(service)
        runner.run(serve_until_stopped(app, host, port, greeting, *parent))
    log.removeHandler(lines)
    lines.finish()


def ask_to_stop(written: int) -> None:
    """Make the pipe readable that all workers watch; a full one is readable already."""
    with suppress(BlockingIOError):
        os.write(written, b"\0")


def run_workers(service: Service, host: str, port: int, greeting: Greeting, count: int) -> None:
    """Serve with several processes on one port, which this one begins and waits for.

    :raises ChildProcessError: when one of them died by itself; then all stop.
    """
    listened, written = pipe_of_signals()  # all workers watch it; it ends with this process, however that ends

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
        finally:  # what the first process does in the end is not to be done twice
            os._exit(status)

    begun, failed = set[int](), False
    gc.freeze()  # or the first collection in each process would write to, and so copy, all that they share
    try:
        for number in range(count):
            if (worker := os.fork()) == 0:
                work(number)
            begun.add(worker)
    except OSError:
        ask_to_stop(written)
        raise
    finally:
        while begun:
            ended, status = os.wait()  # of any child: the first process of a container has others
            if ended in begun:
                begun.remove(ended)
                failed = failed or bool(status)
                ask_to_stop(written)
        service.database.run_maintenance()  # two that close a file at the same instant both leave its log there
    if failed:
        raise ChildProcessError("a worker died, and so all were stopped")


def leave() -> NoReturn:
    """End the process without taking the interpreter apart.

    A thread of granian's may want its lock even then, and would have the process aborted
    (https://github.com/PyO3/pyo3/issues/4874); a further signal would kill it. What was registered with `atexit` is
    called, for which Python has no public function.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


# Where several workers count: prometheus-client looks for it when it is loaded.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def serve(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until one of the signals that end a service, and end the process.

    :raises ConfigurationError: for a setting of a module that is not installed.
    :raises ChildProcessError: when one of several workers died by itself.
    """
    if settings.keep and (missing := load_module("findings_features.deletion")):
        raise ConfigurationError(f"FINDINGS_KEEP needs {missing}")
    host = listening_address(host)
    if settings.log == "json" and logging.lastResort:
        streams.log_form = as_json
        logging.lastResort.setFormatter(JSONLines())
    os.environ.pop(METRICS_FOLDER, None)  # which another start had
    with ExitStack() as held:
        if settings.metrics and workers > 1:  # a new one, because figures begin at zero with each start
            folder = tempfile.TemporaryDirectory(prefix="findings-metrics-", ignore_cleanup_errors=True)
            os.environ[METRICS_FOLDER] = held.enter_context(folder)
        port = free_port(host, port)
        service = start_service(settings)
        greeting = partial(greet, service, exposure_warning(host), url_of(host, port))
        held.enter_context(closing(service.database))  # last of all: who closes last folds the WAL into the file
        if workers == 1:
            run_worker(service, host, port, greeting)
        else:
            run_workers(service, host, port, greeting, workers)
    leave()
