"""What scanners write: SARIF as findings. A result becomes a task that a person understands, whatever it lacks."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import math
import posixpath
import re
import sys
import time
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Raw, Struct

import findings_service as heart
from findings_adapters.marks import end_of, foreign_marks

OURS = "findingsTaskService/v1"  # the name of our fingerprint, and of our member in a property bag

# ---------------------------------------------------------------------------
# What is read of a document
# ---------------------------------------------------------------------------
#
# Everything is optional, and null is nothing: tools leave out what the standard requires. What is large is left
# unread, as Raw, and read piece by piece.

Whole = Annotated[float, Meta(multiple_of=1)]  # where the standard says integer; some write 1.0
Level = Literal["none", "note", "warning", "error"]
UNREAD = msgspec.field(default_factory=Raw)


class Part(Struct, rename="camel", gc=False):
    """The base of all parts of a document. Members without a name here are passed over."""


class Key(Struct, rename="camel", gc=False, frozen=True):
    """The base of those by which something is looked up: they can be hashed."""


class Log(Part):
    """The document itself (3.13)."""

    version: Raw = UNREAD
    runs: Raw = UNREAD


class Run(Part):
    """One run of a tool (3.14)."""

    tool: Raw = UNREAD
    results: Raw = UNREAD
    artifacts: Raw = UNREAD
    invocations: Raw = UNREAD
    logical_locations: Raw = UNREAD
    original_uri_base_ids: Raw = UNREAD
    taxonomies: Raw = UNREAD


class Text(Part):
    """A text, alone or as a message's string (3.12)."""

    text: str | None = None


class Message(Part):
    """What a result says (3.11): a text, or the id of one of its rule's or tool's texts."""

    text: str | None = None
    markdown: str | None = None
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
    rules: Raw = UNREAD
    global_message_strings: dict[str, Text | None] | None = None


class Tool(Part):
    """A tool and its plug-ins (3.18)."""

    driver: Component | None = None
    extensions: Raw = UNREAD


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

PATH_LENGTH = 4096
DESCRIPTION = 64 * heart.KIB
MESSAGE_LENGTH = 2 * DESCRIPTION  # characters that are looked at
MOST_PLACEHOLDERS = 100  # of a message, that are filled
ARGUMENT_LENGTH = 4096  # characters, like the path of a file
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([0-9]{1,6})\}")


def cut_bytes(text: str, size: int) -> str:
    """Shorten a text to so many bytes of UTF-8."""
    if not heart.exceeds_bytes(text, size):
        return text
    return text[:size].encode()[: size - 3].decode(errors="ignore") + "…"


def filled(text: str, arguments: Sequence[str | None]) -> str:
    """Put a message's arguments into their places (3.11.5)."""

    def part(place: re.Match[str]) -> str:
        if place[1] is None:
            return place[0][0]
        number = int(place[1])
        return heart.truncate(arguments[number] or "", ARGUMENT_LENGTH) if number < len(arguments) else place[0]

    return PLACEHOLDER.sub(part, text, count=MOST_PLACEHOLDERS)


def text_of(*texts: Text | None) -> str:
    """Return the first text that is not blank."""
    for item in texts:
        if item and item.text and (stripped := item.text[:MESSAGE_LENGTH].strip()):
            return stripped
    return ""


def as_name(name: str | None) -> str:
    """Return a name or address as it is stored with each finding, "" for none."""
    return (name or "")[:PATH_LENGTH].strip()


def whole(number: float | None, least: int = 0) -> int | None:
    """Return a place in an array or, from 1, a line: -1 is none."""
    return int(number) if number is not None and least <= number < 2**31 else None


# ---------------------------------------------------------------------------
# Reading a document within bounds
# ---------------------------------------------------------------------------

MOST_OBJECTS = 3_000_000  # in a document: counting them takes 0.3 s in one step, and 100 MB
SMALL_PIECE = 64 * heart.KIB  # one is looked through for all that is wrong with it
REFUSAL = re.compile(r"(?P<detail>.*) - at `\$(?P<path>.*)`", re.DOTALL)
STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")  # dict entries are `[...]`: which one, msgspec does not say
IN_PARTS = "send it in parts"
NO_ROOM = f"from here on the findings are too large for the document, each with what its rule says; {IN_PARTS}"
NO_TIME = heart.Problem(f"took too long to read; {IN_PARTS}", "")

Read = TypeVar("Read")


def is_given(raw: Raw) -> bool:
    """Return whether an unread member is there and not null."""
    return bytes(memoryview(raw)[:5]) not in (b"", b"null")


