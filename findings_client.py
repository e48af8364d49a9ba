"""Python client of the Findings Task Service, over HTTP or, in this process, on a database file.

Over HTTP, a request is retried while the service is unavailable or busy, with backoff; a longer `Retry-After` is
reduced to 30 seconds. POST requests, and PATCH requests with a comment, have an `Idempotency-Key`, so that a retry
stores nothing twice. On a database file, the service's application processes the requests in this process, without an
API key. Only this use imports the service: importing this module alone takes a third of the time.

`Findings` is the client for agents: its runs end as failed if their block raises, and it sends findings in batches.
`fingerprint` returns a stable externalId, by which the service recognizes a finding that is reported again.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import posixpath
import re
import signal
import threading
import time
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, NoReturn, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_args
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
from msgspec import Struct
from urllib3 import HTTPHeaderDict, PoolManager, ProxyManager, Retry, make_headers
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

API = "/api/v1"
JSON = "application/json"
KIB = 1024
RETRIED_STATUSES = (429, 502, 503, 504)
LISTED_PROBLEMS = 3
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Severity = Literal["critical", "high", "medium", "low", "info"]
Status = Literal["open", "in_progress", "resolved", "dismissed"]
Reason = Literal["fixed", "false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate"]
Outcome = Literal["fixed", "still_present", "inconclusive"]
Verified = Literal[Outcome, "none"]

Json = dict[str, Any]
Object: TypeAlias = Mapping[str, Any]  # a JSON object that is only read
Headers: TypeAlias = Mapping[str, str]
Several: TypeAlias = str | Sequence[str] | None  # a filter's value, or several values of which any may match
Links: TypeAlias = Sequence[Object] | None  # each with `rel` and `url`
FileName: TypeAlias = str | os.PathLike[str]
Model = TypeVar("Model")


class ConfigurationError(Exception):
    """Error for a URL, API key or file that cannot be used; the message is one line with the reason."""


class Unavailable(Exception):
    """Error for an unreachable service, or a response from another program; the message is one line."""


class Problem(Struct):
    """One problem of a request: in the body at the JSON Pointer `pointer`, or in the query or header `parameter`."""

    detail: str = ""
    pointer: str = ""
    parameter: str = ""


class Refused(Exception):
    """Error for a response whose status is not 2xx; the message is one line: its detail and its first problems.

    `detail` is the service's own sentence, without the problems. `problems` has all problems that the response lists.
    """

    def __init__(
        self, status: int, code: str, message: str, problems: Sequence[Problem] = (), detail: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.problems, self.detail = status, code, problems, detail or message


class Item(dict[str, Any]):
    """A JSON object of the API, whose members are also attributes: `task.external_id` is `task["externalId"]`.

    A member whose name is a Python keyword takes a trailing underscore: `gate.pass_`, `entry.from_`.
    """

    def __getattr__(self, name: str) -> Any:
        for member in (name, to_camel_case(name.removesuffix("_"))):
            if member in self:
                return self[member]
        raise AttributeError(f"the service returned an object without {name!r}; its members: {', '.join(self)}")


class Reply(Struct):
    """An HTTP response of the service."""

    status: int
    headers: Headers
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Decode the body into a model. Members that the model does not have are ignored.

        :raises Unavailable: if the body is not valid for the model.
        """
        try:
            return msgspec.json.decode(self.body, type=model)
        except NOT_JSON as error:
            raise foreign_response(error) from None

    def item(self) -> Item:
        """Return the body as an Item. :raises Unavailable: if it is not a JSON object."""
        try:
            found = json.loads(self.body, object_hook=Item)
        except (ValueError, RecursionError) as error:
            raise foreign_response(error) from None
        if not isinstance(found, Item):
            raise foreign_response("not a JSON object")
        return found


def foreign_response(reason: object) -> Unavailable:
    """Return the error for a response that another program than the service sent."""
    return Unavailable(f"the response is not from a Findings Task Service ({reason})")


class DeadlineRetry(Retry):
    """urllib3 retry policy that also ends at the time `until` of `time.monotonic`."""

    def __init__(self, *, until: float, **how: Any) -> None:
        super().__init__(**how)
        self.until = until

    def new(self, **changed: Any) -> Self:
        """Return a copy with changed values and the same deadline; urllib3 calls this after each try."""
        return super().new(until=self.until, **changed)

    def is_exhausted(self) -> bool:
        """Return whether no retry is left, or the next one would start after the deadline."""
        return super().is_exhausted() or time.monotonic() + self.get_backoff_time() > self.until


PATIENCE = 60.0  # seconds during which a request is retried
FIRST_WAIT = 0.5  # seconds; the second try is immediate, and each wait after it is twice as long
LONGEST_WAIT = 10.0  # seconds
MAX_RETRY_AFTER = 30.0  # seconds; a longer Retry-After is reduced to this
TIMEOUT = 60.0  # seconds without data from the service
SLOWEST_UPLOAD = 100 * KIB  # bytes per second for sending and processing a body; extends the timeout
TIME_LIMIT: ContextVar[float] = ContextVar("time_limit", default=math.inf)  # seconds for a request, set by `limit_time`


