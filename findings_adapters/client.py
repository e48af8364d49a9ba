"""The service's API for programs in Python: over HTTP, or in this process over a database file.

Over HTTP a request is tried again while the service is away or busy: a POST under an `Idempotency-Key`, so that it is
done once, after growing waits and not before a `Retry-After` (RFC 9110, 10.2.3) of up to half a minute. In this
process the same requests go to the same application, without a server and without a key.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import itertools
import random
import socket
import sqlite3
import ssl
import time
import urllib.request
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Struct
from werkzeug.test import create_environ, run_wsgi_app

import findings_service as heart

__all__ = ["Answer", "Local", "Refused", "Remote", "Service", "Unavailable"]

PATIENCE = 60.0  # seconds in which a request is tried again
FIRST_WAIT = 0.5  # seconds; each one after that is twice as long
LONGEST_WAIT = 30.0
PASSING = (429, 502, 503, 504)
TIMEOUT = 60.0  # seconds without a sign of the service
SLOWEST_UPLOAD = 100 * heart.KIB  # bytes a second, for a body to arrive and to be worked on
LISTED_PROBLEMS = 3
NEVER_BETTER = (ssl.SSLCertVerificationError, http.client.InvalidURL)
JSON = heart.JSON_TYPE

Model = TypeVar("Model")


class Unavailable(Exception):
    """The service cannot be reached or does not answer as one; the message is a line that says so."""


class Refused(Exception):
    """The service answered with an error; the message is a line that says which."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def about(self, what: str) -> Refused:
        """Return the same error, told of what it was that the service refused."""
        return Refused(self.status, self.code, f"{what}: {self}")


class Answer(Struct):
    """What a service answered; the names of the headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Return the body as a model, of whose fields it may have more. :raises Unavailable: when it is none."""
        try:
            return msgspec.json.decode(self.body, type=model)
        except heart.NOT_JSON as error:
            raise Unavailable(f"what answered is no Findings Task Service ({error})") from None


class Remote:
    """A service over HTTP or HTTPS. Redirects are not followed: they would take the key to somebody else.

    :raises heart.ConfigurationError: for a URL or key that cannot be one.
    """

    def __init__(self, url: str, key: str) -> None:
        try:
            self._url = urlsplit(heart.parse_base_url(url))
            self._port = self._url.port
        except ValueError as error:
            raise heart.ConfigurationError(f"the service's URL: {error}") from None
        if self._url.username is not None:
            raise heart.ConfigurationError(
                "the service's URL has a user name in it; a key is all that the service asks"
            )
        if not key.isascii() or not key.isprintable():
            raise heart.ConfigurationError("the key has letters, digits and signs of ASCII only")
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": f"findings-service/{heart.__version__}"}
        self.where, self.patience = self._url.geturl(), PATIENCE

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Return the answer to a request, tried again while the reason against one may pass.

        :raises Unavailable: when none came for so long.
        """
        once = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}
        headers = {**self._headers, **once, **headers}
        deadline = time.monotonic() + self.patience
        for turn in itertools.count():
            answer, cause = None, None
            try:
                answer = self._exchange(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                cause = error
            if answer is not None and answer.status not in PASSING:
                return answer
            wait = wait_before_next(turn, answer)
            if isinstance(cause, NEVER_BETTER) or time.monotonic() + wait > deadline:
                break
            time.sleep(wait)
        if answer is not None:
            return answer
        raise Unavailable(f"no answer from {self.where}: {reason_of(cause)}") from cause

    def close(self) -> None:
        """Nothing is held from one request to the next."""

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        timeout = TIMEOUT + len(body or b"") / SLOWEST_UPLOAD
        prefixed = path.startswith(f"{self._url.path}{heart.API}")  # links may have the prefix already
        target = path if prefixed else f"{self._url.path}{path}"
        proxy = proxy_for(self._url)
        if proxy and self._url.scheme == "http":
            target = f"http://{self._url.netloc}{target}"
            headers = {**headers, **credentials_of(proxy)}
        with closing(self._connection(proxy, timeout)) as connection:
            try:
                connection.request(method, target, body, headers)
            except (BrokenPipeError, ConnectionResetError):  # what refuses a body may answer before it has all of it
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            heads = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, heads, response.read())

    def _connection(self, proxy: SplitResult | None, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        if proxy is None:
            return kind(self._url.hostname or "", self._port, timeout=timeout)
        connection = kind(proxy.hostname or "", proxy.port or 80, timeout=timeout)
        if self._url.scheme == "https":
            connection.set_tunnel(self._url.hostname or "", self._port, headers=credentials_of(proxy))
        return connection


def proxy_for(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a URL, None for none."""
    if urllib.request.proxy_bypass(url.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(url.scheme)
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None


def credentials_of(proxy: SplitResult) -> dict[str, str]:
    """Return the header by which a proxy knows us, if it wants one."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def reason_of(error: BaseException | None) -> str:
    """Return why a connection failed, in words."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, (socket.gaierror, ConnectionError)) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def wait_before_next(turn: int, answer: Answer | None) -> float:
    """Return for how many seconds to leave a service alone: longer each time, and not the same for every client."""
    asked = retry_after(answer.headers.get("retry-after", "")) if answer else 0.0
    return max(min(FIRST_WAIT * 2.0**turn, LONGEST_WAIT) * random.uniform(0.5, 1), asked)  # noqa: S311


def retry_after(text: str) -> float:
    """Return for how many seconds a service asks to be left alone; it gives a number, or a date."""
    if text.isdecimal():
        seconds = float(text[:9])
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT)