def require_readable(text: bytes) -> None:
    """Check that a body is JSON in UTF-8, in little memory. :raises MalformedJSON: when it is not."""
    pieces = (text[start : start + SMALL_PIECE] for start in range(0, len(text), SMALL_PIECE))
    try:
        for _ in codecs.iterdecode(pieces, "utf-8"):
            pass
        heart.decoder(Raw).decode(text)
    except heart.NOT_JSON as error:
        raise heart.not_json(error) from None


def quick_problem(refusal: msgspec.ValidationError, pointer: str) -> heart.Problem:
    """Return the first problem of a value, in msgspec's words."""
    match = REFUSAL.fullmatch(str(refusal))
    if not match:
        return heart.Problem(heart.truncate(str(refusal)), pointer)
    known = match["path"].partition("[...]")[0]
    steps = [name or number for name, number in STEP.findall(known)]
    return heart.Problem(heart.truncate(match["detail"]), heart.json_pointer(steps, pointer))


# Items of all arrays of a document: some, and one more for each so many bytes. A result takes 1 KB of memory.
MOST_ITEMS = 50_000
ITEM_SIZE = 128
ARTIFACT = 0.25  # of an item: a file takes 0.1 KB, and is read only where a result refers to it
LARGE_PIECE = heart.KIB * heart.KIB  # one may have too many values to be read at once
MOST_PROBLEMS = 10_000
# Bytes that all findings of a document may weigh: some for any document, and a multiple of its size. Rules stand in it
# once and are stored with each finding: 20,000 results of 360 bytes each may have 16 KiB of help. What a finding has of
# its own weighs more, because it is held in memory.
LEAST_ROOM = 64 * LARGE_PIECE
WEIGHT = 64
OWN_WEIGHT = 4
OWN_TEXTS = ("title", "evidence", "extensions", "labels", "rule", "location", "tags")
TIME_SIZE = 2 * LARGE_PIECE  # bytes that may take the time of one request; those of scanners take a sixth of it


class Identities(Counter[str]):
    """How often each identity was met."""

    def numbered(self, identity: str) -> str:
        """Return an identity as an external id: the first of several has it, the others with their number."""
        self[identity] += 1
        return identity if self[identity] == 1 else f"{identity}-{self[identity]}"


class Reading:
    """A document that is being read: what it has come to, what is wrong with it, and how much more there may be."""

    def __init__(self, size: int, seconds: float = math.inf, room: float = math.inf) -> None:
        self.parsed = heart.Parsed()
        self.problems = self.parsed.problems
        self.items_left = MOST_ITEMS + size / ITEM_SIZE
        self.room = room
        # Of this thread, so that a document is not refused because others use the processor.
        self.end = time.thread_time() + seconds
        self.identities = Identities()

    @property
    def is_over(self) -> bool:
        """Whether there is no point in reading on."""
        return self.room < 0 or len(self.problems) > MOST_PROBLEMS

    def refuse(self, detail: str, pointer: str) -> None:
        """Note what is wrong with a part."""
        self.problems.append(heart.Problem(detail, pointer))

    def items(self, raw: Raw, pointer: str, cost: float = 1) -> list[Raw]:
        """Return the objects of an array unread, none where it is not there, or is refused."""
        if not is_given(raw):
            return []
        try:
            count = len(heart.decoder(list[Part]).decode(raw))
        except msgspec.ValidationError as refusal:
            self.problems.append(quick_problem(refusal, pointer))
            return []
        self.items_left -= count * cost
        if self.items_left < 0:
            self.refuse(f"has {count:,} items, too many for a document of this size; {IN_PARTS}", pointer)
            return []
        items: list[Raw] = heart.decoder(list[Raw]).decode(raw)
        return items

    def read(self, model: type[Read], raw: Raw, pointer: str) -> Read | None:
        """Return a part of the document, None where it is not there, or is refused. :raises OutOfTime: in the end."""
        if time.thread_time() > self.end:
            raise heart.OutOfTime
        if not is_given(raw):
            return None
        try:
            if memoryview(raw).nbytes > LARGE_PIECE:
                heart.require_few_values(bytes(raw))
            return typing.cast(Read, heart.decoder(typing.cast(Any, model)).decode(raw))
        except msgspec.ValidationError as refusal:
            self.problems += self._told(model, bytes(raw), refusal, pointer)
        except heart.ValidationFailed as error:
            self.problems += (problem.below(pointer) for problem in error.problems)
        return None

    def _told(self, model: Any, text: bytes, refusal: msgspec.ValidationError, pointer: str) -> Iterable[heart.Problem]:
        """Return everything that is wrong with a part, or of a large one, and once much was told, the first thing."""
        if len(text) > SMALL_PIECE or len(self.problems) > heart.LISTED_PROBLEMS:
            return [quick_problem(refusal, pointer)]
        return list(heart.model_problems(model, heart.document_of(text), pointer))

    def take(self, report: heart.NewTask, rule: KnownRule, pointer: str) -> None:
        """Take a finding."""
        self.parsed.reports.append(report)
        self.parsed.extensions.append((report.extensions, pointer))
        own, shared = [getattr(report, name) for name in OWN_TEXTS], [report.remediation]
        (shared if report.description is rule.full else own).append(report.description)
        self._weigh(OWN_WEIGHT * sum(map(sys.getsizeof, own)) + sum(map(sys.getsizeof, shared)), pointer)

    def take_ours(self, raw: Raw, external_id: str | None, pointer: str) -> None:
        """Take a finding that this service wrote, checked as a submitted one is."""
        task = self.read(heart.TaskReport, raw, pointer)
        if task:
            self.parsed.add(task, pointer)
            self.parsed.reports[-1].external_id = external_id
        self._weigh(OWN_WEIGHT * memoryview(raw).nbytes, pointer)

    def _weigh(self, weight: int, pointer: str) -> None:
        """Take a finding's weight from what all may have."""
        self.room -= weight
        if self.room < 0:
            self.refuse(NO_ROOM, pointer)