class Remote:
    """Transport to a service over HTTP or HTTPS. It follows no redirects, which would send the API key elsewhere.

    :param first_tries: connection retries until the first response. After it, or if None, only `patience` limits them.
    :param headers: headers of every request, in addition to the API key.
    :raises ConfigurationError: if the URL, the key or the environment's proxy is not valid.
    """

    def __init__(self, url: str, key: str, *, first_tries: int | None = None, headers: Mapping[str, str] = {}) -> None:
        try:
            parts = urlsplit(url.rstrip("/").removesuffix(API).rstrip("/"))
            if parts.scheme not in ("http", "https") or not parts.hostname or set(url) & set(" ?#"):
                raise ValueError(f"{url!r} is not a URL such as https://tools.example/findings, without ? and #")
            parts = parts._replace(path=quote(parts.path, "/%"))
            if parts.username is not None:
                raise ValueError("must not contain a user name; the service requires only an API key")
            self._base = parts._replace(netloc=parts.netloc.encode("idna").decode())
            parse_url(self._base.geturl())  # raises if the port is not valid
            self._pool = pool_for(self._base.scheme, self._base.hostname or "")
        except ValueError as error:
            raise ConfigurationError(f"the service's URL: {error}") from None
        if not key.isascii() or not key.isprintable():
            raise ConfigurationError("the API key must contain only printable ASCII characters")
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": "findings-client"}
        self._headers |= headers
        self.where, self.patience = parts.geturl(), PATIENCE
        self._first_tries = first_tries

    def send(self, method: str, path: str, body: bytes | None, headers: Headers) -> Reply:
        """Send a request and return the response, after retries while the failure may be temporary.

        :raises Unavailable: if no try got a response.
        """
        needs_key = method == "POST" or (method == "PATCH" and b'"comment"' in (body or b""))
        once = {"Idempotency-Key": str(uuid.uuid4())} if needs_key else {}
        prefixed = path.startswith(f"{self._base.path}{API}")  # a link of the service may include the prefix
        time_limit = TIME_LIMIT.get()
        patience = min(self.patience, time_limit)
        tries = DeadlineRetry(
            until=time.monotonic() + patience,
            total=None,
            connect=self._first_tries,
            other=0,  # other errors, such as an invalid certificate, are not temporary
            allowed_methods=None,
            status_forcelist=RETRIED_STATUSES,
            raise_on_status=False,
            backoff_factor=FIRST_WAIT,
            backoff_jitter=FIRST_WAIT,
            backoff_max=LONGEST_WAIT,
            retry_after_max=min(MAX_RETRY_AFTER, patience),
        )
        try:
            response = self._pool.request(
                method,
                self._base._replace(path="" if prefixed else self._base.path).geturl() + path,
                body=body,
                headers={**self._headers, **once, **headers},
                retries=tries,
                timeout=min(TIMEOUT, max(time_limit, 1.0)) + len(body or b"") / SLOWEST_UPLOAD,
                redirect=False,
            )
        except HTTPError as error:
            reason = getattr(error, "reason", error)
            cause = reason.__cause__ or reason
            raise Unavailable(f"no response from {self.where}: {getattr(cause, 'strerror', '') or cause}") from None
        self._first_tries = None
        return Reply(response.status, response.headers, response.data)

    def close(self) -> None:
        """Close the connections to the service."""
        self._pool.clear()


def pool_for(scheme: str, host: str) -> PoolManager:
    """Return the connection pool for a host, through the proxy that the environment sets for it, if any.

    :raises ValueError: if the proxy's URL has an unsupported scheme.
    """
    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    if not proxy:
        return PoolManager(maxsize=4)  # kept connections; runs and claims send from threads of their own
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    credentials = unquote(parse_url(proxy).auth or "")
    return ProxyManager(proxy, maxsize=4, proxy_headers=make_headers(proxy_basic_auth=credentials or None))


class Local:
    """Transport to the service in this process. Its requests belong to client "default", with key level full.

    :param db: a database file, or a postgresql:// URL. :param by: the name that history entries show.
    :param new: whether to create a missing database or migrate an old one; if false, either is a ConfigurationError.
    :raises ConfigurationError: if a setting is not valid. :raises findings_service.DatabaseUnusable: if opening fails.
    """

    def __init__(self, db: str, *, new: bool = False, by: str = "scan") -> None:
        import findings_service as core

        try:
            settings = core.Settings.read(db=db, base_url="", api_key="", log="", metrics=False)
            if not new and (absence := core.database_for(settings).absence()):
                raise ConfigurationError(absence)
            self._service = core.start_service(settings)
        except core.ConfigurationError as error:
            raise ConfigurationError(str(error)) from None
        # A signal handler raises in the main thread, which only waits for the response: no transaction is interrupted.
        self._worker = ThreadPoolExecutor(1)
        self._principal = core.Principal("local", "default", by, "full")
        self.where = self._service.database.name

    def send(self, *request: Any) -> Reply:
        """Process a request in the worker thread and return the response; the parameters are those of `Remote.send`."""
        return self._worker.submit(self._perform, *request).result()

    def close(self) -> None:
        """Wait for the request in progress, then close the database."""
        self._worker.shutdown()
        self._service.database.close()

    def _perform(self, method: str, path: str, body: bytes | None, headers: Headers) -> Reply:
        from werkzeug.test import create_environ

        import findings_service as core

        environ = create_environ(path, method=method, data=body, headers=headers)
        request = core.ApiRequest(self._service, environ, core.path_of(environ), self._principal)
        response = core.respond_in_thread(request, lambda _: core.Body(body or b""))
        with core.to_flask_response(response) as flask_response:
            return Reply(response.status, HTTPHeaderDict(response.headers.items()), flask_response.get_data())


