# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "click>=8.2",
#     "flask>=3.1.3",
#     "granian>=2.7,<3",
#     "jsonschema>=4.21,<5",
#     "jsonschema-rs>=0.35; sys_platform in 'linux darwin win32' and platform_machine in 'x86_64 aarch64 arm64 AMD64'",
#     "msgspec>=0.20",
#     "pathspec>=0.12.1",
#     "regex>=2024.11.6",
#     "urllib3>=2.6.3,<3",
#     "uvloop>=0.21; sys_platform in 'linux darwin' and platform_machine in 'x86_64 aarch64 arm64'",
#     "werkzeug>=3.1.9",
# ]
# ///
"""The Findings Task Service: structured findings over HTTP/JSON, remembered from run to run in one SQLite file.

Agents start a *run*, submit *tasks* (findings) to it and finish it; people and programs list, read and
triage the tasks. `create_app` gives a WSGI application, `create_blueprint` a part of somebody else's Flask
application, and `findings-service serve` the server. The module reads from top to bottom: each section uses
only what stands above it.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout runs under whatever `python3` is
    raise (SystemExit if __name__ == "__main__" else ImportError)("findings_service needs Python 3.11 or newer")

import bisect
import difflib
import errno
import hashlib
import hmac
import importlib
import importlib.util
import itertools
import json
import logging
import math
import os
import random
import secrets
import signal
import sqlite3
import threading
import time
import typing
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar, cast, get_args, get_type_hints
from urllib.parse import parse_qsl, quote, unquote_plus, urlsplit
from uuid import UUID
from wsgiref.types import WSGIEnvironment

try:
    import click
    import flask
    import jsonschema
    import msgspec
    import referencing
    import regex
    from jsonschema import ValidationError
    from msgspec import UNSET, Meta, Raw, Struct, UnsetType
    from msgspec.json import decode as from_json
    from msgspec.json import encode as to_json
    from msgspec.structs import astuple, replace
    from referencing.jsonschema import specification_with
    from werkzeug.datastructures import ETags, MIMEAccept
    from werkzeug.exceptions import ClientDisconnected, HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
    from werkzeug.http import parse_accept_header, parse_etags
    from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
    from werkzeug.wsgi import get_content_length
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    package = (missing.name or "").partition(".")[0]
    sys.exit(
        f"The package {package} is not installed. In the checkout's folder, run `uv run findings_service.py`, or:"
        " python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/findings-service"
    )

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "ConfigurationError",
    "DatabaseUnusable",
    "FindingsBlueprint",
    "Settings",
    "__version__",
    "create_app",
    "create_blueprint",
]
__version__ = "0.1.0"

log = logging.getLogger("findings_service")

# ---------------------------------------------------------------------------
# Configuration
# ---------------------------------------------------------------------------

PATH_CHARACTERS = "!$&'()*+,-./:;=@_~"  # that a path may hold unescaped, besides letters and digits (RFC 3986)
# Characters that a query string may contain unescaped; other bytes, which clients should have escaped, are escaped.
PRINTABLE_IN_URL = f"{PATH_CHARACTERS}%?"
SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}  # bytes
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def installing(extra: str) -> str:
    """Return how to install an extra, for the end of a message. Once an index has the service, by its name instead."""
    return f": in the folder of a checkout, pip install '.[{extra}]'"


class ConfigurationError(Exception):
    """A setting that cannot be used; the message names it and says what would do."""


def parse_duration(text: str) -> float:
    """Return the seconds that `text` means: a number, alone or with s, m, h or d.

    :raises ValueError: when it means none.
    """
    match = regex.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else math.inf
    if seconds > 100 * 365 * UNITS["d"]:
        raise ValueError(f"{text!r} is no duration: give seconds, or a number with s, m, h or d, such as 90d")
    return seconds


def parse_count(text: str) -> int:
    """Return the whole number above zero that `text` is. :raises ValueError: when it is none."""
    if not regex.fullmatch(r"[0-9]{1,15}", text.strip()) or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number above zero")
    return int(text)


def parse_size(text: str) -> int:
    """Return the bytes that `text` means: a whole number, alone or with k, m or g, from 1 MiB to 1 TiB.

    :raises ValueError: when it means none.
    """
    match = regex.fullmatch(r"([0-9]{1,15})([kmg]?)", text.strip().lower())
    size = int(match[1]) * SIZES[match[2]] if match else 0
    if not SIZES["m"] <= size <= 1024 * SIZES["g"]:
        raise ValueError(f"{text!r} is no size from 1 MiB to 1 TiB: give bytes, or a number with k, m or g")
    return size


def scheme_of(db: str) -> str:
    """Return the scheme of a database's URL in small letters, "" for the path of a file."""
    match = regex.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", db)
    return match[1].lower() if match else ""


def parse_path(text: str) -> str:
    """Return the path of a database file, or a URL. :raises ValueError: for what no engine takes for either."""
    if text == ":memory:":
        raise ValueError("the data needs a file; :memory: would be another database for every connection")
    if (scheme := scheme_of(text)) and scheme not in ENGINE_MODULES:
        raise ValueError(f"{scheme}:// is unknown here; give a path, or a URL that begins with postgresql://")
    return text


def parse_key(text: str) -> str:
    """Return an API key, or "" for none.

    :raises ValueError: for one that can be guessed, or that no Authorization header can carry.
    """
    key = text.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("a key has letters, digits and signs of ASCII only")
    if 0 < len(key) < 16:
        raise ValueError(f"a key of {len(key)} characters can be guessed; give at least 16")
    return key


def parse_base_url(text: str) -> str:
    """Return a URL that links may begin with, its path percent-encoded and without a slash at its end.

    :raises ValueError: if `text` is not such a URL.
    """
    match = regex.fullmatch(r"(https?://[^\s/?#]+)((/[^\s?#]*)?)", text)
    if text and not match:
        raise ValueError(f"{text!r} is no URL such as https://tools.example/findings")
    return match[1] + quote(match[2].rstrip("/"), PRINTABLE_IN_URL) if match else ""


def parse_keep(text: str) -> float:
    """Return for how many seconds finished runs are kept, 0 for ever. :raises ValueError: for what is no such time."""
    seconds = parse_duration(text)
    if 0 < seconds < UNITS["h"]:
        raise ValueError(f"{text!r} would forget what was just reported; give at least 1h, or 0 to keep everything")
    return seconds


def parse_word(meanings: Mapping[str, Any], text: str) -> Any:
    """Return what one of some words means, whatever its case. :raises ValueError: for another word."""
    if text.lower() not in meanings:
        raise ValueError(f"{text!r} is none of {', '.join(filter(None, meanings))}")
    return meanings[text.lower()]


parse_flag = partial(parse_word, {"1": True, "0": False, "true": True, "false": False})


# Environment variables of commands and clients, after FINDINGS_.
OTHER_VARIABLES = ("HOST", "KEY", "PORT", "URL", "USER", "WORKERS")


def warn_of_misspelled(known: Set[str]) -> None:
    """Log a warning for each FINDINGS_ variable that is not known, but resembles one that is."""
    for name in sorted({each[9:] for each in os.environ if each.startswith("FINDINGS_")} - known):
        if nearest := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
            log.warning("FINDINGS_%s is not a setting; did you mean FINDINGS_%s?", name, nearest[0])


class Settings(Struct, frozen=True, kw_only=True):
    """What can be set, each also as `FINDINGS_` and the name in capitals. Times are seconds, sizes bytes.

    Behind its type, each has what reads it from text, and what it means.
    """

    db: Annotated[str, parse_path, "The database file, which is made with mode 0600, or a postgresql:// URL."] = (
        "findings.db"
    )
    api_key: Annotated[
        str, parse_key, "A key accepted as a full one of client default, for CI jobs; 16 characters or more."
    ] = ""
    max_body: Annotated[int, parse_count, "Bytes of a body. A screenshot has its place in one."] = 16 * SIZES["m"]
    max_sarif: Annotated[int, parse_count, "Bytes of a SARIF document, which holds all that a scanner found."] = (
        64 * SIZES["m"]
    )
    max_batch: Annotated[int, parse_count, "Tasks in a batch. One is stored in a fraction of a second."] = 1000
    busy_timeout: Annotated[
        float, parse_duration, "How long a write waits while another process has the database locked."
    ] = 10.0
    run_timeout: Annotated[
        float, parse_duration, "A run without any request for so long is failed: its agent has died. 0: never."
    ] = 24 * 3600.0
    schema_timeout: Annotated[
        float,
        parse_duration,
        "For the extension checks of one request. A task gets an eighth of it, a schema two fifths.",
    ] = 2.0
    body_timeout: Annotated[float, parse_duration, "For a body to arrive, from a slow client too."] = 30.0
    synchronous: Annotated[
        str,
        partial(parse_word, {"full": "FULL", "extra": "EXTRA", "normal": "NORMAL"}),
        "FULL, EXTRA or NORMAL, which is faster and loses the last commits in a power cut.",
    ] = "FULL"
    cache: Annotated[
        int, parse_size, "Bytes of the file that each process keeps in memory; 256m for the indexes of a million tasks."
    ] = 24 * SIZES["m"]
    keep: Annotated[float, parse_keep, "`serve` removes runs that finished longer ago, as `prune` does: 365d, say."] = (
        0.0
    )
    log: Annotated[
        str,
        partial(parse_word, {"json": "json", "text": "text", "": ""}),
        "json or text: a line for each request on standard error. Empty for none.",
    ] = ""
    base_url: Annotated[
        str, parse_base_url, "What links begin with behind a proxy that serves the API under a prefix."
    ] = ""
    metrics: Annotated[bool, parse_flag, "1: figures for Prometheus at /metrics. Needs the extra of that name."] = False
    webhook_private: Annotated[
        bool,
        parse_flag,
        "1: webhooks may be at any address, also of this machine and of networks that the world does not reach.",
    ] = False

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return what each setting is, by the variable of the environment that sets it."""
        hints = get_type_hints(cls, include_extras=True)
        return {f"FINDINGS_{name.upper()}": hint.__metadata__[1] for name, hint in hints.items()}

    @classmethod
    def read(cls, **given: Any) -> Settings:
        """Return the settings of the environment, with `given` ones before them; text is parsed like the environment's.

        :raises ConfigurationError: for a setting that is unknown or makes no sense.
        """
        known = get_type_hints(cls, include_extras=True)
        warn_of_misspelled({*OTHER_VARIABLES, *map(str.upper, known)})
        chosen: dict[str, Any] = {name: told for name in known if (told := os.environ.get(f"FINDINGS_{name.upper()}"))}
        chosen |= {name: value for name, value in given.items() if value is not None}
        for name, value in chosen.items():
            if name not in known:
                raise ConfigurationError(f"unknown setting {name!r}; known: {', '.join(known)}")
            parse, _ = known[name].__metadata__
            try:
                chosen[name] = parse(f"{value:f}" if isinstance(value, float) else str(value))
            except ValueError as error:
                raise ConfigurationError(f"FINDINGS_{name.upper()}: {error}") from None
        return cls(**chosen)


# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------

REPEATED_TEXT = 200  # characters of the caller's text that an error repeats
LISTED_PROBLEMS = 100


def truncate(text: str, length: int = REPEATED_TEXT) -> str:
    """Shorten a caller's text, to what an error may repeat unless it says otherwise."""
    return text if len(text) <= length else text[: length - 1] + "…"


def scalar_preview(value: Any) -> Any:
    """Return a value as an error may show it: text cut, what is long or no scalar left out."""
    if isinstance(value, str):
        return truncate(value)
    scalar = isinstance(value, (bool, int, float)) and len(str(value)) <= REPEATED_TEXT
    return value if scalar else UNSET


class Problem(Struct, omit_defaults=True):
    """One thing that is wrong with a request: where (`pointer` into the body, RFC 6901, or `parameter`) and what."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    value: Any = UNSET

    def below(self, prefix: str) -> Problem:
        """Return the same problem, of something that stands at `prefix` in the body."""
        return replace(self, pointer=f"{prefix}{self.pointer or ''}")


class ServiceError(Exception):
    """The root of what a request can be answered with besides success (RFC 9457)."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init_subclass__(cls, status: int = 0, code: str = "") -> None:
        cls.status, cls.code = status or cls.status, code or cls.code

    def __init__(self, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = problems


class MalformedJSON(ServiceError, status=400, code="malformed_json"):
    """The body is not one UTF-8 JSON value."""


class InvalidParameter(ServiceError, status=400, code="invalid_parameter"):
    """A query parameter or header is unknown, repeated, malformed or out of range."""

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(f"{truncate(parameter)}: {detail}", [Problem(detail, parameter=truncate(parameter))])


class Unauthorized(ServiceError, status=401, code="unauthorized"):
    """There is no key, or none that is good (any more), or one for users without a user."""

    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError, status=403, code="forbidden"):
    """The key's level is too low, or a browser says that another site makes a signed-in user write."""


class Missing(ServiceError, status=404, code="not_found"):
    """The path or id is unknown, or another client's."""


class WrongMethod(ServiceError, status=405, code="method_not_allowed"):
    """The path has other methods."""

    def __init__(self, allowed: str, detail: str = "") -> None:
        super().__init__(detail or f"This path answers {allowed}.")
        self.headers = {"Allow": allowed}


class RunFinished(ServiceError, status=409, code="run_finished"):
    """The run is completed or failed, and stays so."""


class ProjectTypeExists(ServiceError, status=409, code="project_type_exists"):
    """The name is taken by another definition."""


class IdempotencyConflict(ServiceError, status=409, code="idempotency_conflict"):
    """The Idempotency-Key was used for another body, or what it was answered with is deleted."""


class ChangedMeanwhile(ServiceError, status=412, code="changed_meanwhile"):
    """What `If-Match` or `ifMatch` was made of is not what is stored any more."""


class BodyTooLarge(ServiceError, status=413, code="body_too_large"):
    """The body is over the limit."""


class UnsupportedMediaType(ServiceError, status=415, code="unsupported_media_type"):
    """The body is not declared as plain JSON."""


class ValidationFailed(ServiceError, status=422, code="validation_failed"):
    """The body is JSON, but breaks rules; `problems` lists one at least for each bad task."""

    def __init__(self, problems: Sequence[Problem], *, complete: bool = True) -> None:
        count = f"{'' if complete else 'At least '}{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        more = f"; the first {LISTED_PROBLEMS} are listed" if len(problems) > LISTED_PROBLEMS else ""
        self.complete = complete
        super().__init__(f"{count} in the request body{more}; nothing was stored.", problems)


class UnknownProjectType(ServiceError, status=422, code="unknown_project_type"):
    """A project type is named that is not registered."""


class ExtensionCheckTimeout(ServiceError, status=422, code="extension_check_timeout"):
    """Checking the extensions, or a schema itself, took too long."""


class Busy(ServiceError, status=503, code="busy"):
    """The database stayed locked past the time-out, or there was no room for a large body."""

    headers = MappingProxyType({"Retry-After": "1"})

    def __init__(self, cause: str = "The database is locked by another process") -> None:
        super().__init__(f"{cause}; nothing was stored. Try again.")


class TryAgain(Busy):
    """An engine with several writers undid what one of them did, through no fault of that: it may be done again.

    Whoever began the transaction does so; nobody else gets to see this.
    """


class StorageFull(ServiceError, status=503, code="storage_full"):
    """The database cannot be read or written now."""

    headers = MappingProxyType({"Retry-After": "10"})

    def __init__(self, cause: str) -> None:
        super().__init__(f"The database cannot be used now ({cause}); nothing was stored. Try again later.")


class InternalError(ServiceError):
    """A bug: its traceback is in the log and nowhere else."""


class DatabaseUnusable(Exception):
    """There is no database of this service, or it cannot be opened; the message says why and what would help."""


def known_error(error: BaseException) -> ServiceError | None:
    """Return what a caller is told of an exception of ours or the database's, None when it is a bug.

    https://www.sqlite.org/rescode.html: the low byte is the primary result code. Only errors of SQLite have one.
    """
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, DatabaseUnusable):
        return StorageFull(str(error))
    memory = sqlite3.SQLITE_NOMEM  # for which Python's sqlite3 raises MemoryError
    code = memory if isinstance(error, MemoryError) else getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return Busy()
    causes = {
        memory: "there is not enough memory",
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_IOERR: "reading or writing failed, or the disk or a quota is full",
        sqlite3.SQLITE_READONLY: "it is read-only",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
        sqlite3.SQLITE_CORRUPT: "it is damaged",
        sqlite3.SQLITE_NOTADB: "it is no database",
    }
    cause = causes.get(code)
    return StorageFull(cause) if cause else None


class ProblemDetails(Struct, kw_only=True):
    """An error as `application/problem+json` (RFC 9457)."""

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[Problem] | UnsetType = UNSET


# ---------------------------------------------------------------------------
# Models: what a request may hold, and what an answer holds
# ---------------------------------------------------------------------------

Value = TypeVar("Value")
Checked = TypeVar("Checked", bound=Struct)
# What msgspec knows of a model stands at the model's class while it is still being made, and a thread that uses the
# half of it ends the process. So only one makes a decoder at a time, and what is converted has had its decoder made.
LEARNING = threading.RLock()