class Items(typing.Generic[Read]):
    """An array of a document, each of whose items is read when it is asked for; one that is refused is empty."""

    def __init__(self, reading: Reading, model: type[Read], raw: Raw, pointer: str, cost: float = 1) -> None:
        self.reading, self.model, self.pointer = reading, model, pointer
        self.unread = reading.items(raw, pointer, cost)
        self.known: dict[int, Read] = {}

    def __iter__(self) -> Iterator[Read]:
        return map(self.__getitem__, range(len(self.unread)))

    def __getitem__(self, place: int) -> Read:
        if place not in self.known:
            item = self.reading.read(self.model, self.unread[place], f"{self.pointer}/{place}")
            self.known[place] = item or self.model()
        return self.known[place]

    def at(self, number: float | None) -> Read | None:
        """Return the item that an index means, None where it means none."""
        place = whole(number)
        return self[place] if place is not None and place < len(self.unread) else None


# ---------------------------------------------------------------------------
# Paths
# ---------------------------------------------------------------------------

CHAIN = 32  # bases that stand on each other
ROOTS = 100  # absolute bases that a path is compared with
ROOT = "%SRCROOT%"  # the base that is taken before others where a path is below several
DRIVE = re.compile(r"/?([A-Za-z]:(?:/.*)?)", re.DOTALL)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of two letters or more: one is a drive
ABSOLUTE = re.compile(r"/|[A-Za-z]:(?:/|\Z)|[A-Za-z][A-Za-z0-9+.-]+:")  # the start of an absolute path or URI


URI_LENGTH = 4 * PATH_LENGTH  # a path with all signs escaped


def path_of_uri(uri: str | None) -> str:
    r"""Return the path that a URI means, with `/` between its parts; one of another scheme than file stays as it is.

    Windows paths stand for themselves, as some tools write them: C:\src\a.c is C:/src/a.c, like file:///C:/src/a.c.
    """
    uri = (uri or "")[:URI_LENGTH]
    if uri[:5].lower() == "file:":
        rest = uri[5:]
        uri = rest[2:] if rest.startswith("///") else rest.removeprefix("//localhost")
    elif SCHEME.match(uri):
        return uri
    path = unquote(uri).replace("\0", "%00").replace("\\", "/")
    if drive := DRIVE.fullmatch(path):
        path = drive[1]
    return posixpath.normpath(path) if path else ""


