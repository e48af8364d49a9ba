"""What scanners write and code scanning reads: findings as SARIF in and out, and as CSV out.

SARIF 2.1.0 is OASIS's format for the results of static analysis; the sections named below are those of
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. CSV is that of RFC 4180
(https://www.rfc-editor.org/rfc/rfc4180). This room adds to the service one form in which findings may be submitted,
`application/sarif+json`, and two in which a list of tasks may be answered, that and `text/csv`.

A result becomes a task that a person understands, whatever it lacks, and has an identity that outlives moved lines.
What this room has written it reads back as it was: a result carries its task's fields under a name of ours.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import itertools
import math
import operator
import posixpath
import re
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta, Raw, Struct

import findings_service as heart

__all__ = ["CSV", "SARIF", "judge", "parse", "with_source", "write_csv", "write_sarif"]

SARIF = "application/sarif+json"
CSV = "text/csv"
VERSION = "2.1.0"
OURS = "findingsTaskService/v1"  # the name of our fingerprint, and of our member in a property bag

# ---------------------------------------------------------------------------
# What is read of a document
# ---------------------------------------------------------------------------
#
# Everything is optional, and null is nothing: tools leave out what the standard requires. What is large is left
# unread, as Raw, and read piece by piece.

Whole = Annotated[float, Meta(multiple_of=1)]  # where the standard says integer; some write 1.0


class Part(Struct, rename="camel", gc=False):
    """The base of all parts of a document. Members without a name here are passed over."""


class Key(Struct, rename="camel", gc=False, frozen=True):
    """The base of those parts by which others are looked up."""


class Unread(Part):
    """An object that is only counted."""


class Log(Part):
    """The document itself (3.13)."""

    version: Raw = msgspec.field(default_factory=Raw)
    runs: Raw = msgspec.field(default_factory=Raw)


class Run(Part):
    """One run of a tool (3.14)."""

    tool: Raw = msgspec.field(default_factory=Raw)
    results: Raw = msgspec.field(default_factory=Raw)
    artifacts: Raw = msgspec.field(default_factory=Raw)
    invocations: Raw = msgspec.field(default_factory=Raw)
    logical_locations: Raw = msgspec.field(default_factory=Raw)
    original_uri_base_ids: Raw = msgspec.field(default_factory=Raw)
    taxonomies: Raw = msgspec.field(default_factory=Raw)


class Text(Part):
    """A text, alone or as a message's string (3.12)."""

    text: str | None = None


class Message(Part):
    """What a result says (3.11): a text, or the id of one of its rule's or tool's texts."""

    text: str | None = None
    id: str | None = None
    arguments: list[str | None] | None = None


class ComponentReference(Key, frozen=True):
    """Which part of a tool is meant (3.54)."""

    index: Whole | None = None
    name: str | None = None
    guid: str | None = None


class Reference(Key, frozen=True):
    """Which rule or taxon is meant (3.52)."""

    id: str | None = None
    index: Whole | None = None
    guid: str | None = None
    tool_component: ComponentReference | None = None


class Properties(Part):
    """What is read of a property bag (3.8): tags, the number that GitHub defined, and what is ours."""

    tags: list[str | None] | None = None
    security_severity: str | float | None = msgspec.field(name="security-severity", default=None)
    ours: Raw = msgspec.field(name=OURS, default_factory=Raw)


Level = Literal["none", "note", "warning", "error"]


class Configuration(Part):
    """How a rule is set (3.50)."""

    level: Level | None = None


class Relationship(Part):
    """What a rule has to do with another, or with a taxon (3.53)."""

    target: Reference | None = None


class Rule(Part):
    """What a tool looks for (3.49)."""

    id: str | None = None
    guid: str | None = None
    name: str | None = None
    short_description: Text | None = None
    full_description: Text | None = None
    help: Text | None = None
    help_uri: str | None = None
    default_configuration: Configuration | None = None
    message_strings: dict[str, Text | None] | None = None
    relationships: list[Relationship | None] | None = None
    properties: Properties | None = None


class Component(Part):
    """A part of a tool, or a taxonomy (3.19)."""

    name: str | None = None
    guid: str | None = None
    rules: Raw = msgspec.field(default_factory=Raw)
    taxa: Raw = msgspec.field(default_factory=Raw)
    global_message_strings: dict[str, Text | None] | None = None


class Tool(Part):
    """A tool and its plug-ins (3.18)."""

    driver: Component | None = None
    extensions: list[Component | None] | None = None


class ArtifactLocation(Key, frozen=True):
    """Where a file is (3.4)."""

    uri: str | None = None
    uri_base_id: str | None = None
    index: Whole | None = None


class Artifact(Part):
    """A file (3.24)."""

    location: ArtifactLocation | None = None


class Override(Part):
    """A rule that was set anew for one run (3.51)."""

    descriptor: Reference | None = None
    configuration: Configuration | None = None


class Invocation(Part):
    """How the tool was called (3.20)."""

    execution_successful: bool | None = None
    working_directory: ArtifactLocation | None = None
    rule_configuration_overrides: list[Override | None] | None = None


class Region(Part):
    """A part of a file (3.30)."""

    start_line: Whole | None = None
    end_line: Whole | None = None
    snippet: Text | None = None


class PhysicalLocation(Part):
    """A place in a file (3.29)."""

    artifact_location: ArtifactLocation | None = None
    region: Region | None = None
    context_region: Region | None = None


class LogicalLocation(Part):
    """A place in a program: a function, say (3.33)."""

    name: str | None = None
    fully_qualified_name: str | None = None
    index: Whole | None = None


class Location(Part):
    """Where a result is (3.28)."""

    physical_location: PhysicalLocation | None = None
    logical_locations: list[LogicalLocation | None] | None = None


class Suppression(Part):
    """That a result was set aside (3.35)."""

    status: Literal["accepted", "underReview", "rejected"] | None = None


class Result(Part):
    """What a tool found (3.27)."""

    rule_id: str | None = None
    rule_index: Whole | None = None
    rule: Reference | None = None
    kind: Literal["notApplicable", "pass", "fail", "review", "open", "informational"] | None = None
    level: Level | None = None
    message: Message | None = None
    locations: list[Location | None] | None = None
    fingerprints: dict[str, str | None] | None = None
    partial_fingerprints: dict[str, str | None] | None = None
    correlation_guid: str | None = None
    suppressions: list[Suppression | None] | None = None
    baseline_state: Literal["new", "unchanged", "updated", "absent"] | None = None
    taxa: list[Reference | None] | None = None
    properties: Properties | None = None

    @property
    def is_finding(self) -> bool:
        """Whether it says that something is the matter, and still is."""
        return self.kind not in ("pass", "notApplicable") and self.baseline_state != "absent"

    @property
    def is_suppressed(self) -> bool:
        """Whether somebody has set it aside."""
        return any(item and item.status in (None, "accepted") for item in self.suppressions or ())


# ---------------------------------------------------------------------------
# Texts
# ---------------------------------------------------------------------------

TITLE_LENGTH = 500  # characters, like the next
LABEL_LENGTH = 500
NAME_LENGTH = 500  # of a rule or tool in the extensions
PATH_LENGTH = 4096
URI_LENGTH = 4 * PATH_LENGTH  # a path with all signs escaped
TAGS = 40
TAG_LENGTH = 200
RULE_TEXT = 16 * heart.KIB  # bytes; what a rule says is stored with each of its findings
DESCRIPTION = 64 * heart.KIB
SNIPPET = 256 * heart.KIB
MESSAGE_LENGTH = 2 * DESCRIPTION  # characters that are looked at
MOST_LOCATIONS = 100
LINK = re.compile(r"\[([^\[\]]*)\]\([0-9]+\)")  # to a place of the result (3.11.6)
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([0-9]{1,6})\}")


