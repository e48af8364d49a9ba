"""Client of the Findings Task Service for Python programs: over HTTP, or in this process on a database file.

Over HTTP, a request is retried while the service is unavailable or busy. A POST or a comment is sent with an
`Idempotency-Key`, so that it is done once. Waits grow, and heed a `Retry-After` of up to half a minute.
On a file, the same requests go to the same application, without a server and without a key. Only then is the service
itself imported: this module starts in a third of its time.

`Findings` is what an agent needs: runs that end as failed if their block raises, findings that are sent in batches, and
a `fingerprint` by which a finding is recognized.
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
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
PASSING = (429, 502, 503, 504)
LISTED_PROBLEMS = 3
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Severity = Literal["critical", "high", "medium", "low", "info"]
Status = Literal["open", "in_progress", "resolved", "dismissed"]
Reason = Literal["fixed", "false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate"]

Json = dict[str, Any]
Object: TypeAlias = Mapping[str, Any]  # one that is only read
Headers: TypeAlias = Mapping[str, str]
Several: TypeAlias = str | Sequence[str] | None  # one of them, or any of several
FileName: TypeAlias = str | os.PathLike[str]
Model = TypeVar("Model")


class ConfigurationError(Exception):
    """A URL, a key or a file cannot be used; the message is one line that says why."""


class Unavailable(Exception):
    """The service cannot be reached, or the response is not one of its own; the message is one line that says so."""


class ToldProblem(Struct):
    """One thing that is wrong with a request: a member of its body, by its pointer, or else a parameter."""

    detail: str = ""
    pointer: str = ""
    parameter: str = ""


class Refused(Exception):
    """The service answered with an error; the message is a line that says which.

    `detail` is its own sentence on that, without the `problems`, which are all that it told.
    """

    def __init__(
        self, status: int, code: str, message: str, problems: Sequence[ToldProblem] = (), detail: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.problems, self.detail = status, code, problems, detail or message


class Item(dict[str, Any]):
    """A JSON object of the API, whose members are attributes as well: `task.external_id` is `task["externalId"]`.

    A name that Python reserves has an underscore at its end: `gate.pass_`, `entry.from_`.
    """

    def __getattr__(self, name: str) -> Any:
        for member in (name, in_camel_case(name.removesuffix("_"))):
            if member in self:
                return self[member]
        raise AttributeError(f"the service returned no {name!r} here, only: {', '.join(self)}")


class Reply(Struct):
    """Response of a service."""

    status: int
    headers: Headers
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Return the body as a model, which may lack some of its members.

        :raises Unavailable: if it is not valid for the model.
        """
        try:
            return msgspec.json.decode(self.body, type=model)
        except NOT_JSON as error:
            raise not_ours(error) from None

    def item(self) -> Item:
        """Return the body, which is a JSON object. :raises Unavailable: if it is not."""
        try:
            found = json.loads(self.body, object_hook=Item)
        except (ValueError, RecursionError) as error:
            raise not_ours(error) from None
        if not isinstance(found, Item):
            raise not_ours("not a JSON object")
        return found


def not_ours(reason: object) -> Unavailable:
    """Return the error for a response that a Findings Task Service does not give."""
    return Unavailable(f"the response is not one of a Findings Task Service ({reason})")


class Tries(Retry):
    """Tries that end after so many seconds, whatever their number: who waits counts in those."""

    def __init__(self, *, until: float, **how: Any) -> None:
        super().__init__(**how)
        self.until = until

    def new(self, **changed: Any) -> Self:
        """Return the tries that are left after one."""
        return super().new(until=self.until, **changed)

    def is_exhausted(self) -> bool:
        """Tell whether the next one would come too late."""
        return super().is_exhausted() or time.monotonic() + self.get_backoff_time() > self.until