class Paths:
    """The files of a run, as paths below what was scanned, as far as that is known."""

    def __init__(self, reading: Reading, run: Run, invocations: Iterable[Invocation], pointer: str) -> None:
        self.artifacts = Items(reading, Artifact, run.artifacts, f"{pointer}/artifacts", ARTIFACT)
        model = dict[str, ArtifactLocation | None]
        bases = reading.read(model, run.original_uri_base_ids, f"{pointer}/originalUriBaseIds") or {}
        self.bases = {name: (path_of_uri(base.uri), base.uri_base_id or "") for name, base in bases.items() if base}
        called_from = [path_of_uri(item.working_directory.uri) for item in invocations if item.working_directory]
        above = sorted(self.bases, key=lambda name: (name == ROOT, len(self.bases[name][0])), reverse=True)
        likeliest = [*(self.bases[name][0] for name in above), *called_from]
        # They only tell where it was, and the root of all files does not.
        absolute = dict.fromkeys(
            f"{path.rstrip('/')}/" for path in likeliest if ABSOLUTE.match(path) and path.strip("/")
        )
        self.roots = [*absolute][:ROOTS]

    def path(self, location: ArtifactLocation) -> str:
        """Return the path of a file, "" where nothing tells it; its place in the run's list may tell it (3.4.5)."""
        artifact = self.artifacts.at(location.index) if location.uri is None else None
        return self._resolved((artifact and artifact.location) or location)[:PATH_LENGTH]

    def _resolved(self, location: ArtifactLocation) -> str:
        """Return a path on its bases, without an absolute one (3.14.14)."""
        path = path_of_uri(location.uri)
        if ABSOLUTE.match(path):
            return next((path[len(root) :] for root in self.roots if path.startswith(root)), path)
        name = location.uri_base_id or ""
        for _ in range(min(CHAIN, len(self.bases))):  # so that a ring of bases ends
            above, name = self.bases.get(name, ("", ""))
            if ABSOLUTE.match(above) or len(path) > PATH_LENGTH:
                break
            path = posixpath.join(above, path)
        return posixpath.normpath(path) if path else ""


# ---------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------

SCORES = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.0, "low"))  # security-severity, from or over which


def scored(properties: Properties | None) -> int | None:
    """Return the severity that a property bag's security-severity means, as the rank that is stored."""
    try:
        score = float((properties and properties.security_severity) or 0)
    except ValueError:
        return None
    if not 0 < score < math.inf:
        return None
    return heart.RANKS[next(name for least, name in SCORES if score >= least)]


def tags_of(properties: Properties | None) -> list[str]:
    """Return the first tags of a property bag."""
    tags = (properties.tags if properties else None) or ()
    return [tag for tag in itertools.islice(tags, MOST_TAGS) if tag]


class KnownRule(Struct):
    """A rule as its findings have it; what it says to each of them is made once."""

    id: str
    title: str = ""
    full: str = ""
    remediation: str | None = None
    rank: int | None = None
    level: Level | None = None
    tags: tuple[str, ...] = ()
    messages: Sequence[Mapping[str, Text | None]] = ()  # its own, those of its part of the tool, and the tool's


class RuleList(Items[Rule]):
    """The rules of one part of a tool."""

    def __init__(self, reading: Reading, component: Component, pointer: str) -> None:
        super().__init__(reading, Rule, component.rules, f"{pointer}/rules")
        self.name, self.guid = component.name, component.guid
        self.strings = component.global_message_strings or {}

    @cached_property
    def named(self) -> dict[str, Rule]:
        """The rules by their ids and guids: the first one of each."""
        return {name: rule for rule in reversed([*self]) for name in (rule.id, rule.guid) if name}


RULE_TEXT = 16 * heart.KIB  # bytes; what a rule says is stored with each of its findings
PARENTS = 16  # of a hierarchical rule id (3.27.5), CA1000/1 being below CA1000


