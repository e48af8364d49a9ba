"""Requests as granian gives them, answered on the event loop or in a thread.

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
    """Bounds the bytes of all large bodies that are here at once, and those of one client to half of it.

    Without a bound, a few dozen connections would take all memory there is.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Counter[str] = Counter()

    @contextmanager
    def holding(self, client_id: str) -> Iterator[Callable[[int], None]]:
        """Give what counts more bytes of a body, for as long as it is here. It raises `Busy` when they are too many."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self._held[client_id] += size
            if self._held.total() > self._size or self._held[client_id] > self._size // 2:
                raise Busy("Other large bodies are on their way")

        try:
            yield hold
        finally:
            self._held[client_id] -= held
            self._held += Counter()  # forgets clients that hold nothing


def environ_of(scope: Any) -> dict[str, Any]:
    """Return what the service asks of the WSGI environment of a request, without its body.

    The client's Host is left out: nothing here needs it, and a bad one would be one more thing to refuse. So are
    headers with an underscore, which would be taken for those with a hyphen. But `Findings_User` is a bad
    `Findings-User`: a proxy that takes the one away from its clients may pass on the other.
    """
    environ = {
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string.encode().decode("latin-1"),
    }
    for header in scope.headers.keys():  # noqa: SIM118 - items() leaves out what is no ASCII, and so would lose a key
        if "_" not in header:
            name = header.upper().replace("-", "_")  # with which WSGI has it (PEP 3333)
            name = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
            environ[name] = ",".join(scope.headers.get_all(header))
        elif header == "findings_user":
            environ[USER] = ""
    environ.pop("HTTP_HOST", None)
    return environ


SMALL_BODY = 16 * KIB  # bytes of a body that is parsed on the event loop, and counts in no budget
DRAINED = 256 * 1024 * KIB  # bytes of a refused body that are read and dropped
DRAINING, DRAINING_UNKNOWN = 5.0, 0.2  # seconds for that, with a good key and without


class IncomingBody:
    """The body of a request, on its way from the client; `rest_comes` tells whether any of it still is.

    :param patience: seconds that it may take to arrive.
    """

    def __init__(self, scope: Any, protocol: Any, patience: float) -> None:
        self._length = int(scope.headers.get("content-length", -1))  # -1 where it is not said
        self._patience = patience
        self.rest_comes = self._length > 0 or "transfer-encoding" in scope.headers
        self._waits = "expect" in scope.headers  # for 100 Continue, which a refused request does not get
        self._chunks = aiter(protocol) if self.rest_comes else protocol

    async def drain(self, seconds: float) -> None:
        """Read and drop what is left of the body, for a bounded time, after the response has been sent.

        A proxy that cannot send all of a body responds with 502 instead (nginx and Caddy sometimes do).
        """
        left = 0 if self._waits else DRAINED
        with suppress(Exception):
            async with asyncio.timeout(seconds):
                while left > 0 and (chunk := await anext(self._chunks)):
                    left -= len(chunk)

    async def receive(self, limit: int, hold: Callable[[int], object]) -> Body:
        """Read the body, and stop where it has more bytes than it may.

        :param hold: is told of more bytes. :raises Busy: when it does so.
        """
        body, whole = io.BytesIO(), True  # getvalue() does not copy
        try:
            async with asyncio.timeout(self._patience):
                # To ask for an end that is known costs a turn of the event loop.
                while body.tell() != self._length and (chunk := await anext(self._chunks)):
                    body.write(chunk)
                    if body.tell() > limit:
                        return Body(too_large=True)
                    if not 0 <= self._length <= SMALL_BODY:
                        hold(len(chunk))
        except Busy:
            raise
        except Exception:  # the time was over, the client broke off, or the chunks made no sense
            whole = False
        self.rest_comes = False
        return Body(body.getvalue(), whole)


Result = TypeVar("Result")


OTHERS_WAIT = "The database has not answered others yet"


class Threads:
    """Some threads for what takes long, of which a client has no more than a share at once.

    :param patience: seconds that may go by until one is free; None for ever.
    """

    def __init__(self, name: str, count: int, share: int, patience: float | None = None) -> None:
        self._threads = ThreadPoolExecutor(count, f"findings-{name}")
        self._free = asyncio.Semaphore(count)
        self._share, self._patience = share, patience
        self._shares: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def run(self, request: ApiRequest, work: Callable[[], Result]) -> Result:
        """Return what `work` returns in a thread. :raises Busy: when none was free in time."""
        client = request.principal.client_id or request.environ.get("HTTP_AUTHORIZATION", "")
        share = self._shares.setdefault(client, asyncio.Semaphore(self._share))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._patience):
                    for each in (share, self._free):
                        await held.enter_async_context(each)
            except TimeoutError:
                raise Busy(OTHERS_WAIT) from None
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def stop(self) -> None:
        """End the threads, once what they do is done."""
        self._threads.shutdown()


BODIES_HELD = 2  # times the largest body there may be, of all large ones together
UNTAKEN = 60.0  # seconds after which a client that takes nothing of a document is cut off
UNOPENED = 5.0  # seconds that granian has to take the first piece of it, which needs no client to take any
MOST_HELD = 100  # requests that wait for something to happen; a further one is told at once that nothing did
LOOK_AGAIN = 0.5  # seconds until it is looked again whether it did
SHARE_OF_CLIENT = 0.75  # of the threads for requests, where a database has many connections, that one client may have
# Of glibc (mallopt(3)): how many arenas threads share (M_ARENA_MAX), and the bytes from which on freed memory goes back
# to the system (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). By default each thread keeps the most that it ever needed.
ALLOCATION = ((-8, 2), (-3, 1024 * KIB), (-1, 8192 * KIB))


class RSGIApp:
    """Takes requests from granian and answers them on the event loop's thread, one at a time.

    Bodies are read asynchronously before that, so that a slow client costs nobody anything. What is left to do, the
    commit scheduler and some threads do. Where a database has many connections at once, each request has a thread.
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
        """Have nobody wait any more for something to happen."""
        self._stopping.set()

    def close(self) -> None:
        """Finish what is to be written, once no more requests come."""
        self._scheduler.stop()
        for threads in (self._probing, self._requests, *self._pools.values()):
            if threads is not None:
                threads.stop()

    def _pool_of(self, job: type[ThreadJob]) -> Threads:
        """Return the threads of a class of jobs, of which a client may have one at a time."""
        if job not in self._pools:
            self._pools[job] = Threads(job.__name__, job.threads, 1, job.patience)
        return self._pools[job]

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        with suppress(asyncio.CancelledError):  # at the end of the service, where the client had gone before
            began = time.perf_counter()
            request = ApiRequest(self._service, environ_of(scope), scope.path)
            body = IncomingBody(scope, protocol, self._service.settings.body_timeout)
            try:
                answer = await self._answer(request, body)
                if isinstance(answer, LongPoll):
                    answer = await self._hold(request, answer, protocol)
            except Busy as busy:
                answer = problem_response(busy)
            if scope.method == "HEAD":  # which gets no body (RFC 9110, 9.3.2)
                length = {"Content-Length": str(answer.size)} if answer.size else {}  # of a 304 there is none
                if answer.document:
                    answer.document.close()
                answer = Response(answer.status, {**length, **answer.headers})
            size = await self._send_document(answer, protocol) if answer.document else len(answer.body)
            for listener in self._service.listeners.answered:
                listener(request, answer.status, size, time.perf_counter() - began)
            if scope.method == "HEAD":
                protocol.response_empty(answer.status, [*answer.headers.items()])
            elif answer.document is None:  # granian counts the body itself
                headers = [item for item in answer.headers.items() if item[0] != "Content-Length"]
                if body.rest_comes:
                    headers.append(("Connection", "close"))
                protocol.response_bytes(answer.status, headers, answer.body)
            if body.rest_comes:
                await body.drain(DRAINING_UNKNOWN if request.principal is ANONYMOUS else DRAINING)

    async def _send_document(self, answer: Response, protocol: Any) -> int:
        """Send a document as its client takes it, and return how many bytes went out. Others come between.

        granian reads a file no faster than the client takes it, and so a pipe. What its own streams are given, it
        keeps in memory until then. A client that is cut off sees that the document is shorter than was said.
        """
        loop, size = asyncio.get_running_loop(), 0
        listened, written = os.pipe()
        with suppress(OSError, AttributeError):  # of a user with so many pipes that new ones are small; of macOS
            fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, DOCUMENT_PIECE)  # where pages are large, a pipe holds more
        transport, pipe = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(written, "wb", 0)
        )
        transport.set_write_buffer_limits(0)  # so that what is drained is in the pipe
        writer = asyncio.StreamWriter(transport, pipe, None, loop)
        protocol.response_file(answer.status, [*answer.headers.items()], f"/dev/fd/{listened}")
        try:
            with closing(typing.cast(StreamedBody, answer.document)) as document:
                for piece in document:
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), UNTAKEN if listened < 0 else UNOPENED)
                    if size and listened >= 0:  # granian has opened its end, and taken a piece
                        os.close(listened)
                        listened = -1
                    size += len(piece)
        except (OSError, TimeoutError, asyncio.CancelledError):  # the client has gone, or the service does
            pass
        finally:
            transport.abort()
            if listened >= 0:
                os.close(listened)
        return size

    async def _answer(self, request: ApiRequest, body: IncomingBody) -> Response:
        """Take a request through its steps. What is not soon done goes to a thread, and what writes to who commits."""
        if request.own_path == "/healthz":  # which asks how the database is: that may have to be waited for
            probing = self._probing.run(request, partial(request.respond, lambda _: Body()))
            try:
                return await asyncio.wait_for(probing, HEALTH_TIME)
            except TimeoutError:
                raise Busy(OTHERS_WAIT) from None
        given = await self._take(request, partial(request.begin, None if body.rest_comes else Body()))
        if given is not None:
            return await self._finish(request, given)
        with self._budget.holding(request.client_id) as hold:  # until it is stored, because its tasks are as large
            arrived = await body.receive(request.limit, hold)
            threads = self._pool_of(Check) if len(arrived.text) > SMALL_BODY else None
            return await self._finish(request, await self._take(request, partial(request.judge, arrived), threads))

    async def _take(
        self, request: ApiRequest, step: Callable[[], HandlerResult | None], threads: Threads | None = None
    ) -> Any:
        """Take a request a step on, here or in a thread; or where each request has a thread, to its end there."""

        def to_the_end() -> Response | None:
            given = step()
            return None if given is None else request.finish(given)

        if self._requests:
            return await self._requests.run(request, to_the_end)
        return await threads.run(request, step) if threads else step()

    async def _finish(self, request: ApiRequest, given: HandlerResult) -> Response:
        """Have done what is left to do: what takes long in a thread, what writes by the scheduler."""
        while isinstance(given, ThreadJob):
            given = await self._pool_of(type(given)).run(request, partial(request.attempt, given.work))
        return await self._scheduler.commit(given) if isinstance(given, PendingWrite) else given

    async def _hold(self, request: ApiRequest, answer: Response, protocol: Any) -> Response:
        """Ask again until there is something to tell, the time is over, or the client has gone, or the service goes."""
        if self._held == MOST_HELD:
            return answer
        self._held += 1
        ends = [asyncio.ensure_future(each) for each in (self._stopping.wait(), protocol.client_disconnect())]
        try:
            while isinstance(answer, LongPoll) and not any(each.done() for each in ends):
                if (left := answer.until - time.monotonic()) <= 0:
                    break
                await asyncio.wait(ends, timeout=min(left, LOOK_AGAIN), return_when=asyncio.FIRST_COMPLETED)
                answer = await self._take(request, partial(request.attempt, answer.again))
        finally:
            self._held -= 1
            for each in ends:
                each.cancel()
        return answer