PATIENCE = 60.0  # seconds in which a request is tried again
FIRST_WAIT = 0.5  # seconds; the second try comes at once, and each wait after that is twice as long
LONGEST_WAIT = 10.0
LONGEST_ASKED = 30.0  # by a Retry-After
TIMEOUT = 60.0  # seconds without a sign of the service
SLOWEST_UPLOAD = 100 * KIB  # bytes a second, for a body to arrive and to be worked on
HURRY: ContextVar[float] = ContextVar("hurry", default=math.inf)  # seconds that what is under way has


class Remote:
    """A service over HTTP or HTTPS. Redirects are not followed: they would take the key to somebody else.

    :param first_tries: how often to try again to connect before anything has answered, None: as long as later.
    :param headers: what every request has besides the key.
    :raises ConfigurationError: for a URL or key that is not valid, or a proxy of the environment that is not.
    """

    def __init__(self, url: str, key: str, *, first_tries: int | None = None, headers: Mapping[str, str] = {}) -> None:
        try:
            parts = urlsplit(url.rstrip("/").removesuffix(API).rstrip("/"))
            if parts.scheme not in ("http", "https") or not parts.hostname or set(url) & set(" ?#"):
                raise ValueError(f"{url!r} is not a URL such as https://tools.example/findings")
            parts = parts._replace(path=quote(parts.path, "/%"))
            if parts.username is not None:
                raise ValueError("it has a user name in it; a key is all that the service asks")
            self._base = parts._replace(netloc=parts.netloc.encode("idna").decode())
            parse_url(self._base.geturl())  # its port
            self._pool = pool_for(self._base.scheme, self._base.hostname or "")
        except ValueError as error:
            raise ConfigurationError(f"the service's URL: {error}") from None
        if not key.isascii() or not key.isprintable():
            raise ConfigurationError("the key has letters, digits and signs of ASCII only")
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": "findings-client"}
        self._headers |= headers
        self.where, self.patience = parts.geturl(), PATIENCE
        self._first_tries = first_tries

    def send(self, method: str, path: str, body: bytes | None, headers: Headers) -> Reply:
        """Return the answer to a request, tried again while the reason against one may pass.

        :raises Unavailable: when none came for so long.
        """
        doubles = method == "POST" or (method == "PATCH" and b'"comment"' in (body or b""))
        once = {"Idempotency-Key": str(uuid.uuid4())} if doubles else {}
        prefixed = path.startswith(f"{self._base.path}{API}")  # links may have the prefix already
        hurry = HURRY.get()
        patience = min(self.patience, hurry)
        tries = Tries(
            until=time.monotonic() + patience,
            total=None,
            connect=self._first_tries,
            other=0,  # a certificate does not get better
            allowed_methods=None,
            status_forcelist=PASSING,
            raise_on_status=False,
            backoff_factor=FIRST_WAIT,
            backoff_jitter=FIRST_WAIT,
            backoff_max=LONGEST_WAIT,
            retry_after_max=min(LONGEST_ASKED, patience),
        )
        try:
            response = self._pool.request(
                method,
                self._base._replace(path="" if prefixed else self._base.path).geturl() + path,
                body=body,
                headers={**self._headers, **once, **headers},
                retries=tries,
                timeout=min(TIMEOUT, max(hurry, 1.0)) + len(body or b"") / SLOWEST_UPLOAD,
                redirect=False,
            )
        except HTTPError as error:
            reason = getattr(error, "reason", error)
            cause = reason.__cause__ or reason
            raise Unavailable(f"no answer from {self.where}: {getattr(cause, 'strerror', '') or cause}") from None
        self._first_tries = None
        return Reply(response.status, response.headers, response.data)

    def close(self) -> None:
        """Close what is open to the service."""
        self._pool.clear()


def pool_for(scheme: str, host: str) -> PoolManager:
    """Return what connects to a host, by the proxy that the environment names for it.

    :raises ValueError: for a proxy of another kind.
    """
    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    if not proxy:
        return PoolManager()
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    known_as = unquote(parse_url(proxy).auth or "")
    return ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=known_as or None))


