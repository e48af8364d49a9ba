"""The RSGI application, which handles granian's requests on the event loop or in threads.

The interface is RSGI 1.6 (https://github.com/emmett-framework/granian/blob/master/docs/spec/RSGI.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import io
import math
import os
import time
import typing
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from findings_adapters.serving import commits
from findings_features.events import LongPoll
from findings_service import (
    ANONYMOUS,
    DOCUMENT_PIECE,
    HEALTH_TIME,
    KIB,
    REGISTRY,
    USER,
    ApiRequest,
    Body,
    Busy,
    Check,
    HandlerResult,
    PendingWrite,
    Response,
    Service,
    StreamedBody,
    ThreadJob,
    problem_response,
)


class BodyBudget:
    """A limit for the bytes of large bodies in memory, of which a client gets at most half.

    Without a limit, a few dozen connections could use up the memory.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Counter[str] = Counter()

    @contextmanager
    def holding(self, client_id: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that adds bytes to a client's total until the block ends. It raises `Busy` at a limit."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self._held[client_id] += size
            if self._held.total() > self._size or self._held[client_id] > self._size // 2:
                raise Busy("Other large bodies are being received")

        try:
            yield hold
        finally:
            if held:
                self._held[client_id] -= held
                self._held += Counter()  # removes clients that hold nothing


def environ_of(scope: Any) -> dict[str, Any]:
    """Return the parts of a request's WSGI environment that the service uses, without the body.

    `Host` is left out: the service does not use it, so it need not reject a bad one. Headers with an underscore are
    left out: their WSGI names would be those of headers with a hyphen. But `Findings_User` counts as an invalid
    `Findings-User`, because a proxy that removes the latter from its callers' requests may pass on the former.
    """
    environ = {
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string.encode().decode("latin-1"),
    }
    for header in scope.headers.keys():  # noqa: SIM118 - items() omits non-ASCII values, such as those of a malformed key
        if "_" not in header:
            name = header.upper().replace("-", "_")  # as in WSGI (PEP 3333)
            name = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
            environ[name] = ",".join(scope.headers.get_all(header))
        elif header == "findings_user":
            environ[USER] = ""
    environ.pop("HTTP_HOST", None)
    return environ


SMALL_BODY = 16 * KIB  # bytes up to which a body is parsed on the event loop, and not counted in the budget
DRAINED = 256 * 1024 * KIB  # bytes of a rejected body to read and discard
DRAINING, DRAINING_UNKNOWN = 5.0, 0.2  # seconds for that, with a valid key and without


class IncomingBody:
    """The body of a request. `has_more` is whether a part of the body may not have been received yet.

    :param patience: seconds in which the whole body must arrive.
    """

    def __init__(self, scope: Any, protocol: Any, patience: float) -> None:
        self._length = int(scope.headers.get("content-length", -1))  # -1 if unknown
        self._patience = patience
        self.has_more = self._length > 0 or "transfer-encoding" in scope.headers
        self._waits = "expect" in scope.headers  # for 100 Continue, which a rejected request does not get
        self._chunks = aiter(protocol) if self.has_more else protocol

    async def drain(self, seconds: float) -> None:
        """Read and discard the rest of the body after the response, for at most `seconds`.

        Otherwise, a proxy that cannot send the whole body may respond with 502 instead (nginx and Caddy sometimes do).
        """
        left = 0 if self._waits else DRAINED
        with suppress(Exception):
            async with asyncio.timeout(seconds):
                while left > 0 and (chunk := await anext(self._chunks)):
                    left -= len(chunk)

    async def receive(self, limit: int, hold: Callable[[int], object]) -> Body:
        """Read the body, but stop once it exceeds `limit` bytes.

        :param hold: called with the size of each chunk of a large body. :raises Busy: if `hold` raises it.
        """
        body, whole = io.BytesIO(), True  # getvalue() does not copy
        try:
            async with asyncio.timeout(self._patience):
                # Awaiting the end would cost a turn of the event loop; a known length makes it unnecessary.
                while body.tell() != self._length and (chunk := await anext(self._chunks)):
                    body.write(chunk)
                    if body.tell() > limit:
                        return Body(too_large=True)
                    if not 0 <= self._length <= SMALL_BODY:
                        hold(len(chunk))
        except Busy:
            raise
        except Exception:  # a timeout, a disconnected caller or malformed chunks
            whole = False
        self.has_more = False
        return Body(body.getvalue(), whole)


Result = TypeVar("Result")


STILL_WAITING = "Earlier requests are still waiting for the database"


class Threads:
    """A thread pool for slow work, of which one client may use only `share` threads at a time.

    :param patience: seconds to wait for a free thread within the client's share; None for no limit.
    """

    def __init__(self, name: str, count: int, share: int, patience: float | None = None) -> None:
        self._threads = ThreadPoolExecutor(count, f"findings-{name}")
        self._free = asyncio.Semaphore(count)
        self._share, self._patience = share, patience
        self._shares: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def run(self, request: ApiRequest, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread, and return its result. :raises Busy: if no thread is free in time."""
        client = request.principal.client_id or request.environ.get("HTTP_AUTHORIZATION", "")
        share = self._shares.setdefault(client, asyncio.Semaphore(self._share))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._patience):
                    for each in (share, self._free):
                        await stack.enter_async_context(each)
            except TimeoutError:
                raise Busy(STILL_WAITING) from None
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def stop(self) -> None:
        """Wait for the work in progress, and end the threads."""
        self._threads.shutdown()


BODIES_HELD = 2  # budget for all large bodies together, as a multiple of the largest allowed body
SEND_TIMEOUT = 60.0  # seconds after which a caller that reads nothing of a document is disconnected
UNOPENED = 5.0  # seconds for granian to read the first piece of a document, whatever the caller does
MOST_HELD = 100  # long polls at once; a further one gets an empty response at once
POLL_INTERVAL = 0.5  # seconds between two reads for a long poll
SHARE_OF_CLIENT = 0.75  # share of the request threads that one client may use, with an engine of many connections
# Parameters of glibc's mallopt(3): the number of arenas for all threads (M_ARENA_MAX), and the sizes from which freed
# memory returns to the system (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). By default each thread keeps its peak memory.
ALLOCATION = ((-8, 2), (-3, 1024 * KIB), (-1, 8192 * KIB))


class RSGIApp:
    """The RSGI application, which runs the short steps of requests on the event loop.

    Bodies are received asynchronously, so that a slow caller delays no other. The commit scheduler commits writes, and
    thread pools run slow work. With an engine of many connections, each request runs in a thread instead.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        settings, database = service.settings, service.database
        if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
            for parameter in ALLOCATION:
                mallopt(*parameter)
        self._scheduler = commits.CommitScheduler(database, service.listeners)
        self._pools: dict[type[ThreadJob], Threads] = {}
        self._probing, self._requests = Threads("probe", 1, 1), None
        if count := database.threads:
            share = math.ceil(SHARE_OF_CLIENT * count)
            self._requests = Threads("request", count, share, settings.busy_timeout)
        limits = (settings.max_body, *(form.limit(settings) for form in REGISTRY.submission_formats.values()))
        self._stopping = asyncio.Event()
        self._held = 0
        self._budget = BodyBudget(BODIES_HELD * max(limits))
        self._scheduler.start()

    def leave(self) -> None:
        """End all long polls."""
        self._stopping.set()

    def close(self) -> None:
        """Commit the queued writes and end the threads, after the last request."""
        self._scheduler.stop()
        for threads in (self._probing, self._requests, *self._pools.values()):
            if threads is not None:
                threads.stop()

    def _pool_of(self, job: type[ThreadJob]) -> Threads:
        """Return the thread pool of a class of jobs, of which a client may run one at a time."""
        if job not in self._pools:
            self._pools[job] = Threads(job.__name__, job.threads, 1, job.patience)
        return self._pools[job]

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Handle one request and send its response."""
        with suppress(asyncio.CancelledError):  # at shutdown, if the caller has disconnected before
            began = time.perf_counter()
            request = ApiRequest(self._service, environ_of(scope), scope.path)
            body = IncomingBody(scope, protocol, self._service.settings.body_timeout)
            try:
                response = await self._respond(request, body)
                if isinstance(response, LongPoll):
                    response = await self._hold(request, response, protocol)
            except Busy as busy:
                response = problem_response(busy)
            if scope.method == "HEAD":  # its response has no body (RFC 9110, 9.3.2)
                length = {"Content-Length": str(response.size)} if response.size else {}  # a 304 has no length
                if response.document:
                    response.document.close()
                response = Response(response.status, {**length, **response.headers})
            size = await self._send_document(response, protocol) if response.document else len(response.body)
            for listener in self._service.listeners.answered:
                listener(request, response.status, size, time.perf_counter() - began)
            if scope.method == "HEAD":
                protocol.response_empty(response.status, [*response.headers.items()])
            elif response.document is None:  # granian adds the length of the body itself
                headers = [item for item in response.headers.items() if item[0] != "Content-Length"]
                if body.has_more:
                    headers.append(("Connection", "close"))
                protocol.response_bytes(response.status, headers, response.body)
            if body.has_more:
                await body.drain(DRAINING_UNKNOWN if request.principal is ANONYMOUS else DRAINING)

    async def _send_document(self, response: Response, protocol: Any) -> int:
        """Send a document no faster than the caller reads it, and return the number of bytes sent.

        granian reads a file, and so a pipe, only as fast as the caller reads the response. granian's own streams would
        keep the rest in memory. A disconnected caller notices that the document is shorter than announced.
        """
        loop, size = asyncio.get_running_loop(), 0
        listened, written = os.pipe()
        with suppress(OSError, AttributeError):  # OSError: the user's limit of pipe memory; AttributeError: macOS
            fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, DOCUMENT_PIECE)  # the default is larger if pages are large
        transport, pipe = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(written, "wb", 0)
        )
        transport.set_write_buffer_limits(0)  # so that drain() waits until all is in the pipe
        writer = asyncio.StreamWriter(transport, pipe, None, loop)
        protocol.response_file(response.status, [*response.headers.items()], f"/dev/fd/{listened}")
        try:
            with closing(typing.cast(StreamedBody, response.document)) as document:
                for piece in document:
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), SEND_TIMEOUT if listened < 0 else UNOPENED)
                    if size and listened >= 0:  # granian has opened the pipe itself, and read a piece
                        os.close(listened)
                        listened = -1
                    size += len(piece)
        except (OSError, TimeoutError, asyncio.CancelledError):  # the caller has disconnected, or the service stops
            pass
        finally:
            transport.abort()
            if listened >= 0:
                os.close(listened)
        return size

    async def _respond(self, request: ApiRequest, body: IncomingBody) -> Response:
        """Run the steps of a request on the event loop, in threads or in the commit scheduler; return its response."""
        if request.own_path == "/healthz":  # it probes the database, and may have to wait for it
            probing = self._probing.run(request, partial(request.respond, lambda _: Body()))
            try:
                return await asyncio.wait_for(probing, HEALTH_TIME)
            except TimeoutError:
                raise Busy(STILL_WAITING) from None
        result = await self._run_step(request, partial(request.begin, None if body.has_more else Body()))
        if result is not None:
            return await self._finish(request, result)
        with self._budget.holding(request.client_id) as hold:  # until it is stored: its parsed tasks are as large
            received = await body.receive(request.limit, hold)
            threads = self._pool_of(Check) if len(received.text) > SMALL_BODY else None
            return await self._finish(request, await self._run_step(request, partial(request.judge, received), threads))

    async def _run_step(
        self, request: ApiRequest, step: Callable[[], HandlerResult | None], threads: Threads | None = None
    ) -> Any:
        """Run a step here or in `threads`; if each request has a thread, run all remaining steps in it."""

        def to_the_end() -> Response | None:
            result = step()
            return None if result is None else request.finish(result)

        if self._requests:
            return await self._requests.run(request, to_the_end)
        return await threads.run(request, step) if threads else step()

    async def _finish(self, request: ApiRequest, result: HandlerResult) -> Response:
        """Run the thread jobs of a request, commit its write, and return its response."""
        while isinstance(result, ThreadJob):
            result = await self._pool_of(type(result)).run(request, partial(request.attempt, result.work))
        return await self._scheduler.commit(result) if isinstance(result, PendingWrite) else result

    async def _hold(self, request: ApiRequest, response: Response, protocol: Any) -> Response:
        """Repeat a long poll until it has a result or times out, the caller disconnects or the service stops."""
        if self._held == MOST_HELD:
            return response
        self._held += 1
        ends = [asyncio.ensure_future(each) for each in (self._stopping.wait(), protocol.client_disconnect())]
        try:
            while isinstance(response, LongPoll) and not any(each.done() for each in ends):
                if (left := response.until - time.monotonic()) <= 0:
                    break
                await asyncio.wait(ends, timeout=min(left, POLL_INTERVAL), return_when=asyncio.FIRST_COMPLETED)
                response = await self._run_step(request, partial(request.attempt, response.again))
        finally:
            self._held -= 1
            for each in ends:
                each.cancel()
        return response