class Local:
    """The service in this process over a database file, as client "default" and with every right.

    :raises heart.ConfigurationError: for a setting that makes no sense.
    :raises heart.DatabaseUnusable: when the file cannot be opened; without `new`, when there is none.
    """

    def __init__(self, db: str, *, new: bool = False) -> None:
        if not new and not Path(db).exists():
            raise heart.DatabaseUnusable(f"there is no file {db}")
        self._app = heart.create_app(db=db, base_url="", api_key="", log="")
        self._database: heart.Database = self._app.extensions["findings"].database
        try:
            with self._database.transaction() as connection:
                heart.insert_client(connection, "default")
        except sqlite3.Error as error:
            raise heart.unusable(db, error) from None
        # A signal that ends a command interrupts who waits for an answer, never a transaction with its locks.
        self._worker = ThreadPoolExecutor(1)
        self._given = {heart.PRINCIPAL: heart.Principal("local", "default", "scan", "full")}
        self.where, self.patience = db, 0.0

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Return the answer to a request."""
        return self._worker.submit(self._perform, method, path, body, headers).result()

    def close(self) -> None:
        """Let go of the file, when what is under way has ended."""
        self._worker.shutdown()
        self._database.close()

    def _perform(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        environ = create_environ(path, method=method, data=body, headers=headers, environ_overrides=self._given)
        pieces, status, answered = run_wsgi_app(self._app, environ)
        heads = {name.lower(): value for name, value in answered.items()}
        return Answer(int(status.split()[0]), heads, b"".join(pieces))


class Service:
    """The API of a service, wherever that is."""

    def __init__(self, transport: Remote | Local) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._transport.close()

    def request(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, accept: str = JSON, same: str = ""
    ) -> Answer:
        """Return the answer to a request that the service grants.

        :param path: below /api/v1, or a link of an answer's. :param body: bytes of that kind, or what JSON can tell.
        :param same: an Idempotency-Key, to ask again for what was asked for under it.
        :raises Refused: when the answer is an error. :raises Unavailable: when there is none.
        """
        headers = {"Accept": accept}
        if body is not None:
            body = body if isinstance(body, bytes) else msgspec.json.encode(body)
            headers["Content-Type"] = kind
        if same:
            headers["Idempotency-Key"] = same
        answer = self._transport.send(method, path if path.startswith("/") else f"{heart.API}/{path}", body, headers)
        if 200 <= answer.status < 300:
            return answer
        raise refusal_of(answer, self._transport.where)

    def hurry(self, seconds: float) -> None:
        """Try what comes from now on again for so long at most."""
        self._transport.patience = min(self._transport.patience, seconds)


class ToldProblem(Struct):
    """One thing that is wrong with a request; what is wrong with a parameter, the error's detail tells."""

    detail: str = ""
    pointer: str = ""


class ToldError(Struct):
    """What is read of an error."""

    code: str = ""
    detail: str = ""
    errors: list[ToldProblem] = msgspec.field(default_factory=list)


def refusal_of(answer: Answer, where: str) -> Refused:
    """Return what the service that is there refused a request with."""
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "another place")
        return Refused(answer.status, "", f"{where} redirects to {place}; say the service's own URL")
    try:
        told = msgspec.json.decode(answer.body, type=ToldError)
    except heart.NOT_JSON:
        told = ToldError()
    if not told.detail:
        words = f"{answer.status} {http.client.responses.get(answer.status, '')}".strip()
        return Refused(answer.status, "", f"{where} answers {words}, and not as a Findings Task Service does")
    problems = [f"{each.pointer} {each.detail}" for each in told.errors if each.pointer]
    listed = "; ".join(problems[:LISTED_PROBLEMS]) + (" …" if len(problems) > LISTED_PROBLEMS else "")
    return Refused(answer.status, told.code, f"{told.detail} {listed}".strip())