class Local:
    """The service in this process on a database file, as client "default" with a key of level full.

    :param by: the name of that key in histories.
    :raises ConfigurationError: if a setting is not valid, or if there is no file and not `new`.
    :raises findings_service.DatabaseUnusable: if the file cannot be opened.
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
        # A signal that ends a command interrupts who waits for an answer, never a transaction with its locks.
        self._worker = ThreadPoolExecutor(1)
        self._principal = core.Principal("local", "default", by, "full")
        self.where = self._service.database.name

    def send(self, *request: Any) -> Reply:
        """Return the answer to a request, given as to `Remote.send`."""
        return self._worker.submit(self._perform, *request).result()

    def close(self) -> None:
        """Let go of the file, when what is under way has ended."""
        self._worker.shutdown()
        self._service.database.close()

    def _perform(self, method: str, path: str, body: bytes | None, headers: Headers) -> Reply:
        from werkzeug.test import create_environ

        import findings_service as core

        environ = create_environ(path, method=method, data=body, headers=headers)
        request = core.ApiRequest(self._service, environ, core.path_of(environ), self._principal)
        answer = core.respond_in_thread(request, lambda _: core.Body(body or b""))
        with core.to_flask_response(answer) as response:
            return Reply(answer.status, HTTPHeaderDict(answer.headers.items()), response.get_data())


LISTED = 200  # items on a page


class TaskFilters(TypedDict, total=False):
    """The filters and orders of the list of tasks, as the API has them."""

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
    created_since: str | None
    created_before: str | None
    q: str | None
    sort: Literal["-createdAt", "createdAt", "severity"]


class BriefQuery(TypedDict, total=False):
    """The parameters of the brief but for the project type."""

    target_url: str | None
    branch: str | None
    location: str | None
    limit: int


class Linked(Struct):
    """A page of a list, by its link to the next one."""

    next: str | None


class Client:
    """The API of a service, wherever that is."""

    def __init__(self, transport: Remote | Local) -> None:
        self._transport = transport
        self.where = transport.where  # the URL, or the path of the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is held for requests, if anything is."""
        self._transport.close()

    def request(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, accept: str = JSON, same: str = ""
    ) -> Reply:
        """Return the answer to a request that the service grants.

        :param path: below /api/v1, or a link of an answer's. :param body: bytes of that kind, or what JSON can tell.
        :param same: an Idempotency-Key, to ask again for what was asked for under it.
        :raises Refused: when the answer is an error. :raises Unavailable: when there is none.
        :raises ValueError: for a body that JSON cannot tell.
        """
        headers = {"Accept": accept}
        if body is not None:
            body = body if isinstance(body, bytes) else in_json(body)
            headers["Content-Type"] = kind
        if same:
            headers["Idempotency-Key"] = same
        answer = self._transport.send(method, path if path.startswith("/") else f"{API}/{path}", body, headers)
        if 200 <= answer.status < 300:
            return answer
        raise refusal_of(answer, self.where)

    def get(self, path: str, **query: Any) -> Reply:
        """Return the response for a path, with query parameters."""
        return self.request("GET", f"{path}?{query_of(**query)}" if query else path)

    def walk(self, path: str, **filters: Any) -> Iterator[Reply]:
        """Yield the pages of a list that match the filters."""
        link: str | None = f"{path}?{query_of(**filters, limit=LISTED)}"
        while link:
            page = self.get(link)
            yield page
            link = page.read(Linked).next

    def tasks(self, **filters: Unpack[TaskFilters]) -> Iterator[Item]:
        """Yield all tasks that match the filters, page by page; a list matches any of its values."""
        for page in self.walk("tasks", **filters):
            yield from page.item().tasks


@contextmanager
def hurried(seconds: float) -> Iterator[None]:
    """Try what a block asks for again for so long at most, and wait no longer for an answer."""
    before = HURRY.set(seconds)
    try:
        yield
    finally:
        HURRY.reset(before)