def cut(text: str, length: int) -> str:
    """Shorten a text to so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def cut_bytes(text: str, size: int) -> str:
    """Shorten a text to so many bytes of UTF-8."""
    if not heart.over(text, size):
        return text
    return text[:size].encode()[: size - 3].decode(errors="ignore") + "…"


def filled(text: str, arguments: Sequence[str | None]) -> str:
    """Put a message's arguments into their places (3.11.5), until it is longer than anything that is kept."""
    parts: list[str] = []
    length = place = 0
    for match in PLACEHOLDER.finditer(text):
        number = int(match[1]) if match[1] else -1
        value = (arguments[number] or "" if number < len(arguments) else match[0]) if match[1] else match[0][0]
        parts += (text[place : match.start()], value[:DESCRIPTION])
        length += len(parts[-1]) + len(parts[-2])
        place = match.end()
        if length > DESCRIPTION:
            return "".join(parts)
    return "".join((*parts, text[place:]))


def text_of(*texts: Text | None) -> str:
    """Return the first text that is not blank."""
    for item in texts:
        if item and item.text and (stripped := item.text[:MESSAGE_LENGTH].strip()):
            return stripped
    return ""


def index_of(number: float | None) -> int | None:
    """Return the place in an array that a number means: -1 is none."""
    return int(number) if number is not None and 0 <= number < 2**31 else None


def line_of(number: float | None) -> int | None:
    """Return the line that a number means."""
    return int(number) if number is not None and 1 <= number < 2**31 else None


# ---------------------------------------------------------------------------
# Reading a document within bounds
# ---------------------------------------------------------------------------

MOST_OBJECTS = 4_000_000  # in a document, so that what is only counted stays within 100 MB
RESULT_SIZE = 128  # bytes of the body limit for each result that may come
LARGE_PIECE = heart.KIB * heart.KIB  # one may have too many values to be read at once
MOST_PROBLEMS = 10_000
# What all findings of a document may weigh, as a multiple of the body limit: rules are said once in it, and stored
# with each finding. What only one finding has weighs more, for it is held in memory.
WEIGHT = 16
OWN_WEIGHT = 4
TURN = 256  # results, between two looks at whether this thread holds others up
CHUNK = 64 * heart.KIB
REFUSAL = re.compile(r"(?P<detail>.*) - at `\$(?P<path>.*)`", re.DOTALL)
STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")  # dict entries are `[...]`: which one, msgspec does not say
NO_RESULTS = "must be an array, empty for a clean scan; a run without results is a scanner that failed"
NO_RUNS = "must hold a run at least; a document without is a scanner that failed"
NO_NUL = "must not contain U+0000"

Read = TypeVar("Read")


def is_given(raw: Raw) -> bool:
    """Tell whether an unread member is there and not null."""
    return bytes(memoryview(raw)[:5]) not in (b"", b"null")


def require_readable(text: bytes) -> None:
    """Check that a body is JSON in UTF-8, in little memory. :raises MalformedJSON: when it is not."""
    place = 0
    try:
        while place < len(text):
            chunk = memoryview(text)[place : place + CHUNK]
            place += codecs.utf_8_decode(chunk, "strict", place + CHUNK >= len(text))[1]
        heart.decoder(Raw).decode(text)
    except heart.NOT_JSON as error:
        raise heart.not_json(error) from None


def require_few_objects(text: bytes) -> None:
    """Check that a body has no more objects than can be looked through. :raises ValidationFailed: when it has."""
    if text.count(b"{") > MOST_OBJECTS and heart.JSON_STRING.sub(b"", text).count(b"{") > MOST_OBJECTS:
        raise heart.ValidationFailed([heart.Problem(f"has over {MOST_OBJECTS:,} objects; send it in parts", "")])


def quick_problem(refusal: msgspec.ValidationError, pointer: str) -> heart.Problem:
    """Tell the first thing that is wrong with a value, in msgspec's words."""
    match = REFUSAL.fullmatch(str(refusal))
    if not match:
        return heart.Problem(heart.cut(str(refusal)), pointer)
    known = match["path"].partition("[...]")[0]
    steps = [name or number for name, number in STEP.findall(known)]
    return heart.Problem(heart.cut(match["detail"]), heart.joined(steps, pointer))