class Rules:
    """The rules of a run: those of the tool itself and of its plug-ins."""

    def __init__(
        self,
        reading: Reading,
        tool: Tool,
        taxonomies: Items[Component],
        invocations: Iterable[Invocation],
        pointer: str,
    ) -> None:
        extensions = Items(reading, Component, tool.extensions, f"{pointer}/extensions")
        self.lists = [RuleList(reading, tool.driver or Component(), f"{pointer}/driver")]
        self.lists += [RuleList(reading, part, f"{extensions.pointer}/{n}") for n, part in enumerate(extensions)]
        self.taxonomies = taxonomies
        self.parts = {name: rules for rules in reversed(self.lists) for name in (rules.name, rules.guid) if name}
        self.overrides: dict[int, Level] = {}  # that rules were given for this run, by the rules' identities
        for each in itertools.chain.from_iterable(item.rule_configuration_overrides or () for item in invocations):
            if each and each.descriptor and each.configuration and each.configuration.level:
                _, rule = self._find(each.descriptor.id, each.descriptor.index, each.descriptor)
                self.overrides.setdefault(id(rule), each.configuration.level)

    def rule_of(self, rule_id: str | None, index: float | None, reference: Reference | None) -> KnownRule:
        """Return the rule of a result, as much of it as there is."""
        if reference:
            rule_id = rule_id or reference.id
            index = index if whole(reference.index) is None else reference.index
        rules, rule = self._find(rule_id, index, reference or Reference())
        if rule is None:
            return KnownRule(as_name(rule_id), messages=(self.lists[0].strings,))
        help_text = cut_bytes(text_of(rule.help) or as_name(rule.help_uri), RULE_TEXT)
        return KnownRule(
            as_name(rule_id or rule.id),
            text_of(rule.short_description, rule.full_description) or as_name(rule.name),
            cut_bytes(text_of(rule.full_description), RULE_TEXT),
            heart.to_json_text([heart.StoredStep(1, help_text)]) if help_text else None,
            scored(rule.properties),
            self.overrides.get(id(rule)) or (rule.default_configuration or Configuration()).level,
            (*tags_of(rule.properties), *self.taxa(each.target for each in rule.relationships or () if each)),
            (rule.message_strings or {}, rules.strings, self.lists[0].strings),
        )

    def taxa(self, references: Iterable[Reference | None]) -> Iterator[str]:
        """Yield the first taxa that are referred to, each with its taxonomy's name: CWE-79."""
        for reference in filter(None, itertools.islice(references, MOST_TAGS)):
            part = reference.tool_component or ComponentReference()
            name = part.name or self._taxonomy(part)
            if reference.id and name and name not in self.parts:  # which would be another rule
                tag = reference.id if reference.id.startswith(name) else f"{name[:TAG_LENGTH]}-{reference.id}"
                yield tag[: TAG_LENGTH + 1]

    def _taxonomy(self, reference: ComponentReference) -> str | None:
        """Return the name of a taxonomy that is meant by its guid or place."""
        if reference.guid:
            return self.taxonomies_by_guid.get(reference.guid)
        return (self.taxonomies.at(reference.index) or Component()).name

    @cached_property
    def taxonomies_by_guid(self) -> dict[str, str | None]:
        """The names of taxonomies by their guids: the first one of each."""
        return {item.guid: item.name for item in reversed([*self.taxonomies]) if item.guid}

    @cached_property
    def named(self) -> dict[str, tuple[RuleList, Rule]]:
        """The rules of all parts by their ids and guids: the first one of each."""
        return {name: (rules, rule) for rules in reversed(self.lists) for name, rule in rules.named.items()}

    def _find(self, rule_id: str | None, index: float | None, reference: Reference) -> tuple[RuleList, Rule | None]:
        """Return a rule (3.52.3), if it is there, and whose it is: the part's that is named, or else any other's."""
        first = self._part(reference.tool_component or ComponentReference()) or self.lists[0]
        there = first.at(index)
        if there and (rule_id is None or there.id is None or f"{rule_id}/".startswith(f"{there.id}/")):
            return first, there
        parents = itertools.accumulate(range(PARENTS), lambda name, _: name.rpartition("/")[0], initial=rule_id or "")
        for name in filter(None, itertools.chain([reference.guid], parents)):
            if rule := first.named.get(name):
                return first, rule
            if name in self.named:
                return self.named[name]
        return first, None

    def _part(self, reference: ComponentReference) -> RuleList | None:
        """Return the part of the tool that is meant (3.54.2)."""
        place = whole(reference.index)
        if place is not None and place + 1 < len(self.lists):
            return self.lists[place + 1]
        return self.parts.get(reference.guid or "") or self.parts.get(reference.name or "")


# ---------------------------------------------------------------------------
# From a result to a finding
# ---------------------------------------------------------------------------

# What Semgrep says in place of a fingerprint to those who are not logged in: the same of every result.
NO_FINGERPRINTS = ("requires login",)


LABEL_LENGTH = 500
SNIPPET = 256 * heart.KIB