LISTED = 200  # items per page


class TaskFilters(TypedDict, total=False):
    """Filters and sort order of the task list, with the API's meaning, in snake case."""

    status: Status | Sequence[Status] | None
    severity: Severity | Sequence[Severity] | None
    run_id: Several
    project_type: Several
    target_url: str | None
    main_line: bool | None
    branch: Several
    external_id: str | None
    rule: Several
    location: str | None
    tag: Several
    without: Literal["rule", "location", "tag"] | None
    new_in: str | None
    missing_from: str | None
    assignee: str | None
    assigned: bool | None
    claimed: bool | None
    proposed: bool | None
    verified: Verified | Sequence[Verified] | None
    created_since: str | None
    created_before: str | None
    q: str | None
    sort: Literal["-createdAt", "createdAt", "severity"]


class ClaimFilters(TypedDict, total=False):
    """Filters of a claim, with the API's meaning, in snake case."""

    project_type: str | None
    target_url: str | None
    branch: str | None
    severity: Sequence[Severity] | None
    rule: str | None
    tag: str | None
    location: str | None
    ids: Sequence[str] | None


class BriefQuery(TypedDict, total=False):
    """Parameters of the brief, except the project type."""

    target_url: str | None
    branch: str | None
    location: str | None
    limit: int


class NextLink(Struct):
    """The link of a list page to the next page, None on the last page."""

    next: str | None


class Client:
    """API client on a transport: `Remote` for HTTP, `Local` for a database file."""

    def __init__(self, transport: Remote | Local) -> None:
        self._transport = transport
        self.where = transport.where  # the URL, or the path of the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def request(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, accept: str = JSON, request_key: str = ""
    ) -> Reply:
        """Send a request and return its response, which has a 2xx status.

        :param path: a path below /api/v1, or a link from a response. :param kind: the Content-Type of the body.
        :param body: bytes of that type, a value to encode as JSON, or None. :param request_key: an Idempotency-Key.
        :raises Refused: if the status is not 2xx. :raises Unavailable: if there is no response.
        :raises ValueError: if the body cannot be encoded as JSON.
        """
        headers = {"Accept": accept}
        if body is not None:
            body = body if isinstance(body, bytes) else encode_json(body)
            headers["Content-Type"] = kind
        if request_key:
            headers["Idempotency-Key"] = request_key
        response = self._transport.send(method, path if path.startswith("/") else f"{API}/{path}", body, headers)
        if 200 <= response.status < 300:
            return response
        raise refusal_of(response, self.where)

    def get(self, path: str, **query: Any) -> Reply:
        """Send a GET request and return its response; `query` has parameters with Python's names (`fail_on`)."""
        return self.request("GET", f"{path}?{query_of(**query)}" if query else path)

    def walk(self, path: str, **filters: Any) -> Iterator[Reply]:
        """Yield the response for each page of a list with these filters, following the `next` links."""
        link: str | None = f"{path}?{query_of(**filters, limit=LISTED)}"
        while link:
            page = self.get(link)
            yield page
            link = page.read(NextLink).next

    def tasks(self, **filters: Unpack[TaskFilters]) -> Iterator[Item]:
        """Yield all tasks that match every filter, page by page; a filter with a sequence matches any of its values."""
        for page in self.walk("tasks", **filters):
            yield from page.item().tasks


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Limit the retries and the response time of every HTTP request in the block to a number of seconds."""
    before = TIME_LIMIT.set(seconds)
    try:
        yield
    finally:
        TIME_LIMIT.reset(before)


def encode_json(value: Any, what: str = "the request body") -> bytes:
    """Encode a value, named `what` in errors, as JSON. :raises ValueError: for NaN, a lone surrogate or other types."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=built_in)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} cannot be encoded as JSON: {error}") from error


def built_in(value: Any) -> Any:
    """Convert a Struct, date or the like to JSON's types. :raises TypeError: for bytes and for unsupported types."""
    if isinstance(value, bytes):
        raise TypeError("bytes must be decoded to str first")
    return msgspec.to_builtins(value)


def join_first(texts: Sequence[str], most: int, between: str) -> str:
    """Join the first `most` texts with `between`; append " …" if there are more texts."""
    return between.join(texts[:most]) + (" …" if len(texts) > most else "")


class ProblemDetails(Struct):
    """The members that the client reads of an error response (RFC 9457)."""

    code: str = ""
    detail: str = ""
    errors: list[Problem] = []