class Reading:
    """A document that is being read: what it has come to, what is wrong with it, and how much more there may be."""

    def __init__(self, settings: heart.Settings, *, has_nul: bool = False) -> None:
        self.parsed = heart.Parsed()
        self.has_nul = has_nul
        self.nul_places: set[str] = set()
        self.most_items = max(1, settings.max_sarif // RESULT_SIZE)
        self.room = WEIGHT * settings.max_sarif
        self.patience = settings.schema_timeout  # seconds left to look for all that is wrong
        self.occurrences: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether there is no point in reading on."""
        return not self.parsed.complete

    def complain(self, *problems: heart.Problem) -> None:
        """Note what is wrong, and give up where that is too much."""
        self.parsed.problems += problems
        if len(self.parsed.problems) > MOST_PROBLEMS:
            self.parsed.complete = False

    def items(self, raw: Raw, pointer: str) -> list[Raw]:
        """Return the objects of an array unread, none where it is not there, or is refused."""
        if not is_given(raw):
            return []
        try:
            count = len(heart.decoder(list[Unread]).decode(raw))
        except msgspec.ValidationError as refusal:
            self.complain(quick_problem(refusal, pointer))
            return []
        if count > self.most_items:
            self.complain(heart.Problem(f"must have at most {self.most_items:,} items, and has {count:,}", pointer))
            return []
        items: list[Raw] = heart.decoder(list[Raw]).decode(raw)
        return items

    def read(self, model: type[Read], raw: Raw, pointer: str) -> Read | None:
        """Return a part of the document, None where it is not there, or is refused."""
        if not is_given(raw):
            return None
        try:
            if memoryview(raw).nbytes > LARGE_PIECE:
                heart.require_few_values(bytes(raw))
            part: Read = heart.decoder(typing.cast(Any, model)).decode(raw)
        except msgspec.ValidationError as refusal:
            self.complain(*self.told(model, raw, refusal, pointer))
            return None
        except heart.ValidationFailed as error:
            self.complain(*(problem.below(pointer) for problem in error.problems))
            return None
        if self.has_nul:
            self._look_for_nul(bytes(raw), pointer)
        return part

    def told(self, model: Any, raw: Raw, refusal: msgspec.ValidationError, pointer: str) -> Sequence[heart.Problem]:
        """Return everything that is wrong with a part, or the first thing once there is no time for more."""
        if self.patience <= 0 or len(self.parsed.problems) > heart.LISTED_PROBLEMS:
            return [quick_problem(refusal, pointer)]
        began = time.monotonic()
        try:
            with heart.time_limit(self.patience):
                return list(heart.model_problems(model, heart.document_of(bytes(raw)), refusal, pointer))
        except heart.OutOfTime:
            return [quick_problem(refusal, pointer)]
        finally:
            self.patience -= time.monotonic() - began

    def _look_for_nul(self, text: bytes, pointer: str) -> None:
        """Note where a part has U+0000; of a large one, only that it has."""
        if not heart.NUL_ESCAPE.search(text):
            return
        places: Iterable[tuple[str | int, ...]] = [()]
        if len(text) <= LARGE_PIECE:
            places = itertools.islice(heart.nul_places(heart.document_of(text)), heart.PROBLEMS_OF_ONE)
        for place in places:
            at = heart.joined(place, pointer)
            if at not in self.nul_places:  # a rule's, which were told of with its tool
                self.nul_places.add(at)
                self.complain(heart.Problem(NO_NUL, at))

    def take(self, report: heart.Report, rule: KnownRule, pointer: str) -> None:
        """Take a finding."""
        own = len(report.title) + len(report.evidence or "") + len(report.extensions or "")
        if report.description is not None and report.description is not rule.full:
            own += len(report.description)
        self._weigh(own, len(rule.full) + len(rule.remediation or ""), pointer)
        self.parsed.reports.append(report)
        self.parsed.extensions.append((report.extensions, pointer))

    def take_ours(self, raw: Raw, external_id: str | None, pointer: str) -> None:
        """Take a finding that this service wrote, checked as a submitted one is."""
        before = len(self.parsed.reports)
        began = time.monotonic()
        try:
            with heart.time_limit(max(self.patience, 0)):  # only of what breaks rules the time is looked at
                heart.add_task(self.parsed, bytes(raw), pointer, levels=1)
        except heart.OutOfTime:
            self.complain(heart.Problem(heart.OUT_OF_TIME.detail, pointer))
        if len(self.parsed.reports) > before:
            self.parsed.reports[-1].external_id = external_id
        else:
            self.patience -= time.monotonic() - began
            self.complain()
        self._weigh(memoryview(raw).nbytes, 0, pointer)

    def _weigh(self, own: int, shared: int, pointer: str) -> None:
        """Take a finding's characters from the room that there is, and give up where that is used."""
        self.room -= OWN_WEIGHT * own + shared
        if self.room < 0:
            detail = "from here on the findings are too large, each with what its rule says; send them in parts"
            self.complain(heart.Problem(detail, pointer))
            self.parsed.complete = False

    def numbered(self, identity: str) -> str:
        """Return an identity as an external id: the first of several has it, the others with their number."""
        self.occurrences[identity] += 1
        number = self.occurrences[identity]
        return identity if number == 1 else f"{identity}-{number}"


# ---------------------------------------------------------------------------
# Paths
# ---------------------------------------------------------------------------

KEPT = 4096  # paths or rules that are looked up once
CHAIN = 32  # bases that stand on each other
ROOT = "%SRCROOT%"  # the base that is taken before others where a path is below several
DRIVE = re.compile(r"/?([A-Za-z]:(?:/.*)?)", re.DOTALL)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of two letters or more: one is a drive
ABSOLUTE = re.compile(r"/|[A-Za-z]:(?:/|\Z)|[A-Za-z][A-Za-z0-9+.-]+:")


def path_of_uri(uri: str) -> str:
    r"""Return the path that a URI means, with `/` between its parts; one of another scheme than file stays as it is.

    Windows paths stand for themselves, as some tools write them: C:\src\a.c is C:/src/a.c, like file:///C:/src/a.c.
    """
    if uri[:5].lower() == "file:":
        rest = uri[5:]
        uri = rest[2:] if rest.startswith("///") else rest.removeprefix("//localhost")
    elif SCHEME.match(uri):
        return uri
    path = unquote(uri).replace("\0", "%00").replace("\\", "/")
    if drive := DRIVE.fullmatch(path):
        path = drive[1]
    return posixpath.normpath(path) if path else ""


def is_absolute(path: str) -> bool:
    """Tell whether a path or URI stands for itself."""
    return ABSOLUTE.match(path) is not None


class Paths:
    """The files of a run, as paths below what was scanned, as far as that is known."""

    def __init__(self, reading: Reading, run: Run, invocations: Iterable[Invocation], pointer: str) -> None:
        self.reading = reading
        self.pointer = f"{pointer}/artifacts"
        self.unread = run.artifacts
        self.artifacts: list[Raw] | None = None
        self.known: dict[ArtifactLocation, str] = {}
        bases = reading.read(
            dict[str, ArtifactLocation | None], run.original_uri_base_ids, f"{pointer}/originalUriBaseIds"
        )
        self.bases = {name: base for name, base in (bases or {}).items() if base}
        self.above = {name: path_of_uri((base.uri or "")[:PATH_LENGTH]) for name, base in self.bases.items()}
        self.roots = list(self._roots(invocations))

    def _roots(self, invocations: Iterable[Invocation]) -> Iterator[str]:
        """Give the absolute paths that tell only where a scan was done, the likeliest first."""
        bases = sorted(self.above.values(), key=len, reverse=True)
        directories = [item.working_directory for item in invocations if item.working_directory]
        called_from = [path_of_uri((each.uri or "")[:PATH_LENGTH]) for each in directories]
        for path in (self.above.get(ROOT, ""), *bases, *called_from):
            if is_absolute(path):
                yield f"{path.rstrip('/')}/"

    def path(self, location: ArtifactLocation) -> str:
        """Return the path of a file, "" where nothing tells it."""
        found = self.known.get(location)
        if found is None:
            if len(self.known) >= KEPT:
                self.known.clear()
            found = self.known[location] = self._resolved(self._located(location))[:PATH_LENGTH]
        return found

    def _located(self, location: ArtifactLocation) -> ArtifactLocation:
        """Return where a file is that may be told by its place in the run's list alone (3.4.5)."""
        place = index_of(location.index)
        if location.uri is not None or place is None:
            return location
        if self.artifacts is None:
            self.artifacts = self.reading.items(self.unread, self.pointer)
        if place >= len(self.artifacts):
            return location
        artifact = self.reading.read(Artifact, self.artifacts[place], f"{self.pointer}/{place}")
        return (artifact and artifact.location) or location

    def _resolved(self, location: ArtifactLocation) -> str:
        """Return a path on its bases, without an absolute one (3.14.14). A loop of bases ends somewhere."""
        path = path_of_uri((location.uri or "")[:URI_LENGTH])
        if is_absolute(path):
            return next((path[len(root) :] for root in self.roots if path.startswith(root)), path)
        name, passed = location.uri_base_id, set[str]()
        while name in self.above and name not in passed and len(passed) < CHAIN and not is_absolute(self.above[name]):
            passed.add(name)
            path = posixpath.join(self.above[name], path)
            name = self.bases[name].uri_base_id
        return posixpath.normpath(path) if path else ""


# ---------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------

PARENTS = 16  # of a hierarchical rule id (3.27.5), CA1000/1 being below CA1000
SCORES = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.0, "low"))  # security-severity, from or over which
SEVERITY_OF_LEVEL = {"error": "high", "warning": "medium", "note": "low", "none": "info"}


def scored(properties: Properties | None) -> int | None:
    """Return the severity that a property bag's security-severity means, as the rank that is stored."""
    value = properties.security_severity if properties else None
    try:
        score = float(value) if value is not None else 0.0
    except ValueError:
        return None
    if not 0 < score < math.inf:
        return None
    return heart.RANKS[next(name for least, name in SCORES if score >= least)]