@cache
def decoder(model: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a model, made once."""
    with LEARNING:
        return msgspec.json.Decoder(model)


def converted(value: Any, model: type[Checked]) -> Checked:
    """Return a value as its model. :raises msgspec.ValidationError: when it is none."""
    decoder(model)
    return msgspec.convert(value, model)


KIB = 1024
JSON_TYPE = "application/json"
NESTING = 100  # levels of arrays and objects in a body
NO_NUL = {"pattern": "^[^\\u0000]*$"}
NO_COMMA = {"pattern": "^[^\\u0000,]+$"}
SEARCH_TEXT = {"pattern": "^[^\\u0000]*[^\\u0000\\s][^\\u0000]*$"}
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"
NOT_BLANK = r"\S"
# Without spaces and control characters: browsers drop them, and so would run `java\tscript:`.
PRINTABLE = r"[^\x00-\x20\x7f]"
ABSOLUTE_URL = rf"^[A-Za-z][A-Za-z0-9+.-]*:{PRINTABLE}+\Z"
HTTP_URL = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://([^\x00-\x20\x7f/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f/?#@:\[\]\\]+)"
    rf"(:[0-9]{{1,5}})?([/?#]{PRINTABLE}*)?\Z"
)
# A place in a list: behind an item, in a list by severity behind one that had that severity; in a history, which
# only grows, behind so many entries.
ITEM_CURSOR = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"
ENTRY_CURSOR = r"^[0-9]{1,15}\Z"
SEVERITY_CURSOR = r"^((critical|high|medium|low|info)\.)?" + ITEM_CURSOR.removeprefix("^")

CONTROLS = r"\x00-\x1f\x7f-\x9f"  # Unicode's category Cc
BRANCH_NAME = rf"^[^{CONTROLS}]*\Z"
LABEL = rf"^[^\S{CONTROLS}]*[^\s{CONTROLS}][^{CONTROLS}]*\Z"
ASSIGNEE = r"^([^\x00]*[^\s\x00][^\x00]*)?\Z"

# The patterns of the models, none of which backtracks, and what they are called in an error.
PATTERNS = {
    NO_NUL["pattern"]: "must not contain U+0000",
    NO_COMMA["pattern"]: "must not be empty, nor contain a comma",
    SEARCH_TEXT["pattern"]: "must not be blank",
    NAME_PATTERN: "must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit",
    ABSOLUTE_URL: "must be an absolute URL with a scheme, without spaces",
    HTTP_URL: "must be an absolute http or https URL, without spaces",
    BRANCH_NAME: "must not contain control characters",
    LABEL: "must not be blank, nor contain control characters",
    ASSIGNEE: "must not be blank; leave it empty for nobody",
    ITEM_CURSOR: "is no place in this list; follow the next link as it is",
    ENTRY_CURSOR: "is no place in this history; follow the next link as it is",
    SEVERITY_CURSOR: "is no place in this list; follow the next link as it is",
    NOT_BLANK: "must not be blank",
}

Severity = Literal["critical", "high", "medium", "low", "info"]
TaskStatus = Literal["open", "in_progress", "resolved", "dismissed"]
Reason = Literal["fixed", "false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate"]
RunStatus = Literal["running", "completed", "failed"]
Level = Literal["read", "agent", "full"]
FailOn = Literal[Severity, "none"]
SEVERITIES = get_args(Severity)
UNFINISHED = ("open", "in_progress")
UNCHECKED = "not-checked"  # the rule of what a scanner did not look at
LEVELS = get_args(Level)
RANKS = {name: rank for rank, name in enumerate(reversed(SEVERITIES), start=1)}


def at_most(characters: int, **rules: Any) -> Meta:
    """Return the constraints of a text of at most so many characters without U+0000."""
    return Meta(max_length=characters, extra_json_schema=NO_NUL, **rules)


def described(text: str) -> Meta:
    """Return the OpenAPI description of a parameter."""
    return Meta(description=text)


Text = Annotated[str, Meta(extra_json_schema=NO_NUL)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Title = Annotated[str, Meta(max_length=500, pattern=NOT_BLANK)]  # what is empty is blank
ExternalId = Annotated[str, at_most(256, min_length=1)]
TargetUrl = Annotated[str, Meta(max_length=2048, pattern=HTTP_URL)]
BranchName = Annotated[str, Meta(min_length=1, max_length=255, pattern=BRANCH_NAME)]
EvidenceUrl = Annotated[str, Meta(max_length=256 * KIB, pattern=ABSOLUTE_URL)]
Rule = Annotated[str, Meta(max_length=256, pattern=LABEL)]
Location = Annotated[str, Meta(max_length=1024, pattern=LABEL)]
Tag = Annotated[str, Meta(max_length=64, pattern=LABEL)]
FREE_FORM = "Any JSON object, returned exactly as it was sent. No text and no name in it may contain U+0000."
JsonObject = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "type": "object",
            "description": FREE_FORM,
            "propertyNames": NO_NUL,
            "additionalProperties": {},  # a schema that refers to itself is more than generators of clients take
        }
    ),
]
OBJECT_OR_NULL = Meta(extra_json_schema={"type": ["object", "null"]})
SentObject = Annotated[JsonObject, OBJECT_OR_NULL]
MaybeSchema = Annotated[Raw, OBJECT_OR_NULL]  # a JSON Schema, or null
LongText = Annotated[str, at_most(64 * KIB)]
BulkText = Annotated[str, at_most(256 * KIB)]
Comment = Annotated[str, at_most(4000)]
NonEmpty = Annotated[str, Meta(min_length=1, extra_json_schema=NO_NUL)]


class Record(Struct, frozen=True, gc=False):
    """The base of values that are made often; none holds itself, so that the garbage collector need not look at it."""


NOT_SENT: Any = msgspec.field(default_factory=Raw)  # of a free-form member; another default would be in the schemas


class Model(Struct, rename="camel"):
    """The base of all that is answered: camelCase outside, snake_case inside, fields in the order of the columns."""


class RequestModel(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The base of all that is sent: an unknown field is an error, because dropping it would lose data."""


class Evidence(RequestModel, gc=False):
    """One piece of evidence: an external file (`url`) or inline text (`content`), with a caption."""

    type: Annotated[str, at_most(64)] | None = None
    label: Annotated[str, at_most(500)] | None = None
    url: EvidenceUrl | None = None
    content: BulkText | None = None


class RemediationStep(RequestModel, gc=False):
    """One step of the fix, as reported; `step` is its position when left out."""

    instruction: Text
    step: Annotated[float, Meta(ge=1, le=10_000, multiple_of=1)] | None = None


class StoredStep(Model, gc=False):
    """One step of the fix, in step order."""

    step: int
    instruction: str


class SuccessCriterion(RequestModel, gc=False):
    """What must be true after the fix, and whether a machine can check it (false when left out)."""

    description: Text
    automatable: bool | None = None


class TaskReport(RequestModel):
    """One finding, as an agent reports it.

    `rule` is what it breaks, by the finder's own id, `location` where: a path and line, an address, a selector.
    `formerExternalIds` are ids under which it was reported before.
    """

    title: Title
    severity: Severity
    status: TaskStatus | None = None
    external_id: ExternalId | None = None
    description: LongText | None = None
    evidence: Annotated[list[Evidence], Meta(max_length=100)] | None = None
    remediation: Annotated[list[RemediationStep], Meta(max_length=100)] | None = None
    success_criteria: Annotated[list[SuccessCriterion], Meta(max_length=100)] | None = None
    extensions: SentObject = NOT_SENT
    rule: Rule | None = None
    location: Location | None = None
    tags: Annotated[list[Tag], Meta(max_length=20)] | None = None
    former_external_ids: Annotated[list[ExternalId], Meta(max_length=5)] | None = None


class TaskBatch(RequestModel):
    """Several findings, stored all or none."""

    tasks: list[TaskReport]


class TaskUpdate(RequestModel):
    """A triage decision, at least one of these: a `reason` is of what is resolved or dismissed, "" assigns nobody."""

    status: TaskStatus | None = None
    comment: Comment | None = None
    reason: Reason | None = None
    assignee: Annotated[str, Meta(max_length=200, pattern=ASSIGNEE)] | None = None


class RunStart(RequestModel):
    """What an agent is about to examine; without a `branch`, the target's main line."""

    project_type: Annotated[str, at_most(100)]
    target_url: TargetUrl | None = None
    branch: BranchName | None = None
    metadata: SentObject = NOT_SENT


LowestSeverity = Annotated[FailOn, described("The lowest severity that fails the run; with `none` nothing does.")]
JudgedFindings = Annotated[
    Literal["new", "all"], described("`new` for what the baseline did not report, `all` for everything.")
]
BaselineRun = Annotated[
    NonEmpty,
    described(
        "Another completed run of the same project type and target. Without it, the latest"
        " completed run of the main line before this one that is not partial."
    ),
]


class GateOptions(RequestModel):
    """Options of the gate for the verdict on a completed run; null is the default."""

    fail_on: LowestSeverity | None = None
    only: JudgedFindings | None = None
    baseline: BaselineRun | None = None


class RunUpdate(RequestModel):
    """How a run ended, or more metadata of it; at least one of `status` and `metadata`.

    With completed only, `resolveMissing` resolves what it did not report any more, and `gate` has the options of its
    verdict. Members of `metadata` replace those of the run, null removes one.
    """

    status: Literal["completed", "failed"] | None = None
    status_reason: Annotated[str, at_most(1000)] | None = None
    resolve_missing: bool | None = None
    gate: GateOptions | None = None
    metadata: SentObject = NOT_SENT


class ProjectTypeUpdate(RequestModel):
    """A project type's definition; what is left out takes its default."""

    name: Name | None = None
    label: Annotated[str, at_most(200)] | None = None
    description: Annotated[str, at_most(10_000)] | None = None
    extension_schema: MaybeSchema = NOT_SENT


class ProjectTypeDefinition(ProjectTypeUpdate):
    """A new project type."""

    name: Name


class SeverityCounts(Model):
    """Tasks by severity."""

    critical: int = 0
    high: int = 0
    medium: int = 0
    low: int = 0
    info: int = 0


class StatusCounts(Model):
    """Tasks by status."""

    open: int = 0
    in_progress: int = msgspec.field(default=0, name="in_progress")
    resolved: int = 0
    dismissed: int = 0


class Summary(Model):
    """How many tasks there are of each severity and status, as they stand now."""

    total: int
    by_severity: SeverityCounts
    by_status: StatusCounts


class Submitted(Model):
    """What a run's submissions did; `resolved` is what `resolveMissing` did."""

    created: int
    updated: int
    reopened: int
    unchanged: int
    resolved: int


class Verdict(Model):
    """Whether a run passed the gate when it was completed: how many findings were new, and how many failed it."""

    pass_: bool = msgspec.field(name="pass")
    fail_on: FailOn
    only: Literal["new", "all"]
    baseline: str | None
    new: int
    offenders: int


class Run(Model):
    """One execution of an agent; without a `branch` it is of the target's main line."""

    id: str
    project_type: str
    target_url: str | None
    branch: str | None
    metadata: JsonObject
    status: RunStatus
    status_reason: str | None
    created_at: str
    updated_at: str
    finished_at: str | None
    submitted: Submitted
    verdict: Verdict | None


class RunWithSummary(Run):
    """One execution of an agent, with the state of what it reported."""

    summary: Summary


class TaskHead(Model, gc=False):
    """A stored finding, as lists show it; `branch` is the one that reported it first, null once the main line has.

    `etag` is another one after each change of it, also of what only the whole task shows.
    """

    id: str
    run_id: str
    last_run_id: str
    project_type: str
    target_url: str | None
    branch: str | None
    external_id: str | None
    title: str
    severity: Severity
    status: TaskStatus
    reason: Reason | None
    assignee: str | None
    created_at: str
    updated_at: str
    last_seen_at: str
    times_seen: int
    rule: str | None
    location: str | None
    tags: list[str]
    etag: str


class Task(TaskHead, gc=False):
    """A stored finding."""

    description: str | None
    evidence: list[Evidence]
    remediation: list[StoredStep]
    success_criteria: list[SuccessCriterion]
    extensions: JsonObject


class TaskResult(Model, gc=False):
    """What became of one submitted task."""

    id: str
    status: TaskStatus
    external_id: str | None
    result: Literal["created", "updated", "reopened", "unchanged"]


class Submission(Model):
    """What a submission did, with its tasks in the order sent."""

    created: int
    updated: int
    reopened: int
    unchanged: int
    tasks: list[TaskResult]


class HistoryEntry(Model):
    """One thing that happened to a task; `by` is the name of the key that did it, and `user` who used that."""

    at: str
    event: Literal["created", "reported", "status", "assigned", "comment"]
    by: str
    user: str | None
    run_id: str | None
    from_: TaskStatus | None = msgspec.field(name="from")
    to: TaskStatus | None
    reason: Reason | None
    assignee: str | None
    comment: str | None
    changed: list[str]


class History(Model):
    """What happened to a task, oldest first; `next` is the link to what came later."""

    history: list[HistoryEntry]
    next: str | None


class ProjectType(Model):
    """A project type, without its schema."""

    id: str
    name: str
    label: str
    description: str
    created_at: str


class ProjectTypeWithSchema(ProjectType):
    """A project type; `extensionSchema` is null when extensions are not checked."""

    extension_schema: MaybeSchema


class ProjectTypes(Model):
    """All project types of the client, by name."""

    project_types: list[ProjectType]


class Page(Model):
    """One page of a list; `next` is the link to the following one, `page` null behind such a link."""

    page: int | None
    limit: int
    total: int
    next: str | None


class RunPage(Page):
    """One page of runs."""

    runs: list[Run]


class TaskPage(Page):
    """One page of tasks, without their bulky fields."""

    tasks: list[TaskHead]


class FullTaskPage(Page):
    """One page of whole tasks, with `view=full`."""

    tasks: list[Task]


class Health(Model):
    """The service can read and write its database."""

    status: Literal["ok"]
    version: str
    sqlite: str | UnsetType = UNSET
    postgresql: str | UnsetType = UNSET


NoComma = Annotated[str, Meta(min_length=1, extra_json_schema=NO_COMMA)]
Moment = typing.NewType("Moment", str)  # read as any ISO 8601, and then as the API writes times
Time = Annotated[Moment, Meta(extra_json_schema={"format": "date-time"})]
CommaList = Annotated[list[Value], Meta(max_length=1000)]
RepeatedParam = Annotated[tuple[Value, ...], Meta(max_length=100)]
WholeOrParts = Annotated[  # a text with commas is meant whole, too
    set[Value], Meta(max_length=1000, extra_json_schema={"uniqueItems": False})
]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class HistoryQuery(RequestModel):
    """Which part of a task's history."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    after: Annotated[str, Meta(pattern=ENTRY_CURSOR)] | None = None


FEW_SKIPPED = 10_000  # rows of a list before a page that is read on the event loop
FEW_RANGES = 10  # project types and branches of one that is; each has up to 40 index ranges


class RunQuery(RequestModel):
    """Filters of runs, and the page: its number, or the cursor that it follows."""

    page: PageNumber | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: Annotated[str, Meta(pattern=ITEM_CURSOR)] | None = None
    project_type: CommaList[NoComma] | None = None
    status: CommaList[RunStatus] | None = None
    target_url: NonEmpty | None = None
    main_line: bool | None = None
    branch: RepeatedParam[NonEmpty] | None = None

    @property
    def may_take_long(self) -> bool:
        """Whether a list reads many index ranges, or skips many rows."""
        ranges = len(self.project_type or "1") * len(self.branch or "1")
        return ranges > FEW_RANGES or (self.page or 1) * self.limit > FEW_SKIPPED


class TaskFilters(RequestModel):
    """Which tasks."""

    status: CommaList[TaskStatus] | None = None
    severity: CommaList[Severity] | None = None
    run_id: CommaList[NoComma] | None = None
    project_type: CommaList[NoComma] | None = None
    target_url: NonEmpty | None = None
    main_line: bool | None = None
    branch: RepeatedParam[NonEmpty] | None = None
    external_id: NonEmpty | None = None
    rule: WholeOrParts[NonEmpty] | None = None
    location: NonEmpty | None = None
    tag: WholeOrParts[NonEmpty] | None = None
    without: Literal["rule", "location", "tag"] | None = None
    new_in: NonEmpty | None = None
    missing_from: NonEmpty | None = None
    assignee: NonEmpty | None = None
    assigned: bool | None = None
    created_since: Time | None = None
    created_before: Time | None = None
    q: Annotated[str, Meta(min_length=1, max_length=500, extra_json_schema=SEARCH_TEXT)] | None = None


class TaskOrder(TaskFilters):
    """Which tasks, in which order, and from where on."""

    after: Annotated[str, Meta(pattern=SEVERITY_CURSOR)] | None = None
    sort: Annotated[
        Literal["-createdAt", "createdAt", "severity"],
        Meta(extra_json_schema={"x-enum-varnames": ["NEWEST_FIRST", "OLDEST_FIRST", "SEVERITY"]}),
    ] = "-createdAt"


class TaskQuery(TaskOrder):
    """Which page of a list of tasks."""

    page: PageNumber | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    view: Literal["default", "full"] = "default"

    @property
    def may_take_long(self) -> bool:
        """Whether many tasks may have to be looked at to list a few, because no index or counter tells which."""
        reporters, marks = len(self.run_id or ()) + len(self.branch or ()), len(self.rule or ()) + len(self.tag or ())
        looked_at: list[Any] = [self.q, self.missing_from, self.created_since, self.created_before]
        looked_at += [self.assignee, self.assigned, self.location, self.without, self.new_in]
        if reporters or marks:
            looked_at += [self.project_type, self.target_url]
        if reporters:
            looked_at += [self.status, self.severity, self.main_line]
        is_far_down = (self.page or 1) * self.limit > FEW_SKIPPED
        many = reporters + marks > 1 or len(self.project_type or ()) > FEW_RANGES
        return many or is_far_down or any(each is not None for each in looked_at)


# The models as JSON Schemas, which OpenAPI publishes, and by which everything is told that is wrong with a request.

COMPONENTS = "#/components/schemas/"
TASK_STATUSES = get_args(TaskStatus)
REASONS = get_args(Reason)
RUN_STATUSES = get_args(RunStatus)
ENUMERATIONS = {"Reason": REASONS, "RunStatus": RUN_STATUSES, "Severity": SEVERITIES, "TaskStatus": TASK_STATUSES}
SHOWS_NOTHING = "must have a label, a url or a content"
COMPLETED_ALONE = "goes with the status completed only"
DECIDES_NOTHING = "must have a status, a comment, a reason or an assignee"
FINISHED_ALONE = "goes with the statuses resolved and dismissed only"


def schema_without(*names: str) -> dict[str, Any]:
    """Return the schema of an object that has none of some members."""
    return {"type": "object", "properties": {name: {"const": None} for name in names}}


# What a model must not be, which it cannot express itself. A decision may be about one task or several.
WITHOUT_CONTENT = schema_without("label", "url", "content")
CHANGES_NOTHING = "must have a status or metadata"
WITHOUT_STATUS = "requires a status"
WITHOUT_UPDATE = schema_without("status", "metadata")
NOT_COMPLETED = {"status": {"enum": ["failed", None]}}
RESOLVED_UNCOMPLETED = {"properties": NOT_COMPLETED | {"resolveMissing": {"const": True}}}
JUDGED_UNCOMPLETED = {"properties": NOT_COMPLETED | {"gate": {"type": "object"}}}
REASON_ALONE = {"properties": {"status": {"const": None}, "statusReason": {"type": "string"}}}
WITHOUT_DECISION = schema_without("status", "comment", "reason", "assignee")
UNFINISHED_FOR_A_REASON = {
    "properties": {"status": {"enum": list(UNFINISHED)}, "reason": {"type": "string"}},
    "required": ["status"],
}
# Generators of clients make nothing of `not`, and so make one class of each of these models where `anyOf` would make
# them three; one for Go has no word for a type null in it.
RULES: dict[str, dict[str, Any]] = {
    "Evidence": {"not": WITHOUT_CONTENT},
    "RunUpdate": {
        "not": WITHOUT_UPDATE,
        "dependentSchemas": {
            "resolveMissing": {"not": RESOLVED_UNCOMPLETED},
            "gate": {"not": JUDGED_UNCOMPLETED},
            "statusReason": {"not": REASON_ALONE},
        },
    },
    "TaskUpdate": {"not": WITHOUT_DECISION, "dependentSchemas": {"reason": {"not": UNFINISHED_FOR_A_REASON}}},
}


def schemas_of(models: Iterable[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the reference to each model, and the components that they refer to. Patterns are Python's.

    The enumerations that have a name are referred to, too: each is replaced in the text of the schemas.
    """
    listed = list(models)
    references, components = msgspec.json.schema_components(listed, ref_template=COMPONENTS + "{name}")
    text = json.dumps(components)
    for name, values in ENUMERATIONS.items():
        text = text.replace(json.dumps({"enum": sorted(values)}), json.dumps({"$ref": f"{COMPONENTS}{name}"}))
    ruled = {name: schema | RULES.get(name, {}) for name, schema in json.loads(text).items()}
    named = {name: {"type": "string", "enum": list(values)} for name, values in ENUMERATIONS.items()}
    return dict(zip(listed, references, strict=True)), ruled | named


# ---------------------------------------------------------------------------
# Optional modules: findings_features and findings_adapters, which may be missing
# ---------------------------------------------------------------------------

FORMER_IDS = "findings_features.former_ids"
GATE = "findings_features.gate"
SEARCH = "findings_features.search"
SARIF = "findings_adapters.sarif"
MIGRATIONS = "findings_features.migrations"
SERVING = "findings_adapters.serving"
STREAMS = "findings_features.streams"
# The modules that add to the API, each with a pattern of the requests that it answers, as "METHOD /path".
API_MODULES = {
    "findings_adapters.markdown": "",
    "findings_adapters.page": r"GET /",
    "findings_adapters.quick_check": "",
    SARIF: "",
    "findings_adapters.webhooks": r"[A-Z]+ /api/v1/webhooks(/[^/]+){0,2}",
    "findings_features.brief": "GET /api/v1/brief",
    "findings_features.deletion": r"DELETE /api/v1/(runs|tasks|project-types)/[^/]+",
    "findings_features.events": "GET /api/v1/events",
    "findings_features.exports": "",
    FORMER_IDS: "",
    GATE: r"GET /api/v1/runs/[^/]+/gate",
    "findings_features.groups": "GET /api/v1/groups",
    "findings_features.me": "GET /api/v1/me",
    "findings_features.openapi": r"GET /api/v1/openapi\.json",
    "findings_features.overview": "GET /api/v1/overview",
    "findings_features.planner": "",
    SEARCH: "",
    "findings_features.triage": "PATCH /api/v1/tasks",
}
OBSERVER_MODULES = {"log": "findings_features.access_log", "metrics": "findings_adapters.metrics"}  # by a setting
ENGINE_MODULES = dict.fromkeys(("postgresql", "postgres"), "findings_adapters.postgres")  # by a URL's scheme


class Migration(Struct, frozen=True):
    """A step to a newer schema: a script, behind which schema.sql is run, and what fills the rows that are there."""

    script: str
    fill: Callable[[Connection], None] | None = None


class Registry(Struct):
    """The extension points of the core, to which each module adds by its `register`.

    Operations have a method and path as key, formats a media type, engines the scheme of a URL, migrations the version
    that they lead to, observers a setting, and files of the page a path: "/", or one below PAGE_FOLDER. Companions are
    context managers that run beside a server. `refresh` updates stored words after an update of Unicode.
    """

    operations: dict[tuple[str, str], Operation] = {}
    submission_formats: dict[str, SubmissionFormat] = {}
    list_exports: dict[str, Export] = {}
    engines: dict[str, Callable[[Settings], Database]] = {}
    migrations: dict[int, Migration] = {}
    refresh: Callable[[Database], None] = lambda _: None
    page_files: dict[str, Callable[[ApiRequest], Response]] = {}
    plans: Callable[[Connection, str, str, Filter, str], Iterable[ListPlan]] = lambda *_: ()
    search: Callable[[str], Search] | None = None
    baseline: Callable[[Connection, str, RunKey], RunKey | None] | None = None
    judge: Callable[[Connection, str, RunKey, GateOptions | None], Verdict] | None = None
    find_by_former_ids: Callable[[Connection, Submitting, Sequence[NewTask], set[str]], dict[str, StoredFinding]] = (
        lambda *_: {}
    )
    keep_former_ids: Callable[[Connection, Submitting, Mapping[int, Sequence[str]]], object] = lambda *_: None
    fast_validator: Callable[[Any, int], Callable[[Any, int], bool]] = lambda *_: lambda *_: False
    serve: Callable[[Settings, str, int, int], None] | None = None
    make_demo: Callable[[], str] = str
    observers: dict[str, Callable[[Service], object]] = {}
    companions: list[Callable[[Service], AbstractContextManager[object]]] = []
    streams: Callable[[], AbstractContextManager[object]] = nullcontext  # standard streams of commands

    def add_operations(self, *operations: Operation) -> None:
        """Have requests answered by more operations."""
        self.operations.update({(each.method, each.path): each for each in operations})


REGISTRY = Registry()


@cache
def load_module(name: str) -> str:
    """Import an optional module beside this one, and register it.

    Return "" if it was imported, and otherwise "NAME, which is not installed" for that module or one that it needs.
    """
    if __name__ == "__main__":  # modules import this one by its name
        sys.modules["findings_service"] = sys.modules["__main__"]
    try:
        spec = importlib.util.find_spec(name)
        own, file = Path(__file__), Path((spec and spec.origin) or "/")  # no origin: a folder without __init__.py
        if own.absolute().parent not in file.absolute().parents and own.resolve().parent not in file.resolve().parents:
            raise ModuleNotFoundError(name=name)
        importlib.import_module(name).register()
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not missing.startswith(("findings_features", "findings_adapters")):
            raise
        return f"{missing}, which is not installed"
    return ""


def load_modules() -> None:
    """Import all modules that add to the API."""
    for name in API_MODULES:
        load_module(name)


class Listeners(Struct):
    """Functions that the metrics and the log register, called before the caller gets its response.

    Of each request that is answered: its call, the status, the bytes of the body, and the seconds that it took. Of each
    group of writes that is committed: how many requests it has. `write_line` is a server's way to write the log.
    """

    answered: list[Callable[[ApiRequest, int, int, float], object]] = []
    committed: list[Callable[[int], object]] = []
    write_line: Callable[[str], object] | None = None


# ---------------------------------------------------------------------------
# Database: what the service asks of an engine
# ---------------------------------------------------------------------------
#
# An engine gives connections to readers and writers. What stands behind this section knows no more of it than
# `Connection` and `Database`, and speaks SQL that SQLite and PostgreSQL both read. Another engine than SQLite is a
# module's, and may have many connections at once.

SCHEMA_VERSION = 12
LARGE_WAL = 64 * 1024 * 1024  # bytes; the maintenance checkpoints a larger one
MOST_WAL = 4 * LARGE_WAL  # bytes; slow reads checkpoint a larger one before they start
ENGINE_ERRORS = (sqlite3.Error, Busy, StorageFull)  # what engines raise when they cannot do what they should


def schema_path() -> Path:
    """Return where schema.sql is: in a checkout beside the module, in a wheel in a folder of our own.

    Beside the module in site-packages another distribution's `schema.sql` might lie.
    """
    here = Path(__file__).resolve().parent
    packaged = here / "findings_service_data" / "schema.sql"
    return packaged if packaged.exists() else here / "schema.sql"


BRANCHES = " branches"  # ends the scope of a counter of what is not of the main line
BY_TEXT = ("tasks rule:", "tasks tag:")  # begin the scopes that have a finding's own texts
CounterKey = tuple[str, str, str, int]  # what a counter counts: client, scope, status, severity
UseKey = tuple[str, str, str | int]  # what was used: client, table, a key's id or a run's seq
WAITING = 10  # seconds of elapsed time that a statement may take for each second of processor time


class Cursor(Protocol):
    """What a statement has come to: its rows, each a tuple of texts, whole numbers and None."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    def fetchone(self) -> Any:
        """Return the next row, None behind the last."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Give the rows that are left."""


class CounterBuffer(Struct):
    """Changes of counters, written once for a whole transaction, however many requests share it."""

    changes: Counter[CounterKey] = msgspec.field(default_factory=Counter)

    def add(self, client_id: str, scopes: Iterable[str], status: str, severity: int, n: int) -> None:
        """Add `n` to the counters of one status and severity in some scopes."""
        for scope in scopes:
            self.changes[client_id, scope, status, severity] += n

    def select(self, client_id: str, scopes: Container[str]) -> list[tuple[str, str, int, int]]:
        """Return the changes in some scopes that are not written yet: scope, status, severity, n."""
        return [(*key[1:], n) for key, n in self.changes.items() if key[0] == client_id and key[1] in scopes]

    def write(self, connection: Connection) -> None:
        """Write the changes. Counters of 0 are deleted if they name a rule or a tag, or if the transaction erases."""
        erases = connection.transaction.erases
        connection.executemany(
            """INSERT INTO counters (client_id, scope, status, severity, n) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT (client_id, scope, status, severity) DO UPDATE SET n = counters.n + excluded.n""",
            [(*key, n) for key, n in self.changes.items() if n],
        )
        fewer = {key[:2] for key, n in self.changes.items() if n < 0 and (erases or key[1].startswith(BY_TEXT))}
        if fewer:
            connection.executemany(
                "DELETE FROM counters WHERE client_id = ? AND scope IN (?, ?) AND n = 0",
                [(client_id, scope, scope + BRANCHES) for client_id, scope in sorted(fewer)],
            )
        self.changes.clear()


class Transaction(Struct):
    """State of an open transaction: the counters that it has to write, and whether it erases anything permanently."""

    counters: CounterBuffer = msgspec.field(default_factory=CounterBuffer)
    erases: bool = False


class Connection(ABC):
    """A connection to a database.

    Statements are SQL that SQLite and PostgreSQL both read, with a `?` for each parameter. Each names the client of
    every row that it touches. `transaction` is that of a connection which writes.
    """

    transaction: Transaction
    is_late: Callable[[], bool] = bool  # whether the time of `limited` is over

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open. An engine may have ended one by itself, as on a full disk."""

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run a statement."""

    @abstractmethod
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        """Run a statement that gives no rows once for each of some lots of parameters."""

    def stream(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Any]:
        """Give the rows of a statement, which are large: those that nobody asks for take no memory."""
        return self.execute(sql, parameters)

    @abstractmethod
    def take_seqs(self, client_id: str, count: int, newest: int) -> range:
        """Return seqs for new tasks of a client, which are stored next. Nobody else gives any of its away meanwhile.

        :param newest: the seq of its newest task when the request began, 0 where it had none.
        """

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Limit the processor time of the block, in seconds; the engine interrupts a statement that is running then.

        Elapsed time counts only from ten times as much on, so that a busy machine does not make a list fail.

        :raises TimeoutError: when they are over.
        """
        worked, waited = time.thread_time() + seconds, time.monotonic() + WAITING * seconds
        self.is_late = lambda: time.thread_time() > worked or time.monotonic() > waited
        try:
            yield
        finally:
            self.is_late = bool

    def merged(self, ranges: Sequence[str], order: str, most: int) -> str:  # noqa: ARG002 - of each, for engines that sort
        """Return what merges index ranges without doubles; SQLite reads them side by side, and none to its end.

        :param ranges: statements, each of which gives a column `seq`, and others that the order names.
        :param most: how many rows of each are wanted.
        """
        return " UNION ".join(ranges)

    def one_of(self, statement: str) -> str:
        """Return the condition of being what a statement gives, which has one column and is run once."""
        return f"IN ({statement})"

    @abstractmethod
    def integrity_errors(self) -> Iterator[str]:
        """Tell what the engine itself finds wrong with the database, and whether all of the schema is there."""


CLOCK_JUMP, CLOCK_DISTRUST = 86_400.0, 3600.0  # seconds


def seconds_ahead() -> float:
    """Return by how much the system clock is ahead of the monotonic one."""
    return datetime.fromisoformat(timestamp()).timestamp() - time.monotonic()


class Database(ABC):
    """An application's database, whose methods may be called in all threads.

    They raise a `ServiceError`, an error of the engine that `known_error` knows, or `DatabaseUnusable`. `version` is
    the number of commits of this process, `name` the path as given, or the URL without its password, and `folder` one
    for temporary files, None for the system's. `threads` is how many may read and write at once, each on a connection
    of its own; 0 is one reader and one writer, neither of which may wait for long.
    `advice` says what to do instead of a command that the engine has a tool of its own for.
    """

    threads: int = 0
    advice: ClassVar[Mapping[str, str]] = {}
    engine: tuple[str, str]

    def __init__(self, settings: Settings, name: str, folder: Path | None = None) -> None:
        self.settings, self.name, self.folder = settings, name, folder
        self.version = 0
        self.last_uses: dict[UseKey, str] = {}
        self._uses_lock = threading.Lock()  # for `last_uses`
        self._ahead = seconds_ahead()
        self._trusted_from = 0.0  # as time.monotonic has it

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the connections of an application that is gone: another one in this process may checkpoint then.

        When the interpreter ends, this module's names may be gone too, and connections are closed by themselves.
        """
        if hasattr(self, "settings") and not is_finalizing():
            self.disconnect()

    def trusts_clock(self) -> bool:
        """Return False for an hour after the system clock jumped ahead by more than a day since the last call.

        A machine that was suspended counts as one whose clock jumped: Linux's monotonic clock stops meanwhile.
        """
        ahead = seconds_ahead()
        if ahead - self._ahead > CLOCK_JUMP:
            self._trusted_from = time.monotonic() + CLOCK_DISTRUST
            log.warning(
                "the system clock jumped ahead by %.1f days; no run is failed or removed for being old for an hour",
                (ahead - self._ahead) / UNITS["d"],
            )
        self._ahead = ahead
        return time.monotonic() >= self._trusted_from

    @property
    def location(self) -> str:
        """Where the data is, from wherever one looks."""
        return self.name

    @abstractmethod
    def absence(self) -> str:
        """Say that there is no database with our schema, without making one; "" where there is.

        :raises DatabaseUnusable: when it cannot be opened, or has a schema that this program does not open.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection to a reader."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """Give a connection to a reader whose statements must all see the same moment."""

    def apart(self, lane: str = "read") -> AbstractContextManager[Connection]:  # noqa: ARG002 - or export, webhook
        """Open a separate `snapshot` for a slow read. Only readers of the same lane may wait for it."""
        return self.snapshot()

    @abstractmethod
    def probe(self) -> None:
        """Take the right to write, and give it back: nothing is stored. It takes `HEALTH_TIME` at most."""

    @abstractmethod
    def transaction(
        self, client_id: str | None = None, patience: float | None = None
    ) -> AbstractContextManager[Connection]:
        """Give a connection that writes: all of its statements are durable when this ends, or none is stored.

        :param client_id: whose rows are written; other writers of the client wait. None for what is no client's.
        :param patience: seconds to wait for others who keep the database, or the client, locked; None for what is set.
        """

    def use_later(self, client_id: str, table: str, key: str | int, at: str) -> None:
        """Remember that a key or run was used; the next transaction writes it, so that no read has to."""
        with self._uses_lock:
            self.last_uses[client_id, table, key] = at

    def write_uses(self, patience: float | None = None) -> None:
        """Write what `use_later` remembers, unless there is nothing: client by client."""
        for client_id in sorted({key[0] for key in list(self.last_uses)}):
            with self.transaction(client_id, patience):
                pass

    @abstractmethod
    def owns_maintenance(self) -> bool:
        """Tell whether it is this process's turn to do the maintenance, of those that have the database open."""

    def run_maintenance(self) -> None:  # noqa: B027 - an engine may do it by itself
        """Do what the engine wants done now and then."""

    def close(self) -> None:
        """Write what is left to write, and close the connections; the next use opens others."""
        try:
            self.write_uses()
        except Exception as error:
            log.warning("when keys and runs were used last is not written: %s", error)
        self.disconnect()

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connections, if there are any; the next use opens others."""


# ---------------------------------------------------------------------------
# SQLite, the module's own engine
# ---------------------------------------------------------------------------
#
# Who owns what: a process has two connections to its file. The *writer* alone writes and checkpoints, which keeps
# SQLite's WAL-reset bug out of reach; one thread at a time has it, for a transaction. The *reader* cannot write, and
# sees what was committed last; one thread at a time has it, for a read. So no read waits for a write, for its fsync, or
# for another process's lock. Under `serve` the event loop's thread reads; the server's other thread writes and does
# the maintenance, and reads for that; a request with a long check has a thread of its own, which takes its turn at
# both. Under other WSGI servers every thread does. Only to open, to leave and to close does anybody take both.


CLOCK_STEPS = 4_000  # of SQLite's machine, between two looks at the clock: more than a page of fifty takes


class SQLiteConnection(sqlite3.Connection, Connection):
    """A connection to a file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.transaction = Transaction()

    def take_seqs(self, client_id: str, count: int, newest: int) -> range:  # noqa: ARG002 - seqs are the file's
        """Return seqs for new tasks, behind those of all clients."""
        (first,) = self.execute("SELECT COALESCE(MAX(seq), 0) + 1 FROM tasks").fetchone()
        return range(first, first + count)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Interrupt the statement that is at work when its time is over.

        What reads little is never interrupted, however slow the disk is
        (https://www.sqlite.org/c3ref/progress_handler.html).

        :raises TimeoutError: then.
        """
        with super().limited(seconds):
            self.set_progress_handler(self.is_late, CLOCK_STEPS)
            try:
                yield
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                    raise
                raise TimeoutError from None
            finally:
                self.set_progress_handler(None, 0)

    def integrity_errors(self) -> Iterator[str]:
        """Tell what SQLite itself finds wrong with the file, and what of the schema is missing."""
        for (fault,) in self.execute("PRAGMA integrity_check"):
            if fault != "ok":
                yield f"integrity: {fault}"
        for table, row, parent, _ in self.execute("PRAGMA foreign_key_check"):
            yield f"foreign key: row {row} of {table} has no parent in {parent}"
        if user_version(self) != SCHEMA_VERSION:  # as a backup may have it
            return
        with closing(sqlite3.connect(":memory:")) as fresh:
            fresh.executescript(schema_path().read_text("utf-8"))
            names = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
            present = set(self.execute(names))
            yield from (f"schema: {name} is missing" for (name,) in fresh.execute(names) if (name,) not in present)


def user_version(connection: SQLiteConnection) -> int:
    """Return the schema version of the file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


APPLICATION_ID = 0x46545356


def require_ours(connection: SQLiteConnection, path: str) -> None:
    """Refuse a file that is not ours. :raises DatabaseUnusable: then."""
    # In this order: another process may be making the schema, which comes together with the mark that it is ours.
    filled = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if filled and not ours:
        raise DatabaseUnusable(f"{path} is another program's SQLite database; name another file")


def require_version(name: str, version: int) -> None:
    """Require a schema version of this program, or one that it can migrate, or 0 for an empty file.

    :raises DatabaseUnusable: for any other version.
    """
    if version in (0, SCHEMA_VERSION):
        return
    told = f"{name} has schema version {version}"
    if version > SCHEMA_VERSION:
        raise DatabaseUnusable(f"{told}, newer than this program's {SCHEMA_VERSION}; update findings-service")
    if missing := load_module(MIGRATIONS):
        raise DatabaseUnusable(f"{told}; to bring it to {SCHEMA_VERSION} needs {missing}")
    if version + 1 not in REGISTRY.migrations:
        raise DatabaseUnusable(
            f"{told}, older than any that this program opens; keep it for the program that made it, and name another"
            " database"
        )


def unready(name: str, version: int) -> str:
    """Say that a database has no schema yet, or an older one; "" where it has ours. Nothing is done about it."""
    if not version:
        return f"{name} is empty; `findings-service serve` makes a database of it"
    require_version(name, version)
    told = f"{name} has schema version {version}; `findings-service serve` brings it to {SCHEMA_VERSION}"
    return "" if version == SCHEMA_VERSION else told


def statements_of(script: str) -> Iterator[str]:
    """Cut a script, in which each statement ends with a line of its own, into lots that can be run one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def prepare_schema(connection: SQLiteConnection, path: str) -> None:
    """Create the schema in a new file, or take the steps that lead to it, all of it or nothing."""
    if user_version(connection) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    version = user_version(connection)  # another process may have been faster
    require_version(path, version)
    steps = steps_from(path, version)
    for statement in statements_of("\n".join([*(step.script for step in steps), schema_path().read_text("utf-8")])):
        connection.execute(statement)
    fill(connection, steps)
    connection.execute("COMMIT")


def steps_from(name: str, version: int) -> list[Migration]:
    """Return the steps that lead on from a version of the schema, none from 0, and tell of them if there are any."""
    steps = [REGISTRY.migrations[each] for each in range(version + 1, SCHEMA_VERSION + 1)] if version else []
    if steps:  # nobody is served until they are taken
        told = "%s has schema version %d and is brought to %d, which may take a while"
        log.warning(told, name, version, SCHEMA_VERSION)
    return steps


def fill(connection: Connection, steps: Iterable[Migration]) -> None:
    """Bring rows up to date, behind the scripts of some steps and in their transaction."""
    for step in steps:
        if step.fill:
            step.fill(connection)
    for client_id in select_clients(connection):  # an ETag from before the migration must not match
        raise_revision(connection, client_id)
    connection.transaction.counters.write(connection)
    if not connection.execute("SELECT 1 FROM epochs").fetchone():
        begin_epoch(connection)


def begin_epoch(connection: Connection) -> None:
    """Tell a database from what it was made of: places in the feed of that are none in its own."""
    connection.execute(
        "INSERT INTO epochs (id, epoch) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch",
        (secrets.token_hex(8),),
    )


READERS_SHARE = 8  # one in so many parts of the cache is for who reads: every commit empties that
BUSY_SLICE = 0.02  # seconds that one attempt may block inside SQLite; what waits longer, waits in Python


def connect(settings: Settings, *, read_only: bool = False) -> SQLiteConnection:
    """Open the file with the pragmas that the promises need. It does not checkpoint by itself.

    Only a connection that writes makes a schema.
    On macOS an fsync leaves the data in the disk's own memory, unless it is a full one
    (https://www.sqlite.org/pragma.html#pragma_fullfsync).
    """
    place = identity(settings.db)
    connection = sqlite3.connect(
        f"{Path(settings.db).absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SLICE,
        isolation_level=None,
        check_same_thread=False,
        factory=SQLiteConnection,
        cached_statements=64,  # the longest ones, of lists, have a tenth of a megabyte each
    )
    try:
        require_ours(connection, settings.db)  # before WAL mode, which is written into the file
        if identity(settings.db) != place:  # `restore` had the old file locked; the new one it cannot from here on
            connection.close()
            return connect(settings, read_only=read_only)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            require_version(settings.db, user_version(connection))
            connection.execute("PRAGMA journal_mode = WAL")
        theirs = settings.cache // READERS_SHARE
        connection.executescript(
            f"""PRAGMA synchronous = {settings.synchronous};
                PRAGMA fullfsync = ON;
                PRAGMA checkpoint_fullfsync = ON;
                PRAGMA secure_delete = ON;
                PRAGMA wal_autocheckpoint = 0;
                PRAGMA journal_size_limit = {LARGE_WAL};
                PRAGMA cache_size = -{(theirs if read_only else settings.cache - theirs) // 1024}"""
        )
        if not read_only:
            prepare_schema(connection, settings.db)
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def is_busy(error: BaseException) -> bool:
    """Tell whether `error` is an engine's word for a lock that somebody else holds."""
    return isinstance(known_error(error), Busy)


def retry_while_busy(work: Callable[[], Value], patience: float) -> Value:
    """Return what `work` returns, trying again while the database is locked, for `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_SLICE)


def unusable(path: str, error: Exception) -> DatabaseUnusable:
    """Return the error that says why a database cannot be used: what this process's user may not do, where it is that.

    SQLite says no more than "unable to open database file", and makes files beside it even to read.
    """
    cause = getattr(error, "strerror", None) or error
    folder = Path(path).absolute().parent
    for each, mode, deed in (
        (path, os.W_OK, "write"),
        (path, os.R_OK, "read"),
        (folder, os.W_OK | os.X_OK, "write in"),
    ):
        if os.access(each, os.F_OK) and not os.access(each, mode):
            cause = f"this user may not {deed} {each}"
    return DatabaseUnusable(f"{path} cannot be used: {cause}")


def is_filled(path: str) -> bool:
    """Tell whether there is a file with anything in it."""
    with suppress(OSError):
        return Path(path).stat().st_size > 0
    return False


def open_database(settings: Settings, *, read_only: bool = False) -> SQLiteConnection:
    """Return a connection to the settings' database.

    Without `read_only`, a missing file is created with mode 0600, which its WAL gets, too. It is not created beside the
    WAL or journal of a file that was moved: SQLite would delete that, or apply it to the new file.

    :raises DatabaseUnusable: with one readable line, whatever is wrong with the file.
    """
    path = settings.db
    if sqlite3.sqlite_version_info < (3, 37):  # STRICT tables
        raise DatabaseUnusable(f"Python's SQLite is {sqlite3.sqlite_version}; 3.37 or newer is needed")
    try:
        if not read_only:
            logs = [*filter(is_filled, (f"{os.path.realpath(path)}{suffix}" for suffix in ("-wal", "-journal")))]
            if logs and not os.path.lexists(path):  # in this order: who makes a file makes its log later
                raise DatabaseUnusable(
                    f"there is no {path}, but {logs[0]} of one that was there: put both together, or remove it"
                )
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return retry_while_busy(partial(connect, settings, read_only=read_only), settings.busy_timeout)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error


def identity(path: str) -> tuple[int, int] | None:
    """Return what tells the file at a path from any other: its device and inode. None where there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


CHECKPOINT_LOCK = "-checkpointer"  # the name of a file of our own beside the database ends so
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what a file system without locks says


class CheckpointLock:
    """The lock of the one process that checkpoints a database.

    SQLite before 3.51.3 can corrupt a file when two connections write and checkpoint at the same instant
    (https://www.sqlite.org/wal.html#walresetbug). The system releases the lock however its holder ends. It is on a file
    of its own, because closing any descriptor of the database would drop SQLite's locks on that
    (https://www.sqlite.org/howtocorrupt.html, 2.2). The file is never removed, or two processes could have a lock each.
    On a file system without locks every process checkpoints.
    """

    def __init__(self, db: str) -> None:
        self.path = f"{os.path.realpath(db)}{CHECKPOINT_LOCK}"
        self.held = False
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the right unless another process has it, and tell whether it is held now."""
        try:
            if fcntl is not None and not self.held:
                if self._file is None:
                    self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
                    with suppress(OSError):  # as SQLite does with the WAL, when root was here first
                        owner = Path(self.path.removesuffix(CHECKPOINT_LOCK)).stat()
                        os.fchown(self._file, owner.st_uid, owner.st_gid)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except OSError as error:
            self.held = error.errno in NO_LOCKS
        return self.held

    def release(self) -> None:
        """Let another process take the right."""
        if self._file is not None:
            os.close(self._file)
        self._file, self.held = None, False


# Pages of the WAL after which a commit checkpoints, which takes three more fsyncs. A page that the WAL has several
# times is written once. A larger one would be read for longer after a crash, and grow at the price of each fsync.
CHECKPOINT_PAGES = 12_000
HEALTH_TIME = 2.0  # seconds


class SQLiteDatabase(Database):
    """A process's two connections to its file, and the one way to write through them.

    `checkpointer` is held by one process of those that have the file open.
    """

    engine = "SQLite", sqlite3.sqlite_version

    def __init__(self, settings: Settings) -> None:
        self.checkpoint_lock = CheckpointLock(settings.db)
        self._reading, self._writing = threading.RLock(), threading.RLock()  # who needs both takes them in this order
        self._lanes = {lane: threading.Lock() for lane in ("read", "export", "webhook", "maintenance")}
        self._reader: SQLiteConnection | None = None
        self._writer: SQLiteConnection | None = None  # is there whenever the reader is
        self._is_writing = False  # whether a transaction, or a checkpoint, of this process is in progress
        self._process = 0  # the one that has opened the connections
        self._file: tuple[int, int] | None = None
        self._away = False  # whether the file at the path was found to be another one
        self._truncated_at: object = None  # what others had committed when the WAL was rid of all that was deleted
        absolute = Path(settings.db).absolute()  # wherever we go
        super().__init__(replace(settings, db=str(absolute)), settings.db, absolute.parent)

    @property
    def location(self) -> str:
        """The path of the file, from the root."""
        return os.path.realpath(self.settings.db)

    def absence(self) -> str:
        """Say that there is no file, or none with our schema; "" where there is."""
        if not Path(self.settings.db).exists():
            return f"there is no file {self.name}"
        with closing(open_database(self.settings, read_only=True)) as connection:
            return unready(self.name, user_version(connection))

    # Reading

    @contextmanager
    def reading(self) -> Iterator[SQLiteConnection]:
        """Give a connection to a reader.

        :raises DatabaseUnusable: when the file cannot be opened, or is not at its path any more.
        """
        self._require_own()
        with self._reading:
            if self._reader is None:  # after the one that writes: the last to close checkpoints
                if self._writer is None:  # else it may be at work, and no read waits for that
                    with self.maintaining():
                        pass
                self._require_file()
                self._reader = open_database(self.settings, read_only=True)
            self._require_file()
            yield self._reader

    @contextmanager
    def snapshot(self) -> Iterator[SQLiteConnection]:
        """Give a connection to a reader whose statements must all see the same moment."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.rollback()  # unless an error of the disk has ended it

    @contextmanager
    def apart(self, lane: str = "read") -> Iterator[SQLiteConnection]:
        """Open a separate connection for a slow read: one at a time in each lane."""
        with self.reading():
            pass  # so that it is neither the first nor the last to be opened: that one makes files, or checkpoints
        with self._lanes[lane]:
            self._checkpoint_large_wal(lane)
            with closing(open_database(self.settings, read_only=True)) as connection:
                self._require_file()
                connection.execute("BEGIN")
                yield connection

    def _checkpoint_large_wal(self, lane: str) -> None:
        """Checkpoint a WAL larger than `MOST_WAL` while no slow read runs; overlapping ones would block it for ever.

        Only an export waits for other slow reads to end.
        """
        patience = self.settings.busy_timeout if lane == "export" else BUSY_SLICE
        with suppress(OSError), ExitStack() as held:
            if not self.checkpoint_lock.held or self.wal_size() < MOST_WAL:
                return
            for other in (self._lanes[each] for each in ("webhook", "read", "export") if each != lane):
                if not other.acquire(timeout=patience):
                    return
                held.callback(other.release)
            self.run_maintenance()

    # Writing

    @contextmanager
    def transaction(
        self,
        client_id: str | None = None,  # noqa: ARG002 - there is one writer for all
        patience: float | None = None,
    ) -> Iterator[SQLiteConnection]:
        """Give the connection that writes: all of its statements are stored, or none.

        BEGIN IMMEDIATE, because a deferred transaction that turns from reading to writing fails at once when another
        process has written in between (https://www.sqlite.org/isolation.html).

        :param patience: seconds to wait for other threads, and for another process's lock; None for the settings'.
        :raises Busy: if another thread writes for longer. :raises sqlite3.OperationalError: if the lock is held longer.
        :raises DatabaseUnusable: when the file cannot be opened, or is not at its path any more.
        """
        patience = self.settings.busy_timeout if patience is None else patience
        end = time.monotonic() + patience
        uses: dict[UseKey, str] = {}
        with self.maintaining(patience) as connection:
            try:
                retry_while_busy(partial(connection.execute, "BEGIN IMMEDIATE"), end - time.monotonic())
                self._is_writing = True
                with self._uses_lock:
                    uses, self.last_uses = self.last_uses, {}
                if uses:
                    write_last_uses(connection, uses)
                yield connection
                if connection.transaction.erases:
                    self._truncated_at = None
                connection.transaction.counters.write(connection)
                connection.execute("COMMIT")
                self.version += 1
            except BaseException:
                with self._uses_lock:
                    self.last_uses = {**uses, **self.last_uses}
                connection.rollback()  # unless SQLite has by itself, as on a full disk
                raise
            finally:
                connection.transaction = Transaction()

    def probe(self) -> None:
        """Begin a transaction that writes, and roll it back, unless this process is writing anyway."""
        self._require_file()
        until = time.monotonic() + HEALTH_TIME
        while not self._is_writing:
            try:
                with self.maintaining(BUSY_SLICE) as connection:
                    retry_while_busy(partial(connection.execute, "BEGIN IMMEDIATE"), until - time.monotonic())
                    try:
                        connection.execute("UPDATE clients SET id = id WHERE 0")  # which a read-only file refuses
                    finally:
                        connection.rollback()
                return
            except Busy:
                if time.monotonic() > until:
                    raise

    # Maintenance

    @contextmanager
    def maintaining(self, patience: float = -1) -> Iterator[SQLiteConnection]:
        """Give the connection that writes, to nobody else meanwhile.

        :param patience: seconds to wait while another thread has it; -1 for as long as that takes.
        """
        self._require_own()
        if not self._writing.acquire(timeout=patience):
            raise Busy("Other requests write for too long")
        try:
            self._require_file()
            if self._writer is None:
                self._process = os.getpid()
                self._writer = open_database(self.settings)
                self._file = self._file or identity(self.settings.db)
                self._require_file()
            yield self._writer
        finally:
            self._is_writing = False
            self._writing.release()

    def owns_maintenance(self) -> bool:
        """Tell whether this process is the one that checkpoints."""
        return self.checkpoint_lock.held

    def run_maintenance(self) -> None:
        """Fold the WAL in where it is large or may have what was deleted, if it is this process that checkpoints.

        With secure_delete SQLite writes zeros over what is deleted, in the file; the WAL has it until it is truncated.
        Whether others deleted anything is not known: only that they have written. While another thread writes, this is
        left to the next call: no read of an embedding application waits for a write.
        """
        with suppress(sqlite3.Error, OSError, DatabaseUnusable, Busy), self.maintaining(BUSY_SLICE) as connection:
            if not self.checkpoint_lock.acquire():
                return
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            (written,) = connection.execute("PRAGMA data_version").fetchone()  # another once somebody else has written
            if written != self._truncated_at or self.wal_size() > LARGE_WAL:
                self._is_writing = True
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._truncated_at = None if busy else written  # somebody still reads what is in it

    def wal_size(self) -> int:
        """Return the bytes of the WAL, which lies beside the file itself where the path is a link to that."""
        return Path(f"{self.location}-wal").stat().st_size

    # Opening and closing

    def _require_own(self) -> None:
        """Check that this process opened the connections: neither they, nor locks of threads, survive a fork.

        See https://www.sqlite.org/howtocorrupt.html, 2.6.

        :raises DatabaseUnusable: if the process was forked since then.
        """
        if self._writer is not None and self._process != os.getpid():
            raise DatabaseUnusable(
                f"the process was forked while it had {self.name} open; fork before the first request, or call"
                " create_app behind that"
            )

    def _require_file(self) -> None:
        """Refuse to go on, until a restart, where the file at the path is another one than was opened, or none.

        SQLite itself neither checkpoints nor removes anything at a path that is not its file's.

        :raises DatabaseUnusable: then.
        """
        if not self._away and self._file is not None and identity(self.settings.db) != self._file:
            self._away = True
            log.error("%r was moved, replaced or deleted: every request is refused until a restart", self.settings.db)
        if self._away:
            raise DatabaseUnusable(
                f"{self.name} was moved, replaced or deleted under the service; stop that, put back what belongs there,"
                " with its -wal, and start the service again"
            )

    def disconnect(self) -> None:
        """Close the connections, if there are any; the last one to close the file checkpoints.

        SQLite does so only where the file is at its path (https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html,
        SQLITE_FCNTL_HAS_MOVED).
        """
        if self._process != os.getpid():  # or another process would lose its locks
            return
        with self._reading, self._writing:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
            self.checkpoint_lock.release()
            self._truncated_at = None


def database_for(settings: Settings) -> Database:
    """Return the database that settings name, of the engine that their URL names. Nothing is opened yet.

    :raises ConfigurationError: if a package of that engine is not installed.
    """
    if not (scheme := scheme_of(settings.db)):
        return SQLiteDatabase(settings)
    if missing := load_module(ENGINE_MODULES[scheme]):
        raise ConfigurationError(f"a database of {scheme}:// needs {missing}")
    return REGISTRY.engines[scheme](settings)


def write_last_uses(connection: Connection, last_uses: Mapping[UseKey, str]) -> None:
    """Store when keys and runs were last used."""
    for table, column in (("api_keys", "id"), ("runs", "seq")):
        uses = [(at, client_id, key) for (client_id, used, key), at in last_uses.items() if used == table]
        if uses:
            connection.executemany(f"UPDATE {table} SET last_used_at = ? WHERE client_id = ? AND {column} = ?", uses)


# ---------------------------------------------------------------------------
# Extension validation: schemas that clients write, under a deadline
# ---------------------------------------------------------------------------
#
# jsonschema validates. A client writes both schema and value, so a check has a deadline, and a limit of memory:
# - Every keyword first compares the clock with the deadline, and the depth of the stack with a limit.
# - `pattern` and `patternProperties` search with `regex`, which has a timeout; Python's `re` cannot be interrupted.
# - `uniqueItems` takes linear time here, and quadratic time in jsonschema; `anyOf` and `oneOf` keep no errors.
# - `required`, `dependencies`, `additionalProperties` and `unevaluated…` report the path of the member, not its object.
# All other keywords are jsonschema's: sizes of bodies and schemas bound the time that they take.

PROBLEMS_OF_ONE = 100  # that one task can bring
CACHED_SCHEMA = 8 * KIB  # characters of a schema whose validators are kept; they take up to 160 bytes each, mostly 20
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class OutOfTime(Exception):
    """A check passed its deadline."""


ENDS_THE_PROCESS = (KeyboardInterrupt, SystemExit)


class Clock(threading.local):
    """The deadline of what this thread is doing, in seconds of the monotonic clock."""

    deadline: float = float("inf")


CLOCK = Clock()


def tick() -> None:
    """Stop the check when its time is over. :raises OutOfTime: then."""
    if time.monotonic() > CLOCK.deadline:
        raise OutOfTime


class TimeLimit:  # not by contextlib: since Python 3.12 that ties what passes through it to a circle
    """Run a check for so long. :raises OutOfTime: past it."""

    def __init__(self, seconds: float) -> None:
        self.outer, self.end = CLOCK.deadline, time.monotonic() + seconds

    def __enter__(self) -> None:
        CLOCK.deadline = min(self.end, self.outer)

    def __exit__(self, *_: object) -> None:
        CLOCK.deadline = self.outer


PATTERN_TOKEN = regex.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", regex.DOTALL)
SET_PART = 80  # characters of a set that take what another part does
PATTERN_COMMENT = regex.compile(r"\(\?(?:#|[A-Za-z0-9-]*x)")


def pattern_cost(pattern: str, bound: str = "least") -> int:
    """Return how many parts a pattern has when its repetitions are written out, which is what compiling it costs.

    :param bound: of `{2,5}`, whether the "least" is written out, as `regex` does it, or the "most", as Rust does it.
    """
    tokens = list(PATTERN_TOKEN.finditer(pattern))
    times = {token: int(token[bound] or token["least"]) for token in tokens if token["least"]}
    if PATTERN_COMMENT.search(pattern):  # what looks like a group may stand in a comment: assume the worst
        return len(tokens) * math.prod(max(1, number) for number in times.values())
    totals, last = [0], 0  # of the groups that are open, the whole pattern first; and what a repetition would repeat
    for token in tokens:
        if token[0] == "(":
            totals.append(0)
            last = 0
        elif token[0] == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif token in times:
            totals[-1] += last * max(0, times[token] - 1)
            last *= times[token]
        else:
            last = 1 + len(token[0]) // SET_PART
            totals[-1] += last
    return sum(totals)


PATTERN_LENGTH = 2000  # characters
PATTERN_COST = 10_000  # parts, with all repetitions written out; compiling cannot be interrupted
RECURSION = regex.compile(r"\(\?(?:R|\d|&|P>)")  # takes a hundred megabytes over a long text
PATTERN_GROUP = regex.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\((?![?*])|\(\?P?<\w+>)", regex.DOTALL)


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a client's pattern, without its groups where it does not refer to them, and leave nothing in `regex`.

    For each group `regex` notes every place that it fitted: two hundred megabytes over a long text. Its own cache would
    keep five hundred patterns of up to 8 MB, and their texts even without that.

    :raises ValueError: for what is no pattern, or takes too much; it says why.
    """
    if len(pattern) > PATTERN_LENGTH:
        raise ValueError(f"a pattern may have at most {PATTERN_LENGTH:,} characters")
    if pattern_cost(pattern) > PATTERN_COST:
        raise ValueError("repeats too much, as a whole; lower the numbers in braces")
    if RECURSION.search(pattern):
        raise ValueError("must not refer to a group of its own, as (?R) and (?1) do")
    try:
        compiled = regex.compile(pattern, cache_pattern=False)
        groups = sum(token["group"] is not None for token in PATTERN_GROUP.finditer(pattern))
        if compiled.groups and groups == compiled.groups and not PATTERN_COMMENT.search(pattern):
            plain = PATTERN_GROUP.sub(lambda token: "(?:" if token["group"] else token[0], pattern)
            with suppress(regex.error, RecursionError):
                compiled = regex.compile(plain, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    finally:
        regex.purge()
    return compiled


PATTERNS_KEPT: dict[str, tuple[regex.Pattern[str], int]] = {}  # compiled, with what each costs
KEPT_PATTERNS = 30_000  # what all patterns that are kept may cost; a part takes up to 800 bytes
PATTERN_BASE = 80  # parts; what a pattern takes besides, with the 64 KiB that it keeps of short searches
GROUPS_BASE = 800  # parts; that of one that notes groups


def kept_pattern(pattern: str) -> regex.Pattern[str]:
    """Return a client's pattern, compiled; when those that are kept cost too much, all of them are forgotten."""
    if found := PATTERNS_KEPT.get(pattern):
        return found[0]
    compiled = compile_pattern(pattern)
    cost = pattern_cost(pattern) + (GROUPS_BASE if compiled.groups else PATTERN_BASE)
    if sum(each for _, each in [*PATTERNS_KEPT.values()]) + cost > KEPT_PATTERNS:
        PATTERNS_KEPT.clear()
    PATTERNS_KEPT[pattern] = compiled, cost
    return compiled


# Characters of a pattern times those of the text that it is searched in. One step of a search, such as a repeated set,
# cannot be interrupted, and takes up to 0.2 s then.
PATTERN_WORK = 5_000_000


def matches(pattern: str, text: str) -> bool:
    r"""Tell whether a client's pattern, which may have \p{…}, is found in a text. :raises OutOfTime: past the deadline.

    Only a search that takes over a millisecond lets other threads run: who gives Python's lock back for a moment, over
    and over, takes it again before anybody else wakes up, and so keeps it from them for seconds. What such a search
    needs stays with the compiled pattern, so that it has one of its own.
    """
    left = min(CLOCK.deadline - time.monotonic(), 3600.0)
    if left <= 0 or (len(pattern) * len(text) > PATTERN_WORK and pattern not in PATTERNS):
        raise OutOfTime
    with suppress(TimeoutError):
        return bool(kept_pattern(pattern).search(text, timeout=min(left, 0.001), concurrent=False))
    try:
        return bool(compile_pattern(pattern).search(text, timeout=left, concurrent=True))
    except TimeoutError:
        raise OutOfTime from None


def frozen(value: Any) -> Any:
    """Return something hashable that is equal for equal JSON values: 1 is 1.0 here, but not true."""
    tick()
    if isinstance(value, dict):
        return ("object", frozenset((name, frozen(member)) for name, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(frozen, value)))
    return ("boolean", value) if isinstance(value, bool) else value


class Members(Struct, frozen=True):
    """What stands for a value where keywords are to tell which of its members they speak of, not what is wrong."""

    value: Any


def fits(validator: Any, schema: Any, instance: Any) -> bool:
    """Tell whether a value breaks no rule of a subschema."""
    for _ in validator.descend(instance, schema):
        return False
    return True


def judge_value(keyword: str, validator: Any, rule: Any, instance: Any, _: Any) -> Iterator[Any]:
    """Judge by a keyword that is about a value itself."""
    match keyword:
        case "pattern":
            if isinstance(instance, str) and not matches(rule, instance):
                yield ValidationError(f"{instance!r} does not match {rule!r}")
        case "uniqueItems":
            if rule and isinstance(instance, list) and len(set(map(frozen, instance))) < len(instance):
                yield ValidationError(f"{instance!r} has non-unique elements")
        case "anyOf":  # of a choice between something and null, what is wrong with the something is told
            possible = [each for each in rule if instance is None or each != {"type": "null"}]
            if len(possible) == 1:
                yield from validator.descend(instance, possible[0])
                return
            for each in possible:
                for _ in validator.descend(instance, each):
                    break
                else:
                    return
            yield ValidationError(f"{instance!r} is not valid under any of the given schemas")
        case "oneOf":
            fitting = 0
            for each in rule:
                fitting += fits(validator, each, instance)
            if fitting != 1:
                words = f"valid under {fitting}" if fitting else "not valid under any"
                yield ValidationError(f"{instance!r} is {words} of the given schemas")


def judge_members(keyword: str, validator: Any, rule: Any, instance: Any, _: Any) -> Iterator[Any]:
    """Judge by a keyword that is about some members of an object."""
    if not isinstance(instance, dict):
        return
    match keyword:
        case "required":
            for name in rule:
                if name not in instance:
                    yield ValidationError(f"{name!r} is a required property", path=[name])
        case "patternProperties":
            for pattern, name in itertools.product(rule, instance):
                if matches(pattern, name):
                    yield from validator.descend(instance[name], rule[pattern], path=name)
        case "dependencies" | "dependentRequired":
            for name in rule.keys() & instance.keys():
                needed = [rule[name]] if isinstance(rule[name], str) else rule[name]
                if isinstance(needed, list):
                    yield from judge_members("required", validator, needed, instance, _)
                else:
                    yield from validator.descend(instance, needed)


def judge_others(keyword: str, validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Judge `additionalProperties` and `unevaluated…`: what other keywords, near or anywhere, do not speak of."""
    if not isinstance(instance, list if keyword == "unevaluatedItems" else dict):
        return
    known = {name: schema[name] for name in ("properties", "patternProperties") if name in schema}
    speaking = known
    if keyword != "additionalProperties":
        speaking = {name: each for name, each in schema.items() if name[:11] not in ("$id", "unevaluated")}
    spoken = {member for each in validator.descend(Members(instance), speaking) for member in each.path}
    for member, value in instance.items() if isinstance(instance, dict) else enumerate(instance):
        if member in spoken:
            continue
        if rule is False:
            kind = keyword.replace("Items", " items").replace("Prop", " prop").capitalize()
            words = f"{kind} are not allowed ({truncate(str(member))!r} was unexpected)"
            names = ", ".join(itertools.chain(*known.values()))
            yield ValidationError(words + (names and f"; known: {names}"), path=[member])
        else:
            yield from validator.descend(value, rule, path=member)


def spoken_of(keyword: str, validator: Any, rule: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Give the members of a value that a keyword speaks of, as the path of an error, or has other schemas speak of."""
    names = value if isinstance(value, dict) else ()
    places = range(len(value)) if isinstance(value, list) else ()
    below: Iterable[Any] = ()
    members: Iterable[str | int] = ()
    match keyword:
        case "anyOf" | "oneOf":
            below = [each for each in rule if fits(validator, each, value)]
        case "if":
            below = [rule, schema.get("then", True)] if fits(validator, rule, value) else [schema.get("else", True)]
        case "dependentSchemas":
            below = [rule[name] for name in rule if name in names]
        case "properties":
            members = rule
        case "patternProperties":
            members = [name for name in names if any(matches(pattern, name) for pattern in rule)]
        case "additionalProperties" | "unevaluatedProperties":
            members = names
        case "prefixItems" | "items" if isinstance(rule, list):
            members = range(len(rule))
        case "items" | "unevaluatedItems":
            members = places
        case "additionalItems" if isinstance(schema.get("items"), list):
            members = places
        case "contains" if "prefixItems" in validator.VALIDATORS:
            members = [key for key in places if fits(validator, rule, value[key])]
    for each in below:
        yield from validator.descend(Members(value), each)
    yield ValidationError("", path=members)


OUR_KEYWORDS: dict[str, Callable[..., Iterator[Any]]] = {
    **dict.fromkeys(("anyOf", "oneOf", "pattern", "uniqueItems"), judge_value),
    **dict.fromkeys(("dependencies", "dependentRequired", "patternProperties", "required"), judge_members),
    **dict.fromkeys(("additionalProperties", "unevaluatedItems", "unevaluatedProperties"), judge_others),
}


def bounded(keyword: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a keyword, ours or jsonschema's, that first looks at the clock and at how deep the stack is."""
    function = partial(OUR_KEYWORDS[keyword], keyword) if keyword in OUR_KEYWORDS else theirs

    def judge(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        tick()
        try:  # 300 frames are left: what C calls counts too, and near the limit of a thousand Rust panics
            sys._getframe(sys.getrecursionlimit() - 300)
        except ValueError:  # it is not so deep
            if isinstance(instance, Members) and keyword not in (*REFERENCES, "allOf"):
                return spoken_of(keyword, validator, rule, instance.value, schema)
            return function(validator, rule, instance, schema)
        raise RecursionError("too many subschemas inside each other")

    return judge


def bounded_draft(draft: Any) -> Any:
    """Return a validator class like jsonschema's own, with bounded keywords."""
    keywords = {keyword: bounded(keyword, theirs) for keyword, theirs in draft.VALIDATORS.items()}
    ours: Any = jsonschema.validators.extend(draft, keywords)  # type: ignore[no-untyped-call]
    theirs = ours.evolve

    def evolve(validator: Any, **changes: Any) -> Any:
        """Go on with a subschema. Where that says `$schema`, jsonschema would go on with a class of its own."""
        tick()
        if isinstance(schema := changes.get("schema"), dict) and "$schema" in schema:
            changes["schema"] = {name: value for name, value in schema.items() if name != "$schema"}
        return theirs(validator, **changes)

    ours.evolve = evolve
    return ours


@cache
def drafts() -> dict[str, Any]:
    """Return validator classes by what `$schema` names them, the newest first. `format` is an annotation to them."""
    known = [getattr(jsonschema, f"Draft{draft}Validator") for draft in (202012, 201909, 7, 6, 4, 3)]
    return {draft.ID_OF(draft.META_SCHEMA).rstrip("#"): bounded_draft(draft) for draft in known}


def draft_of(schema: Mapping[str, Any]) -> Any:
    """Return the validator class that `$schema` names, by default the newest, or None when none is known."""
    return drafts().get(str(schema.get("$schema", next(iter(drafts())))).rstrip("#"))


def validator_of(schema: Mapping[str, Any]) -> Any:
    """Return what judges by a schema, to which nothing is known but itself and the schemas of drafts."""
    return draft_of(schema)(schema, registry=referencing.Registry())


def escaped(token: object) -> str:
    """Write one step of a JSON pointer (RFC 6901, section 3), cut like all text of the caller's."""
    return truncate(str(token)).replace("~", "~0").replace("/", "~1")


def json_pointer(path: Iterable[object], prefix: str = "") -> str:
    """Write a JSON pointer."""
    return prefix + "".join(f"/{escaped(token)}" for token in path)


MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def subschemas(schema: Mapping[str, Any], pointer: str, draft: Any) -> Iterator[tuple[Any, str]]:
    """Give what stands directly below where a schema holds others, schemas or not, with the pointers."""
    for keyword, held in schema.items():
        inner = json_pointer([keyword], pointer)
        if keyword in MAPS_OF_SCHEMAS and isinstance(held, dict):
            yield from ((value, json_pointer([name], inner)) for name, value in held.items())
        elif keyword in ("then", "else") or (keyword in draft.VALIDATORS and keyword not in ("enum", "const")):
            yield held, inner
            if isinstance(held, list):
                yield from ((item, f"{inner}/{number}") for number, item in enumerate(held))


def pattern_faults(schema: Mapping[str, Any], pointer: str) -> Iterator[Problem]:
    """Tell what is wrong with the patterns of a schema."""
    named = schema.get("patternProperties")
    named = named if isinstance(named, dict) else {}
    patterns = [(name, json_pointer(["patternProperties", name], pointer)) for name in named]
    for pattern, at in [(schema.get("pattern"), f"{pointer}/pattern"), *patterns]:
        tick()
        try:
            if isinstance(pattern, str):
                compile_pattern(pattern)
        except ValueError as error:
            yield Problem(truncate(str(error)), at, value=truncate(pattern))


def inner_faults(root: dict[str, Any], pointer: str, draft: Any) -> Iterator[Problem]:
    """Tell of ids, drafts, patterns and references that are wrong in any schema that a check can come to."""
    specification, seen = specification_with(draft.ID_OF(draft.META_SCHEMA)), set()
    waiting = deque(
        [(root, pointer, referencing.Registry[Any]().with_resource("", specification.create_resource(root)).resolver())]
    )
    while waiting:
        tick()
        schema, pointer, resolver = waiting.popleft()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        try:
            resolver = resolver.in_subresource(specification.create_resource(schema))
        except (AttributeError, ValueError):
            yield Problem("has an id that is no URI reference", pointer)
            continue
        if draft_of(schema) is not draft and "$schema" in schema:
            yield Problem("a schema has one draft, which its root names", f"{pointer}/$schema")
        yield from pattern_faults(schema, pointer)
        below = [(value, at, resolver) for value, at in subschemas(schema, pointer, draft)]
        waiting.extendleft(reversed(below))
        for keyword in REFERENCES:
            if isinstance(target := schema.get(keyword), str):
                at = f"{pointer}/{keyword}"
                try:
                    found = resolver.lookup(target)
                    waiting.append((found.contents, at, found.resolver))  # where nothing above has led to, too
                except (referencing.exceptions.Unresolvable, LookupError, AttributeError, TypeError, ValueError):
                    detail = "is not found inside this schema, and nothing is fetched from elsewhere"
                    yield Problem(detail, at, value=truncate(target))


def schema_faults(schema: dict[str, Any], pointer: str) -> Iterator[Problem]:
    """Tell everything that is wrong with a client's schema, each with its pointer."""
    if draft := draft_of(schema):
        yield from (problem_of(error, pointer) for error in validator_of(draft.META_SCHEMA).iter_errors(schema))
        yield from inner_faults(schema, pointer, draft)
    else:
        yield Problem(
            f"must be one of: {', '.join(drafts())}", f"{pointer}/$schema", value=scalar_preview(schema["$schema"])
        )


def failure_in_words(error: BaseException, schema: str) -> str:
    """Return what a caller is told of what judging by a schema has raised.

    A schema is its client's program, and so are its bugs, those of libraries in Rust included: their panics are no
    `Exception`.
    """
    if isinstance(error, RecursionError):
        return f"{schema} is nested too deeply, or refers to itself without an end"
    return f"{schema} cannot be judged by: {truncate(str(error))}"


def check_schema(schema: dict[str, Any], pointer: str, seconds: float) -> None:
    """Check a client's schema before it is stored.

    :raises ValidationFailed: with every fault. :raises ExtensionCheckTimeout: when that takes too long.
    """
    try:
        with TimeLimit(seconds):
            problems = list(itertools.islice(schema_faults(schema, pointer), 10 * LISTED_PROBLEMS))
    except OutOfTime:
        raise ExtensionCheckTimeout(f"Checking the schema took more than {seconds:g} s; make it smaller.") from None
    except ENDS_THE_PROCESS:
        raise
    except BaseException as error:
        problems = [Problem(failure_in_words(error, "the schema"), pointer)]
    if problems:
        raise ValidationFailed(problems)


def make_validators(text: str) -> tuple[Any, Callable[[Any, int], bool]]:
    """Return what judges extensions by a stored schema, and what accepts most good ones more quickly, if it is here."""
    schema = from_json(text)
    return validator_of(schema), REGISTRY.fast_validator(schema, len(text))


cached_validators = lru_cache(maxsize=16)(make_validators)


# Rules of our own models that jsonschema only says are broken: what they ask for, and of which member.
RULE_MESSAGES: tuple[tuple[Any, str, str], ...] = (
    (WITHOUT_CONTENT, SHOWS_NOTHING, ""),
    (WITHOUT_UPDATE, CHANGES_NOTHING, ""),
    (RESOLVED_UNCOMPLETED, COMPLETED_ALONE, "/resolveMissing"),
    (JUDGED_UNCOMPLETED, COMPLETED_ALONE, "/gate"),
    (REASON_ALONE, WITHOUT_STATUS, "/statusReason"),
    (WITHOUT_DECISION, DECIDES_NOTHING, ""),
    (UNFINISHED_FOR_A_REASON, FINISHED_ALONE, "/reason"),
)


def shorten(error: ValidationError) -> str:
    """Return jsonschema's message, so that what is asked for is there, however long the value is at its beginning."""
    message, keyword = error.message, str(error.validator)
    begins_with_value = len(message) > REPEATED_TEXT and not message[0].isalpha()
    if begins_with_value and message.startswith(value := repr(error.instance)):  # a large one takes long to write
        message = value[: REPEATED_TEXT // 2] + "…" + message.removeprefix(value)
    if keyword.startswith(("max", "min")) and not keyword.endswith("imum"):  # whose messages leave the number out
        message += f" ({keyword} is {error.validator_value})"
    return truncate(message)


def problem_of(error: ValidationError, pointer: str) -> Problem:
    """Return what jsonschema found, as the service tells it."""
    rule: Any = error.validator_value
    at, value = json_pointer(error.path, pointer), scalar_preview(error.instance)
    if value == math.inf:  # which stands for it
        return Problem("has a number with too many digits", at)
    for theirs, words, about in RULE_MESSAGES:
        if rule == theirs:
            return Problem(words, f"{at}{about}")
    if error.validator in ("enum", "const"):
        allowed = rule[:REPEATED_TEXT] if error.validator == "enum" else [rule]
        named = ", ".join([each if isinstance(each, str) else json.dumps(each) for each in allowed])
        return Problem(truncate(f"must be one of: {named}"), at, value=value)
    if error.validator == "pattern" and rule in PATTERNS:
        return Problem(PATTERNS[rule], at, value=value)
    return Problem(shorten(error), at)


def iter_problems(validator: Any, value: Any, pointer: str) -> Iterator[Problem]:
    """Tell everything that jsonschema finds wrong with a value. :raises OutOfTime: past the deadline."""
    last = None
    for error in validator.iter_errors(value):
        tick()
        if error.validator == "pattern" and "\0" in error.instance:  # U+0000 is told for itself
            continue
        problem = problem_of(error, pointer)
        if problem != last:  # of a number that is too long, several rules say the same
            yield problem
        last = problem


TASK_SHARE = 1 / 8  # of the request's time that the check of one task may take


def check_extensions(schema: str, extensions: Iterable[tuple[str | None, str]], seconds: float) -> list[Problem]:
    """Return what is wrong with the extensions of several tasks, each given as text (None: {}) with its pointer.

    :raises ExtensionCheckTimeout: when one task, or all together, took too long.
    """
    end = time.monotonic() + seconds
    validator, accepts = (cached_validators if len(schema) <= CACHED_SCHEMA else make_validators)(schema)
    problems: list[Problem] = []
    for text, pointer in extensions:
        value = from_json(text) if text else {}
        try:
            if time.monotonic() < end and accepts(value, len(text or "")):
                continue  # most are, in a fraction of what a time limit costs
            with TimeLimit(min(seconds * TASK_SHARE, end - time.monotonic())):
                tick()
                problems += itertools.islice(iter_problems(validator, value, pointer), PROBLEMS_OF_ONE)
        except OutOfTime:
            detail = "took too long to check; simplify the extensions, or the project type's schema"
            message = (
                f"Checking extensions took over {seconds:g} s for the request or {seconds * TASK_SHARE:g} s for a task."
            )
            raise ExtensionCheckTimeout(message, [Problem(detail, pointer)]) from None
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:
            problems.append(Problem(failure_in_words(error, "the project type's schema"), pointer))
    return problems


# ---------------------------------------------------------------------------
# Store: clients, keys and counters. SQL is what SQLite and PostgreSQL share; the connection comes first
# ---------------------------------------------------------------------------

MAIN_LINE = ""  # where the name of a branch would stand
LISTED = "IN (SELECT value FROM json_each(?))"  # any number of texts, as JSON
LISTED_SEQS = "IN (SELECT CAST(value AS BIGINT) FROM json_each(?))"
# Any number of tasks of a client, by their seqs. Otherwise SQLite takes the index that begins with the client: that
# takes half as long again, and what it gives has to be sorted.
BY_SEQ = f"(tasks.client_id = ?) IS TRUE AND tasks.seq {LISTED_SEQS}"
BY_ID = f"tasks.client_id = ? AND tasks.id {LISTED}"


now_ns: Callable[[], int] = time.time_ns  # replaced while sample data of earlier days is stored


def timestamp(ago: float = 0) -> str:
    """Return the time some seconds ago, by default now, as the API writes it: 2026-11-21T02:15:30.123Z."""
    at = datetime.fromtimestamp(now_ns() / 1e9 - ago, UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


class IdMaker:
    """Makes UUIDv7s (RFC 9562, section 5.7) that rise, also within a millisecond and when the clock steps back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self, count: int = 1, behind: str | None = None) -> list[str]:
        """Return that many new ids: 48 bits of time, 12 that count, 62 at random.

        :param behind: another id that these are to follow, which may be that of a server whose clock is ahead.
        """
        least = int(f"{behind[:8]}{behind[9:13]}{behind[15:18]}", 16) + 1 if behind else 0
        with self._lock:
            first = max((now_ns() // 1_000_000) << 12, self._last + 1, least)
            self._last = first + count - 1
        high = ((number >> 12) << 16 | 7 << 12 | number & 0xFFF for number in range(first, first + count))
        return [str(UUID(int=each << 64 | 2 << 62 | secrets.randbits(62))) for each in high]


new_ids = IdMaker()


def canonical(text: str | bytes) -> bytes:
    """Return JSON without what does not count: key order and white space."""
    return to_json(from_json(text), order="sorted")


def same_json(one: str | None, other: str | None) -> bool:
    """Tell whether two JSON texts mean the same; 1 is not 1.0."""
    if one == other:
        return True
    return one is not None and other is not None and canonical(one) == canonical(other)


class Principal(Record, frozen=True):
    """Who makes a request: a key, its client and what it may do, and the user of a key that is for users."""

    key_id: str
    client_id: str
    name: str
    level: str
    user: str | None = None
    for_users: bool = False

    @property
    def sender(self) -> str:
        """Whose answers are kept: the id of the key, and behind that the user."""
        return self.key_id if self.user is None else f"{self.key_id} {self.user}"


def hashed(key: str) -> str:
    """Return what is stored of a key. It is random, so that a slow hash would protect nothing more."""
    return hashlib.sha256(key.encode()).hexdigest()


def insert_client(connection: Connection, client_id: str) -> bool:
    """Make a client, unless it is there. Return whether it is new."""
    return bool(
        connection.execute(
            "INSERT INTO clients (id, created_at) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (client_id, timestamp())
        ).rowcount
    )


def select_clients(connection: Connection) -> list[str]:
    """Return the ids of all clients: where something is done for each of them, it is done for one after the other."""
    return [client_id for (client_id,) in connection.execute("SELECT id FROM clients ORDER BY id").fetchall()]


def insert_key(
    connection: Connection,
    name: str,
    client_id: str,
    level: str,
    expires_at: str | None = None,
    *,
    for_users: bool = False,
) -> str:
    """Make a key and return it: the only time that it is seen."""
    key = f"fts_{secrets.token_urlsafe(32)}"
    insert_client(connection, client_id)
    connection.execute(
        """INSERT INTO api_keys (id, client_id, name, level, hash, created_at, expires_at, for_users)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (new_ids()[0], client_id, name, level, hashed(key), timestamp(), expires_at, int(for_users)),
    )
    return key


def select_principal(connection: Connection, key: str, now: str) -> tuple[Principal, str | None] | None:
    """Return who a key belongs to and when it was last used: None when it is unknown, expired or revoked."""
    row = connection.execute(
        """SELECT id, client_id, name, level, for_users, last_used_at FROM api_keys
           WHERE hash = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)""",
        (hashed(key), now),
    ).fetchone()
    if row is None:
        return None
    key_id, client, name, level, for_users, last_used_at = row
    return Principal(key_id, client, name, level, for_users=bool(for_users)), last_used_at


def select_keys(connection: Connection) -> list[tuple[Any, ...]]:
    """Return all keys, without their secrets."""
    return connection.execute(
        """SELECT id, client_id, name, level, CASE for_users WHEN 1 THEN 'yes' END, created_at, expires_at,
               last_used_at, revoked_at
           FROM api_keys ORDER BY id"""
    ).fetchall()


def select_live_keys(connection: Connection, client_id: str, name: str) -> list[str]:
    """Return the ids of a client's keys of that name that are good; databases of old may have several."""
    rows = connection.execute(
        """SELECT id FROM api_keys WHERE client_id = ? AND name = ? AND revoked_at IS NULL
           AND (expires_at IS NULL OR expires_at > ?) ORDER BY id""",
        (client_id, name, timestamp()),
    )
    return [key_id for (key_id,) in rows]


def revoke_key(connection: Connection, key_id: str, at: str | None = None) -> bool:
    """Revoke a key at once, or as it was before. Return whether there was one to revoke."""
    return bool(
        connection.execute(
            "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (at or timestamp(), key_id)
        ).rowcount
    )


def counter_name(kind: str, project_type: str | None, target_url: str | None, branch: str | None) -> str:
    """Name what a counter counts: all tasks or runs of a client, or those of a type, a target or both.

    They are of the main line, of one branch, or of all for None. A branch comes last, because its name may have spaces.
    """
    by_type = f" type:{project_type}" if project_type is not None else ""
    by_target = f" target:{target_url}" if target_url is not None else ""
    by_branch = BRANCHES if branch is None else "" if branch == MAIN_LINE else f" branch:{branch}"
    return kind + by_type + by_target + by_branch


@lru_cache(maxsize=64)
def counter_names(kind: str, project_type: str, target_url: str, branch: str) -> tuple[str, ...]:
    """Name the scopes that a task or run counts in by where it is. By the names of branches, only runs are counted."""
    lines: list[str | None] = [branch] if branch == MAIN_LINE else [None, branch] if kind == "runs" else [None]
    places = list(itertools.product((None, project_type), (None, target_url)))
    return tuple(counter_name(kind, *place, line) for line in lines for place in places)


TAGGED = "tasks tagged"


def tags_in(unread: Any) -> list[str]:
    """Return the tags of a task, which are still the text that is stored, or None."""
    return from_json(unread) if unread else []


def label_counter(column: str, value: str) -> str:
    """Name what counts all tasks with a rule or tag; the quotes keep its spaces from meaning a branch."""
    return f'tasks {column}:"{value}"'


def label_counters(rule: str | None, tags: str | None, branch: str) -> list[str]:
    """Name the scopes that a task counts in by its rule and tags, the latter a JSON text."""
    names = [label_counter("rule", rule)] if rule else []
    names += [TAGGED, *(label_counter("tag", tag) for tag in tags_in(tags))] if tags else ()
    return [f"{name}{BRANCHES if branch else ''}" for name in names]


def select_counts(connection: Connection, client_id: str, names: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return the counters of some scopes: scope, status, severity, n."""
    rows = connection.execute(
        f"SELECT scope, status, severity, n FROM counters WHERE client_id = ? AND scope {LISTED}",
        (client_id, to_json_text(names)),
    ).fetchall()
    return rows + connection.transaction.counters.select(client_id, names)


CHANGES = "changes"


def raise_revision(connection: Connection, client_id: str) -> None:
    """Increase the client's revision, in every transaction that changes rows of the client.

    The increment is random, so that a restored backup never reuses an earlier ETag.
    """
    connection.transaction.counters.add(client_id, [CHANGES], "", 0, 1 + secrets.randbelow(1 << 30))


def select_revision(connection: Connection, client_id: str) -> int:
    """Return a number that is another one as soon as anything of the client has changed."""
    return sum(n for *_, n in select_counts(connection, client_id, [CHANGES]))


# ---------------------------------------------------------------------------
# Store: lists, one page of a merge of index ranges
# ---------------------------------------------------------------------------


Condition = tuple[str, tuple[Any, ...]]  # in SQL, and the values of its marks


def among(column: str, values: Iterable[str] | Iterable[int]) -> Condition:
    """Return the condition that a column has one of some values: one mark, however many they are."""
    listed: list[Any] = sorted(values)
    return f"{column} {LISTED_SEQS if listed and isinstance(listed[0], int) else LISTED}", (to_json_text(listed),)


class Filter(Struct, frozen=True, kw_only=True):
    """What both runs and tasks are filtered by, and counted by. `None` filters nothing.

    `names` are those of the branches that runs are of; what branches reported, `TaskFilter` has. `columns` are those
    of fields that have the value of a row, or a set with it.
    """

    types: frozenset[str] | None = None
    target_url: str | None = None
    names: frozenset[str] | None = None
    main_line: bool | None = None
    statuses: frozenset[str] | None = None
    ranks: frozenset[int] | None = None

    columns: ClassVar = {
        "types": "project_type",
        "names": "branch",
        "statuses": "status",
        "ranks": "severity",
        "target_url": "target_url",
    }

    def is_about(self, project_type: str, target_url: str) -> bool:
        """Tell whether the filter lets a project type and target through."""
        return (self.types is None or project_type in self.types) and self.target_url in (None, target_url)

    def conditions(self, table: str) -> dict[str, Condition]:
        """Return what a row must be, by the fields that ask for it."""
        asked: dict[str, Condition] = {}
        for field, column in self.columns.items():
            value, place = getattr(self, field), f"{table}.{column}"
            if value is not None:
                asked[field] = among(place, value) if isinstance(value, frozenset) else (f"{place} = ?", (value,))
        if self.main_line is not None:
            asked["main_line"] = (f"{table}.branch {'=' if self.main_line else '<>'} ''", ())
        return asked


def frozenset_or_none(values: Iterable[Value] | None) -> frozenset[Value] | None:
    """Return the values of a filter, None where it filters nothing."""
    return None if values is None else frozenset(values)


class IndexRange(Record, frozen=True):
    """Rows that stand together in an index, in the order of creation: conditions that fix everything in it but that.

    It is an index of the rows' own `table`, or of one that says which tasks were reported, or which words they have.
    `severity` is the rank that all of them have, 0 where they differ.
    """

    conditions: tuple[str, ...]
    values: tuple[Any, ...]
    table: str
    severity: int = 0

    @property
    def seq(self) -> str:
        """The column that holds the order."""
        return f"{self.table}.{'seq' if self.table in ('runs', 'tasks') else 'task_seq'}"

    @property
    def rank(self) -> str:
        """The column that holds the severity; where that is fixed, the one that the index has."""
        return f"{self.table if self.severity else 'tasks'}.severity"

    def where(self, condition: str, *values: Any) -> IndexRange:
        """Return the range with one more condition."""
        return replace(self, conditions=(*self.conditions, condition), values=(*self.values, *values))

    def select(self, columns: str) -> str:
        """Return the statement that reads columns.

        The tasks are there if they, or a condition, need them. CROSS JOIN makes SQLite look each of them up: otherwise
        it might go through all that a client has.
        """
        tables, conditions = self.table, self.conditions
        if self.seq.endswith("task_seq") and any("tasks." in each for each in (columns, *conditions)):
            same = f"tasks.client_id = {tables}.client_id"  # last, because it lets every row through
            conditions = (f"tasks.seq = {self.seq}", *conditions, same)
            tables = f"{tables} CROSS JOIN tasks"
        return f"SELECT {columns} FROM {tables} WHERE {' AND '.join(conditions)}"


class ListCursor(Record, frozen=True):
    """A place in a list: behind the row `seq`, in a list by severity also behind its rank."""

    seq: int
    severity: int = 0


MOST_RANGES = 40  # of one statement: each status and severity, of the main line and of branches


class ListPlan(Struct, frozen=True, kw_only=True):
    """How a list is read: as the merge of some index ranges, in an order.

    `settled` are the fields of its filter that all rows of the ranges go by, and `size` is how many rows those are, if
    that is known. `total` is how many are listed, where counters tell. What several runs reported they may share: then
    `tally` is all of their ranges as one.
    """

    ranges: tuple[IndexRange, ...]
    settled: Set[str] = frozenset()
    size: int = sys.maxsize
    total: int | None = None
    tally: IndexRange | None = None
    order: str = "-createdAt"

    def narrowed(self, narrow: Callable[[IndexRange], IndexRange]) -> ListPlan:
        """Return fewer rows, of which no counter tells."""
        ranges, tally = tuple(map(narrow, self.ranges)), self.tally and narrow(self.tally)
        return replace(self, ranges=ranges, tally=tally, total=None)

    def behind(self, position: ListCursor | None) -> ListPlan:
        """Return the rows that come behind a position, all without one."""
        if position is None:
            return self
        ranges = list[IndexRange]()
        for each in self.ranges:
            if self.order != "severity" or each.severity == position.severity:
                ranges.append(each.where(f"{each.seq} {'>' if self.order == 'createdAt' else '<'} ?", position.seq))
            elif not each.severity:
                condition = f"(tasks.severity < ? OR tasks.severity = ? AND {each.seq} < ?)"
                ranges.append(each.where(condition, position.severity, position.severity, position.seq))
            elif each.severity < position.severity:
                ranges.append(each)
        return replace(self, ranges=tuple(ranges))

    def page(
        self, connection: Connection, client_id: str, table: str, columns: str, joined: str, query: RunQuery | TaskQuery
    ) -> Iterator[tuple[Any, ...]]:
        """Return the rows of one page, and one more row if there is a further page, each read when it is asked for.

        :param table: the table that the ranges select from: "runs" or "tasks".
        """
        limit, offset = query.limit + 1, ((query.page or 1) - 1) * query.limit
        found: Iterable[Condition]
        if self.order != "severity" and 0 < len(self.ranges) <= MOST_RANGES:
            merged, values = self._merged(connection, self.ranges, limit, offset)
            found = [(connection.one_of(merged), values)]
        else:
            lots = itertools.groupby(self.places(connection, limit, offset), lambda place: place[:-1])
            found = ((LISTED_SEQS, (to_json_text([seq for *_, seq in lot]),)) for _, lot in lots)
        seq, direction = f"{table}.seq", "ASC" if self.order == "createdAt" else "DESC"
        statement = f"SELECT {columns} FROM {table} {joined} WHERE ({table}.client_id = ?) IS TRUE AND {seq}"
        execute = connection.stream if joined else connection.execute  # what is joined is bulky
        return itertools.chain.from_iterable(
            execute(f"{statement} {seqs} ORDER BY {seq} {direction}", (client_id, *values)) for seqs, values in found
        )

    def places(self, connection: Connection, limit: int, offset: int) -> list[tuple[int, ...]]:
        """Return the seqs of some rows, in a list by severity with their ranks before them."""
        found = set[tuple[int, ...]]()
        for start in range(0, len(self.ranges), MOST_RANGES):
            if connection.is_late():  # none of many short statements runs for long enough to be interrupted
                raise TimeoutError
            lot = self.ranges[start : start + MOST_RANGES]
            found.update(connection.execute(*self._merged(connection, lot, limit + offset, 0)))
        return sorted(found, reverse=self.order != "createdAt")[offset : offset + limit]

    def _merged(
        self, connection: Connection, ranges: Sequence[IndexRange], limit: int, offset: int
    ) -> tuple[str, tuple[Any, ...]]:
        """Return what selects the places of some rows.

        The database merges the ranges, so that nothing is sorted and a page far down costs what the first one
        costs. A range that stands there twice changes nothing, and neither does a task that several ranges have.
        """
        ranked = self.order == "severity"
        order = f"{'severity DESC, ' if ranked else ''}seq {'ASC' if self.order == 'createdAt' else 'DESC'}"
        places = [each.select(f"{f'{each.rank} AS severity, ' if ranked else ''}{each.seq} AS seq") for each in ranges]
        merged = connection.merged(places, order, limit + offset)
        values = (value for each in ranges for value in each.values)
        return f"{merged} ORDER BY {order} LIMIT ? OFFSET ?", (*values, limit, offset)

    def count(self, connection: Connection) -> int:
        """Return how many rows there are, counted one by one where no counter tells."""
        if self.total is not None:
            return self.total
        counted, ranges = "COUNT(*)", self.ranges
        if self.tally:
            counted, ranges = f"COUNT(DISTINCT {self.tally.seq})", (self.tally,)
        return sum(int(connection.execute(each.select(counted), each.values).fetchone()[0]) for each in ranges)


def plan_rows(
    connection: Connection,
    client_id: str,
    table: str,
    wanted: Filter,
    asked: Mapping[str, Condition],
    order: str = "-createdAt",
) -> ListPlan:
    """Plan the list of a client's rows that are as a filter asks: of all of them, or of the fewest that a module finds.

    :param asked: what a row must be, by the fields that ask for it.
    """
    whole = IndexRange((f"{table}.client_id = ?",), (client_id,), table)
    everything = ListPlan(ranges=(whole,))
    plans = REGISTRY.plans(connection, client_id, table, wanted, order)
    best = min(plans, key=attrgetter("size"), default=everything)
    if unsettled := [condition for field, condition in asked.items() if field not in best.settled]:
        # It is one condition that must be TRUE: for parts of it, the database would take another index.
        text = f"({' AND '.join(condition for condition, _ in unsettled)}) IS TRUE"
        values = [value for _, values in unsettled for value in values]
        best = best.narrowed(lambda each: each.where(text, *values))
    return replace(best, order=order)


def select_cursor_seq(connection: Connection, table: str, client_id: str, id: str, newest_first: bool) -> int:
    """Return the seq behind which a walk goes on. What it stood at may have been pruned: then its neighbour serves."""
    row = connection.execute(
        f"SELECT seq, id FROM {table} WHERE client_id = ? AND id <= ? ORDER BY id DESC LIMIT 1", (client_id, id)
    ).fetchone()
    if row is None:
        return 0
    return int(row[0]) + (newest_first and row[1] != id)


# ---------------------------------------------------------------------------
# Store: project types
# ---------------------------------------------------------------------------

MOST_PROJECT_TYPES = 10_000  # of a client, because they are listed all at once
PROJECT_TYPES_TEXT = 16 * 1024 * KIB  # bytes of their labels and descriptions


def select_project_type(connection: Connection, client_id: str, name: str) -> ProjectTypeWithSchema:
    """Return a project type. :raises Missing: when the client has none of the name."""
    row = connection.execute(
        """SELECT id, name, label, description, created_at, extension_schema FROM project_types
           WHERE client_id = ? AND name = ?""",
        (client_id, name),
    ).fetchone()
    if row is None:
        raise Missing(f"There is no project type {truncate(name)!r}.")
    *fields, schema = row
    return ProjectTypeWithSchema(*(*fields, Raw(schema or "null")))


def select_project_types(connection: Connection, client_id: str) -> list[ProjectType]:
    """Return all project types of a client, by name."""
    rows = connection.execute(
        "SELECT id, name, label, description, created_at FROM project_types WHERE client_id = ? ORDER BY name",
        (client_id,),
    )
    return [ProjectType(*row) for row in rows]


def require_place(connection: Connection, client_id: str, name: str, label: str, description: str) -> None:
    """Check that a client's project types, with this one, fit into one answer. :raises ValidationFailed: if not."""
    others = connection.execute(
        "SELECT label || description FROM project_types WHERE client_id = ? AND name <> ?", (client_id, name)
    ).fetchall()
    if len(others) >= MOST_PROJECT_TYPES:
        detail = f"is one project type too many: a client may have {MOST_PROJECT_TYPES:,}"
        raise ValidationFailed([Problem(detail, "/name", value=name)])
    texts = [label + description, *(text for (text,) in others)]
    if len(to_json("".join(texts))) - 2 > PROJECT_TYPES_TEXT:
        detail = "is too long: the labels and descriptions of all project types may have 16 MiB together"
        raise ValidationFailed([Problem(detail, "/description")])


def select_definition(connection: Connection, client_id: str, name: str) -> Any:
    """Return the label, description and schema of a project type, None when there is none of the name."""
    return connection.execute(
        "SELECT label, description, extension_schema FROM project_types WHERE client_id = ? AND name = ?",
        (client_id, name),
    ).fetchone()


def insert_project_type(
    connection: Connection, client_id: str, name: str, label: str, description: str, schema: str | None
) -> bool:
    """Register a project type. Return False when the same definition is there already.

    :raises ProjectTypeExists: when another definition has the name. :raises ValidationFailed: when there is no room.
    """
    before = select_definition(connection, client_id, name)
    if before is None:
        require_place(connection, client_id, name, label, description)
        connection.execute(
            """INSERT INTO project_types (client_id, name, id, label, description, extension_schema, created_at)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (client_id, name, new_ids()[0], label, description, schema, timestamp()),
        )
        return True
    if before[:2] != (label, description) or not same_json(before[2], schema):
        raise ProjectTypeExists(
            f"Project type {name!r} is registered with another definition;"
            f" PUT /api/v1/project-types/{name} replaces it."
        )
    return False


def replace_project_type(
    connection: Connection, client_id: str, name: str, label: str, description: str, schema: str | None
) -> None:
    """Replace a project type's definition, and have the one before it erased. Stored tasks are not judged again.

    :raises ValidationFailed: when there is no room for the new one.
    """
    if select_definition(connection, client_id, name) == (label, description, schema):
        return
    require_place(connection, client_id, name, label, description)
    connection.execute(
        """UPDATE project_types SET label = ?, description = ?, extension_schema = ?
           WHERE client_id = ? AND name = ?""",
        (label, description, schema, client_id, name),
    )
    drop_responses(connection, client_id, name)
    connection.transaction.erases = True


# ---------------------------------------------------------------------------
# Store: runs
# ---------------------------------------------------------------------------

RUN_COLUMNS = """runs.id, runs.project_type, NULLIF(runs.target_url, ''), NULLIF(runs.branch, ''), runs.metadata,
    runs.status, runs.status_reason, runs.created_at, runs.updated_at, runs.finished_at,
    runs.created, runs.updated, runs.reopened, runs.unchanged, runs.resolved, runs.verdict"""


class Source(Record, frozen=True):
    """What the lists need to know of who reported tasks: a run, or a branch with all of its runs.

    Its fields are columns of `table`. `sightings` is the table of what it reported, where `column` has its seq.
    """

    seq: int
    project_type: str
    target_url: str
    reported: int

    table: ClassVar[str]
    sightings: ClassVar[str]
    column: ClassVar[str]

    @property
    def type_and_target(self) -> tuple[str, str]:
        """The project type and target of everything that it reported."""
        return self.project_type, self.target_url

    @classmethod
    def find(cls, connection: Connection, client_id: str, condition: str, *values: Any) -> list[Self]:
        """Return those of a client that are as a condition says; it ends the statement."""
        statement = f"SELECT {', '.join(cls.__struct_fields__)} FROM {cls.table} WHERE client_id = ? AND {condition}"
        return [cls(*row) for row in connection.execute(statement, (client_id, *values))]


class RunKey(Source, frozen=True):
    """What the store needs to know of a run."""

    id: str
    status: str
    branch: str
    is_partial: int = 0  # 1 where it reported something that was not checked

    table = "runs"
    sightings = "sightings"
    column = "run_seq"


class BranchKey(Source, frozen=True):
    """What the store needs to know of a branch."""

    name: str

    table = "branches"
    sightings = "branch_sightings"
    column = "branch_seq"


def run_model(row: Sequence[Any]) -> Run:
    """Return a run from a row of RUN_COLUMNS."""
    *fields, created, updated, reopened, unchanged, resolved, verdict = row
    submitted = Submitted(created, updated, reopened, unchanged, resolved)
    run: Any = Run(*(*fields, submitted, Raw(verdict or "null")))
    run.metadata = Raw(run.metadata)
    return cast(Run, run)


def find_branch_of_run(connection: Connection, client_id: str, run: RunKey) -> BranchKey | None:
    """Return the branch that a run is of, None where it is of the main line."""
    same = "name = ? AND project_type = ? AND target_url = ?"
    return next(iter(BranchKey.find(connection, client_id, same, run.branch, *run.type_and_target)), None)


def select_run_key(connection: Connection, client_id: str, run_id: str) -> RunKey:
    """Return a run's key. :raises Missing: when the client has no such run."""
    for run in RunKey.find(connection, client_id, "id = ?", run_id):
        return run
    raise Missing(f"There is no run {truncate(run_id)!r}.")


def select_run_and_schema(connection: Connection, client_id: str, run_id: str) -> tuple[RunKey, str | None]:
    """Return a run's key, and the schema of its tasks' extensions. :raises Missing: when there is no such run."""
    row = connection.execute(
        f"""SELECT {", ".join(RunKey.__struct_fields__)}, (
                SELECT extension_schema FROM project_types
                WHERE project_types.client_id = runs.client_id AND project_types.name = runs.project_type
            ) FROM runs WHERE client_id = ? AND id = ?""",
        (client_id, run_id),
    ).fetchone()
    if row is None:
        raise Missing(f"There is no run {truncate(run_id)!r}.")
    *key, schema = row
    return RunKey(*key), schema


def select_run(connection: Connection, client_id: str, run: RunKey) -> Run:
    """Return a run."""
    row = connection.execute(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE client_id = ? AND seq = ?", (client_id, run.seq)
    ).fetchone()
    return run_model(row)


REPORTED_TASKS = """sightings
    JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq"""


def select_run_with_summary(connection: Connection, client_id: str, run: RunKey) -> RunWithSummary:
    """Return a run with the state of the tasks that it reported."""
    counted = connection.execute(
        f"""SELECT tasks.status, tasks.severity, COUNT(*) FROM {REPORTED_TASKS}
            WHERE sightings.client_id = ? AND sightings.run_seq = ? GROUP BY 1, 2""",
        (client_id, run.seq),
    )
    fields = (*astuple(select_run(connection, client_id, run)), summary_of(counted))
    return RunWithSummary(*fields)


def summary_of(counted: Iterable[tuple[str, int, int]]) -> Summary:
    """Add up tasks, counted by their status and the rank of their severity."""
    severities, statuses = Counter[str](), Counter[str]()
    for status, rank, n in counted:
        severities[SEVERITIES[-rank]] += n
        statuses[status] += n
    return Summary(statuses.total(), SeverityCounts(**severities), StatusCounts(**statuses))


def require_registered(connection: Connection, client_id: str, project_type: str, **named: str) -> None:
    """Check that a project type is there. :raises UnknownProjectType: if not, with the names that are.

    :param named: the pointer or the parameter that names it.
    """
    statement = "SELECT name FROM project_types WHERE client_id = ?"
    if connection.execute(f"{statement} AND name = ?", (client_id, project_type)).fetchone():
        return
    known = ", ".join(name for (name,) in connection.execute(f"{statement} ORDER BY name LIMIT 100", (client_id,)))
    raise UnknownProjectType(
        f"Project type {truncate(project_type)!r} is not registered. Registered: {truncate(known) or 'none yet'}."
        " Register it first: POST /api/v1/project-types with its name.",
        [Problem("is not registered", **named, value=truncate(project_type))],
    )


def insert_run(
    connection: Connection, who: Principal, project_type: str, target_url: str, metadata: str, branch: str = MAIN_LINE
) -> RunKey:
    """Start a run of a registered project type. :raises UnknownProjectType: when it is not."""
    client_id = who.client_id
    require_registered(connection, client_id, project_type, pointer="/projectType")
    (newest_id,) = connection.execute("SELECT MAX(id) FROM runs WHERE client_id = ?", (client_id,)).fetchone()
    now, run_id = timestamp(), new_ids(behind=newest_id)[0]
    (seq,) = connection.execute(
        """INSERT INTO runs (client_id, id, project_type, target_url, branch, metadata, status,
               created_at, updated_at, last_used_at)
           VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?) RETURNING seq""",
        (client_id, run_id, project_type, target_url, branch, metadata, now, now, now),
    ).fetchone()
    if branch != MAIN_LINE:
        connection.execute(
            """INSERT INTO branches (client_id, name, project_type, target_url) VALUES (?, ?, ?, ?)
               ON CONFLICT DO NOTHING""",
            (client_id, branch, project_type, target_url),
        )
    connection.transaction.counters.add(
        client_id, counter_names("runs", project_type, target_url, branch), "running", 0, 1
    )
    run = RunKey(seq, project_type, target_url, 0, run_id, "running", branch)
    insert_run_entry(connection, who, run, "started", now)
    return run


def insert_run_entry(connection: Connection, who: Principal, run: RunKey, event: str, now: str) -> None:
    """Store in the history that a run started or finished."""
    connection.execute(
        """INSERT INTO history (client_id, run_seq, at, event, key_name, user_name, branch)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (who.client_id, run.seq, now, event, who.name, who.user, run.branch),
    )


def close_run(
    connection: Connection, who: Principal, run: RunKey, status: str, reason: str | None, verdict: str | None = None
) -> None:
    """Set the final status of a running run, and its verdict as JSON."""
    now, client_id = timestamp(), who.client_id
    connection.execute(
        """UPDATE runs SET status = ?, status_reason = ?, verdict = ?, updated_at = ?, finished_at = ?
           WHERE client_id = ? AND seq = ?""",
        (status, reason, verdict, now, now, client_id, run.seq),
    )
    names = counter_names("runs", *run.type_and_target, run.branch)
    connection.transaction.counters.add(client_id, names, "running", 0, -1)
    connection.transaction.counters.add(client_id, names, status, 0, 1)
    insert_run_entry(connection, who, run, "finished", now)


RUNS_AT_ONCE = 100  # that one look for idle or old ones takes
CLOCKS_DIFFER = 60.0  # seconds at most, of those of two servers; what is later was stored while a clock was ahead


def select_idle_runs(connection: Connection, client_id: str, idle_seconds: float) -> list[RunKey]:
    """Return some of a client's runs that have been idle for so long, first those with a last use in the future."""
    used = "status = 'running' AND last_used_at {} ? LIMIT ?"
    future = RunKey.find(connection, client_id, used.format(">"), timestamp(ago=-CLOCKS_DIFFER), RUNS_AT_ONCE)
    return future or RunKey.find(connection, client_id, used.format("<"), timestamp(ago=idle_seconds), RUNS_AT_ONCE)


def fail_idle_runs(connection: Connection, client_id: str, idle_seconds: float) -> None:
    """Fail runs of a client that have been idle for so long. A last use in the future becomes now."""
    raise_revision(connection, client_id)
    connection.execute(
        "UPDATE runs SET last_used_at = ? WHERE client_id = ? AND status = 'running' AND last_used_at > ?",
        (timestamp(), client_id, timestamp(ago=-CLOCKS_DIFFER)),
    )
    clock = Principal("", client_id, "", "")
    for run in select_idle_runs(connection, client_id, idle_seconds):
        close_run(connection, clock, run, "failed", "timeout")


def idle_slices(database: Database, idle_seconds: float, patience: float | None = None) -> Iterator[None]:
    """Fail idle runs, some of one client in each step, which is a transaction, so that other writes come between.

    :param idle_seconds: 0 for never.
    :param patience: seconds to wait for another process's lock; None for the settings'.
    """
    if not (idle_seconds and database.trusts_clock()):
        return
    with database.reading() as connection:
        clients = select_clients(connection)
    for client_id in clients:
        while True:
            with database.reading() as connection:
                if not select_idle_runs(connection, client_id, idle_seconds):
                    break
            with database.transaction(client_id, patience) as connection:
                fail_idle_runs(connection, client_id, idle_seconds)
            yield


def finish_run(connection: Connection, who: Principal, run: RunKey, update: RunUpdate) -> None:
    """Complete or fail a run, judge a completed one, and store more metadata; the same status again changes nothing.

    :raises RunFinished: when it ended the other way. :raises ValidationFailed: for a baseline that it cannot have, or
        when the metadata get too large.
    """
    if update.status and run.status == "running":
        if update.resolve_missing:
            resolve_missing(connection, who, run)
        verdict = None
        if REGISTRY.judge and update.status == "completed":
            verdict = to_json_text(REGISTRY.judge(connection, who.client_id, run, update.gate))
        close_run(connection, who, run, update.status, update.status_reason, verdict)
    elif update.status not in (None, run.status):
        raise RunFinished(f"The run is {run.status} already, and a finished run stays finished.")
    if members := given_members(update.metadata):
        merge_metadata(connection, who.client_id, run, members)


def given_members(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the members of an object as they were sent, or an empty dict."""
    return decoder(dict[str, Raw] | None).decode(raw or b"null") or {}


def merge_metadata(connection: Connection, client_id: str, run: RunKey, members: Mapping[str, Raw]) -> None:
    """Put members into a run's metadata; null removes one. The others stay as they were sent.

    :raises ValidationFailed: when it gets too large.
    """
    removed = {name for name, value in members.items() if bytes(value) == b"null"}
    merged = {**given_members(select_run(connection, client_id, run).metadata), **members}
    text = to_json_text({name: value for name, value in merged.items() if name not in removed})
    now = timestamp()
    connection.execute(
        "UPDATE runs SET metadata = ?, updated_at = ?, last_used_at = ? WHERE client_id = ? AND seq = ?",
        (read_metadata(Raw(text)), now, now, client_id, run.seq),
    )


def resolve_missing(connection: Connection, who: Principal, run: RunKey) -> None:
    """Resolve the unfinished findings of the run's type, target and line that it did not report any more.

    A branch leaves alone what another branch reported first. Findings in files that the run did not check stay.
    """
    branch = find_branch_of_run(connection, who.client_id, run)
    wanted = TaskFilter(main_line=branch is None, missing_from=run, branches=[branch] if branch else None)
    places = plan_tasks(connection, who.client_id, wanted, "createdAt").places(connection, sys.maxsize, 0)
    states = select_task_rows(connection, who.client_id, BY_SEQ, to_json_text([seq for (seq,) in places]))
    tasks = [state for state in states if state.branch == run.branch]
    if run.is_partial:
        tasks = checked_tasks(connection, who.client_id, run, tasks)
    triage_tasks(connection, who, tasks, TaskUpdate(status="resolved"), run)
    connection.execute(
        "UPDATE runs SET resolved = resolved + ? WHERE client_id = ? AND seq = ?", (len(tasks), who.client_id, run.seq)
    )


def checked_tasks(connection: Connection, client_id: str, run: RunKey, tasks: Iterable[TaskRow]) -> list[TaskRow]:
    """Return those of some tasks that do not lie where a run reported that it did not check."""
    unchecked = connection.execute(
        f"""SELECT tasks.location FROM {REPORTED_TASKS}
            WHERE sightings.client_id = ? AND sightings.run_seq = ? AND tasks.rule = ?""",
        (client_id, run.seq, UNCHECKED),
    )
    files = {location and regex.sub(r"(?::[0-9]+)+\Z", "", location) for (location,) in unchecked}
    if None in files:
        return []
    by_seq = {state.seq: state for state in tasks}
    rows = connection.execute(
        f"SELECT seq, COALESCE(location, '') FROM tasks WHERE {BY_SEQ}", (client_id, to_json_text([*by_seq]))
    )
    # A location also lies within each of its beginnings that end before a `/` or `:`.
    at = {seq: [text, *(text[: sign.start()] for sign in regex.finditer("[/:]", text))] for seq, text in rows}
    return [by_seq[seq] for seq, locations in at.items() if files.isdisjoint(locations)]


def select_runs(
    connection: Connection, client_id: str, query: RunQuery, position: ListCursor | None
) -> tuple[Iterator[Run], int]:
    """Return one page of runs, newest first, and one more if there is a further page; and how many there are in all."""
    wanted = Filter(
        types=frozenset_or_none(query.project_type),
        target_url=query.target_url,
        main_line=query.main_line,
        names=frozenset_or_none(query.branch),
        statuses=frozenset_or_none(query.status),
    )
    plan = plan_rows(connection, client_id, "runs", wanted, wanted.conditions("runs"))
    rows = plan.behind(position).page(connection, client_id, "runs", RUN_COLUMNS, "", query)
    return map(run_model, rows), plan.count(connection)


# ---------------------------------------------------------------------------
# Store: tasks, as they are read
# ---------------------------------------------------------------------------


SPLIT_MARKS = dict.fromkeys((0xF73, 0xF75, 0xF81))  # the only ones of class 0 that decompose into marks of others


def fold_text(text: str) -> str:
    """Return a text without case and accents: what Unicode calls a canonical caseless match, marks left out.

    Letters that look alike stay apart (a ligature is its letters, though, and ß is ss), and so do Hangul's syllables,
    which are put together again.
    """
    if text.isascii():
        return text.lower()
    # Without its marks first: sorting a run of them takes quadratic time.
    bare = "".join(itertools.filterfalse(unicodedata.combining, text.casefold().translate(SPLIT_MARKS)))
    plain = itertools.filterfalse(unicodedata.combining, unicodedata.normalize("NFD", bare))
    return unicodedata.normalize("NFC", "".join(plain))


def words_of(
    title: str, external_id: str | None, labels: str, rule: str | None, location: str | None, tags: Iterable[str]
) -> str:
    """Return the words that a task is found by, with a space between them."""
    marks = f"{rule or ''} {location or ''} {' '.join(tags)}"
    return " ".join(fold_text(f"{title} {external_id or ''} {labels} {marks}").split())


def evidence_labels(evidence: Iterable[Any]) -> str:
    """Return the labels of a task's evidence, with a space between them."""
    return " ".join([item.label for item in evidence if item.label])


SEVERITY_NAME = f"""CASE tasks.severity {" ".join(f"WHEN {rank} THEN '{name}'" for name, rank in RANKS.items())} END"""
EMPTY = {"evidence": "[]", "remediation": "[]", "success_criteria": "[]", "extensions": "{}"}  # as NULL is shown
EXPRESSIONS = {
    "target_url": "NULLIF(tasks.target_url, '')",
    "branch": "NULLIF(tasks.branch, '')",
    "severity": SEVERITY_NAME,
} | {name: f"COALESCE(task_details.{name}, '{empty}')" for name, empty in EMPTY.items()}
# The fields that the tables hold. The ETag is a hash of a task's row.
HEAD_FIELDS = tuple(name for name in TaskHead.__struct_fields__ if name != "etag")
DETAIL_FIELDS = tuple(name for name in Task.__struct_fields__ if name not in TaskHead.__struct_fields__)


def columns_of(table: str, names: Iterable[str]) -> str:
    """Return the columns of a table, or the expressions over them, that fields are read from."""
    return ", ".join(EXPRESSIONS.get(name, f"{table}.{name}") for name in names)


# Entries of the history are counted, because a change of the details alone adds one, several in a millisecond as well.
# Their seqs would not do: a copy may number them anew.
HEAD_COLUMNS = f"""{columns_of("tasks", HEAD_FIELDS)},
    (SELECT COUNT(*) FROM history WHERE history.client_id = tasks.client_id AND history.task_seq = tasks.seq)"""
DETAIL_COLUMNS = columns_of("task_details", DETAIL_FIELDS)
DETAILS = "JOIN task_details ON task_details.client_id = tasks.client_id AND task_details.task_seq = tasks.seq"
NO_TAGS = Raw(b"[]")


def row_etag(head: Sequence[Any]) -> str:
    """Return the ETag of a task from a row of HEAD_COLUMNS."""
    return f'"{hashlib.sha256(to_json(head)).hexdigest()[:32]}"'


def task_head(row: Sequence[Any]) -> TaskHead:
    """Return a task from a row of HEAD_COLUMNS. Its tags are stored JSON, which goes out as it is."""
    head: Any = TaskHead(*(*row[:-1], row_etag(row)))
    head.tags = Raw(head.tags) if head.tags else NO_TAGS
    return cast(TaskHead, head)


def task_model(row: Sequence[Any]) -> Task:
    """Return a task from a row of HEAD_COLUMNS and DETAIL_COLUMNS. Stored JSON goes out as it is."""
    *fields, _ = head = row[: len(HEAD_FIELDS) + 1]
    task: Any = Task(*(*fields, row_etag(head), *row[len(head) :]))
    task.tags = Raw(task.tags) if task.tags else NO_TAGS
    for name in EMPTY:
        setattr(task, name, Raw(getattr(task, name)))
    return cast(Task, task)


def select_task(connection: Connection, client_id: str, task_id: str) -> Task:
    """Return a whole task. :raises Missing: when the client has no such task."""
    row = connection.execute(
        f"""SELECT {HEAD_COLUMNS}, {DETAIL_COLUMNS} FROM tasks {DETAILS}
            WHERE tasks.client_id = ? AND tasks.id = ?""",
        (client_id, task_id),
    ).fetchone()
    if row is None:
        raise Missing(f"There is no task {truncate(task_id)!r}.")
    return task_model(row)


class Search(Protocol):
    """What finds tasks by their words."""

    def condition(self, client_id: str) -> Condition:
        """Return the condition that a task has them."""

    def plan(self, connection: Connection, client_id: str) -> ListPlan:
        """Plan the list of all that have them, with `settled={"search"}`."""


class TaskFilter(Filter, frozen=True, kw_only=True):
    """What a query of tasks asks for, with its run ids and times looked up."""

    external_id: str | None = None
    runs: Sequence[RunKey] | None = None
    branches: Sequence[BranchKey] | None = None
    rules: frozenset[str] | None = None
    location: str | None = None
    tags: frozenset[str] | None = None
    without: str | None = None
    new_in: Sequence[RunKey] | None = None
    baseline: RunKey | None = None
    missing_from: RunKey | None = None
    assignee: str | None = None
    assigned: bool | None = None
    span: tuple[int, int] | None = None
    search: Search | None = None

    columns: ClassVar = Filter.columns | {"rules": "rule", "external_id": "external_id", "assignee": "assignee"}

    @property
    def reporters(self) -> dict[str, Sequence[Source]]:
        """The runs, and the branches, of which one each must have reported a task: those of its type and target."""
        given = {"runs": self.runs, "branches": self.branches, "new_in": self.new_in}
        return {
            field: [each for each in reporters if self.is_about(*each.type_and_target)]
            for field, reporters in given.items()
            if reporters is not None
        }


MOST_REPORTERS = 1_000  # runs or branches that one list is merged of


def provided_by(module: str, registered: Value | None, parameter: str) -> Value:
    """Return the function that a module registered. :raises InvalidParameter: if the module is not installed."""
    if registered is None:
        raise InvalidParameter(parameter, f"needs {load_module(module)}")
    return registered


def read_task_filter(connection: Connection, client_id: str, query: TaskFilters) -> TaskFilter:
    """Look up what a query names.

    :raises Missing: when `missingFrom` or `newIn` is no run of the client.
    :raises InvalidParameter: for too many branches, an empty search, or a filter of a module that is not installed.
    """
    search, new_in, baseline = None, None, None
    if query.q is not None:  # an unsound parameter is told before an unknown run
        search = provided_by(SEARCH, REGISTRY.search, "q")(query.q)
    if query.new_in is not None:
        find_baseline = provided_by(GATE, REGISTRY.baseline, "newIn")
        new_in = select_run_key(connection, client_id, query.new_in)
        baseline = find_baseline(connection, client_id, new_in)
    ids, names = query.run_id, query.branch
    wanted = TaskFilter(
        types=frozenset_or_none(query.project_type),
        target_url=query.target_url,
        main_line=query.main_line,
        statuses=frozenset_or_none(query.status),
        ranks=frozenset_or_none(map(RANKS.__getitem__, query.severity) if query.severity else None),
        external_id=query.external_id,
        runs=RunKey.find(connection, client_id, f"id {LISTED}", to_json_text(ids)) if ids else None,
        branches=BranchKey.find(connection, client_id, f"name {LISTED}", to_json_text(names)) if names else None,
        rules=frozenset_or_none(query.rule),
        location=query.location,
        tags=frozenset_or_none(query.tag),
        without=query.without,
        new_in=[new_in] if new_in else None,
        baseline=baseline,
        missing_from=select_run_key(connection, client_id, query.missing_from) if query.missing_from else None,
        assignee=query.assignee,
        assigned=query.assigned,
        span=select_span(connection, client_id, query.created_since, query.created_before),
        search=search,
    )
    if len(wanted.reporters.get("branches", ())) > MOST_REPORTERS:
        detail = f"is there for over {MOST_REPORTERS:,} project types and targets; name one of those, too"
        raise InvalidParameter("branch", detail)
    return wanted


def select_span(
    connection: Connection, client_id: str, since: str | None, before: str | None
) -> tuple[int, int] | None:
    """Return between which seqs a client's tasks are that were created between two times, None where all were."""
    if since is None and before is None:
        return None
    newest = "SELECT COALESCE(MAX(seq), 0) + 1 FROM tasks WHERE client_id = ?"
    (above,) = connection.execute(newest, (client_id,)).fetchone()
    first = select_first_seq(connection, client_id, since, above) if since else 0
    end = select_first_seq(connection, client_id, before, above) if before else above
    return (first, end) if first or end < above else None


def select_first_seq(connection: Connection, client_id: str, at: str, above: int) -> int:
    """Return the seq from which on a client's tasks were created at some time or later, at most `above`.

    It is looked for by halves, because `created_at` never falls (see `submit_reports`).
    """

    def created_from(seq: int) -> str:
        row = connection.execute(
            "SELECT created_at FROM tasks WHERE client_id = ? AND seq >= ? ORDER BY seq LIMIT 1", (client_id, seq)
        ).fetchone()
        return row[0] if row else at

    return bisect.bisect_left(range(above), at, key=created_from)


def reported_by(client_id: str, reporters: Sequence[Source]) -> Condition:
    """Return the condition that one of some runs (or branches) reported a task.

    Of up to twenty each is looked up; of more, a task's own are mostly fewer. For EXISTS, PostgreSQL would make a list
    of all that they reported, once for each range.
    """
    if not reporters:
        return "1 = 0", ()
    table, column = reporters[0].sightings, f"seen.{reporters[0].column}"
    one, values = among(column if len(reporters) <= 20 else f"COALESCE({column}, 0)", [each.seq for each in reporters])
    seen = f"SELECT 1 FROM {table} AS seen WHERE seen.client_id = ? AND {one} AND seen.task_seq = tasks.seq"
    return f"({seen} LIMIT 1) IS NOT NULL", (client_id, *values)


def missing_from(connection: Connection, client_id: str, run: RunKey) -> Condition:
    """Return the condition for missing findings: known to a run's line, and reported neither by it nor by a later run.

    Later runs are those of that line that were created after it: an older run that ends late closes nothing of them.
    The main line knows what runs of it have reported; a branch knows that, and what its own runs have.
    """
    branch = find_branch_of_run(connection, client_id, run)
    known, more = reported_by(client_id, [branch] if branch else [])
    later = """(SELECT 1 FROM sightings AS seen
        JOIN runs ON runs.client_id = seen.client_id AND runs.seq = seen.run_seq
        WHERE seen.client_id = ? AND seen.task_seq = tasks.seq AND seen.run_seq >= ? AND runs.branch = ? LIMIT 1)"""
    values = (client_id, run.seq, run.branch)
    return (f"tasks.external_id IS NOT NULL AND (tasks.branch = '' OR {known}) AND {later} IS NULL", (*more, *values))


def tagged(client_id: str, tags: Iterable[str]) -> Condition:
    """Return the condition that a task has one of some tags: each is looked up by the whole key of `task_tags`."""
    one, values = among("tag", tags)
    line = "main_line = CASE tasks.branch WHEN '' THEN 1 ELSE 0 END"
    same = f"{line} AND status = tasks.status AND severity = tasks.severity AND task_seq = tasks.seq"
    found = f"SELECT 1 FROM task_tags WHERE client_id = ? AND {one} AND {same} LIMIT 1"
    return f"({found}) IS NOT NULL", (client_id, *values)


def located(location: str) -> Condition:
    """Return the condition that a task is at a location, or at one that goes on behind it."""
    if location.endswith(("/", ":")):
        return "instr(tasks.location, ?) = 1", (location,)
    further = "instr(tasks.location, ?) = 1 OR instr(tasks.location, ?) = 1"
    return f"(tasks.location = ? OR {further})", (location, f"{location}/", f"{location}:")


def plan_tasks(connection: Connection, client_id: str, wanted: TaskFilter, order: str = "-createdAt") -> ListPlan:
    """Plan the list that a filter asks for: the ranges that hold the fewest rows, in which all else is looked at."""
    if (run := wanted.missing_from) is not None:  # what is missing is unfinished, of the run's type and target
        about = frozenset({run.project_type} if wanted.is_about(*run.type_and_target) else ())
        statuses = frozenset(UNFINISHED if wanted.statuses is None else wanted.statuses.intersection(UNFINISHED))
        wanted = replace(wanted, types=about, target_url=run.target_url, statuses=statuses)
    asked = wanted.conditions("tasks")
    if wanted.assigned is not None:
        asked["assigned"] = (f"tasks.assignee IS {'NOT ' if wanted.assigned else ''}NULL", ())
    for field, reporters in wanted.reporters.items():
        asked[field] = reported_by(client_id, reporters)
    if wanted.baseline is not None:
        known, values = reported_by(client_id, [wanted.baseline])
        asked["baseline"] = (f"(NOT {known} OR tasks.rule = ?)", (*values, UNCHECKED))
    if wanted.tags is not None:
        asked["tags"] = tagged(client_id, wanted.tags)
    if wanted.location is not None:
        asked["location"] = located(wanted.location)
    if wanted.without is not None:
        column = "tags" if wanted.without == "tag" else wanted.without
        asked["without"] = (f"tasks.{column} IS NULL", ())
    if run is not None:
        asked["missing_from"] = missing_from(connection, client_id, run)
    if wanted.search is not None:
        asked["search"] = wanted.search.condition(client_id)
    found = plan_rows(connection, client_id, "tasks", wanted, asked, order)
    if wanted.span is None:
        return found
    first, end = wanted.span
    return found.narrowed(lambda each: each.where(f"{each.seq} >= ? AND {each.seq} < ?", first, end))


def select_tasks(
    connection: Connection, client_id: str, wanted: TaskFilter, query: TaskQuery, position: ListCursor | None
) -> tuple[Iterator[TaskHead], ListPlan]:
    """Return one page of tasks, and one more if there is a further page; and the whole list, to be counted."""
    whole = query.view == "full"
    columns, joined = (f"{HEAD_COLUMNS}, {DETAIL_COLUMNS}", DETAILS) if whole else (HEAD_COLUMNS, "")
    plan = plan_tasks(connection, client_id, wanted, query.sort)
    rows = plan.behind(position).page(connection, client_id, "tasks", columns, joined, query)
    return map(task_model if whole else task_head, rows), plan


def select_history(
    connection: Connection, client_id: str, task_seq: int, limit: int, offset: int
) -> Iterator[HistoryEntry]:
    """Give what happened to a task, oldest first, behind so many entries, and one more if there is a further page."""
    rows = connection.execute(
        """SELECT at, event, key_name, user_name, run_id, from_status, to_status, reason, assignee, comment,
               COALESCE(changed, '[]')
           FROM history WHERE client_id = ? AND task_seq = ? ORDER BY seq LIMIT ? OFFSET ?""",
        (client_id, task_seq, limit + 1, offset),
    )
    return (HistoryEntry(*(*fields, Raw(changed))) for *fields, changed in rows)


# ---------------------------------------------------------------------------
# Store: tasks, as they are written
# ---------------------------------------------------------------------------


class TaskContent(Struct, gc=False):
    """Fields of a task that reports set. Each is the column of its name, in `tasks` if lists show it, else details."""

    title: str
    severity: int
    description: str | None = None
    evidence: str | None = None
    remediation: str | None = None
    success_criteria: str | None = None
    extensions: str | None = None
    rule: str | None = None
    location: str | None = None
    tags: str | None = None


CONTENT = TaskContent.__struct_fields__
content_of = attrgetter(*CONTENT)
HEAD_CONTENT = tuple(name for name in CONTENT if name in HEAD_FIELDS)
DETAIL_CONTENT = tuple(name for name in CONTENT if name in DETAIL_FIELDS)
head_content_of, detail_content_of = attrgetter(*HEAD_CONTENT), attrgetter(*DETAIL_CONTENT)
CONTENT_COLUMNS = ", ".join(f"{'tasks' if name in HEAD_CONTENT else 'task_details'}.{name}" for name in CONTENT)
API_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(Task)}
SEARCHED = {"title", "evidence", "rule", "location", "tags", "externalId"}  # of what a report may change


class NewTask(TaskContent, gc=False, kw_only=True):
    """One submitted task, checked, in the form in which it is stored; `labels` are those of its evidence."""

    external_id: str | None
    status: TaskStatus | None = None
    labels: str = ""
    former_ids: Sequence[str] = ()
    old_id: str = ""  # another one that it may have had, which is not kept
    old_title: str = ""  # the title, but for numbers, of the finding that this one names; "" for any
    identity: str | None = None  # of which the external id is made, with a number where there are several
    place: tuple[str, int, int] = ("", 0, 0)  # path, line and column, which distinguish them
    twin_of: str | None = None  # the external id of the first of these, where this is another one
    known_as: str | None = None  # if matched by place, the external id of the stored finding, "" for a new one

    @property
    def words(self) -> str:
        """What the task is found by."""
        tags = tags_in(self.tags) if self.tags else ()
        return words_of(self.title, self.external_id, self.labels, self.rule, self.location, tags)


class TaskRow(Record, frozen=True):
    """What the counters and the history need to know of a stored task; `tags` is a JSON text."""

    seq: int
    id: str
    status: TaskStatus
    reason: str | None
    assignee: str | None
    severity: int
    project_type: str
    target_url: str
    branch: str
    rule: str | None
    tags: str | None
    is_decided: int = 0  # 1 once somebody has changed its status or its reason

    def after(self, update: TaskUpdate, *, is_decision: bool = False) -> TaskRow:
        """Return the task after an update; a change of the status removes the reason.

        :param is_decision: whether somebody takes it, and not a report or the end of a run.
        """
        status = update.status or self.status
        reason = update.reason or (self.reason if status == self.status else None)
        assignee = self.assignee if update.assignee is None else update.assignee or None
        if (status, reason, assignee) == (self.status, self.reason, self.assignee):
            return self
        decides = is_decision and (status, reason) != (self.status, self.reason)
        decided = int(decides or self.is_decided)
        return replace(self, status=status, reason=reason, assignee=assignee, is_decided=decided)


class StoredFinding(Record, frozen=True):
    """A stored finding that is reported again."""

    state: TaskRow
    content: Sequence[Any]  # the fields of TaskContent
    external_id: str
    seen_by_run: bool

    def changed(self, report: NewTask, branch: str) -> list[str]:
        """Return the API's names of the fields that the report, and the branch of its run, change."""
        before = (*self.content, self.state.branch, self.external_id)
        after = (*content_of(report), branch, report.external_id)
        if before == after:
            return []
        # Left out, extensions are {}: only they are stored as they were sent.
        return [
            API_NAMES[name]
            for name, one, other in zip((*CONTENT, "branch", "external_id"), before, after, strict=True)
            if one != other and not (name in EMPTY and same_json(one or "{}", other or "{}"))
        ]

    def next_state(self, report: NewTask, branch: str) -> TaskRow:
        """Return the finding's state after a report.

        A resolved finding reopens. One that is not decided is dismissed while its scanner suppresses it.
        """
        state, told = self.state, report.status
        follows = not state.is_decided
        if state.status == "resolved":
            moves = told not in ("resolved", "dismissed")
        elif state.status == "dismissed":
            moves = follows and told in (None, "open")
        else:
            moves = follows and told == "dismissed"
        if moves:
            state = state.after(TaskUpdate(status="dismissed" if told == "dismissed" else "open"))
        return replace(state, severity=report.severity, branch=branch, rule=report.rule, tags=report.tags)

    def repeated(self, report: NewTask, run_branch: str) -> RepeatedReport:
        """Return the changes that a report of a run makes.

        A report of a branch does not change a task of the main line. A report of the main line takes over a branch's.
        """
        if run_branch and not self.state.branch:
            return RepeatedReport(self, report, [], self.state)
        branch = run_branch and self.state.branch
        return RepeatedReport(self, report, self.changed(report, branch), self.next_state(report, branch))


TASK_ROW_COLUMNS = ", ".join(f"tasks.{name}" for name in TaskRow.__struct_fields__)


def select_task_rows(connection: Connection, client_id: str, condition: str, value: str) -> list[TaskRow]:
    """Return the states of those of a client's tasks that are as a condition says."""
    statement = f"SELECT {TASK_ROW_COLUMNS} FROM tasks WHERE {condition}"
    return [TaskRow(*row) for row in connection.execute(statement, (client_id, value))]


def select_task_row(connection: Connection, client_id: str, task_id: str) -> TaskRow:
    """Return a task's state. :raises Missing: when the client has no such task."""
    for state in select_task_rows(connection, client_id, "client_id = ? AND id = ?", task_id):
        return state
    raise Missing(f"There is no task {truncate(task_id)!r}.")


def select_findings(connection: Connection, by: Submitting, external_ids: Sequence[str]) -> dict[str, StoredFinding]:
    """Return the findings of a run's type and target that were there before, by those of these external ids.

    What the same transaction has stored has other ids. PostgreSQL counts none of it yet, and would go through all.
    """
    rows = connection.execute(
        f"""SELECT {TASK_ROW_COLUMNS}, {CONTENT_COLUMNS}, tasks.external_id,
                (SELECT sightings.run_seq FROM sightings WHERE sightings.client_id = tasks.client_id
                 AND sightings.run_seq = ? AND sightings.task_seq = tasks.seq) IS NOT NULL
            FROM tasks {DETAILS}
            WHERE (tasks.client_id = ?) IS TRUE AND tasks.seq <= ? AND tasks.seq IN (SELECT (
                SELECT seq FROM tasks WHERE client_id = ? AND project_type = ? AND target_url = ?
                    AND external_id = value AND seq <= ?
            ) FROM json_each(?))""",
        (
            by.run.seq,
            by.who.client_id,
            by.newest,
            by.who.client_id,
            *by.run.type_and_target,
            by.newest,
            json.dumps(external_ids),
        ),
    )
    state, found = len(TaskRow.__struct_fields__), dict[str, StoredFinding]()
    for row in rows:
        external_id, is_seen = row[-2:]
        found[external_id] = StoredFinding(TaskRow(*row[:state]), row[state:-2], external_id, bool(is_seen))
    return found


COUNTED_BY = attrgetter("project_type", "target_url", "branch", "rule", "tags", "status", "severity")


def index_tasks(connection: Connection, client_id: str, states: Sequence[TaskRow], n: Literal[1, -1]) -> None:
    """Count tasks in, and list them by their tags; or out, with -1."""
    kinds = Counter(map(COUNTED_BY, states))
    for (project_type, target_url, branch, rule, tags, status, severity), times in kinds.items():
        names = counter_names("tasks", project_type, target_url, branch)
        if rule or tags:
            names = (*names, *label_counters(rule, tags, branch))
        connection.transaction.counters.add(client_id, names, status, severity, n * times)
    rows = [
        (client_id, tag, int(not state.branch), state.status, state.severity, state.seq)
        for state in states
        if state.tags
        for tag in tags_in(state.tags)
    ]
    if rows:
        connection.executemany(INSERT_TAG if n > 0 else DELETE_TAG, rows)


INSERT_TAG = """INSERT INTO task_tags (client_id, tag, main_line, status, severity, task_seq)
    VALUES (?, ?, ?, ?, ?, ?)"""
DELETE_TAG = """DELETE FROM task_tags WHERE client_id = ? AND tag = ? AND main_line = ? AND status = ? AND severity = ?
    AND task_seq = ?"""


def move_in_counters(connection: Connection, client_id: str, changes: Iterable[tuple[TaskRow, TaskRow]]) -> None:
    """Count and list tasks anew, each as it was and as it is, whose status, severity, line, rule or tags changed."""
    moved = [(old, new) for old, new in changes if COUNTED_BY(old) != COUNTED_BY(new)]
    index_tasks(connection, client_id, [old for old, _ in moved], -1)
    index_tasks(connection, client_id, [new for _, new in moved], 1)


def insert_history(
    connection: Connection, who: Principal, now: str, run: RunKey | None, entries: Iterable[Sequence[Any]]
) -> None:
    """Store history of tasks: seq of the task, event, from, to, reason, assignee, comment, changed."""
    told = (who.client_id, now, who.name, who.user, *((run.id, run.branch) if run else (None, MAIN_LINE)))
    connection.executemany(
        """INSERT INTO history (client_id, at, key_name, user_name, run_id, branch, task_seq, event, from_status,
               to_status, reason, assignee, comment, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        [(*told, *entry) for entry in entries],
    )


def triage_tasks(
    connection: Connection, who: Principal, states: Sequence[TaskRow], update: TaskUpdate, run: RunKey | None = None
) -> int:
    """Store a decision about tasks, and return how many of them got an entry in their history.

    What a task is already changes nothing, and is in the history only with a comment.
    """
    now = timestamp()
    decided = [(state, state.after(update, is_decision=run is None)) for state in states]
    changes = [(old, new) for old, new in decided if new is not old]
    connection.executemany(
        """UPDATE tasks SET status = ?, reason = ?, assignee = ?, is_decided = ?, updated_at = ?
           WHERE client_id = ? AND seq = ?""",
        [(new.status, new.reason, new.assignee, new.is_decided, now, who.client_id, new.seq) for _, new in changes],
    )
    move_in_counters(connection, who.client_id, changes)
    entries = {old.seq: triage_entries(old, new, update.comment) for old, new in decided}
    rows = [(seq, *fields, None) for seq, told in entries.items() for fields in told]
    insert_history(connection, who, now, run, rows)
    return sum(map(bool, entries.values()))


def triage_entries(old: TaskRow, new: TaskRow, comment: str | None) -> list[tuple[str | None, ...]]:
    """Return what the history says of a decision: event, from, to, reason, assignee, comment.

    A comment stands beside the status that it explains, or else by itself.
    """
    entries: list[tuple[str | None, ...]] = []
    moved = (old.status, old.reason) != (new.status, new.reason)
    if moved:
        entries.append(("status", old.status, new.status, new.reason, None, comment))
    if old.assignee != new.assignee:
        entries.append(("assigned", None, None, None, new.assignee, None))
    if comment is not None and not moved:
        entries.append(("comment", None, None, None, None, comment))
    return entries


class Submitting(Record, frozen=True):
    """A submission: its sender, time, run and branch, and the seq and id of the client's newest task before it.

    `created_at` is that of new tasks, which may be later than `now`.
    """

    who: Principal
    run: RunKey
    branch: BranchKey | None
    newest: int
    newest_id: str | None
    now: str
    created_at: str


def insert_sightings(connection: Connection, by: Submitting, states: Sequence[TaskRow]) -> None:
    """Store that a run reported tasks, and so that its branch knows them. Of the main line's a branch's does not count.

    The tasks are as they are after the report.
    """
    client_id, branch = by.who.client_id, by.branch
    connection.executemany(
        "INSERT INTO sightings (client_id, run_seq, task_seq, counted) VALUES (?, ?, ?, ?)",
        [(client_id, by.run.seq, state.seq, int(not branch or state.branch != MAIN_LINE)) for state in states],
    )
    if branch is None:
        return
    inserted = connection.executemany(
        """INSERT INTO branch_sightings (client_id, branch_seq, task_seq) VALUES (?, ?, ?)
           ON CONFLICT (client_id, branch_seq, task_seq) DO NOTHING""",
        [(client_id, branch.seq, state.seq) for state in states],
    )
    connection.execute(
        "UPDATE branches SET reported = reported + ? WHERE client_id = ? AND seq = ?",
        (inserted.rowcount, client_id, branch.seq),
    )


def insert_tasks(connection: Connection, by: Submitting, reports: Sequence[NewTask]) -> list[TaskResult]:
    """Store new findings, and return what became of each report."""
    who, run, now = by.who, by.run, by.now
    seqs = connection.take_seqs(who.client_id, len(reports), by.newest)
    scope = (*run.type_and_target, run.branch)
    added = [
        (TaskRow(seq, task_id, new.status or "open", None, None, new.severity, *scope, new.rule, new.tags), new)
        for seq, task_id, new in zip(seqs, new_ids(len(reports), by.newest_id), reports, strict=True)
    ]
    connection.executemany(
        f"""INSERT INTO tasks (client_id, project_type, target_url, branch, seq, id, external_id, twin_of, run_id,
               last_run_id, status, created_at, updated_at, last_seen_at, {", ".join(HEAD_CONTENT)})
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?{", ?" * len(HEAD_CONTENT)})""",
        [
            (who.client_id, *scope, state.seq, state.id, report.external_id, report.twin_of, run.id, run.id)  # noqa: RUF005
            + (state.status, by.created_at, now, now)
            + head_content_of(report)
            for state, report in added
        ],
    )
    connection.executemany(
        f"""INSERT INTO task_details (client_id, task_seq, {", ".join(DETAIL_CONTENT)})
           VALUES (?, ?{", ?" * len(DETAIL_CONTENT)})""",
        [(who.client_id, state.seq, *detail_content_of(report)) for state, report in added],
    )
    states = [state for state, _ in added]
    insert_sightings(connection, by, states)
    if kept := {
        state.seq: (report.external_id, *report.former_ids)
        for state, report in added
        if report.external_id and report.former_ids
    }:
        REGISTRY.keep_former_ids(connection, by, kept)
    entries = [(state.seq, "created", None, state.status, None, None, None, None) for state in states]
    insert_history(connection, who, now, run, entries)
    connection.executemany(
        "INSERT INTO task_words (client_id, task_seq, words) VALUES (?, ?, ?)",
        [(who.client_id, state.seq, report.words) for state, report in added],
    )
    index_tasks(connection, who.client_id, states, 1)
    return [TaskResult(state.id, state.status, report.external_id, "created") for state, report in added]


class RepeatedReport(Record, frozen=True):
    """A stored finding with its newer report, and what that comes to."""

    finding: StoredFinding
    report: NewTask
    changed: list[str]
    state: TaskRow

    @property
    def result(self) -> Literal["updated", "reopened", "unchanged"]:
        """What the report did."""
        moved = self.state.status != self.finding.state.status
        if moved and self.state.status == "open":
            return "reopened"
        return "updated" if moved or self.changed else "unchanged"

    @property
    def entry(self) -> tuple[Any, ...]:
        """The history entry of a report that changed something."""
        before, after = self.finding.state.status, self.state.status
        moved = (before, after) if before != after else (None, None)
        return (self.state.seq, "reported", *moved, None, None, None, json.dumps(self.changed))


def assignments(columns: Iterable[str]) -> str:
    """Return the assignments of an UPDATE that sets columns to parameters."""
    return ", ".join(f"{column} = ?" for column in columns)


def update_tasks(connection: Connection, by: Submitting, repeated: Sequence[RepeatedReport]) -> list[TaskResult]:
    """Store newer reports of stored findings, and return what became of each."""
    who, now = by.who, by.now
    rewritten = [item for item in repeated if item.result != "unchanged"]
    connection.executemany(
        f"""UPDATE tasks SET {assignments(HEAD_CONTENT)}, status = ?, reason = ?, branch = ?, updated_at = ?
           WHERE client_id = ? AND seq = ?""",
        [
            (*head_content_of(item.report), state.status, state.reason, state.branch, now, who.client_id, state.seq)
            for item in rewritten
            for state in (item.state,)
        ],
    )
    if renamed := [item for item in rewritten if "externalId" in item.changed]:
        connection.executemany(
            "UPDATE tasks SET external_id = ?, twin_of = ? WHERE client_id = ? AND seq = ?",
            [(item.report.external_id, item.report.twin_of, who.client_id, item.state.seq) for item in renamed],
        )
        kept = {
            item.state.seq: (item.report.external_id or "", old)
            for item in renamed
            if (old := item.finding.external_id) in item.report.former_ids or old != item.report.old_id
        }
        REGISTRY.keep_former_ids(connection, by, kept)
    connection.executemany(
        f"UPDATE task_details SET {assignments(DETAIL_CONTENT)} WHERE client_id = ? AND task_seq = ?",
        [(*detail_content_of(item.report), who.client_id, item.state.seq) for item in rewritten if item.changed],
    )
    connection.executemany(
        "UPDATE task_words SET words = ? WHERE client_id = ? AND task_seq = ?",
        [
            (item.report.words, who.client_id, item.state.seq)
            for item in rewritten
            if SEARCHED.intersection(item.changed)
        ],
    )
    move_in_counters(connection, who.client_id, [(item.finding.state, item.state) for item in rewritten])
    insert_history(connection, who, now, by.run, [item.entry for item in rewritten])
    unseen = [item.state for item in repeated if not item.finding.seen_by_run]
    if seqs := [state.seq for state in unseen if not by.branch or state.branch != MAIN_LINE]:
        connection.execute(
            f"UPDATE tasks SET last_run_id = ?, last_seen_at = ?, times_seen = times_seen + 1 WHERE {BY_SEQ}",
            (by.run.id, now, who.client_id, to_json_text(seqs)),
        )
    if unseen:
        insert_sightings(connection, by, unseen)
    return [TaskResult(item.state.id, item.state.status, item.report.external_id, item.result) for item in repeated]


def store_reports(
    connection: Connection,
    by: Submitting,
    reports: Mapping[str | int, NewTask],
    findings: Mapping[str, StoredFinding],
    results: dict[str | int, TaskResult],
) -> int:
    """Store reports by their external ids, or something else where they have none.

    :param findings: those that are stored already. :param results: gets what became of each.
    :return: how many of them the run had not reported before.
    """
    new = {key: report for key, report in reports.items() if key not in findings}
    if new:
        results.update(zip(new, insert_tasks(connection, by, list(new.values())), strict=True))
    if findings:
        repeated = [each.repeated(reports[key], by.run.branch) for key, each in findings.items()]
        results.update(zip(findings, update_tasks(connection, by, repeated), strict=True))
    return len(new) + sum(not finding.seen_by_run for finding in findings.values())


def select_submitting(connection: Connection, who: Principal, run: RunKey) -> Submitting:
    """Return the sender, run and time of a submission.

    If the clock was set back, or another server's is ahead, new tasks get the time of the newest one. So the orders by
    `created_at`, `id` and `seq` are the same: a list by date is a range of seqs, and cursors survive deletions.

    :raises Missing: if the run was deleted since it was read. :raises RunFinished: if it is not running any more.
    """
    newest_task = connection.execute(
        "SELECT seq, id, created_at FROM tasks WHERE client_id = ? ORDER BY seq DESC LIMIT 1", (who.client_id,)
    )
    run = select_run_key(connection, who.client_id, run.id)
    branch = find_branch_of_run(connection, who.client_id, run) if run.branch else None
    if run.status != "running":
        raise RunFinished(f"The run is {run.status} already; start another one to submit more.")
    newest, newest_id, created_at = newest_task.fetchone() or (0, None, "")
    now = timestamp()
    return Submitting(who, run, branch, newest, newest_id, now, max(now, created_at))


REPORTS_AT_ONCE = 500  # of a submission
Numbering: TypeAlias = Callable[[Connection, Submitting, Sequence[NewTask]], None]


def submit_reports(
    connection: Connection, who: Principal, run: RunKey, reports: Sequence[NewTask], number: Numbering | None = None
) -> Submission:
    """Insert the new findings of a submission, and update the known ones, in lots, to bound the memory.

    Of several reports with one external id the last one counts.

    :param number: sets the external ids of reports that share an identity.
    :raises Missing: if the run was deleted since it was read. :raises RunFinished: if it is not running any more.
    """
    by = select_submitting(connection, who, run)
    if number:
        number(connection, by, reports)
    # Keyed by external id, or by its index for a report without one; a dict keeps the position of the first.
    identities = [report.external_id or index for index, report in enumerate(reports)]
    unique = iter(dict(zip(identities, reports, strict=True)).items())
    results: dict[str | int, TaskResult] = {}
    sightings = 0
    taken = {key for key in identities if isinstance(key, str)}
    while lot := dict(itertools.islice(unique, REPORTS_AT_ONCE)):
        external_ids = sorted(key for key in lot if isinstance(key, str))
        findings = select_findings(connection, by, external_ids)
        unknown = [lot[key] for key in external_ids if key not in findings]
        if unknown:
            findings |= REGISTRY.find_by_former_ids(connection, by, unknown, taken)
        sightings += store_reports(connection, by, lot, findings, results)
    found = Counter(result.result for result in results.values())
    counts = found["created"], found["updated"], found["reopened"], found["unchanged"]
    is_partial = any(report.rule == UNCHECKED for report in reports)
    connection.execute(
        """UPDATE runs SET created = created + ?, updated = updated + ?, reopened = reopened + ?,
               unchanged = unchanged + ?, reported = reported + ?, is_partial = is_partial | ?, updated_at = ?,
               last_used_at = ?
           WHERE client_id = ? AND seq = ?""",
        (*counts, sightings, int(is_partial), by.now, by.now, who.client_id, by.run.seq),
    )
    return Submission(*counts, [results[key] for key in identities])


# ---------------------------------------------------------------------------
# Store: answers kept for requests that come again
# ---------------------------------------------------------------------------

ANSWER_KEPT = 24 * 3600.0  # seconds
EXPIRED_AT_ONCE = 4  # answers that one request drops, each with up to a thousand references
SAME_REQUEST = "client_id = ? AND key_id = ? AND method = ? AND path = ? AND idempotency_key = ?"
DELETED = ""  # where the hash of a body would stand, when the answer is dropped and its key is good for nothing


class RequestKey(Record, frozen=True):
    """What makes two requests the same: who sent them where, under which Idempotency-Key."""

    client_id: str
    key_id: str
    method: str
    path: str
    idempotency_key: str


class StoredResponse(Record, frozen=True):
    """An answer to a request with an Idempotency-Key."""

    body_hash: str
    status: int
    location: str | None
    body: str


def select_response(connection: Connection, request: RequestKey, body_hash: str) -> StoredResponse | None:
    """Return the answer that a request got before, None when there is none.

    :raises IdempotencyConflict: when it had another body then, or when what it was answered with is deleted.
    """
    row = connection.execute(
        f"""SELECT body_hash, status, location, body FROM idempotent_answers
           WHERE {SAME_REQUEST} AND created_at > ?""",
        (*astuple(request), timestamp(ago=ANSWER_KEPT)),
    ).fetchone()
    if row is None:
        return None
    stored = StoredResponse(*row)
    if stored.body_hash == DELETED:
        raise IdempotencyConflict("What this Idempotency-Key was answered with is deleted; use a new key.")
    if stored.body_hash != body_hash:
        raise IdempotencyConflict("This Idempotency-Key was used for another body; use a new key for a new request.")
    return stored


def insert_response(
    connection: Connection, request: RequestKey, answer: StoredResponse, references: Mapping[str, bool]
) -> None:
    """Keep an answer, and drop some of the client's expired ones in passing.

    :param references: the ids that the answer holds and those in its path, each with whether it is in the path.
    """
    now = timestamp()
    connection.execute(  # else those that were kept while the clock was ahead would expire years later
        "UPDATE idempotent_answers SET created_at = ? WHERE client_id = ? AND created_at > ?",
        (now, request.client_id, timestamp(ago=-CLOCKS_DIFFER)),
    )
    expired = "SELECT seq FROM idempotent_answers WHERE client_id = ? AND created_at <= ? ORDER BY created_at LIMIT ?"
    connection.execute(
        f"DELETE FROM idempotent_answers WHERE client_id = ? AND seq IN ({expired})",
        (request.client_id, request.client_id, timestamp(ago=ANSWER_KEPT), EXPIRED_AT_ONCE),
    )
    connection.execute(  # which has expired, or it would have been given again
        f"DELETE FROM idempotent_answers WHERE {SAME_REQUEST}", astuple(request)
    )
    (seq,) = connection.execute(
        """INSERT INTO idempotent_answers (client_id, key_id, method, path, idempotency_key,
               body_hash, status, location, body, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq""",
        (*astuple(request), *astuple(answer), now),
    ).fetchone()
    insert_references(connection, request.client_id, seq, references)


def insert_references(connection: Connection, client_id: str, answer_seq: int, references: Mapping[str, bool]) -> None:
    """Store what a kept answer refers to."""
    connection.executemany(
        "INSERT INTO answer_references (client_id, reference, answer_seq, in_path) VALUES (?, ?, ?, ?)",
        [(client_id, reference, answer_seq, int(in_path)) for reference, in_path in references.items()],
    )


def drop_responses(connection: Connection, client_id: str, *deleted: str) -> None:
    """Drop the kept answers that refer to what is deleted, by its ids or names.

    A key whose path is gone is forgotten, so that its next request is 404. Any other key is kept without its answer.
    """
    about = f"""client_id = ? AND seq IN (
        SELECT answer_seq FROM answer_references WHERE client_id = ? AND reference {LISTED}"""
    values = (client_id, client_id, to_json_text(deleted))
    connection.execute(f"DELETE FROM idempotent_answers WHERE {about} AND in_path = 1)", values)
    connection.execute(
        f"UPDATE idempotent_answers SET body_hash = ?, location = NULL, body = '' WHERE {about})", (DELETED, *values)
    )
    forget = f"DELETE FROM answer_references WHERE client_id = ? AND reference {LISTED}"  # a name may be a secret
    connection.execute(forget, values[1:])


# ---------------------------------------------------------------------------
# Reading a request: its body, and every problem of that
# ---------------------------------------------------------------------------

READABLE_DIGITS = 4300  # of a whole number; msgspec and Python take their time beyond
NUL_ESCAPE = regex.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
TEXT_PIECE = 1024 * KIB  # bytes that strings are removed from at once
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
LEVEL_STEPS = dict(zip(b"[{]}", (1, 1, -1, -1), strict=True))

# What msgspec raises for a text that is no JSON, or may be none.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield what of a JSON text is outside of its strings, a piece at a time. This is linear, and mostly in C."""
    inside, escape = 0, b""
    for start in range(0, len(text), TEXT_PIECE):
        piece = (escape + text[start : start + TEXT_PIECE]).replace(rb"\\", b"")
        escape = piece[len(piece.rstrip(b"\\")) :]  # half of one, which the next piece completes
        parts = piece.replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2


def require_json(text: bytes, levels: int = NESTING) -> Any:
    """Return what a JSON text means. :raises MalformedJSON: when it is none. :raises msgspec.ValidationError: for
    a number with too many digits.
    """
    try:
        if text.count(b"[") + text.count(b"{") > levels:  # linear, and mostly in C
            brackets = b"".join(outside_strings(text)).translate(None, NOT_BRACKETS)
            if max(itertools.accumulate(map(LEVEL_STEPS.__getitem__, brackets)), default=0) > levels:
                raise RecursionError
        return from_json(text)
    except NOT_JSON as error:
        if isinstance(error, msgspec.ValidationError) and str(error).startswith("Integer"):
            raise  # of so many digits that Python would take its time
        raise not_json(error) from None


def not_json(error: Exception) -> MalformedJSON:
    """Return what a caller is told of a text that is no JSON, or has more levels than can be read."""
    if isinstance(error, RecursionError):
        return MalformedJSON(f"The body has more than {NESTING} levels of arrays and objects.")
    return MalformedJSON(f"The body is not one UTF-8 JSON value: {error}.")


MOST_VALUES = 500_000  # in a body


def count_values(text: bytes) -> int:
    """Return an upper bound of the values in a JSON text without strings: each follows a comma or a bracket."""
    return sum(map(text.count, (b",", b"[", b"{")))


def require_few_values(text: bytes) -> None:
    """Refuse a body of so many values that reading them would take hundreds of megabytes.

    :raises ValidationFailed: then.
    """
    if len(text) > 5 * LONG_NUMBERS:  # no shorter one has more of them
        require_plain_numbers(text)
    if count_values(text) <= MOST_VALUES:
        return
    counts = itertools.accumulate(map(count_values, outside_strings(text)))
    if any(count > MOST_VALUES for count in counts):  # most are refused after a few pieces
        raise ValidationFailed([Problem(f"has over {MOST_VALUES:,} values; send it in parts", "")])


LONG_NUMBERS = 1_000  # in a body; msgspec takes up to 50 µs for each, without releasing Python's lock
LONG_NUMBER = regex.compile(rb"[0-9](?:\.?[0-9]){40}|[eE][-+]?[0-9]{3}")
AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")


def count_suspects(text: bytes) -> int:
    """Return how many parts of a text may be long numbers, at least as many as there are; hashes look alike, too."""
    zeros = text.translate(AS_ZEROS, b"+-")
    return zeros.count(b"0e000") + zeros.count(b"0" * 21)  # on one side of the point


def require_plain_numbers(text: bytes) -> None:
    """Raise `ValidationFailed` if a body has over 1,000 numbers of over 40 digits, or an exponent of three or more."""
    if count_suspects(text) <= LONG_NUMBERS:
        return
    found = sum(len(LONG_NUMBER.findall(bare)) for bare in outside_strings(text) if count_suspects(bare))
    if found > LONG_NUMBERS:
        detail = f"has over {LONG_NUMBERS:,} numbers of over 40 digits or with an exponent of three or more digits"
        raise ValidationFailed([Problem(f"{detail}; send them as strings, or in several requests", "")])


def document_of(text: bytes) -> Any:
    """Return what a body means that breaks a rule, so that all that is wrong with it can be told.

    Of a number with more digits than Python reads in reasonable time, infinity is left.

    :raises MalformedJSON: when it is no JSON.
    """
    try:
        return require_json(text)
    except msgspec.ValidationError:
        pass
    # json.loads takes lone surrogates and 1e999
    require_json(regex.sub(rb"[0-9]{%d,}" % READABLE_DIGITS, b"9999", text))
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= READABLE_DIGITS else math.inf)
    except ValueError as error:
        raise not_json(error) from None


def nul_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Give the places of all strings and member names with U+0000."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, str) and "\0" in value:
        yield path
    for name, item in items:
        if isinstance(name, str) and "\0" in name:
            yield (*path, name)
        if isinstance(item, (str, dict, list)):
            yield from nul_paths(item, (*path, name))


def nul_problems(text: bytes, exempt: str | None = None) -> list[Problem]:
    """Tell where a body has U+0000, which other databases and C programs take for the end of a text."""
    if not NUL_ESCAPE.search(text):
        return []
    document = document_of(text)
    tick()
    if isinstance(document, dict) and exempt:
        document = {name: value for name, value in document.items() if name != exempt}
    problems, in_task = [], Counter[tuple[str | int, ...]]()
    for path in nul_paths(document):
        tick()
        task = path[:2] if path[:1] == ("tasks",) else ()
        in_task[task] += 1
        if in_task[task] <= PROBLEMS_OF_ONE:
            problems.append(Problem("must not contain U+0000", json_pointer(path)))
    return problems


@cache
def model_validator(model: Any) -> Any:
    """Return what finds everything that is wrong with a value: the schema that OpenAPI publishes of its model."""
    references, components = schemas_of([model])
    schema = {**references[model], "components": {"schemas": components}}
    return validator_of(schema)


def model_problems(model: Any, document: Any, pointer: str = "") -> Iterator[Problem]:
    """Yield all problems of a value that its model refused, but for U+0000 (see `nul_problems`).

    If jsonschema finds none, a member is repeated or a number too large, which only msgspec checks.

    :raises OutOfTime: past the deadline.
    """
    nothing = True
    for problem in itertools.islice(iter_problems(model_validator(model), document, pointer), PROBLEMS_OF_ONE):
        nothing = False
        yield problem
    if nothing and next(nul_paths(document), None) is None:
        yield Problem("has a member twice, or a number that is too large", pointer)


def read_model(model: type[Checked], text: bytes) -> Checked:
    """Return a JSON text as its model. :raises MalformedJSON: first. :raises msgspec.ValidationError: then."""
    try:
        return cast(Checked, decoder(model).decode(text))
    except msgspec.ValidationError:
        raise
    except NOT_JSON as error:
        raise not_json(error) from None


class Parsed(Struct):
    """The tasks of a submission, as they will be stored, and their extensions with pointers, to be checked.

    `complete` is false if the time was over before all problems were found. `number` is what gives reports of the same
    identity their external ids, as `submit_reports` takes it.
    """

    reports: list[NewTask] = []
    extensions: list[tuple[str | None, str]] = []
    problems: list[Problem] = []
    complete: bool = True
    number: Numbering | None = None

    def add(self, task: TaskReport, pointer: str) -> None:
        """Take one task that its model has accepted, or note what rules it breaks."""
        problems = rule_problems(
            task.description, enumerate(task.evidence or ()), enumerate(task.remediation or ()), task.tags or ()
        )
        self.problems += [problem.below(pointer) for problem in problems]
        if task.former_external_ids and (missing := load_module(FORMER_IDS)):
            self.problems.append(Problem(f"needs {missing}", f"{pointer}/formerExternalIds"))
        extensions = self.add_extensions(task.extensions, pointer)
        numbered = enumerate(task.remediation or (), start=1)
        steps = [StoredStep(int(each.step or position), each.instruction) for position, each in numbered]
        for criterion in task.success_criteria or ():
            criterion.automatable = bool(criterion.automatable)
        stored: Any = task  # from here on each field is as its column holds it
        labels = evidence_labels(task.evidence) if task.evidence else ""
        stored.severity = RANKS[task.severity]
        stored.evidence = to_json_text(task.evidence) if task.evidence else None
        stored.remediation = to_json_text(sorted(steps, key=attrgetter("step"))) if steps else None
        stored.success_criteria = to_json_text(task.success_criteria) if task.success_criteria else None
        stored.extensions = extensions
        stored.tags = to_json_text(task.tags) if task.tags else None
        self.reports.append(
            NewTask(
                *content_of(stored),
                external_id=task.external_id,
                status=task.status,
                labels=labels,
                former_ids=task.former_external_ids or (),
            )
        )

    def add_extensions(self, raw: Raw, pointer: str) -> str | None:
        """Note a task's extensions to be checked, or what is wrong with them by themselves, and return them."""
        try:
            extensions, _ = read_object(raw, f"{pointer}/extensions", 256 * KIB)
        except ValidationFailed as error:
            self.problems += error.problems
            return None
        self.extensions.append((extensions, f"{pointer}/extensions"))
        return extensions

    def add_refused(self, text: bytes, pointer: str) -> None:
        """Note everything that is wrong with one task that its model has refused."""
        document = document_of(text)
        others = len(self.problems)
        self.problems += model_problems(TaskReport, document, pointer)
        if not isinstance(document, dict):
            return
        description = document.get("description")
        rules = rule_problems(
            description if isinstance(description, str) else None,
            readable_items(document.get("evidence"), Evidence),
            readable_items(document.get("remediation"), RemediationStep),
            tags[:PROBLEMS_OF_ONE] if isinstance(tags := document.get("tags"), list) else (),
        )
        there = {problem.pointer for problem in self.problems[others:]}
        more = (problem.below(pointer) for problem in rules)
        unsaid = (problem for problem in more if problem.pointer not in there)
        self.problems += itertools.islice(unsaid, PROBLEMS_OF_ONE)
        if isinstance(document.get("extensions"), dict | None):
            self.add_extensions(given_members(text).get("extensions", Raw()), pointer)


def readable_items(items: Any, model: type[Checked]) -> Iterator[tuple[int, Checked]]:
    """Yield those of the first items of an array that are good, with their indexes, in a task that was refused."""
    for index, item in enumerate(items[:PROBLEMS_OF_ONE] if isinstance(items, list) else ()):
        with suppress(msgspec.ValidationError):
            yield index, converted(item, model)


def to_json_text(value: Any) -> str:
    """Return the JSON text of what is stored as such."""
    return to_json(value).decode()


def exceeds_bytes(text: str | None, limit: int) -> bool:
    """Tell whether a text has more bytes in UTF-8 than a limit."""
    return text is not None and len(text) * 4 > limit and len(text.encode()) > limit


def rule_problems(
    description: str | None,
    evidence: Iterable[tuple[int, Evidence]],
    remediation: Iterable[tuple[int, RemediationStep]],
    tags: Sequence[Any],
) -> Iterator[Problem]:
    """Yield the problems of a task that its model cannot express. Evidence and steps have their indexes."""
    if exceeds_bytes(description, 64 * KIB):
        yield Problem("must be at most 64 KiB of UTF-8", "/description")
    for index, item in evidence:
        for problem in evidence_problems(item):
            yield problem.below(f"/evidence/{index}")
    taken = set()
    for index, step in remediation:
        number = int(step.step or index + 1)
        if number in taken:
            yield Problem(f"step {number} is there already; steps must differ", f"/remediation/{index}/step")
        taken.add(number)
    for index, tag in enumerate(tags):
        if isinstance(tag, str) and tag in tags[:index]:
            yield Problem("is there already; tags must differ", f"/tags/{index}", value=truncate(tag))


def evidence_problems(item: Evidence) -> list[Problem]:
    """Return which rules an item of evidence breaks that its model cannot express."""
    problems = []
    if item.url is None and item.content is None and item.label is None:
        problems.append(Problem(SHOWS_NOTHING, ""))
    if exceeds_bytes(item.content, 256 * KIB):
        problems.append(Problem("must be at most 256 KiB of UTF-8", "/content"))
    url = item.url or ""
    scheme, complaint = url[:64].partition(":")[0].lower(), ""
    if scheme in ("javascript", "vbscript"):
        complaint = f"must not be a {scheme}: URL"
    elif scheme != "data" and len(url) > 2048:
        complaint = "must be at most 2,048 characters long"
    elif scheme == "data" and not url[5:].lower().startswith("image/"):
        complaint = "must hold an image, as a data: URL"
    elif scheme == "data" and exceeds_bytes(url, 256 * KIB):
        complaint = "must be at most 256 KiB, as a data: URL"
    if complaint:
        problems.append(Problem(complaint, "/url", value=truncate(url)))
    return problems


def read_object(raw: Raw, pointer: str, limit: int) -> tuple[str | None, Any]:
    """Return a free-form object as its text exactly as sent (None when left out) and as what it means ({} then).

    It may have as many levels as the task or batch around it leaves. Of SARIF, the export may add some.

    :raises MalformedJSON: when msgspec skipped something that is no JSON. :raises ValidationFailed: when it is
    no object or too large.
    """
    text = bytes(raw)
    if text in (b"", b"null"):
        return None, {}
    try:
        value = require_json(text, NESTING - (3 if pointer.startswith("/tasks/") else 1))
    except msgspec.ValidationError:
        raise ValidationFailed([Problem("has a number with too many digits", pointer)]) from None
    if not isinstance(value, dict):
        raise ValidationFailed([Problem("must be an object", pointer)])
    if len(text) > limit and len(msgspec.json.format(text, indent=-1)) > limit:
        raise ValidationFailed([Problem(f"must be at most {limit // KIB} KiB as compact JSON", pointer)])
    return text.decode(), value


OUT_OF_TIME = Problem("breaks rules, and there was no time to tell all of them; send less at once", "")


class SlowBody(Struct, frozen=True, eq=False):
    """A body that its model refused: `read` returns it, or raises `ValidationFailed` with every problem.

    That takes up to the settings' `schema_timeout`, so servers run it in a thread.
    """

    read: Callable[[], Any]


class SubmissionForm(Struct):
    """Members that distinguish the forms of a submission: a dict of all would take as long as the rest."""

    tasks: Raw = NOT_SENT
    runs: Raw = NOT_SENT
    version: Raw = NOT_SENT


def parse_submission(text: bytes, settings: Settings) -> Parsed | SlowBody:
    """Parse a submission of either form.

    :raises MalformedJSON: if it is not JSON. :raises ValidationFailed: if it has too many values or tasks.
    """
    require_few_values(text)
    form = SubmissionForm()
    with suppress(*NOT_JSON):
        form = decoder(SubmissionForm).decode(text)
    if form.runs and form.version:
        raise ValidationFailed([Problem("is SARIF; send it as Content-Type: application/sarif+json", "/runs")])
    single = not form.tasks
    try:
        tasks = [read_model(TaskReport, text)] if single else read_model(TaskBatch, text).tasks
    except msgspec.ValidationError:
        document_of(text)
        return SlowBody(partial(parse_refused, text, single, settings))
    require_size(tasks, settings)
    parsed = Parsed()
    for index, task in enumerate(tasks):
        parsed.add(task, "" if single else f"/tasks/{index}")
    parsed.problems += nul_problems(text)
    return parsed


def parse_refused(text: bytes, single: bool, settings: Settings) -> Parsed:
    """Parse a submission that its model refused, with the problems of each bad task that are found in time.

    :raises ValidationFailed: if it has too many tasks.
    """
    parsed = Parsed()
    try:
        with TimeLimit(settings.schema_timeout):
            items = [Raw(text)] if single else batch_items(parsed, text)
            require_size(items, settings)
            for index, item in enumerate(map(bytes, items)):
                tick()
                pointer = "" if single else f"/tasks/{index}"
                try:
                    task = read_model(TaskReport, item)
                except msgspec.ValidationError:
                    parsed.add_refused(item, pointer)
                else:
                    parsed.add(task, pointer)
            parsed.problems += nul_problems(text)
    except OutOfTime:
        parsed.complete = False
        parsed.problems.append(OUT_OF_TIME)
    return parsed


def batch_items(parsed: Parsed, text: bytes) -> list[Raw]:
    """Return the tasks of a batch unread, and note what is wrong around them."""
    members = given_members(text)
    around: dict[str, Any] = dict.fromkeys(members)
    items: list[Raw] = []
    try:
        items = decoder(list[Raw]).decode(members["tasks"])
        around["tasks"] = []
    except msgspec.ValidationError:
        around["tasks"] = document_of(bytes(members["tasks"]))
    if around != {"tasks": []}:
        parsed.problems += model_problems(TaskBatch, around)
    return items


def require_size(tasks: Sequence[Any], settings: Settings) -> None:
    """Check that a batch has not too many tasks. :raises ValidationFailed: when it has."""
    if len(tasks) > settings.max_batch:
        detail = f"must have at most {settings.max_batch:,} tasks, and has {len(tasks):,}; send them in parts"
        raise ValidationFailed([Problem(detail, "/tasks")])


def task_of(problem: Problem) -> tuple[int, ...]:
    """Return the place of the task that a problem of a batch or of SARIF is about, () for the whole body."""
    match = regex.match(r"/tasks/(\d+)|/runs/(\d+)/results/(\d+)", problem.pointer or "")
    return tuple(int(number) for number in match.groups() if number) if match else ()


def every_task_first(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems so that the first ones hold one of each bad task, in the tasks' order."""
    ordered = sorted(problems, key=task_of)
    if len(ordered) <= LISTED_PROBLEMS:
        return ordered
    firsts = {task_of(problem): problem for problem in reversed(ordered)}.values()
    first_ids = {id(problem) for problem in firsts}
    return sorted(ordered, key=lambda problem: id(problem) not in first_ids)


class FreeForm(Struct, frozen=True):
    """The member of a body that may be any object, what reads it, and whether it may have U+0000.

    `read` is given the member as it was sent, and raises ValidationFailed with everything against it.
    """

    member: str
    read: Callable[[Raw, Any], object]
    nul: bool = False

    def problems(self, raw: Raw, settings: Settings | None = None) -> list[Problem]:
        """Return the problems of the member alone."""
        try:
            self.read(raw, settings)
        except ValidationFailed as error:
            return list(error.problems)
        return []


def read_metadata(raw: Raw, _: object = None) -> str:
    """Return a run's metadata. :raises ValidationFailed: with everything against it."""
    return read_object(raw, "/metadata", 64 * KIB)[0] or "{}"


def read_schema(raw: Raw, settings: Settings) -> str | None:
    """Return the schema of a project type as it was sent, checked in two fifths of the time that a request has.

    :raises ValidationFailed: with every fault. :raises ExtensionCheckTimeout: when that takes too long.
    """
    text, schema = read_object(raw, "/extensionSchema", 1024 * KIB)
    if text is not None:
        check_schema(schema, "/extensionSchema", settings.schema_timeout * 0.4)
    return text


def parse_model(model: type[Checked], free: FreeForm | None, text: bytes, settings: Settings) -> Checked | SlowBody:
    """Parse a body that is one model.

    :raises MalformedJSON: if it is not JSON. :raises ValidationFailed: if it has too many values.
    """
    require_few_values(text)
    value = None
    with suppress(msgspec.ValidationError):
        value = read_model(model, text)
    for raw in astuple(value) if value else ():
        if isinstance(raw, Raw) and bytes(raw):
            with suppress(msgspec.ValidationError):
                require_json(bytes(raw), NESTING - 1)
    if value is not None and not NUL_ESCAPE.search(text):
        return value
    document = document_of(text)

    def check() -> Checked:
        problems: list[Problem] = []
        try:
            with TimeLimit(settings.schema_timeout):
                if value is None:
                    problems += model_problems(model, document)
                    if free and isinstance(document, dict) and isinstance(document.get(free.member), dict):
                        problems += free.problems(given_members(text)[free.member], settings)
                problems += nul_problems(text, free.member if free and free.nul else None)
        except (OutOfTime, ExtensionCheckTimeout):
            problems.append(OUT_OF_TIME)
        if value is None or problems:
            raise ValidationFailed(problems, complete=OUT_OF_TIME not in problems)
        return value

    return SlowBody(check)


def decision_problems(update: TaskUpdate) -> list[Problem]:
    """Tell which rule a decision breaks that its model cannot express."""
    if update.reason and update.status in UNFINISHED:
        return [Problem(FINISHED_ALONE, "/reason", value=update.reason)]
    decides = (update.status, update.comment, update.reason, update.assignee) != (None, None, None, None)
    return [] if decides else [Problem(DECIDES_NOTHING, "")]


def reason_problem(update: TaskUpdate, state: TaskRow, pointer: str) -> Problem | None:
    """Tell at a place in the body that a reason, given alone, does not go with what a task is, where it does not."""
    if not update.reason or update.status or state.status not in UNFINISHED:
        return None
    return Problem(f"{FINISHED_ALONE}, and the task is {state.status}", pointer)


# ---------------------------------------------------------------------------
# Reading a request: its parameters and headers
# ---------------------------------------------------------------------------


@cache
def parameter_kinds(model: Any) -> dict[str, type]:
    """Tell of each query parameter whether it is several, a number, a bool, a time or text.

    Of those that are several, a tuple's values have commas, and a set's may.
    """
    hints = get_type_hints(model)
    kinds: dict[str, type] = {}
    for each in msgspec.structs.fields(model):
        parts = (hints[each.name], *get_args(hints[each.name]))
        found = {*parts, *map(typing.get_origin, parts)}
        kinds[each.encode_name] = next((kind for kind in (list, set, tuple, bool, int, Moment) if kind in found), str)
    return kinds


PARAMETERS = 5000  # of one request: repeated filters of a thousand values each


def read_query(model: type[Checked], text: str) -> Checked:
    """Return the query parameters of a request as their model. :raises InvalidParameter: for the first bad one."""
    try:
        pairs = parse_qsl(
            text.encode("latin-1").decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS
        )
    except ValueError:
        raise InvalidParameter(
            "query string", f"must be percent-encoded UTF-8 with at most {PARAMETERS:,} parameters"
        ) from None
    kinds, values, count = parameter_kinds(model), dict[str, Any](), 0
    for name, value in pairs:
        if name not in kinds:
            raise InvalidParameter(name, f"is not a known parameter; known here: {', '.join(kinds) or 'none'}")
        several = kinds[name] in (list, set, tuple)
        if name in values and not several:
            raise InvalidParameter(name, "is given more than once, and takes one value")
        read = parameter_value(name, value, kinds[name])
        if several:
            values.setdefault(name, []).extend(read)
            count += len(read)
            if count > PARAMETERS:  # to look through all of them would take seconds
                raise InvalidParameter(name, f"must have at most 1,000 values, and all filters {PARAMETERS:,} together")
        else:
            values[name] = read
    try:
        return converted(values, model)
    except msgspec.ValidationError:
        problem = next(model_problems(model, values))
        raise InvalidParameter((problem.pointer or "/").split("/")[1], problem.detail) from None


def read_moment(name: str, text: str) -> str:
    """Return the first time not before the one that a text means, as times are stored: in UTC, with milliseconds.

    :raises InvalidParameter: for what is no ISO 8601.
    """
    try:
        if regex.search("T[0-9:]{2,5}[.,]", text.upper()):
            raise ValueError  # Python would take the fraction of a minute for that of a second
        moment = datetime.fromisoformat(text.upper())
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment += timedelta(microseconds=-moment.microsecond % 1000)
    except (ValueError, OverflowError):
        such = "such as 2026-11-21 or 2026-11-21T02:15:30Z, with the + of a zone written as %2B"
        raise InvalidParameter(name, f"must be a day or a time {such}") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parameter_value(name: str, text: str, kind: type) -> Any:
    """Return the value of one query parameter. :raises InvalidParameter: when it is none of its kind."""
    if "\0" in text:
        raise InvalidParameter(name, "must not contain U+0000")
    if kind is int:
        if not regex.fullmatch("[0-9]{1,15}", text):
            raise InvalidParameter(name, "must be a whole number, in the digits 0 to 9")
        return int(text)
    if kind is bool:
        if text not in ("true", "false"):
            raise InvalidParameter(name, "must be true or false")
        return text == "true"
    if kind is list:
        if not all(parts := text.split(",")):
            raise InvalidParameter(name, "must not be empty, nor have an empty part")
        return parts
    if not text:
        raise InvalidParameter(name, "must not be empty")
    if kind is set:
        return [text, *filter(None, text.split(","))]
    if kind is Moment:
        return read_moment(name, text)
    return [text] if kind is tuple else text


def read_if_match(text: str) -> ETags | None:
    """Return the tags one of which an answer must have (RFC 9110, 13.1.1), None where any would do.

    :raises InvalidParameter: where no tag can be read.
    """
    if text.strip() == "*":
        return None
    tags = parse_etags(text)
    if not tags:
        raise InvalidParameter("If-Match", 'must be * or ETags as they were answered, such as "5f0c…"')
    return tags


def judge_extensions(schema: str, parsed: Parsed, settings: Settings) -> None:
    """Note what is wrong with the extensions of a submission. :raises ExtensionCheckTimeout: when that takes long."""
    parsed.problems += check_extensions(schema, parsed.extensions, settings.schema_timeout)


def accepted_fast(schema: str, extensions: Iterable[tuple[str | None, str]]) -> bool:
    """Tell whether the extensions of several tasks, each given as text, are good, as far as that is quickly told."""
    if len(schema) > CACHED_SCHEMA:  # to read a large one takes its time, too
        return False
    _, accepts = cached_validators(schema)
    texts = (text or "{}" for text, _ in extensions)
    try:
        return all(accepts(from_json(text), len(text)) for text in texts)
    except ENDS_THE_PROCESS:
        raise
    except BaseException:  # a panic of a library in Rust, say; what checks tells of it
        return False


class BodyFormat(Struct, frozen=True, kw_only=True):
    """A form in which a body may be sent: what reads it, and how many bytes it may have."""

    parse: Callable[[bytes, Settings], Any]
    limit: Callable[[Settings], int] = attrgetter("max_body")


class SubmissionFormat(BodyFormat, frozen=True, kw_only=True):
    """A form in which findings may be submitted.

    `parse` returns a `Parsed`, to which `judge` adds what is wrong with its extensions by the project type's schema.
    """

    judge: Callable[[str, Parsed, Settings], None] = judge_extensions


REGISTRY.submission_formats[JSON_TYPE] = SubmissionFormat(parse=parse_submission)


def decoded(text: str) -> str:
    """Return what WSGI has as Latin-1 (PEP 3333) as the UTF-8 that it is."""
    return text.encode("latin-1").decode(errors="replace")


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request below the prefix that the service is mounted under."""
    return f"/{decoded(environ.get('PATH_INFO', '')).lstrip('/')}"


def prefix_of(environ: WSGIEnvironment) -> str:
    """Return the prefix that the service is mounted under, percent-encoded."""
    return quote(environ.get("SCRIPT_NAME", "").rstrip("/"), PATH_CHARACTERS, "latin-1")


# ---------------------------------------------------------------------------
# Who may call what: keys, and the operations that they open
# ---------------------------------------------------------------------------

KEY_KNOWN = 0.005  # seconds
HEALTH_KEPT = 1.0  # seconds
IDLE_SEARCH = 1.0  # seconds at least between two searches for idle runs
LOOK_EVERY = 1.0  # seconds between two looks whether there is something to be done for the file


class Service:
    """What the routes of one blueprint share: the settings, the database, and who is told of what happens."""

    _met_until = 0.0
    _met_version = 0
    _maintained_until = 0.0
    _probed_until = 0.0
    _trouble: Exception | None = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = database_for(settings)
        self.listeners = Listeners()
        self.router = Router(REGISTRY.operations.values())
        self.pages = PageCache()
        self._given_key = hashed(settings.api_key) if settings.api_key else ""
        self._met: dict[str, Principal] = {}
        self._idle_until: dict[str, float] = {}
        self._probing = threading.Lock()

    def check_health(self) -> None:
        """Check that the database can be read and written, once a second at most: in between, the last answer counts.

        Anybody may ask for it.
        """
        with self._probing:
            if time.monotonic() >= self._probed_until:
                self._trouble = None
                try:
                    self.database.probe()
                except Exception as error:
                    self._trouble = error
                self._probed_until = time.monotonic() + HEALTH_KEPT
        if self._trouble is not None:
            raise self._trouble.with_traceback(None)

    def maintain_now_and_then(self, *, deleted: bool) -> None:
        """Do what the engine wants done, also about what was deleted, where requests are all that ever happens."""
        if deleted or time.monotonic() >= self._maintained_until:
            self._maintained_until = time.monotonic() + LOOK_EVERY
            self.database.run_maintenance()

    def fail_idle_runs(self, connection: Connection, client_id: str) -> None:
        """Fail the runs of a client that nobody uses any more, unless that was done within the last second."""
        timeout = self.settings.run_timeout
        if timeout and time.monotonic() >= self._idle_until.get(client_id, 0.0) and self.database.trusts_clock():
            self._idle_until[client_id] = time.monotonic() + IDLE_SEARCH
            fail_idle_runs(connection, client_id, timeout)

    def authenticate(self, header: str) -> Principal:
        """Return who sends an Authorization header. :raises Unauthorized: when it is nobody.

        Who was just met is known for some milliseconds more, unless this process has written since: fewer than
        it takes a command that revokes a key to end.
        """
        moment = time.monotonic()
        if moment > self._met_until or self._met_version != self.database.version:
            self._met, self._met_until, self._met_version = {}, moment + KEY_KNOWN, self.database.version
        met = self._met  # another thread may begin anew while this one looks, and what it finds belongs to now
        if header in met:
            return met[header]
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send your API key: Authorization: Bearer fts_…")
        if self._given_key and hmac.compare_digest(hashed(key), self._given_key):
            return met.setdefault(header, Principal("environment", "default", "FINDINGS_API_KEY", "full"))
        now = timestamp()
        with self.database.reading() as connection:
            found = select_principal(connection, key, now)
        if found is None:
            raise Unauthorized("This API key is unknown, expired or revoked.")
        principal, last_used_at = found
        if (last_used_at or "")[:16] != now[:16]:
            self.database.use_later(principal.client_id, "api_keys", principal.key_id, now)
        met[header] = principal
        return principal


USER = "HTTP_FINDINGS_USER"  # where WSGI has the header
USER_RULE = (
    "must come once, under just this name, as 1 to 200 printable characters without a comma; `serve` reads ASCII only,"
    " such as e-mail addresses"
)


def with_user(principal: Principal, environ: WSGIEnvironment) -> Principal:
    """Return who makes a request with the user that it names, which it does with a key for users, and no other.

    :raises Unauthorized: when it names none. :raises InvalidParameter: for one that may not be, or with another key.
    """
    if not principal.for_users:
        raise InvalidParameter("Findings-User", "goes with a key of `keys create --for-users` alone, and yours is none")
    if USER not in environ:
        raise Unauthorized("This key is for users: send in Findings-User whom the request is from, as its proxy does.")
    user = decoded(environ[USER])
    # What was sent twice, anybody on the way may have joined by a comma (RFC 9110, 5.3).
    if not 1 <= len(user) <= 200 or not user.isprintable() or user.isspace() or {",", "\ufffd"} & {*user}:
        raise InvalidParameter("Findings-User", USER_RULE)
    return replace(principal, user=user)


def require_own_site(environ: WSGIEnvironment) -> None:
    """Check that no other site makes the browser of somebody who is signed in write, as far as that says so.

    See https://www.w3.org/TR/fetch-metadata/. :raises Forbidden: when one does.
    """
    if environ.get("HTTP_SEC_FETCH_SITE", "same-origin") != "same-origin":
        raise Forbidden(
            "Sec-Fetch-Site says that another site asks for this; users write from the service's own alone."
        )


class Export(Struct, frozen=True, kw_only=True):
    """A form besides JSON in which an operation is answered: what does that, and its query, where that is another."""

    answer: Callable[[ApiRequest], HandlerResult]
    query: Any = None


class Operation(Struct, frozen=True, eq=False):
    """One method of one path, from which the routes and the OpenAPI document are made.

    `body` is the model of the body, or several ones. `exports` are formats of the response other than JSON, by media
    type. `tagged` is whether the response has an ETag for If-Match, `has_weak_etag` whether it has one for
    If-None-Match, `keyed` whether the request may have an Idempotency-Key.
    """

    method: str
    path: str
    level: str | None
    answers: Mapping[int, Any]
    handler: Callable[..., HandlerResult]
    body: Any = None
    formats: Mapping[str, BodyFormat] = {}
    query: Any = RequestModel
    exports: Mapping[str, Export] = {}
    refusals: tuple[type[ServiceError], ...] = ()
    tagged: bool = False
    has_weak_etag: bool = False
    keyed: bool = False


def operation(
    method: str, path: str, level: str | None, answers: Mapping[int, Any], *, free: FreeForm | None = None, **more: Any
) -> Callable[[Callable[..., HandlerResult]], Operation]:
    """Make an operation of its handler, which gets an `ApiRequest` and the parts of the path; `more` is as it has them.

    :param free: the member of the body that may be any object.
    """
    more.setdefault("keyed", method == "POST")
    if body := more.get("body"):
        more.setdefault("formats", {JSON_TYPE: BodyFormat(parse=partial(parse_model, body, free))})

    return lambda handler: Operation(method, path, level, answers, handler, **more)


def listed_methods(operations: Iterable[Operation]) -> str:
    """Return the methods of some operations, as `Allow` has them: where there is GET, there is HEAD."""
    methods = {each.method for each in operations}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


@lru_cache(maxsize=64)
def methods_for(level: str, path: str) -> str:
    """Return the methods that a key of a level has at the path of an operation (RFC 9110, 10.2.1)."""
    reached = LEVELS[: LEVELS.index(level) + 1]
    return listed_methods(each for each in REGISTRY.operations.values() if each.path == path and each.level in reached)


class Router:
    """Finds the operation that a request is of, by the steps of its path."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations: list[Operation] = []
        self._methods: dict[tuple[str, ...], dict[str, Operation]] = {}
        for each in operations:
            self.add(each)

    def add(self, another: Operation) -> None:
        """Find one more operation."""
        self.operations.append(another)
        self._methods.setdefault(tuple(another.path.split("/")), {})[another.method] = another

    def find(self, steps: Sequence[str]) -> tuple[str, dict[str, Operation], dict[str, str]] | None:
        """Return the path of operations that a request's steps are of, those by their methods, and what it names."""
        for pattern, methods in self._methods.items():
            if (parts := match_path(pattern, steps)) is not None:
                return "/".join(pattern), methods, parts
        return None


def match_path(pattern: Sequence[str], steps: Sequence[str]) -> dict[str, str] | None:
    """Return the steps of a path that a pattern such as ("runs", "{run_id}") names; None where it is another path."""
    if len(pattern) != len(steps):
        return None
    parts = {}
    for step, text in zip(pattern, steps, strict=True):
        if step[:1] == "{" and text:
            parts[step[1:-1]] = text
        elif step != text:
            return None
    return parts


def missing_module_message(method: str, path: str) -> str:
    """Return a message if the module that answers a request is not installed, else ""."""
    for name, pattern in API_MODULES.items():
        if regex.fullmatch(pattern, f"{method} {path}") and (missing := load_module(name)):
            return f"This endpoint is provided by {missing}."
    return ""


# ---------------------------------------------------------------------------
# Answering: one call, what becomes of it, and its line in the log
# ---------------------------------------------------------------------------


DOCUMENT_PIECE = 64 * KIB  # bytes that go out at once, as many as a pipe holds


class StreamedBody(Protocol):
    """A long answer, which goes out in pieces. Who has sent it, or does not, closes it."""

    size: int

    def __iter__(self) -> Iterator[bytes]:
        """Give its pieces."""

    def close(self) -> None:
        """Drop it."""


class Response(Struct):
    """What a request gets: a body, or a document. Who sends it knows the length of a body.

    `kept` is what a request with an Idempotency-Key gets that comes again, where that is less. `names` are the ids of
    what the body holds: the answer is not kept longer than any of these.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    document: StreamedBody | None = None
    kept: bytes | None = None
    names: Sequence[str] = ()

    @property
    def size(self) -> int:
        """The bytes of the body."""
        return self.document.size if self.document else len(self.body)


def make_response(status: int, body: bytes, content_type: str = JSON_TYPE, **headers: str | None) -> Response:
    """Return an answer with a text, of JSON unless it is said to be another, and those headers that are not None."""
    given = {name: value for name, value in headers.items() if value is not None}
    return Response(status, {"Content-Type": content_type, **given}, body)


def json_response(status: int, model: Any, location: str | None = None, names: Sequence[str] = ()) -> Response:
    """Return a JSON answer."""
    answer = make_response(status, to_json(model), Location=location)
    answer.names = names
    return answer


def task_response(task: Task) -> Response:
    """Return a task as JSON, with its ETag."""
    return make_response(200, to_json(task), ETag=task.etag)


PROBLEM_TYPE = "application/problem+json"


def problem_response(error: ServiceError) -> Response:
    """Return the answer that tells of an error."""
    titles = {413: "Content Too Large", 422: "Unprocessable Content"}  # which older Pythons call otherwise
    details = ProblemDetails(
        title=titles.get(error.status) or HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.detail,
        errors=list(error.problems[:LISTED_PROBLEMS]) or UNSET,
    )
    return make_response(error.status, to_json(details), PROBLEM_TYPE, **error.headers)


def as_service_error(error: BaseException, environ: WSGIEnvironment) -> ServiceError:
    """Return what a caller is told of any exception, Flask's among them; a bug is logged here."""
    if known := known_error(error):
        return known
    if isinstance(error, RequestEntityTooLarge):
        return BodyTooLarge("The body is over the limit of the application; send it in parts.")
    if isinstance(error, HTTPException) and (error.code or 500) < 500:
        return InvalidParameter("request", str(error.description))
    log.error("bug in %r %r", environ["REQUEST_METHOD"], path_of(environ), exc_info=error)
    return InternalError("The service has a bug here; it is in its log. Nothing was stored.")


MOST_ACCEPTED = 2_000  # characters of an Accept header that are read


def preferred_export(exports: Mapping[str, Export], accept: str) -> Export | None:
    """Return the form that a request would rather have than JSON (RFC 9110, 12.5.1), None where there is none.

    No form has parameters: one that is asked for with some, as `text/csv; charset=utf-8`, is asked for.
    """
    forms = parse_accept_header(accept[:MOST_ACCEPTED], MIMEAccept)  # Werkzeug takes 8 µs for each form
    accepted = MIMEAccept((value.partition(";")[0], q) for value, q in forms)
    return exports.get(accepted.best_match([JSON_TYPE, *exports]) or JSON_TYPE)


class Body(Struct, frozen=True):
    """What has come of the body of a request, whether that is all of it, and whether it has more bytes than it may."""

    text: bytes = b""
    whole: bool = True
    too_large: bool = False


class ThreadJob(Struct, eq=False, frozen=True):
    """Work that takes so long that a server runs it in a thread.

    Each class of jobs has so many `threads` of its own; a job waits for one for `patience` seconds, None for ever.
    """

    work: Callable[[], HandlerResult]

    threads: ClassVar[int] = 1
    patience: ClassVar[float | None] = None


class Check(ThreadJob, eq=False, frozen=True):
    """A check of extensions or of a schema."""

    threads = 2


class BodyCheck(ThreadJob, eq=False, frozen=True):
    """Search for every problem of a body that its model refused."""


class SlowRead(ThreadJob, eq=False, frozen=True):
    """A read on a connection of its own."""


class PendingWrite(Struct, eq=False, frozen=True):
    """What a request asks to have stored: all is judged but what depends on the state that it finds.

    `store` does it, and answers, if there is anything to.
    """

    request: ApiRequest
    store: Callable[[Connection], Response | None]

    def apply(self, connection: Connection) -> Response:
        """Store it, in a transaction, with the answer for the request's key; what that was given before is given again.

        :raises ServiceError: when the state does not allow it.
        """
        request = self.request
        if request.request_key is not None and (given := request.earlier_response(connection, request.request_key)):
            return given
        raise_revision(connection, request.client_id)
        given = self.store(connection) or Response(204, {})
        if request.request_key is not None:
            body = given.body if given.kept is None else given.kept
            kept = StoredResponse(request.body_hash, given.status, given.headers.get("Location"), body.decode())
            in_path = dict.fromkeys(request.view_args.values(), True)
            insert_response(connection, request.request_key, kept, {**dict.fromkeys(given.names, False), **in_path})
        return given

    def work(self) -> Response:
        """Store it in a transaction of its own."""
        with self.request.database.transaction(self.request.client_id) as connection:
            return self.apply(connection)


HandlerResult: TypeAlias = Response | ThreadJob | PendingWrite  # of what can be judged about a request without a lock
ANONYMOUS = Principal("", "", "", "")
PAUSES = (0.01, 0.05, 0.2, 0.5)  # seconds at most before what a database has undone is done again

UNROUTED = "-"  # the route of a request until its operation is known, and in the log of one that has none


class ApiRequest:
    """One request on its way: `open`, `read`, `check`, and what that leaves to be committed, each of them once.

    Whoever serves decides where each of these runs, and has what they raise answered by `attempt`.
    """

    # By `open`
    operation: Operation
    route = UNROUTED  # the template of the path
    run_id: str | None = None
    view_args: Mapping[str, str] = MappingProxyType({})  # the values of the path
    form: Any = None  # of the body
    _length = 0  # of the body, where it is said
    limit = sys.maxsize  # bytes of the body; an application that the service is in may have its own
    # By `read`
    query: Any = None
    export: Export | None = None
    expected: ETags | None = None
    request_key: RequestKey | None = None
    body_hash = ""
    _body: Any = None
    _problems: Sequence[Problem] = ()
    _complete = True

    def __init__(
        self, service: Service, environ: WSGIEnvironment, own_path: str, principal: Principal = ANONYMOUS
    ) -> None:
        """Nothing is judged yet.

        :param environ: of WSGI (PEP 3333). :param own_path: the path without any prefix.
        :param principal: who sends the request, where that is known without a key.
        """
        self.service, self.database = service, service.database
        self.environ, self.method, self.own_path = environ, str(environ["REQUEST_METHOD"]), own_path
        self.principal = principal

    def open(self) -> Response | None:
        """Judge all that is known without the body: path, method, key, level, and how large and of which type that is.

        A file of the page is answered at once.

        :raises ServiceError: for the first of these, in the contract's order, that is not good.
        """
        if self.own_path in REGISTRY.page_files:
            self.route = self.own_path
            return REGISTRY.page_files[self.own_path](self)
        if self.route == UNROUTED:
            self._find_operation()
        self.run_id = self.view_args.get("run_id")
        if (level := self.operation.level) is not None:
            if self.principal is ANONYMOUS:
                self.principal = self.service.authenticate(self.environ.get("HTTP_AUTHORIZATION", ""))
                if self.principal.for_users or USER in self.environ:
                    self.principal = with_user(self.principal, self.environ)
            if LEVELS.index(self.principal.level) < LEVELS.index(level):
                raise Forbidden(f"This needs a key of level {level}; yours is of level {self.principal.level}.")
            if self.principal.user is not None and self.operation.method != "GET":
                require_own_site(self.environ)
        if formats := self.operation.formats:
            settings, environ = self.service.settings, self.environ
            self.form = formats.get(environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower())
            self.limit = min(self.limit, self.form.limit(settings) if self.form else settings.max_body)
            self._length = get_content_length(environ) or 0
            if self._length > self.limit:
                raise self._too_large()
            if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
                raise UnsupportedMediaType("Send the body without a Content-Encoding.")
            if self._length and self.form is None:
                raise self._unsupported()
        return None

    def _find_operation(self) -> None:
        """Route the request. :raises Missing: for an unknown path. :raises WrongMethod: for a path of other methods."""
        method = self.method.replace("HEAD", "GET")
        if not (found := self.service.router.find(self.own_path.split("/"))):
            raise Missing(missing_module_message(method, self.own_path) or "There is nothing at this path.")
        self.route, methods, self.view_args = found
        if method not in methods:
            raise WrongMethod(listed_methods(methods.values()), missing_module_message(method, self.own_path))
        self.operation = methods[method]

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is over {self.limit:,} bytes; send it in parts.")

    def _unsupported(self) -> UnsupportedMediaType:
        formats = self.operation.formats
        missing = formats is REGISTRY.submission_formats and load_module(SARIF)
        more = f" SARIF needs {missing}." if missing else ""
        return UnsupportedMediaType(f"Send the body as Content-Type: {' or '.join(formats)}.{more}")

    def read(self, body: Body) -> None:
        """Read the body, and the parameters. Which rules the body breaks is told by `check`: an unknown id comes first.

        :raises ServiceError: for a body that is no JSON, and a bad parameter.
        """
        asked, environ = self.operation, self.environ
        if asked.formats:
            if body.too_large or len(body.text) > self.limit:  # it may have come without a length
                raise self._too_large()
            if body.text and self.form is None:
                raise self._unsupported()
            if len(body.text) < self._length or not body.whole:
                raise MalformedJSON("The body ended, or its time was over, before all of it had arrived.")
            if not body.text:
                raise MalformedJSON("The body is empty; send a JSON object.")
            self._parse(self.form.parse, body.text, self.service.settings)
        accept = environ.get("HTTP_ACCEPT") if asked.exports else None
        self.export = preferred_export(asked.exports, accept) if accept else None
        query = (self.export and self.export.query) or asked.query
        self.query = read_query(query, environ.get("QUERY_STRING", ""))
        if self.principal.user is not None and getattr(self.query, "assignee", None) == "me":
            self.query.assignee = self.principal.user
        if asked.method in ("PATCH", "DELETE") and (tags := environ.get("HTTP_IF_MATCH")) is not None:
            if not asked.tagged:
                raise InvalidParameter(
                    "If-Match", "goes with the update of one task; that of several takes `ifMatch` in its body"
                )
            self.expected = read_if_match(tags)
        if asked.keyed and (key := environ.get("HTTP_IDEMPOTENCY_KEY")) is not None:
            if not 1 <= len(key) <= 255:
                raise InvalidParameter("Idempotency-Key", "must have 1 to 255 characters")
            self.request_key = RequestKey(self.client_id, self.principal.sender, asked.method, self.path, key)
            self.body_hash = hashlib.sha256(body.text).hexdigest()

    def check(self) -> HandlerResult:
        """Answer, or judge all that needs no lock; what is left to do is returned.

        :raises ServiceError: for what is not good.
        """
        if self.request_key is not None:
            with self.database.reading() as connection:
                if given := self.earlier_response(connection, self.request_key):
                    return given
        if isinstance(self._body, SlowBody):
            return BodyCheck(self._check_slow_body)
        return self.export.answer(self) if self.export else self.operation.handler(self, **self.view_args)

    def _check_slow_body(self) -> HandlerResult:
        self._parse(self._body.read)
        return self.check()

    def _parse(self, parse: Callable[..., Any], *arguments: Any) -> None:
        """Store the body that `parse` returns, or its problems without the traceback, which would keep the text."""
        self._body = None
        try:
            self._body = parse(*arguments)
        except ValidationFailed as error:
            self._problems, self._complete = error.problems, error.complete

    def attempt(self, step: Callable[..., Value], *arguments: Any) -> Value | Response:
        """Return what a step returns, or the answer to whatever it raises: not only `Exception`s, of libraries in Rust.

        What a database undoes is done again, until that was in vain a few times. Nothing else catches: what an
        embedding application raises on our routes goes to its own error handlers.
        """
        pauses = iter(PAUSES)
        while True:
            try:
                return step(*arguments)
            except ENDS_THE_PROCESS:
                raise
            except BaseException as error:
                pause = next(pauses, None) if isinstance(error, TryAgain) else None
                if pause is None:
                    return problem_response(as_service_error(error, self.environ))
            time.sleep(random.uniform(0, pause))  # noqa: S311 - who was in another's way is there at another time

    def begin(self, body: Body | None) -> HandlerResult | None:
        """Open the request, and go on with its body. Where that is awaited and all else is good, return None."""
        given = self.attempt(self.open)  # None where nothing is wrong
        if given is None and (body is not None or not self.operation.formats):
            return self.judge(body or Body())
        return given

    def judge(self, body: Body) -> HandlerResult:
        """Read and check what was opened."""
        if refusal := self.attempt(self.read, body):
            return refusal
        return self.attempt(self.check)

    def finish(self, given: HandlerResult) -> Response:
        """Do what is left to do, here and at once."""
        while not isinstance(given, Response):
            given = self.attempt(given.work)
        return given

    def respond(self, receive: Callable[[int], Body]) -> Response:
        """Answer in one go. :param receive: gives the body, of which it reads no more than so many bytes."""
        given = self.begin(None)
        if given is None:
            body = self.attempt(receive, self.limit + 1)
            given = body if isinstance(body, Response) else self.judge(body)
        return self.finish(given)

    # For the routes

    @property
    def client_id(self) -> str:
        """Whose data this is about."""
        return self.principal.client_id

    def checked_body(
        self,
        find: Callable[[Connection], object] | None = None,
        rules: Callable[[Any], Sequence[Problem]] | None = None,
    ) -> Any:
        """Return the body.

        :param find: what raises `Missing` for an unknown id, which comes first where the body breaks rules.
        :param rules: those that its model cannot express.
        :raises ValidationFailed: with all that is wrong.
        """
        problems = self._problems or (rules(self._body) if rules else ())
        if problems:
            if find:
                with self.database.reading() as connection:
                    find(connection)
            raise ValidationFailed(problems, complete=self._complete)
        return self._body

    def earlier_response(self, connection: Connection, key: RequestKey) -> Response | None:
        """Return the answer that the request got before under its key, None when it got none."""
        kept = select_response(connection, key, self.body_hash)
        if not kept:
            return None
        tag = from_json(kept.body).get("etag") if self.operation.tagged else None
        return make_response(kept.status, kept.body.encode(), Location=kept.location, ETag=tag)

    def read_slowly(self, read: Callable[[Connection], Response]) -> ThreadJob:
        """Return a job that runs `read` in the slow-read pool."""
        return SlowRead(partial(self._read_apart, read))

    def _read_apart(self, read: Callable[[Connection], Response]) -> Response:
        with self.database.apart() as connection:
            return read(connection)

    @property
    def path(self) -> str:
        """The path of the request, with the prefix that the service is mounted under, percent-encoded."""
        return prefix_of(self.environ) + quote(path_of(self.environ), PATH_CHARACTERS)

    @property
    def address(self) -> str:
        """The path by which the caller reaches this again: behind a proxy, below the path of the base URL."""
        base_url = self.service.settings.base_url
        if not base_url:
            return self.path
        own = self.path.split("/")[-self.operation.path.count("/") :]
        return "/".join([urlsplit(base_url).path, *own])


def to_flask_response(given: Response) -> flask.Response:
    """Return an answer as Flask has it."""
    response = flask.Response(given.document or given.body, given.status, [*given.headers.items()])
    if "Content-Type" not in given.headers:
        del response.headers["Content-Type"]  # Flask's own
    return response


# ---------------------------------------------------------------------------
# Routes
# ---------------------------------------------------------------------------


LIST_TIME = 0.5  # seconds of the processor that a list may have: three times what counting a million tasks takes


def read_cursor(request: ApiRequest, connection: Connection, table: str, after: str | None = None) -> ListCursor | None:
    """Return where a place in a list is, by default the `after` of the request; None without one."""
    after = after or request.query.after
    if after is None:
        return None
    sort, (severity, _, item_id) = getattr(request.query, "sort", ""), after.rpartition(".")
    seq = select_cursor_seq(connection, table, request.client_id, item_id, newest_first=sort != "createdAt")
    if sort != "severity":
        return ListCursor(seq)
    if not severity:
        raise InvalidParameter("after", PATTERNS[ITEM_CURSOR])
    return ListCursor(seq, RANKS[severity])


def next_link(request: ApiRequest, after: str) -> str:
    """Return the link to the page behind a place: the same query, which is known to be good, from there on."""
    given = quote(request.environ["QUERY_STRING"], safe=PRINTABLE_IN_URL, encoding="latin-1").split("&")
    kept = [part for part in given if unquote_plus(part.partition("=")[0]) not in ("", "page", "limit", "after")]
    return f"{request.address}?{'&'.join([*kept, f'limit={request.query.limit}', f'after={after}'])}"


ListReader: TypeAlias = Callable[[ApiRequest, Connection], Response]
SHORT_SHARE = 1 / 25  # of `LIST_TIME` that a list may take on the event loop


def list_response(request: ApiRequest, read: ListReader) -> Response | ThreadJob:
    """Respond with a list at once, or read it in the slow-read pool if that takes longer than others should wait.

    :raises InvalidParameter: if it takes more than `LIST_TIME` there.
    """
    if not request.database.threads and not getattr(request.query, "may_take_long", False):
        with (
            suppress(TimeoutError),
            request.database.snapshot() as connection,
            connection.limited(LIST_TIME * SHORT_SHARE),
        ):
            return read(request, connection)
    return request.read_slowly(partial(read_in_list_time, read, request))


def read_in_list_time(read: ListReader, request: ApiRequest, connection: Connection) -> Response:
    """Read a list in a bounded time. :raises InvalidParameter: when that is over."""
    with in_list_time(connection):
        return read(request, connection)


@contextmanager
def in_list_time(connection: Connection) -> Iterator[None]:
    """Let a list have a bounded time. :raises InvalidParameter: when that is over."""
    try:
        with connection.limited(LIST_TIME):
            yield
    except TimeoutError:
        detail = (
            "asks for more than can be found in time; give fewer values or more filters,"
            " and follow the next link instead of asking for a page far down"
        )
        raise InvalidParameter("query string", detail) from None


class PageCache:
    """The last pages of lists as they were sent, by their ETags and URLs, for lists that are read again unchanged."""

    pages, size = 32, 128 * KIB  # how many, and the bytes of the largest one

    def __init__(self) -> None:
        self._pages: dict[tuple[str, ...], bytes] = {}
        self._lock = threading.Lock()

    def recall(self, key: tuple[str, ...], read: Callable[[], Any]) -> bytes:
        """Return a page that is kept, or else what `read` returns, as JSON, which is kept if it is not too large."""
        with self._lock:
            page = self._pages.pop(key, None)
        if page is None:
            page = to_json(read())
        if len(page) <= self.size:
            with self._lock:
                self._pages[key] = page  # the last one used, as a dict keeps its order
                if len(self._pages) > self.pages:
                    del self._pages[next(iter(self._pages))]
        return page


def conditional_response(
    read: Callable[[ApiRequest, Connection], Any], request: ApiRequest, connection: Connection
) -> Response:
    """Respond with what `read` returns and a weak ETag, or that the caller has it (RFC 9110, 13.1.2).

    The ETag is another one once anything of the client has changed, and on another day: an overview ends with today.
    So it is for another assignee, because "me" is another for each user.
    """
    assignee = getattr(request.query, "assignee", None)
    whose = f"-{hashlib.sha256(assignee.encode()).hexdigest()[:16]}" if assignee else ""
    tag = f'"{select_revision(connection, request.client_id)}-{timestamp()[:10]}{whose}"'
    headers = {"ETag": f"W/{tag}", "Allow": methods_for(request.principal.level, request.operation.path)}
    had = request.environ.get("HTTP_IF_NONE_MATCH", "")
    if had.strip() == "*" or tag in had:
        return Response(304, headers)
    key = (tag, request.client_id, request.address, request.environ["QUERY_STRING"])
    page = request.service.pages.recall(key, partial(read, request, connection))
    return make_response(200, page, **headers)


class PageItems(Struct):
    """The items of a page as they go out, the last of them as it was read, and whether the list goes on behind it."""

    items: list[Any] = []
    last: Any = None
    more: bool = False


PAGE_SIZE = 16 * 1024 * KIB - 64 * KIB  # bytes of the JSON of a page's items, with room for what stands around them


def take_items(items: Iterable[Any], limit: int) -> PageItems:
    """Take the items of a page, each encoded as soon as it is read; the page ends early where it would be too large.

    :param items: one more than belongs on the page, if there is a further one.
    """
    taken, weight = PageItems(), 0
    for item in items:
        text = to_json(item)
        weight += len(text) + 1
        if len(taken.items) == limit or (taken.items and weight > PAGE_SIZE):
            taken.more = True
            break
        taken.items.append(Raw(text))
        taken.last = item
    return taken


def cursor_of(query: Any, item: Any) -> str:
    """Return the place of an item in the list that a query asks for, as `after` has it."""
    return f"{item.severity}.{item.id}" if getattr(query, "sort", "") == "severity" else str(item.id)


def page_of(request: ApiRequest, taken: PageItems, total: int) -> tuple[Any, ...]:
    """Return the fields of a page."""
    link = next_link(request, cursor_of(request.query, taken.last)) if taken.more else None
    page = None if request.query.after is not None else request.query.page or 1
    return page, request.query.limit, total, link, taken.items


NO_TARGET = ""
METADATA = FreeForm("metadata", read_metadata)


@operation("POST", "/api/v1/runs", "agent", {201: Run}, body=RunStart, free=METADATA, refusals=(UnknownProjectType,))
def post_runs(request: ApiRequest) -> PendingWrite:
    """Start a run."""
    body: RunStart = request.checked_body()
    metadata = read_metadata(body.metadata)

    def start(connection: Connection) -> Response:
        request.service.fail_idle_runs(connection, request.client_id)
        target, branch = body.target_url or NO_TARGET, body.branch or MAIN_LINE
        run = insert_run(connection, request.principal, body.project_type, target, metadata, branch)
        request.run_id = run.id
        return json_response(
            201, select_run(connection, request.client_id, run), f"{request.address}/{run.id}", [run.id]
        )

    return PendingWrite(request, start)


@operation("GET", "/api/v1/runs", "read", {200: RunPage}, query=RunQuery, has_weak_etag=True)
def get_runs(request: ApiRequest) -> Response | ThreadJob:
    """List runs, newest first."""
    return list_response(request, partial(conditional_response, read_run_page))


def read_run_page(request: ApiRequest, connection: Connection) -> RunPage:
    """Return the page of runs that a request asks for."""
    position = read_cursor(request, connection, "runs")
    runs, total = select_runs(connection, request.client_id, request.query, position)
    return RunPage(*page_of(request, take_items(runs, request.query.limit), total))


@operation("GET", "/api/v1/runs/{run_id}", "read", {200: RunWithSummary})
def get_run(request: ApiRequest, run_id: str) -> Response | ThreadJob:
    """Get a run, with a summary of the tasks that it reported."""

    def read(connection: Connection) -> Response:
        run = select_used_run(request, connection, run_id)
        return json_response(200, select_run_with_summary(connection, request.client_id, run))

    with request.database.snapshot() as connection:
        if select_run_key(connection, request.client_id, run_id).reported <= 5_000:
            return read(connection)
    return request.read_slowly(read)  # the summary of so many tasks takes longer than others should wait


def select_used_run(request: ApiRequest, connection: Connection, run_id: str) -> RunKey:
    """Return a run's key, and note that it is in use. :raises Missing: when there is no such run."""
    run = select_run_key(connection, request.client_id, run_id)
    if run.status == "running":
        request.database.use_later(request.client_id, "runs", run.seq, timestamp())
    return run


def run_update_problems(update: RunUpdate) -> list[Problem]:
    """Return the problems of a run's update that its model cannot express."""
    problems = METADATA.problems(update.metadata)
    if not update.status and bytes(update.metadata) in (b"", b"null"):
        problems.append(Problem(CHANGES_NOTHING, ""))
    if update.status != "completed":
        given = (("/resolveMissing", update.resolve_missing), ("/gate", update.gate))
        problems += (Problem(COMPLETED_ALONE, pointer) for pointer, value in given if value)
    if update.status_reason is not None and not update.status:
        problems.append(Problem(WITHOUT_STATUS, "/statusReason"))
    return problems


@operation(
    "PATCH",
    "/api/v1/runs/{run_id}",
    "agent",
    {200: RunWithSummary},
    body=RunUpdate,
    free=METADATA,
    refusals=(RunFinished,),
)
def patch_run(request: ApiRequest, run_id: str) -> PendingWrite:
    """Finish a run, resolve what it did not report any more if asked to, and add to its metadata."""
    find = partial(select_run_key, client_id=request.client_id, run_id=run_id)
    update: RunUpdate = request.checked_body(find, run_update_problems)
    if update.gate and (missing := load_module(GATE)):
        raise ValidationFailed([Problem(f"needs {missing}", "/gate")])

    def finish(connection: Connection) -> Response:
        run = find(connection)
        finish_run(connection, request.principal, run, update)
        return json_response(200, select_run_with_summary(connection, request.client_id, run))

    return PendingWrite(request, finish)


@operation(
    "POST",
    "/api/v1/runs/{run_id}/tasks",
    "agent",
    {201: Submission, 200: Submission},
    body=(TaskBatch, TaskReport),
    formats=REGISTRY.submission_formats,
    refusals=(RunFinished, ExtensionCheckTimeout),
)
def post_tasks(request: ApiRequest, run_id: str) -> HandlerResult:
    """Submit one task, or a batch of which all are stored or none."""
    with request.database.reading() as connection:
        run, schema = select_run_and_schema(connection, request.client_id, run_id)
    parsed: Parsed = request.checked_body()
    if schema is None or accepted_fast(schema, parsed.extensions):
        return pending_submission(request, run, parsed)
    return Check(partial(check_submission, request, run, schema, parsed))


def check_submission(request: ApiRequest, run: RunKey, schema: str, parsed: Parsed) -> PendingWrite:
    """Validate the extensions of a submission. :raises ValidationFailed: with every problem of it."""
    request.form.judge(schema, parsed, request.service.settings)
    return pending_submission(request, run, parsed)


def pending_submission(request: ApiRequest, run: RunKey, parsed: Parsed) -> PendingWrite:
    """Return the write of a submission. :raises ValidationFailed: if there is any problem with it."""
    if parsed.problems:
        raise ValidationFailed(every_task_first(parsed.problems), complete=parsed.complete)
    return PendingWrite(request, partial(store_submission, request, run, parsed))


def store_submission(request: ApiRequest, run: RunKey, parsed: Parsed, connection: Connection) -> Response:
    """Store a submission in a transaction, and respond with its result."""
    submission = submit_reports(connection, request.principal, run, parsed.reports, parsed.number)
    names = [result.id for result in submission.tasks]
    return json_response(201 if submission.created else 200, submission, names=names)


@operation(
    "GET",
    "/api/v1/tasks",
    "read",
    {200: (FullTaskPage, TaskPage)},
    query=TaskQuery,
    exports=REGISTRY.list_exports,
    has_weak_etag=True,
)
def get_tasks(request: ApiRequest) -> Response | ThreadJob:
    """List tasks, newest first or by severity."""
    return list_response(request, partial(conditional_response, read_task_page))


def read_task_page(request: ApiRequest, connection: Connection) -> TaskPage:
    """Return the page of tasks that a request asks for: heads or whole tasks, as pages of both have the same fields."""
    query: TaskQuery = request.query
    position = read_cursor(request, connection, "tasks")
    wanted = read_task_filter(connection, request.client_id, query)
    tasks, plan = select_tasks(connection, request.client_id, wanted, query, position)
    return TaskPage(*page_of(request, take_items(tasks, query.limit), plan.count(connection)))


@operation("GET", "/api/v1/tasks/{task_id}", "read", {200: Task}, tagged=True)
def get_task(request: ApiRequest, task_id: str) -> Response:
    """Get a whole task."""
    with request.database.reading() as connection:
        return task_response(select_task(connection, request.client_id, task_id))


@operation(
    "PATCH",
    "/api/v1/tasks/{task_id}",
    "full",
    {200: Task},
    body=TaskUpdate,
    refusals=(ChangedMeanwhile,),
    tagged=True,
    keyed=True,
)
def patch_task(request: ApiRequest, task_id: str) -> PendingWrite:
    """Triage a task: give it a status and a reason, assign it, or comment on it."""
    find = partial(select_task_row, client_id=request.client_id, task_id=task_id)
    update: TaskUpdate = request.checked_body(find, decision_problems)

    def triage(connection: Connection) -> Response:
        state = find(connection)
        if request.expected is not None:
            etag = select_task(connection, request.client_id, task_id).etag
            if not request.expected.contains_raw(etag):
                raise ChangedMeanwhile("It was changed since the ETag in If-Match was answered; nothing was stored.")
        if problem := reason_problem(update, state, "/reason"):
            raise ValidationFailed([problem])
        triage_tasks(connection, request.principal, [state], update)
        answer = task_response(task := select_task(connection, request.client_id, task_id))
        answer.names = task.run_id, task.last_run_id
        return answer

    return PendingWrite(request, triage)


@operation("GET", "/api/v1/tasks/{task_id}/history", "read", {200: History}, query=HistoryQuery)
def get_task_history(request: ApiRequest, task_id: str) -> Response | ThreadJob:
    """Get what happened to a task, oldest first."""
    return list_response(request, partial(read_task_history, task_id))


def read_task_history(task_id: str, request: ApiRequest, connection: Connection) -> Response:
    """Return the page of a task's history that a request asks for."""
    before, limit = int(request.query.after or 0), request.query.limit
    state = select_task_row(connection, request.client_id, task_id)
    taken = take_items(select_history(connection, request.client_id, state.seq, limit, before), limit)
    link = next_link(request, str(before + len(taken.items))) if taken.more else None
    return json_response(200, History(taken.items, link))


Definition: TypeAlias = tuple[str, str, str | None]  # label, description, schema
DefinitionWriter: TypeAlias = Callable[[ApiRequest, str, Definition, Connection], Response]


def check_definition(request: ApiRequest, name: str, body: ProjectTypeUpdate, store: DefinitionWriter) -> PendingWrite:
    """Check the schema of a project type, which is stored as it was sent, and return the write of its definition."""
    schema = read_schema(body.extension_schema, request.service.settings)
    definition = (name if body.label is None else body.label, body.description or "", schema)
    return PendingWrite(request, partial(store, request, name, definition))


@operation("GET", "/api/v1/project-types", "read", {200: ProjectTypes})
def get_project_types(request: ApiRequest) -> Response:
    """List all project types, by name and without their schemas."""
    with request.database.reading() as connection:
        return json_response(200, ProjectTypes(select_project_types(connection, request.client_id)))


EXTENSION_SCHEMA = FreeForm("extensionSchema", read_schema, nul=True)


@operation(
    "POST",
    "/api/v1/project-types",
    "agent",
    {201: ProjectTypeWithSchema, 200: ProjectTypeWithSchema},
    body=ProjectTypeDefinition,
    free=EXTENSION_SCHEMA,
    refusals=(ProjectTypeExists, ExtensionCheckTimeout),
)
def post_project_types(request: ApiRequest) -> ThreadJob:
    """Register a project type; the same definition again changes nothing."""
    body: ProjectTypeDefinition = request.checked_body()
    return Check(partial(check_definition, request, body.name, body, store_new_type))


def store_new_type(request: ApiRequest, name: str, definition: Definition, connection: Connection) -> Response:
    """Insert a project type, unless the same one is there, and respond with it."""
    created = insert_project_type(connection, request.client_id, name, *definition)
    registered = select_project_type(connection, request.client_id, name)
    return json_response(201 if created else 200, registered, f"{request.address}/{name}" if created else None, [name])


@operation("GET", "/api/v1/project-types/{name}", "read", {200: ProjectTypeWithSchema})
def get_project_type(request: ApiRequest, name: str) -> Response:
    """Get a project type with its schema."""
    with request.database.reading() as connection:
        return json_response(200, select_project_type(connection, request.client_id, name))


@operation(
    "PUT",
    "/api/v1/project-types/{name}",
    "full",
    {200: ProjectTypeWithSchema},
    body=ProjectTypeUpdate,
    free=EXTENSION_SCHEMA,
    refusals=(ExtensionCheckTimeout,),
)
def put_project_type(request: ApiRequest, name: str) -> ThreadJob:
    """Replace a project type's label, description and schema; stored tasks are not judged again."""
    with request.database.reading() as connection:
        select_project_type(connection, request.client_id, name)
    body: ProjectTypeUpdate = request.checked_body()
    if body.name not in (None, name):
        raise ValidationFailed([Problem("must be the name in the path, or be left out", "/name", value=body.name)])
    return Check(partial(check_definition, request, name, body, store_changed_type))


def store_changed_type(request: ApiRequest, name: str, definition: Definition, connection: Connection) -> Response:
    """Replace a project type's definition, and respond with it."""
    replace_project_type(connection, request.client_id, name, *definition)
    return json_response(200, select_project_type(connection, request.client_id, name))


@operation("GET", "/healthz", None, {200: Health})
def get_health(request: ApiRequest) -> Response:
    """Tell whether the database can be read and written."""
    request.service.check_health()
    name, version = request.database.engine
    return json_response(200, Health("ok", __version__, **{name.lower(): version}))


REGISTRY.add_operations(*[each for each in globals().values() if isinstance(each, Operation)])  # all from above


# ---------------------------------------------------------------------------
# Application
# ---------------------------------------------------------------------------


class FindingsBlueprint(flask.Blueprint):
    """The service as a part of a Flask application; `service` is what its routes share."""

    service: Service


def open_once(service: Service) -> None:
    """Make the database unless it is there, and do what was left undone in it.

    :raises DatabaseUnusable: when it cannot be opened: that is reported here, not to the first client.
    """
    try:
        with service.database.transaction() as connection:
            insert_client(connection, "default")  # a file that may not be written is told of now
        load_module(MIGRATIONS)
        REGISTRY.refresh(service.database)
        for _ in idle_slices(service.database, service.settings.run_timeout):
            pass
        service.database.run_maintenance()
    except ENGINE_ERRORS as error:
        raise unusable(service.database.name, error) from error
    finally:  # a server may fork now, and no connection survives that (https://www.sqlite.org/howtocorrupt.html, 2.6)
        service.database.close()


def start_service(settings: Settings) -> Service:
    """Open the database, start the observers of the settings, and return the service that all routes share.

    :raises ConfigurationError: for a module or a package that is not installed.
    :raises DatabaseUnusable: when the database cannot be opened.
    """
    load_modules()
    service = Service(settings)
    for setting, module in OBSERVER_MODULES.items():
        if not getattr(settings, setting):
            continue
        variable = f"FINDINGS_{setting.upper()}"
        try:
            missing = load_module(module)
        except ImportError as error:
            needed = (error.name or "").partition(".")[0]
            raise ConfigurationError(f"{variable} needs the package {needed}{installing(setting)}") from None
        if missing:
            raise ConfigurationError(f"{variable} needs {missing}")
        REGISTRY.observers[setting](service)
    open_once(service)
    return service


@contextmanager
def accompanied(service: Service) -> Iterator[None]:
    """Have run what goes with a server, for as long as that serves in this process."""
    with ExitStack() as running:
        for companion in REGISTRY.companions:
            running.enter_context(companion(service))
        yield


def received(most: int) -> Body:
    """Return the body of Flask's request, a byte over its limit at most."""
    try:  # what is not in the stream any more, something of the application may have read and kept before
        return Body(flask.request.stream.read(most) or flask.request.get_data())
    except ClientDisconnected:
        return Body(whole=False)


def respond_in_thread(request: ApiRequest, receive: Callable[[int], Body]) -> Response:
    """Answer a request where no server of ours does: do the maintenance behind it, and tell who listens."""
    began = time.perf_counter()
    given = request.respond(receive)
    request.service.maintain_now_and_then(deleted=request.method in ("DELETE", "PUT"))
    for listener in request.service.listeners.answered:
        listener(request, given.status, given.size, time.perf_counter() - began)
    return given


PAGE_FOLDER = "/page/"
API = "/api/v1"
ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def create_blueprint(
    settings: Settings | None = None, name: str = "findings", *, page: bool = False
) -> FindingsBlueprint:
    """Return the service as a blueprint, to be registered in any Flask application under any prefix.

    It does not change the application's error pages, JSON provider or configuration.

    :param settings: None for those of the environment. :param page: whether to serve the page at the prefix itself.
    :raises ConfigurationError: if a setting is not valid, or a package that it needs is not installed.
    :raises DatabaseUnusable: if the database cannot be opened.
    """
    service = start_service(settings or Settings.read())
    blueprint = FindingsBlueprint(name, __name__)
    blueprint.service = service

    def add_rule(rule: str, endpoint: str, operation: Operation | None = None) -> None:
        def view(**view_args: str) -> flask.Response:
            path = rule.replace("<path:rest>", view_args.get("rest", ""))
            request = ApiRequest(service, flask.request.environ, path)
            # Werkzeug matches methods in lower case, too.
            if operation and request.method in (operation.method, "HEAD"):
                request.operation, request.route, request.view_args = operation, operation.path, view_args
            if flask.request.max_content_length is not None:
                request.limit = flask.request.max_content_length
            return to_flask_response(respond_in_thread(request, received))

        methods = [operation.method] if operation else ANY_METHOD
        blueprint.add_url_rule(
            rule, endpoint, view, methods=methods, strict_slashes=rule != "/", provide_automatic_options=False
        )

    for each in service.router.operations:
        add_rule(each.path.replace("{", "<").replace("}", ">"), each.handler.__name__, each)
    # All other requests, which get a problem response: unknown paths, and methods that a path does not have.
    add_rule(f"{API}/<path:rest>", "unknown")
    for path in sorted({each.path for each in service.router.operations if not each.path.startswith(API)}):
        add_rule(path, f"unknown_{path.strip('/')}")
    if page and REGISTRY.page_files:
        add_rule("/", "page")
        add_rule(f"{PAGE_FOLDER}<path:rest>", "page_file")
    return blueprint


def create_app(settings: Settings | None = None, **given: Any) -> flask.Flask:
    """Return the service as a WSGI application of its own.

    :param given: settings by name, such as `db="findings.db"`, before those of the environment.
    :raises ConfigurationError: for a setting that makes no sense, and a package that is not there or not known.
    :raises DatabaseUnusable: when the database file cannot be opened.
    """
    if settings is not None and given:
        raise ConfigurationError(f"give Settings, or settings by name, not both: {', '.join(given)}")
    blueprint = create_blueprint(settings or Settings.read(**given), page=True)
    service = blueprint.service

    def refuse_unrouted(error: Exception) -> flask.Response:
        environ = flask.request.environ
        if isinstance(error, (NotFound, MethodNotAllowed)):
            return to_flask_response(
                respond_in_thread(ApiRequest(service, environ, decoded(environ.get("PATH_INFO", ""))), received)
            )
        return to_flask_response(problem_response(as_service_error(error, environ)))

    app = flask.Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    app.register_blueprint(blueprint)
    app.register_error_handler(Exception, refuse_unrouted)
    app.extensions["findings"] = service
    return app


# ---------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------

STOPPING = [signal.SIGTERM, signal.SIGINT]
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
    STOPPING.append(signal.SIGHUP)


STDERR = 2


COMMAND_MODULES = {
    "scan": "findings_adapters.ci",
    "export": "findings_adapters.ci",
    "gate": "findings_adapters.ci",
    "mcp": "findings_adapters.mcp",
    "copy": "findings_adapters.postgres",
    "check": "findings_features.audit",
    "backup": "findings_features.backup",
    "compact": "findings_features.backup",
    "restore": "findings_features.restore",
    "prune": "findings_features.deletion",
}


DEMO = "findings_features.demo"


class MainGroup(click.Group):
    """The group of all commands, also of those that modules add."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. It ends with its own exit code also where its output cannot be written."""
        while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
            pass  # what is closed of standard streams, a database or a connection would become
        os.close(file)
        load_module(STREAMS)
        try:
            with REGISTRY.streams():
                try:
                    return super().main(*args, **options)
                except OSError as error:
                    click.echo(f"Error: standard output: {error.strerror}", err=True)
                    sys.exit(1)
        finally:
            for name in ("stdout", "stderr"):
                try:
                    if stream := getattr(sys, name):
                        stream.flush()
                except OSError:  # at the end Python would try once more, and exit with 120
                    setattr(sys, name, None)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Who stops reading what it writes has had enough of it, which is no failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        for module in COMMAND_MODULES.values():
            load_module(module)
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. :raises click.UsageError: for one of a module that is not installed."""
        if cmd_name in COMMAND_MODULES and (missing := load_module(COMMAND_MODULES[cmd_name])):
            ctx.fail(f"`{cmd_name}` needs {missing}")
        return super().get_command(ctx, cmd_name)


class ServeCommand(click.Command):
    """The command that all settings are for."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write what can be set in the environment only."""
        with formatter.section("Settings of the environment (times are seconds, or a number with s, m, h or d)"):
            options = {each.envvar for each in self.params}
            defaults = zip(Settings.descriptions().items(), astuple(Settings()), strict=True)
            formatter.write_dl(
                [
                    (name, f"{meaning}  [default: {value or 'none'}]")
                    for (name, meaning), value in defaults
                    if name not in options
                ]
            )


def duration_of(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a duration on the command line."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


environment_option = partial(click.option, show_envvar=True)
database_option = environment_option(
    "--db", envvar="FINDINGS_DB", default="findings.db", help=Settings.descriptions()["FINDINGS_DB"]
)


@contextmanager
def readable_errors(db: str) -> Iterator[None]:
    """Turn what can go wrong with a set-up or a database into one line and exit code 1."""
    try:
        yield
    except (ConfigurationError, DatabaseUnusable, ChildProcessError, OSError) as error:
        file = error.filename if isinstance(error, PermissionError) else None  # a port has none
        raise click.ClickException(str(unusable(file, error) if file else error)) from None
    except ENGINE_ERRORS as error:
        name = database_for(Settings.read(db=db)).name  # without a password
        raise click.ClickException(str(unusable(name, error))) from None


@contextmanager
def opened(db: str, *, new: bool = False, hint: str = "") -> Iterator[Database]:
    """Give a command the database, beside a service that may be running.

    :param hint: what to do where there is none.
    """
    with readable_errors(db):
        database = database_for(Settings.read(db=db))
        try:
            if not new and (absence := database.absence()):
                raise DatabaseUnusable(f"{absence}{hint}")
            yield database
        finally:
            database.close()


@click.group(cls=MainGroup, context_settings={"show_default": True, "max_content_width": 120})
@click.version_option(__version__, prog_name="findings-service")
def main() -> None:
    """Keep the findings of agents in one SQLite file, or in PostgreSQL, and serve them over HTTP."""


@main.command(cls=ServeCommand)
@database_option
@environment_option("--host", envvar="FINDINGS_HOST", default="127.0.0.1", help="The address to listen on.")
@environment_option(
    "--port", envvar="FINDINGS_PORT", default=8000, type=click.IntRange(0, 65535), help="The port; 0 for any free one."
)
@environment_option(
    "--workers",
    envvar="FINDINGS_WORKERS",
    default=1,
    type=click.IntRange(1, 64),
    help="Processes; see docs/operations.md.",
)
@click.option("--demo", is_flag=True, help="Serve sample data from a temporary database.")
@click.pass_context
def serve(ctx: click.Context, db: str, host: str, port: int, workers: int, demo: bool) -> None:
    """Serve the API until SIGTERM or Ctrl-C."""
    if fcntl is None:
        raise click.ClickException(
            "`serve` runs on Linux and macOS; on Windows, give create_app() to a WSGI server such as waitress"
        )
    load_module(SERVING)
    if demo and ctx.get_parameter_source("db") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--demo uses its own temporary database; leave out --db")
    if demo and (missing := load_module(DEMO)):
        raise click.UsageError(f"--demo needs {missing}")
    with readable_errors(db):
        settings = Settings.read(db=REGISTRY.make_demo(), api_key="") if demo else Settings.read(db=db)
        (REGISTRY.serve or serve_with_threads)(settings, host, port, workers)


def insert_first_key(connection: Connection, settings: Settings) -> str | None:
    """Insert the first key of a new database and return it; None if there is a key already."""
    is_first = not (settings.api_key or select_keys(connection))
    return insert_key(connection, "first", "default", "full") if is_first else None


def exposure_warning(host: str) -> str:
    """Return a warning if other machines can reach the service, because keys would be sent unencrypted."""
    if host in ("127.0.0.1", "::1", "localhost", ""):
        return ""
    return f"Warning: listening on {host}, beyond this machine, without TLS. Put a reverse proxy with TLS in front.\n"


def serve_with_threads(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve with a thread for each connection, by werkzeug, until one of the signals that end a service.

    :raises ConfigurationError: for what another server would do.
    """
    for given, name in ((workers > 1, "--workers"), (settings.keep, "FINDINGS_KEEP")):
        if given:
            raise ConfigurationError(f"{name} needs {load_module(SERVING)}")

    class Handler(WSGIRequestHandler):
        timeout = settings.body_timeout  # of who sends nothing

        def log(self, *_: object) -> None:
            """Say nothing: of requests, the settings say what is logged."""

    app = create_app(settings)
    service: Service = app.extensions["findings"]
    try:
        server = ThreadedWSGIServer(host or "127.0.0.1", port, app, Handler)
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from None
    with closing(service.database), server:
        server.daemon_threads = False  # what is under way is finished
        for each in STOPPING:
            signal.signal(each, lambda *_: threading.Thread(target=server.shutdown).start())
        url = f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{server.port}"
        told = f"Findings Task Service {__version__} on {url}, data in {service.database.location}"
        with suppress(OSError):
            click.echo(exposure_warning(host) + told, err=True)
        # In the transaction, so that a key that cannot be shown is not stored.
        with suppress(OSError), service.database.transaction("default") as connection:
            if sys.stderr and (key := insert_first_key(connection, settings)):
                click.echo(f'The first API key, of client "default" and level "full", shown this once: {key}', err=True)
        with accompanied(service):
            server.serve_forever()


def write_table(titles: Sequence[str], rows: Iterable[Sequence[str | None]], *, err: bool = False) -> None:
    """Write rows below their titles, each column as wide as it needs to be."""
    table = [titles, *(tuple(value or "-" for value in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip(), err=err)


@main.group()
def keys() -> None:
    """Issue, list and revoke API keys."""


def printable(_: click.Context, __: click.Parameter, text: str) -> str:
    """Return a name on the command line that a list can show."""
    if not 1 <= len(text) <= 100 or not text.isprintable() or not text.strip():
        raise click.BadParameter("must be 1 to 100 printable characters, and not blank")
    return text


client_option = click.option("--client", default="default", callback=printable, help="Whose data the key opens.")


@keys.command("create")
@click.argument("name", callback=printable)
@client_option
@click.option("--level", type=click.Choice(LEVELS), default="agent", help="What the key may do.")
@click.option("--expires", callback=duration_of, metavar="DURATION", help="How long the key is good, such as 90d.")
@click.option("--for-users", is_flag=True, help="For a proxy that signs people in; see docs/operations.md.")
@click.option("--new", is_flag=True, help="Make the database if it is not there.")
@database_option
def create_key(name: str, client: str, level: str, expires: float | None, for_users: bool, new: bool, db: str) -> None:
    """Make a key called NAME and print it, this once."""
    if getattr(sys.stdout, "stream", sys.stdout) is None:  # the parent process closed it
        raise click.ClickException("standard output is closed; the key would be seen by nobody")
    if expires == 0:
        raise click.BadParameter("must be above zero", param_hint="--expires")
    expires_at = timestamp(ago=-expires) if expires is not None else None
    hint = "; say --new to make it, or name another with --db"
    with opened(db, new=new, hint=hint) as database, database.transaction(client) as connection:
        is_new = insert_client(connection, client)  # who makes a key of that name at the same time waits here
        if select_live_keys(connection, client, name):
            raise click.ClickException(f"client {client!r} has a live key {name!r}; revoke it, or choose another name")
        key = insert_key(connection, name, client, level, expires_at, for_users=for_users)
        if is_new:
            click.echo(f"Client {client!r} is new.", err=True)
        users, until = ", for users" if for_users else "", f" until {expires_at}" if expires_at else ""
        told = f"Key {name!r} for client {client!r}, level {level}{users}{until}, in {database.location}."
        click.echo(f"{told}\nIt is shown this once:", err=True)
        click.echo(key)  # a key that cannot be shown is not made


@keys.command("list")
@database_option
def list_keys(db: str) -> None:
    """List all keys, without their secrets."""
    with opened(db) as database, database.reading() as connection:
        rows = select_keys(connection)
    write_table(("KEY_ID", "CLIENT", "NAME", "LEVEL", "FOR USERS", "CREATED", "EXPIRES", "LAST USED", "REVOKED"), rows)


@keys.command("revoke")
@click.argument("key", metavar="NAME|KEY_ID", callback=printable)
@client_option
@database_option
def revoke(key: str, client: str, db: str) -> None:
    """Revoke a key at once, also in a service that is running."""
    with opened(db) as database, database.transaction() as connection:
        if not revoke_key(connection, key):
            found = select_live_keys(connection, client, key)
            if len(found) != 1:
                held = f"{len(found)} live keys {key!r}; name one by its KEY_ID" if found else f"no live key {key!r}"
                raise click.ClickException(f"client {client!r} has {held}; see: findings-service keys list")
            revoke_key(connection, found[0])
    click.echo(f"Key {key} is revoked.", err=True)


if __name__ == "__main__":
    main()