def refusal_of(response: Reply, where: str) -> Refused:
    """Convert an error or redirect response of the service at `where` into a `Refused` error."""
    if 300 <= response.status < 400:
        place = response.headers.get("location", "another URL")
        return Refused(response.status, "", f"{where} redirects to {place}; use the service's own URL")
    try:
        details: ProblemDetails = msgspec.json.decode(response.body, type=ProblemDetails)
    except NOT_JSON:
        details = ProblemDetails()
    if not details.detail:
        words = f"{response.status} {http.client.responses.get(response.status, '')}".strip()
        return Refused(response.status, "", f"{where} returned {words}, not in the error format of the service")
    problems = [f"{each.pointer} {each.detail}".strip() for each in details.errors if not each.parameter]
    message = f"{details.detail} {join_first(problems, LISTED_PROBLEMS, '; ')}".strip()
    return Refused(response.status, details.code, message, details.errors, details.detail)


# ---------------------------------------------------------------------------
# Signals
# ---------------------------------------------------------------------------


STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]


class Stopped(SystemExit):
    """Exit caused by a signal; if it is not caught, the exit code is 1 and the message names the signal."""


def stop(number: int, _: object) -> NoReturn:
    """Raise `Stopped`, so that open runs end as failed, and ignore all further stop signals."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(f"stopped by {signal.Signals(number).name}")


def stoppable() -> AbstractContextManager[None]:
    """Return a context manager in which SIGTERM, SIGINT and SIGHUP raise `Stopped`, except signals ignored before.

    For the main thread only: Python allows no other thread to set signal handlers.
    """
    return handled_by(stop)


@contextmanager
def handled_by(handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Replace the stop signals' handlers in the block, except of signals that are ignored or handled outside Python."""
    known = {each: signal.getsignal(each) for each in STOPPING}
    handled = [each for each in known if known[each] not in (signal.SIG_IGN, None)]
    try:
        for each in handled:
            signal.signal(each, handler)
        yield
    finally:
        for each in handled:
            signal.signal(each, known[each])


def signals_ignored() -> AbstractContextManager[None]:
    """Return a context manager that ignores stop signals in its block; outside the main thread, it does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    return handled_by(signal.SIG_IGN) if is_main else nullcontext()


# ---------------------------------------------------------------------------
# Identity of a finding
# ---------------------------------------------------------------------------

READABLE = 64  # characters of a rule in an externalId
NOT_READABLE = re.compile(r"[^A-Za-z0-9._]+")


def normalized_text(text: str) -> str:
    """Return text in Unicode form NFC, stripped, with each sequence of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def normalized_path(path: str) -> str:
    """Return a path with `/` as separator, without `.`, and with each `..` resolved if possible."""
    plain = posixpath.normpath(unicodedata.normalize("NFC", path).replace("\\", "/"))
    return "" if plain == "." else re.sub("^//", "/", plain)


def fingerprint(rule: str, path: FileName = "", snippet: str = "", *, occurrence: int = 1, root: FileName = "") -> str:
    """Return a stable externalId, computed from a finding's rule, path and offending text.

    Moved lines, different indentation, a reworded message, another severity or another machine do not change it.

    :param rule: the rule's id, or an agent's own name for the class of problem.
    :param path: the name of the location: a file, or a page, a function, a CSS selector.
    :param snippet: the offending text, without line numbers.
    :param occurrence: the number among findings with the same rule, path and snippet, from 1; below 1 is a ValueError.
    :param root: the top folder of the checkout; paths below it are made relative to it.
    :returns: the rule, shortened, and a hash: at most 97 ASCII characters, plus the occurrence if it is above 1.
    """
    if occurrence < 1:
        raise ValueError(f"occurrence must be at least 1, not {occurrence}")
    place, top = normalized_path(os.fspath(path)), normalized_path(os.fspath(root)).rstrip("/")
    place = f"{place}/".removeprefix(f"{top}/").removesuffix("/") if top else place
    hashed = json.dumps((normalized_text(rule), place, normalized_text(snippet)))  # unambiguous, unlike joined texts
    name = NOT_READABLE.sub("-", normalized_text(rule)).strip("-")[:READABLE]
    return numbered("-".join(filter(None, (name, hashlib.sha256(hashed.encode()).hexdigest()[:32]))), occurrence)


def numbered(identity: str, occurrence: int) -> str:
    """Return the externalId of an occurrence of an identity; occurrences after the first get their number appended."""
    return identity if occurrence == 1 else f"{identity}-{occurrence}"


# ---------------------------------------------------------------------------
# Runs and their findings
# ---------------------------------------------------------------------------

BATCH = 200  # findings per request
BATCH_BYTES = 1024 * KIB
LISTED_FINDINGS = 3
LISTED_TITLE = 60

Parts: TypeAlias = Iterable[Object | str] | Object  # several items or a single one; a text counts as one item


class RefusedFinding(Struct):
    """A finding that the service rejected, as sent, with its problems; their pointers are relative to the finding."""

    finding: Json
    problems: list[Problem]

    def __str__(self) -> str:
        title, external_id = str(self.finding.get("title"))[:LISTED_TITLE], self.finding.get("externalId")
        details = "; ".join(f"{each.pointer} {each.detail}".strip() for each in self.problems[:LISTED_PROBLEMS])
        return f"{title!r}{f' ({external_id})' if external_id else ''}: {details}"


class FindingsRefused(Refused):
    """Error for rejected findings of a run; the service has stored all others that were sent."""

    def __init__(self, refusal: Refused, findings: Sequence[RefusedFinding]) -> None:
        several = f"{len(findings)} findings were" if len(findings) > 1 else "a finding was"
        listed = join_first([*map(str, findings)], LISTED_FINDINGS, ", and ")
        problems = [problem for each in findings for problem in each.problems]
        super().__init__(refusal.status, refusal.code, f"{several} refused: {listed}", problems)
        self.findings = findings