def tags_of(properties: Properties | None) -> list[str]:
    """Return the tags of a property bag."""
    return [tag for tag in (properties.tags if properties else None) or () if tag]


class KnownRule(Struct):
    """A rule as its findings have it; what it says to each of them is made once."""

    id: str | None
    component: int  # its part of the tool: 0 is the driver
    title: str = ""
    full: str = ""
    remediation: str | None = None
    rank: int | None = None
    level: Level | None = None
    tags: tuple[str, ...] = ()
    messages: Mapping[str, Text | None] = {}


class RuleList:
    """The rules of one part of a tool, each read when it is asked for."""

    def __init__(self, reading: Reading, component: Component, number: int, pointer: str) -> None:
        self.reading = reading
        self.name = component.name
        self.guid = component.guid
        self.strings = component.global_message_strings or {}
        self.number = number
        self.pointer = pointer
        self.unread = reading.items(component.rules, pointer)
        self.read: dict[int, Rule] = {}
        self.places: dict[str, int] | None = None

    def __getitem__(self, place: int) -> Rule:
        """Return the rule at a place; one that is refused is empty."""
        if place not in self.read:
            rule = self.reading.read(Rule, self.unread[place], f"{self.pointer}/{place}")
            self.read[place] = rule or Rule()
        return self.read[place]

    def place_of(self, name: str) -> int | None:
        """Return where the rule with an id, or a guid, stands."""
        if self.places is None:
            self.places = {}
            for place in range(len(self.unread)):
                for key in (self[place].id, self[place].guid):
                    if key is not None:
                        self.places.setdefault(key, place)
        return self.places.get(name)


class Rules:
    """The rules of a run: those of the tool itself and of its plug-ins."""

    def __init__(self, reading: Reading, tool: Tool, taxonomies: Sequence[Component], pointer: str) -> None:
        parts = [(tool.driver, f"{pointer}/driver/rules")]
        parts += [(part, f"{pointer}/extensions/{place}/rules") for place, part in enumerate(tool.extensions or ())]
        self.lists = [RuleList(reading, part or Component(), place, at) for place, (part, at) in enumerate(parts)]
        self.taxonomies = taxonomies
        self.names = {rules.name for rules in self.lists}
        self.overrides: dict[tuple[int, int], Level] = {}
        self.known: dict[tuple[str | None, float | None, Reference | None], KnownRule] = {}

    def override(self, invocations: Iterable[Invocation]) -> None:
        """Take the levels that rules were given for this run."""
        for invocation in invocations:
            for each in invocation.rule_configuration_overrides or ():
                if each and each.descriptor and each.configuration and each.configuration.level:
                    found = self._find(each.descriptor.id, each.descriptor.index, each.descriptor)
                    if found:
                        self.overrides.setdefault((found[0].number, found[1]), each.configuration.level)

    def rule_of(self, result: Result) -> KnownRule:
        """Return the rule of a result, as much of it as there is."""
        key = (result.rule_id, result.rule_index, result.rule)
        rule = self.known.get(key)
        if rule is None:
            if len(self.known) >= KEPT:
                self.known.clear()
            rule = self.known[key] = self._made(*key)
        return rule

    def _made(self, rule_id: str | None, index: float | None, reference: Reference | None) -> KnownRule:
        if reference:
            rule_id = rule_id or reference.id
            index = index if index_of(reference.index) is None else reference.index
        found = self._find(rule_id, index, reference)
        if not found:
            return KnownRule(rule_id, 0)
        rules, place = found
        rule = rules[place]
        help_text = text_of(rule.help) or (rule.help_uri or "").strip()
        return KnownRule(
            rule_id or rule.id,
            rules.number,
            text_of(rule.short_description, rule.full_description) or (rule.name or "").strip(),
            cut_bytes(text_of(rule.full_description), RULE_TEXT),
            heart.stored([heart.StoredStep(1, cut_bytes(help_text, RULE_TEXT))]) if help_text else None,
            scored(rule.properties),
            self.overrides.get((rules.number, place)) or (rule.default_configuration or Configuration()).level,
            tuple(self._tags(rule)),
            rule.message_strings or {},
        )

    def _tags(self, rule: Rule) -> Iterator[str]:
        yield from tags_of(rule.properties)
        yield from self.taxa(each.target for each in rule.relationships or () if each)

    def taxa(self, references: Iterable[Reference | None]) -> Iterator[str]:
        """Give the taxa that are referred to, each with its taxonomy's name: CWE-79."""
        for reference in references:
            part = (reference and reference.tool_component) or ComponentReference()
            name = part.name or self._taxonomy(part)
            if reference and reference.id and name and name not in self.names:  # which would be another rule
                yield reference.id if reference.id.startswith(name) else f"{name}-{reference.id}"

    def _taxonomy(self, reference: ComponentReference) -> str:
        """Return the name of a taxonomy that is meant by its guid or place."""
        place = index_of(reference.index)
        for number, item in enumerate(self.taxonomies):
            if (reference.guid and item.guid == reference.guid) or (not reference.guid and number == place):
                return item.name or ""
        return ""

    def _find(
        self, rule_id: str | None, index: float | None, reference: Reference | None
    ) -> tuple[RuleList, int] | None:
        """Return where a rule stands (3.52.3): in the part of the tool that is named, or else in any."""
        named = self._part(reference.tool_component if reference else None)
        place = index_of(index)
        if place is not None and place < len((named or self.lists[0]).unread):
            rules = named or self.lists[0]
            their_id = rules[place].id
            if rule_id is None or their_id is None or f"{rule_id}/".startswith(f"{their_id}/"):
                return rules, place
        if reference and reference.guid and (found := self._look_up(reference.guid, named)):
            return found
        for _ in range(PARENTS):
            if not rule_id:
                break
            if found := self._look_up(rule_id, named):
                return found
            rule_id = rule_id.rpartition("/")[0]
        return None

    def _look_up(self, name: str, first: RuleList | None) -> tuple[RuleList, int] | None:
        for rules in (first, *self.lists) if first else self.lists:
            if (place := rules.place_of(name)) is not None:
                return rules, place
        return None

    def _part(self, reference: ComponentReference | None) -> RuleList | None:
        """Return the part of the tool that is meant (3.54.2)."""
        if reference is None:
            return None
        place = index_of(reference.index)
        if place is not None and place + 1 < len(self.lists):
            return self.lists[place + 1]
        for rules in self.lists:
            if (reference.guid and rules.guid == reference.guid) or (reference.name and rules.name == reference.name):
                return rules
        return None


# ---------------------------------------------------------------------------
# From a result to a finding
# ---------------------------------------------------------------------------

# What Semgrep says in place of a fingerprint to those who are not logged in: the same of every result.
NO_FINGERPRINTS = ("requires login",)
EXTERNAL_ID_LENGTH = 256


