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
"""The Findings Task Service: an HTTP/JSON API that keeps structured findings from run to run in one SQLite file.

Agents start a *run*, submit *tasks* (findings) to it and finish it. People and programs list, read and triage the
tasks. `create_app` returns a WSGI application, `create_blueprint` returns a blueprint for an existing Flask
application, and `findings-service serve` starts the server. Read the module from top to bottom: each section builds
on the sections above it.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout may be run with any `python3`
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
from wsgiref.types import WSGIEnvironment

try:
    import click
    import flask
    import msgspec
    import regex
    from msgspec import UNSET, Meta, Raw, Struct, UnsetType
    from msgspec.json import decode as from_json
    from msgspec.json import encode as to_json
    from msgspec.structs import astuple, replace
    from werkzeug.datastructures import ETags, MIMEAccept
    from werkzeug.exceptions import ClientDisconnected, HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
    from werkzeug.http import parse_accept_header, parse_etags
    from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
    from werkzeug.wsgi import get_content_length

    if not importlib.util.find_spec("jsonschema"):
        raise ModuleNotFoundError(name="jsonschema")
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    package = (missing.name or "").partition(".")[0]
    sys.exit(
        f"The package {package} is not installed. In the checkout's folder, run `uv run findings_service.py`, or:"
        " python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/findings-service"
    )

if typing.TYPE_CHECKING:
    from jsonschema import ValidationError

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
Json = dict[str, Any]  # a JSON object
Row = tuple[Any, ...]  # of a query

# --- Configuration ---------------------------------------------------------

PATH_CHARACTERS = "!$&'()*+,-./:;=@_~"  # allowed unescaped in a path, besides letters and digits (RFC 3986)
# Characters that a query string may contain unescaped. Other bytes are percent-encoded, as callers should have done.
PRINTABLE_IN_URL = f"{PATH_CHARACTERS}%?"
SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}  # bytes
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def install_hint(extra: str) -> str:
    """Return the end of an error message: how to install one of the project's extras."""
    return f": in the folder of a checkout, pip install '.[{extra}]'"  # no package index has the project yet


class ConfigurationError(Exception):
    """Error for a setting that is invalid, or that needs something not installed; the message says what to change."""


def parse_duration(text: str) -> float:
    """Parse a duration and return it in seconds: a number of seconds, or a number followed by s, m, h or d.

    :raises ValueError: if it is not a duration, or is longer than 36,500 days.
    """
    match = regex.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else math.inf
    if seconds > 100 * 365 * UNITS["d"]:
        raise ValueError(f"{text!r} is not a valid duration; use seconds, or a number with s, m, h or d, up to 36500d")
    return seconds


def parse_count(text: str) -> int:
    """Parse a positive whole number of at most 15 digits. :raises ValueError: if it is not one."""
    if not regex.fullmatch(r"[0-9]{1,15}", text.strip()) or int(text) < 1:
        raise ValueError(f"{text!r} is not valid; use a whole number of at least 1")
    return int(text)


def parse_size(text: str) -> int:
    """Parse a size and return it in bytes: a whole number of bytes, or of KiB, MiB or GiB (k, m or g).

    :raises ValueError: if it is not a size from 1 MiB to 1 TiB.
    """
    match = regex.fullmatch(r"([0-9]{1,15})([kmg]?)", text.strip().lower())
    size = int(match[1]) * SIZES[match[2]] if match else 0
    if not SIZES["m"] <= size <= 1024 * SIZES["g"]:
        raise ValueError(f"{text!r} is not a size from 1 MiB to 1 TiB; use bytes, or a whole number with k, m or g")
    return size


def scheme_of(db: str) -> str:
    """Return the URL scheme of a database in lower case, or "" if `db` is a file path."""
    match = regex.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", db)
    return match[1].lower() if match else ""


def parse_path(text: str) -> str:
    """Return a database's path or URL unchanged. :raises ValueError: if it is :memory: or a URL of unknown scheme."""
    if text == ":memory:":
        raise ValueError("use a file path; with :memory:, each connection would have its own database")
    if (scheme := scheme_of(text)) and scheme not in ENGINE_MODULES:
        raise ValueError(f"{scheme}:// is not supported; use a file path, or a URL that begins with postgresql://")
    return text


def parse_key(text: str) -> str:
    """Return an API key without white space around it. An empty text is valid and means that no key is set.

    :raises ValueError: if the key has 1 to 15 characters, or any that are not printable ASCII.
    """
    key = text.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("an API key must contain only printable ASCII characters")
    if 0 < len(key) < 16:
        raise ValueError(f"an API key of {len(key)} characters can be guessed; use at least 16")
    return key


def parse_base_url(text: str) -> str:
    """Return a base URL with its path percent-encoded and without a slash at its end, or "" for "".

    :raises ValueError: if `text` is not an http or https URL, or has white space, a query or a fragment.
    """
    match = regex.fullmatch(r"(https?://[^\s/?#]+)((/[^\s?#]*)?)", text)
    if text and not match:
        raise ValueError(f"{text!r} is not valid; use an http or https URL such as https://tools.example/findings")
    return match[1] + quote(match[2].rstrip("/"), PRINTABLE_IN_URL) if match else ""


def parse_keep(text: str) -> float:
    """Parse how long to keep finished runs, in seconds. :raises ValueError: if invalid, or below 1 h but not 0."""
    seconds = parse_duration(text)
    if 0 < seconds < UNITS["h"]:
        raise ValueError(f"{text!r} would delete runs that just finished; use at least 1h, or 0 to keep everything")
    return seconds


def parse_word(meanings: Mapping[str, Any], text: str) -> Any:
    """Return the value that a word has in `meanings`, ignoring case. :raises ValueError: if the word is not in it."""
    if text.lower() not in meanings:
        raise ValueError(f"{text!r} is not valid; use one of: {', '.join(filter(None, meanings))}")
    return meanings[text.lower()]


parse_flag = partial(parse_word, {"1": True, "0": False, "true": True, "false": False})


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of the service. Times are in seconds, sizes in bytes.

    Each can be set by the environment variable `FINDINGS_` + its name in upper case. Its annotation holds the type, the
    function that parses its text, and the description.
    """

    db: Annotated[str, parse_path, "Path of the database file (created with mode 0600), or a postgresql:// URL."] = (
        "findings.db"
    )
    api_key: Annotated[
        str, parse_key, "An API key of level full for client default, for CI jobs; at least 16 characters."
    ] = ""
    max_body: Annotated[int, parse_count, "Largest request body, in bytes; it may hold screenshots."] = 16 * SIZES["m"]
    max_sarif: Annotated[int, parse_count, "Largest SARIF document, in bytes. It holds all results of a scanner."] = (
        64 * SIZES["m"]
    )
    max_batch: Annotated[int, parse_count, "Largest number of tasks in a batch; 1000 take less than a second."] = 1000
    busy_timeout: Annotated[
        float, parse_duration, "How long a write waits for a database lock that another process holds."
    ] = 10.0
    run_timeout: Annotated[
        float, parse_duration, "A run without requests for this long is set to failed: its agent has died. 0: never."
    ] = 24 * 3600.0
    schema_timeout: Annotated[
        float,
        parse_duration,
        "Time for checking all extensions of a request. One task gets an eighth of it, a new schema two fifths.",
    ] = 2.0
    body_timeout: Annotated[float, parse_duration, "How long the service waits for a request body to arrive."] = 30.0
    synchronous: Annotated[
        str,
        partial(parse_word, {"full": "FULL", "extra": "EXTRA", "normal": "NORMAL"}),
        "FULL, EXTRA or NORMAL. NORMAL is faster, but a power cut may lose the last commits.",
    ] = "FULL"
    cache: Annotated[
        int, parse_size, "Bytes of the database that each process caches; 256m holds the indexes of a million tasks."
    ] = 24 * SIZES["m"]
    keep: Annotated[float, parse_keep, "Age at which `serve` deletes finished runs, as `prune` does. 0: never."] = 0.0
    log: Annotated[
        str,
        partial(parse_word, {"json": "json", "text": "text", "": ""}),
        "json or text: write one line for each request to standard error. Empty: no log.",
    ] = ""
    base_url: Annotated[
        str, parse_base_url, "The URL that links begin with, if a proxy serves the API under a prefix."
    ] = ""
    metrics: Annotated[bool, parse_flag, "1: serve Prometheus metrics at /metrics. Needs the extra `metrics`."] = False
    webhook_private: Annotated[
        bool, parse_flag, "1: allow webhooks to any address, including this machine and private networks."
    ] = False

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the descriptions of all settings, keyed by environment variable."""
        hints = get_type_hints(cls, include_extras=True)
        return {f"FINDINGS_{name.upper()}": hint.__metadata__[1] for name, hint in hints.items()}

    @classmethod
    def read(cls, **given: Any) -> Settings:
        """Return the settings in environment variables, overridden by the values in `given` that are not None.

        Both are parsed. :raises ConfigurationError: if a name in `given` is unknown, or a value is invalid.
        """
        known = get_type_hints(cls, include_extras=True)
        chosen: Json = {name: text for name in known if (text := os.environ.get(f"FINDINGS_{name.upper()}"))}
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


# Environment variables that commands and clients read, besides the settings; names without the prefix FINDINGS_.
OTHER_VARIABLES = ("HOST", "KEY", "PORT", "URL", "USER", "WORKERS")


@cache
def warn_of_misspelled() -> None:
    """Log a warning for each unknown FINDINGS_ variable of the environment that resembles a known one."""
    known = {*OTHER_VARIABLES, *(name[9:] for name in Settings.descriptions())}
    for name in sorted({each[9:] for each in os.environ if each.startswith("FINDINGS_")} - known):
        if nearest := difflib.get_close_matches(name, known, n=1, cutoff=0.66):
            log.warning("FINDINGS_%s is not a setting; did you mean FINDINGS_%s?", name, nearest[0])


# --- Errors ----------------------------------------------------------------

REPEATED_TEXT = 200  # an error repeats at most this many characters of a text from the request
LISTED_PROBLEMS = 100  # an error response lists at most this many problems


def truncate(text: str, length: int = REPEATED_TEXT) -> str:
    """Return a text. If it is longer than `length` characters, cut it to that length, with "…" at the end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def scalar_preview(value: Any) -> Any:
    """Return a string (truncated), a boolean or a short number for use in an error; UNSET for any other value."""
    if isinstance(value, str):
        return truncate(value)
    scalar = isinstance(value, (bool, int, float)) and len(str(value)) <= REPEATED_TEXT
    return value if scalar else UNSET


class Problem(Struct, omit_defaults=True):
    """A problem in a request: what is wrong, and where (`pointer` into the body, RFC 6901, or `parameter`)."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    value: Any = UNSET

    def below(self, prefix: str) -> Problem:
        """Return the same problem with `prefix` put before its pointer."""
        return replace(self, pointer=f"{prefix}{self.pointer or ''}")


class ServiceError(Exception):
    """Base class of all errors that become an error response (RFC 9457)."""

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
    """The API key is missing, malformed, unknown, expired or revoked, or the user that it requires is not named."""

    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError, status=403, code="forbidden"):
    """The key's level is too low, or a page of another site made a user's browser send the write."""


class Missing(ServiceError, status=404, code="not_found"):
    """The path or id is unknown, or the id belongs to another client."""


class WrongMethod(ServiceError, status=405, code="method_not_allowed"):
    """The path does not support the method."""

    def __init__(self, allowed: str, detail: str = "") -> None:
        super().__init__(detail or f"This path supports only these methods: {allowed}.")
        self.headers = {"Allow": allowed}


class RunFinished(ServiceError, status=409, code="run_finished"):
    """The run is already completed or failed."""


class ProjectTypeExists(ServiceError, status=409, code="project_type_exists"):
    """A project type of this name is registered with another definition."""


class IdempotencyConflict(ServiceError, status=409, code="idempotency_conflict"):
    """The Idempotency-Key was used for another body, or data in its stored response was deleted."""


class ChangedMeanwhile(ServiceError, status=412, code="changed_meanwhile"):
    """The ETag in `If-Match` or `ifMatch` does not match the stored version."""


class BodyTooLarge(ServiceError, status=413, code="body_too_large"):
    """The body is larger than the limit."""


class UnsupportedMediaType(ServiceError, status=415, code="unsupported_media_type"):
    """The body has an unsupported Content-Type, or a Content-Encoding."""


class ValidationFailed(ServiceError, status=422, code="validation_failed"):
    """The body is well-formed but breaks rules. At most 100 problems are listed, one of each bad task first."""

    def __init__(self, problems: Sequence[Problem], *, complete: bool = True) -> None:
        count = f"{'' if complete else 'At least '}{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        more = f"; the first {LISTED_PROBLEMS} are listed" if len(problems) > LISTED_PROBLEMS else ""
        self.complete = complete
        super().__init__(f"{count} in the request body{more}; nothing was stored.", problems)


class UnknownProjectType(ServiceError, status=422, code="unknown_project_type"):
    """The project type is not registered."""


class ExtensionCheckTimeout(ServiceError, status=422, code="extension_check_timeout"):
    """Checking the tasks' extensions, or a new schema, took too long."""


class Busy(ServiceError, status=503, code="busy"):
    """The database stayed locked or unreachable until the timeout, or too many requests are in progress."""

    headers = MappingProxyType({"Retry-After": "1"})

    def __init__(self, cause: str = "The database is locked by another process") -> None:
        super().__init__(f"{cause}; nothing was stored. Try again.")


class TryAgain(Busy):
    """Error for a transaction that was rolled back: writers conflicted, or the connection was lost.

    The code that began the transaction retries it. If the last retry fails too, the caller gets `Busy`.
    """


class StorageFull(ServiceError, status=503, code="storage_full"):
    """The database cannot be read or written at the moment."""

    headers = MappingProxyType({"Retry-After": "10"})

    def __init__(self, cause: str) -> None:
        super().__init__(f"The database cannot be used now ({cause}); nothing was stored. Try again later.")


class InternalError(ServiceError):
    """A bug in the service; the traceback is only in the log."""


class DatabaseUnusable(Exception):
    """Error for a database that is missing, unusable, of another version or not of this service."""


def known_error(error: BaseException) -> ServiceError | None:
    """Return the `ServiceError` for an exception of this service or of its database, or None if it is a bug.

    The low byte of an SQLite error code is the primary result code (https://www.sqlite.org/rescode.html).
    """
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, DatabaseUnusable):
        return StorageFull(str(error))
    memory = sqlite3.SQLITE_NOMEM  # Python's sqlite3 raises MemoryError for it
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
        sqlite3.SQLITE_NOTADB: "it is not a database",
    }
    cause = causes.get(code)
    return StorageFull(cause) if cause else None


class ProblemDetails(Struct, kw_only=True):
    """An error response, sent as `application/problem+json` (RFC 9457)."""

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[Problem] | UnsetType = UNSET


# --- Models of requests and responses --------------------------------------

Value = TypeVar("Value")
Checked = TypeVar("Checked", bound=Struct)
# msgspec caches a model's type information on its class before it is complete, and another thread that uses it then
# crashes the process. So only one thread at a time creates a decoder, and `converted` creates the decoder first.
DECODER_LOCK = threading.RLock()


@cache
def decoder(model: Any) -> msgspec.json.Decoder[Any]:
    """Return the JSON decoder for a model; it is created once and cached."""
    with DECODER_LOCK:
        return msgspec.json.Decoder(model)


def converted(value: Any, model: type[Checked]) -> Checked:
    """Convert a parsed JSON value to a model. :raises msgspec.ValidationError: if it does not match the model."""
    decoder(model)
    return msgspec.convert(value, model)


KIB = 1024
JSON_TYPE = "application/json"
NESTING = 100  # maximum levels of arrays and objects in a body
NO_NUL = {"pattern": "^[^\\u0000]*$"}
NO_COMMA = {"pattern": "^[^\\u0000,]+$"}
SEARCH_TEXT = {"pattern": "^[^\\u0000]*[^\\u0000\\s][^\\u0000]*$"}
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"
NOT_BLANK = r"\S"
# Excludes spaces and control characters, because browsers drop them and so would run `java\tscript:`.
PRINTABLE = r"[^\x00-\x20\x7f]"
ABSOLUTE_URL = rf"^[A-Za-z][A-Za-z0-9+.-]*:{PRINTABLE}+\Z"
HTTP_URL = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://([^\x00-\x20\x7f/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f/?#@:\[\]\\]+)"
    rf"(:[0-9]{{1,5}})?([/?#]{PRINTABLE}*)?\Z"
)
# Cursors. A list's cursor is the id of the last item sent; in a list by severity, the severity that it had
# comes before the id. A history only grows, so its cursor is the number of entries before the page.
ITEM_CURSOR = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"
ENTRY_CURSOR = r"^[0-9]{1,15}\Z"
SEVERITY_CURSOR = r"^((critical|high|medium|low|info)\.)?" + ITEM_CURSOR.removeprefix("^")

CONTROLS = r"\x00-\x1f\x7f-\x9f"  # Unicode's category Cc
BRANCH_NAME = rf"^[^{CONTROLS}]*\Z"
LABEL = rf"^[^\S{CONTROLS}]*[^\s{CONTROLS}][^{CONTROLS}]*\Z"
ASSIGNEE = r"^([^\x00]*[^\s\x00][^\x00]*)?\Z"
WORD = r"^[A-Za-z0-9_-]{1,32}\Z"

# The patterns of the models, with their error messages. None of the patterns backtracks.
PATTERNS = {
    NO_NUL["pattern"]: "must not contain the NUL character (U+0000)",
    NO_COMMA["pattern"]: "must not be empty or contain a comma",
    SEARCH_TEXT["pattern"]: "must not be blank",
    NAME_PATTERN: "must be 1 to 100 letters, digits, '.', '_' or '-', and begin with a letter or digit",
    ABSOLUTE_URL: "must be an absolute URL with a scheme, without spaces",
    HTTP_URL: "must be an absolute http or https URL, without spaces",
    BRANCH_NAME: "must not contain control characters",
    LABEL: "must not be blank or contain control characters",
    ASSIGNEE: 'must not be blank; send "" to remove the assignee',
    WORD: "must be 1 to 32 letters, digits, '_' or '-'",
    ITEM_CURSOR: "is not a valid cursor; use the `next` link unchanged",
    ENTRY_CURSOR: "is not a valid cursor; use the `next` link unchanged",
    SEVERITY_CURSOR: "is not a valid cursor; use the `next` link unchanged",
    NOT_BLANK: "must not be blank",
}

Severity = Literal["critical", "high", "medium", "low", "info"]
TaskStatus = Literal["open", "in_progress", "resolved", "dismissed"]
Reason = Literal["fixed", "false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate"]
Outcome = Literal["fixed", "still_present", "inconclusive"]  # of a verification
RunStatus = Literal["running", "completed", "failed"]
Level = Literal["read", "agent", "triage", "full"]
FailOn = Literal[Severity, "none"]
AgentEvent = Literal["claimed", "released", "verified", "proposed", "withdrawn"]  # of an agent that fixes
TaskEvent = Literal["created", "reported", "status", "assigned", "comment", "severity", "linked", AgentEvent]
SEVERITIES = get_args(Severity)
UNFINISHED = ("open", "in_progress")
UNCHECKED = "not-checked"  # the rule of a finding that says what a scanner did not check
LEVELS = get_args(Level)
RANKS = {name: rank for rank, name in enumerate(reversed(SEVERITIES), start=1)}


def at_most(characters: int, **rules: Any) -> Meta:
    """Return the constraints of a text: a maximum length, no U+0000, and further `rules`."""
    return Meta(max_length=characters, extra_json_schema=NO_NUL, **rules)


def described(text: str) -> Meta:
    """Return the metadata that gives a parameter its OpenAPI description."""
    return Meta(description=text)