def in_json(value: Any, what: str = "a request") -> bytes:
    """Return a value as JSON. :raises ValueError: for what it has no word for, such as NaN and lone surrogates."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=built_in)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} cannot be told in JSON: {error}") from error


def built_in(value: Any) -> Any:
    """Return a typed value in the types that JSON has. :raises TypeError: for one that is no data."""
    if isinstance(value, bytes):
        raise TypeError("bytes are no text; decode them")
    return msgspec.to_builtins(value)


def first_of(texts: Sequence[str], most: int, between: str) -> str:
    """Return so many of some texts as one, and that there are more."""
    return between.join(texts[:most]) + (" …" if len(texts) > most else "")


class ToldError(Struct):
    """What is read of an error."""

    code: str = ""
    detail: str = ""
    errors: list[ToldProblem] = []


def refusal_of(answer: Reply, where: str) -> Refused:
    """Return what the service that is there refused a request with."""
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "another place")
        return Refused(answer.status, "", f"{where} redirects to {place}; say the service's own URL")
    try:
        told: ToldError = msgspec.json.decode(answer.body, type=ToldError)
    except NOT_JSON:
        told = ToldError()
    if not told.detail:
        words = f"{answer.status} {http.client.responses.get(answer.status, '')}".strip()
        return Refused(answer.status, "", f"{where} answers {words}, and not as a Findings Task Service does")
    problems = [f"{each.pointer} {each.detail}" for each in told.errors if each.pointer]
    message = f"{told.detail} {first_of(problems, LISTED_PROBLEMS, '; ')}".strip()
    return Refused(answer.status, told.code, message, told.errors, told.detail)


# ---------------------------------------------------------------------------
# Signals
# ---------------------------------------------------------------------------


STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]


class Stopped(SystemExit):
    """A signal ends the program: uncaught, with exit code 1 and a line that names the signal."""


def stop(number: int, _: object) -> NoReturn:
    """End the program as an error does, so that its run ends too. One signal is enough for that."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(f"stopped by {signal.Signals(number).name}")


def stoppable() -> AbstractContextManager[None]:
    """Turn the signals that end a process into `Stopped`, but for those that it was started to ignore.

    For the main thread, which alone may say what signals do.
    """
    return handled_by(stop)