class Place(Struct, gc=False):
    """Where a result is: a file, or else what a program calls the place."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    snippet: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """The place as people write it."""
        where = self.path or self.name
        label = f"{where}:{self.line}" if where and self.line else where
        return label if len(label) <= LABEL_LENGTH else "…" + label[1 - LABEL_LENGTH :]

    @property
    def evidence(self) -> heart.Evidence | None:
        """The code there, None where nothing is known of it."""
        label, content = self.label or None, cut_bytes(self.snippet, SNIPPET) or None
        return heart.Evidence(type="code", label=label, content=content) if label or content else None


class Extensions(Struct, rename="camel", omit_defaults=True, gc=False):
    """What the extensions of a finding hold, as far as its project type admits it."""

    rule_id: str | None = None
    tool: str | None = None
    file: str | None = None
    line: int | None = None
    end_line: int | None = None
    tags: tuple[str, ...] = ()


def marks_of(fingerprints: Mapping[str, str | None] | None) -> list[tuple[str, str]]:
    """Return fingerprints in the order of their names, without those that are none."""
    given = (fingerprints or {}).items()
    return sorted((name, value) for name, value in given if value and value not in NO_FINGERPRINTS)


def identity_of(result: Result, tool: str, rule_id: str | None, place: Place) -> str:
    """Return what a result is known by from scan to scan: a hash of what does not move.

    Neither its guid, which is new in every run, nor its message or line is in it.
    """
    where = place.path or place.name
    marks: Sequence[Any]
    if marks := marks_of(result.fingerprints):
        known_by: tuple[Any, ...] = ("fingerprints", marks)
    elif result.correlation_guid:
        known_by = ("correlationGuid", result.correlation_guid.lower())
    elif marks := marks_of(result.partial_fingerprints):
        known_by = ("partialFingerprints", where, marks)
    else:
        known_by = ("snippet", where, " ".join(place.snippet[:SNIPPET].split()))
    return hashlib.sha256(msgspec.json.encode((tool, rule_id, *known_by))).hexdigest()[:40]


def our_id(result: Result) -> str | None:
    """Return the external id that a result had when this service wrote it."""
    value = (result.fingerprints or {}).get(OURS)
    return value if value and len(value) <= EXTERNAL_ID_LENGTH else None


class RunReading:
    """A run that is being read, with all that its results refer to."""

    def __init__(self, reading: Reading, raw: Raw, pointer: str) -> None:
        self.reading = reading
        self.pointer = pointer
        self.before = len(reading.parsed.problems)
        self.run: Run = heart.decoder(Run).decode(raw)
        self.tool = reading.read(Tool, self.run.tool, f"{pointer}/tool") or Tool()
        invocations = self._read_all(Invocation, self.run.invocations, "invocations")
        self.paths = Paths(reading, self.run, invocations, pointer)
        taxonomies = self._read_all(Component, self.run.taxonomies, "taxonomies")
        self.rules = Rules(reading, self.tool, taxonomies, f"{pointer}/tool")
        self.rules.override(invocations)
        self.names: list[Raw] | None = None
        self._require_success(invocations)

    @property
    def tool_name(self) -> str:
        """The name of the tool, whatever part of it found something."""
        return ((self.tool.driver and self.tool.driver.name) or "").strip()

    def _read_all(self, model: type[Read], raw: Raw, name: str) -> list[Read]:
        pointer = f"{self.pointer}/{name}"
        items = self.reading.items(raw, pointer)
        return [self.reading.read(model, item, f"{pointer}/{place}") or model() for place, item in enumerate(items)]

    def _require_success(self, invocations: Iterable[Invocation]) -> None:
        """Refuse the run of a scanner that failed, which must not look like a clean scan."""
        complaints = []
        if not self.tool_name:
            complaints.append((self._missing_name(), "must be there, and name the tool"))
        if not is_given(self.run.results):
            complaints.append(("/results", NO_RESULTS))
        for place, invocation in enumerate(invocations):
            if invocation.execution_successful is False:
                complaints.append((f"/invocations/{place}/executionSuccessful", "the scanner says that it failed"))
        told = [problem.pointer or "" for problem in self.reading.parsed.problems[self.before :]]
        for pointer, detail in complaints:
            at = f"{self.pointer}{pointer}"
            if not at.startswith(tuple(told)):
                self.reading.complain(heart.Problem(detail, at))

    def _missing_name(self) -> str:
        """Return where the tool's name is missing."""
        if not is_given(self.run.tool):
            return "/tool"
        return "/tool/driver/name" if self.tool.driver else "/tool/driver"

    def read_results(self) -> None:
        """Take every result as a finding. :raises Postponed: when others have waited long enough for this thread."""
        results = self.reading.items(self.run.results, f"{self.pointer}/results")
        for number, raw in enumerate(results):
            if number % TURN == 0:
                heart.tick()
            pointer = f"{self.pointer}/results/{number}"
            result = self.reading.read(Result, raw, pointer)
            if result and result.is_finding:
                self._take(result, pointer)
            if self.reading.is_over:
                break

    def _take(self, result: Result, pointer: str) -> None:
        known_as = our_id(result)
        if result.properties and is_given(result.properties.ours):
            self.reading.take_ours(result.properties.ours, known_as, f"{pointer}/properties/{heart.escaped(OURS)}")
            return
        rule = self.rules.rule_of(result)
        places = [self._place(item) for item in (result.locations or ())[:MOST_LOCATIONS] if item]
        first = places[0] if places else Place()
        title, description = self._words(result, rule)
        items = [item for place in places if (item := place.evidence)]
        report = heart.Report(
            known_as or self.reading.numbered(identity_of(result, self.tool_name, rule.id, first)),
            "dismissed" if result.is_suppressed else None,
            title,
            severity_of(result, rule),
            description,
            heart.stored(items),
            rule.remediation,
            None,
            self._extensions(result, rule, first),
        )
        self.reading.take(report, rule, pointer)

    def _place(self, location: Location) -> Place:
        physical = location.physical_location or PhysicalLocation()
        region = physical.region or Region()
        around = physical.context_region or Region()
        snippet = (region.snippet and region.snippet.text) or (around.snippet and around.snippet.text) or ""
        path = self.paths.path(physical.artifact_location) if physical.artifact_location else ""
        name = "" if path else self._logical_name(location)
        return Place(path, line_of(region.start_line), line_of(region.end_line), snippet, name)

    def _logical_name(self, location: Location) -> str:
        """Return what a program calls a place, "" where that is not told."""
        for item in location.logical_locations or ():
            if item and (name := self._named(item)):
                return name[:PATH_LENGTH]
        return ""

    def _named(self, item: LogicalLocation) -> str:
        """Return the name of a place that may be told by its place in the run's list alone (3.33.3)."""
        name = item.fully_qualified_name or item.name or ""
        number = index_of(item.index)
        if name or number is None:
            return name
        pointer = f"{self.pointer}/logicalLocations"
        if self.names is None:
            self.names = self.reading.items(self.run.logical_locations, pointer)
        if number >= len(self.names):
            return ""
        named = self.reading.read(LogicalLocation, self.names[number], f"{pointer}/{number}") or LogicalLocation()
        return named.fully_qualified_name or named.name or ""

    def _words(self, result: Result, rule: KnownRule) -> tuple[str, str | None]:
        """Return a finding's title and description."""
        message = self._said(result.message or Message(), rule)
        title = cut(message or rule.title or rule.id or f"A finding of {self.tool_name}", TITLE_LENGTH)
        if len(message) > TITLE_LENGTH:
            return title, cut_bytes(message, DESCRIPTION)
        return title, rule.full if rule.full and rule.full not in title else None

    def _said(self, message: Message, rule: KnownRule) -> str:
        """Return what a message says, with its arguments in their places and without links (3.11)."""
        text = message.text
        if not text and message.id is not None:
            strings = (rule.messages, self.rules.lists[rule.component].strings, self.rules.lists[0].strings)
            text = text_of(*(each.get(message.id) for each in strings))
            text = filled(text, message.arguments or ())
        elif text and message.arguments:
            text = filled(text, message.arguments)
        return LINK.sub(r"\1", (text or "")[:MESSAGE_LENGTH]).strip()

    def _extensions(self, result: Result, rule: KnownRule, place: Place) -> str:
        tags = dict.fromkeys((*rule.tags, *tags_of(result.properties), *self.rules.taxa(result.taxa or ())))
        extensions = Extensions(
            cut(rule.id, NAME_LENGTH) if rule.id else None,
            cut(self.tool_name, NAME_LENGTH),
            place.path or None,
            place.line,
            place.end_line if place.line else None,
            tuple(cut(tag, TAG_LENGTH) for tag in itertools.islice(tags, TAGS)),
        )
        return msgspec.json.encode(extensions).decode()