class Batch(Struct):
    """Encoded findings for one request with one Idempotency-Key; no finding is added after the first try."""

    findings: list[bytes]
    key: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    is_sent: bool = False

    def has_room(self, finding: bytes = b"") -> bool:
        """Return whether this finding can be added: never after the first try, always as the batch's first finding."""
        size = sum(map(len, self.findings)) + len(finding)
        return not self.is_sent and (not self.findings or (len(self.findings) < BATCH and size < BATCH_BYTES))


IN_A_BATCH = re.compile(r"/tasks/([0-9]+)(/.*)?", re.DOTALL)
CHECK_TIMEOUT = "extension_check_timeout"  # its pointer names the finding at which the time for the whole batch ran out


def split_batch(batch: Batch, refusal: Refused) -> tuple[list[RefusedFinding], list[Batch]]:
    """Return the rejected findings of a batch, and new batches of the other findings.

    An error that may concern the batch as a whole (a body that is too large, or a timeout of the extension check)
    halves the batch instead, until a batch has a single finding.
    """
    problems = dict[int, list[Problem]]()
    for each in refusal.problems:
        found = IN_A_BATCH.fullmatch(each.pointer)
        if found and int(found[1]) < len(batch.findings):
            problems.setdefault(int(found[1]), []).append(msgspec.structs.replace(each, pointer=found[2] or ""))
    if (not problems or refusal.code == CHECK_TIMEOUT) and len(batch.findings) > 1:
        middle = len(batch.findings) // 2
        return [], [Batch(batch.findings[:middle]), Batch(batch.findings[middle:])]
    problems = problems or {0: [Problem(str(refusal))]}
    refused = [RefusedFinding(msgspec.json.decode(batch.findings[n]), found) for n, found in sorted(problems.items())]
    others = [each for number, each in enumerate(batch.findings) if number not in problems]
    return refused, [Batch(others)] if others else []


def to_api_names(**given: Any) -> Json:
    """Return the arguments with API names (camelCase), without those that are None."""
    return {to_camel_case(name): value for name, value in given.items() if value is not None}