Text = Annotated[str, Meta(extra_json_schema=NO_NUL)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Title = Annotated[str, Meta(max_length=500, pattern=NOT_BLANK)]  # NOT_BLANK also rejects the empty string
ExternalId = Annotated[str, at_most(256, min_length=1)]
TargetUrl = Annotated[str, Meta(max_length=2048, pattern=HTTP_URL)]
BranchName = Annotated[str, Meta(min_length=1, max_length=255, pattern=BRANCH_NAME)]
EvidenceUrl = Annotated[str, Meta(max_length=256 * KIB, pattern=ABSOLUTE_URL)]
Rule = Annotated[str, Meta(max_length=256, pattern=LABEL)]
Location = Annotated[str, Meta(max_length=1024, pattern=LABEL)]
Tag = Annotated[str, Meta(max_length=64, pattern=LABEL)]
FREE_FORM = "Any JSON object. It is returned exactly as sent. Its strings and member names must not contain U+0000."
JsonObject = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "type": "object",
            "description": FREE_FORM,
            "propertyNames": NO_NUL,
            "additionalProperties": {},  # client generators do not support a recursive schema
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
    """Base class of values that are created often. They form no cycles, so garbage collection skips them."""


NOT_SENT: Any = msgspec.field(default_factory=Raw)  # default of free-form members; any other would be in the schemas


class Model(Struct, rename="camel"):
    """Base class of responses: camelCase in JSON, snake_case in Python, fields in the order of SQL columns."""


class RequestModel(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Base class of request bodies and queries: an unknown field is an error, because dropping it would lose data."""


class Evidence(RequestModel, gc=False):
    """One piece of evidence: a link to a file (`url`) or inline text (`content`), with a caption (`label`)."""

    type: Annotated[str, at_most(64)] | None = None
    label: Annotated[str, at_most(500)] | None = None
    url: EvidenceUrl | None = None
    content: BulkText | None = None


class RemediationStep(RequestModel, gc=False):
    """One step of the fix, as reported. `step` is its number; the default is its position in the list."""

    instruction: Text
    step: Annotated[float, Meta(ge=1, le=10_000, multiple_of=1)] | None = None


class StoredStep(Model, gc=False):
    """One step of the fix. The steps of a task are sorted by `step`."""

    step: int
    instruction: str


class SuccessCriterion(RequestModel, gc=False):
    """A condition that the fix must meet. `automatable` says whether a machine can check it (default: false)."""

    description: Text
    automatable: bool | None = None


class TaskReport(RequestModel):
    """One finding, as an agent reports it.

    `rule` is the agent's own id of the rule that the finding breaks. `location` is a path and line, an address or a
    selector. `formerExternalIds` are ids under which the finding was reported before.
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
    """Several findings. All of them are stored, or none."""

    tasks: list[TaskReport]


class Link(RequestModel, gc=False):
    """A link of a task. `rel` is its kind: `pull_request`, `commit`, `issue` or another word."""

    rel: Annotated[str, Meta(pattern=WORD)]
    url: TargetUrl


Links = Annotated[list[Link], Meta(max_length=20)]


class Decision(RequestModel):
    """A triage decision, with at least one member.

    A `reason` requires a task that is, or becomes, resolved or dismissed. The `assignee` "" removes the assignee.
    `severity` overrides the reporter's, until it is set to "reported". At the time `until`, a dismissed task opens
    again; "" removes that time. `duplicateOf` is the id of another task, and requires the reason `duplicate`.
    """

    status: TaskStatus | None = None
    comment: Comment | None = None
    reason: Reason | None = None
    assignee: Annotated[str, Meta(max_length=200, pattern=ASSIGNEE)] | None = None
    severity: Literal[Severity, "reported"] | None = None
    until: Annotated[str, at_most(64)] | None = None
    duplicate_of: NonEmpty | None = None


class TaskUpdate(Decision):
    """A triage decision on one task; `links` replaces all of its links. See `Decision` for the other members."""

    links: Links | None = None


class RunStart(RequestModel):
    """The start of a run: what an agent is about to examine. Without `branch`, the run is of the main line."""

    project_type: Annotated[str, at_most(100)]
    target_url: TargetUrl | None = None
    branch: BranchName | None = None
    metadata: SentObject = NOT_SENT


LowestSeverity = Annotated[FailOn, described("The lowest severity that fails the run; `none` never fails it.")]
JudgedFindings = Annotated[
    Literal["new", "all"], described("Which findings can fail the run: `new` (not reported by the baseline) or `all`.")
]
BaselineRun = Annotated[
    NonEmpty,
    described(
        "The id of another completed run of the same project type and target. Default: the latest"
        " completed run of the main line before this one that is not partial."
    ),
]


class GateOptions(RequestModel):
    """Options of the gate, which decides whether a completed run passes; null means the default."""

    fail_on: LowestSeverity | None = None
    only: JudgedFindings | None = None
    baseline: BaselineRun | None = None


class RunUpdate(RequestModel):
    """The end of a run, or new metadata for it; at least one of `status` and `metadata` is required.

    `statusReason` requires a status; `gate`, the options of the verdict, and `resolveMissing` require `completed`.
    `resolveMissing` resolves unfinished findings that the run did not report. Each member of `metadata` replaces the
    run's member of that name; null removes it.
    """

    status: Literal["completed", "failed"] | None = None
    status_reason: Annotated[str, at_most(1000)] | None = None
    resolve_missing: bool | None = None
    gate: GateOptions | None = None
    metadata: SentObject = NOT_SENT


class ProjectTypeUpdate(RequestModel):
    """The new definition of a project type. A member that is left out gets its default, not its old value."""

    name: Name | None = None
    label: Annotated[str, at_most(200)] | None = None
    description: Annotated[str, at_most(10_000)] | None = None
    extension_schema: MaybeSchema = NOT_SENT


class ProjectTypeDefinition(ProjectTypeUpdate):
    """The definition of a project type to register."""

    name: Name


class SeverityCounts(Model):
    """The number of tasks of each severity."""

    critical: int = 0
    high: int = 0
    medium: int = 0
    low: int = 0
    info: int = 0


class StatusCounts(Model):
    """The number of tasks of each status."""

    open: int = 0
    in_progress: int = msgspec.field(default=0, name="in_progress")
    resolved: int = 0
    dismissed: int = 0


class Summary(Model):
    """The number of tasks in total, by severity and by status, as the tasks are now."""

    total: int
    by_severity: SeverityCounts
    by_status: StatusCounts


class Submitted(Model):
    """The numbers of tasks that a run created, updated, reopened, left unchanged, or resolved by `resolveMissing`."""

    created: int
    updated: int
    reopened: int
    unchanged: int
    resolved: int


class Verdict(Model):
    """The gate's verdict on a completed run. `new` counts new findings, `offenders` those that failed the run."""

    pass_: bool = msgspec.field(name="pass")
    fail_on: FailOn
    only: Literal["new", "all"]
    baseline: str | None
    new: int
    offenders: int


class Run(Model):
    """One execution of an agent. `branch` is null for the target's main line."""

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
    """A run with a summary of the tasks that it reported."""

    summary: Summary


class Claim(Model, gc=False):
    """The claim of an agent that works on a task, until a time unless it is extended."""

    id: str
    by: str
    user: str | None
    until: str


class Verification(Model, gc=False):
    """The latest verification of a task: of a success criterion, or of the whole finding if `criterion` is null."""

    outcome: Outcome
    at: str
    by: str
    user: str | None
    criterion: str | None
    commit: str | None


class Proposal(Model, gc=False):
    """A decision that was proposed and is neither accepted nor rejected yet."""

    status: Literal["dismissed", "resolved"]
    reason: Reason
    comment: str
    duplicate_of: str | None
    until: str | None
    by: str
    user: str | None
    at: str


class TaskHead(Model, gc=False):
    """A stored finding, as lists show it: without the large fields.

    `branch` is the branch that reported it first, or null once a main-line run has reported it. `reportedSeverity` is
    the reporter's severity if triage has overridden it. `etag` changes with every change of the task except an
    extension of its claim, including changes of fields that lists leave out.
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
    reported_severity: Severity | None
    until: str | None
    duplicate_of: str | None
    links: list[Link]
    verification: Verification | None
    proposal: Proposal | None
    claim: Claim | None
    etag: str


class Task(TaskHead, gc=False):
    """A stored finding with all fields."""

    description: str | None
    evidence: list[Evidence]
    remediation: list[StoredStep]
    success_criteria: list[SuccessCriterion]
    extensions: JsonObject


class TaskResult(Model, gc=False):
    """The result of one submitted task."""

    id: str
    status: TaskStatus
    external_id: str | None
    result: Literal["created", "updated", "reopened", "unchanged"]


class Submission(Model):
    """The result of a submission: the number of tasks by result, and the tasks in the order sent."""

    created: int
    updated: int
    reopened: int
    unchanged: int
    tasks: list[TaskResult]


class HistoryEntry(Model):
    """One event in a task's history. `by` is the API key's name, null for the service itself; `user` is the person
    whom the key's proxy named, if any. Only entries `severity` have `severity`, and only entries `verified` have
    `outcome` and the fields after it.
    """

    at: str
    event: TaskEvent
    by: str | None
    user: str | None
    run_id: str | None
    from_: TaskStatus | None = msgspec.field(name="from")
    to: TaskStatus | None
    reason: Reason | None
    assignee: str | None
    comment: str | None
    changed: list[str]
    severity: Severity | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    criterion: str | UnsetType | None = UNSET
    commit: str | UnsetType | None = UNSET
    evidence: list[Evidence] | UnsetType = UNSET


class History(Model):
    """One page of a task's history, oldest entry first; `next` is the link to later entries, or null."""

    history: list[HistoryEntry]
    next: str | None


class ProjectType(Model):
    """A project type without its schema."""

    id: str
    name: str
    label: str
    description: str
    created_at: str


class ProjectTypeWithSchema(ProjectType):
    """A project type; `extensionSchema` is null if extensions are not checked."""

    extension_schema: MaybeSchema


class ProjectTypes(Model):
    """All project types of the client, sorted by name."""

    project_types: list[ProjectType]


class Page(Model):
    """One page of a list. `next` is the link to the following page, or null. `page` is null if a cursor was used."""

    page: int | None
    limit: int
    total: int
    next: str | None


class RunPage(Page):
    """One page of runs."""

    runs: list[Run]


class TaskPage(Page):
    """One page of tasks without their large fields."""

    tasks: list[TaskHead]


class FullTaskPage(Page):
    """One page of tasks with all fields (`view=full`)."""

    tasks: list[Task]


class Health(Model):
    """The result of a health check: the service can read and write its database."""

    status: Literal["ok"]
    version: str
    sqlite: str | UnsetType = UNSET
    postgresql: str | UnsetType = UNSET


NoComma = Annotated[str, Meta(min_length=1, extra_json_schema=NO_COMMA)]
Moment = typing.NewType("Moment", str)  # any ISO 8601 time, converted to the API's format when it is read
Time = Annotated[Moment, Meta(extra_json_schema={"format": "date-time"})]
CommaList = Annotated[list[Value], Meta(max_length=1000)]
RepeatedParam = Annotated[tuple[Value, ...], Meta(max_length=100)]
WholeOrParts = Annotated[  # a text with commas is one of the values, besides its parts
    set[Value], Meta(max_length=1000, extra_json_schema={"uniqueItems": False})
]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class HistoryQuery(RequestModel):
    """Query parameters of a task's history: page size and cursor."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    after: Annotated[str, Meta(pattern=ENTRY_CURSOR)] | None = None


FEW_SKIPPED = 10_000  # the event loop reads a page only if it ends within this many rows of the list
FEW_RANGES = 10  # most combinations of project type and branch for the event loop; each has up to 40 index ranges


class RunQuery(RequestModel):
    """Query parameters of a list of runs: filters, and the page by its number or by a cursor."""

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
        """Whether the list reads many index ranges or skips many rows."""
        ranges = len(self.project_type or "1") * len(self.branch or "1")
        return ranges > FEW_RANGES or (self.page or 1) * self.limit > FEW_SKIPPED


class TaskFilters(RequestModel):
    """Filters of a list of tasks."""

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
    claimed: bool | None = None
    proposed: bool | None = None
    verified: CommaList[Literal[Outcome, "none"]] | None = None
    created_since: Time | None = None
    created_before: Time | None = None
    q: Annotated[str, Meta(min_length=1, max_length=500, extra_json_schema=SEARCH_TEXT)] | None = None


class TaskOrder(TaskFilters):
    """Filters, order and cursor of a list of tasks."""

    after: Annotated[str, Meta(pattern=SEVERITY_CURSOR)] | None = None
    sort: Annotated[
        Literal["-createdAt", "createdAt", "severity"],
        Meta(extra_json_schema={"x-enum-varnames": ["NEWEST_FIRST", "OLDEST_FIRST", "SEVERITY"]}),
    ] = "-createdAt"


class TaskQuery(TaskOrder):
    """Query parameters of a list of tasks."""

    page: PageNumber | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    view: Literal["default", "full"] = "default"

    @property
    def may_take_long(self) -> bool:
        """Whether the list may examine many tasks to return a few.

        It may if no index or counter covers its filters, if it merges many index ranges, or if its page is far down.
        """
        reporters, labels = len(self.run_id or ()) + len(self.branch or ()), len(self.rule or ()) + len(self.tag or ())
        unindexed: list[Any] = [self.q, self.missing_from, self.created_since, self.created_before]
        unindexed += [self.assignee, self.assigned, self.location, self.without, self.new_in]
        unindexed += [self.claimed, self.proposed, self.verified]
        if reporters or labels:
            unindexed += [self.project_type, self.target_url]
        if reporters:
            unindexed += [self.status, self.severity, self.main_line]
        is_far_down = (self.page or 1) * self.limit > FEW_SKIPPED
        many = reporters + labels > 1 or len(self.project_type or ()) > FEW_RANGES
        return many or is_far_down or any(each is not None for each in unindexed)


# The models as JSON Schemas. OpenAPI publishes them, and a request is checked against them to find all its problems.

COMPONENTS = "#/components/schemas/"
TASK_STATUSES = get_args(TaskStatus)
REASONS = get_args(Reason)
RUN_STATUSES = get_args(RunStatus)
ENUMERATIONS = {"Reason": REASONS, "RunStatus": RUN_STATUSES, "Severity": SEVERITIES, "TaskStatus": TASK_STATUSES}
MISSING_EVIDENCE = "must have at least one of: label, url, content"
REQUIRES_COMPLETED = "requires status 'completed'"
DECISION = tuple(field.encode_name for field in msgspec.structs.fields(TaskUpdate))
MISSING_DECISION = f"must have at least one of: {', '.join(DECISION[:-1])}; for one task also links"
REQUIRES_FINISHED = "requires status 'resolved' or 'dismissed'"


def schema_without(*names: str) -> Json:
    """Return the schema of an object in which all named members are missing or null."""
    return {"type": "object", "properties": {name: {"const": None} for name in names}}


# Forbidden combinations of members, which the models cannot express. `triage` checks those of a decision, too.
WITHOUT_CONTENT = schema_without("label", "url", "content")
MISSING_CHANGE = "must have at least one of: status, metadata"
WITHOUT_STATUS = "requires a status"
WITHOUT_UPDATE = schema_without("status", "metadata")
NOT_COMPLETED = {"status": {"enum": ["failed", None]}}
RESOLVED_UNCOMPLETED = {"properties": NOT_COMPLETED | {"resolveMissing": {"const": True}}}
JUDGED_UNCOMPLETED = {"properties": NOT_COMPLETED | {"gate": {"type": "object"}}}
REASON_ALONE = {"properties": {"status": {"const": None}, "statusReason": {"type": "string"}}}
WITHOUT_DECISION = schema_without(*DECISION)
UNFINISHED_FOR_A_REASON = {
    "properties": {"status": {"enum": list(UNFINISHED)}, "reason": {"type": "string"}},
    "required": ["status"],
}
# Client generators ignore `not` and so create one class for each of these models; with `anyOf` they would create three.
# A generator for Go does not support `type: null` in such rules, so they use `const` and `enum`.
RULES: dict[str, Json] = {
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


def schemas_of(models: Iterable[Any]) -> tuple[dict[Any, Any], Json]:
    """Return the JSON Schema reference to each model, and all component schemas by name.

    Each enumeration in `ENUMERATIONS` becomes a component, which replaces its copies. Patterns have Python's syntax.
    """
    listed = list(models)
    references, components = msgspec.json.schema_components(listed, ref_template=COMPONENTS + "{name}")
    text = json.dumps(components)
    for name, values in ENUMERATIONS.items():
        text = text.replace(json.dumps({"enum": sorted(values)}), json.dumps({"$ref": f"{COMPONENTS}{name}"}))
    schemas = {name: schema | RULES.get(name, {}) for name, schema in json.loads(text).items()}
    enumerations = {name: {"type": "string", "enum": list(values)} for name, values in ENUMERATIONS.items()}
    return dict(zip(listed, references, strict=True)), schemas | enumerations


# --- Optional modules: findings_features and findings_adapters, which may not be installed ---

FORMER_IDS = "findings_features.former_ids"
GATE = "findings_features.gate"
SEARCH = "findings_features.search"
SARIF = "findings_adapters.sarif"
MIGRATIONS = "findings_features.migrations"
SERVING = "findings_adapters.serving"
STREAMS = "findings_features.streams"
# Modules that extend the API, each with a pattern of the requests ("METHOD /path") that only it handles, or "".
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
    "findings_features.fixing": r"[A-Z]+ /api/v1/(claims/[^/]+|tasks/(claim|[^/]+/(comments|verifications|proposal)))",
    FORMER_IDS: "",
    GATE: r"GET /api/v1/runs/[^/]+/gate",
    "findings_features.groups": "GET /api/v1/groups",
    "findings_features.me": "GET /api/v1/me",
    "findings_features.openapi": r"GET /api/v1/openapi\.json",
    "findings_features.overview": "GET /api/v1/overview",
    "findings_features.planner": "",
    SEARCH: "",
    "findings_features.similar": r"GET /api/v1/tasks/[^/]+/similar",
    "findings_features.triage": "PATCH /api/v1/tasks",
}
OBSERVER_MODULES = {"log": "findings_features.access_log", "metrics": "findings_adapters.metrics"}  # by setting
ENGINE_MODULES = dict.fromkeys(("postgresql", "postgres"), "findings_adapters.postgres")  # by URL scheme


class Migration(Struct, frozen=True):
    """A step to the next schema version: an SQL script to run before schema.sql, and a function to run after it."""

    script: str
    fill: Callable[[Connection], None] | None = None


class Registry(Struct):
    """Extension points of the core. The `register` function of each module adds to them.

    Keys: operations by method and path, formats by media type, engines by URL scheme, migrations by the version that
    they lead to, observers by setting, page files by path ("/", or below PAGE_FOLDER). Companions are context managers
    that are open while a server runs. `refresh` updates the stored search words after an update of Unicode.
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
    find_by_former_ids: Callable[
        [Connection, SubmissionContext, Sequence[NewTask], set[str]], dict[str, StoredFinding]
    ] = lambda *_: {}
    keep_former_ids: Callable[[Connection, SubmissionContext, Mapping[int, Sequence[str]]], object] = lambda *_: None
    fast_validator: Callable[[Any, int], Callable[[Any, int], bool]] = lambda *_: lambda *_: False
    serve: Callable[[Settings, str, int, int], None] | None = None
    make_demo: Callable[[], str] = str
    observers: dict[str, Callable[[Service], object]] = {}
    companions: list[Callable[[Service], AbstractContextManager[object]]] = []
    streams: Callable[[], AbstractContextManager[object]] = nullcontext  # standard streams of commands

    def add_operations(self, *operations: Operation) -> None:
        """Register operations by their method and path."""
        self.operations.update({(each.method, each.path): each for each in operations})


REGISTRY = Registry()


@cache
def load_module(name: str) -> str:
    """Import an optional module that is installed beside this module, and register it. Do so once per process.

    Return "" on success, otherwise "NAME, which is not installed" with the name of the module, or of one that it needs.
    """
    if __name__ == "__main__":  # modules import this module by its name
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
    """Import and register all modules in `API_MODULES` that are installed."""
    for name in API_MODULES:
        load_module(name)


class Listeners(Struct):
    """Functions that the metrics and the access log register, and one that a server registers.

    `answered` functions get each request with its status, the response body's size in bytes, and the seconds it took.
    `committed` functions get the number of requests in each commit group. `write_line` writes a line of the access log.
    """

    answered: list[Callable[[ApiRequest, int, int, float], object]] = []
    committed: list[Callable[[int], object]] = []
    write_line: Callable[[str], object] | None = None


# --- Database: the interface of an engine ----------------------------------
#
# An engine provides connections to readers and writers. Code below uses only `Connection` and `Database`, and SQL that
# both SQLite and PostgreSQL accept. Other engines than SQLite are optional modules; they may open many connections.

SCHEMA_VERSION = 13
LARGE_WAL = 64 * 1024 * 1024  # bytes; the maintenance checkpoints a larger WAL
MOST_WAL = 4 * LARGE_WAL  # bytes; slow reads checkpoint a larger WAL before they start
ENGINE_ERRORS = (sqlite3.Error, Busy, StorageFull)  # raised by engines when an operation fails


def schema_path() -> Path:
    """Return the path of schema.sql: in findings_service_data (installed wheel) or beside this module (checkout).

    In site-packages, a file of that name beside this module could belong to another distribution.
    """
    here = Path(__file__).resolve().parent
    packaged = here / "findings_service_data" / "schema.sql"
    return packaged if packaged.exists() else here / "schema.sql"


BRANCHES = " branches"  # suffix of counter scopes for all branches except the main line
TEXT_SCOPES = ("tasks rule:", "tasks tag:")  # prefixes of counter scopes that contain text of a finding
CounterKey = tuple[str, str, str, int]  # client, scope, status, severity rank
UseKey = tuple[str, str, str | int]  # client, table, id of the key or seq of the run
ELAPSED_FACTOR = 10  # elapsed time that a statement may take, in multiples of its processor time


class Cursor(Protocol):
    """Result of a statement. Its rows are tuples of `str`, `int` and None."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None after the last one."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining rows."""


class CounterBuffer(Struct):
    """Buffer of counter changes, written once per transaction, even if several requests share the transaction."""

    changes: Counter[CounterKey] = msgspec.field(default_factory=Counter)

    def add(self, client_id: str, scopes: Iterable[str], status: str, severity: int, n: int) -> None:
        """Buffer the addition of `n` to a client's counter of this status and severity rank in each scope."""
        for scope in scopes:
            self.changes[client_id, scope, status, severity] += n

    def select(self, client_id: str, scopes: Container[str]) -> list[tuple[str, str, int, int]]:
        """Return the buffered changes of a client's counters in some scopes, as tuples (scope, status, severity, n)."""
        return [(*key[1:], n) for key, n in self.changes.items() if key[0] == client_id and key[1] in scopes]

    def write(self, connection: Connection) -> None:
        """Write and clear the changes. Delete counters that fell to 0: of rules and tags, or all if `erases` is set."""
        erases = connection.transaction.erases
        connection.executemany(
            """INSERT INTO counters (client_id, scope, status, severity, n) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT (client_id, scope, status, severity) DO UPDATE SET n = counters.n + excluded.n""",
            [(*key, n) for key, n in self.changes.items() if n],
        )
        reduced = {key[:2] for key, n in self.changes.items() if n < 0 and (erases or key[1].startswith(TEXT_SCOPES))}
        if reduced:
            connection.executemany(
                "DELETE FROM counters WHERE client_id = ? AND scope IN (?, ?) AND n = 0",
                [(client_id, scope, scope + BRANCHES) for client_id, scope in sorted(reduced)],
            )
        self.changes.clear()


class Transaction(Struct):
    """State of an open transaction: counter changes to write, and whether deleted data must also be erased on disk."""

    counters: CounterBuffer = msgspec.field(default_factory=CounterBuffer)
    erases: bool = False


class Connection(ABC):
    """A connection to a database.

    Statements are SQL that both SQLite and PostgreSQL accept, with a `?` for each parameter. Each names the client of
    every row that it reads or writes. `transaction` is the state of the open transaction, if the connection writes.
    """

    transaction: Transaction
    is_late: Callable[[], bool] = bool  # returns True once the time of `limited` is over

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open. An engine may end one by itself, for example on a full disk."""

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Execute a statement and return its result."""

    @abstractmethod
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        """Execute a statement that returns no rows, once for each sequence of parameters."""

    def stream(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Any]:
        """Return an iterable of a statement's rows, which are read as needed, so that large rows take little memory."""
        return self.execute(sql, parameters)

    @abstractmethod
    def take_seqs(self, client_id: str, count: int, newest: int) -> range:
        """Return consecutive row numbers (`seq`) for a client's new tasks; no other writer can use the same ones.

        :param newest: the seq of the client's newest task when the request began, or 0 if it had no task.
        """

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Limit the processor time of the block, in seconds. The engine interrupts a statement at the limit.

        Elapsed time is limited to ten times as much, so that lists do not fail only because the machine is busy.

        :raises TimeoutError: if a statement reaches one of the limits.
        """
        cpu_deadline, deadline = time.thread_time() + seconds, time.monotonic() + ELAPSED_FACTOR * seconds
        self.is_late = lambda: time.thread_time() > cpu_deadline or time.monotonic() > deadline
        try:
            yield
        finally:
            self.is_late = bool

    def merged(self, ranges: Sequence[str], order: str, most: int) -> str:  # noqa: ARG002 - for engines that sort
        """Return SQL that merges index ranges without duplicates. SQLite reads only as many rows of each as it needs.

        :param ranges: SELECT statements, each with a column `seq` and the columns that `order` names.
        :param most: the largest number of rows that are needed from one range.
        """
        return " UNION ".join(ranges)

    def one_of(self, statement: str) -> str:
        """Return the end of an SQL condition: a value is in a one-column statement's result. That runs once."""
        return f"IN ({statement})"

    @abstractmethod
    def integrity_errors(self) -> Iterator[str]:
        """Yield the faults that the engine finds in the database, and the missing parts of the schema."""


CLOCK_JUMP, CLOCK_DISTRUST = 86_400.0, 3600.0  # seconds


def seconds_ahead() -> float:
    """Return the system clock minus the monotonic clock, in seconds. It changes if the system clock jumps."""
    return datetime.fromisoformat(timestamp()).timestamp() - time.monotonic()


class Database(ABC):
    """A database of the service. Its methods are thread-safe.

    They raise a `ServiceError`, an engine error that `known_error` maps, or `DatabaseUnusable`. `version` is the number
    of commits of this process; `name` is the path as given, or the URL without its password; `folder` is for temporary
    files (None: the system's folder). `threads` is how many threads may use a connection of their own at the same time;
    0 means that all share a reader and a writer, and must not hold either for long. `advice` has a text for each
    command that works only with SQLite: how to do the same with this engine. `engine` is its name and its version.
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
        self._trusted_from = 0.0  # in terms of time.monotonic()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the connections of a garbage-collected application, so that another one in this process can checkpoint.

        At interpreter shutdown, do nothing: names of this module may be gone, and connections close by themselves.
        """
        if hasattr(self, "settings") and not is_finalizing():
            self.disconnect()

    def trusts_clock(self) -> bool:
        """Return False, for an hour, if the system clock jumped ahead by more than a day between two calls; else True.

        Suspending the machine for as long counts as a jump too, because Linux's monotonic clock stops meanwhile.
        """
        ahead = seconds_ahead()
        if ahead - self._ahead > CLOCK_JUMP:
            self._trusted_from = time.monotonic() + CLOCK_DISTRUST
            log.warning(
                "the system clock jumped ahead by %.1f days; for an hour, no run is set to failed or deleted by age",
                (ahead - self._ahead) / UNITS["d"],
            )
        self._ahead = ahead
        return time.monotonic() >= self._trusted_from

    @property
    def location(self) -> str:
        """The absolute path of the database file, or the URL of the database without its password."""
        return self.name

    @abstractmethod
    def absence(self) -> str:
        """Return an error message if there is no database with the current schema, else "". Nothing is created.

        :raises DatabaseUnusable: if it cannot be opened, or has a schema that this program does not support.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Acquire a connection for reading, for the length of the block."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """Acquire a connection for reading; all statements of the block see the same snapshot."""

    def separate_reader(self, lane: str = "read") -> AbstractContextManager[Connection]:  # noqa: ARG002 - only SQLite has lanes
        """Open a `snapshot` for a slow read, on a connection of its own. Only reads of the same lane wait for it."""
        return self.snapshot()

    @abstractmethod
    def probe(self) -> None:
        """Check that writing is possible, without storing anything, in at most `HEALTH_TIME` seconds."""

    @abstractmethod
    def transaction(
        self, client_id: str | None = None, patience: float | None = None
    ) -> AbstractContextManager[Connection]:
        """Run a transaction: when the block ends, all of its statements are durable, or none is stored.

        :param client_id: the client whose rows are written; its other writers wait. None if the rows are of no client.
        :param patience: seconds to wait for a lock on the database or the client; None for the configured timeout.
        """

    def record_use(self, client_id: str, table: str, key: str | int, at: str) -> None:
        """Record the time of a key's or run's use. A later transaction stores it, so that reads need not write."""
        with self._uses_lock:
            self.last_uses[client_id, table, key] = at

    def write_uses(self, patience: float | None = None) -> None:
        """Write the uses that `record_use` recorded, if any, in one transaction for each client."""
        for client_id in sorted({key[0] for key in list(self.last_uses)}):
            with self.transaction(client_id, patience):
                pass

    @abstractmethod
    def owns_maintenance(self) -> bool:
        """Return whether this process, of all that have the database open, is the one that does the maintenance."""

    def run_maintenance(self) -> None:  # noqa: B027 - not every engine needs it
        """Run the periodic maintenance that the engine needs, if any."""

    def close(self) -> None:
        """Write the recorded uses of keys and runs, and close the connections. Using the database opens new ones."""
        try:
            self.write_uses()
        except Exception as error:
            log.warning("cannot store the times of the last requests of keys and runs: %s", error)
        self.disconnect()

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connections, if any are open; the next use of this database opens new ones."""


# --- SQLite, the built-in engine -------------------------------------------
#
# A process has two connections to its file, besides one for each slow read. One thread at a time uses each of the two:
# the *writer* for a transaction, the *reader* for a read. Only the writer writes and checkpoints, which avoids SQLite's
# WAL-reset bug. The reader cannot write; it sees the latest commit. So no read waits for a write, for its fsync, or for
# another process's lock. Under `serve`, the event loop uses the reader; the writer thread writes, and does the
# maintenance and its reads; a request with a long check has a thread of its own, which uses both in turn. Under other
# WSGI servers, every thread uses both. A thread holds both at the same time only to open and to close them.


CLOCK_STEPS = 4_000  # instructions of SQLite's virtual machine between clock checks; a page of fifty rows takes fewer


class SQLiteConnection(sqlite3.Connection, Connection):
    """A connection to an SQLite file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.transaction = Transaction()

    def take_seqs(self, client_id: str, count: int, newest: int) -> range:  # noqa: ARG002 - one sequence per file
        """Return row numbers (`seq`) for new tasks, higher than those of all stored tasks of all clients."""
        (first,) = self.execute("SELECT COALESCE(MAX(seq), 0) + 1 FROM tasks").fetchone()
        return range(first, first + count)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Interrupt the statement that runs when the time is over. :raises TimeoutError: if one was interrupted.

        A short read is never interrupted, however slow the disk is: it takes fewer than `CLOCK_STEPS` instructions
        (https://www.sqlite.org/c3ref/progress_handler.html).
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
        """Yield the faults that SQLite finds in the file, and the missing parts of the schema."""
        for (fault,) in self.execute("PRAGMA integrity_check"):
            if fault != "ok":
                yield f"integrity: {fault}"
        for table, row, parent, _ in self.execute("PRAGMA foreign_key_check"):
            yield f"foreign key: row {row} of {table} has no parent in {parent}"
        if user_version(self) != SCHEMA_VERSION:  # a backup may have an older schema
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


def require_own_file(connection: SQLiteConnection, path: str) -> None:
    """Check that a file is empty or a database of this service. :raises DatabaseUnusable: if it is neither."""
    # In this order: another process may be creating the schema, which it commits together with the application id.
    filled = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if filled and not ours:
        raise DatabaseUnusable(f"{path} is another program's SQLite database; choose another file")


def require_version(name: str, version: int) -> None:
    """Check that a schema version is this program's, one that it can migrate, or 0 (an empty file).

    :raises DatabaseUnusable: if it is another version.
    """
    if version in (0, SCHEMA_VERSION):
        return
    message = f"{name} has schema version {version}"
    if version > SCHEMA_VERSION:
        raise DatabaseUnusable(f"{message}, newer than this program's {SCHEMA_VERSION}; update findings-service")
    if missing := load_module(MIGRATIONS):
        raise DatabaseUnusable(f"{message}; migrating it to {SCHEMA_VERSION} needs {missing}")
    if version + 1 not in REGISTRY.migrations:
        raise DatabaseUnusable(
            f"{message}, too old for this program to migrate; open it with the program that created it, or choose"
            " another database"
        )


def schema_message(name: str, version: int) -> str:
    """Return a message if a database has no schema or an older one, else "". Raise for unsupported versions."""
    if not version:
        return f"{name} is empty; run `findings-service serve` to create the database in it"
    require_version(name, version)
    message = f"{name} has schema version {version}; run `findings-service serve` to migrate it to {SCHEMA_VERSION}"
    return "" if version == SCHEMA_VERSION else message


def statements_of(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script, in which each statement must begin on a new line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def prepare_schema(connection: SQLiteConnection, path: str) -> None:
    """Create the schema in a new file, or migrate an older one, in one transaction."""
    if user_version(connection) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    version = user_version(connection)  # another process may have changed it meanwhile
    require_version(path, version)
    steps = migrations_from(path, version)
    for statement in statements_of("\n".join([*(step.script for step in steps), schema_path().read_text("utf-8")])):
        connection.execute(statement)
    fill(connection, steps)
    connection.execute("COMMIT")


def migrations_from(name: str, version: int) -> list[Migration]:
    """Return the migrations that follow a schema version (none for 0), and log a warning if there are any."""
    steps = [REGISTRY.migrations[each] for each in range(version + 1, SCHEMA_VERSION + 1)] if version else []
    if steps:  # no request is handled until they are done
        message = "%s has schema version %d and is being migrated to %d, which may take a while"
        log.warning(message, name, version, SCHEMA_VERSION)
    return steps


def fill(connection: Connection, steps: Iterable[Migration]) -> None:
    """Finish creating or migrating a schema: run the steps' functions, change all ETags and ensure an epoch."""
    for step in steps:
        if step.fill:
            step.fill(connection)
    for client_id in select_clients(connection):  # an ETag from before the migration must not match
        raise_revision(connection, client_id)
    connection.transaction.counters.write(connection)
    if not connection.execute("SELECT 1 FROM epochs").fetchone():
        begin_epoch(connection)


def begin_epoch(connection: Connection) -> None:
    """Start a new epoch, which invalidates earlier event cursors: a restored or copied database needs one."""
    connection.execute(
        "INSERT INTO epochs (id, epoch) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch",
        (secrets.token_hex(8),),
    )


READER_CACHE_PARTS = 8  # the reader gets 1/8 of the cache, because every commit empties its part
BUSY_SLICE = 0.02  # seconds that one attempt may block inside SQLite; longer waits are retries in Python


def connect(settings: Settings, *, read_only: bool = False) -> SQLiteConnection:
    """Open the database file, and set the pragmas for durability, secure deletion and no automatic checkpoints.

    Only a connection that writes creates or migrates the schema. On macOS, an fsync leaves data in the disk's own
    memory unless it is a full one (https://www.sqlite.org/pragma.html#pragma_fullfsync).
    """
    file_id = identity(settings.db)
    connection = sqlite3.connect(
        f"{Path(settings.db).absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SLICE,
        isolation_level=None,
        check_same_thread=False,
        factory=SQLiteConnection,
        cached_statements=64,  # the longest, those of lists, take 0.1 MB each
    )
    try:
        require_own_file(connection, settings.db)  # before WAL mode, which is written into the file
        if identity(settings.db) != file_id:  # replaced by `restore`, which cannot lock a file that is open here
            connection.close()
            return connect(settings, read_only=read_only)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            require_version(settings.db, user_version(connection))
            connection.execute("PRAGMA journal_mode = WAL")
        reader_cache = settings.cache // READER_CACHE_PARTS
        connection.executescript(
            f"""PRAGMA synchronous = {settings.synchronous};
                PRAGMA fullfsync = ON;
                PRAGMA checkpoint_fullfsync = ON;
                PRAGMA secure_delete = ON;
                PRAGMA wal_autocheckpoint = 0;
                PRAGMA journal_size_limit = {LARGE_WAL};
                PRAGMA cache_size = -{(reader_cache if read_only else settings.cache - reader_cache) // 1024}"""
        )
        if not read_only:
            prepare_schema(connection, settings.db)
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def is_busy(error: BaseException) -> bool:
    """Return whether an error means that the database is locked or busy, so that a retry may succeed."""
    return isinstance(known_error(error), Busy)


def retry_while_busy(work: Callable[[], Value], patience: float) -> Value:
    """Call `work` and return its result. While SQLite reports a lock, call it again, for at most `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_SLICE)


def unusable(path: str, error: Exception) -> DatabaseUnusable:
    """Return an error that says why a database cannot be used: the missing file permission if any, else `error`.

    SQLite itself reports only "unable to open database file". It creates files beside the database even to read it.
    """
    cause = getattr(error, "strerror", None) or error
    folder = Path(path).absolute().parent
    for each, mode, action in (
        (path, os.W_OK, "write"),
        (path, os.R_OK, "read"),
        (folder, os.W_OK | os.X_OK, "write in"),
    ):
        if os.access(each, os.F_OK) and not os.access(each, mode):
            cause = f"this user may not {action} {each}"
    return DatabaseUnusable(f"{path} cannot be used: {cause}")


def is_nonempty_file(path: str) -> bool:
    """Return whether a file exists and is not empty."""
    with suppress(OSError):
        return Path(path).stat().st_size > 0
    return False


def open_database(settings: Settings, *, read_only: bool = False) -> SQLiteConnection:
    """Open a connection to the database that the settings name.

    Unless `read_only`, create a missing file with mode 0600; its WAL gets the same mode. The file is not created beside
    the WAL or journal of a database that was moved: SQLite would delete the log, or apply it to the new file.

    :raises DatabaseUnusable: if the file cannot be used for any reason; the message has one line.
    """
    path = settings.db
    if sqlite3.sqlite_version_info < (3, 37):  # STRICT tables
        raise DatabaseUnusable(f"Python's SQLite is {sqlite3.sqlite_version}; 3.37 or newer is needed")
    try:
        if not read_only:
            logs = [*filter(is_nonempty_file, (f"{os.path.realpath(path)}{suffix}" for suffix in ("-wal", "-journal")))]
            if logs and not os.path.lexists(path):  # in this order: another process may be creating both, the log last
                raise DatabaseUnusable(
                    f"{path} is missing, but its log {logs[0]} exists; put the database back, or remove the log"
                )
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return retry_while_busy(partial(connect, settings, read_only=read_only), settings.busy_timeout)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, which identify it, or None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - each request does this, and a Path would take five times as long
    except OSError:
        return None
    return found.st_dev, found.st_ino


CHECKPOINT_LOCK = "-checkpointer"  # suffix of the lock file beside the database
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of a file system without locks


class CheckpointLock:
    """Lock that only the process that checkpoints a database may hold.

    SQLite before 3.51.3 can corrupt a file if two connections write and checkpoint at the same instant
    (https://www.sqlite.org/wal.html#walresetbug). The system releases the lock even if its holder crashes. It is a file
    of its own, because closing any descriptor of the database would drop SQLite's locks on the database
    (https://www.sqlite.org/howtocorrupt.html, 2.2). The file is never removed, because two processes could then hold a
    lock each. On Windows, and on a file system without locks, every process checkpoints.
    """

    def __init__(self, db: str) -> None:
        self.path = f"{os.path.realpath(db)}{CHECKPOINT_LOCK}"
        self.held = False
        self._file: int | None = None

    def acquire(self) -> bool:
        """Acquire the lock unless another process holds it, and return whether this one holds it now."""
        try:
            if fcntl is not None and not self.held:
                if self._file is None:
                    self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
                    with suppress(OSError):  # in case root created it; SQLite does the same for the WAL
                        owner = Path(self.path.removesuffix(CHECKPOINT_LOCK)).stat()
                        os.fchown(self._file, owner.st_uid, owner.st_gid)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except OSError as error:
            self.held = error.errno in NO_LOCKS
        return self.held

    def release(self) -> None:
        """Release the lock, so that another process can acquire it."""
        if self._file is not None:
            os.close(self._file)
        self._file, self.held = None, False


# Pages of the WAL after which a commit checkpoints. A checkpoint takes three more fsyncs; it writes a page once even if
# the WAL has it several times. A larger WAL takes longer to read after a crash, and its growth makes each fsync slower.
CHECKPOINT_PAGES = 12_000
HEALTH_TIME = 2.0  # seconds that a health check may take


class SQLiteDatabase(Database):
    """A process's two connections to its file, and the transactions on them.

    Of all processes that have the file open, only one holds the `checkpoint_lock`: it checkpoints.
    """

    engine = "SQLite", sqlite3.sqlite_version

    def __init__(self, settings: Settings) -> None:
        self.checkpoint_lock = CheckpointLock(settings.db)
        self._reading, self._writing = threading.RLock(), threading.RLock()  # acquired in this order
        self._lanes = {lane: threading.Lock() for lane in ("read", "export", "webhook", "maintenance")}
        self._reader: SQLiteConnection | None = None
        self._writer: SQLiteConnection | None = None  # open whenever the reader is open
        self._is_writing = False  # whether a transaction, or a checkpoint, of this process is in progress
        self._process = 0  # id of the process that opened the connections
        self._file: tuple[int, int] | None = None
        self._was_replaced = False  # whether the file was found to be moved, replaced or deleted
        self._truncated_at: object = None  # `data_version` when the WAL was last truncated completely
        absolute = Path(settings.db).absolute()  # the working directory may change
        super().__init__(replace(settings, db=str(absolute)), settings.db, absolute.parent)

    @property
    def location(self) -> str:
        """The absolute path of the file, with symbolic links resolved."""
        return os.path.realpath(self.settings.db)

    def absence(self) -> str:
        """Return a message if the file is missing or does not have the current schema, else ""."""
        if not Path(self.settings.db).exists():
            return f"there is no file {self.name}"
        with closing(open_database(self.settings, read_only=True)) as connection:
            return schema_message(self.name, user_version(connection))

    # Reading

    @contextmanager
    def reading(self) -> Iterator[SQLiteConnection]:
        """Acquire the reader. :raises DatabaseUnusable: if the file cannot be opened, or is no longer at its path."""
        self._require_own()
        with self._reading:
            if self._reader is None:  # after the writer, which closes last and so checkpoints
                if self._writer is None:  # if it is open, a thread may be using it, and no read waits for that
                    with self.maintaining():
                        pass
                self._require_file()
                self._reader = open_database(self.settings, read_only=True)
            self._require_file()
            yield self._reader

    @contextmanager
    def snapshot(self) -> Iterator[SQLiteConnection]:
        """Acquire the reader; all statements of the block see the same snapshot."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.rollback()  # does nothing if a disk error has ended it

    @contextmanager
    def separate_reader(self, lane: str = "read") -> Iterator[SQLiteConnection]:
        """Open a separate connection with a snapshot for a slow read; each lane has at most one at a time."""
        with self.reading():
            pass  # opens both connections first: the first to open creates files, the last to close checkpoints
        with self._lanes[lane]:
            self._checkpoint_large_wal(lane)
            with closing(open_database(self.settings, read_only=True)) as connection:
                self._require_file()
                connection.execute("BEGIN")
                yield connection

    def _checkpoint_large_wal(self, lane: str) -> None:
        """Checkpoint a WAL larger than `MOST_WAL`, if this process has the lock for that and no other slow read runs.

        Overlapping slow reads would block a checkpoint forever. Only an export waits for other slow reads to end.
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
        client_id: str | None = None,  # noqa: ARG002 - all clients share one writer
        patience: float | None = None,
    ) -> Iterator[SQLiteConnection]:
        """Run a transaction on the writer: all of its statements are stored, or none.

        It uses BEGIN IMMEDIATE, because a deferred transaction that turns from reading to writing fails at once if
        another process has written in between (https://www.sqlite.org/isolation.html).

        :param patience: seconds to wait for other threads and other processes; None for `busy_timeout`.
        :raises Busy: if another thread writes for longer. :raises sqlite3.OperationalError: if another process writes.
        :raises DatabaseUnusable: if the file cannot be opened, or is no longer at its path.
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
                connection.rollback()  # does nothing if SQLite has rolled back, as on a full disk
                raise
            finally:
                connection.transaction = Transaction()

    def probe(self) -> None:
        """Begin a write transaction and roll it back, unless this process is writing already."""
        self._require_file()
        until = time.monotonic() + HEALTH_TIME
        while not self._is_writing:
            try:
                with self.maintaining(BUSY_SLICE) as connection:
                    retry_while_busy(partial(connection.execute, "BEGIN IMMEDIATE"), until - time.monotonic())
                    try:
                        connection.execute("UPDATE clients SET id = id WHERE 0")  # fails if the file is read-only
                    finally:
                        connection.rollback()
                return
            except Busy:
                if time.monotonic() > until:
                    raise

    # Maintenance

    @contextmanager
    def maintaining(self, patience: float = -1) -> Iterator[SQLiteConnection]:
        """Acquire the writer without beginning a transaction. :raises Busy: if another thread keeps it.

        :param patience: seconds to wait while another thread has it; -1 to wait without a limit.
        """
        self._require_own()
        if not self._writing.acquire(timeout=patience):
            raise Busy("Other requests have been writing for too long")
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
        """Return whether this process is the one that checkpoints."""
        return self.checkpoint_lock.held

    def run_maintenance(self) -> None:
        """Checkpoint the WAL if it is large or may hold deleted data, unless another process checkpoints.

        With secure_delete, SQLite overwrites deleted data in the file with zeros; the WAL holds it until it is
        truncated. It is not known whether other processes deleted anything, only that they wrote. If another thread is
        writing, nothing is done until the next call, so that no read of an embedding application waits for a write.
        """
        with suppress(sqlite3.Error, OSError, DatabaseUnusable, Busy), self.maintaining(BUSY_SLICE) as connection:
            if not self.checkpoint_lock.acquire():
                return
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            (written,) = connection.execute("PRAGMA data_version").fetchone()  # changes when another connection writes
            if written != self._truncated_at or self.wal_size() > LARGE_WAL:
                self._is_writing = True
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._truncated_at = None if busy else written  # a reader still uses the WAL

    def wal_size(self) -> int:
        """Return the size of the WAL in bytes. If the path is a link, the WAL is beside the link's target."""
        return Path(f"{self.location}-wal").stat().st_size

    # Opening and closing

    def _require_own(self) -> None:
        """Check that this process opened the connections: neither they nor locks of threads survive a fork.

        :raises DatabaseUnusable: if the process was forked since then (https://www.sqlite.org/howtocorrupt.html, 2.6).
        """
        if self._writer is not None and self._process != os.getpid():
            raise DatabaseUnusable(
                f"the process was forked while it had {self.name} open; fork before the first request, or call"
                " create_app after the fork"
            )

    def _require_file(self) -> None:
        """Raise `DatabaseUnusable` if the file was moved, replaced or deleted since it was opened, until a restart.

        SQLite itself neither checkpoints nor removes its files if another file is at the path.
        """
        if not self._was_replaced and self._file is not None and identity(self.settings.db) != self._file:
            self._was_replaced = True
            log.error("%r was moved, replaced or deleted: every request is refused until a restart", self.settings.db)
        if self._was_replaced:
            raise DatabaseUnusable(
                f"{self.name} was moved, replaced or deleted while the service had it open; stop the service, put"
                " back both the file and its -wal file, and start the service again"
            )

    def disconnect(self) -> None:
        """Close the connections, if any are open. SQLite checkpoints when the last connection to the file closes.

        It does so only if the file is at its path (https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html,
        SQLITE_FCNTL_HAS_MOVED).
        """
        if self._process != os.getpid():  # closing in a forked process would drop locks of its parent
            return
        with self._reading, self._writing:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
            self.checkpoint_lock.release()
            self._truncated_at = None


def database_for(settings: Settings) -> Database:
    """Return the database that the settings name, without opening it.

    :raises ConfigurationError: if the module or a package of its engine is not installed.
    """
    if not (scheme := scheme_of(settings.db)):
        return SQLiteDatabase(settings)
    if missing := load_module(ENGINE_MODULES[scheme]):
        raise ConfigurationError(f"a {scheme}:// database needs {missing}")
    return REGISTRY.engines[scheme](settings)


def write_last_uses(connection: Connection, last_uses: Mapping[UseKey, str]) -> None:
    """Store the times at which API keys and runs were last used, in an open transaction."""
    for table, column in (("api_keys", "id"), ("runs", "seq")):
        uses = [(at, client_id, key) for (client_id, used, key), at in last_uses.items() if used == table]
        if uses:
            connection.executemany(f"UPDATE {table} SET last_used_at = ? WHERE client_id = ? AND {column} = ?", uses)


# --- Extension validation: schemas that clients write, under a deadline ----
#
# jsonschema validates. Clients write both the schema and the value, so a check has a deadline and a memory limit:
# - Every keyword first compares the clock with the deadline, and the stack depth with a limit.
# - `pattern` and `patternProperties` search with `regex`, which has a timeout; Python's `re` cannot be interrupted.
# - `uniqueItems` takes linear time here, and quadratic time in jsonschema; `anyOf` and `oneOf` do not collect errors.
# - `required`, `dependencies`, `additionalProperties` and `unevaluated…` report the path of the member, not its object.
# All other keywords are jsonschema's; the limits on the size of bodies and schemas bound their time.
# The first check that needs jsonschema imports it: that takes as long as a sixth of the start of the service.

MAX_TASK_PROBLEMS = 100  # reported for one task at most
CACHED_SCHEMA = 8 * KIB  # characters; longer schemas are not cached. A character takes up to 160 bytes, mostly 20
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def schema_error(message: str, path: Iterable[str | int] = ()) -> ValidationError:
    """Return the jsonschema `ValidationError` of a keyword."""
    from jsonschema import ValidationError

    return ValidationError(message, path=path)


class OutOfTime(Exception):
    """Exception that stops a check at its deadline."""


EXIT_EXCEPTIONS = (KeyboardInterrupt, SystemExit)


class Clock(threading.local):
    """Deadline of the check that the current thread runs, in seconds of the monotonic clock."""

    deadline: float = float("inf")


CLOCK = Clock()


def tick() -> None:
    """Compare the clock with this thread's deadline. :raises OutOfTime: if the deadline has passed."""
    if time.monotonic() > CLOCK.deadline:
        raise OutOfTime


class TimeLimit:  # not contextlib's: since Python 3.12 that leaves exceptions in a reference cycle
    """Context manager that limits a check to some seconds. An earlier deadline of an outer limit still holds."""

    def __init__(self, seconds: float) -> None:
        self.outer, self.end = CLOCK.deadline, time.monotonic() + seconds

    def __enter__(self) -> None:
        CLOCK.deadline = min(self.end, self.outer)

    def __exit__(self, *_: object) -> None:
        CLOCK.deadline = self.outer


PATTERN_TOKEN = regex.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", regex.DOTALL)
SET_PART = 80  # characters of a character set that cost as much as one other part
PATTERN_COMMENT = regex.compile(r"\(\?(?:#|[A-Za-z0-9-]*x)")


def pattern_cost(pattern: str, bound: str = "least") -> int:
    """Return the cost of compiling a regular expression: the number of its parts, with repetitions written out.

    :param bound: the number in `{2,5}` that counts: "least" (2, as in the package `regex`) or "most" (5, as in Rust).
    """
    tokens = list(PATTERN_TOKEN.finditer(pattern))
    times = {token: int(token[bound] or token["least"]) for token in tokens if token["least"]}
    if PATTERN_COMMENT.search(pattern):  # a parenthesis may be part of a comment: assume the worst
        return len(tokens) * math.prod(max(1, number) for number in times.values())
    totals, last = [0], 0  # costs of the open groups, the whole pattern first; cost of the last item
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
PATTERN_COST = 10_000  # parts with all repetitions written out; compiling cannot be interrupted
RECURSION = regex.compile(r"\(\?(?:R|\d|&|P>)")  # recursion takes a hundred megabytes for a long text
PATTERN_GROUP = regex.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\((?![?*])|\(\?P?<\w+>)", regex.DOTALL)


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a client's pattern, without capturing groups if it has no references to them.

    For each group, `regex` records every match: two hundred megabytes for a long text. The cache of `regex` is emptied:
    it would keep five hundred patterns of up to 8 MB, and the texts even of patterns that it does not cache.

    :raises ValueError: if the pattern is invalid or too expensive; the message says why.
    """
    if len(pattern) > PATTERN_LENGTH:
        raise ValueError(f"must have at most {PATTERN_LENGTH:,} characters")
    if pattern_cost(pattern) > PATTERN_COST:
        raise ValueError("has too many repetitions in total; lower the numbers in braces")
    if RECURSION.search(pattern):
        raise ValueError("must not be recursive, as with (?R) and (?1)")
    try:
        compiled = regex.compile(pattern, cache_pattern=False)
        groups = sum(token["group"] is not None for token in PATTERN_GROUP.finditer(pattern))
        if compiled.groups and groups == compiled.groups and not PATTERN_COMMENT.search(pattern):
            plain = PATTERN_GROUP.sub(lambda token: "(?:" if token["group"] else token[0], pattern)
            with suppress(regex.error, RecursionError):
                compiled = regex.compile(plain, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    finally:
        regex.purge()
    return compiled


PATTERN_CACHE: dict[str, tuple[regex.Pattern[str], int]] = {}  # compiled patterns with their costs
PATTERN_CACHE_COST = 30_000  # total cost of the cached patterns at most; a part takes up to 800 bytes
PATTERN_BASE = 80  # parts; fixed cost of a pattern, with the 64 KiB that it keeps from short searches
GROUPS_BASE = 800  # parts; fixed cost of a pattern with capturing groups


def cached_pattern(pattern: str) -> regex.Pattern[str]:
    """Return the compiled form of a client's pattern, and cache it. If it does not fit, the cache is emptied first."""
    if found := PATTERN_CACHE.get(pattern):
        return found[0]
    compiled = compile_pattern(pattern)
    cost = pattern_cost(pattern) + (GROUPS_BASE if compiled.groups else PATTERN_BASE)
    if sum(each for _, each in [*PATTERN_CACHE.values()]) + cost > PATTERN_CACHE_COST:
        PATTERN_CACHE.clear()
    PATTERN_CACHE[pattern] = compiled, cost
    return compiled


# Maximum of a pattern's characters times those of the searched text. One step of a search, such as a repeated set,
# cannot be interrupted, and takes up to 0.2 s at this maximum.
PATTERN_WORK = 5_000_000


def matches(pattern: str, text: str) -> bool:
    r"""Search a text for a client's pattern, which may contain \p{…}. Return True if it is found.

    The first search, of at most a millisecond, keeps the GIL: a thread that keeps releasing it gets it back before any
    other wakes up, and so blocks the others for seconds. The second releases the GIL, and compiles the pattern again,
    because a compiled pattern keeps the memory of its searches. :raises OutOfTime: if it takes or would take too long.
    """
    left = min(CLOCK.deadline - time.monotonic(), 3600.0)
    if left <= 0 or (len(pattern) * len(text) > PATTERN_WORK and pattern not in PATTERNS):
        raise OutOfTime
    with suppress(TimeoutError):
        return bool(cached_pattern(pattern).search(text, timeout=min(left, 0.001), concurrent=False))
    try:
        return bool(compile_pattern(pattern).search(text, timeout=left, concurrent=True))
    except TimeoutError:
        raise OutOfTime from None


def hashable(value: Any) -> Any:
    """Return a hashable form of a JSON value. Equal values have equal forms: 1 equals 1.0, but not true."""
    tick()
    if isinstance(value, dict):
        return ("object", frozenset((name, hashable(member)) for name, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(hashable, value)))
    return ("boolean", value) if isinstance(value, bool) else value


class EvaluationProbe(Struct, frozen=True):
    """Wrapper of a value. For it, keywords yield the members of the value that they evaluate, instead of errors."""

    value: Any


def is_valid(validator: Any, schema: Any, instance: Any) -> bool:
    """Return True if a value is valid against a subschema."""
    for _ in validator.descend(instance, schema):
        return False
    return True


def validate_value(keyword: str, validator: Any, rule: Any, instance: Any, _: Any) -> Iterator[Any]:
    """Yield the errors that the keyword `pattern`, `uniqueItems`, `anyOf` or `oneOf` finds in a value."""
    match keyword:
        case "pattern":
            if isinstance(instance, str) and not matches(rule, instance):
                yield schema_error(f"{instance!r} does not match {rule!r}")
        case "uniqueItems":
            if rule and isinstance(instance, list) and len(set(map(hashable, instance))) < len(instance):
                yield schema_error(f"{instance!r} has non-unique elements")
        case "anyOf":  # for a value other than null with one choice besides null, report the errors by that choice
            possible = [each for each in rule if instance is None or each != {"type": "null"}]
            if len(possible) == 1:
                yield from validator.descend(instance, possible[0])
                return
            for each in possible:
                for _ in validator.descend(instance, each):
                    break
                else:
                    return
            yield schema_error(f"{instance!r} is not valid under any of the given schemas")
        case "oneOf":
            matching = 0
            for each in rule:
                matching += is_valid(validator, each, instance)
            if matching != 1:
                words = f"valid under {matching}" if matching else "not valid under any"
                yield schema_error(f"{instance!r} is {words} of the given schemas; must be valid under exactly one")


def validate_members(keyword: str, validator: Any, rule: Any, instance: Any, _: Any) -> Iterator[Any]:
    """Yield the errors of an object by a keyword about members with certain names, such as `required`."""
    if not isinstance(instance, dict):
        return
    match keyword:
        case "required":
            for name in rule:
                if name not in instance:
                    yield schema_error(f"{name!r} is a required property", path=[name])
        case "patternProperties":
            for pattern, name in itertools.product(rule, instance):
                if matches(pattern, name):
                    yield from validator.descend(instance[name], rule[pattern], path=name)
        case "dependencies" | "dependentRequired":
            for name in rule.keys() & instance.keys():
                needed = [rule[name]] if isinstance(rule[name], str) else rule[name]
                if isinstance(needed, list):
                    yield from validate_members("required", validator, needed, instance, _)
                else:
                    yield from validator.descend(instance, needed)


def validate_other_members(keyword: str, validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Yield the errors of `additionalProperties` or `unevaluated…` for members that no other keyword covers."""
    if not isinstance(instance, list if keyword == "unevaluatedItems" else dict):
        return
    known = {name: schema[name] for name in ("properties", "patternProperties") if name in schema}
    evaluating = known
    if keyword != "additionalProperties":
        evaluating = {name: each for name, each in schema.items() if name[:11] not in ("$id", "unevaluated")}
    evaluated = {member for each in validator.descend(EvaluationProbe(instance), evaluating) for member in each.path}
    for member, value in instance.items() if isinstance(instance, dict) else enumerate(instance):
        if member in evaluated:
            continue
        if rule is False:
            kind = keyword.replace("Items", " items").replace("Prop", " prop").capitalize()
            words = f"{kind} are not allowed ({truncate(str(member))!r} was unexpected)"
            names = ", ".join(itertools.chain(*known.values()))
            yield schema_error(words + (names and f"; known: {names}"), path=[member])
        else:
            yield from validator.descend(value, rule, path=member)


def evaluated_members(keyword: str, validator: Any, rule: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Yield pseudo-errors whose paths hold the members of a value that a keyword or its subschemas evaluate."""
    names = value if isinstance(value, dict) else ()
    indexes = range(len(value)) if isinstance(value, list) else ()
    below: Iterable[Any] = ()
    members: Iterable[str | int] = ()
    match keyword:
        case "anyOf" | "oneOf":
            below = [each for each in rule if is_valid(validator, each, value)]
        case "if":
            below = [rule, schema.get("then", True)] if is_valid(validator, rule, value) else [schema.get("else", True)]
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
            members = indexes
        case "additionalItems" if isinstance(schema.get("items"), list):
            members = indexes
        case "contains" if "prefixItems" in validator.VALIDATORS:
            members = [index for index in indexes if is_valid(validator, rule, value[index])]
    for each in below:
        yield from validator.descend(EvaluationProbe(value), each)
    yield schema_error("", path=members)


OUR_KEYWORDS: dict[str, Callable[..., Iterator[Any]]] = {
    **dict.fromkeys(("anyOf", "oneOf", "pattern", "uniqueItems"), validate_value),
    **dict.fromkeys(("dependencies", "dependentRequired", "patternProperties", "required"), validate_members),
    **dict.fromkeys(("additionalProperties", "unevaluatedItems", "unevaluatedProperties"), validate_other_members),
}


def bounded(keyword: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a keyword's function, ours or jsonschema's, so that it first checks the deadline and the stack depth."""
    function = partial(OUR_KEYWORDS[keyword], keyword) if keyword in OUR_KEYWORDS else original

    def validate(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        tick()
        try:  # keep 300 frames free: calls from C count too, and Rust panics near the limit of a thousand
            sys._getframe(sys.getrecursionlimit() - 300)
        except ValueError:  # the stack is not that deep
            if isinstance(instance, EvaluationProbe) and keyword not in (*REFERENCES, "allOf"):
                return evaluated_members(keyword, validator, rule, instance.value, schema)
            return function(validator, rule, instance, schema)
        raise RecursionError("the validation is nested too deeply")

    return validate


def bounded_draft(draft: Any) -> Any:
    """Return a validator class of jsonschema (`draft`) in which all keywords are bounded."""
    from jsonschema.validators import extend

    keywords = {keyword: bounded(keyword, original) for keyword, original in draft.VALIDATORS.items()}
    extended: Any = extend(draft, keywords)  # type: ignore[no-untyped-call]
    original_evolve = extended.evolve

    def evolve(validator: Any, **changes: Any) -> Any:
        """Return a validator of a subschema, without its `$schema`: jsonschema would switch to a class of its own."""
        tick()
        if isinstance(schema := changes.get("schema"), dict) and "$schema" in schema:
            changes["schema"] = {name: value for name, value in schema.items() if name != "$schema"}
        return original_evolve(validator, **changes)

    extended.evolve = evolve
    return extended


@cache
def drafts() -> Json:
    """Return the validator classes by their `$schema` URIs, newest first. They do not check `format`."""
    import jsonschema

    known = [getattr(jsonschema, f"Draft{draft}Validator") for draft in (202012, 201909, 7, 6, 4, 3)]
    return {draft.ID_OF(draft.META_SCHEMA).rstrip("#"): bounded_draft(draft) for draft in known}


def draft_of(schema: Json) -> Any:
    """Return the validator class for `$schema` (default: the newest), or None if it is unknown."""
    return drafts().get(str(schema.get("$schema", next(iter(drafts())))).rstrip("#"))


def validator_of(schema: Json) -> Any:
    """Return a validator of a schema. References resolve only to that schema and the drafts' metaschemas."""
    import referencing

    return draft_of(schema)(schema, registry=referencing.Registry())


def escaped(token: object) -> str:
    """Encode a token of a JSON pointer (RFC 6901, section 3), truncated like all request text in errors."""
    return truncate(str(token)).replace("~", "~0").replace("/", "~1")


def json_pointer(path: Iterable[object], prefix: str = "") -> str:
    """Encode a path as a JSON pointer for an error, after a prefix. Long keys are truncated."""
    return prefix + "".join(f"/{escaped(token)}" for token in path)


MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def subschemas(schema: Json, pointer: str, draft: Any) -> Iterator[tuple[Any, str]]:
    """Yield the direct subschemas of a schema, valid or not, with their pointers."""
    for keyword, held in schema.items():
        inner = json_pointer([keyword], pointer)
        if keyword in MAPS_OF_SCHEMAS and isinstance(held, dict):
            yield from ((value, json_pointer([name], inner)) for name, value in held.items())
        elif keyword in ("then", "else") or (keyword in draft.VALIDATORS and keyword not in ("enum", "const")):
            yield held, inner
            if isinstance(held, list):
                yield from ((item, f"{inner}/{number}") for number, item in enumerate(held))


def pattern_faults(schema: Json, pointer: str) -> Iterator[Problem]:
    """Yield the problems of the regular expressions in a schema, but not in its subschemas."""
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


def inner_faults(root: Json, pointer: str, draft: Any) -> Iterator[Problem]:
    """Yield the problems of ids, drafts, patterns and references in a schema and all that are reachable from it."""
    import referencing
    from referencing.jsonschema import specification_with

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
            yield Problem("has an `$id` that is not a valid URI reference", pointer)
            continue
        if draft_of(schema) is not draft and "$schema" in schema:
            yield Problem("must be the same draft as at the root of the schema", f"{pointer}/$schema")
        yield from pattern_faults(schema, pointer)
        below = [(value, at, resolver) for value, at in subschemas(schema, pointer, draft)]
        waiting.extendleft(reversed(below))
        for keyword in REFERENCES:
            if isinstance(target := schema.get(keyword), str):
                at = f"{pointer}/{keyword}"
                try:
                    found = resolver.lookup(target)
                    waiting.append((found.contents, at, found.resolver))  # may be reachable only by this reference
                except (referencing.exceptions.Unresolvable, LookupError, AttributeError, TypeError, ValueError):
                    detail = "is not found in this schema; other schemas are not fetched"
                    yield Problem(detail, at, value=truncate(target))


def schema_faults(schema: Json, pointer: str) -> Iterator[Problem]:
    """Yield all problems of a client's schema, each with its pointer."""
    if draft := draft_of(schema):
        yield from (problem_of(error, pointer) for error in validator_of(draft.META_SCHEMA).iter_errors(schema))
        yield from inner_faults(schema, pointer, draft)
    else:
        yield Problem(
            f"must be one of: {', '.join(drafts())}", f"{pointer}/$schema", value=scalar_preview(schema["$schema"])
        )


def describe_failure(error: BaseException, schema: str) -> str:
    """Return the error message for an exception that validation by a client's schema raised.

    A schema is its client's program, so the client gets to see its failures. They include panics of libraries in Rust,
    which are not subclasses of `Exception`. `schema` is the phrase that names the schema in the message.
    """
    if isinstance(error, RecursionError):
        return f"{schema} is nested too deeply, or refers to itself endlessly"
    return f"{schema} cannot be used for validation: {truncate(str(error))}"


def check_schema(schema: Json, pointer: str, seconds: float) -> None:
    """Validate a client's schema before it is stored.

    :raises ValidationFailed: if it has problems. :raises ExtensionCheckTimeout: if the check takes over `seconds`.
    """
    try:
        with TimeLimit(seconds):
            problems = list(itertools.islice(schema_faults(schema, pointer), 10 * LISTED_PROBLEMS))
    except OutOfTime:
        raise ExtensionCheckTimeout(f"Checking the schema took more than {seconds:g} s; make it smaller.") from None
    except EXIT_EXCEPTIONS:
        raise
    except BaseException as error:
        problems = [Problem(describe_failure(error, "the schema"), pointer)]
    if problems:
        raise ValidationFailed(problems)


def make_validators(text: str) -> tuple[Any, Callable[[Any, int], bool]]:
    """Return a schema's validator, and a fast check that accepts most valid values (none without its module)."""
    schema = from_json(text)
    return validator_of(schema), REGISTRY.fast_validator(schema, len(text))


cached_validators = lru_cache(maxsize=16)(make_validators)


# Messages for rules of our own models, with the member concerned. jsonschema's messages do not say what is required.
RULE_MESSAGES: list[tuple[Any, str, str]] = [
    (WITHOUT_CONTENT, MISSING_EVIDENCE, ""),
    (WITHOUT_UPDATE, MISSING_CHANGE, ""),
    (RESOLVED_UNCOMPLETED, REQUIRES_COMPLETED, "/resolveMissing"),
    (JUDGED_UNCOMPLETED, REQUIRES_COMPLETED, "/gate"),
    (REASON_ALONE, WITHOUT_STATUS, "/statusReason"),
    (WITHOUT_DECISION, MISSING_DECISION, ""),
    (UNFINISHED_FOR_A_REASON, REQUIRES_FINISHED, "/reason"),
]


def shorten(error: ValidationError) -> str:
    """Return jsonschema's message, truncated. If it begins with a long value, that is cut, so that the rule remains."""
    message, keyword = error.message, str(error.validator)
    begins_with_value = len(message) > REPEATED_TEXT and not message[0].isalpha()
    if begins_with_value and message.startswith(value := repr(error.instance)):  # repr() of a large value is slow
        message = value[: REPEATED_TEXT // 2] + "…" + message.removeprefix(value)
    if keyword.startswith(("max", "min")) and not keyword.endswith("imum"):  # these messages leave the number out
        message += f" ({keyword} is {error.validator_value})"
    return truncate(message)


def problem_of(error: ValidationError, pointer: str) -> Problem:
    """Return an error of jsonschema as a problem, with a message of our own if there is one."""
    rule: Any = error.validator_value
    at, value = json_pointer(error.path, pointer), scalar_preview(error.instance)
    if value == math.inf:  # the parser's value for such a number
        return Problem("has a number with too many digits", at)
    for own_rule, message, member in RULE_MESSAGES:
        if rule == own_rule:
            return Problem(message, f"{at}{member}")
    if error.validator in ("enum", "const"):
        allowed = rule[:REPEATED_TEXT] if error.validator == "enum" else [rule]
        named = ", ".join([each if isinstance(each, str) else json.dumps(each) for each in allowed])
        return Problem(truncate(f"must be one of: {named}"), at, value=value)
    if error.validator == "pattern" and rule in PATTERNS:
        return Problem(PATTERNS[rule], at, value=value)
    return Problem(shorten(error), at)


def iter_problems(validator: Any, value: Any, pointer: str) -> Iterator[Problem]:
    """Yield all problems that jsonschema finds in a value. :raises OutOfTime: if the deadline has passed."""
    last = None
    for error in validator.iter_errors(value):
        tick()
        if error.validator == "pattern" and "\0" in error.instance:  # U+0000 is reported separately
            continue
        problem = problem_of(error, pointer)
        if problem != last:  # several rules report a number that is too long
            yield problem
        last = problem


TASK_SHARE = 1 / 8  # part of the request's time limit that the check of one task may take


def check_extensions(schema: str, extensions: Iterable[tuple[str | None, str]], seconds: float) -> list[Problem]:
    """Return the problems of several tasks' extensions by a project type's schema, a JSON text.

    :param extensions: for each task, its extensions as a JSON text (None: {}) and the pointer to them.
    :raises ExtensionCheckTimeout: if one task, or all together, took too long.
    """
    end = time.monotonic() + seconds
    validator, accepts = (cached_validators if len(schema) <= CACHED_SCHEMA else make_validators)(schema)
    problems: list[Problem] = []
    for text, pointer in extensions:
        value = from_json(text) if text else {}
        try:
            if time.monotonic() < end and accepts(value, len(text or "")):
                continue  # most are valid; this is much cheaper than a time limit
            with TimeLimit(min(seconds * TASK_SHARE, end - time.monotonic())):
                tick()
                problems += itertools.islice(iter_problems(validator, value, pointer), MAX_TASK_PROBLEMS)
        except OutOfTime:
            detail = "took too long to check; simplify the extensions, or the project type's schema"
            message = (
                f"Checking extensions took over {seconds:g} s for the request or {seconds * TASK_SHARE:g} s for a task."
            )
            raise ExtensionCheckTimeout(message, [Problem(detail, pointer)]) from None
        except EXIT_EXCEPTIONS:
            raise
        except BaseException as error:
            problems.append(Problem(describe_failure(error, "the project type's schema"), pointer))
    return problems


# --- Store: clients, keys and counters. The SQL runs on SQLite and PostgreSQL; the connection is the first argument ---

MAIN_LINE = ""  # the main line's name in columns for branches
LISTED = "IN (SELECT value FROM json_each(?))"  # one parameter: any number of texts as a JSON array
LISTED_SEQS = "IN (SELECT CAST(value AS BIGINT) FROM json_each(?))"
# Condition: any number of a client's tasks, by `seq`. `IS TRUE` keeps SQLite from using the index that begins with the
# client: that takes half as long again, and returns rows that must be sorted.
BY_SEQ = f"(tasks.client_id = ?) IS TRUE AND tasks.seq {LISTED_SEQS}"
BY_ID = f"tasks.client_id = ? AND tasks.id {LISTED}"


now_ns: Callable[[], int] = time.time_ns  # replaced while sample data of earlier days is stored


def timestamp(ago: float = 0) -> str:
    """Return the time `ago` seconds before now, in the API's format: 2026-11-21T02:15:30.123Z."""
    at = datetime.fromtimestamp(now_ns() / 1e9 - ago, UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


class IdMaker:
    """Generator of UUIDv7s (RFC 9562, section 5.7). Each is greater than the last, even if the clock steps back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self, count: int = 1, after: str | None = None) -> list[str]:
        """Return `count` new ids: 48 bits of time, a counter of 12 bits, and 62 random bits.

        :param after: an id that the new ids must follow; it may come from a server whose clock is ahead.
        """
        least = int(f"{after[:8]}{after[9:13]}{after[15:18]}", 16) + 1 if after else 0
        with self._lock:
            first = max((now_ns() // 1_000_000) << 12, self._last + 1, least)
            self._last = first + count - 1
        digits = (f"{number:015x}{2 << 62 | secrets.randbits(62):x}" for number in range(first, first + count))
        return [f"{each[:8]}-{each[8:12]}-7{each[12:15]}-{each[15:19]}-{each[19:]}" for each in digits]


new_ids = IdMaker()


def canonical(text: str | bytes) -> bytes:
    """Encode a JSON text in canonical form: sorted keys, and no white space."""
    return to_json(from_json(text), order="sorted")


def same_json(one: str | None, other: str | None) -> bool:
    """Return whether two JSON texts are equal, ignoring key order and white space. 1 differs from 1.0."""
    if one == other:
        return True
    return one is not None and other is not None and canonical(one) == canonical(other)


class Principal(Record, frozen=True):
    """Sender of a request: its key, client and level, and the user if the key is for users.

    Without a name, the service itself makes a change. The history then has null as `by`.
    """

    key_id: str
    client_id: str
    name: str = ""
    level: str = ""
    user: str | None = None
    for_users: bool = False

    @property
    def sender(self) -> str:
        """The owner of stored responses, as text: the id of the API key, and the user if there is one."""
        return self.key_id if self.user is None else f"{self.key_id} {self.user}"


def hashed(key: str) -> str:
    """Return the hash of an API key, as stored. Keys are random, so a slow hash would add no protection."""
    return hashlib.sha256(key.encode()).hexdigest()


def insert_client(connection: Connection, client_id: str) -> bool:
    """Insert a client unless it exists. Return True if it was inserted."""
    return bool(
        connection.execute(
            "INSERT INTO clients (id, created_at) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (client_id, timestamp())
        ).rowcount
    )


def select_clients(connection: Connection) -> list[str]:
    """Return the ids of all clients, sorted, for callers that process one client after the other."""
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
    """Create an API key, and its client if missing. Store the key's hash and return the key, which is not stored."""
    key = f"fts_{secrets.token_urlsafe(32)}"
    insert_client(connection, client_id)
    connection.execute(
        """INSERT INTO api_keys (id, client_id, name, level, hash, created_at, expires_at, for_users)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (new_ids()[0], client_id, name, level, hashed(key), timestamp(), expires_at, int(for_users)),
    )
    return key


def select_principal(connection: Connection, key: str, now: str) -> tuple[Principal, str | None] | None:
    """Return the principal and time of last use of an API key, or None if it is unknown, expired or revoked."""
    row = connection.execute(
        """SELECT id, client_id, name, level, for_users, last_used_at FROM api_keys
           WHERE hash = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)""",
        (hashed(key), now),
    ).fetchone()
    if row is None:
        return None
    key_id, client, name, level, for_users, last_used_at = row
    return Principal(key_id, client, name, level, for_users=bool(for_users)), last_used_at


def select_keys(connection: Connection) -> list[Row]:
    """Return the API keys of all clients, ordered by id, without their hashes."""
    return connection.execute(
        """SELECT id, client_id, name, level, CASE for_users WHEN 1 THEN 'yes' END, created_at, expires_at,
               last_used_at, revoked_at
           FROM api_keys ORDER BY id"""
    ).fetchall()


def select_live_keys(connection: Connection, client_id: str, name: str) -> list[str]:
    """Return the ids of a client's keys with a name, if not revoked or expired. Older databases may have several."""
    rows = connection.execute(
        """SELECT id FROM api_keys WHERE client_id = ? AND name = ? AND revoked_at IS NULL
           AND (expires_at IS NULL OR expires_at > ?) ORDER BY id""",
        (client_id, name, timestamp()),
    )
    return [key_id for (key_id,) in rows]


def revoke_key(connection: Connection, key_id: str, at: str | None = None) -> bool:
    """Revoke an API key as of `at` (default: now). Return False if it does not exist or is already revoked."""
    return bool(
        connection.execute(
            "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (at or timestamp(), key_id)
        ).rowcount
    )


def counter_name(kind: str, project_type: str | None, target_url: str | None, branch: str | None) -> str:
    """Return the scope of a counter: all tasks or runs (`kind`), or those of a type, a target or both.

    `branch` is MAIN_LINE, a branch, or None for all branches but the main line. It is last: it may contain spaces.
    """
    by_type = f" type:{project_type}" if project_type is not None else ""
    by_target = f" target:{target_url}" if target_url is not None else ""
    by_branch = BRANCHES if branch is None else "" if branch == MAIN_LINE else f" branch:{branch}"
    return kind + by_type + by_target + by_branch


@lru_cache(maxsize=64)
def counter_names(kind: str, project_type: str, target_url: str, branch: str) -> tuple[str, ...]:
    """Return the scopes of all counters that count a task or run. Only runs are counted by the name of the branch."""
    lines: list[str | None] = [branch] if branch == MAIN_LINE else [None, branch] if kind == "runs" else [None]
    scopes = list(itertools.product((None, project_type), (None, target_url)))
    return tuple(counter_name(kind, *scope, line) for line in lines for scope in scopes)


TAGGED = "tasks tagged"


def tags_in(stored: Any) -> list[str]:
    """Parse the tags of a task from their stored JSON text; None means no tags."""
    return from_json(stored) if stored else []


def label_counter(column: str, value: str) -> str:
    """Return the counter scope of tasks with a rule or tag. It is quoted, so that its end is not read as a suffix."""
    return f'tasks {column}:"{value}"'


def label_counters(rule: str | None, tags: str | None, branch: str) -> list[str]:
    """Return the scopes of the counters that count a task by its rule and its tags (a JSON text)."""
    names = [label_counter("rule", rule)] if rule else []
    names += [TAGGED, *(label_counter("tag", tag) for tag in tags_in(tags))] if tags else ()
    return [f"{name}{BRANCHES if branch else ''}" for name in names]


def select_counts(connection: Connection, client_id: str, names: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return a client's counters in some scopes as (scope, status, severity, n); buffered changes are extra rows."""
    rows = connection.execute(
        f"SELECT scope, status, severity, n FROM counters WHERE client_id = ? AND scope {LISTED}",
        (client_id, to_json_text(names)),
    ).fetchall()
    return rows + connection.transaction.counters.select(client_id, names)


CHANGES = "changes"


def raise_revision(connection: Connection, client_id: str) -> None:
    """Increase a client's revision. Every transaction that changes rows of the client calls this.

    The increment is random, so that a restored backup never reuses an earlier ETag.
    """
    connection.transaction.counters.add(client_id, [CHANGES], "", 0, 1 + secrets.randbelow(1 << 30))


def select_revision(connection: Connection, client_id: str) -> int:
    """Return a client's revision, a number that changes with every change of the client's data."""
    return sum(n for *_, n in select_counts(connection, client_id, [CHANGES]))


# --- Store: lists. A page is read from a merge of index ranges -------------


Condition = tuple[str, Row]  # SQL expression, and the values of its parameters


def among(column: str, values: Iterable[str] | Iterable[int]) -> Condition:
    """Return the condition that a column has one of some values, with a single parameter."""
    listed: list[Any] = sorted(values)
    return f"{column} {LISTED_SEQS if listed and isinstance(listed[0], int) else LISTED}", (to_json_text(listed),)


class Filter(Struct, frozen=True, kw_only=True):
    """Filter of runs or tasks, and of their counters. A field that is None matches everything.

    `names` are branch names, for runs only; `TaskFilter.branches` selects tasks by the branches that reported them.
    `columns` maps fields to the columns with which they are compared. A frozenset matches any of its values.
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

    def covers(self, project_type: str, target_url: str) -> bool:
        """Return True if the filter accepts a project type and target."""
        return (self.types is None or project_type in self.types) and self.target_url in (None, target_url)

    def conditions(self, table: str) -> dict[str, Condition]:
        """Return the SQL conditions for a row of the table, keyed by the fields of the filter that are set."""
        conditions: dict[str, Condition] = {}
        for field, column in self.columns.items():
            value, name = getattr(self, field), f"{table}.{column}"
            if value is not None:
                conditions[field] = among(name, value) if isinstance(value, frozenset) else (f"{name} = ?", (value,))
        if self.main_line is not None:
            conditions["main_line"] = (f"{table}.branch {'=' if self.main_line else '<>'} ''", ())
        return conditions


def frozenset_or_none(values: Iterable[Value] | None) -> frozenset[Value] | None:
    """Return the values of a filter's field as a frozenset, or None for None, which matches everything."""
    return None if values is None else frozenset(values)


class IndexRange(Record, frozen=True):
    """Range of index rows in order of creation: its conditions fix all other index columns.

    `table` has the index: runs, tasks, or a table of sightings, tags or words, which refer to tasks. `severity` is the
    severity rank of all rows in the range, or 0 if they may differ.
    """

    conditions: tuple[str, ...]
    values: Row
    table: str
    severity: int = 0

    @property
    def seq(self) -> str:
        """The column that gives the order of creation: `seq` or `task_seq`, with its table."""
        return f"{self.table}.{'seq' if self.table in ('runs', 'tasks') else 'task_seq'}"

    @property
    def rank(self) -> str:
        """The column with the severity rank: of the index's table if all rows have the same rank, else of `tasks`."""
        return f"{self.table if self.severity else 'tasks'}.severity"

    def where(self, condition: str, *values: Any) -> IndexRange:
        """Return the range with one more condition, and the values of its parameters."""
        return replace(self, conditions=(*self.conditions, condition), values=(*self.values, *values))

    def select(self, columns: str) -> str:
        """Return the statement that selects columns.

        It joins `tasks` if the columns or a condition need it. CROSS JOIN makes SQLite look up the tasks one by one;
        otherwise it might scan all tasks of the client.
        """
        tables, conditions = self.table, self.conditions
        if self.seq.endswith("task_seq") and any("tasks." in each for each in (columns, *conditions)):
            same = f"tasks.client_id = {tables}.client_id"  # last, because it is true for every row
            conditions = (f"tasks.seq = {self.seq}", *conditions, same)
            tables = f"{tables} CROSS JOIN tasks"
        return f"SELECT {columns} FROM {tables} WHERE {' AND '.join(conditions)}"


class ListCursor(Record, frozen=True):
    """Cursor of a list: the `seq` of the last row sent and, in a list by severity, that row's severity rank."""

    seq: int
    severity: int = 0


MAX_RANGES = 40  # in one statement: one for each status and severity, of the main line and of branches


class ListPlan(Struct, frozen=True, kw_only=True):
    """Plan of a list: the index ranges that are merged, and the order.

    All rows of the ranges match the filter's fields in `settled`. `size` estimates the number of rows in the ranges; a
    smaller plan is preferred. `total` is the length of the list, if counters give it. Ranges of several runs,
    branches or tags may share rows; `tally` is then a single range of all these rows, for counting.
    """

    ranges: tuple[IndexRange, ...]
    settled: Set[str] = frozenset()
    size: int = sys.maxsize
    total: int | None = None
    tally: IndexRange | None = None
    order: str = "-createdAt"

    def narrowed(self, narrow: Callable[[IndexRange], IndexRange]) -> ListPlan:
        """Return the plan with `narrow` applied to all ranges. Its total is then unknown (None)."""
        ranges, tally = tuple(map(narrow, self.ranges)), self.tally and narrow(self.tally)
        return replace(self, ranges=ranges, tally=tally, total=None)

    def after(self, cursor: ListCursor | None) -> ListPlan:
        """Return the plan of the rows that follow a cursor in the list; None means all rows."""
        if cursor is None:
            return self
        ranges = list[IndexRange]()
        for each in self.ranges:
            if self.order != "severity" or each.severity == cursor.severity:
                ranges.append(each.where(f"{each.seq} {'>' if self.order == 'createdAt' else '<'} ?", cursor.seq))
            elif not each.severity:
                condition = f"(tasks.severity < ? OR tasks.severity = ? AND {each.seq} < ?)"
                ranges.append(each.where(condition, cursor.severity, cursor.severity, cursor.seq))
            elif each.severity < cursor.severity:
                ranges.append(each)
        return replace(self, ranges=tuple(ranges))

    def page(
        self, connection: Connection, client_id: str, table: str, columns: str, joined: str, query: RunQuery | TaskQuery
    ) -> Iterator[Row]:
        """Yield the rows of a page, plus one if there is a next page; read them lazily.

        :param table: the table of the rows: "runs" or "tasks". :param joined: SQL that joins further tables, or "".
        """
        limit, offset = query.limit + 1, ((query.page or 1) - 1) * query.limit
        found: Iterable[Condition]
        if self.order != "severity" and 0 < len(self.ranges) <= MAX_RANGES:
            merged, values = self._merged(connection, self.ranges, limit, offset)
            found = [(connection.one_of(merged), values)]
        else:
            groups = itertools.groupby(self.select_sort_keys(connection, limit, offset), lambda key: key[:-1])
            found = ((LISTED_SEQS, (to_json_text([seq for *_, seq in keys]),)) for _, keys in groups)
        seq, direction = f"{table}.seq", "ASC" if self.order == "createdAt" else "DESC"
        statement = f"SELECT {columns} FROM {table} {joined} WHERE ({table}.client_id = ?) IS TRUE AND {seq}"
        execute = connection.stream if joined else connection.execute  # joined columns are large
        return itertools.chain.from_iterable(
            execute(f"{statement} {seqs} ORDER BY {seq} {direction}", (client_id, *values)) for seqs, values in found
        )

    def select_sort_keys(self, connection: Connection, limit: int, offset: int) -> list[tuple[int, ...]]:
        """Return the sort keys of `limit` rows after `offset` rows: (seq,), or (severity rank, seq) if by severity."""
        found = set[tuple[int, ...]]()
        for start in range(0, len(self.ranges), MAX_RANGES):
            if connection.is_late():  # each short statement ends before it can be interrupted
                raise TimeoutError
            group = self.ranges[start : start + MAX_RANGES]
            found.update(connection.execute(*self._merged(connection, group, limit + offset, 0)))
        return sorted(found, reverse=self.order != "createdAt")[offset : offset + limit]

    def _merged(self, connection: Connection, ranges: Sequence[IndexRange], limit: int, offset: int) -> tuple[str, Row]:
        """Return the statement that selects the sort keys of `limit` rows after `offset` rows, and its parameters.

        The database merges the ranges, so that nothing is sorted, and a page after a cursor costs as much as the first.
        Duplicate ranges, and tasks that are in several ranges, do not change the result.
        """
        ranked = self.order == "severity"
        order = f"{'severity DESC, ' if ranked else ''}seq {'ASC' if self.order == 'createdAt' else 'DESC'}"
        selects = [each.select(f"{f'{each.rank} AS severity, ' if ranked else ''}{each.seq} AS seq") for each in ranges]
        merged = connection.merged(selects, order, limit + offset)
        values = (value for each in ranges for value in each.values)
        return f"{merged} ORDER BY {order} LIMIT ? OFFSET ?", (*values, limit, offset)

    def count(self, connection: Connection) -> int:
        """Return the number of rows, from counters if possible; otherwise, count the rows."""
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
    conditions: Mapping[str, Condition],
    order: str = "-createdAt",
) -> ListPlan:
    """Return the plan of a list: the smallest that modules offer or, if there is none, one of all rows.

    :param conditions: the filter's conditions by field. Those that the plan does not settle are added to its ranges.
    """
    whole = IndexRange((f"{table}.client_id = ?",), (client_id,), table)
    everything = ListPlan(ranges=(whole,))
    plans = REGISTRY.plans(connection, client_id, table, wanted, order)
    best = min(plans, key=attrgetter("size"), default=everything)
    if unsettled := [condition for field, condition in conditions.items() if field not in best.settled]:
        # One condition with `IS TRUE`, because the database might choose another index for separate conditions.
        text = f"({' AND '.join(condition for condition, _ in unsettled)}) IS TRUE"
        values = [value for _, values in unsettled for value in values]
        best = best.narrowed(lambda each: each.where(text, *values))
    return replace(best, order=order)


def select_cursor_seq(connection: Connection, table: str, client_id: str, id: str, newest_first: bool) -> int:
    """Return the seq of the row with a cursor's id. If it was deleted, return a seq after which the list continues."""
    row = connection.execute(
        f"SELECT seq, id FROM {table} WHERE client_id = ? AND id <= ? ORDER BY id DESC LIMIT 1", (client_id, id)
    ).fetchone()
    if row is None:
        return 0
    return int(row[0]) + (newest_first and row[1] != id)


# --- Store: project types --------------------------------------------------

MAX_PROJECT_TYPES = 10_000  # per client, because one response lists them all
PROJECT_TYPES_TEXT = 16 * 1024 * KIB  # bytes of their labels and descriptions in total


def select_project_type(connection: Connection, client_id: str, name: str) -> ProjectTypeWithSchema:
    """Return a project type. :raises Missing: if the client has none with this name."""
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
    """Return all project types of a client, ordered by name."""
    rows = connection.execute(
        "SELECT id, name, label, description, created_at FROM project_types WHERE client_id = ? ORDER BY name",
        (client_id,),
    )
    return [ProjectType(*row) for row in rows]


def require_capacity(connection: Connection, client_id: str, name: str, label: str, description: str) -> None:
    """Check that this project type and a client's others fit into one response. :raises ValidationFailed: if not."""
    others = connection.execute(
        "SELECT label || description FROM project_types WHERE client_id = ? AND name <> ?", (client_id, name)
    ).fetchall()
    if len(others) >= MAX_PROJECT_TYPES:
        detail = f"exceeds the limit of {MAX_PROJECT_TYPES:,} project types for a client"
        raise ValidationFailed([Problem(detail, "/name", value=name)])
    texts = [label + description, *(text for (text,) in others)]
    if len(to_json("".join(texts))) - 2 > PROJECT_TYPES_TEXT:
        detail = "is too long; the labels and descriptions of all project types must not exceed 16 MiB in total"
        raise ValidationFailed([Problem(detail, "/description")])


def select_definition(connection: Connection, client_id: str, name: str) -> Any:
    """Return the label, description and schema of a project type, or None if it does not exist."""
    return connection.execute(
        "SELECT label, description, extension_schema FROM project_types WHERE client_id = ? AND name = ?",
        (client_id, name),
    ).fetchone()


def insert_project_type(
    connection: Connection, client_id: str, name: str, label: str, description: str, schema: str | None
) -> bool:
    """Insert a project type. Return False if it already exists with the same definition.

    :raises ProjectTypeExists: if its definition differs. :raises ValidationFailed: if a limit is exceeded.
    """
    before = select_definition(connection, client_id, name)
    if before is None:
        require_capacity(connection, client_id, name, label, description)
        connection.execute(
            """INSERT INTO project_types (client_id, name, id, label, description, extension_schema, created_at)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (client_id, name, new_ids()[0], label, description, schema, timestamp()),
        )
        return True
    if before[:2] != (label, description) or not same_json(before[2], schema):
        raise ProjectTypeExists(
            f"Project type {name!r} already exists with another definition;"
            f" PUT /api/v1/project-types/{name} can replace it."
        )
    return False


def replace_project_type(
    connection: Connection, client_id: str, name: str, label: str, description: str, schema: str | None
) -> None:
    """Replace a project type's definition, erase the old one, and drop stored responses that name the type.

    Stored tasks are not validated again. :raises ValidationFailed: if a limit is exceeded.
    """
    if select_definition(connection, client_id, name) == (label, description, schema):
        return
    require_capacity(connection, client_id, name, label, description)
    connection.execute(
        """UPDATE project_types SET label = ?, description = ?, extension_schema = ?
           WHERE client_id = ? AND name = ?""",
        (label, description, schema, client_id, name),
    )
    drop_responses(connection, client_id, name)
    connection.transaction.erases = True


# --- Store: runs -----------------------------------------------------------

RUN_COLUMNS = """runs.id, runs.project_type, NULLIF(runs.target_url, ''), NULLIF(runs.branch, ''), runs.metadata,
    runs.status, runs.status_reason, runs.created_at, runs.updated_at, runs.finished_at,
    runs.created, runs.updated, runs.reopened, runs.unchanged, runs.resolved, runs.verdict"""


class Source(Record, frozen=True):
    """Base class of runs and branches: their columns that list plans need to find the tasks that they reported.

    `table` has a row for each run or branch, with the fields as columns. `reported` is the number of its tasks.
    `sightings` is the table of these tasks; its `column` is the seq of the run or branch.
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
        """The project type and target of the run or branch, and so of all tasks that it reported."""
        return self.project_type, self.target_url

    @classmethod
    def find(cls, connection: Connection, client_id: str, condition: str, *values: Any) -> list[Self]:
        """Select the client's runs or branches that match an SQL condition, which may end with a LIMIT."""
        statement = f"SELECT {', '.join(cls.__struct_fields__)} FROM {cls.table} WHERE client_id = ? AND {condition}"
        return [cls(*row) for row in connection.execute(statement, (client_id, *values))]


class RunKey(Source, frozen=True):
    """A run with only the fields that the store uses; `Run` is the model that the API shows."""

    id: str
    status: str
    branch: str
    is_partial: int = 0  # 1 if it reported that it did not check something

    table = "runs"
    sightings = "sightings"
    column = "run_seq"


class BranchKey(Source, frozen=True):
    """A branch of one project type and target, with only the fields that the store uses."""

    name: str

    table = "branches"
    sightings = "branch_sightings"
    column = "branch_seq"


def run_model(row: Sequence[Any]) -> Run:
    """Return a Run from a row of RUN_COLUMNS."""
    *fields, created, updated, reopened, unchanged, resolved, verdict = row
    submitted = Submitted(created, updated, reopened, unchanged, resolved)
    run: Any = Run(*(*fields, submitted, Raw(verdict or "null")))
    run.metadata = Raw(run.metadata)
    return cast(Run, run)


def find_branch_of_run(connection: Connection, client_id: str, run: RunKey) -> BranchKey | None:
    """Return the branch of a run, or None if the run is of the main line."""
    same = "name = ? AND project_type = ? AND target_url = ?"
    return next(iter(BranchKey.find(connection, client_id, same, run.branch, *run.type_and_target)), None)


def select_run_key(connection: Connection, client_id: str, run_id: str) -> RunKey:
    """Return the RunKey of a run. :raises Missing: if the client has no such run."""
    for run in RunKey.find(connection, client_id, "id = ?", run_id):
        return run
    raise Missing(f"There is no run {truncate(run_id)!r}.")


def select_schema_of_run(connection: Connection, client_id: str, run_id: str) -> str | None:
    """Return the extension schema of a run's type, if it has one. :raises Missing: if there is no such run."""
    row = connection.execute(
        """SELECT (
               SELECT extension_schema FROM project_types
               WHERE project_types.client_id = runs.client_id AND project_types.name = runs.project_type
           ) FROM runs WHERE client_id = ? AND id = ?""",
        (client_id, run_id),
    ).fetchone()
    if row is None:
        raise Missing(f"There is no run {truncate(run_id)!r}.")
    return cast(str | None, row[0])


def select_run(connection: Connection, client_id: str, run: RunKey) -> Run:
    """Return the API's model of a run, which must exist."""
    row = connection.execute(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE client_id = ? AND seq = ?", (client_id, run.seq)
    ).fetchone()
    return run_model(row)


REPORTED_TASKS = """sightings
    JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq"""


def select_run_with_summary(connection: Connection, client_id: str, run: RunKey) -> RunWithSummary:
    """Return a run with the numbers of tasks that it reported, by their current status and severity."""
    counted = connection.execute(
        f"""SELECT tasks.status, tasks.severity, COUNT(*) FROM {REPORTED_TASKS}
            WHERE sightings.client_id = ? AND sightings.run_seq = ? GROUP BY 1, 2""",
        (client_id, run.seq),
    )
    fields = (*astuple(select_run(connection, client_id, run)), summary_of(counted))
    return RunWithSummary(*fields)


def summary_of(counted: Iterable[tuple[str, int, int]]) -> Summary:
    """Return the summary of tasks that are given as tuples (status, severity rank, number of tasks)."""
    severities, statuses = Counter[str](), Counter[str]()
    for status, rank, n in counted:
        severities[SEVERITIES[-rank]] += n
        statuses[status] += n
    return Summary(statuses.total(), SeverityCounts(**severities), StatusCounts(**statuses))


def require_registered(connection: Connection, client_id: str, project_type: str, **named: str) -> None:
    """Check that a project type exists. :raises UnknownProjectType: if not; the error lists existing names.

    :param named: `pointer` or `parameter` of the error: the part of the request that names the type.
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
    """Insert a running run, and its branch if not yet stored. :raises UnknownProjectType: if the type is unknown."""
    client_id = who.client_id
    require_registered(connection, client_id, project_type, pointer="/projectType")
    (newest_id,) = connection.execute("SELECT MAX(id) FROM runs WHERE client_id = ?", (client_id,)).fetchone()
    now, run_id = timestamp(), new_ids(after=newest_id)[0]
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
    """Insert the history entry for the event of a run: "started" or "finished"."""
    connection.execute(
        """INSERT INTO history (client_id, run_seq, at, event, key_name, user_name, branch)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (who.client_id, run.seq, now, event, who.name, who.user, run.branch),
    )


def close_run(
    connection: Connection, who: Principal, run: RunKey, status: str, reason: str | None, verdict: str | None = None
) -> None:
    """Store the final status and the verdict (a JSON text) of a running run; update counters and history."""
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


RUNS_AT_ONCE = 100  # maximum number of idle runs that one query returns
CLOCKS_DIFFER = 60.0  # seconds that clocks may differ; a stored time further ahead was stored while a clock was ahead


def select_idle_runs(connection: Connection, client_id: str, idle_seconds: float) -> list[RunKey]:
    """Return up to `RUNS_AT_ONCE` running runs last used in the future or, if there are none, idle runs."""
    used = "status = 'running' AND last_used_at {} ? LIMIT ?"
    future = RunKey.find(connection, client_id, used.format(">"), timestamp(ago=-CLOCKS_DIFFER), RUNS_AT_ONCE)
    return future or RunKey.find(connection, client_id, used.format("<"), timestamp(ago=idle_seconds), RUNS_AT_ONCE)


def fail_idle_runs(connection: Connection, client_id: str, idle_seconds: float) -> None:
    """Fail up to `RUNS_AT_ONCE` idle runs of a client. First change each last use in the future to now."""
    connection.execute(
        "UPDATE runs SET last_used_at = ? WHERE client_id = ? AND status = 'running' AND last_used_at > ?",
        (timestamp(), client_id, timestamp(ago=-CLOCKS_DIFFER)),
    )
    for run in select_idle_runs(connection, client_id, idle_seconds):
        close_run(connection, Principal("", client_id), run, "failed", "timeout")


def is_due(connection: Connection, client_id: str, idle_seconds: float) -> bool:
    """Return whether a client has an idle run, or a task whose dismissal or claim has ended."""
    if idle_seconds and select_idle_runs(connection, client_id, idle_seconds):
        return True
    ended = "EXISTS (SELECT 1 FROM {} WHERE client_id = ? AND until <= ?)"
    statement = f"SELECT {ended.format('tasks')} OR {ended.format('claims')}"
    return bool(connection.execute(statement, (client_id, timestamp()) * 2).fetchone()[0])


CLAIMS_AT_ONCE, TASKS_AT_ONCE = 25, 500  # ended claims and dismissals per transaction
OF_CLAIMS = f"client_id = ? AND claim_id {LISTED} ORDER BY seq"


def run_due(connection: Connection, client_id: str, idle_seconds: float) -> bool:
    """Fail idle runs, and open tasks whose dismissal or claim has ended, up to a limit of each.

    Return whether tasks were opened.
    """
    raise_revision(connection, client_id)
    if idle_seconds:
        fail_idle_runs(connection, client_id, idle_seconds)
    service, now = Principal("", client_id), timestamp()
    until = f"client_id = ? AND until <= ? ORDER BY until LIMIT {TASKS_AT_ONCE}"
    dismissed = select_task_rows(connection, client_id, until, now)
    ended = f"SELECT id FROM claims WHERE client_id = ? AND until <= ? LIMIT {CLAIMS_AT_ONCE}"
    claims = to_json_text([claim for (claim,) in connection.execute(ended, (client_id, now))])
    claimed = select_task_rows(connection, client_id, OF_CLAIMS, claims)
    open_tasks(connection, service, dismissed, "status", now)
    open_tasks(connection, service, claimed, "released")
    connection.execute(f"DELETE FROM claims WHERE client_id = ? AND id {LISTED}", (client_id, claims))
    return bool(dismissed or claimed)


def due_slices(database: Database, idle_seconds: float, patience: float | None = None) -> Iterator[None]:
    """Call `run_due` for all clients that need it. Yield after each transaction, so that other threads can write.

    :param idle_seconds: seconds after which an unused run is idle; 0 disables the timeout.
    :param patience: seconds that a transaction waits for a lock; None for the configured timeout.
    """
    if not database.trusts_clock():
        return
    with database.reading() as connection:
        clients = select_clients(connection)
    for client_id in clients:
        while True:
            with database.reading() as connection:
                if not is_due(connection, client_id, idle_seconds):
                    break
            with database.transaction(client_id, patience) as connection:
                run_due(connection, client_id, idle_seconds)
            yield


def finish_run(connection: Connection, who: Principal, run: RunKey, update: RunUpdate) -> None:
    """Apply an update to a run: set its final status, resolve missing findings, judge it, merge metadata.

    Only metadata are merged if the run has the status already. :raises RunFinished: if it has the other final status.
    :raises ValidationFailed: if the gate's baseline is not suitable, or the metadata become too large.
    """
    if update.status and run.status == "running":
        if update.resolve_missing:
            resolve_missing(connection, who, run)
        verdict = None
        if REGISTRY.judge and update.status == "completed":
            verdict = to_json_text(REGISTRY.judge(connection, who.client_id, run, update.gate))
        close_run(connection, who, run, update.status, update.status_reason, verdict)
    elif update.status not in (None, run.status):
        raise RunFinished(f"The run is already {run.status}; the status of a finished run cannot change.")
    if members := raw_members(update.metadata):
        merge_metadata(connection, who.client_id, run, members)


def raw_members(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the members of a JSON object, each as raw JSON; {} if it is null or was not sent."""
    return decoder(dict[str, Raw] | None).decode(raw or b"null") or {}


def merge_metadata(connection: Connection, client_id: str, run: RunKey, members: Mapping[str, Raw]) -> None:
    """Merge members into a run's metadata. A null removes the member; other values stay exactly as they were sent.

    :raises ValidationFailed: if the metadata become too large.
    """
    removed = {name for name, value in members.items() if bytes(value) == b"null"}
    merged = {**raw_members(select_run(connection, client_id, run).metadata), **members}
    text = to_json_text({name: value for name, value in merged.items() if name not in removed})
    now = timestamp()
    connection.execute(
        "UPDATE runs SET metadata = ?, updated_at = ?, last_used_at = ? WHERE client_id = ? AND seq = ?",
        (read_metadata(Raw(text)), now, now, client_id, run.seq),
    )


def resolve_missing(connection: Connection, who: Principal, run: RunKey) -> None:
    """Resolve the unfinished findings of the run's type and target that are missing from it (see `missing_from`).

    A branch resolves only findings that it was the first to report. Findings in unchecked files stay unfinished.
    """
    branch = find_branch_of_run(connection, who.client_id, run)
    wanted = TaskFilter(main_line=branch is None, missing_from=run, branches=[branch] if branch else None)
    keys = plan_tasks(connection, who.client_id, wanted, "createdAt").select_sort_keys(connection, sys.maxsize, 0)
    states = select_task_rows(connection, who.client_id, BY_SEQ, to_json_text([seq for (seq,) in keys]))
    tasks = [state for state in states if state.branch == run.branch]
    if run.is_partial:
        tasks = checked_tasks(connection, who.client_id, run, tasks)
    resolved = TaskUpdate(status="resolved")
    triage_tasks(connection, who, [(task, resolved) for task in tasks], run)
    connection.execute(
        "UPDATE runs SET resolved = resolved + ? WHERE client_id = ? AND seq = ?", (len(tasks), who.client_id, run.seq)
    )


def checked_tasks(connection: Connection, client_id: str, run: RunKey, tasks: Iterable[TaskRow]) -> list[TaskRow]:
    """Return the tasks outside the files that the run reported as unchecked; none if such a report names no file."""
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
    # A location is also within each of its prefixes that end before a `/` or `:`.
    at = {seq: [text, *(text[: sign.start()] for sign in regex.finditer("[/:]", text))] for seq, text in rows}
    return [by_seq[seq] for seq, locations in at.items() if files.isdisjoint(locations)]


def select_runs(
    connection: Connection, client_id: str, query: RunQuery, cursor: ListCursor | None
) -> tuple[Iterator[Run], int]:
    """Return a page of runs, newest first, with one extra run if there is a next page; and the total number."""
    wanted = Filter(
        types=frozenset_or_none(query.project_type),
        target_url=query.target_url,
        main_line=query.main_line,
        names=frozenset_or_none(query.branch),
        statuses=frozenset_or_none(query.status),
    )
    plan = plan_rows(connection, client_id, "runs", wanted, wanted.conditions("runs"))
    rows = plan.after(cursor).page(connection, client_id, "runs", RUN_COLUMNS, "", query)
    return map(run_model, rows), plan.count(connection)


# --- Store: reading tasks --------------------------------------------------

SPLIT_MARKS = dict.fromkeys((0xF73, 0xF75, 0xF81))  # the only marks of combining class 0 that decompose into others


def fold_text(text: str) -> str:
    """Return a text without case and accents: Unicode's canonical caseless form without marks.

    Ligatures become their letters, and ß becomes ss. Other letters that only look alike stay different. So do Hangul
    syllables, because they are composed again after the removal.
    """
    if text.isascii():
        return text.lower()
    # Remove the marks first: NFD sorts a sequence of marks in quadratic time.
    bare = "".join(itertools.filterfalse(unicodedata.combining, text.casefold().translate(SPLIT_MARKS)))
    plain = itertools.filterfalse(unicodedata.combining, unicodedata.normalize("NFD", bare))
    return unicodedata.normalize("NFC", "".join(plain))


def words_of(
    title: str, external_id: str | None, labels: str, rule: str | None, location: str | None, tags: Iterable[str]
) -> str:
    """Return the search text of a task: the words of these fields after `fold_text`, separated by spaces."""
    marks = f"{rule or ''} {location or ''} {' '.join(tags)}"
    return " ".join(fold_text(f"{title} {external_id or ''} {labels} {marks}").split())


def evidence_labels(evidence: Iterable[Any]) -> str:
    """Return the labels of a task's evidence, separated by spaces."""
    return " ".join([item.label for item in evidence if item.label])


SEVERITY_NAME = f"""CASE tasks.severity {" ".join(f"WHEN {rank} THEN '{name}'" for name, rank in RANKS.items())} END"""
CLAIM = """'{"id":"' || claims.id || '",' || claims.holder || ',"until":"' || claims.until || '"}'"""
EMPTY = {"evidence": "[]", "remediation": "[]", "success_criteria": "[]", "extensions": "{}"}  # returned for NULL
EXPRESSIONS = {
    "target_url": "NULLIF(tasks.target_url, '')",
    "branch": "NULLIF(tasks.branch, '')",
    "severity": SEVERITY_NAME,
    "reported_severity": SEVERITY_NAME.replace("severity", "reported_severity"),
    "claim": f"""CASE WHEN tasks.claim_id IS NOT NULL THEN (
        SELECT {CLAIM} FROM claims WHERE claims.client_id = tasks.client_id AND claims.id = tasks.claim_id) END""",
} | {name: f"COALESCE(task_details.{name}, '{empty}')" for name, empty in EMPTY.items()}
# The fields that are stored. The ETag is not: it is a hash of a task's row.
HEAD_FIELDS = tuple(name for name in TaskHead.__struct_fields__ if name != "etag")
DETAIL_FIELDS = tuple(name for name in Task.__struct_fields__ if name not in TaskHead.__struct_fields__)


def columns_of(table: str, names: Iterable[str]) -> str:
    """Return the SELECT list for fields: the table's columns of these names, or their `EXPRESSIONS`."""
    return ", ".join(EXPRESSIONS.get(name, f"{table}.{name}") for name in names)


# The number of history entries is part of the ETag, because each change adds an entry: also one of only the details,
# or a second one in the same millisecond. Their seqs are not, because a copy of the database may have others.
HEAD_COLUMNS = f"""{columns_of("tasks", HEAD_FIELDS)},
    (SELECT COUNT(*) FROM history WHERE history.client_id = tasks.client_id AND history.task_seq = tasks.seq)"""
DETAIL_COLUMNS = columns_of("task_details", DETAIL_FIELDS)
DETAILS = "JOIN task_details ON task_details.client_id = tasks.client_id AND task_details.task_seq = tasks.seq"
NO_ITEMS = Raw(b"[]")


def row_etag(head: Sequence[Any]) -> str:
    """Return the ETag of a task from a row of HEAD_COLUMNS. It leaves out the claim, which is often extended."""
    return f'"{hashlib.sha256(to_json((*head[:-2], head[-1]))).hexdigest()[:32]}"'


def task_head(row: Sequence[Any]) -> TaskHead:
    """Return a TaskHead from a row of HEAD_COLUMNS."""
    return cast(TaskHead, with_raw_json(TaskHead(*(*row[:-1], row_etag(row)))))


def with_raw_json(head: Any) -> Any:
    """Return a TaskHead whose JSON texts are replaced by `Raw`: they stay unparsed, and responses repeat them."""
    head.tags = Raw(head.tags) if head.tags else NO_ITEMS
    head.links = Raw(head.links) if head.links else NO_ITEMS
    head.verification = head.verification and Raw(head.verification)
    head.proposal = head.proposal and Raw(head.proposal)
    head.claim = head.claim and Raw(head.claim)
    return head


def task_model(row: Sequence[Any]) -> Task:
    """Return a Task from a row of HEAD_COLUMNS and DETAIL_COLUMNS. JSON stays unparsed; responses repeat it."""
    *fields, _ = head = row[: len(HEAD_FIELDS) + 1]
    task = with_raw_json(Task(*(*fields, row_etag(head), *row[len(head) :])))
    for name in EMPTY:
        setattr(task, name, Raw(getattr(task, name)))
    return cast(Task, task)


WHOLE_TASKS = f"SELECT {HEAD_COLUMNS}, {DETAIL_COLUMNS} FROM tasks {DETAILS} WHERE"
ONE_TASK = f"{WHOLE_TASKS} tasks.client_id = ? AND tasks.id = ?"


def select_task(connection: Connection, client_id: str, task_id: str) -> Task:
    """Return a task with all fields. :raises Missing: if the client has no such task."""
    row = connection.execute(ONE_TASK, (client_id, task_id)).fetchone()
    if row is None:
        raise Missing(f"There is no task {truncate(task_id)!r}.")
    return task_model(row)


class Search(Protocol):
    """Interface of a text search for tasks, which an optional module implements."""

    def condition(self, client_id: str) -> Condition:
        """Return the SQL condition that a task's search text contains all words of the search."""

    def plan(self, connection: Connection, client_id: str) -> ListPlan:
        """Return the plan of the list of all matching tasks, with `settled={"search"}`."""


class TaskFilter(Filter, frozen=True, kw_only=True):
    """Filter of tasks, in which the runs, branches and times (`span`: a range of seqs) are already looked up."""

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
    claimed: bool | None = None
    proposed: bool | None = None
    verified: frozenset[str] | None = None
    span: tuple[int, int] | None = None
    search: Search | None = None

    columns: ClassVar = Filter.columns | {"rules": "rule", "external_id": "external_id", "assignee": "assignee"}

    @property
    def reporters(self) -> dict[str, Sequence[Source]]:
        """By field, the runs or branches of the filter's types and target. One per field must have reported a task."""
        given = {"runs": self.runs, "branches": self.branches, "new_in": self.new_in}
        return {
            field: [each for each in reporters if self.covers(*each.type_and_target)]
            for field, reporters in given.items()
            if reporters is not None
        }


MAX_REPORTERS = 1_000  # branches, each of one project type and target, from which one list is merged


def provided_by(module: str, registered: Value | None, parameter: str) -> Value:
    """Return `registered`, a module's function for a parameter. :raises InvalidParameter: if it is not installed."""
    if registered is None:
        raise InvalidParameter(parameter, f"needs {load_module(module)}")
    return registered


def read_task_filter(connection: Connection, client_id: str, query: TaskFilters) -> TaskFilter:
    """Return the filter of a query, after looking up its runs, branches and times.

    :raises Missing: if the run in `missingFrom` or `newIn` does not exist.
    :raises InvalidParameter: for too many branches, an empty search, or a filter of a module that is not installed.
    """
    search, new_in, baseline = None, None, None
    if query.q is not None:  # an invalid parameter is reported before an unknown run
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
        claimed=query.claimed,
        proposed=query.proposed,
        verified=frozenset_or_none(query.verified),
        span=select_span(connection, client_id, query.created_since, query.created_before),
        search=search,
    )
    if len(wanted.reporters.get("branches", ())) > MAX_REPORTERS:
        detail = f"exists for over {MAX_REPORTERS:,} project types and targets; add projectType or targetUrl"
        raise InvalidParameter("branch", detail)
    return wanted


def select_span(
    connection: Connection, client_id: str, since: str | None, before: str | None
) -> tuple[int, int] | None:
    """Return the seqs [first, end) of tasks created from `since` until before `before`, or None for all tasks."""
    if since is None and before is None:
        return None
    newest = "SELECT COALESCE(MAX(seq), 0) + 1 FROM tasks WHERE client_id = ?"
    (above,) = connection.execute(newest, (client_id,)).fetchone()
    first = select_first_seq(connection, client_id, since, above) if since else 0
    end = select_first_seq(connection, client_id, before, above) if before else above
    return (first, end) if first or end < above else None


def select_first_seq(connection: Connection, client_id: str, at: str, above: int) -> int:
    """Return the seq from which on all tasks were created at `at` or later; `above` if there are no such tasks.

    This is a binary search, because `created_at` never decreases with the seq (see `select_submitting`).
    """

    def created_from(seq: int) -> str:
        row = connection.execute(
            "SELECT created_at FROM tasks WHERE client_id = ? AND seq >= ? ORDER BY seq LIMIT 1", (client_id, seq)
        ).fetchone()
        return row[0] if row else at

    return bisect.bisect_left(range(above), at, key=created_from)


def reported_by(client_id: str, reporters: Sequence[Source]) -> Condition:
    """Return the SQL condition that at least one of the given runs or branches reported a task.

    Up to twenty are looked up one by one. For more, all sightings of the task are read, because these are mostly fewer.
    With EXISTS, PostgreSQL would list all tasks that they reported, once for each index range.
    """
    if not reporters:
        return "1 = 0", ()
    table, column = reporters[0].sightings, f"seen.{reporters[0].column}"
    one, values = among(column if len(reporters) <= 20 else f"COALESCE({column}, 0)", [each.seq for each in reporters])
    seen = f"SELECT 1 FROM {table} AS seen WHERE seen.client_id = ? AND {one} AND seen.task_seq = tasks.seq"
    return f"({seen} LIMIT 1) IS NOT NULL", (client_id, *values)


def missing_from(connection: Connection, client_id: str, run: RunKey) -> Condition:
    """Return the SQL condition for a run's missing findings: those that its branch knows but no longer reports.

    Neither the run nor a later run of its branch reported them. So an older run that ends late resolves nothing that
    newer runs reported. The main line knows what its runs reported. A branch knows that and what its own runs reported.
    """
    branch = find_branch_of_run(connection, client_id, run)
    known, more = reported_by(client_id, [branch] if branch else [])
    later = """(SELECT 1 FROM sightings AS seen
        JOIN runs ON runs.client_id = seen.client_id AND runs.seq = seen.run_seq
        WHERE seen.client_id = ? AND seen.task_seq = tasks.seq AND seen.run_seq >= ? AND runs.branch = ? LIMIT 1)"""
    values = (client_id, run.seq, run.branch)
    return (f"tasks.external_id IS NOT NULL AND (tasks.branch = '' OR {known}) AND {later} IS NULL", (*more, *values))


def tagged(client_id: str, tags: Iterable[str]) -> Condition:
    """Return the SQL condition that a task has at least one of the tags. Lookups use the whole key of `task_tags`."""
    one, values = among("tag", tags)
    line = "main_line = CASE tasks.branch WHEN '' THEN 1 ELSE 0 END"
    same = f"{line} AND status = tasks.status AND severity = tasks.severity AND task_seq = tasks.seq"
    found = f"SELECT 1 FROM task_tags WHERE client_id = ? AND {one} AND {same} LIMIT 1"
    return f"({found}) IS NOT NULL", (client_id, *values)


def located(location: str) -> Condition:
    """Return the SQL condition for tasks at a location, or at one that continues it with `/` or `:`."""
    if location.endswith(("/", ":")):
        return "instr(tasks.location, ?) = 1", (location,)
    further = "instr(tasks.location, ?) = 1 OR instr(tasks.location, ?) = 1"
    return f"(tasks.location = ? OR {further})", (location, f"{location}/", f"{location}:")


def plan_tasks(connection: Connection, client_id: str, wanted: TaskFilter, order: str = "-createdAt") -> ListPlan:
    """Return the plan of a filtered task list: the index ranges to read, and conditions for the remaining fields."""
    if (run := wanted.missing_from) is not None:  # missing findings are unfinished, and of the run's type and target
        about = frozenset({run.project_type} if wanted.covers(*run.type_and_target) else ())
        statuses = frozenset(UNFINISHED if wanted.statuses is None else wanted.statuses.intersection(UNFINISHED))
        wanted = replace(wanted, types=about, target_url=run.target_url, statuses=statuses)
    conditions = wanted.conditions("tasks")
    for field, column in (("assigned", "assignee"), ("claimed", "claim_id"), ("proposed", "proposal")):
        if (present := getattr(wanted, field)) is not None:
            conditions[field] = (f"tasks.{column} IS {'NOT ' if present else ''}NULL", ())
    if wanted.verified is not None:  # the stored text begins with {"outcome":"
        outcome = "COALESCE(substr(tasks.verification, 13, 5), 'none')"
        conditions["verified"] = among(outcome, {name[:5] for name in wanted.verified})
    for field, reporters in wanted.reporters.items():
        conditions[field] = reported_by(client_id, reporters)
    if wanted.baseline is not None:
        known, values = reported_by(client_id, [wanted.baseline])
        conditions["baseline"] = (f"(NOT {known} OR tasks.rule = ?)", (*values, UNCHECKED))
    if wanted.tags is not None:
        conditions["tags"] = tagged(client_id, wanted.tags)
    if wanted.location is not None:
        conditions["location"] = located(wanted.location)
    if wanted.without is not None:
        column = "tags" if wanted.without == "tag" else wanted.without
        conditions["without"] = (f"tasks.{column} IS NULL", ())
    if run is not None:
        conditions["missing_from"] = missing_from(connection, client_id, run)
    if wanted.search is not None:
        conditions["search"] = wanted.search.condition(client_id)
    found = plan_rows(connection, client_id, "tasks", wanted, conditions, order)
    if wanted.span is None:
        return found
    first, end = wanted.span
    return found.narrowed(lambda each: each.where(f"{each.seq} >= ? AND {each.seq} < ?", first, end))


def select_tasks(
    connection: Connection, client_id: str, wanted: TaskFilter, query: TaskQuery, cursor: ListCursor | None
) -> tuple[Iterator[TaskHead], ListPlan]:
    """Return a page of tasks, with one extra task if there is a next page; and the list's plan, to count it."""
    whole = query.view == "full"
    columns, joined = (f"{HEAD_COLUMNS}, {DETAIL_COLUMNS}", DETAILS) if whole else (HEAD_COLUMNS, "")
    plan = plan_tasks(connection, client_id, wanted, query.sort)
    rows = plan.after(cursor).page(connection, client_id, "tasks", columns, joined, query)
    return map(task_model if whole else task_head, rows), plan


def select_history(
    connection: Connection, client_id: str, task_seq: int, limit: int, offset: int
) -> Iterator[HistoryEntry]:
    """Yield up to `limit` + 1 entries of a task's history, oldest first, after skipping `offset` entries."""
    rows = connection.execute(
        """SELECT at, event, NULLIF(key_name, ''), user_name, run_id, from_status, to_status, reason, assignee, comment,
               COALESCE(changed, '[]'), COALESCE(details, '{}')
           FROM history WHERE client_id = ? AND task_seq = ? ORDER BY seq LIMIT ? OFFSET ?""",
        (client_id, task_seq, limit + 1, offset),
    )
    for *fields, changed, details in rows:
        yield HistoryEntry(*(*fields, Raw(changed)), **from_json(details))


# --- Store: writing tasks --------------------------------------------------


class TaskContent(Struct, gc=False):
    """Fields of a task that every report sets, as columns: of `tasks` if lists show them, else of `task_details`."""

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
CONTENT_COLUMNS = CONTENT_COLUMNS.replace("tasks.severity", "COALESCE(tasks.reported_severity, tasks.severity)")
API_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(Task)}
SEARCHED = {"title", "evidence", "rule", "location", "tags", "externalId"}  # API names of the fields in the search text


class NewTask(TaskContent, gc=False, kw_only=True):
    """A submitted task, validated and converted to stored values. `labels` are the labels of its evidence."""

    external_id: str | None
    status: TaskStatus | None = None
    labels: str = ""
    former_ids: Sequence[str] = ()
    old_id: str = ""  # another external id that the stored finding may have; it does not become a former id
    old_title: str = ""  # the title that the finding with `old_id` must have, apart from numbers; "" for any
    identity: str | None = None  # base of the external id; a number is added if several findings share it
    place: tuple[str, int, int] = ("", 0, 0)  # path, line and column, which distinguish reports of one identity
    twin_of: str | None = None  # the identity, if the external id is that with a number added
    former_match: str | None = None  # if numbered: external id of the stored finding that a former id names, "" if none

    @property
    def words(self) -> str:
        """The task's search text; see `words_of`."""
        tags = tags_in(self.tags) if self.tags else ()
        return words_of(self.title, self.external_id, self.labels, self.rule, self.location, tags)


class TaskRow(Record, frozen=True):
    """State of a stored task, for triage, counters and history. `tags` is a JSON text, or None without tags."""

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
    is_decided: int = 0  # 1 after a triage decision changed its status or reason
    reported_severity: int | None = None  # if triage has overridden it
    until: str | None = None
    duplicate_of: str | None = None
    claim_id: str | None = None
    proposal: str | None = None
    links: str | None = None
    verification: str | None = None

    def after(self, update: Decision, *, is_decision: bool = False) -> TaskRow:
        """Return the state after an update, or self if nothing changes.

        A new status drops the old reason and `until`, a new status or assignee ends the claim, and a resolved or
        dismissed task has no proposal. :param is_decision: True for triage, which sets `is_decided`; False otherwise.
        """
        status = update.status or self.status
        stays = status == self.status
        reason = update.reason or (self.reason if stays else None)
        assignee = self.assignee if update.assignee is None else update.assignee or None
        until = self.until if update.until is None and stays else update.until or None
        original = self.duplicate_of if stays and reason == self.reason else None
        links = update.links if isinstance(update, TaskUpdate) else None
        severity, reported = self.severity, self.reported_severity
        if update.severity == "reported":
            severity, reported = reported or severity, None
        elif update.severity is not None:
            severity, reported = RANKS[update.severity], reported or severity
        decides = is_decision and (status, reason) != (self.status, self.reason)
        new = replace(
            self,
            is_decided=int(decides or self.is_decided),
            status=status,
            reason=reason,
            assignee=assignee,
            severity=severity,
            reported_severity=reported,
            until=until,
            duplicate_of=update.duplicate_of or original,
            claim_id=self.claim_id if stays and assignee == self.assignee else None,
            proposal=self.proposal if status in UNFINISHED else None,
            links=self.links if links is None else joined_links(None, links),
        )
        return self if new == self else new


class StoredFinding(Record, frozen=True):
    """A stored finding that a report matches; `seen_by_run` is whether the report's run reported it before."""

    state: TaskRow
    content: Sequence[Any]  # values of the fields of TaskContent
    external_id: str
    seen_by_run: bool

    def changed(self, report: NewTask, branch: str) -> list[str]:
        """Return the API names of the fields that a report changes. :param branch: the task's branch after it."""
        before = (*self.content, self.state.branch, self.external_id)
        after = (*content_of(report), branch, report.external_id)
        if before == after:
            return []
        # Missing extensions equal {}. Only extensions are stored exactly as sent, so equal ones may differ in form.
        overridden = {"severity": "reportedSeverity"} if self.state.reported_severity else {}
        return [
            overridden.get(name, API_NAMES[name])
            for name, one, other in zip((*CONTENT, "branch", "external_id"), before, after, strict=True)
            if one != other and not (name in EMPTY and same_json(one or "{}", other or "{}"))
        ]

    def next_state(self, report: NewTask, branch: str) -> TaskRow:
        """Return the finding's state after a report. :param branch: the task's branch after it.

        A resolved finding reopens, unless it is reported as resolved or dismissed. A finding without a triage decision
        is dismissed when it is reported as dismissed (suppressed by the scanner), and reopened when it no longer is.
        """
        state, reported = self.state, report.status
        is_undecided = not state.is_decided
        if state.status == "resolved":
            is_changed = reported not in ("resolved", "dismissed")
        elif state.status == "dismissed":
            is_changed = is_undecided and reported in (None, "open")
        else:
            is_changed = is_undecided and reported == "dismissed"
        if is_changed:
            state = state.after(Decision(status="dismissed" if reported == "dismissed" else "open"))
        level = "reported_severity" if state.reported_severity else "severity"
        reported_labels = branch, report.rule, report.tags, report.severity
        if reported_labels == (state.branch, state.rule, state.tags, getattr(state, level)):
            return state
        return replace(state, branch=branch, rule=report.rule, tags=report.tags, **{level: report.severity})

    def repeated(self, report: NewTask, run_branch: str) -> RepeatedReport:
        """Return a report of this finding with the changes that it makes. :param run_branch: the run's branch.

        A branch's report does not change a main-line task. A main-line report moves a branch's task to the main line.
        """
        if run_branch and not self.state.branch:
            return RepeatedReport(self, report, [], self.state)
        branch = run_branch and self.state.branch
        return RepeatedReport(self, report, self.changed(report, branch), self.next_state(report, branch))


def joined_links(stored: str | None, added: Iterable[Link]) -> str | None:
    """Return the JSON text of links, stored and added ones, without repetitions; None if there are none."""
    links = [*from_json(stored or "[]"), *map(msgspec.to_builtins, added)]
    unique = {(link["rel"], link["url"]): link for link in links}
    return to_json_text([*unique.values()]) if unique else None


TASK_ROW_COLUMNS = ", ".join(f"tasks.{name}" for name in TaskRow.__struct_fields__)


def select_task_rows(connection: Connection, client_id: str, condition: str, value: str) -> list[TaskRow]:
    """Return the states of tasks that match an SQL condition with two parameters: `client_id` and `value`."""
    statement = f"SELECT {TASK_ROW_COLUMNS} FROM tasks WHERE {condition}"
    return [TaskRow(*row) for row in connection.execute(statement, (client_id, value))]


def select_task_row(connection: Connection, client_id: str, task_id: str) -> TaskRow:
    """Return the state of a task. :raises Missing: if the client has no such task."""
    for state in select_task_rows(connection, client_id, "client_id = ? AND id = ?", task_id):
        return state
    raise Missing(f"There is no task {truncate(task_id)!r}.")


def select_findings(
    connection: Connection, by: SubmissionContext, external_ids: Sequence[str]
) -> dict[str, StoredFinding]:
    """Return the stored findings of a run's type and target with these external ids, by external id.

    Rows after `by.newest` are excluded. This transaction inserted them, with other external ids; PostgreSQL, which has
    no statistics on them yet, would scan them all.
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
            to_json_text(external_ids),
        ),
    )
    state, found = len(TaskRow.__struct_fields__), dict[str, StoredFinding]()
    for row in rows:
        external_id, is_seen = row[-2:]
        found[external_id] = StoredFinding(TaskRow(*row[:state]), row[state:-2], external_id, bool(is_seen))
    return found


COUNTED_BY = attrgetter("project_type", "target_url", "branch", "rule", "tags", "status", "severity")


def index_tasks(connection: Connection, client_id: str, states: Sequence[TaskRow], n: Literal[1, -1]) -> None:
    """Add tasks to the counters and the tag index, or remove them (n = -1)."""
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
    """Update the counters and the tag index from the old to the new states of tasks."""
    moved = [(old, new) for old, new in changes if COUNTED_BY(old) != COUNTED_BY(new)]
    index_tasks(connection, client_id, [old for old, _ in moved], -1)
    index_tasks(connection, client_id, [new for _, new in moved], 1)


def insert_history(
    connection: Connection, who: Principal, now: str, run: RunKey | None, entries: Iterable[Sequence[Any]]
) -> None:
    """Insert task history of (task seq, event, from, to, reason, assignee, comment, changed fields, other details).

    The last two are JSON texts or None: an array of API names, and an object with further members of the entry.
    """
    common = (who.client_id, now, who.name, who.user, *((run.id, run.branch) if run else (None, MAIN_LINE)))
    connection.executemany(
        """INSERT INTO history (client_id, at, key_name, user_name, run_id, branch, task_seq, event, from_status,
               to_status, reason, assignee, comment, changed, details)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        [(*common, *entry) for entry in entries],
    )


COMMON = ("status", "reason", "assignee", "is_decided")  # columns that most decisions change
RARE = ("severity", "reported_severity", "until", "duplicate_of", "claim_id", "proposal", "links", "verification")
rare_of = attrgetter(*RARE)
LABELS = tuple(name for name in HEAD_CONTENT if name != "severity")
REPORTED = ("severity", "status", "reason", "branch")  # columns that a report takes from the new state
labels_of, reported_of = attrgetter(*LABELS), attrgetter(*REPORTED)
decision_of = attrgetter("status", "reason", "until", "duplicate_of")


def triage_tasks(
    connection: Connection, who: Principal, decisions: Iterable[tuple[TaskRow, Decision]], run: RunKey | None = None
) -> int:
    """Apply an update to each of several tasks, and return how many of them got a history entry.

    An unchanged task gets one only for a comment. :param run: the run that resolves the tasks; None for triage.
    """
    decided = [(old, old.after(update, is_decision=run is None), update.comment) for old, update in decisions]
    entries = {old.seq: triage_entries(old, new, comment) for old, new, comment in decided}
    rows = [(seq, *entry) for seq, task_entries in entries.items() for entry in task_entries]
    move_tasks(connection, who, [(old, new) for old, new, _ in decided if new is not old], rows, timestamp(), run)
    return sum(map(bool, entries.values()))


def move_tasks(
    connection: Connection,
    who: Principal,
    changes: Sequence[tuple[TaskRow, TaskRow]],
    entries: Sequence[Sequence[Any]],
    updated_at: str | None = None,
    run: RunKey | None = None,
) -> None:
    """Store new states of tasks, with history entries as `insert_history` takes them.

    :param updated_at: None if it stays, as for claims. :param run: the run that caused the changes, if one did.
    """
    update_states(connection, who.client_id, changes, updated_at)
    move_in_counters(connection, who.client_id, changes)
    insert_history(connection, who, updated_at or timestamp(), run, entries)


def update_states(
    connection: Connection, client_id: str, changes: Sequence[tuple[TaskRow, TaskRow]], updated_at: str | None
) -> None:
    """Update the columns `COMMON` of tasks, and `RARE` only where they changed, because that updates more indexes."""
    rare = [rare_of(old) != rare_of(new) for old, new in changes]
    for columns, is_rare in ((COMMON, False), ((*COMMON, *RARE), True)):
        if is_rare in rare:
            values_of = attrgetter(*columns)
            connection.executemany(
                f"""UPDATE tasks SET {assignments(columns)}, updated_at = COALESCE(?, updated_at)
                   WHERE client_id = ? AND seq = ?""",
                [
                    (*values_of(new), updated_at, client_id, new.seq)
                    for (_, new), each in zip(changes, rare, strict=True)
                    if each is is_rare
                ],
            )


def open_tasks(
    connection: Connection, who: Principal, states: Sequence[TaskRow], event: TaskEvent, updated_at: str | None = None
) -> None:
    """Open tasks without a decision, with a history entry for each. :param updated_at: None if it stays."""
    changes = [(state, state.after(Decision(status="open"))) for state in states]
    entries = [(state.seq, event, state.status, "open", None, None, None, None, None) for state in states]
    move_tasks(connection, who, changes, entries, updated_at)


def triage_entries(old: TaskRow, new: TaskRow, comment: str | None) -> list[Row]:
    """Return the history entries of a decision, as `insert_history` takes them, without the task's seq.

    A comment is part of the entry for a new status or reason. Without these, it has an entry of its own.
    """
    entries: list[Row] = []
    if moved := decision_of(old) != decision_of(new):
        entries.append(("status", old.status, new.status, new.reason, None, comment, None, None))
    if old.assignee != new.assignee:
        entries.append(("assigned", None, None, None, new.assignee, None, None, None))
    if (old.severity, old.reported_severity) != (new.severity, new.reported_severity):
        severity = to_json_text({"severity": SEVERITIES[-new.severity]})
        entries.append(("severity", None, None, None, None, None, None, severity))
    if old.links != new.links:
        entries.append(("linked", None, None, None, None, None, '["links"]', None))
    if comment is not None and not moved:
        entries.append(("comment", None, None, None, None, comment, None, None))
    return entries


class SubmissionContext(Record, frozen=True):
    """A submission in progress: its sender, run, branch and time.

    `newest` and `newest_id` are seq and id of the client's newest task before it. New tasks get `created_at`, which is
    later than `now` if the newest task's is (see `select_submitting`).
    """

    who: Principal
    run: RunKey
    branch: BranchKey | None
    newest: int
    newest_id: str | None
    now: str
    created_at: str


def insert_sightings(connection: Connection, by: SubmissionContext, states: Sequence[TaskRow]) -> None:
    """Record that a run and its branch reported tasks; none of them may have been recorded for this run before.

    A branch's report of a main-line task gets `counted` = 0. :param states: the tasks after the report.
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


def insert_tasks(connection: Connection, by: SubmissionContext, reports: Sequence[NewTask]) -> list[TaskResult]:
    """Insert new findings with details, history, search text and counters; return the result of each report."""
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
    entries = [(state.seq, "created", None, state.status, None, None, None, None, None) for state in states]
    insert_history(connection, who, now, run, entries)
    connection.executemany(
        "INSERT INTO task_words (client_id, task_seq, words) VALUES (?, ?, ?)",
        [(who.client_id, state.seq, report.words) for state, report in added],
    )
    index_tasks(connection, who.client_id, states, 1)
    return [TaskResult(state.id, state.status, report.external_id, "created") for state, report in added]


class RepeatedReport(Record, frozen=True):
    """Report of a stored finding: the API names of the fields that it changes, and the finding's new state."""

    finding: StoredFinding
    report: NewTask
    changed: list[str]
    state: TaskRow

    @property
    def result(self) -> Literal["updated", "reopened", "unchanged"]:
        """The effect of the report on the finding."""
        moved = self.state.status != self.finding.state.status
        if moved and self.state.status == "open":
            return "reopened"
        return "updated" if moved or self.changed else "unchanged"

    @property
    def entry(self) -> Row:
        """The history entry for a report that changed something, as `insert_history` takes it."""
        before, after = self.finding.state.status, self.state.status
        moved = (before, after) if before != after else (None, None)
        return (self.state.seq, "reported", *moved, None, None, None, json.dumps(self.changed), None)


def assignments(columns: Iterable[str]) -> str:
    """Return the assignments of an UPDATE that sets each column to a parameter."""
    return ", ".join(f"{column} = ?" for column in columns)


def update_tasks(connection: Connection, by: SubmissionContext, repeated: Sequence[RepeatedReport]) -> list[TaskResult]:
    """Update stored findings from new reports, record that the run reported them, and return each result."""
    who, now = by.who, by.now
    rewritten = [item for item in repeated if item.result != "unchanged"]
    changes = [(item.finding.state, item.state) for item in rewritten]
    moved = [(old, new) for old, new in changes if old.status != new.status or new.reported_severity]
    update_states(connection, who.client_id, moved, now)
    connection.executemany(
        f"""UPDATE tasks SET {assignments((*LABELS, *REPORTED))}, updated_at = ? WHERE client_id = ? AND seq = ?""",
        [(*labels_of(item.report), *reported_of(item.state), now, who.client_id, item.state.seq) for item in rewritten],
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
    by: SubmissionContext,
    reports: Mapping[str | int, NewTask],
    findings: Mapping[str, StoredFinding],
    results: dict[str | int, TaskResult],
) -> int:
    """Insert or update the findings of reports; return how many of them the run had not reported before.

    :param reports: by key: the external id, or the index of a report without one.
    :param findings: the stored findings, by key of their report. :param results: receives each result, by key.
    """
    new = {key: report for key, report in reports.items() if key not in findings}
    if new:
        results.update(zip(new, insert_tasks(connection, by, list(new.values())), strict=True))
    if findings:
        repeated = [each.repeated(reports[key], by.run.branch) for key, each in findings.items()]
        results.update(zip(findings, update_tasks(connection, by, repeated), strict=True))
    return len(new) + sum(not finding.seen_by_run for finding in findings.values())


def select_submitting(connection: Connection, who: Principal, run_id: str) -> SubmissionContext:
    """Return the state of a submission that begins now.

    If the newest task was created later than now, by a clock that was ahead, new tasks get its time. So the orders by
    `created_at`, `id` and `seq` are the same: a list by date is a range of seqs, and cursors survive deletions.

    :raises Missing: if the run was deleted since it was read. :raises RunFinished: if it is no longer running.
    """
    newest_task = connection.execute(
        "SELECT seq, id, created_at FROM tasks WHERE client_id = ? ORDER BY seq DESC LIMIT 1", (who.client_id,)
    )
    run = select_run_key(connection, who.client_id, run_id)
    branch = find_branch_of_run(connection, who.client_id, run) if run.branch else None
    if run.status != "running":
        raise RunFinished(f"The run is already {run.status}; start another run to submit more tasks.")
    newest, newest_id, created_at = newest_task.fetchone() or (0, None, "")
    now = timestamp()
    return SubmissionContext(who, run, branch, newest, newest_id, now, max(now, created_at))


def count_results(results: Iterable[TaskResult]) -> tuple[int, int, int, int]:
    """Return the numbers of tasks that were created, updated, reopened and unchanged."""
    found = Counter(each.result for each in results)
    return found["created"], found["updated"], found["reopened"], found["unchanged"]


REPORTS_AT_ONCE = 500  # reports in a batch of a submission
Numbering: TypeAlias = Callable[[Connection, SubmissionContext, Sequence[NewTask]], None]


def submit_reports(
    connection: Connection, who: Principal, run_id: str, reports: Sequence[NewTask], number: Numbering | None = None
) -> Submission:
    """Insert the new findings of a submission and update the known ones, in batches of reports.

    The batches limit the memory. If several reports have the same external id, only the last one is stored.

    :param number: sets the external ids of all reports that have an `identity`.
    :raises Missing: if the run was deleted since it was read. :raises RunFinished: if it is no longer running.
    """
    by = select_submitting(connection, who, run_id)
    if number:
        number(connection, by, reports)
    # Keyed by external id, or by index for a report without one. A dict keeps the position of the first duplicate.
    identities = [report.external_id or index for index, report in enumerate(reports)]
    unique = iter(dict(zip(identities, reports, strict=True)).items())
    results: dict[str | int, TaskResult] = {}
    sightings = 0
    taken = {key for key in identities if isinstance(key, str)}
    while batch := dict(itertools.islice(unique, REPORTS_AT_ONCE)):
        external_ids = sorted(key for key in batch if isinstance(key, str))
        findings = select_findings(connection, by, external_ids)
        unknown = [batch[key] for key in external_ids if key not in findings]
        if unknown:
            findings |= REGISTRY.find_by_former_ids(connection, by, unknown, taken)
        sightings += store_reports(connection, by, batch, findings, results)
    counts = count_results(results.values())
    is_partial = any(report.rule == UNCHECKED for report in reports)
    connection.execute(
        """UPDATE runs SET created = created + ?, updated = updated + ?, reopened = reopened + ?,
               unchanged = unchanged + ?, reported = reported + ?, is_partial = is_partial | ?, updated_at = ?,
               last_used_at = ?
           WHERE client_id = ? AND seq = ?""",
        (*counts, sightings, int(is_partial), by.now, by.now, who.client_id, by.run.seq),
    )
    return Submission(*counts, [results[key] for key in identities])


# --- Store: responses kept for retries (Idempotency-Key) -------------------

ANSWER_KEPT = 24 * 3600.0  # seconds
EXPIRED_AT_ONCE = 4  # stored responses that one request drops, each with up to a thousand references
SAME_REQUEST = "client_id = ? AND key_id = ? AND method = ? AND path = ? AND idempotency_key = ?"
DELETED = ""  # in place of the body's hash: the response was dropped, and its key cannot be used again


class RequestKey(Record, frozen=True):
    """Identity of a request that may be retried: the sender, the method and path, and the Idempotency-Key."""

    client_id: str
    key_id: str
    method: str
    path: str
    idempotency_key: str


class StoredResponse(Record, frozen=True):
    """A response that is kept for retries of a request; `body_hash` is the hash of the request's body."""

    body_hash: str
    status: int
    location: str | None
    body: str


def select_response(connection: Connection, request: RequestKey, body_hash: str) -> StoredResponse | None:
    """Return the response to an earlier request with the same `RequestKey`, or None if none is kept.

    :raises IdempotencyConflict: if the earlier request had another body, or if data in its response was deleted.
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
        raise IdempotencyConflict("Data in the response to this Idempotency-Key was deleted; use a new key.")
    if stored.body_hash != body_hash:
        raise IdempotencyConflict("This Idempotency-Key was used for another body; use a new key for a new request.")
    return stored


def insert_response(
    connection: Connection, request: RequestKey, response: StoredResponse, references: Mapping[str, bool]
) -> None:
    """Insert a response, and delete a few of the client's expired ones.

    :param references: the ids in the response's body and path; the value is True for an id in the path.
    """
    now = timestamp()
    connection.execute(  # otherwise, responses stored while the clock was ahead would expire years too late
        "UPDATE idempotent_answers SET created_at = ? WHERE client_id = ? AND created_at > ?",
        (now, request.client_id, timestamp(ago=-CLOCKS_DIFFER)),
    )
    expired = "SELECT seq FROM idempotent_answers WHERE client_id = ? AND created_at <= ? ORDER BY created_at LIMIT ?"
    connection.execute(
        f"DELETE FROM idempotent_answers WHERE client_id = ? AND seq IN ({expired})",
        (request.client_id, request.client_id, timestamp(ago=ANSWER_KEPT), EXPIRED_AT_ONCE),
    )
    connection.execute(  # an earlier response for this key has expired; otherwise it would have been returned
        f"DELETE FROM idempotent_answers WHERE {SAME_REQUEST}", astuple(request)
    )
    (seq,) = connection.execute(
        """INSERT INTO idempotent_answers (client_id, key_id, method, path, idempotency_key,
               body_hash, status, location, body, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq""",
        (*astuple(request), *astuple(response), now),
    ).fetchone()
    insert_references(connection, request.client_id, seq, references)


def insert_references(connection: Connection, client_id: str, answer_seq: int, references: Mapping[str, bool]) -> None:
    """Insert the ids and names that a stored response contains, so that deletions can find it."""
    connection.executemany(
        "INSERT INTO answer_references (client_id, reference, answer_seq, in_path) VALUES (?, ?, ?, ?)",
        [(client_id, reference, answer_seq, int(in_path)) for reference, in_path in references.items()],
    )


def drop_responses(connection: Connection, client_id: str, *deleted: str) -> None:
    """Drop the stored responses that contain one of the deleted ids or names.

    If one is in the request's path, the whole row is deleted, so a retry gets 404. Of any other response, only the
    Idempotency-Key is kept, so a retry gets 409.
    """
    about = f"""client_id = ? AND seq IN (
        SELECT answer_seq FROM answer_references WHERE client_id = ? AND reference {LISTED}"""
    values = (client_id, client_id, to_json_text(deleted))
    connection.execute(f"DELETE FROM idempotent_answers WHERE {about} AND in_path = 1)", values)
    connection.execute(
        f"UPDATE idempotent_answers SET body_hash = ?, location = NULL, body = '' WHERE {about})", (DELETED, *values)
    )
    forget = f"DELETE FROM answer_references WHERE client_id = ? AND reference {LISTED}"  # a name may contain a secret
    connection.execute(forget, values[1:])


# --- Request parsing: bodies, and finding all of their problems ------------

READABLE_DIGITS = 4300  # maximum digits of an integer; longer ones are slow to parse in msgspec and in Python
NUL_ESCAPE = regex.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # other databases and C programs cut a text at U+0000
TEXT_PIECE = 1024 * KIB  # bytes that `outside_strings` reads for each piece
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
LEVEL_STEPS = dict(zip(b"[{]}", (1, 1, -1, -1), strict=True))

# Errors that msgspec raises for text that is not JSON. A DecodeError may also be a ValidationError, for valid JSON.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the characters of a JSON text outside of strings, piece by piece; in linear time, mostly in C."""
    inside, escape = 0, b""
    for start in range(0, len(text), TEXT_PIECE):
        piece = (escape + text[start : start + TEXT_PIECE]).replace(rb"\\", b"")
        escape = piece[len(piece.rstrip(b"\\")) :]  # half of an escape sequence, which the next piece completes
        parts = piece.replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2


def require_json(text: bytes, levels: int = NESTING) -> Any:
    """Parse a JSON text. :raises MalformedJSON: if it is not JSON, or has over `levels` levels of nesting.
    :raises msgspec.ValidationError: if an integer has too many digits.
    """
    try:
        if text.count(b"[") + text.count(b"{") > levels:  # linear, and mostly in C
            brackets = b"".join(outside_strings(text)).translate(None, NOT_BRACKETS)
            if max(itertools.accumulate(map(LEVEL_STEPS.__getitem__, brackets)), default=0) > levels:
                raise RecursionError
        return from_json(text)
    except NOT_JSON as error:
        if isinstance(error, msgspec.ValidationError) and str(error).startswith("Integer"):
            raise  # an integer with so many digits that Python would be slow to parse it
        raise not_json(error) from None


def not_json(error: Exception) -> MalformedJSON:
    """Return the `MalformedJSON` for an error of `NOT_JSON`."""
    if isinstance(error, RecursionError):
        return MalformedJSON(f"The body has more than {NESTING} levels of arrays and objects.")
    return MalformedJSON(f"The body is not one UTF-8 JSON value: {error}.")


MOST_VALUES = 500_000  # maximum in a body


def count_values(text: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text: each one follows a comma or a bracket."""
    return sum(map(text.count, (b",", b"[", b"{")))


def require_few_values(text: bytes) -> None:
    """Check that a body has at most `MOST_VALUES` values; more would take hundreds of megabytes to parse.

    :raises ValidationFailed: if it has more, or too many long numbers.
    """
    if len(text) > 5 * LONG_NUMBERS:  # a shorter body cannot have too many of them
        require_plain_numbers(text)
    if count_values(text) <= MOST_VALUES:
        return
    counts = itertools.accumulate(map(count_values, outside_strings(text)))
    if any(count > MOST_VALUES for count in counts):  # stops at the first piece over the limit
        raise ValidationFailed([Problem(f"has over {MOST_VALUES:,} values; send it in parts", "")])


LONG_NUMBERS = 1_000  # maximum in a body; msgspec takes up to 50 µs for each, without releasing the GIL
LONG_NUMBER = regex.compile(rb"[0-9](?:\.?[0-9]){40}|[eE][-+]?[0-9]{3}")
AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")


def count_suspects(text: bytes) -> int:
    """Return an upper bound of the number of matches of `LONG_NUMBER` in a text; parts of hex digests count, too."""
    zeros = text.translate(AS_ZEROS, b"+-")
    return zeros.count(b"0e000") + zeros.count(b"0" * 21)  # 21 of over 40 digits are on one side of the decimal point


def require_plain_numbers(text: bytes) -> None:
    """Limit the `LONG_NUMBER` matches in a body. :raises ValidationFailed: if there are more than `LONG_NUMBERS`."""
    if count_suspects(text) <= LONG_NUMBERS:
        return
    found = sum(len(LONG_NUMBER.findall(bare)) for bare in outside_strings(text) if count_suspects(bare))
    if found > LONG_NUMBERS:
        detail = f"has over {LONG_NUMBERS:,} numbers of over 40 digits or with an exponent of three or more digits"
        raise ValidationFailed([Problem(f"{detail}; send them as strings, or in several requests", "")])


def document_of(text: bytes) -> Any:
    """Parse a JSON text that its model refused, so that all of its problems can be found.

    Integers with more than `READABLE_DIGITS` digits become infinity, because Python would be slow to parse them.

    :raises MalformedJSON: if it is not JSON.
    """
    try:
        return require_json(text)
    except msgspec.ValidationError:
        pass
    # json.loads accepts lone surrogates and 1e999, so this checks the text without its long integers first.
    require_json(regex.sub(rb"[0-9]{%d,}" % READABLE_DIGITS, b"9999", text))
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= READABLE_DIGITS else math.inf)
    except ValueError as error:
        raise not_json(error) from None


def nul_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all strings and member names that contain U+0000."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, str) and "\0" in value:
        yield path
    for name, item in items:
        if isinstance(name, str) and "\0" in name:
            yield (*path, name)
        if isinstance(item, (str, dict, list)):
            yield from nul_paths(item, (*path, name))


def nul_problems(text: bytes, exempt: str | None = None) -> list[Problem]:
    """Return the problems of strings and names with U+0000, up to `MAX_TASK_PROBLEMS` per task; ignore `exempt`."""
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
        if in_task[task] <= MAX_TASK_PROBLEMS:
            problems.append(Problem("must not contain U+0000", json_pointer(path)))
    return problems


@cache
def model_validator(model: Any) -> Any:
    """Return the jsonschema validator of a model, made from the schema that the OpenAPI document publishes."""
    references, components = schemas_of([model])
    schema = {**references[model], "components": {"schemas": components}}
    return validator_of(schema)


def model_problems(model: Any, document: Any, pointer: str = "") -> Iterator[Problem]:
    """Yield up to `MAX_TASK_PROBLEMS` problems of a value that its model refused; not U+0000, see `nul_problems`.

    If jsonschema finds none, a member is duplicate or a number is too large: only msgspec checks that.

    :raises OutOfTime: after the deadline of the enclosing `TimeLimit`.
    """
    nothing = True
    for problem in itertools.islice(iter_problems(model_validator(model), document, pointer), MAX_TASK_PROBLEMS):
        nothing = False
        yield problem
    if nothing and next(nul_paths(document), None) is None:
        yield Problem("has a duplicate member name, or a number that is too large", pointer)


def read_model(model: type[Checked], text: bytes) -> Checked:
    """Parse text as a model. :raises MalformedJSON: if not JSON. :raises msgspec.ValidationError: if it is refused."""
    try:
        return cast(Checked, decoder(model).decode(text))
    except msgspec.ValidationError:
        raise
    except NOT_JSON as error:
        raise not_json(error) from None


class Parsed(Struct):
    """A parsed submission: its tasks as they will be stored, and their extensions, not checked yet, with pointers.

    `complete` is false if the time ran out before all problems were found. `submit_reports` calls `number`, which sets
    external ids: reports that differ only in location get ids with a number.
    """

    reports: list[NewTask] = []
    extensions: list[tuple[str | None, str]] = []
    problems: list[Problem] = []
    complete: bool = True
    number: Numbering | None = None

    def add(self, task: TaskReport, pointer: str) -> None:
        """Add a task that its model accepted, and the problems of the rules that the model cannot express."""
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
        stored: Any = task  # from here on, its fields are replaced by the values of their columns
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
        """Add extensions to those that are checked later; return their text, or None if missing or refused."""
        try:
            extensions, _ = read_object(raw, f"{pointer}/extensions", 256 * KIB)
        except ValidationFailed as error:
            self.problems += error.problems
            return None
        self.extensions.append((extensions, f"{pointer}/extensions"))
        return extensions

    def add_refused(self, text: bytes, pointer: str) -> None:
        """Add the problems of a task that its model refused, up to `MAX_TASK_PROBLEMS` of each kind."""
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
            tags[:MAX_TASK_PROBLEMS] if isinstance(tags := document.get("tags"), list) else (),
        )
        there = {problem.pointer for problem in self.problems[others:]}
        more = (problem.below(pointer) for problem in rules)
        unsaid = (problem for problem in more if problem.pointer not in there)
        self.problems += itertools.islice(unsaid, MAX_TASK_PROBLEMS)
        if isinstance(document.get("extensions"), dict | None):
            self.add_extensions(raw_members(text).get("extensions", Raw()), pointer)


def readable_items(items: Any, model: type[Checked]) -> Iterator[tuple[int, Checked]]:
    """Yield (index, item) for the first `MAX_TASK_PROBLEMS` items of an array; skip items that the model refuses."""
    for index, item in enumerate(items[:MAX_TASK_PROBLEMS] if isinstance(items, list) else ()):
        with suppress(msgspec.ValidationError):
            yield index, converted(item, model)


def to_json_text(value: Any) -> str:
    """Encode a value as JSON text for a column."""
    return to_json(value).decode()


def exceeds_bytes(text: str | None, limit: int) -> bool:
    """Check whether a text has more than `limit` bytes in UTF-8."""
    return text is not None and len(text) * 4 > limit and len(text.encode()) > limit


def rule_problems(
    description: str | None,
    evidence: Iterable[tuple[int, Evidence]],
    remediation: Iterable[tuple[int, RemediationStep]],
    tags: Sequence[Any],
) -> Iterator[Problem]:
    """Yield the problems of a task with rules that its model cannot express; pairs are (index, item)."""
    if exceeds_bytes(description, 64 * KIB):
        yield Problem("must be at most 64 KiB of UTF-8", "/description")
    for index, item in evidence:
        for problem in evidence_problems(item):
            yield problem.below(f"/evidence/{index}")
    taken = set()
    for index, step in remediation:
        number = int(step.step or index + 1)
        if number in taken:
            yield Problem(f"step {number} is used already; steps must differ", f"/remediation/{index}/step")
        taken.add(number)
    for index, tag in enumerate(tags):
        if isinstance(tag, str) and tag in tags[:index]:
            yield Problem("is a duplicate; tags must differ", f"/tags/{index}", value=truncate(tag))


def evidence_problems(item: Evidence) -> list[Problem]:
    """Return the problems of an evidence item with rules that its model cannot express."""
    problems = []
    if item.url is None and item.content is None and item.label is None:
        problems.append(Problem(MISSING_EVIDENCE, ""))
    if exceeds_bytes(item.content, 256 * KIB):
        problems.append(Problem("must be at most 256 KiB of UTF-8", "/content"))
    url = item.url or ""
    scheme, complaint = url[:64].partition(":")[0].lower(), ""
    if scheme in ("javascript", "vbscript"):
        complaint = f"must not be a {scheme}: URL"
    elif scheme != "data" and len(url) > 2048:
        complaint = "must be at most 2,048 characters long"
    elif scheme == "data" and not url[5:].lower().startswith("image/"):
        complaint = "must contain an image if it is a data: URL"
    elif scheme == "data" and exceeds_bytes(url, 256 * KIB):
        complaint = "must be at most 256 KiB if it is a data: URL"
    if complaint:
        problems.append(Problem(complaint, "/url", value=truncate(url)))
    return problems


def read_object(raw: Raw, pointer: str, limit: int) -> tuple[str | None, Any]:
    """Return a free-form object as its text exactly as sent, and its parsed value; (None, {}) if it is null or missing.

    It may have fewer levels than a body, because the task or batch around it counts, too. A SARIF export may add some.

    :raises MalformedJSON: if it is not JSON, which msgspec does not check in a `Raw`.
    :raises ValidationFailed: if it is not an object, or too large.
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


OUT_OF_TIME = Problem("was not checked completely, because that took too long; send less at once", "")


class SlowBody(Struct, frozen=True, eq=False):
    """A body that may break rules. `read` looks for its problems, for up to `schema_timeout` seconds, in a thread.

    `read` returns the parsed body (a `Parsed` contains its problems), or raises `ValidationFailed` with the problems.
    """

    read: Callable[[], Any]


class SubmissionForm(Struct):
    """The members that tell a batch, a task and SARIF apart; parsing all members into a dict would double the time."""

    tasks: Raw = NOT_SENT
    runs: Raw = NOT_SENT
    version: Raw = NOT_SENT


def parse_submission(text: bytes, settings: Settings) -> Parsed | SlowBody:
    """Parse a batch or a single task; return a `SlowBody` if the model refuses it.

    :raises MalformedJSON: if it is not JSON. :raises ValidationFailed: if it is SARIF, or has too many values or tasks.
    """
    require_few_values(text)
    form = SubmissionForm()
    with suppress(*NOT_JSON):
        form = decoder(SubmissionForm).decode(text)
    if form.runs and form.version:
        raise ValidationFailed(
            [Problem("belongs to SARIF; send the document as Content-Type: application/sarif+json", "/runs")]
        )
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
    """Parse a submission that its model refused, and collect the problems of each task that are found in time.

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
    """Return the tasks of a batch as raw JSON, and add the problems of the batch itself to `parsed`."""
    members = raw_members(text)
    around: Json = dict.fromkeys(members)
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
    """Check that a batch has at most `max_batch` tasks. :raises ValidationFailed: if it has more."""
    if len(tasks) > settings.max_batch:
        detail = f"must have at most {settings.max_batch:,} tasks, but has {len(tasks):,}; send them in parts"
        raise ValidationFailed([Problem(detail, "/tasks")])


def task_of(problem: Problem) -> tuple[int, ...]:
    """Return the indexes of the batch's task or the SARIF result that a problem is about; () for the whole body."""
    match = regex.match(r"/tasks/(\d+)|/runs/(\d+)/results/(\d+)", problem.pointer or "")
    return tuple(int(number) for number in match.groups() if number) if match else ()


def one_problem_per_task_first(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems by task. If not all can be listed, put one problem of each bad task first."""
    ordered = sorted(problems, key=task_of)
    if len(ordered) <= LISTED_PROBLEMS:
        return ordered
    firsts = {task_of(problem): problem for problem in reversed(ordered)}.values()
    first_ids = {id(problem) for problem in firsts}
    return sorted(ordered, key=lambda problem: id(problem) not in first_ids)


class FreeForm(Struct, frozen=True):
    """The member of a body that may be any JSON object.

    `read` gets its raw JSON and the settings; it raises ValidationFailed with all problems. `nul` allows U+0000.
    """

    member: str
    read: Callable[[Raw, Any], object]
    nul: bool = False

    def problems(self, raw: Raw, settings: Settings | None = None) -> list[Problem]:
        """Return the problems that `read` finds in the member."""
        try:
            self.read(raw, settings)
        except ValidationFailed as error:
            return list(error.problems)
        return []


def read_metadata(raw: Raw, _: object = None) -> str:
    """Return a run's metadata as JSON text. :raises ValidationFailed: with all of its problems."""
    return read_object(raw, "/metadata", 64 * KIB)[0] or "{}"


def read_schema(raw: Raw, settings: Settings) -> str | None:
    """Check the schema of a project type in at most 0.4 of `schema_timeout`; return it as it was sent, or None.

    :raises ValidationFailed: with all of its problems. :raises ExtensionCheckTimeout: if the check takes too long.
    """
    text, schema = read_object(raw, "/extensionSchema", 1024 * KIB)
    if text is not None:
        check_schema(schema, "/extensionSchema", settings.schema_timeout * 0.4)
    return text


def parse_model(model: type[Checked], free: FreeForm | None, text: bytes, settings: Settings) -> Checked | SlowBody:
    """Parse a body into a model; return a `SlowBody` if the model refuses it or it may contain U+0000.

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
                        problems += free.problems(raw_members(text)[free.member], settings)
                problems += nul_problems(text, free.member if free and free.nul else None)
        except (OutOfTime, ExtensionCheckTimeout):
            problems.append(OUT_OF_TIME)
        if value is None or problems:
            raise ValidationFailed(problems, complete=OUT_OF_TIME not in problems)
        return value

    return SlowBody(check)


def decision_problems(update: Decision) -> list[Problem]:
    """Return the problems of a triage decision with rules that its model cannot express. Convert `until`."""
    problems = []
    if update.reason and update.status in UNFINISHED:
        problems.append(Problem(REQUIRES_FINISHED, "/reason", value=update.reason))
    if update.until:
        try:
            update.until = parse_moment(update.until)
            if update.until <= timestamp():
                problems.append(Problem("must be in the future", "/until", value=update.until))
        except ValueError as error:
            problems.append(Problem(str(error), "/until", value=truncate(update.until)))
    if all(getattr(update, name, None) is None for name in TaskUpdate.__struct_fields__):
        problems.append(Problem(MISSING_DECISION, ""))
    return problems


def state_problems(update: Decision, state: TaskRow, pointer: str = "") -> Iterator[Problem]:
    """Yield the problems of a decision with the present state of a task.

    :param pointer: of the task; "" if the request is about a single task: then the problems are at members.
    """
    if not (update.reason or update.until or update.duplicate_of):
        return
    new = state.after(update)
    note = f", but the task {'is' if new.status == state.status else 'would be'} {new.status}"
    if update.reason and not update.status and new.status in UNFINISHED:
        yield Problem(REQUIRES_FINISHED + note, pointer or "/reason")
    if update.until and new.status != "dismissed":
        yield Problem(f"requires status 'dismissed'{note}", pointer or "/until")
    if update.duplicate_of and new.reason != "duplicate":
        yield Problem("requires reason 'duplicate'", pointer or "/duplicateOf")


def duplicate_problems(
    connection: Connection, client_id: str, original: str | None, task_ids: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem if tasks cannot become duplicates of another task."""
    if original is None:
        return
    detail = ""
    others = f"client_id = ? AND duplicate_of {LISTED} LIMIT 1"
    rows = select_task_rows(connection, client_id, "client_id = ? AND id = ?", original)
    if original in task_ids:
        detail = "must be another task"
    elif not rows:
        detail = f"there is no task {truncate(original)!r}"
    elif rows[0].duplicate_of:
        detail = f"is itself a duplicate, of {rows[0].duplicate_of!r}"
    elif duplicates := select_task_rows(connection, client_id, others, to_json_text(task_ids)):
        detail = f"is not allowed, because {duplicates[0].id!r} is a duplicate of {duplicates[0].duplicate_of!r}"
    if detail:
        yield Problem(detail, "/duplicateOf", value=truncate(original))


# --- Request parsing: parameters and headers -------------------------------


@cache
def parameter_kinds(model: Any) -> dict[str, type]:
    """Return the kind of each query parameter by name: list, set, tuple, bool, int, `Moment` or str.

    Commas separate the values of a list. A tuple gets the whole text as one value. A set gets the whole text and also
    its parts between commas.
    """
    hints = get_type_hints(model)
    kinds: dict[str, type] = {}
    for each in msgspec.structs.fields(model):
        parts = (hints[each.name], *get_args(hints[each.name]))
        found = {*parts, *map(typing.get_origin, parts)}
        kinds[each.encode_name] = next((kind for kind in (list, set, tuple, bool, int, Moment) if kind in found), str)
    return kinds


PARAMETERS = 5000  # maximum in one request; several filters may have a thousand values each


def read_query(model: type[Checked], text: str) -> Checked:
    """Parse a query string into its model. :raises InvalidParameter: for the first bad parameter."""
    try:
        pairs = parse_qsl(
            text.encode("latin-1").decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS
        )
    except ValueError:
        raise InvalidParameter(
            "query string", f"must be percent-encoded UTF-8 with at most {PARAMETERS:,} parameters"
        ) from None
    kinds, values, count = parameter_kinds(model), Json(), 0
    for name, value in pairs:
        if name not in kinds:
            raise InvalidParameter(name, f"is not a known parameter; known here: {', '.join(kinds) or 'none'}")
        several = kinds[name] in (list, set, tuple)
        if name in values and not several:
            raise InvalidParameter(name, "is given more than once, but takes one value")
        read = parameter_value(name, value, kinds[name])
        if several:
            values.setdefault(name, []).extend(read)
            count += len(read)
            if count > PARAMETERS:  # validating more would take seconds
                raise InvalidParameter(name, f"must have at most 1,000 values; all filters together, {PARAMETERS:,}")
        else:
            values[name] = read
    try:
        return converted(values, model)
    except msgspec.ValidationError:
        problem = next(model_problems(model, values))
        raise InvalidParameter((problem.pointer or "/").split("/")[1], problem.detail) from None


def read_moment(name: str, text: str) -> str:
    """Parse a parameter with `parse_moment`. :raises InvalidParameter: if it is not valid."""
    try:
        return parse_moment(text)
    except ValueError as error:
        raise InvalidParameter(name, f"{error}; write the + of a time zone as %2B") from None


def parse_moment(text: str) -> str:
    """Parse a date, or a date and time, rounded up to the next millisecond, into the stored format (UTC).

    :raises ValueError: if it is not ISO 8601, or has a fraction of an hour or minute.
    """
    try:
        if regex.search("T[0-9:]{2,5}[.,]", text.upper()):
            raise ValueError  # Python would take a fraction of an hour or minute for a fraction of a second
        moment = datetime.fromisoformat(text.upper())
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment += timedelta(microseconds=-moment.microsecond % 1000)
    except (ValueError, OverflowError):
        raise ValueError("must be an ISO 8601 date or time, such as 2026-11-21 or 2026-11-21T02:15:30Z") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parameter_value(name: str, text: str, kind: type) -> Any:
    """Parse the text of one query parameter. :raises InvalidParameter: if it is not valid for its kind."""
    if "\0" in text:
        raise InvalidParameter(name, "must not contain the NUL character (U+0000)")
    if kind is int:
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidParameter(name, "must be an integer of at most 15 digits (0 to 9)")
        return int(text)
    if kind is bool:
        if text not in ("true", "false"):
            raise InvalidParameter(name, "must be true or false")
        return text == "true"
    if kind is list:
        if not all(parts := text.split(",")):
            raise InvalidParameter(name, "must not be empty or have an empty value between commas")
        return parts
    if not text:
        raise InvalidParameter(name, "must not be empty")
    if kind is set:
        return [text, *filter(None, text.split(","))]
    if kind is Moment:
        return read_moment(name, text)
    return [text] if kind is tuple else text


def read_if_match(text: str) -> ETags | None:
    """Parse an `If-Match` header (RFC 9110, 13.1.1) into its ETags; None for `*`, which matches any.

    :raises InvalidParameter: if it has no valid ETag.
    """
    if text.strip() == "*":
        return None
    tags = parse_etags(text)
    if not tags:
        raise InvalidParameter("If-Match", 'must be * or ETags exactly as they were returned, such as "5f0c…"')
    return tags


def judge_extensions(schema: str, parsed: Parsed, settings: Settings) -> None:
    """Check a submission's extensions and add their problems. :raises ExtensionCheckTimeout: if that takes too long."""
    parsed.problems += check_extensions(schema, parsed.extensions, settings.schema_timeout)


def accepted_fast(schema: str, extensions: Iterable[tuple[str | None, str]]) -> bool:
    """Return True if the fast validator accepts the extensions of all tasks; otherwise they need a full check."""
    if len(schema) > CACHED_SCHEMA:  # parsing a large schema is slow, too
        return False
    _, accepts = cached_validators(schema)
    texts = (text or "{}" for text, _ in extensions)
    try:
        return all(accepts(from_json(text), len(text)) for text in texts)
    except EXIT_EXCEPTIONS:
        raise
    except BaseException:  # such as a panic of a library in Rust; the full check reports it
        return False


class BodyFormat(Struct, frozen=True, kw_only=True):
    """A format of request bodies: its parser, and the limit of its size in bytes."""

    parse: Callable[[bytes, Settings], Any]
    limit: Callable[[Settings], int] = attrgetter("max_body")


class SubmissionFormat(BodyFormat, frozen=True, kw_only=True):
    """A format in which findings may be submitted.

    `parse` returns a `Parsed`. `judge` checks its extensions against the project type's schema, and adds the problems.
    """

    judge: Callable[[str, Parsed, Settings], None] = judge_extensions


REGISTRY.submission_formats[JSON_TYPE] = SubmissionFormat(parse=parse_submission)


def decoded(text: str) -> str:
    """Decode UTF-8 that WSGI passes as Latin-1 (PEP 3333)."""
    return text.encode("latin-1").decode(errors="replace")


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request below the prefix that the service is mounted under."""
    return f"/{decoded(environ.get('PATH_INFO', '')).lstrip('/')}"


def prefix_of(environ: WSGIEnvironment) -> str:
    """Return the prefix that the service is mounted under, percent-encoded."""
    return quote(environ.get("SCRIPT_NAME", "").rstrip("/"), PATH_CHARACTERS, "latin-1")


# --- Authentication, and routing to operations -----------------------------

KEY_CACHE_TIME = 0.005  # seconds
HEALTH_KEPT = 1.0  # seconds
DUE_SEARCH = 1.0  # minimum seconds between two calls of `run_due` for a client
MAINTENANCE_INTERVAL = 1.0  # seconds


class Service:
    """State that the routes of one blueprint share: settings, database, listeners, router and caches."""

    _keys_until = 0.0
    _keys_version = 0
    _maintained_until = 0.0
    _probed_until = 0.0
    _health_error: Exception | None = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = database_for(settings)
        self.listeners = Listeners()
        self.router = Router(REGISTRY.operations.values())
        self.pages = PageCache()
        self._settings_key = hashed(settings.api_key) if settings.api_key else ""
        self._keys: dict[str, Principal] = {}
        self._next_due: dict[str, float] = {}
        self._probing = threading.Lock()

    def check_health(self) -> None:
        """Check that the database can be read and written; raise the error of the check if it cannot.

        The result is cached for one second, because the health endpoint needs no key.
        """
        with self._probing:
            if time.monotonic() >= self._probed_until:
                self._health_error = None
                try:
                    self.database.probe()
                except Exception as error:
                    self._health_error = error
                self._probed_until = time.monotonic() + HEALTH_KEPT
        if self._health_error is not None:
            raise self._health_error.with_traceback(None)

    def run_due_maintenance(self, *, deleted: bool) -> None:
        """Run maintenance after a deletion, or a second after the last; for servers without a maintenance thread."""
        if deleted or time.monotonic() >= self._maintained_until:
            self._maintained_until = time.monotonic() + MAINTENANCE_INTERVAL
            self.database.run_maintenance()

    def run_due(self, connection: Connection, client_id: str) -> bool:
        """Call the function `run_due` for a client, unless that was done less than a second ago."""
        if time.monotonic() < self._next_due.get(client_id, 0.0) or not self.database.trusts_clock():
            return False
        self._next_due[client_id] = time.monotonic() + DUE_SEARCH
        return run_due(connection, client_id, self.settings.run_timeout)

    def authenticate(self, header: str) -> Principal:
        """Return the principal of an Authorization header. :raises Unauthorized: if its key is not valid.

        Results are cached for 5 ms and dropped after every commit of this process. A command that revokes a key takes
        longer, so when it ends, the key is rejected.
        """
        moment = time.monotonic()
        if moment > self._keys_until or self._keys_version != self.database.version:
            self._keys, self._keys_until, self._keys_version = {}, moment + KEY_CACHE_TIME, self.database.version
        cached = self._keys  # another thread may replace the dict meanwhile; this result belongs in the present one
        if header in cached:
            return cached[header]
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send your API key: Authorization: Bearer fts_…")
        if self._settings_key and hmac.compare_digest(hashed(key), self._settings_key):
            return cached.setdefault(header, Principal("environment", "default", "FINDINGS_API_KEY", "full"))
        now = timestamp()
        with self.database.reading() as connection:
            found = select_principal(connection, key, now)
        if found is None:
            raise Unauthorized("This API key is unknown, expired or revoked.")
        principal, last_used_at = found
        if (last_used_at or "")[:16] != now[:16]:
            self.database.record_use(principal.client_id, "api_keys", principal.key_id, now)
        cached[header] = principal
        return principal


USER = "HTTP_FINDINGS_USER"  # the header's key in a WSGI environment
USER_RULE = (
    "must be sent once, under exactly this name, as 1 to 200 printable characters without a comma; `serve` accepts"
    " ASCII only, such as e-mail addresses"
)


def with_user(principal: Principal, environ: WSGIEnvironment) -> Principal:
    """Return the principal with the user that the header `Findings-User` names.

    :raises Unauthorized: without the header.
    :raises InvalidParameter: if the header is malformed, or the key was not created for users.
    """
    if not principal.for_users:
        raise InvalidParameter("Findings-User", "requires a key created with `keys create --for-users`")
    if USER not in environ:
        raise Unauthorized("This key is for users: its proxy must name the user of each request in Findings-User.")
    user = decoded(environ[USER])
    # If a header was sent twice, any intermediary may have joined the values with a comma (RFC 9110, 5.3).
    if not 1 <= len(user) <= 200 or not user.isprintable() or user.isspace() or {",", "\ufffd"} & {*user}:
        raise InvalidParameter("Findings-User", USER_RULE)
    return replace(principal, user=user)


def require_own_site(environ: WSGIEnvironment) -> None:
    """Check that a user's write comes from the service's own origin, if the browser sends `Sec-Fetch-Site`.

    See https://www.w3.org/TR/fetch-metadata/. :raises Forbidden: if it comes from another origin.
    """
    if environ.get("HTTP_SEC_FETCH_SITE", "same-origin") != "same-origin":
        raise Forbidden(
            "Sec-Fetch-Site says that another origin sent this request; users can only write from the service's page."
        )


class Export(Struct, frozen=True, kw_only=True):
    """A response format other than JSON: its handler, and its query model if the operation's does not fit."""

    answer: Callable[[ApiRequest], HandlerResult]
    query: Any = None


class Operation(Struct, frozen=True, eq=False):
    """One method of one path. Routes and the OpenAPI document are generated from the operations.

    `formats` are those of the body, `exports` those of the response other than JSON. `refusals` are errors besides the
    common ones. The response has an ETag for If-Match if `tagged` is true, and one for If-None-Match if `has_weak_etag`
    is. The request may have an Idempotency-Key if `keyed` is true. If `unconditional` is, If-Match is rejected.
    """

    method: str
    path: str
    level: str | None
    answers: Mapping[int, Any]  # models of successful responses, by status
    handler: Callable[..., HandlerResult]
    body: Any = None  # its model, or several
    formats: Mapping[str, BodyFormat] = {}
    query: Any = RequestModel
    exports: Mapping[str, Export] = {}
    refusals: tuple[type[ServiceError], ...] = ()
    tagged: bool = False
    has_weak_etag: bool = False
    keyed: bool = False
    unconditional: bool = False


def operation(
    method: str, path: str, level: str | None, answers: Mapping[int, Any], *, free: FreeForm | None = None, **more: Any
) -> Callable[[Callable[..., HandlerResult]], Operation]:
    """Return a decorator that turns a handler into an `Operation`; `more` are further fields of the operation.

    The handler gets an `ApiRequest` and the parameters of the path. :param free: the body's free-form member.
    """
    more.setdefault("keyed", method == "POST")
    if body := more.get("body"):
        more.setdefault("formats", {JSON_TYPE: BodyFormat(parse=partial(parse_model, body, free))})

    return lambda handler: Operation(method, path, level, answers, handler, **more)


def listed_methods(operations: Iterable[Operation]) -> str:
    """Return the methods of some operations as the value of `Allow`; GET implies HEAD."""
    methods = {each.method for each in operations}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


@lru_cache(maxsize=64)
def methods_for(level: str, path: str) -> str:
    """Return the value of `Allow`: the methods of a path that a key of this level may use (RFC 9110, 10.2.1)."""
    reached = LEVELS[: LEVELS.index(level) + 1]
    return listed_methods(each for each in REGISTRY.operations.values() if each.path == path and each.level in reached)


class Router:
    """Index of operations by the steps of their paths, which are the parts between slashes."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations: list[Operation] = []
        self._patterns: dict[tuple[int, str], dict[tuple[str, ...], dict[str, Operation]]] = {}
        for each in operations:
            self.add(each)

    def add(self, another: Operation) -> None:
        """Add an operation under its path and method. A path without parameters is found before one that has any."""
        self.operations.append(another)
        steps = tuple(another.path.split("/"))
        patterns = self._patterns.setdefault(shape_of(steps), {})
        patterns.setdefault(steps, {})[another.method] = another
        self._patterns[shape_of(steps)] = dict(sorted(patterns.items(), key=lambda each: "".join(each[0]).count("{")))

    def find(self, steps: Sequence[str]) -> tuple[str, dict[str, Operation], dict[str, str]] | None:
        """Return the template that matches a path, its operations by method, and the path's parameters; or None."""
        for pattern, methods in self._patterns.get(shape_of(steps), {}).items():
            if (parts := match_path(pattern, steps)) is not None:
                return "/".join(pattern), methods, parts
        return None


def shape_of(steps: Sequence[str]) -> tuple[int, str]:
    """Return the number of steps of a path or pattern, and the name of its collection."""
    return len(steps), "".join(steps[3:4])  # in /api/v1/tasks/{task_id}, the empty step before the first slash counts


def match_path(pattern: Sequence[str], steps: Sequence[str]) -> dict[str, str] | None:
    """Match a path against a pattern such as ("runs", "{run_id}"); return its parameters, or None if it differs."""
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
    """Return an error message if the module that provides an endpoint is not installed, otherwise ""."""
    for name, pattern in API_MODULES.items():
        if regex.fullmatch(pattern, f"{method} {path}") and (missing := load_module(name)):
            return f"This endpoint is provided by {missing}."
    return ""


# --- Processing a request: its steps, jobs and response --------------------

DOCUMENT_PIECE = 64 * KIB  # bytes that are sent at once; the capacity of a pipe


class StreamedBody(Protocol):
    """A long response body, sent in pieces. The server closes it after sending it, or instead of sending it."""

    size: int

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""

    def close(self) -> None:
        """Release the resources of the body, such as a temporary file."""


class Response(Struct):
    """An HTTP response. A long body is in `document` instead of `body`. The server adds the Content-Length.

    `kept` replaces the body in the response stored for retries, for example without a secret. `names` are ids and names
    that the body contains: once one of them is deleted, the stored response is dropped.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    document: StreamedBody | None = None
    kept: bytes | None = None
    names: Sequence[str] = ()

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return self.document.size if self.document else len(self.body)


def make_response(status: int, body: bytes, content_type: str = JSON_TYPE, **headers: str | None) -> Response:
    """Return a response with a body, by default of JSON, and with the headers that are not None."""
    present = {name: value for name, value in headers.items() if value is not None}
    return Response(status, {"Content-Type": content_type, **present}, body)


def json_response(status: int, model: Any, location: str | None = None, names: Sequence[str] = ()) -> Response:
    """Return a response with a model as JSON. :param names: see `Response`."""
    response = make_response(status, to_json(model), Location=location)
    response.names = names
    return response


def task_response(task: Task) -> Response:
    """Return a response with a task as JSON, and its ETag."""
    response = make_response(200, to_json(task), ETag=task.etag)
    response.names = task.run_id, task.last_run_id
    return response


PROBLEM_TYPE = "application/problem+json"


def problem_response(error: ServiceError) -> Response:
    """Return the problem response (RFC 9457) for an error."""
    titles = {413: "Content Too Large", 422: "Unprocessable Content"}  # older Pythons have other phrases
    details = ProblemDetails(
        title=titles.get(error.status) or HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.detail,
        errors=list(error.problems[:LISTED_PROBLEMS]) or UNSET,
    )
    return make_response(error.status, to_json(details), PROBLEM_TYPE, **error.headers)


def as_service_error(error: BaseException, environ: WSGIEnvironment) -> ServiceError:
    """Return the `ServiceError` for any exception, including Flask's; log the traceback if it is a bug."""
    if known := known_error(error):
        return known
    if isinstance(error, RequestEntityTooLarge):
        return BodyTooLarge("The body is over the limit of the application; send it in parts.")
    if isinstance(error, HTTPException) and (error.code or 500) < 500:
        return InvalidParameter("request", str(error.description))
    log.error("bug in %r %r", environ["REQUEST_METHOD"], path_of(environ), exc_info=error)
    return InternalError("This is a bug of the service; its log has the traceback. Nothing was stored.")


MOST_ACCEPTED = 2_000  # characters of an Accept header that are read


def preferred_export(exports: Mapping[str, Export], accept: str) -> Export | None:
    """Return the export format that an `Accept` header prefers (RFC 9110, 12.5.1), or None for JSON.

    Parameters of a media type are ignored: `text/csv; charset=utf-8` means `text/csv`.
    """
    media_types = parse_accept_header(accept[:MOST_ACCEPTED], MIMEAccept)  # Werkzeug takes 8 µs for each one
    accepted = MIMEAccept((value.partition(";")[0], q) for value, q in media_types)
    return exports.get(accepted.best_match([JSON_TYPE, *exports]) or JSON_TYPE)


class Body(Struct, frozen=True):
    """The received part of a request's body: not `whole` if the rest is missing, `too_large` if over the limit."""

    text: bytes = b""
    whole: bool = True
    too_large: bool = False


class ThreadJob(Struct, eq=False, frozen=True):
    """Work that takes so long that a server runs it in a thread.

    Each class of jobs has a pool of `threads` threads. A job waits for one at most `patience` seconds (None: no limit).
    """

    work: Callable[[], HandlerResult]

    threads: ClassVar[int] = 1
    patience: ClassVar[float | None] = None


class Check(ThreadJob, eq=False, frozen=True):
    """Job that validates the extensions of a submission, or the schema of a project type."""

    threads = 2


class BodyCheck(ThreadJob, eq=False, frozen=True):
    """Job that searches for all problems of a `SlowBody`."""


class SlowRead(ThreadJob, eq=False, frozen=True):
    """Job that reads from the database on a connection of its own."""


class JointPart(Struct, eq=False, frozen=True):
    """A write's part in a joint write, which stores the writes of several requests of one sender and run at once.

    `store` writes the contents of parts with the same `store`, and returns the response for each. `finding` is the
    external id or id of a finding, which must not repeat; None is a report without one, and so a finding of its own.
    """

    store: Callable[[ApiRequest, Sequence[Any], Connection], list[Response]]
    content: Any
    finding: str | None


class PendingWrite(Struct, eq=False, frozen=True):
    """The write of a request that has passed all checks except those against the stored state.

    `store` makes the remaining checks and writes, in a transaction; it returns the response, or None for 204.
    `part` is set if `apply_writes` may apply the write together with others.
    """

    request: ApiRequest
    store: Callable[[Connection], Response | None]
    changes: bool = True  # whether it changes what ETags cover
    part: JointPart | None = None

    def apply(self, connection: Connection) -> Response:
        """Write in an open transaction, and store the response if the request has an Idempotency-Key.

        A retry writes nothing and gets the stored response. :raises ServiceError: if a check of `store` fails.
        """
        request = self.request
        if request.request_key is not None and (earlier := request.earlier_response(connection, request.request_key)):
            return earlier
        response = self.store(connection) or Response(204, {})
        if self.changes:
            raise_revision(connection, request.client_id)
        if request.request_key is not None:
            body = response.body if response.kept is None else response.kept
            kept = StoredResponse(request.body_hash, response.status, response.headers.get("Location"), body.decode())
            in_path = dict.fromkeys(request.view_args.values(), True)
            insert_response(connection, request.request_key, kept, {**dict.fromkeys(response.names, False), **in_path})
        return response

    def work(self) -> Response:
        """Call `apply` in a transaction of its own."""
        with self.request.database.transaction(self.request.client_id) as connection:
            return self.apply(connection)


HandlerResult: TypeAlias = Response | ThreadJob | PendingWrite  # the result after all checks that need no lock
ANONYMOUS = Principal("", "")
PAUSES = (0.01, 0.05, 0.2, 0.5)  # backoff: maximum seconds before each retry of a transaction that was rolled back

UNROUTED = "-"  # the route of a request until its operation is known, and in the log if it has none


class ApiRequest:
    """A request and its parsed state. Its steps, in this order: `open`, `read`, `check`, then any jobs and the write.

    The server decides in which thread a step runs. It calls `attempt`, which retries a step whose transaction the
    database rolled back, and turns an exception into a response.
    """

    # Set by `open`
    operation: Operation
    route = UNROUTED  # the template of the path
    run_id: str | None = None
    view_args: Mapping[str, str] = MappingProxyType({})  # the parameters of the path
    form: Any = None  # the `BodyFormat`
    _length = 0  # the Content-Length, 0 without one
    limit = sys.maxsize  # maximum bytes of the body; an embedding application may have a limit of its own
    # Set by `read`
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
        """Create a request; nothing is checked yet.

        :param environ: the WSGI environment (PEP 3333). :param own_path: the path without a prefix.
        :param principal: the sender, if it is known without a key.
        """
        self.service, self.database = service, service.database
        self.environ, self.method, self.own_path = environ, str(environ["REQUEST_METHOD"]), own_path
        self.principal = principal

    def open(self) -> Response | None:
        """Check path, method, key, level, and the announced size and media type of the body.

        Return the response if the path is a file of the web page.

        :raises ServiceError: for the first check that fails, in the order that the API promises.
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
                raise Forbidden(f"This needs a key of level {level}; your key has level {self.principal.level}.")
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
        """Route the request. :raises Missing: if the path is unknown. :raises WrongMethod: if it has other methods."""
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
        """Parse the body and parameters. Rules that the body breaks are reported by `check`, after unknown ids.

        :raises ServiceError: if the body is incomplete, too large or not JSON, or a parameter or header is invalid.
        """
        operation, environ = self.operation, self.environ
        if operation.formats:
            if body.too_large or len(body.text) > self.limit:  # there may have been no Content-Length
                raise self._too_large()
            if body.text and self.form is None:
                raise self._unsupported()
            if len(body.text) < self._length or not body.whole:
                raise MalformedJSON("The body is incomplete: the connection ended, or the body did not arrive in time.")
            if not body.text:
                raise MalformedJSON("The body is empty; send a JSON object.")
            self._parse(self.form.parse, body.text, self.service.settings)
        accept = environ.get("HTTP_ACCEPT") if operation.exports else None
        self.export = preferred_export(operation.exports, accept) if accept else None
        query = (self.export and self.export.query) or operation.query
        self.query = read_query(query, environ.get("QUERY_STRING", ""))
        if self.principal.user is not None and getattr(self.query, "assignee", None) == "me":
            self.query.assignee = self.principal.user
        reads_tags = operation.method in ("PATCH", "DELETE") or operation.unconditional
        if reads_tags and (tags := environ.get("HTTP_IF_MATCH")) is not None:
            if not operation.tagged:
                raise InvalidParameter(
                    "If-Match", "is accepted only for an update of one task; for several, send `ifMatch` in the body"
                )
            self.expected = read_if_match(tags)
        if operation.keyed and (key := environ.get("HTTP_IDEMPOTENCY_KEY")) is not None:
            if not 1 <= len(key) <= 255:
                raise InvalidParameter("Idempotency-Key", "must have 1 to 255 characters")
            self.request_key = RequestKey(self.client_id, self.principal.sender, operation.method, self.path, key)
            self.body_hash = hashlib.sha256(body.text).hexdigest()

    def check(self) -> HandlerResult:
        """Run the handler, which makes all checks that need no lock; return its response, or its job or write to run.

        :raises ServiceError: if a check fails.
        """
        if self.request_key is not None:
            with self.database.reading() as connection:
                if earlier := self.earlier_response(connection, self.request_key):
                    return earlier
        if isinstance(self._body, SlowBody):
            return BodyCheck(self._check_slow_body)
        return self.export.answer(self) if self.export else self.operation.handler(self, **self.view_args)

    def _check_slow_body(self) -> HandlerResult:
        self._parse(self._body.read)
        return self.check()

    def _parse(self, parse: Callable[..., Any], *arguments: Any) -> None:
        """Parse the body and keep it, or its problems; the error's traceback would keep the text in memory."""
        self._body = None
        try:
            self._body = parse(*arguments)
        except ValidationFailed as error:
            self._problems, self._complete = error.problems, error.complete

    def attempt(self, step: Callable[..., Value], *arguments: Any) -> Value | Response:
        """Run a step and return its result, or a problem response for any exception, panics of Rust libraries included.

        A step that the database rolled back is retried a few times. Exceptions are caught only here: those that an
        embedding application raises on our routes reach its own error handlers.
        """
        pauses = iter(PAUSES)
        while True:
            try:
                return step(*arguments)
            except EXIT_EXCEPTIONS:
                raise
            except BaseException as error:
                pause = next(pauses, None) if isinstance(error, TryAgain) else None
                if pause is None:
                    return problem_response(as_service_error(error, self.environ))
            time.sleep(random.uniform(0, pause))  # noqa: S311 - jitter, so that colliding writers retry apart

    def begin(self, body: Body | None) -> HandlerResult | None:
        """Open the request, and read and check it. Return None if its body has to be received first."""
        response = self.attempt(self.open)  # None if the request goes on
        if response is None and (body is not None or not self.operation.formats):
            return self.judge(body or Body())
        return response

    def judge(self, body: Body) -> HandlerResult:
        """Run `read` and `check`, after `open`; return the response, or the job or write to run."""
        if refusal := self.attempt(self.read, body):
            return refusal
        return self.attempt(self.check)

    def finish(self, result: HandlerResult) -> Response:
        """Run the remaining jobs and the write in this thread, and return the response."""
        while not isinstance(result, Response):
            result = self.attempt(result.work)
        return result

    def respond(self, receive: Callable[[int], Body]) -> Response:
        """Run all steps in this thread. :param receive: reads at most the given number of bytes of the body."""
        result = self.begin(None)
        if result is None:
            body = self.attempt(receive, self.limit + 1)
            result = body if isinstance(body, Response) else self.judge(body)
        return self.finish(result)

    # For the routes

    @property
    def client_id(self) -> str:
        """The id of the client that owns the data."""
        return self.principal.client_id

    @property
    def sender_and_run(self) -> tuple[Principal, str]:
        """The sender of the request, and the id of the run in its path, or ""."""
        return self.principal, self.view_args.get("run_id", "")

    def checked_body(
        self,
        find: Callable[[Connection], object] | None = None,
        rules: Callable[[Any], Sequence[Problem]] | None = None,
    ) -> Any:
        """Return the parsed body.

        :param find: raises `Missing` for an unknown id; it is called before problems of the body are reported.
        :param rules: returns the problems that the body's model cannot express.
        :raises ValidationFailed: with all problems of the body.
        """
        problems = self._problems or (rules(self._body) if rules else ())
        if problems:
            if find:
                with self.database.reading() as connection:
                    find(connection)
            raise ValidationFailed(problems, complete=self._complete)
        return self._body

    def earlier_response(self, connection: Connection, key: RequestKey) -> Response | None:
        """Return the stored response to an earlier request with the same Idempotency-Key, or None."""
        kept = select_response(connection, key, self.body_hash)
        if not kept:
            return None
        tag = from_json(kept.body).get("etag") if self.operation.tagged else None
        return make_response(kept.status, kept.body.encode(), Location=kept.location, ETag=tag)

    def read_slowly(self, read: Callable[[Connection], HandlerResult]) -> ThreadJob:
        """Return a job that runs `read` in the slow-read pool."""
        return SlowRead(partial(self._read_separately, read))

    def _read_separately(self, read: Callable[[Connection], HandlerResult]) -> HandlerResult:
        with self.database.separate_reader() as connection:
            return read(connection)

    @property
    def path(self) -> str:
        """The path of the request, with the prefix that the service is mounted under, percent-encoded."""
        return prefix_of(self.environ) + quote(path_of(self.environ), PATH_CHARACTERS)

    @property
    def address(self) -> str:
        """The path of the request as the caller sees it: below the path of the base URL if that is set."""
        base_url = self.service.settings.base_url
        if not base_url:
            return self.path
        own = self.path.split("/")[-self.operation.path.count("/") :]
        return "/".join([urlsplit(base_url).path, *own])


def to_flask_response(response: Response) -> flask.Response:
    """Convert a response to a `flask.Response`."""
    flask_response = flask.Response(response.document or response.body, response.status, [*response.headers.items()])
    if "Content-Type" not in response.headers:
        del flask_response.headers["Content-Type"]  # Flask's default
    return flask_response


# --- Routes ----------------------------------------------------------------

LIST_TIME = 0.5  # seconds of processor time for a list: three times what counting a million tasks takes


def read_cursor(request: ApiRequest, connection: Connection, table: str, after: str | None = None) -> ListCursor | None:
    """Convert `after`, by default the request's parameter, to a `ListCursor` of a row; return None without one."""
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
    """Return the link to the page after a cursor: the request's valid query, with `after` instead of `page`."""
    given = quote(request.environ["QUERY_STRING"], safe=PRINTABLE_IN_URL, encoding="latin-1").split("&")
    kept = [part for part in given if unquote_plus(part.partition("=")[0]) not in ("", "page", "limit", "after")]
    return f"{request.address}?{'&'.join([*kept, f'limit={request.query.limit}', f'after={after}'])}"


ListReader: TypeAlias = Callable[[ApiRequest, Connection], Response]
SHORT_SHARE = 1 / 25  # the part of `LIST_TIME` that a list may take on the event loop


def list_response(request: ApiRequest, read: ListReader) -> Response | ThreadJob:
    """Read a list now, or return a job for the slow-read pool if reading it here may delay other requests.

    The job raises `InvalidParameter` if the list takes more than `LIST_TIME`.
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
    """Read a list. :raises InvalidParameter: if it takes more than `LIST_TIME`."""
    with in_list_time(connection):
        return read(request, connection)


@contextmanager
def in_list_time(connection: Connection) -> Iterator[None]:
    """Limit the block to `LIST_TIME`. :raises InvalidParameter: if it takes longer."""
    try:
        with connection.limited(LIST_TIME):
            yield
    except TimeoutError:
        detail = (
            "takes too long; use fewer values or more filters,"
            " and follow the next link instead of requesting a page far down the list"
        )
        raise InvalidParameter("query string", detail) from None


class PageCache:
    """Cache of recently sent list pages as JSON, by ETag and URL, for callers that read an unchanged list again."""

    pages, size = 32, 128 * KIB  # maximum number of pages, and bytes of one

    def __init__(self) -> None:
        self._pages: dict[tuple[str, ...], bytes] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[str, ...]) -> bytes | None:
        """Return a page, or None if it is not in the cache."""
        with self._lock:
            if page := self._pages.pop(key, None):
                self._pages[key] = page  # at the end of the dict, so the first page is the least recently used
        return page

    def add(self, key: tuple[str, ...], page: bytes) -> None:
        """Cache a page, unless it is too large or has a claim, whose end may change without the ETag."""
        if len(page) <= self.size and b'"claim":{' not in page:
            with self._lock:
                self._pages[key] = page
                if len(self._pages) > self.pages:
                    del self._pages[next(iter(self._pages))]


def look_up_page(request: ApiRequest, connection: Connection) -> tuple[Response, tuple[str, ...] | None]:
    """Return a response with the cached page, or 304 if its ETag was sent (RFC 9110, 13.1.2).

    If the page is not in the cache, the response has no body yet; the second value is the key under which to cache it.
    The ETag changes with any change of the client's data, and each day, because an overview ends with today. It
    depends on the assignee, because "me" is a different person for each user.
    """
    assignee = getattr(request.query, "assignee", None)
    suffix = f"-{hashlib.sha256(assignee.encode()).hexdigest()[:16]}" if assignee else ""
    tag = f'"{select_revision(connection, request.client_id)}-{timestamp()[:10]}{suffix}"'
    headers = {"ETag": f"W/{tag}", "Allow": methods_for(request.principal.level, request.operation.path)}
    known_tags = request.environ.get("HTTP_IF_NONE_MATCH", "")
    if known_tags.strip() == "*" or tag in known_tags:
        return Response(304, headers), None
    key = (tag, request.client_id, request.address, request.environ["QUERY_STRING"])
    page = request.service.pages.get(key)
    return make_response(200, page or b"", **headers), None if page else key


def conditional_response(
    read: Callable[[ApiRequest, Connection], Any], request: ApiRequest, connection: Connection
) -> Response:
    """Respond as `look_up_page` does, or with the result of `read`, which is then cached."""
    response, key = look_up_page(request, connection)
    if key is not None:
        response.body = to_json(read(request, connection))
        request.service.pages.add(key, response.body)
    return response


def response_from_cache(request: ApiRequest) -> Response | None:
    """Return the response to a request for a page, or None if the page has to be read.

    It needs one statement and no thread. With an engine on a server, this would be a further round trip.
    """
    if request.database.threads:
        return None
    with request.database.reading() as connection:
        response, key = look_up_page(request, connection)
    return response if key is None else None


class PageItems(Struct):
    """Encoded items of a page, the last of them before encoding, and whether the list has more."""

    items: list[Any] = []
    last: Any = None
    more: bool = False


PAGE_SIZE = 16 * 1024 * KIB - 64 * KIB  # maximum bytes of a page's items as JSON; leaves room for the other fields


def take_items(items: Iterable[Any], limit: int) -> PageItems:
    """Encode the items of a page, each as soon as it is read; end the page early if it would get too large.

    :param items: one more than `limit` if there is a further page.
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
    """Return the value of `after` with which a query's list continues after an item."""
    return f"{item.severity}.{item.id}" if getattr(query, "sort", "") == "severity" else str(item.id)


def page_of(request: ApiRequest, taken: PageItems, total: int) -> Row:
    """Return the values of a page's fields: page, limit, total, next and items."""
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
        request.service.run_due(connection, request.client_id)
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
    return response_from_cache(request) or list_response(request, partial(conditional_response, read_run_page))


def read_run_page(request: ApiRequest, connection: Connection) -> RunPage:
    """Read the requested page of runs."""
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
    return request.read_slowly(read)  # counting more tasks would delay other requests


def select_used_run(request: ApiRequest, connection: Connection, run_id: str) -> RunKey:
    """Return a RunKey; if the run is running, record that it was used. :raises Missing: if the run does not exist."""
    run = select_run_key(connection, request.client_id, run_id)
    if run.status == "running":
        request.database.record_use(request.client_id, "runs", run.seq, timestamp())
    return run


def run_update_problems(update: RunUpdate) -> list[Problem]:
    """Return the problems of a run's update that its model cannot express."""
    problems = METADATA.problems(update.metadata)
    if not update.status and bytes(update.metadata) in (b"", b"null"):
        problems.append(Problem(MISSING_CHANGE, ""))
    if update.status != "completed":
        given = (("/resolveMissing", update.resolve_missing), ("/gate", update.gate))
        problems += (Problem(REQUIRES_COMPLETED, pointer) for pointer, value in given if value)
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
    """Finish a run, optionally resolve its missing findings, or add metadata to it."""
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
    """Submit one task, or a batch of tasks that is stored completely or not at all."""
    with request.database.reading() as connection:
        schema = select_schema_of_run(connection, request.client_id, run_id)
    parsed: Parsed = request.checked_body()
    if schema is None or accepted_fast(schema, parsed.extensions):
        return pending_submission(request, parsed)
    return Check(partial(check_submission, request, schema, parsed))


def check_submission(request: ApiRequest, schema: str, parsed: Parsed) -> PendingWrite:
    """Validate the extensions of a submission; return its write. :raises ValidationFailed: with all of its problems."""
    request.form.judge(schema, parsed, request.service.settings)
    return pending_submission(request, parsed)


def pending_submission(request: ApiRequest, parsed: Parsed) -> PendingWrite:
    """Return the write of a submission. :raises ValidationFailed: with all of its problems, if it has any."""
    if parsed.problems:
        raise ValidationFailed(one_problem_per_task_first(parsed.problems), complete=parsed.complete)
    part = None
    if len(parsed.reports) == 1 and not (request.request_key or parsed.number or parsed.reports[0].former_ids):
        part = JointPart(store_single_reports, parsed.reports[0], parsed.reports[0].external_id)
    return PendingWrite(request, partial(store_submission, request, parsed), part=part)


def store_submission(request: ApiRequest, parsed: Parsed, connection: Connection) -> Response:
    """Store a submission in a transaction, and respond with its result."""
    return submission_response(submit_reports(connection, *request.sender_and_run, parsed.reports, parsed.number))


def submission_response(submission: Submission) -> Response:
    """Return the response with the result of a submission."""
    names = [result.id for result in submission.tasks]
    return json_response(201 if submission.created else 200, submission, names=names)


def store_single_reports(request: ApiRequest, reports: Sequence[NewTask], connection: Connection) -> list[Response]:
    """Store the single reports of several requests as one submission, and respond to each with its result."""
    submission = submit_reports(connection, *request.sender_and_run, reports)
    return [submission_response(Submission(*count_results([task]), [task])) for task in submission.tasks]


def apply_writes(writes: Sequence[PendingWrite], connection: Connection) -> list[Response]:
    """Apply a write, or several as a joint write, and return the responses."""
    first, parts = writes[0], [write.part for write in writes if write.part]
    if len(writes) == 1:
        return [first.apply(connection)]
    responses = parts[0].store(first.request, [part.content for part in parts], connection)
    raise_revision(connection, first.request.client_id)
    return responses


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
    """List tasks, by creation time or by severity."""
    return response_from_cache(request) or list_response(request, partial(conditional_response, read_task_page))


def read_task_page(request: ApiRequest, connection: Connection) -> TaskPage:
    """Read the requested page of tasks. Full tasks are in a `TaskPage`, too: `FullTaskPage` has the same fields."""
    query: TaskQuery = request.query
    position = read_cursor(request, connection, "tasks")
    wanted = read_task_filter(connection, request.client_id, query)
    tasks, plan = select_tasks(connection, request.client_id, wanted, query, position)
    return TaskPage(*page_of(request, take_items(tasks, query.limit), plan.count(connection)))


@operation("GET", "/api/v1/tasks/{task_id}", "read", {200: Task}, tagged=True)
def get_task(request: ApiRequest, task_id: str) -> Response:
    """Get a task with all of its fields."""
    with request.database.reading() as connection:
        return task_response(select_task(connection, request.client_id, task_id))


@operation(
    "PATCH",
    "/api/v1/tasks/{task_id}",
    "triage",
    {200: Task},
    body=TaskUpdate,
    refusals=(ChangedMeanwhile,),
    tagged=True,
    keyed=True,
)
def patch_task(request: ApiRequest, task_id: str) -> PendingWrite:
    """Triage a task: set its status, reason, assignee, severity or links, or add a comment."""
    find = partial(select_task_row, client_id=request.client_id, task_id=task_id)
    update: TaskUpdate = request.checked_body(find, decision_problems)
    decision = (request, task_id, update)
    # Whether a task may become a duplicate depends on other tasks, which the same joint write could change.
    is_simple = not (request.request_key or update.duplicate_of)
    part = JointPart(store_decisions, decision, task_id) if is_simple else None
    return PendingWrite(request, lambda connection: store_decisions(request, [decision], connection)[0], part=part)


def store_decisions(
    first: ApiRequest, decisions: Sequence[tuple[ApiRequest, str, TaskUpdate]], connection: Connection
) -> list[Response]:
    """Check and store decisions of one sender about different tasks, and respond to each request with its task.

    :raises ServiceError: if a check fails.
    """
    client_id = first.client_id
    # No id has U+0000, which PostgreSQL refuses in JSON.
    ids = to_json_text([task_id for _, task_id, _ in decisions if "\0" not in task_id])
    states = {state.id: state for state in select_task_rows(connection, client_id, BY_ID, ids)}
    for request, task_id, update in decisions:
        state = states.get(task_id) or select_task_row(connection, client_id, task_id)  # raises Missing
        if request.expected is not None:
            etag = select_task(connection, client_id, task_id).etag
            if not request.expected.contains_raw(etag):
                raise ChangedMeanwhile("The task changed since the ETag in If-Match was returned; nothing was stored.")
        duplicate = duplicate_problems(connection, client_id, update.duplicate_of, [task_id])
        if problems := [*state_problems(update, state), *duplicate]:
            raise ValidationFailed(problems)
    triage_tasks(connection, first.principal, [(states[task_id], update) for _, task_id, update in decisions])
    tasks = {task.id: task for task in map(task_model, connection.execute(f"{WHOLE_TASKS} {BY_ID}", (client_id, ids)))}
    return [task_response(tasks[task_id]) for _, task_id, _ in decisions]


@operation("GET", "/api/v1/tasks/{task_id}/history", "read", {200: History}, query=HistoryQuery)
def get_task_history(request: ApiRequest, task_id: str) -> Response | ThreadJob:
    """Get the history of a task, oldest entry first."""
    return list_response(request, partial(read_task_history, task_id))


def read_task_history(task_id: str, request: ApiRequest, connection: Connection) -> Response:
    """Read the requested page of a task's history."""
    before, limit = int(request.query.after or 0), request.query.limit
    state = select_task_row(connection, request.client_id, task_id)
    taken = take_items(select_history(connection, request.client_id, state.seq, limit, before), limit)
    link = next_link(request, str(before + len(taken.items))) if taken.more else None
    return json_response(200, History(taken.items, link))


Definition: TypeAlias = tuple[str, str, str | None]  # label, description, schema
DefinitionWriter: TypeAlias = Callable[[ApiRequest, str, Definition, Connection], Response]


def check_definition(request: ApiRequest, name: str, body: ProjectTypeUpdate, store: DefinitionWriter) -> PendingWrite:
    """Check the schema of a project type, and return the write that stores its definition."""
    schema = read_schema(body.extension_schema, request.service.settings)
    definition = (name if body.label is None else body.label, body.description or "", schema)
    return PendingWrite(request, partial(store, request, name, definition))


@operation("GET", "/api/v1/project-types", "read", {200: ProjectTypes})
def get_project_types(request: ApiRequest) -> Response:
    """List all project types by name, without their extension schemas."""
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
    """Register a project type; registering the same definition again changes nothing."""
    body: ProjectTypeDefinition = request.checked_body()
    return Check(partial(check_definition, request, body.name, body, store_new_type))


def store_new_type(request: ApiRequest, name: str, definition: Definition, connection: Connection) -> Response:
    """Insert a project type unless the same one is registered, and respond with it."""
    created = insert_project_type(connection, request.client_id, name, *definition)
    registered = select_project_type(connection, request.client_id, name)
    return json_response(201 if created else 200, registered, f"{request.address}/{name}" if created else None, [name])


@operation("GET", "/api/v1/project-types/{name}", "read", {200: ProjectTypeWithSchema})
def get_project_type(request: ApiRequest, name: str) -> Response:
    """Get a project type with its extension schema."""
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
    """Replace the label, description and schema of a project type; stored tasks are not rechecked."""
    with request.database.reading() as connection:
        select_project_type(connection, request.client_id, name)
    body: ProjectTypeUpdate = request.checked_body()
    if body.name not in (None, name):
        raise ValidationFailed([Problem("must be the name in the path, or left out", "/name", value=body.name)])
    return Check(partial(check_definition, request, name, body, store_changed_type))


def store_changed_type(request: ApiRequest, name: str, definition: Definition, connection: Connection) -> Response:
    """Replace a project type's definition, and respond with it."""
    replace_project_type(connection, request.client_id, name, *definition)
    return json_response(200, select_project_type(connection, request.client_id, name))


@operation("GET", "/healthz", None, {200: Health})
def get_health(request: ApiRequest) -> Response:
    """Check that the database can be read and written."""
    request.service.check_health()
    name, version = request.database.engine
    return json_response(200, Health("ok", __version__, **{name.lower(): version}))


REGISTRY.add_operations(*[each for each in globals().values() if isinstance(each, Operation)])  # defined above


# --- Application -----------------------------------------------------------


class FindingsBlueprint(flask.Blueprint):
    """The service as a Flask blueprint; `service` is the state that its routes share."""

    service: Service


def open_once(service: Service) -> None:
    """Create or migrate the database, refresh its search words, fail idle runs, run maintenance, and close it.

    :raises DatabaseUnusable: if it cannot be opened, so that the start fails and not the first request.
    """
    try:
        with service.database.transaction() as connection:
            insert_client(connection, "default")  # fails now if the file cannot be written
        load_module(MIGRATIONS)
        REGISTRY.refresh(service.database)
        for _ in due_slices(service.database, service.settings.run_timeout):
            pass
        service.database.run_maintenance()
    except ENGINE_ERRORS as error:
        raise unusable(service.database.name, error) from error
    finally:  # a server may fork next, which no connection survives (https://www.sqlite.org/howtocorrupt.html, 2.6)
        service.database.close()


def start_service(settings: Settings) -> Service:
    """Start the access log and metrics if set, prepare the database, and return the state that all routes share.

    :raises ConfigurationError: if a module or package that a setting needs is not installed.
    :raises DatabaseUnusable: if the database cannot be opened.
    """
    warn_of_misspelled()
    load_modules()
    service = Service(settings)
    for setting, module in OBSERVER_MODULES.items():
        if not getattr(settings, setting):
            continue
        variable = f"FINDINGS_{setting.upper()}"
        try:
            missing = load_module(module)
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            raise ConfigurationError(f"{variable} needs the package {package}{install_hint(setting)}") from None
        if missing:
            raise ConfigurationError(f"{variable} needs {missing}")
        REGISTRY.observers[setting](service)
    open_once(service)
    return service


@contextmanager
def running_companions(service: Service) -> Iterator[None]:
    """Run the registered companions, such as webhook delivery, while a server serves in this process."""
    with ExitStack() as running:
        for companion in REGISTRY.companions:
            running.enter_context(companion(service))
        yield


def received(most: int) -> Body:
    """Read at most `most` bytes of the body of Flask's current request."""
    try:  # if the stream is empty, other code of the application may have read it before, and Flask has kept the data
        return Body(flask.request.stream.read(most) or flask.request.get_data())
    except ClientDisconnected:
        return Body(whole=False)


def respond_in_thread(request: ApiRequest, receive: Callable[[int], Body]) -> Response:
    """Process a request in a thread of any WSGI server; then run due maintenance, and call `answered` listeners."""
    began = time.perf_counter()
    response = request.respond(receive)
    request.service.run_due_maintenance(deleted=request.method in ("DELETE", "PUT"))
    for listener in request.service.listeners.answered:
        listener(request, response.status, response.size, time.perf_counter() - began)
    return response


PAGE_FOLDER = "/page/"
API = "/api/v1"
ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def create_blueprint(
    settings: Settings | None = None, name: str = "findings", *, page: bool = False
) -> FindingsBlueprint:
    """Create the service as a blueprint, to be registered in any Flask application under any prefix.

    It does not change the application's error pages, JSON provider or configuration.

    :param settings: None reads the environment variables. :param page: serve the web page at the prefix itself.
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
            # The method is compared here, because Werkzeug also matches methods in lower case.
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
    # Unknown paths, and methods that a path does not have: these requests get a problem response.
    add_rule(f"{API}/<path:rest>", "unknown")
    literal = {each.path for each in service.router.operations if "{" not in each.path}
    for path in sorted(literal):  # those outside of the API, and those that a path with a task's id would match, too
        if not path.startswith(API) or path.startswith(f"{API}/tasks/"):
            add_rule(path, f"unknown_{path.rpartition('/')[2]}")
    if page and REGISTRY.page_files:
        add_rule("/", "page")
        add_rule(f"{PAGE_FOLDER}<path:rest>", "page_file")
    return blueprint


def create_app(settings: Settings | None = None, **given: Any) -> flask.Flask:
    """Create the service as a WSGI application of its own.

    :param given: settings by name, such as `db="findings.db"`; they override the environment variables.
    :raises ConfigurationError: if a setting is unknown or not valid, or a package that it needs is not installed.
    :raises DatabaseUnusable: if the database cannot be opened.
    """
    if settings is not None and given:
        raise ConfigurationError(f"pass either `settings` or settings by name, not both: {', '.join(given)}")
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


# --- Command line ----------------------------------------------------------

STOPPING = [signal.SIGTERM, signal.SIGINT]
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
    STOPPING.append(signal.SIGHUP)

STDERR = 2  # its file descriptor

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
    """The command group, with the core's commands and those of modules."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. A failed write of its output exits with 1; a failed flush at its end keeps the exit code."""
        while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
            pass  # otherwise a database or socket would get the descriptor of a closed standard stream
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
                except OSError:  # Python would flush again at exit, fail, and exit with 120
                    setattr(sys, name, None)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. It does not fail if the reader of its output has gone, such as `head`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, after importing the modules that add some."""
        for module in COMMAND_MODULES.values():
            load_module(module)
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. :raises click.UsageError: if its module is not installed."""
        if cmd_name in COMMAND_MODULES and (missing := load_module(COMMAND_MODULES[cmd_name])):
            ctx.fail(f"`{cmd_name}` needs {missing}")
        if cmd_name != "serve":  # which warns in the format of its log
            warn_of_misspelled()
        return super().get_command(ctx, cmd_name)


class ServeCommand(click.Command):
    """The `serve` command; its help also lists the settings that have no option."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the settings that only environment variables set."""
        with formatter.section("Environment variables (durations are seconds, or a number with s, m, h or d)"):
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
    """Parse a duration of the command line into seconds."""
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
    """Convert errors of the configuration or the database to a one-line message and exit code 1."""
    try:
        yield
    except (ConfigurationError, DatabaseUnusable, ChildProcessError, OSError) as error:
        file = error.filename if isinstance(error, PermissionError) else None  # None for a port
        raise click.ClickException(str(unusable(file, error) if file else error)) from None
    except ENGINE_ERRORS as error:
        name = database_for(Settings.read(db=db)).name  # without a password
        raise click.ClickException(str(unusable(name, error))) from None


@contextmanager
def opened(db: str, *, new: bool = False, hint: str = "") -> Iterator[Database]:
    """Open the database for a command; a service may be using it.

    :param new: create a missing database. :param hint: the end of the error message for a missing database.
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
    """Store findings of agents in an SQLite file or in PostgreSQL, and serve them over HTTP."""


@main.command(cls=ServeCommand)
@database_option
@environment_option("--host", envvar="FINDINGS_HOST", default="127.0.0.1", help="Address to listen on.")
@environment_option(
    "--port", envvar="FINDINGS_PORT", default=8000, type=click.IntRange(0, 65535), help="Port; 0 picks a free one."
)
@environment_option(
    "--workers",
    envvar="FINDINGS_WORKERS",
    default=1,
    type=click.IntRange(1, 64),
    help="Number of worker processes; see docs/operations.md.",
)
@click.option("--demo", is_flag=True, help="Serve sample data from a temporary database, which is deleted at the end.")
@click.pass_context
def serve(ctx: click.Context, db: str, host: str, port: int, workers: int, demo: bool) -> None:
    """Run the HTTP server until SIGTERM or Ctrl-C."""
    if fcntl is None:
        raise click.ClickException(
            "`serve` requires Linux or macOS; on Windows, run create_app() in a WSGI server such as waitress"
        )
    load_module(SERVING)
    if demo and ctx.get_parameter_source("db") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--demo uses its own temporary database; leave out --db")
    if demo and (missing := load_module(DEMO)):
        raise click.UsageError(f"--demo needs {missing}")
    with readable_errors(db):
        settings = Settings.read(db="demo.db" if demo else db)
        if demo:
            settings = replace(settings, db=REGISTRY.make_demo(), api_key="", keep=0.0, run_timeout=0.0)
        (REGISTRY.serve or serve_with_threads)(settings, host, port, workers)


def insert_first_key(connection: Connection, settings: Settings) -> str | None:
    """Insert the first key of a database and return it; return None if a key exists, or FINDINGS_API_KEY is set."""
    is_first = not (settings.api_key or select_keys(connection))
    return insert_key(connection, "first", "default", "full") if is_first else None


def exposure_warning(host: str) -> str:
    """Return a warning if other machines may reach the service, because keys are sent unencrypted; otherwise ""."""
    if host in ("127.0.0.1", "::1", "localhost", ""):
        return ""
    return f"Warning: listening on {host}, beyond this machine, without TLS. Put a reverse proxy with TLS in front.\n"


def serve_with_threads(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve with Werkzeug's threaded server, which has a thread per connection, until a signal of `STOPPING`.

    :raises ConfigurationError: for a setting that needs the server module, and if the address is not available.
    """
    for given, name in ((workers > 1, "--workers"), (settings.keep, "FINDINGS_KEEP")):
        if given:
            raise ConfigurationError(f"{name} needs {load_module(SERVING)}")

    class Handler(WSGIRequestHandler):
        timeout = settings.body_timeout  # closes connections that send nothing

        def log(self, *_: object) -> None:
            """Log nothing here: the setting `log` controls the log of requests."""

    app = create_app(settings)
    service: Service = app.extensions["findings"]
    try:
        server = ThreadedWSGIServer(host or "127.0.0.1", port, app, Handler)
    except (OSError, UnicodeError) as error:  # UnicodeError for a malformed host name
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from None
    with closing(service.database), server:
        server.daemon_threads = False  # requests in progress are finished
        for each in STOPPING:
            signal.signal(each, lambda *_: threading.Thread(target=server.shutdown).start())
        url = f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{server.port}"
        greeting = f"Findings Task Service {__version__} on {url}, data in {service.database.location}"
        with suppress(OSError):
            click.echo(exposure_warning(host) + greeting, err=True)
        # In the transaction, so that a key that cannot be shown is not stored.
        with suppress(OSError), service.database.transaction("default") as connection:
            if sys.stderr and (key := insert_first_key(connection, settings)):
                click.echo(f'The first API key, of client "default" and level "full", shown only once: {key}', err=True)
        with running_companions(service):
            server.serve_forever()


def write_table(titles: Sequence[str], rows: Iterable[Sequence[str | None]], *, err: bool = False) -> None:
    """Print rows below their titles, in aligned columns."""
    table = [titles, *(tuple(value or "-" for value in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip(), err=err)


@main.group()
def keys() -> None:
    """Create, list and revoke API keys."""


def printable(_: click.Context, __: click.Parameter, text: str) -> str:
    """Check that a name on the command line can be shown in tables. :raises click.BadParameter: if not."""
    if not 1 <= len(text) <= 100 or not text.isprintable() or not text.strip():
        raise click.BadParameter("must be 1 to 100 printable characters, and not blank")
    return text


client_option = click.option("--client", default="default", callback=printable, help="Client that owns the key.")


@keys.command("create")
@click.argument("name", callback=printable)
@client_option
@click.option("--level", type=click.Choice(LEVELS), default="agent", help="Access level of the key.")
@click.option("--expires", callback=duration_of, metavar="DURATION", help="Lifetime of the key, such as 90d.")
@click.option("--for-users", is_flag=True, help="The key is for a proxy that signs people in; see docs/operations.md.")
@click.option("--new", is_flag=True, help="Create the database if it does not exist.")
@database_option
def create_key(name: str, client: str, level: str, expires: float | None, for_users: bool, new: bool, db: str) -> None:
    """Create an API key named NAME and print it. The key is shown only once."""
    if getattr(sys.stdout, "stream", sys.stdout) is None:  # the parent process closed it
        raise click.ClickException("standard output is closed, so the key cannot be shown; no key was created")
    if expires == 0:
        raise click.BadParameter("must be greater than zero", param_hint="--expires")
    expires_at = timestamp(ago=-expires) if expires is not None else None
    hint = "; add --new to create it, or choose another one with --db"
    with opened(db, new=new, hint=hint) as database, database.transaction(client) as connection:
        is_new = insert_client(connection, client)  # a command that creates the same key concurrently waits here
        if select_live_keys(connection, client, name):
            raise click.ClickException(f"client {client!r} has a live key {name!r}; revoke it, or choose another name")
        key = insert_key(connection, name, client, level, expires_at, for_users=for_users)
        if is_new:
            click.echo(f"Client {client!r} was created.", err=True)
        users, until = ", for users" if for_users else "", f" until {expires_at}" if expires_at else ""
        summary = f"Key {name!r} for client {client!r}, level {level}{users}{until}, in {database.location}."
        click.echo(f"{summary}\nIt is shown only once:", err=True)
        click.echo(key)  # in the transaction, so that a key that cannot be shown is not stored


@keys.command("list")
@database_option
def list_keys(db: str) -> None:
    """List all API keys, without their secrets."""
    with opened(db) as database, database.reading() as connection:
        rows = select_keys(connection)
    write_table(("KEY_ID", "CLIENT", "NAME", "LEVEL", "FOR USERS", "CREATED", "EXPIRES", "LAST USED", "REVOKED"), rows)


@keys.command("revoke")
@click.argument("key", metavar="NAME|KEY_ID", callback=printable)
@client_option
@database_option
def revoke(key: str, client: str, db: str) -> None:
    """Revoke an API key. Running services reject it at once."""
    with opened(db) as database, database.transaction() as connection:
        if not revoke_key(connection, key):
            found = select_live_keys(connection, client, key)
            if len(found) != 1:
                held = f"{len(found)} live keys {key!r}; use a KEY_ID instead" if found else f"no live key {key!r}"
                raise click.ClickException(f"client {client!r} has {held}; see: findings-service keys list")
            revoke_key(connection, found[0])
    click.echo(f"Key {key} is revoked.", err=True)


if __name__ == "__main__":
    main()