def severity_of(result: Result, rule: KnownRule) -> int:
    """Return the severity of a result, as the rank that is stored (3.27.10, and GitHub's security-severity)."""
    rank = scored(result.properties) or rule.rank
    if rank:
        return rank
    level = result.level or ("none" if result.kind not in (None, "fail") else rule.level or "warning")
    return heart.RANKS[SEVERITY_OF_LEVEL[level]]


def parse(text: bytes, settings: heart.Settings) -> heart.Parsed:
    """Read a SARIF document as the findings that it tells of, and note what is wrong with it.

    :raises MalformedJSON: when it is no JSON. :raises ValidationFailed: when it has too many objects.
    :raises Postponed: when others have waited long enough for this thread.
    """
    if len(text) > LARGE_PIECE and heart.CLOCK.held_up < math.inf:
        raise heart.Postponed
    text = text.removeprefix(codecs.BOM_UTF8)
    require_readable(text)
    require_few_objects(text)
    reading = Reading(settings, has_nul=heart.NUL_ESCAPE.search(text) is not None)
    with heart.time_limit(math.inf):
        read_log(reading, text)
    parsed = reading.parsed
    if reading.has_nul and not parsed.problems:
        parsed.problems.append(heart.Problem(NO_NUL, ""))
    return parsed


def read_log(reading: Reading, text: bytes) -> None:
    """Read all runs of a document. :raises Postponed: when others have waited long enough for this thread."""
    try:
        log: Log = heart.decoder(Log).decode(text)
    except msgspec.ValidationError as refusal:
        reading.complain(quick_problem(refusal, ""))
        return
    if memoryview(log.version) != f'"{VERSION}"'.encode():
        reading.complain(heart.Problem(f"must be {VERSION}", "/version"))
    runs = reading.items(log.runs, "/runs")
    if not runs and not any(problem.pointer == "/runs" for problem in reading.parsed.problems):
        reading.complain(heart.Problem(NO_RUNS, "/runs"))
    for number, raw in enumerate(runs):
        if reading.is_over:
            break
        RunReading(reading, raw, f"/runs/{number}").read_results()


# ---------------------------------------------------------------------------
# What a project type admits
# ---------------------------------------------------------------------------


def judge(schema: str, parsed: heart.Parsed, settings: heart.Settings) -> None:
    """Hold the extensions against a project type's schema, and leave out the members that it does not admit.

    What this service wrote itself is judged whole. Each lot has the time that a batch has.

    :raises ExtensionCheckTimeout: when that was not enough.
    """
    if parsed.problems:
        return
    for start in range(0, len(parsed.reports), settings.max_batch):
        lot = range(start, min(start + settings.max_batch, len(parsed.reports)))
        parsed.problems += judge_lot(schema, parsed, lot, settings.schema_timeout)


def judge_lot(schema: str, parsed: heart.Parsed, lot: Iterable[int], seconds: float) -> list[heart.Problem]:
    """Return what is wrong with extensions, once each is whole, without what is refused, or empty."""
    end = time.monotonic() + seconds
    problems: list[heart.Problem] = []
    reduce: Callable[[str | None, Iterable[str]], str | None]
    for reduce in (without, nothing):
        found = check(schema, parsed, lot, end - time.monotonic())
        problems += [problem for place in found if is_ours(parsed, place) for problem in found[place]]
        lot = [place for place in found if not is_ours(parsed, place)]
        for place in lot:
            _, pointer = parsed.extensions[place]
            names = {member_of(problem, pointer) for problem in found[place]}
            parsed.reports[place].extensions = reduce(parsed.reports[place].extensions, names)
            parsed.extensions[place] = (parsed.reports[place].extensions, pointer)
        if not lot:
            return problems
    return problems + [
        heart.Problem(
            heart.cut(f"the project type's schema asks for more: {problem.detail}"), parsed.extensions[place][1]
        )
        for place, found_there in check(schema, parsed, lot, end - time.monotonic()).items()
        for problem in found_there
    ]


def check(schema: str, parsed: heart.Parsed, lot: Iterable[int], seconds: float) -> dict[int, list[heart.Problem]]:
    """Return what is wrong with the extensions at some places, by the place."""
    place_of = {parsed.extensions[place][1]: place for place in lot}
    found: dict[int, list[heart.Problem]] = {}
    for problem in heart.check_extensions(schema, (parsed.extensions[place] for place in place_of.values()), seconds):
        pointer = problem.pointer or ""
        while pointer not in place_of:
            pointer = pointer.rpartition("/")[0]
        found.setdefault(place_of[pointer], []).append(problem)
    return found


def is_ours(parsed: heart.Parsed, place: int) -> bool:
    """Tell whether extensions stand in the document as they are."""
    return parsed.extensions[place][1].endswith("/extensions")


def member_of(problem: heart.Problem, pointer: str) -> str:
    """Return the member of the extensions that a problem is about, "" for all of them."""
    return (problem.pointer or "")[len(pointer) + 1 :].partition("/")[0]


def without(extensions: str | None, names: Iterable[str]) -> str | None:
    """Return extensions without some of their members."""
    members: dict[str, Raw] = heart.decoder(dict[str, Raw]).decode(extensions or "{}")
    left = {name: value for name, value in members.items() if name not in names}
    return msgspec.json.encode(left).decode() if left else None


def nothing(_: str | None, __: Iterable[str]) -> None:
    """Return no extensions."""


# ---------------------------------------------------------------------------
# The code that a document is about
# ---------------------------------------------------------------------------

SOURCE_FILE = 5 * heart.KIB * heart.KIB
SOURCE_LINES = 20
SOURCE_TEXT = 10 * heart.KIB  # bytes
SOURCES = (
    64 * heart.KIB * heart.KIB
)  # characters that are kept: some scanners go rule by rule, and come to a file again
LINE_END = re.compile(r"\r\n|\r|\n")  # as SARIF counts lines (3.30.5), which str.splitlines does not
EACH = "*"
LOCATIONS = ("results", EACH, "locations", EACH, "physicalLocation")


def edited(raw: Raw, path: Sequence[str], edit: Callable[[Raw], Raw]) -> Raw:
    """Return a JSON text with what stands at a path edited, and all else as it was; the same one where nothing was."""
    if not path:
        return edit(raw)
    try:
        whole = heart.decoder(list[Raw] | dict[str, Raw]).decode(raw)
    except heart.NOT_JSON:
        return raw
    changed = False
    names: Iterable[Any] = range(len(whole)) if isinstance(whole, list) else list(whole)
    for name in names:
        if path[0] in (EACH, name) and (part := edited(whole[name], path[1:], edit)) is not whole[name]:
            whole[name], changed = part, True
    return Raw(msgspec.json.encode(whole)) if changed else raw