class Place(Struct, gc=False):
    """Where a result is: a file, or else what a program calls the place; and code there, with its first lines."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    name: str = ""
    code: Sequence[tuple[int | None, str]] = ()

    @property
    def snippet(self) -> str:
        """The code that the place is known by."""
        return self.code[0][1] if self.code else ""

    @property
    def evidence(self) -> Iterator[heart.Evidence]:
        """The code there, labelled as people write a place with the line it begins at: none where nothing is known."""
        where = self.path or self.name
        for line, text in self.code or [(self.line, "")]:
            label = end_of(f"{where}:{line}" if where and line else where, LABEL_LENGTH)
            content = cut_bytes(text, SNIPPET) or None
            if label or content:
                yield heart.Evidence(type="code", label=label or None, content=content)


def marks_of(fingerprints: Mapping[str, str | None] | None) -> list[tuple[str, str]]:
    """Return fingerprints in the order of their names, without those that are none."""
    given = (fingerprints or {}).items()
    return sorted((name, value) for name, value in given if value and value not in NO_FINGERPRINTS)


def identity_of(result: Result, tool: str, rule_id: str, place: Place) -> str:
    """Return what a result is known by from scan to scan: a hash of what does not move.

    Neither its guid, which is new in every run, nor its message or line is in it.
    """
    where = place.path or place.name
    if marks := marks_of(result.fingerprints):
        known_by: tuple[Any, ...] = ("fingerprints", marks)
    elif result.correlation_guid:
        known_by = ("correlationGuid", result.correlation_guid.lower())
    elif marks := marks_of(result.partial_fingerprints):
        known_by = ("partialFingerprints", where, marks)
    else:
        known_by = ("snippet", where, " ".join(place.snippet[:SNIPPET].split()))
    return hashlib.sha256(msgspec.json.encode((tool, rule_id or None, *known_by))).hexdigest()[:40]


EXTERNAL_ID_LENGTH = 256


def our_id(result: Result) -> str | None:
    """Return the external id that a result had when this service wrote it."""
    value = (result.fingerprints or {}).get(OURS)
    return value if value and len(value) <= EXTERNAL_ID_LENGTH else None


SEVERITY_OF_LEVEL = {"error": "high", "warning": "medium", "note": "low", "none": "info"}


def severity_of(result: Result, rule: KnownRule) -> int:
    """Return the severity of a result, as the rank that is stored (3.27.10, and GitHub's security-severity)."""
    level = result.level or ("none" if result.kind not in (None, "fail") else rule.level or "warning")
    return scored(result.properties) or rule.rank or heart.RANKS[SEVERITY_OF_LEVEL[level]]


TITLE_LENGTH = 500  # characters, like the next
NAME_LENGTH = 500  # of a rule or tool in the extensions
MOST_TAGS = 60  # of a result and its rule, that are looked at
TAGS = 40  # in the extensions, like the next
TAG_LENGTH = 200
MOST_LOCATIONS = 100
LINK = re.compile(r"\[([^\[\]]*)\]\([0-9]+\)")  # to a place of the result (3.11.6)
NO_RESULTS = "must be an array, empty for a clean scan; a run without results is a scanner that failed"
NO_TOOL = "is required: the tool's name, tool.driver.name, is a part of what a finding is known by"
NO_WORDS = "is required, as a text, markdown or an id that stands for one, where a result has no rule"
KEPT = 4096  # paths or rules that are looked up once


class RunReading:
    """A run that is being read, with all that its results refer to."""

    def __init__(self, reading: Reading, raw: Raw, pointer: str) -> None:
        self.reading, self.pointer = reading, pointer
        self.run: Run = heart.decoder(Run).decode(raw)
        told = len(reading.problems)
        tool = reading.read(Tool, self.run.tool, f"{pointer}/tool") or Tool()
        self.tool_name = as_name(tool.driver.name if tool.driver else None)
        if not self.tool_name and len(reading.problems) == told:
            missing = "tool/driver/name" if tool.driver else "tool/driver" if is_given(self.run.tool) else "tool"
            reading.refuse(NO_TOOL, f"{pointer}/{missing}")
        self.invocations = Items(reading, Invocation, self.run.invocations, f"{pointer}/invocations")
        self.paths = Paths(reading, self.run, self.invocations, pointer)
        taxonomies = Items(reading, Component, self.run.taxonomies, f"{pointer}/taxonomies")
        self.rules = Rules(reading, tool, taxonomies, self.invocations, f"{pointer}/tool")
        self.names = Items(reading, LogicalLocation, self.run.logical_locations, f"{pointer}/logicalLocations")
        # Kept here: nothing that is remembered refers to this, and so no circle keeps the document in memory.
        self.path_of = lru_cache(KEPT)(self.paths.path)
        self.rule_of = lru_cache(KEPT)(self.rules.rule_of)

    def require_success(self) -> None:
        """Refuse the run of a scanner that failed, which must not look like a clean scan."""
        if not is_given(self.run.results):
            self.reading.refuse(NO_RESULTS, f"{self.pointer}/results")
        for place, invocation in enumerate(self.invocations):
            if invocation.execution_successful is False:
                at = f"{self.pointer}/invocations/{place}/executionSuccessful"
                self.reading.refuse("the scanner says that it failed", at)

    def read_results(self) -> None:
        """Take every result as a finding."""
        results = self.reading.items(self.run.results, f"{self.pointer}/results")
        for number, raw in enumerate(results):
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
        rule = self.rule_of(result.rule_id, result.rule_index, result.rule)
        title, description = self._words(result, rule)
        if not title:
            self.reading.refuse(NO_WORDS, f"{pointer}/message")
            return
        places = [self._place(item) for item in (result.locations or ())[:MOST_LOCATIONS] if item]
        first = places[0] if places else Place()
        evidence = [item for place in places for item in place.evidence]
        tags = self._tags(result, rule)
        where = (first.path, first.line) if first.path else (first.name, None)
        report = heart.NewTask(
            known_as or self.reading.identities.numbered(identity_of(result, self.tool_name, rule.id, first)),
            "dismissed" if result.is_suppressed else None,
            title,
            severity_of(result, rule),
            description,
            heart.to_json_text(evidence) if evidence else None,
            rule.remediation,
            None,
            self._extensions(rule, first, tags),
            heart.labels_of(evidence),
            *foreign_marks(heart.truncate(rule.id, NAME_LENGTH), *where, tags),
        )
        self.reading.take(report, rule, pointer)

    def _place(self, location: Location) -> Place:
        physical = location.physical_location or PhysicalLocation()
        region = physical.region or Region()
        around = physical.context_region or Region()
        line, first = whole(region.start_line, 1), whole(around.start_line, 1)
        snippet = (region.snippet and region.snippet.text) or ""
        context = (around.snippet and around.snippet.text) or ""
        code = [(line, snippet)] if snippet else []
        if context and (not snippet or (first and context.strip() != snippet.strip() in context)):
            code.append((first or line, context))
        path = self.path_of(physical.artifact_location) if physical.artifact_location else ""
        names = () if path else map(self._name, location.logical_locations or ())
        return Place(path, line, whole(region.end_line, 1), next(filter(None, names), ""), code)

    def _name(self, location: LogicalLocation | None) -> str:
        """Return what a program calls a place; its place in the run's list may tell it (3.33.3)."""
        there = location and self.names.at(location.index)
        named = (each.fully_qualified_name or each.name for each in (location, there) if each)
        return next(filter(None, named), "")[:PATH_LENGTH]

    def _words(self, result: Result, rule: KnownRule) -> tuple[str, str | None]:
        """Return a finding's title, "" where neither the result nor a rule says anything, and its description."""
        message = self._said(result.message or Message(), rule)
        title = heart.truncate(message or rule.title or rule.id, TITLE_LENGTH)
        if len(message) > TITLE_LENGTH:
            return title, cut_bytes(message, DESCRIPTION)
        return title, rule.full if rule.full and rule.full not in title else None

    def _said(self, message: Message, rule: KnownRule) -> str:
        """Return what a message says, with its arguments in their places and without links (3.11)."""
        text = message.text or ""
        if not text and message.id is not None:
            text = text_of(*(each.get(message.id) for each in rule.messages))
        text = text or message.markdown or ""
        if message.arguments or not message.text:  # a text without arguments may have braces of its own
            text = filled(text, message.arguments or ())
        return LINK.sub(r"\1", text[:MESSAGE_LENGTH]).strip()

    def _tags(self, result: Result, rule: KnownRule) -> list[str]:
        """Return the different tags of a result: its rule's, its own and its taxa."""
        tags = itertools.chain(rule.tags, tags_of(result.properties), self.rules.taxa(result.taxa or ()))
        return [*dict.fromkeys(itertools.islice(tags, MOST_TAGS))]

    def _extensions(self, rule: KnownRule, place: Place, tags: Sequence[str]) -> str:
        known = {
            "ruleId": heart.truncate(rule.id, NAME_LENGTH),
            "tool": heart.truncate(self.tool_name, NAME_LENGTH),
            "file": place.path,
            "line": place.line,
            "endLine": place.end_line if place.line else None,
            "tags": [heart.truncate(tag, TAG_LENGTH) for tag in tags[:TAGS]],
        }
        return msgspec.json.encode({name: value for name, value in known.items() if value}).decode()


def without_nul(text: bytes) -> bytes:
    """Return JSON with U+FFFD in place of each escaped NUL, as bandit writes them.

    0xFF, which is not in any UTF-8, stands for half an escaped backslash meanwhile. A regular expression would hold
    Python's lock for seconds.
    """
    if b"\\u0000" not in text:
        return text
    return text.replace(rb"\\", b"\xff\xff").replace(rb"\u0000", rb"\ufffd").replace(b"\xff\xff", rb"\\")


def parse(text: bytes, settings: heart.Settings, weight: float = WEIGHT) -> heart.Parsed:
    """Read a SARIF document as the findings that it tells of, and note what is wrong with it.

    Its time is in proportion to its size, as a stop of the service waits for it.

    :param weight: bytes of findings for each byte of the document; infinite where it is only cut into parts.
    :raises MalformedJSON: when it is no JSON. :raises ValidationFailed: when it has too many objects or odd numbers.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    require_readable(text)
    if text.count(b"{") > MOST_OBJECTS:  # those of texts are few
        raise heart.ValidationFailed([heart.Problem(f"has over {MOST_OBJECTS:,} objects; {IN_PARTS}", "")])
    heart.require_plain_numbers(text)
    seconds = settings.schema_timeout * (1 + len(text) / TIME_SIZE)
    reading = Reading(len(text), seconds, LEAST_ROOM + weight * len(text))
    try:
        read_log(reading, without_nul(text))
        reading.parsed.complete = not reading.is_over
    except heart.OutOfTime:
        reading.parsed.complete = False
        reading.problems.append(NO_TIME)
    return reading.parsed


VERSION = "2.1.0"
NO_RUNS = "must hold a run at least; a document without is a scanner that failed"


def read_log(reading: Reading, text: bytes) -> None:
    """Read all runs of a document."""
    try:
        log: Log = heart.decoder(Log).decode(text)
    except msgspec.ValidationError as refusal:
        reading.problems.append(quick_problem(refusal, ""))
        return
    if memoryview(log.version) != f'"{VERSION}"'.encode():
        reading.refuse(f"must be {VERSION}", "/version")
    runs = reading.items(log.runs, "/runs")
    if not runs and not any(problem.pointer == "/runs" for problem in reading.problems):
        reading.refuse(NO_RUNS, "/runs")
    for number, raw in enumerate(runs):
        run = RunReading(reading, raw, f"/runs/{number}")
        run.require_success()
        run.read_results()
        if reading.is_over:
            break


# ---------------------------------------------------------------------------
# What a project type admits
# ---------------------------------------------------------------------------

FULL_BATCHES = 2  # that may take all the time of a batch: a stop of the service waits for this
OTHERS_SHARE = 0.2  # of that time, for each further batch


def judge(schema: str, parsed: heart.Parsed, settings: heart.Settings) -> None:
    """Check the extensions against a project type's schema, and leave out the members that it does not admit.

    This is done in lots of the size of a batch, so that the problems of one lot at a time take memory.

    :raises ExtensionCheckTimeout: when the time was not enough.
    """
    size, count = settings.max_batch, len(parsed.reports)
    seconds = settings.schema_timeout * (FULL_BATCHES + OTHERS_SHARE * count / size)
    with heart.TimeLimit(seconds):
        for start in () if parsed.problems else range(0, count, size):
            lot: Sequence[int] = range(start, min(start + size, count))
            while lot:
                lot = judge_lot(schema, parsed, lot, seconds)


def judge_lot(schema: str, parsed: heart.Parsed, lot: Sequence[int], seconds: float) -> list[int]:
    """Check the extensions of some reports, and return those that must be checked again, with fewer members.

    A report is left with no member where none is at fault. Extensions that this service wrote itself lose none.
    """
    extensions = [parsed.extensions[place] for place in lot]
    places = {heart.task_of(heart.Problem("", parsed.extensions[place][1])): place for place in lot}
    changed = []
    for task, problems in itertools.groupby(heart.check_extensions(schema, extensions, seconds), heart.task_of):
        text, pointer = parsed.extensions[places[task]]
        if pointer.endswith("/extensions"):  # they stand in the document as they are
            parsed.problems += problems
        elif text is None:
            details = (heart.truncate(f"the project type's schema asks for more: {each.detail}") for each in problems)
            parsed.problems += (heart.Problem(detail, pointer) for detail in details)
        else:
            left = without(text, problems, pointer)
            parsed.reports[places[task]].extensions = left
            parsed.extensions[places[task]] = left, pointer
            changed.append(places[task])
    return changed


def without(extensions: str, problems: Iterable[heart.Problem], pointer: str) -> str | None:
    """Return extensions without the members that problems are about, None where that is all or none of them."""
    names = {(problem.pointer or "")[len(pointer) + 1 :].partition("/")[0] for problem in problems}
    members: dict[str, Raw] = heart.decoder(dict[str, Raw]).decode(extensions)
    left = {name: value for name, value in members.items() if name not in names}
    return msgspec.json.encode(left).decode() if 0 < len(left) < len(members) else None