def to_camel_case(name: str) -> str:
    """Convert a Python name (snake_case) to the API's name (camelCase)."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def quoted(id: str) -> str:
    """Quote an id as a path segment. A slash is quoted twice, because servers split paths at %2F; no id has one."""
    return quote(id.replace("/", "%2F"), safe="", errors="replace")


def query_of(**given: Any) -> str:
    """Return the arguments as a query string with API names, without those that are None; a list repeats its name."""
    sent = to_api_names(**given).items()
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in sent}
    return urlencode(words, doseq=True)


# List fields of a finding, which also accept a single item, and the item's member that stores a bare text.
LISTS_OF_FINDING = {"evidence": "content", "remediation": "instruction", "successCriteria": "description", "tags": ""}


def normalize(finding: Object) -> Json:
    """Convert a finding with API names to the form that the service accepts.

    A single item or text becomes a list, a text becomes an item, the severity becomes lower case, and an empty list is
    left out. Other invalid values are unchanged: the service rejects them.
    """
    taken = dict(finding)
    for name, text in LISTS_OF_FINDING.items():
        items = as_list(taken.pop(name, None))
        if isinstance(items, list):
            items = [{text: each} if text and isinstance(each, str) else each for each in items]
        if items not in (None, []):
            taken[name] = items
    severity = str(taken.get("severity")).lower()
    return taken | ({"severity": severity} if severity in get_args(Severity) else {})


def as_list(given: Any) -> Any:
    """Return an iterable as a list, a text, mapping or Struct as a list of one, and other values unchanged."""
    if isinstance(given, (str, Mapping, Struct)):
        return [given]
    return list(given) if isinstance(given, Iterable) else given


REASON = 1000  # characters of a run's statusReason


def status_reason(error: BaseException) -> str:
    """Return a statusReason that describes the exception that ended a run, in a form that the service accepts."""
    try:
        text = str(error)
    except Exception:  # another library's `__str__` failed; the error of the run must still be raised
        text = ""
    name = type(error).__name__
    if not text or not isinstance(error, (Refused, Unavailable, SystemExit)):
        text = f"{name}: {text}" if text else name
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()[:REASON]


LAST_TRIES = 5.0  # seconds to send the last findings and to set a run to failed; also for a try in the background
BATCH_AGE = 10.0  # seconds between sends, so that a slow agent's findings are visible before its run ends


class RunSession:
    """A run that lasts for a `with` block: completed when the block ends, failed with the reason if it raises.

    Submitted findings are collected and sent in batches, after at most 10 s by a thread of the run. What it could not
    send is kept and tried again, also by the next `submit`, `flush` or end of the block, which then raise the error.
    Several threads may submit. `start` is the body of the request that starts the run, `key` its Idempotency-Key, and
    `gate` has the API's options for the verdict.
    """

    def __init__(
        self, client: Client, start: Object, *, resolve_missing: bool = False, gate: Object | None = None, key: str = ""
    ) -> None:
        self._service, self._resolve_missing, self._gate = client, resolve_missing, gate
        key = key or str(uuid.uuid4())
        self._begin = partial(client.request, "POST", "runs", encode_json(start), request_key=key)
        self._run: Item | None = None
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._batches = list[Batch]()
        self._refused = list[RefusedFinding]()
        self._refusal: Refused | None = None
        self._last_sent = 0.0
        self._occurrences = Counter[str]()

    def __enter__(self) -> Self:
        if self._run is not None or self._over.is_set():
            raise RuntimeError("a run can be used in only one `with` block; call findings.run(…) for another run")
        try:
            self._start()
            threading.Thread(target=self._send_regularly, daemon=True).start()
        except BaseException as error:
            if not isinstance(error, Refused) or error.status in RETRIED_STATUSES:  # the service may have started it
                self._fail(error)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._over.set()  # findings that another thread submits from now on would not be sent
        if error is not None:
            self._fail(error)
            return
        try:
            self.flush()
            self._finish(status="completed", resolve_missing=self._resolve_missing, gate=self._gate)
        except BaseException as late:
            self._fail(late)
            raise

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self._started.id)

    @property
    def submitted(self) -> Item:
        """Counts of created, updated, reopened, unchanged and resolved findings so far, in a resumed run since then."""
        found: Item = self._started.submitted
        return found

    @property
    def summary(self) -> Item:
        """Counts of the run's tasks by severity and status at its end. :raises RuntimeError: before the run ended."""
        if self._run is None or "summary" not in self._run:
            raise RuntimeError("the summary is available only after the run's `with` block has ended")
        found: Item = self._run.summary
        return found

    def submit(
        self,
        title: str,
        severity: Severity,
        *,
        external_id: str | None = None,
        status: Status | None = None,
        description: str | None = None,
        evidence: Parts = (),
        remediation: Parts = (),
        success_criteria: Parts = (),
        extensions: Object | None = None,
        rule: str | None = None,
        location: str | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        """Add a finding to a batch. It is sent if full or if the last one was sent 10 s ago, else within 10 s.

        :param severity: case is ignored, because models write `High`.
        :param external_id: the finding's id in every run, see `fingerprint`; without it, each report is a new finding.
        :param evidence: a text becomes an item's content. :param remediation: steps in order.
        :param success_criteria: conditions that must hold after the fix. :param tags: several, or one text.
        :param rule: the rule that the finding breaks. :param location: such as `src/app.py:42`.
        :raises FindingsRefused: if the service rejects this finding or earlier ones.
        :raises Refused: if it rejects the whole request. :raises Unavailable: if it cannot be reached. After these two,
            findings are kept and sent with the next ones. :raises ValueError: if JSON cannot represent the finding.
        """
        given = to_api_names(
            title=title,
            severity=severity,
            external_id=external_id,
            status=status,
            description=description,
            evidence=evidence,
            remediation=remediation,
            success_criteria=success_criteria,
            extensions=None if extensions is None else dict(extensions),
            rule=rule,
            location=location,
            tags=tags,
        )
        try:
            encoded = encode_json(normalize(given), f"the finding {title!r}")
        except ValueError:
            self._resolve_missing = False  # this finding is not sent, but still exists
            raise
        with self._lock:
            if self._over.is_set() or self._run is None:
                raise RuntimeError("submit() must be called inside the run's `with` block")
            if not self._batches or not self._batches[-1].has_room(encoded):
                self._batches.append(Batch([]))
            self._batches[-1].findings.append(encoded)
            late = time.monotonic() - self._last_sent >= BATCH_AGE
            if late or self._refused or len(self._batches) > 1 or not self._batches[0].has_room():
                self.flush()

    def fingerprint(self, rule: str, path: FileName = "", snippet: str = "", *, root: FileName = "") -> str:
        """Return the `fingerprint`; its occurrence counts this run's calls with the same rule, path and snippet."""
        identity = fingerprint(rule, path, snippet, root=root)
        with self._lock:
            self._occurrences[identity] += 1
            return numbered(identity, self._occurrences[identity])

    def flush(self) -> None:
        """Send the collected findings. Invalid findings do not prevent the others from being stored.

        :raises FindingsRefused: if the service rejects some findings. :raises Refused: if it rejects the whole request.
        :raises Unavailable: if it cannot be reached.
        """
        with self._lock:
            while self._batches:
                self._send(self._batches[0])
            self._last_sent = time.monotonic()
            refused, self._refused = self._refused, []
            if refused and self._refusal:
                raise FindingsRefused(self._refusal, refused)

    def gate(self, *, fail_on: Severity | Literal["none"] = "high", only: Literal["new", "all"] = "new") -> Item:
        """Return the gate; its `pass_` is false if a new finding (for "all": any) has severity `fail_on` or higher."""
        return self._service.get(f"runs/{quoted(self.id)}/gate", fail_on=fail_on, only=only).item()

    @property
    def _started(self) -> Item:
        if self._run is None:
            raise RuntimeError("the run has not started; use a `with` block: with findings.run(…) as run")
        return self._run

    def _start(self) -> None:
        if self._run is None:
            self._run = self._begin().item()
            self._last_sent = time.monotonic()

    def _send_regularly(self) -> None:
        """Send the collected findings at intervals until the run is over. What fails is kept for the next try."""
        while not self._over.wait(BATCH_AGE):
            with limit_time(LAST_TRIES), suppress(Exception), self._lock:
                while self._batches and not self._over.is_set():
                    self._send(self._batches[0])

    def _send(self, batch: Batch) -> None:
        batch.is_sent = True
        body = b'{"tasks":[' + b",".join(batch.findings) + b"]}"
        try:
            response = self._service.request("POST", f"runs/{quoted(self.id)}/tasks", body, request_key=batch.key)
        except Refused as error:
            if error.status != 413 and not (error.status in (400, 422) and error.code):
                raise  # not about single findings: any other batch would fail, too
            refused, self._batches[:1] = split_batch(batch, error)
            self._refused += refused
            self._refusal = error
            self._resolve_missing = False  # rejected findings are not stored, but still exist
            return
        done = response.item()
        for name in ("created", "updated", "reopened", "unchanged"):
            self.submitted[name] += done[name]
        del self._batches[0]

    def _finish(self, **how: Any) -> None:
        response = self._service.request("PATCH", f"runs/{quoted(self.id)}", to_api_names(**how))
        self._run = response.item()

    def _fail(self, error: BaseException) -> None:
        """Send the collected findings and set the run to failed; each step that fails becomes a note of the error."""
        self._over.set()
        finish = partial(self._finish, status="failed", status_reason=status_reason(error))
        steps = (
            ("the run may not have been started", self._start),
            ("findings of the run were not stored", self.flush),
            ("the run was not set to failed", finish),
        )
        with signals_ignored(), limit_time(LAST_TRIES):
            for otherwise, step in steps:
                try:
                    step()
                except Exception as problem:
                    error.add_note(f"{otherwise}: {problem}")
                if self._run is None:
                    break


# ---------------------------------------------------------------------------
# The client for agents
# ---------------------------------------------------------------------------

MARKDOWN = "text/markdown"
HEARTBEATS = 3  # extensions of a claim within its duration


class Decision(TypedDict, total=False):
    """Fields of a task that people decide. `links` replaces all links; the severity "reported" ends an override."""

    status: Status | None
    reason: Reason | None
    comment: str | None
    assignee: str | None
    severity: Severity | Literal["reported"] | None
    until: str | None
    duplicate_of: str | None
    links: Links


class Proof(TypedDict, total=False):
    """Members of a verification, which needs a comment or evidence. Without `criterion`, it is of the whole finding.

    With the id of an own claim as `claim`, the outcome `fixed` ends that claim and leaves the task in progress. So of
    several criteria, only the last one is verified with it.
    """

    claim: str | None
    criterion: str | None
    comment: str | None
    evidence: Parts
    commit: str | None
    links: Links


class ClaimedTask(Item):
    """A whole task as `Findings.claim` claimed it; its methods are those of `Findings` with the task's id and claim."""

    def __init__(self, task: Item, findings: Findings, claim: str) -> None:
        super().__init__(task)
        self.verify = partial(findings.verify, self.id, claim=claim)
        self.comment = partial(findings.comment, self.id)
        self.propose = partial(findings.propose, self.id)


class Findings(Client):
    """Client for agents: `with Findings() as findings, findings.run("bandit") as run: run.submit(…)`.

    :param url: default: FINDINGS_URL, else http://127.0.0.1:8000. :param key: the API key; default: FINDINGS_KEY.
    :param db: a database file to use in this process, without a server or API key; created if it does not exist.
    :raises ConfigurationError: if the URL, the key or the file cannot be used. Every method raises `Refused` for an
        error response, and `Unavailable` if the service cannot be reached.
    """

    def __init__(self, url: str = "", key: str = "", *, db: str = "") -> None:
        if db and (url or key):
            raise ConfigurationError("pass either a url and its key or a db, not both")
        if db:
            transport: Remote | Local = Local(db, new=True, by="agent")
        else:
            url = url or os.environ.get("FINDINGS_URL", "").strip() or DEFAULT_URL
            transport = Remote(url, key or key_from_environment(), first_tries=FIRST_TRIES)
        super().__init__(transport)

    def register(
        self,
        name: str,
        *,
        label: str | None = None,
        description: str | None = None,
        extension_schema: Object | None = None,
    ) -> Item:
        """Register a project type; the same definition may be repeated, another of that name raises `Refused` (409)."""
        body = to_api_names(name=name, label=label, description=description, extension_schema=extension_schema)
        return self.request("POST", "project-types", body).item()

    def run(
        self,
        project_type: str,
        *,
        target_url: str | None = None,
        branch: str | None = None,
        metadata: Object | None = None,
        resolve_missing: bool = False,
        idempotency_key: str = "",
    ) -> RunSession:
        """Return a run that starts and ends with its `with` block.

        :param target_url: the examined site or repository, part of each finding's identity.
        :param branch: None for the main line. :param resolve_missing: when the run completes, resolve findings that it
            did not report, unless some of its findings were rejected.
        :param idempotency_key: a name for the run. For a day, the same call resumes it, for a program that was killed
            and started again. If the run has ended, submitting to it raises `Refused` (409 `run_finished`).
        """
        start = to_api_names(project_type=project_type, target_url=target_url, branch=branch, metadata=metadata)
        return RunSession(self, start, resolve_missing=resolve_missing, key=idempotency_key)

    def brief(self, project_type: str, **query: Unpack[BriefQuery]) -> Item:
        """Return the brief: known findings of a project type and target, and the decisions about them."""
        return self.get("brief", project_type=project_type, **query).item()

    def brief_text(self, project_type: str, **query: Unpack[BriefQuery]) -> str:
        """Return the brief as text for a prompt, in which a fenced code block encloses text of other authors."""
        parameters = query_of(project_type=project_type, **query)
        response = self.request("GET", f"brief?{parameters}", accept=MARKDOWN)
        if not response.headers.get("content-type", "").startswith(MARKDOWN):
            raise Unavailable(
                f"{self.where} cannot return {MARKDOWN}: its module findings_adapters/markdown.py is not installed"
            )
        return response.body.decode()

    def task(self, id: str) -> Item:
        """Return a task with all its fields."""
        return self.get(f"tasks/{quoted(id)}").item()

    def history(self, id: str) -> Iterator[Item]:
        """Yield the history entries of a task, oldest first."""
        for page in self.walk(f"tasks/{quoted(id)}/history"):
            yield from page.item().history

    def triage(self, id: str, **decision: Unpack[Decision]) -> Item:
        """Update a task, with a key of level triage. None leaves a field unchanged; "" removes `assignee` or `until`.

        An update with a comment has an Idempotency-Key, so a retry after a lost response does not repeat the comment.
        """
        return self.request("PATCH", f"tasks/{quoted(id)}", to_api_names(**decision)).item()

    @contextmanager
    def claim(self, *, seconds: int = 1800, **wanted: Unpack[ClaimFilters]) -> Iterator[ClaimedTask | None]:
        """Claim an open task for a block, the most severe one that matches, or yield None if there is none.

        A thread extends the claim during the block. At the block's end, also if it raises, the task is released unless
        a verification `fixed` or a decision has ended the claim. If this program is killed, it ends after `seconds`.
        """
        claimed = self.request("POST", "tasks/claim", to_api_names(**wanted, seconds=seconds, limit=1)).item()
        if claimed.id is None:
            yield None
            return
        claim, over = f"claims/{quoted(claimed.id)}", threading.Event()
        heartbeat = threading.Thread(target=self._extend, args=(claim, seconds, over), daemon=True)
        heartbeat.start()
        try:
            yield ClaimedTask(self.task(claimed.tasks[0].id), self, claimed.id)
            with suppress(Refused):  # the claim has ended; if another error is the reason, it will expire
                self.request("DELETE", claim)
        except BaseException:
            with signals_ignored(), limit_time(LAST_TRIES), suppress(Refused, Unavailable):
                self.request("DELETE", claim)
            raise
        finally:
            over.set()
            heartbeat.join(LAST_TRIES)

    def verify(self, id: str, outcome: Outcome, **proof: Unpack[Proof]) -> Item:
        """Report the outcome of checking a task, with proof. A text in `evidence` becomes an item's content."""
        body = normalize(to_api_names(outcome=outcome, **proof))
        return self.request("POST", f"tasks/{quoted(id)}/verifications", body).item()

    def comment(self, id: str, text: str, *, links: Links = None) -> Item:
        """Comment on a task without a decision, and add links to it."""
        return self.request("POST", f"tasks/{quoted(id)}/comments", to_api_names(comment=text, links=links)).item()

    def propose(
        self,
        id: str,
        status: Status,
        reason: Reason,
        comment: str,
        *,
        duplicate_of: str | None = None,
        until: str | None = None,
    ) -> Item:
        """Propose that people dismiss or resolve a task, in place of an earlier proposal."""
        body = to_api_names(status=status, reason=reason, comment=comment, duplicate_of=duplicate_of, until=until)
        return self.request("PUT", f"tasks/{quoted(id)}/proposal", body).item()

    def similar(self, id: str, *, limit: int = 10) -> list[Item]:
        """Return tasks that may be the same finding, best first; their `because` lists what they have in common."""
        return list(self.get(f"tasks/{quoted(id)}/similar", limit=limit).item().tasks)

    def _extend(self, claim: str, seconds: int, over: threading.Event) -> None:
        """Extend a claim at intervals, after a failure at shorter ones, until `over` is set or the claim has ended."""
        pause = interval = seconds / HEARTBEATS
        while not over.wait(pause):
            pause = interval / 10
            try:
                with limit_time(LAST_TRIES):
                    self.request("PUT", claim, {"seconds": seconds})
                pause = interval
            except (Refused, Unavailable) as error:
                if getattr(error, "status", 0) == 404:
                    return


FIRST_TRIES = 3  # retries before the first response: then a wrong URL is more likely than a restart
DEFAULT_URL = "http://127.0.0.1:8000"


def key_from_environment() -> str:
    """Return the API key from FINDINGS_KEY. :raises ConfigurationError: if the variable is not set, or blank."""
    if key := os.environ.get("FINDINGS_KEY", "").strip():
        return key
    raise ConfigurationError(
        "FINDINGS_KEY is not set; use the key that the first `serve` printed, or run: findings-service keys create NAME"
    )