class Checkout:
    """A folder with the code that a document is about. Nothing outside of it is read, links in it included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.roots = {f"{root.as_posix().rstrip('/')}/" for root in (folder.absolute(), self.folder)}
        self.kept: dict[str, Sequence[str]] = {}
        self.room = SOURCES

    def relative(self, raw: Raw) -> Raw:
        """Return a location with its path relative to the folder, where it is an absolute one below it."""
        try:
            location = heart.decoder(ArtifactLocation).decode(raw)
        except heart.NOT_JSON:
            return raw
        path = path_of_uri(location.uri or "")
        for root in self.roots:
            if path.startswith(root):
                members = heart.decoder(dict[str, Raw]).decode(raw)
                end = "/" if (location.uri or "").endswith("/") else ""
                members["uri"] = Raw(msgspec.json.encode(quote(path.removeprefix(root)) + end))
                members.pop("uriBaseId", None)  # an absolute path stood for itself
                return Raw(msgspec.json.encode(members))
        return raw

    def with_snippet(self, raw: Raw, paths: Paths) -> Raw:
        """Return a place in a file with its lines of code, where it tells which they are and does not have them."""
        try:
            place = heart.decoder(PhysicalLocation).decode(raw)
        except heart.NOT_JSON:
            return raw
        region, location = place.region, place.artifact_location
        start = line_of(region.start_line) if region else None
        if not region or not location or not start:
            return raw
        if text_of(region.snippet, place.context_region and place.context_region.snippet):
            return raw
        last = max(line_of(region.end_line) or start, start)
        text = self.text(paths.path(location), start, min(last, start + SOURCE_LINES - 1))
        return edited(raw, ("region",), lambda part: with_member(part, "snippet", {"text": text})) if text else raw

    def text(self, path: str, start: int, last: int) -> str:
        """Return the lines of a file, "" where there are none."""
        lines = self.kept.get(path)
        if lines is None:
            if self.room < 0:
                self.kept, self.room = {}, SOURCES
            lines = self.kept[path] = self._read(path)
            self.room -= len(path) + sum(map(len, lines))
        return cut_bytes("\n".join(lines[start - 1 : last]), SOURCE_TEXT)

    def _read(self, path: str) -> Sequence[str]:
        try:
            file = (self.folder / path).resolve()
            if not file.is_relative_to(self.folder) or not file.is_file() or file.stat().st_size > SOURCE_FILE:
                return ()
            text = file.read_bytes().decode("utf-8-sig", errors="replace")
        except (OSError, ValueError, RuntimeError):  # it may be gone, a name no file can have, or a ring of links
            return ()
        return LINE_END.split(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def with_member(raw: Raw, name: str, value: Any) -> Raw:
    """Return a JSON object with another value of one member."""
    return Raw(msgspec.json.encode(heart.decoder(dict[str, Raw]).decode(raw) | {name: value}))


def with_source(document: bytes, folder: Path, lines: bool = True) -> bytes:
    """Return a document with absolute paths below a folder made relative, so that they are the same in every checkout.

    :param lines: also give the places that lack them their lines of code, by which a finding is known after it moved.
    """
    checkout = Checkout(folder)

    def prepare(run: Raw) -> Raw:
        for place in (("originalUriBaseIds", EACH), ("artifacts", EACH, "location"), (*LOCATIONS, "artifactLocation")):
            run = edited(run, place, checkout.relative)
        return with_snippets(run, checkout) if lines else run

    return bytes(edited(Raw(document.removeprefix(codecs.BOM_UTF8)), ("runs", EACH), prepare))


def with_snippets(raw: Raw, checkout: Checkout) -> Raw:
    """Return a run with lines of code; what cannot be read of it stays as it is, for `parse` tells why."""
    try:
        paths = RunReading(Reading(heart.Settings()), raw, "").paths
        return edited(raw, LOCATIONS, lambda place: checkout.with_snippet(place, paths))
    except (*heart.NOT_JSON, heart.ServiceError):
        return raw


# ---------------------------------------------------------------------------
# Writing, piece by piece
# ---------------------------------------------------------------------------

TASK_COLUMNS = (
    *("id", "external_id", "title", "severity", "status", "reason", "assignee", "project_type", "target_url", "branch"),
    *("run_id", "last_run_id", "created_at", "updated_at", "last_seen_at", "times_seen"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run, or begins such a cell
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "none"}
SECURITY_SEVERITY = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.0"}
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
DRIVER = "Findings Task Service"
LABELLED = re.compile(r"(?P<path>\S(?:[^:\n]|:(?!//))*):(?P<line>[1-9][0-9]{0,8})")
PATH_SIGNS = "/!$&'()*+,;=@~"  # that a path may hold as they are; a colon might end a scheme
DESCRIBED_RULES = 1000  # rules that are described; of more, only the ids are kept until the end
RULE_TAGS = 20  # that code scanning takes
RULE_TITLE = 1024  # characters that code scanning takes


def write_csv(listed: Iterator[heart.ListedTask]) -> Iterator[bytes]:
    """Write tasks as CSV, a line each below the header, for people: what a spreadsheet would run is made harmless."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")
    names = {field.name: field.encode_name for field in msgspec.structs.fields(heart.TaskHead)}
    header: Sequence[Any] = [names.get(name, name) for name in TASK_COLUMNS]
    rows = ([cell(getattr(item.task, name, None)) for name in TASK_COLUMNS] for item in listed)
    for row in itertools.chain([header], rows):
        writer.writerow(row)
        yield line.getvalue().encode()
        line.seek(0)
        line.truncate()


def cell(value: str | int | None) -> str | int | None:
    """Return a value as a cell that no spreadsheet runs."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


class Written(Struct):
    """A rule that results are written of: how they name it, and what is told of it at the end."""

    reference: dict[str, Any]
    descriptor: dict[str, Any]
    severity: int = 0


class Tools:
    """The rules that are met while results are written, by their tools: None is this service."""

    def __init__(self) -> None:
        self.rules: dict[str | None, dict[str, Written]] = {None: {}}
        self.parts: dict[str, int] = {}
        self.described = 0

    def rule_of(self, task: heart.Task, extensions: Mapping[str, Any]) -> Written:
        """Return the rule of a task: its scanner's, else one that has the name of its project type."""
        tool, rule_id = (word_in(extensions, name) for name in ("tool", "ruleId"))
        if not tool or not rule_id:
            tool, rule_id = None, task.project_type
        rules = self.rules.setdefault(tool, {})
        rule = rules.get(rule_id)
        if rule is None:
            rule = rules[rule_id] = Written(self._reference(tool, rule_id, len(rules)), self._descriptor(rule_id, task))
        rule.severity = max(rule.severity, heart.RANKS[task.severity])
        return rule

    def _reference(self, tool: str | None, rule_id: str, index: int) -> dict[str, Any]:
        """Return how a result names its rule (3.27.7): one of this service by its place, another by its tool's."""
        if tool is None:
            return {"ruleId": rule_id, "ruleIndex": index}
        part = self.parts.setdefault(tool, len(self.parts))
        return {"rule": {"id": rule_id, "index": index, "toolComponent": {"name": tool, "index": part}}}

    def _descriptor(self, rule_id: str, task: heart.Task) -> dict[str, Any]:
        self.described += 1
        return descriptor_of(rule_id, task) if self.described <= DESCRIBED_RULES else {"id": rule_id}

    def tool(self) -> dict[str, Any]:
        """Return the tool of the run that was written."""
        driver = {"name": DRIVER, "version": heart.__version__, "rules": rules_of(self.rules[None])}
        parts = [{"name": name, "rules": rules_of(self.rules[name])} for name in self.parts]
        return {"driver": driver, "extensions": parts} if parts else {"driver": driver}