@contextmanager
def handled_by(handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Give another handler to the signals that end a process, but for those that are ignored, or not Python's."""
    known = {each: signal.getsignal(each) for each in STOPPING}
    heeded = [each for each in known if known[each] not in (signal.SIG_IGN, None)]
    try:
        for each in heeded:
            signal.signal(each, handler)
        yield
    finally:
        for each in heeded:
            signal.signal(each, known[each])


def undisturbed() -> AbstractContextManager[None]:
    """Ignore the signals that end a process while it does what is left, in bounded time. In other threads, nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    return handled_by(signal.SIG_IGN) if is_main else nullcontext()


# ---------------------------------------------------------------------------
# What a finding is known by
# ---------------------------------------------------------------------------

READABLE = 64  # characters of a rule in an externalId
NOT_READABLE = re.compile(r"[^A-Za-z0-9._]+")


def folded(text: str) -> str:
    """Return text in Unicode's form C, with every run of white space as one space and none around it."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def plain_path(path: str) -> str:
    """Return a path with `/` between its parts, without `.`, and without `..` where that can be."""
    plain = posixpath.normpath(unicodedata.normalize("NFC", path).replace("\\", "/"))
    return "" if plain == "." else re.sub("^//", "/", plain)


def fingerprint(
    rule: str,
    path: FileName = "",
    snippet: str = "",
    *,
    occurrence: int = 1,
    root: FileName = "",
) -> str:
    """Return an externalId for a finding: the same as long as its rule, its file and the offending text are.

    Moved lines, other indentation, a reworded message, a new severity and another machine do not change it.

    :param rule: the rule, or the class of problem in an agent's own vocabulary.
    :param path: where it is, by name: a file, or a page, a function, a CSS selector.
    :param snippet: the offending text, without line numbers.
    :param occurrence: 1 for the first of several that are the same in all that, 2 for the second.
    :param root: the checkout; it and a path below it count as relative to it.
    :returns: the rule and a hash, 97 characters of ASCII at most, and the occurrence from the second on.
    """
    if occurrence < 1:
        raise ValueError(f"occurrence is {occurrence}; the first one is 1")
    place, top = plain_path(os.fspath(path)), plain_path(os.fspath(root)).rstrip("/")
    place = f"{place}/".removeprefix(f"{top}/").removesuffix("/") if top else place
    known_by = json.dumps((folded(rule), place, folded(snippet)))  # so that no two lists come to one text
    name = NOT_READABLE.sub("-", folded(rule)).strip("-")[:READABLE]
    return numbered("-".join(filter(None, (name, hashlib.sha256(known_by.encode()).hexdigest()[:32]))), occurrence)


def numbered(identity: str, occurrence: int) -> str:
    """Return the externalId of the first, second … finding of an identity."""
    return identity if occurrence == 1 else f"{identity}-{occurrence}"


# ---------------------------------------------------------------------------
# A run, and what it reports
# ---------------------------------------------------------------------------

BATCH = 200  # findings that go out together
BATCH_BYTES = 1024 * KIB
LISTED_FINDINGS = 3
LISTED_TITLE = 60

Parts: TypeAlias = Iterable[Object | str] | Object  # several, or one; a text is one, too


class RefusedFinding(Struct):
    """A finding that the service did not take: what was sent, and what is wrong with it, with pointers into that."""

    finding: Json
    problems: list[ToldProblem]

    def __str__(self) -> str:
        title, known_as = str(self.finding.get("title"))[:LISTED_TITLE], self.finding.get("externalId")
        told = "; ".join(f"{each.pointer} {each.detail}".strip() for each in self.problems[:LISTED_PROBLEMS])
        return f"{title!r}{f' ({known_as})' if known_as else ''}: {told}"


class FindingsRefused(Refused):
    """The service did not take some findings of a run; it has all others that were sent until now."""

    def __init__(self, refusal: Refused, findings: Sequence[RefusedFinding]) -> None:
        several = f"{len(findings)} findings were" if len(findings) > 1 else "a finding was"
        listed = first_of([*map(str, findings)], LISTED_FINDINGS, ", and ")
        problems = [problem for each in findings for problem in each.problems]
        super().__init__(refusal.status, refusal.code, f"{several} refused: {listed}", problems)
        self.findings = findings


class Batch(Struct):
    """Findings, as JSON, that go out together, under one Idempotency-Key: once sent, it stays as it is."""

    findings: list[bytes]
    key: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    is_sent: bool = False

    def has_room(self, finding: bytes = b"") -> bool:
        """Whether it can take another finding. The first one always fits."""
        size = sum(map(len, self.findings)) + len(finding)
        return not self.is_sent and (not self.findings or (len(self.findings) < BATCH and size < BATCH_BYTES))


IN_A_BATCH = re.compile(r"/tasks/([0-9]+)(/.*)?", re.DOTALL)
TOGETHER = "extension_check_timeout"  # names the finding at which the time of all was over


def parted(batch: Batch, refusal: Refused) -> tuple[list[RefusedFinding], list[Batch]]:
    """Return the findings of a batch that a refusal is about, and the batches that the others come to.

    A refusal that may be about all of them together (a body that is too large, extensions that took too long to check,
    whichever was the last) halves the batch, down to one.
    """
    problems = dict[int, list[ToldProblem]]()
    for each in refusal.problems:
        found = IN_A_BATCH.fullmatch(each.pointer)
        if found and int(found[1]) < len(batch.findings):
            problems.setdefault(int(found[1]), []).append(msgspec.structs.replace(each, pointer=found[2] or ""))
    if (not problems or refusal.code == TOGETHER) and len(batch.findings) > 1:
        middle = len(batch.findings) // 2
        return [], [Batch(batch.findings[:middle]), Batch(batch.findings[middle:])]
    problems = problems or {0: [ToldProblem(str(refusal))]}
    refused = [RefusedFinding(msgspec.json.decode(batch.findings[n]), told) for n, told in sorted(problems.items())]
    rest = [each for number, each in enumerate(batch.findings) if number not in problems]
    return refused, [Batch(rest)] if rest else []


def as_sent(**given: Any) -> Json:
    """Return what was given under the names of the API; None means left out."""
    return {in_camel_case(name): value for name, value in given.items() if value is not None}


def in_camel_case(name: str) -> str:
    """Return a name of Python's as the API has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def quoted(id: str) -> str:
    """Return an id as one part of a path. Of a slash nothing is found: servers take one for a slash, however quoted."""
    return quote(id.replace("/", "%2F"), safe="", errors="replace")


def query_of(**given: Any) -> str:
    """Return query parameters of the API; a list repeats one."""
    sent = as_sent(**given).items()
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in sent}
    return urlencode(words, doseq=True)


# The lists of a finding, of which one item will do, too, and the member that a text alone is of an item.
LISTS_OF_FINDING = {"evidence": "content", "remediation": "instruction", "successCriteria": "description", "tags": ""}


def as_taken(finding: Object) -> Json:
    """Return a finding, under the API's names, as the service takes it.

    One item or a text alone is good for a list, and a severity with capitals. What is no such thing stays for the
    service to refuse.
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
    """Return a list of several items, or of one alone, and anything else as it is."""
    if isinstance(given, (str, Mapping, Struct)):
        return [given]
    return list(given) if isinstance(given, Iterable) else given


REASON = 1000  # characters of a run's statusReason


def status_reason(error: BaseException) -> str:
    """Return what a failed run tells of the exception that ended it, as the service takes it."""
    try:
        told = str(error)
    except Exception:  # it is somebody else's, and must not hide itself
        told = ""
    name = type(error).__name__
    if not told or not isinstance(error, (Refused, Unavailable, SystemExit)):
        told = f"{name}: {told}" if told else name
    return told.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()[:REASON]


LAST_TRIES = 5.0  # seconds, to say that a run has failed
BATCH_AGE = 10.0  # seconds since findings last went out, so that those of a slow agent show before its end


class RunSession:
    """A run, for the length of a `with` block: completed when that ends, failed with the reason when it raises.

    What is submitted is gathered, and goes out in batches. Several threads may submit.
    """

    def __init__(
        self,
        service: Client,
        start: Object,
        *,
        resolve_missing: bool = False,
        gate: Object | None = None,
    ) -> None:
        self._service, self._resolve_missing, self._gate = service, resolve_missing, gate
        self._begin = partial(service.request, "POST", "runs", in_json(start), same=str(uuid.uuid4()))
        self._told: Item | None = None
        self._is_over = False
        self._lock = threading.RLock()
        self._batches = list[Batch]()
        self._refused = list[RefusedFinding]()
        self._refusal: Refused | None = None
        self._last_sent = 0.0
        self._occurrences = Counter[str]()

    def __enter__(self) -> Self:
        if self._told is not None or self._is_over:
            raise RuntimeError("a run has one block; findings.run(…) gives the next run")
        try:
            self._start()
        except BaseException as error:
            if not isinstance(error, Refused) or error.status in PASSING:  # it may have been started all the same
                self._fail(error)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_over = True  # what another thread submits from now on would not go out any more
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
        """What became of the findings that were sent so far."""
        found: Item = self._started.submitted
        return found

    @property
    def summary(self) -> Item:
        """The tasks of the run, by severity and status, when it ended. :raises RuntimeError: before that."""
        if self._told is None or "summary" not in self._told:
            raise RuntimeError("a run has its summary when its block has ended")
        found: Item = self._told.summary
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
        """Report a finding. It is sent with others: when there are enough, after some seconds, or when the block ends.

        :param severity: capitals, as a model writes them in `High`, do no harm.
        :param external_id: what it is known by from run to run, see `fingerprint`; without it, it is always new.
        :param evidence: what shows it; a text is the content. :param remediation: steps in their order.
        :param success_criteria: what must be true after the fix.
        :param rule: what it breaks. :param location: where, as `src/app.py:42`. :param tags: several, or one text.
        :raises FindingsRefused: for findings, this one or earlier ones, that the service does not take.
        :raises Refused: when it takes none. :raises Unavailable: when it cannot be reached. Both: they are kept, and
            sent again with the next ones. :raises ValueError: for a finding that JSON cannot tell.
        """
        given = as_sent(
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
            encoded = in_json(as_taken(given), f"the finding {title!r}")
        except ValueError:
            self._resolve_missing = False  # what could not be told is not gone
            raise
        with self._lock:
            if self._is_over or self._told is None:
                raise RuntimeError("a finding is submitted inside the run's block")
            if not self._batches or not self._batches[-1].has_room(encoded):
                self._batches.append(Batch([]))
            self._batches[-1].findings.append(encoded)
            late = time.monotonic() - self._last_sent >= BATCH_AGE
            if late or len(self._batches) > 1 or not self._batches[0].has_room():
                self.flush()

    def fingerprint(self, rule: str, path: FileName = "", snippet: str = "", *, root: FileName = "") -> str:
        """Return a `fingerprint`, with the number of its occurrence in this run."""
        identity = fingerprint(rule, path, snippet, root=root)
        with self._lock:
            self._occurrences[identity] += 1
            return numbered(identity, self._occurrences[identity])

    def flush(self) -> None:
        """Send what is gathered. What is wrong with some findings does not keep the others back.

        :raises FindingsRefused: for those that the service does not take. :raises Refused: when it takes none.
        :raises Unavailable: when it cannot be reached.
        """
        with self._lock:
            while self._batches:
                self._send(self._batches[0])
            self._last_sent = time.monotonic()
            refused, self._refused = self._refused, []
            if refused and self._refusal:
                raise FindingsRefused(self._refusal, refused)

    def gate(self, *, fail_on: Severity | Literal["none"] = "high", only: Literal["new", "all"] = "new") -> Item:
        """Return whether the run may pass: whether nothing so severe is new beside the main line, or at all."""
        return self._service.get(f"runs/{quoted(self.id)}/gate", fail_on=fail_on, only=only).item()

    @property
    def _started(self) -> Item:
        if self._told is None:
            raise RuntimeError("a run starts with its block: with findings.run(…) as run")
        return self._told

    def _start(self) -> None:
        if self._told is None:
            self._told = self._begin().item()
            self._last_sent = time.monotonic()

    def _send(self, batch: Batch) -> None:
        batch.is_sent = True
        body = b'{"tasks":[' + b",".join(batch.findings) + b"]}"
        try:
            answer = self._service.request("POST", f"runs/{quoted(self.id)}/tasks", body, same=batch.key)
        except Refused as error:
            if error.status != 413 and not (error.status in (400, 422) and error.code):
                raise  # it is not about some findings of the batch, but about all that would ever come
            refused, self._batches[:1] = parted(batch, error)
            self._refused += refused
            self._refusal = error
            self._resolve_missing = False  # what was refused is not gone
            return
        done = answer.item()
        for name in ("created", "updated", "reopened", "unchanged"):
            self.submitted[name] += done[name]
        del self._batches[0]

    def _finish(self, **how: Any) -> None:
        answer = self._service.request("PATCH", f"runs/{quoted(self.id)}", as_sent(**how))
        self._told = answer.item()

    def _fail(self, error: BaseException) -> None:
        """Send what is gathered and leave the run failed, as far as that can be done now; the error tells the rest."""
        self._is_over = True
        finish = partial(self._finish, status="failed", status_reason=status_reason(error))
        steps = (
            ("whether the run was started is not known", self._start),
            ("findings of the run were not stored", self.flush),
            ("the run was not finished as failed", finish),
        )
        with undisturbed(), hurried(LAST_TRIES):
            for otherwise, step in steps:
                try:
                    step()
                except Exception as problem:
                    error.add_note(f"{otherwise}: {problem}")
                if self._told is None:
                    break


# ---------------------------------------------------------------------------
# All that an agent needs
# ---------------------------------------------------------------------------

MARKDOWN = "text/markdown"


class Findings(Client):
    """The service for an agent: `with Findings() as findings, findings.run("bandit") as run: run.submit(…)`.

    :param url: where it is; else FINDINGS_URL, else http://127.0.0.1:8000. :param key: else FINDINGS_KEY.
    :param db: a database file to use in this process, without a server and a key; it is made when it is not there.
    :raises ConfigurationError: for a URL, a key or a file that cannot be used.

    Every method raises `Refused` for what the service does not grant, and `Unavailable` when it cannot be reached.
    """

    def __init__(self, url: str = "", key: str = "", *, db: str = "") -> None:
        if db and (url or key):
            raise ConfigurationError("say a url and its key, or a db, not both")
        if db:
            transport: Remote | Local = Local(db, new=True, by="agent")
        else:
            url = url or os.environ.get("FINDINGS_URL", "").strip() or DEFAULT_URL
            transport = Remote(url, key or key_of_environment(), first_tries=FIRST_TRIES)
        super().__init__(transport)

    def register(
        self,
        name: str,
        *,
        label: str | None = None,
        description: str | None = None,
        extension_schema: Object | None = None,
    ) -> Item:
        """Register a project type. The same definition again is good; another one under its name is refused (409)."""
        body = as_sent(name=name, label=label, description=description, extension_schema=extension_schema)
        return self.request("POST", "project-types", body).item()

    def run(
        self,
        project_type: str,
        *,
        target_url: str | None = None,
        branch: str | None = None,
        metadata: Object | None = None,
        resolve_missing: bool = False,
    ) -> RunSession:
        """Return a run, which starts when its `with` block does, and ends with it.

        :param target_url: what is examined, a part of every finding's identity. :param branch: None is the main line.
        :param resolve_missing: resolve what the run did not report any more when it completes, unless findings of it
            were refused.
        """
        start = as_sent(project_type=project_type, target_url=target_url, branch=branch, metadata=metadata)
        return RunSession(self, start, resolve_missing=resolve_missing)

    def brief(self, project_type: str, **query: Unpack[BriefQuery]) -> Item:
        """Return the known findings of a type and target, and the decisions about them."""
        return self.get("brief", project_type=project_type, **query).item()

    def brief_text(self, project_type: str, **query: Unpack[BriefQuery]) -> str:
        """Return the same as a text for a prompt, in which a fence encloses what others wrote."""
        asked = query_of(project_type=project_type, **query)
        answer = self.request("GET", f"brief?{asked}", accept=MARKDOWN)
        if not answer.headers.get("content-type", "").startswith(MARKDOWN):
            raise Unavailable(
                f"{self.where} does not write {MARKDOWN}: markdown.py of findings_adapters is not installed"
            )
        return answer.body.decode()

    def task(self, id: str) -> Item:
        """Return a whole task."""
        return self.get(f"tasks/{quoted(id)}").item()

    def history(self, id: str) -> Iterator[Item]:
        """Give what happened to a task, oldest first."""
        for page in self.walk(f"tasks/{quoted(id)}/history"):
            yield from page.item().history

    def triage(
        self,
        id: str,
        *,
        status: Status | None = None,
        reason: Reason | None = None,
        comment: str | None = None,
        assignee: str | None = None,
    ) -> Item:
        """Decide about a task, with a key of level full; assignee "" is nobody.

        Where the answer is lost on the way it is done again, and a comment stands in the history twice.
        """
        body = as_sent(status=status, reason=reason, comment=comment, assignee=assignee)
        return self.request("PATCH", f"tasks/{quoted(id)}", body).item()


FIRST_TRIES = 3  # for an agent, before anything has answered: it is more often a wrong URL than a restart
DEFAULT_URL = "http://127.0.0.1:8000"


def key_of_environment() -> str:
    """Return the key that the environment has. :raises ConfigurationError: when it has none."""
    if key := os.environ.get("FINDINGS_KEY", "").strip():
        return key
    raise ConfigurationError(
        "FINDINGS_KEY is not set: a service wants a key, its first one or one of `findings-service keys create`"
    )