def evidence_of(task: heart.Task) -> list[heart.Evidence]:
    """Return a task's evidence, which is still the text that is stored: other answers pass it on as it is."""
    text: Any = task.evidence
    evidence: list[heart.Evidence] = heart.decoder(list[heart.Evidence]).decode(text)
    return evidence


def first_step(task: heart.Task) -> str:
    """Return the first step of a task's remediation, which is still the text that is stored."""
    text: Any = task.remediation
    steps: list[heart.StoredStep] = heart.decoder(list[heart.StoredStep]).decode(text)
    return steps[0].instruction if steps else ""


def word_in(extensions: Mapping[str, Any], name: str) -> str | None:
    """Return a member of extensions where it is a text: they may hold anything."""
    value = extensions.get(name)
    return value if isinstance(value, str) and value.strip() else None


def line_in(extensions: Mapping[str, Any], name: str) -> int | None:
    """Return a member of extensions where it is the number of a line."""
    value = extensions.get(name)
    return line_of(value) if isinstance(value, int) and not isinstance(value, bool) else None


def descriptor_of(rule_id: str, task: heart.Task) -> dict[str, Any]:
    """Return a rule as the first of its tasks tells of it, with all that code scanning asks for."""
    full = cut_bytes(task.description or task.title, RULE_TEXT)
    help_text = cut_bytes(first_step(task), RULE_TEXT).strip() or full
    link = {"helpUri": help_text} if re.fullmatch(r"https?://[!-~]+", help_text) else {}
    return {
        "id": rule_id,
        "shortDescription": {"text": cut(task.title, RULE_TITLE)},
        "fullDescription": {"text": full},
        "help": {"text": help_text},
        **link,
    }


def rules_of(rules: Mapping[str, Written]) -> list[dict[str, Any]]:
    """Return the rules of one part of the tool, each as severe as its worst result."""
    return [{**rule.descriptor, **severity_marks(heart.SEVERITIES[-rule.severity])} for rule in rules.values()]


def severity_marks(severity: str) -> dict[str, Any]:
    """Return what tells code scanning how severe the results of a rule are."""
    marks: dict[str, Any] = {"defaultConfiguration": {"level": LEVELS[severity]}}
    if severity in SECURITY_SEVERITY:
        marks["properties"] = {"security-severity": SECURITY_SEVERITY[severity]}
    return marks


Where = tuple[str, int | None, int | None]  # a path or URI, and its lines as far as they are known


def where_of(task: heart.Task, extensions: Mapping[str, Any], evidence: Iterable[heart.Evidence]) -> Where:
    """Return where a task is: code scanning wants to know of each."""
    if file := word_in(extensions, "file"):
        return file, line_in(extensions, "line"), line_in(extensions, "endLine")
    for item in evidence:
        if match := LABELLED.fullmatch(item.label or ""):
            return match["path"], int(match["line"]), None
    return task.target_url or task.project_type, None, None


def uri_of(path: str) -> str:
    """Return the URI of a file (RFC 3986), relative where its path is.

    Code scanning shows no results of other schemes than file: what is at an address has that as its path.
    """
    if scheme := SCHEME.match(path):
        return quote(path[scheme.end() :].lstrip("/") or path, safe=f"{PATH_SIGNS}%")
    if drive := DRIVE.fullmatch(path):
        return f"file:///{quote(drive[1], safe=f'{PATH_SIGNS}:')}"
    quoted = quote(path, safe=PATH_SIGNS)
    if path.startswith("//"):
        return f"file:{quoted}"
    return f"file://{quoted}" if path.startswith("/") else quoted


def location_of(task: heart.Task, extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the location of a task: the first line where none is known."""
    evidence = evidence_of(task)
    path, line, end_line = where_of(task, extensions, evidence)
    region: dict[str, Any] = {"startLine": line or 1}
    if line and end_line and end_line >= line:
        region["endLine"] = end_line
    snippet = next((item.content for item in evidence if item.type == "code" and item.content), None)
    if snippet:
        region["snippet"] = {"text": snippet}
    return {"physicalLocation": {"artifactLocation": {"uri": uri_of(path)}, "region": region}}


class Ours(Struct, rename="camel", omit_defaults=True):
    """A task's own fields, as it would be submitted."""

    title: str
    severity: str
    status: str
    description: str | None
    evidence: list[heart.Evidence]
    remediation: list[heart.StoredStep]
    success_criteria: list[heart.SuccessCriterion]
    extensions: Raw


def result_of(item: heart.ListedTask, tools: Tools) -> dict[str, Any]:
    """Return a task as a result, with its own fields, so that it can be read back as it is."""
    task = item.task
    assert isinstance(task, heart.Task)  # noqa: S101 - what `whole` asks for
    extensions = msgspec.json.decode(task.extensions)
    identity = hashlib.sha256((task.external_id or task.id).encode()).hexdigest()
    result = {
        **tools.rule_of(task, extensions).reference,
        "kind": "informational" if task.severity == "info" else "fail",
        "level": LEVELS[task.severity],
        "message": {"text": task.title},
        "locations": [location_of(task, extensions)],
        "partialFingerprints": {"primaryLocationLineHash": f"{identity[:16]}:1"},
    }
    if task.external_id is not None:
        result["fingerprints"] = {OURS: task.external_id}
    if task.status == "dismissed":
        justified = {"justification": item.comment} if item.comment else {}
        result["suppressions"] = [{"kind": "external", "status": "accepted", **justified}]
    if item.known is not None:
        result["baselineState"] = "unchanged" if item.known else "new"
    result["properties"] = bag_of(task)
    return result


def bag_of(task: heart.Task) -> dict[str, Any]:
    """Return the property bag of a result."""
    marks = {"taskId": task.id, "targetUrl": task.target_url, **severity_marks(task.severity).get("properties", {})}
    bulk = (task.evidence, task.remediation, task.success_criteria, task.extensions)
    return {**marks, OURS: Ours(task.title, task.severity, task.status, task.description, *bulk)}


def write_sarif(listed: Iterator[heart.ListedTask]) -> Iterator[bytes]:
    """Write tasks as one run of SARIF: the results first, then the tool with the rules that were met."""
    tools = Tools()
    encoder = msgspec.json.Encoder()
    yield f'{{"$schema":"{SCHEMA}","version":"{VERSION}","runs":[{{"results":['.encode()
    for number, item in enumerate(listed):
        yield (b"," if number else b"") + encoder.encode(result_of(item, tools))
    yield b'],"tool":' + encoder.encode(tools.tool()) + b"}]}"


heart.SUBMISSION_FORMATS[SARIF] = heart.SubmissionFormat(
    media_type=SARIF, parse=parse, limit=operator.attrgetter("max_sarif"), judge=judge, with_source=with_source
)
heart.LIST_FORMATS[SARIF] = heart.ListFormat(media_type=SARIF, write=write_sarif, whole=True)
heart.LIST_FORMATS[CSV] = heart.ListFormat(media_type=CSV, write=write_csv)
