"""Parser of SARIF documents: converts each result to a readable task, whatever members the result lacks."""

from __future__ import annotations

import codecs
import itertools
import math
import posixpath
import re
import sys
import time
import typing
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from findings_adapters.sarif.identities import Identities, ResultPlace, identities_of
from findings_adapters.sarif.models import (
    IDENTITY,
    OLD_IDENTITY,
    OURS,
    Artifact,
    ArtifactLocation,
    AutomationDetails,
    Component,
    ComponentReference,
    Configuration,
    External,
    Invocation,
    Item,
    Level,
    Location,
    Log,
    LogicalLocation,
    Message,
    Part,
    PhysicalLocation,
    Properties,
    Reference,
    Region,
    Result,
    Rule,
    Run,
    RunProperties,
    Text,
    Tool,
    whole,
)
from findings_adapters.sarif.twins import numbering
from findings_features.labels import cut_bytes, foreign_labels
from findings_service import (
    KIB,
    LISTED_PROBLEMS,
    NOT_JSON,
    RANKS,
    UNCHECKED,
    NewTask,
    OutOfTime,
    Parsed,
    Problem,
    Settings,
    StoredStep,
    TaskReport,
    ValidationFailed,
    decoder,
    document_of,
    escaped,
    evidence_labels,
    json_pointer,
    model_problems,
    not_json,
    require_few_values,
    require_plain_numbers,
    to_json_text,
    truncate,
)

# ---------------------------------------------------------------------------
# Texts
# ---------------------------------------------------------------------------

PATH_LENGTH = 4096
DESCRIPTION = 64 * KIB
MESSAGE_LENGTH = 2 * DESCRIPTION  # characters of a message that are read
MOST_PLACEHOLDERS = 100  # of a message that are replaced
ARGUMENT_LENGTH = 4096  # characters, as for the path of a file
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([0-9]{1,6})\}")


def filled(text: str, arguments: Sequence[str | None]) -> str:
    """Replace the placeholders of a message with its arguments (3.11.5)."""

    def part(place: re.Match[str]) -> str:
        if place[1] is None:
            return place[0][0]
        number = int(place[1])
        return truncate(arguments[number] or "", ARGUMENT_LENGTH) if number < len(arguments) else place[0]

    return PLACEHOLDER.sub(part, text, count=MOST_PLACEHOLDERS)


def text_of(*texts: Text | None) -> str:
    """Return the first text that is not blank, or ""."""
    stripped = ((item.text or "")[:MESSAGE_LENGTH].strip() for item in texts if item)
    return next(filter(None, stripped), "")


def as_name(name: str | None) -> str:
    """Return a name or address, stripped and cut to `PATH_LENGTH`, as it is stored; "" for None."""
    return (name or "")[:PATH_LENGTH].strip()


# ---------------------------------------------------------------------------
# Reading a document within limits
# ---------------------------------------------------------------------------

MOST_OBJECTS = 3_000_000  # limit of a document; counting so many takes 100 MB and an uninterruptible 0.3 s
SMALL_PIECE = 64 * KIB  # bytes; up to this size all problems of a piece are reported
STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")  # msgspec writes dict entries as `[...]`, without the key
IN_PARTS = "send it in parts"
NO_ROOM = f"findings up to this one, each with its rule's texts, are too large for a document of this size; {IN_PARTS}"
NO_TIME = Problem(f"took too long to read; {IN_PARTS}", "")

Read = TypeVar("Read")


def is_given(raw: Raw) -> bool:
    """Return whether an unread member is present and not null."""
    return bytes(memoryview(raw)[:5]) not in (b"", b"null")


def object_in(raw: Raw) -> Raw:
    """Return an unread member if it is an object, else an empty `Raw`."""
    return raw if bytes(memoryview(raw)[:1]) == b"{" else Raw()


def require_readable(text: bytes) -> None:
    """Check that a body is JSON in UTF-8, using little memory. :raises MalformedJSON: if not."""
    pieces = (text[start : start + SMALL_PIECE] for start in range(0, len(text), SMALL_PIECE))
    try:
        for _ in codecs.iterdecode(pieces, "utf-8"):
            pass
        decoder(Raw).decode(text)
    except NOT_JSON as error:
        raise not_json(error) from None


def quick_problem(refusal: msgspec.ValidationError, pointer: str) -> Problem:
    """Convert a msgspec error, which names the first fault of the value at a pointer, to a problem."""
    detail, is_inside, path = str(refusal).rpartition(" - at `$")
    if not is_inside:
        return Problem(truncate(path), pointer)
    known = path.removesuffix("`").partition("[...]")[0]
    steps = [name or number for name, number in STEP.findall(known)]
    return Problem(truncate(detail), json_pointer(steps, pointer))


# Limit of all array items of a document: MOST_ITEMS, plus one per ITEM_SIZE bytes. A result takes 1 KB of memory.
MOST_ITEMS = 50_000
ITEM_SIZE = 128
ARTIFACT = 0.25  # items that a file counts as: it takes 0.1 KB, and is read only if a result refers to it
LARGE_PIECE = KIB * KIB  # bytes; a larger piece is checked for too many values first
MOST_PROBLEMS = 10_000
# Limit in bytes of all findings of a document: LEAST_ROOM plus WEIGHT times its size. A document has a rule once, and
# each finding stores it: 20,000 results of 360 bytes each may have 16 KiB of help. A finding's own texts count
# OWN_WEIGHT times, because they are held in memory.
LEAST_ROOM = 64 * LARGE_PIECE
WEIGHT = 64
OWN_WEIGHT = 4
OWN_TEXTS = ("title", "evidence", "extensions", "labels", "rule", "location", "tags")
TIME_SIZE = 2 * LARGE_PIECE  # bytes that may take `schema_timeout`; scanners' documents take a sixth of it

Origin = tuple[str, str, str]  # tool, category, and absolute base path of a run; "" for none


class ParsedDocument(Parsed):
    """Findings of a document, the origins of its runs, and the number of findings identified by their messages."""

    by_message: int = 0
    origins: Sequence[Origin] = ()


class Reading:
    """State of reading a document: findings, problems, and remaining limits (`room`: bytes of findings)."""

    def __init__(self, size: int, seconds: float = math.inf, room: float = math.inf) -> None:
        self.parsed = ParsedDocument()
        self.problems = self.parsed.problems
        self.items_left = MOST_ITEMS + size / ITEM_SIZE
        self.room = room
        # This thread's CPU time, so that other threads' load never causes a refusal.
        self.end = time.thread_time() + seconds

    @property
    def is_over(self) -> bool:
        """Whether reading must stop because a limit is exceeded."""
        return self.room < 0 or len(self.problems) > MOST_PROBLEMS

    def refuse(self, detail: str, pointer: str) -> None:
        """Record a problem with a part of the document."""
        self.problems.append(Problem(detail, pointer))

    def items(self, raw: Raw, pointer: str, cost: float = 1) -> list[Raw]:
        """Return the undecoded objects of an array; [] if it is missing, or if a problem with it was recorded."""
        if not is_given(raw):
            return []
        try:
            count = len(decoder(list[Part]).decode(raw))
        except msgspec.ValidationError as refusal:
            self.problems.append(quick_problem(refusal, pointer))
            return []
        self.items_left -= count * cost
        if self.items_left < 0:
            self.refuse(f"has {count:,} items, too many for a document of this size; {IN_PARTS}", pointer)
            return []
        items: list[Raw] = decoder(list[Raw]).decode(raw)
        return items

    def read(self, model: type[Read], raw: Raw, pointer: str) -> Read | None:
        """Decode a part; None if it is missing, or if a problem was recorded. :raises OutOfTime: if time is up."""
        if time.thread_time() > self.end:
            raise OutOfTime
        if not is_given(raw):
            return None
        size = memoryview(raw).nbytes
        try:
            if size > LARGE_PIECE:
                require_few_values(bytes(raw))
            return typing.cast(Read, decoder(typing.cast(Any, model)).decode(raw))
        except msgspec.ValidationError as refusal:
            if size > SMALL_PIECE or len(self.problems) > LISTED_PROBLEMS:  # only the first problem
                self.problems.append(quick_problem(refusal, pointer))
            else:
                self.problems += model_problems(model, document_of(bytes(raw)), pointer)
        except ValidationFailed as error:
            self.problems += (problem.below(pointer) for problem in error.problems)
        return None

    def take(self, report: NewTask, rule: KnownRule, pointer: str) -> None:
        """Add a finding to the parsed reports, and subtract its size from `room`."""
        self.parsed.reports.append(report)
        self.parsed.extensions.append((report.extensions, pointer))
        own, shared = [getattr(report, name) for name in OWN_TEXTS], [report.remediation]
        (shared if report.description is rule.full else own).append(report.description)
        self.weigh(OWN_WEIGHT * sum(map(sys.getsizeof, own)) + sum(map(sys.getsizeof, shared)), pointer)

    def weigh(self, weight: int, pointer: str) -> None:
        """Subtract a finding's weight in bytes from `room`; record a problem if nothing is left."""
        self.room -= weight
        if self.room < 0:
            self.refuse(NO_ROOM, pointer)


class Items(typing.Generic[Read]):
    """Array of a document whose items are decoded on access; an item with a problem is an empty model."""

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

    @cached_property
    def named(self) -> dict[str, Read]:
        """Items by id and by guid; of several with the same one, the first."""
        names = ((getattr(item, kind, None), item) for item in reversed([*self]) for kind in ("id", "guid"))
        return {name: item for name, item in names if name}

    def at(self, number: float | None) -> Read | None:
        """Return the item at an index, or None if there is none."""
        place = whole(number)
        return self[place] if place is not None and place < len(self.unread) else None


# ---------------------------------------------------------------------------
# Paths
# ---------------------------------------------------------------------------

CHAIN = 32  # limit of bases that are relative to each other
ROOTS = 100  # limit of absolute bases that a path is compared with
ROOT = "%SRCROOT%"  # the preferred base if a path is below several
DRIVE = re.compile(r"/*([A-Za-z]:(?:/.*)?)", re.DOTALL)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more, because one letter is a drive
ABSOLUTE = re.compile(r"/|[A-Za-z]:(?:/|\Z)|[A-Za-z][A-Za-z0-9+.-]+:")  # the start of an absolute path or URI
URI_LENGTH = 4 * PATH_LENGTH  # room for percent-encoded characters


def path_of_uri(uri: str | None) -> str:
    r"""Return the path of a file URI, with `/` as separator; return URIs with other schemes unchanged.

    Some tools write Windows paths instead of URIs: C:\src\a.c becomes C:/src/a.c, like file:///C:/src/a.c.
    """
    uri = (uri or "")[:URI_LENGTH]
    if uri[:5].lower() == "file:":
        after_scheme = uri[5:]
        uri = after_scheme[2:] if after_scheme.startswith("///") else after_scheme.removeprefix("//localhost")
    elif SCHEME.match(uri):
        return uri
    path = unquote(uri).replace("\0", "%00").replace("\\", "/")
    if drive := DRIVE.fullmatch(path):
        path = drive[1]
    return posixpath.normpath(path) if path else ""


class Paths:
    """Files of a run, as paths relative to the scanned folder if that is known."""

    def __init__(self, reading: Reading, run: Run, invocations: Iterable[Invocation], pointer: str) -> None:
        self.artifacts = Items(reading, Artifact, run.artifacts, f"{pointer}/artifacts", ARTIFACT)
        model = dict[str, ArtifactLocation | None]
        bases = reading.read(model, run.original_uri_base_ids, f"{pointer}/originalUriBaseIds") or {}
        self.bases = {name: (path_of_uri(base.uri), base.uri_base_id or "") for name, base in bases.items() if base}
        called_from = [path_of_uri(item.working_directory.uri) for item in invocations if item.working_directory]
        names = sorted(self.bases, key=lambda name: (name == ROOT, len(self.bases[name][0])), reverse=True)
        candidates = [*(self.bases[name][0] for name in names), *called_from]
        # Absolute bases locate the scanned folder; the root of the file system does not.
        absolute = dict.fromkeys(
            f"{path.rstrip('/')}/" for path in candidates if ABSOLUTE.match(path) and path.strip("/")
        )
        self.roots = [*absolute][:ROOTS]
        self.unlike: dict[str, str] = {}  # paths as written, by the normalized path if it differs
        self.prefix = ""  # folder that is put before relative paths, if the runs of the tool have different bases

    def path(self, location: ArtifactLocation) -> str:
        """Return the normalized path of a file, or ""; without a URI, that of the artifact at its index (3.4.5)."""
        artifact = self.artifacts.at(location.index) if location.uri is None else None
        written = self._resolved((artifact and artifact.location) or location)[:PATH_LENGTH]
        # The same form on all systems: composed characters, and a drive letter in lower case.
        path = unicodedata.normalize("NFC", written)
        if path[1:2] == ":":
            path = path[0].lower() + path[1:]
        if path and self.prefix and not ABSOLUTE.match(path):
            path = posixpath.normpath(f"{self.prefix}/{path}")
        if path != written:
            self.unlike[path] = written
        return path

    def _resolved(self, location: ArtifactLocation) -> str:
        """Return the path of a location, joined with its relative bases, and without an absolute base (3.14.14)."""
        path = path_of_uri(location.uri)
        if ABSOLUTE.match(path):
            return next((path[len(root) :] for root in self.roots if path.startswith(root)), path)
        name = location.uri_base_id or ""
        for _ in range(min(CHAIN, len(self.bases))):  # ends cycles of bases
            above, name = self.bases.get(name, ("", ""))
            if ABSOLUTE.match(above) or len(path) > PATH_LENGTH:
                break
            path = posixpath.join(above, path)
        return posixpath.normpath(path) if path else ""


# ---------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------

SCORES = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.0, "low"))  # lowest security-severity; 0 has none
SCORE = re.compile(r"\s*([0-9]{1,2}(?:[.,][0-9]*)?)\s*(?:/\s*10\s*)?")


def rank_of_score(score: Any) -> int | None:
    """Return the severity rank of a `security-severity`, or None for 0 and invalid values."""
    if isinstance(score, str):
        if (word := score.strip().lower()) in RANKS:
            return RANKS[word]
        written = SCORE.fullmatch(score)
        score = float(written[1].replace(",", ".")) if written else None
    if type(score) not in (int, float) or not 0 < score <= 10:
        return None
    return RANKS[next(name for least, name in SCORES if score >= least)]


def bag_of(part: Result | Rule) -> Properties:
    """Return the property bag of a part, or an empty one."""
    return part.properties if isinstance(part.properties, Properties) else Properties()


def tags_of(part: Result | Rule) -> list[str]:
    """Return the first `MOST_TAGS` tags of a part."""
    tags = bag_of(part).tags
    given = tags if isinstance(tags, list) else [tags]
    return [tag for tag in given[:MOST_TAGS] if isinstance(tag, str) and tag]


class KnownRule(Struct):
    """Values of a rule that are stored with each of its findings; computed once for all of them."""

    id: str
    title: str = ""
    full: str = ""
    remediation: str | None = None
    rank: int | None = None
    level: Level | None = None
    tags: tuple[str, ...] = ()
    messages: Sequence[Mapping[str, Text | None]] = ()  # the rule's, its component's, the tool's


class RuleList(Items[Rule]):
    """Rules of one component of a tool."""

    def __init__(self, reading: Reading, component: Component, pointer: str) -> None:
        super().__init__(reading, Rule, component.rules, f"{pointer}/rules")
        self.name, self.guid = component.name, component.guid
        self.strings = component.global_message_strings or {}


RULE_TEXT = 16 * KIB  # bytes; a rule's texts are stored with each of its findings
PARENTS = 16  # levels of a hierarchical rule id (3.27.5): CA1000/1 is below CA1000


class Rules:
    """Rules of a run: those of the tool itself and of its plug-ins."""

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
        self.overrides: dict[int, Level] = {}  # levels that invocations set, by id() of the rule
        for each in itertools.chain.from_iterable(item.rule_configuration_overrides or () for item in invocations):
            if each and each.descriptor and each.configuration and each.configuration.level:
                _, rule = self._find(each.descriptor)
                self.overrides.setdefault(id(rule), each.configuration.level)

    def rule_of(self, reference: Reference) -> KnownRule:
        """Return the rule that a result refers to; only with its id if the document does not contain the rule."""
        rules, rule = self._find(reference)
        if rule is None:
            return KnownRule(as_name(reference.id), messages=(self.lists[0].strings,))
        help_text = cut_bytes(text_of(rule.help) or as_name(rule.help_uri), RULE_TEXT)
        return KnownRule(
            as_name(reference.id or rule.id),
            text_of(rule.short_description, rule.full_description) or as_name(rule.name),
            cut_bytes(text_of(rule.full_description), RULE_TEXT),
            to_json_text([StoredStep(1, help_text)]) if help_text else None,
            rank_of_score(bag_of(rule).security_severity),
            self.overrides.get(id(rule)) or (rule.default_configuration or Configuration()).level,
            (*tags_of(rule), *self.taxa(each.target for each in rule.relationships or () if each)),
            (rule.message_strings or {}, rules.strings, self.lists[0].strings),
        )

    def taxa(self, references: Iterable[Reference | None]) -> Iterator[str]:
        """Yield the taxa among `MOST_TAGS` references as tags, with the taxonomy's name as prefix: CWE-79."""
        for reference in filter(None, itertools.islice(references, MOST_TAGS)):
            part = reference.tool_component or ComponentReference()
            name = part.name
            if not name:
                known = self.taxonomies
                name = ((known.named.get(part.guid) if part.guid else known.at(part.index)) or Component()).name
            if reference.id and name and name not in self.parts:  # else it is a reference to another rule
                tag = reference.id if reference.id.startswith(name) else f"{name[:TAG_LENGTH]}-{reference.id}"
                yield tag[: TAG_LENGTH + 1]

    @cached_property
    def named(self) -> dict[str, tuple[RuleList, Rule]]:
        """Rules of all components by id and by guid; of several with the same one, the first."""
        return {name: (rules, rule) for rules in reversed(self.lists) for name, rule in rules.named.items()}

    def _find(self, reference: Reference) -> tuple[RuleList, Rule | None]:
        """Return component and rule (or None) of a reference (3.52.3); search the component that it names first."""
        first = self._part(reference.tool_component or ComponentReference()) or self.lists[0]
        rule, own = first.at(reference.index), reference.id
        if rule and (own is None or rule.id is None or f"{own}/".startswith(f"{rule.id}/")):
            return first, rule
        parents = itertools.accumulate(range(PARENTS), lambda name, _: name.rpartition("/")[0], initial=own or "")
        for name in filter(None, itertools.chain([reference.guid], parents)):
            if rule := first.named.get(name):
                return first, rule
            if name in self.named:
                return self.named[name]
        return first, None

    def _part(self, reference: ComponentReference) -> RuleList | None:
        """Return the component that a reference names (3.54.2), or None."""
        place = whole(reference.index)
        if place is not None and place + 1 < len(self.lists):
            return self.lists[place + 1]
        return self.parts.get(reference.guid or "") or self.parts.get(reference.name or "")


# ---------------------------------------------------------------------------
# Converting results to findings
# ---------------------------------------------------------------------------

EXTERNAL_ID_LENGTH = 256
IDENTITY_LENGTH = 64  # leaves room for the number of a twin


def own_fingerprint(result: Result, name: str, most: int = IDENTITY_LENGTH) -> str | None:
    """Return a fingerprint of this service, or None if it is missing or longer than `most`."""
    value = (result.fingerprints or {}).get(name)
    return value if value and len(value) <= most else None


SEVERITY_OF_LEVEL = {"error": "high", "warning": "medium", "note": "low", "none": "info"}


def severity_of(result: Result, rule: KnownRule) -> int:
    """Return the severity rank of a result (3.27.10, and GitHub's security-severity)."""
    level = result.level or ("none" if result.kind not in (None, "fail") else rule.level or "warning")
    own = rank_of_score(bag_of(result).security_severity)
    return own or rule.rank or RANKS[SEVERITY_OF_LEVEL[level]]


TITLE_LENGTH = 500  # characters
NAME_LENGTH = 500  # characters of a rule or tool in the extensions
MOST_TAGS = 60  # of a result and its rule that are read
TAGS = 40  # in the extensions
TAG_LENGTH = 200  # characters of a tag there
MOST_LOCATIONS = 100
LINK = re.compile(r"\[([^\[\]]*)\]\([0-9]+\)")  # to a location of the result (3.11.6)
NO_RESULTS = "must be an array, empty for a clean scan; a run without `results` counts as a failed scan"
NOT_HERE = "refers to other files, which are not read; configure the tool to write one file"
FAILED = "the scanner reports that it failed"
NO_TOOL = "is required: the tool's name, tool.driver.name, is part of a finding's identity"
NO_WORDS = "is required if the result has no rule: a text, markdown, or the id of a message string"
KEPT = 4096  # paths and rules in a cache


class Extensions(Struct, rename="camel", omit_defaults=True):
    """Extensions of a finding, before members that the project type's schema rejects are dropped."""

    rule_id: str = ""
    tool: str = ""
    file: str = ""
    line: int | None = None
    end_line: int | None = None
    tags: list[str] = []


class RunReading:
    """Run with all parts that its results refer to; `faults` has the reasons why it is unusable, if any."""

    def __init__(self, reading: Reading, raw: Raw, pointer: str) -> None:
        self.reading, self.pointer = reading, pointer
        self.run: Run = decoder(Run).decode(raw)
        tool = reading.read(Tool, self.run.tool, f"{pointer}/tool")
        self.tool_name = as_name(tool.driver.name if tool and tool.driver else None)
        self.results = reading.items(self.run.results, f"{pointer}/results")
        self._further = itertools.count(len(self.results))
        self.invocations = Items(reading, Invocation, self.run.invocations, f"{pointer}/invocations")
        self.paths = Paths(reading, self.run, self.invocations, pointer)
        taxonomies = Items(reading, Component, self.run.taxonomies, f"{pointer}/taxonomies")
        self.rules = Rules(reading, tool or Tool(), taxonomies, self.invocations, f"{pointer}/tool")
        self.names = Items(reading, LogicalLocation, self.run.logical_locations, f"{pointer}/logicalLocations")
        self.properties = reading.read(RunProperties, object_in(self.run.properties), f"{pointer}/properties")
        self.renames = self.properties.renames if self.properties else {}
        details = object_in(self.run.automation_details)
        job = reading.read(AutomationDetails, details, f"{pointer}/automationDetails")
        category = job.id if job and isinstance(job.id, str) else ""
        base = self.paths.roots[0].rstrip("/") if self.paths.roots else ""
        self.origin = self.tool_name, category.rpartition("/")[0].strip(), base  # the category as GitHub reads it
        self.faults = [Problem(detail, f"{pointer}/{path}") for detail, path in self._faults(tool)]
        # Caches per object, whose entries do not refer to it: no reference cycle keeps the document in memory.
        self.path_of = lru_cache(KEPT)(self.paths.path)
        self.rule_of = lru_cache(KEPT)(self.rules.rule_of)

    def _faults(self, tool: Tool | None) -> Iterator[tuple[str, str]]:
        """Yield the reasons why the run is unusable, each with its pointer below the run."""
        run, path = self.run, f"{self.pointer}/externalPropertyFileReferences"
        if tool and not self.tool_name:
            yield NO_TOOL, "tool/driver/name" if tool.driver else "tool/driver"
        elif not is_given(run.tool):
            yield NO_TOOL, "tool"
        if not is_given(run.results):
            yield NO_RESULTS, "results"
        external = self.reading.read(External, run.external_property_file_references, path) or External()
        for name in External.__struct_fields__:
            if is_given(getattr(external, name)):
                yield NOT_HERE, f"externalPropertyFileReferences/{name}"
        for place, invocation in enumerate(self.invocations):
            if invocation.execution_successful is False and not self.results:
                yield FAILED, f"invocations/{place}/executionSuccessful"

    def read_results(self) -> None:
        """Add a finding for each result, and a `not-checked` one for each place where the tool reports an error."""
        reports = self.reading.parsed.reports
        first = len(reports)
        for number, raw in enumerate(self.results):
            pointer = f"{self.pointer}/results/{number}"
            result = self.reading.read(Result, raw, pointer)
            if result and result.is_finding:
                self._take(result, pointer)
            if self.reading.is_over:
                return
        found = [bool(ABSOLUTE.match(each.place[0])) for each in reports[first:] if each.place[0]]
        is_absolute, reasons = bool(found) and all(found), dict[str, str]()
        for error in itertools.chain.from_iterable(each.errors for each in self.invocations):
            message = self._said(error.message, self.rule_of(Reference()))
            paths = (self._place(each).path for each in error.locations or () if each)
            for path in [*filter(None, paths)] or [""]:
                # Drop such a path: no finding is at a root, or at an absolute path if findings have relative ones.
                if not path.strip("./") or f"{path}/" in self.paths.roots or (ABSOLUTE.match(path) and not is_absolute):
                    path = ""
                reasons.setdefault(path, message or (error.descriptor and error.descriptor.id) or FAILED)
        if not reasons and any(each.execution_successful is False for each in self.invocations):
            reasons[""] = FAILED
        for path, reason in reasons.items():
            self.take_unchecked(reason, path)

    def take_unchecked(self, reason: str, path: str = "", mark: str = "") -> None:
        """Add a `not-checked` finding, whose pointer follows that of the last result.

        :param mark: distinguishes it from other findings without a path.
        """
        pointer = f"{self.pointer}/results/{next(self._further)}"
        known = identities_of(Result(), self.tool_name, UNCHECKED, [ResultPlace(path, code=[(None, mark)])])
        title, rule = truncate(f"Not checked: {reason}", TITLE_LENGTH), KnownRule(UNCHECKED)
        self._store(known, title, None, Result(level="error"), rule, [ResultPlace(path)], pointer)

    def _take(self, result: Result, pointer: str) -> None:
        places = [self._place(item) for item in (result.locations or ())[:MOST_LOCATIONS] if item] or [ResultPlace()]
        if is_given(bag_of(result).ours):
            self._take_ours(result, places[0].line, f"{pointer}/properties/{escaped(OURS)}")
            return
        rule = self.rule_of(result.reference)
        message = self._said(result.message, rule)
        title = truncate(message or rule.title or rule.id, TITLE_LENGTH)
        if not title:
            self.reading.refuse(NO_WORDS, f"{pointer}/message")
            return
        description = None if rule.full in title else rule.full
        if len(message) > TITLE_LENGTH:
            description = cut_bytes(message, DESCRIPTION)
        first, mark = places[0], own_fingerprint(result, OURS, EXTERNAL_ID_LENGTH)
        before = self.renames.get(first.path), self.paths.unlike.get(first.path)
        known_places = [first, *(replace(first, path=path) for path in before if path)]
        known = Identities(mark) if mark else identities_of(result, self.tool_name, rule.id, known_places, message)
        self.reading.parsed.by_message += known.by_message
        self._store(known, title, description, result, rule, places, pointer)

    def _take_ours(self, result: Result, line: int | None, pointer: str) -> None:
        """Add the task that this service or `scan` wrote into a result, validated like a submitted task."""
        raw, parsed = bag_of(result).ours, self.reading.parsed
        if task := self.reading.read(TaskReport, raw, pointer):
            parsed.add(task, pointer)
            report, identity = parsed.reports[-1], own_fingerprint(result, IDENTITY)
            report.external_id = own_fingerprint(result, OURS, EXTERNAL_ID_LENGTH)
            if identity and not report.external_id:
                report.external_id = report.identity = identity
                report.old_id, report.old_title = own_fingerprint(result, OLD_IDENTITY) or "", report.title
                report.place = ((report.location or "").removesuffix(f":{line}"), line or 0, 0)
        self.reading.weigh(OWN_WEIGHT * memoryview(raw).nbytes, pointer)

    def _store(
        self,
        known: Identities,
        title: str,
        description: str | None,
        result: Result,
        rule: KnownRule,
        places: Sequence[ResultPlace],
        pointer: str,
    ) -> None:
        """Add a finding at the first of its places, with the code of all places as evidence."""
        first = places[0]
        all_tags = itertools.chain(rule.tags, tags_of(result), self.rules.taxa(result.taxa or ()))
        tags = [*dict.fromkeys(itertools.islice(all_tags, MOST_TAGS))]
        extensions = Extensions(
            truncate(rule.id, NAME_LENGTH),
            truncate(self.tool_name, NAME_LENGTH),
            first.path,
            first.line,
            first.end_line if first.line else None,
            [truncate(tag, TAG_LENGTH) for tag in tags[:TAGS]],
        )
        evidence = [item for place in places for item in place.evidence]
        where = (first.path, first.line) if first.path else (first.name, None)
        report = NewTask(
            title,
            severity_of(result, rule),
            description,
            to_json_text(evidence) if evidence else None,
            rule.remediation,
            None,
            msgspec.json.encode(extensions).decode(),
            *foreign_labels(extensions.rule_id, *where, tags),
            external_id=known.id,
            status="dismissed" if result.is_suppressed else None,
            labels=evidence_labels(evidence),
            former_ids=known.former,
            old_id=known.old,
            old_title=title if known.by_message else "",  # `old_id` does not contain it
            identity=known.id if known.old else None,
            place=(first.path or first.name, first.line or 0, first.column or 0),
        )
        self.reading.take(report, rule, pointer)

    def _place(self, location: Location) -> ResultPlace:
        physical = location.physical_location or PhysicalLocation()
        region = physical.region or Region()
        context = physical.context_region or Region()
        line, first = whole(region.start_line, 1), whole(context.start_line, 1)
        code = [(line, region.code)] if region.code else []
        if context.code and (not code or (first and context.code.strip() != region.code.strip() in context.code)):
            code.append((first or line, context.code))
        path = self.path_of(physical.artifact_location) if physical.artifact_location else ""
        names = () if path else map(self._name, location.logical_locations or ())
        name, column = next(filter(None, names), ""), whole(region.start_column, 1)
        return ResultPlace(path, line, whole(region.end_line, 1), name, code, column)

    def _name(self, location: LogicalLocation | None) -> str:
        """Return the name of a logical location, else that at its index in the run's list (3.33.3), or ""."""
        listed = location and self.names.at(location.index)
        named = (each.fully_qualified_name or each.name for each in (location, listed) if each)
        return next(filter(None, named), "")[:PATH_LENGTH]

    def _said(self, message: Message | None, rule: KnownRule) -> str:
        """Return the text of a message, with its arguments inserted and without links (3.11)."""
        message = message or Message()
        text = message.text or ""
        if not text and message.id is not None:
            text = text_of(*(each.get(message.id) for each in rule.messages))
        text = text or message.markdown or ""
        if message.arguments or not message.text:  # a text without arguments may contain literal braces
            text = filled(text, message.arguments or ())
        return LINK.sub(r"\1", text[:MESSAGE_LENGTH]).strip()


def without_nul(text: bytes) -> bytes:
    """Return JSON with each escaped NUL, as bandit writes it, replaced by U+FFFD.

    0xFF, which no UTF-8 contains, temporarily replaces each half of an escaped backslash. A regular expression would
    hold Python's global lock for seconds.
    """
    if b"\\u0000" not in text:
        return text
    return text.replace(rb"\\", b"\xff\xff").replace(rb"\u0000", rb"\ufffd").replace(b"\xff\xff", rb"\\")


def parse(text: bytes, settings: Settings, weight: float = WEIGHT) -> ParsedDocument:
    """Parse a SARIF document into findings and problems.

    The time is limited in proportion to the document's size, because stopping the service waits for this function.

    :param weight: allowed bytes of findings per byte of the document; infinite if it will be split into parts.
    :raises MalformedJSON: if it is not JSON. :raises ValidationFailed: if it has too many objects or long numbers.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    require_readable(text)
    if text.count(b"{") > MOST_OBJECTS:  # braces in texts count too, but are few
        raise ValidationFailed([Problem(f"has more than {MOST_OBJECTS:,} objects; {IN_PARTS}", "")])
    require_plain_numbers(text)
    seconds = settings.schema_timeout * (1 + len(text) / TIME_SIZE)
    reading = Reading(len(text), seconds, LEAST_ROOM + weight * len(text))
    try:
        read_log(reading, without_nul(text))
        reading.parsed.complete = not reading.is_over
        reading.parsed.number = numbering(reading.parsed.reports)
    except OutOfTime:
        reading.parsed.complete = False
        reading.problems.append(NO_TIME)
    return reading.parsed


def folders_of(runs: Iterable[tuple[Item, Origin]]) -> Iterator[tuple[Item, str]]:
    """Yield runs whose tool and category have several absolute bases, with the base below the common folder."""
    groups = defaultdict[tuple[str, str], list[tuple[Item, str]]](list)
    for run, (tool, category, base) in runs:
        groups[tool, category].append((run, base))
    for group in groups.values():
        given = {base for _, base in group if base}
        if len(given) > 1 and len({base.startswith("/") for base in given}) == 1:
            shared = posixpath.commonpath(given)
            yield from ((run, base[len(shared) :].strip("/")) for run, base in group)


VERSION = "2.1.0"
OTHER_VERSION = (
    f"must be {VERSION}; configure the tool to write it (C# compiler: <ErrorLog>FILE,version=2.1</ErrorLog>), or"
    " convert the file: Sarif.Multitool rewrite FILE --output NEW"
)
NO_RUNS = "must contain at least one run; a document without runs counts as a failed scan"


def read_log(reading: Reading, text: bytes) -> None:
    """Read all runs of a document; add their findings and problems to `reading`."""
    try:
        log: Log = decoder(Log).decode(text)
    except msgspec.ValidationError as refusal:
        reading.problems.append(quick_problem(refusal, ""))
        return
    if memoryview(log.version) != f'"{VERSION}"'.encode():
        reading.refuse(OTHER_VERSION, "/version")
        return
    runs = reading.items(log.runs, "/runs")
    if not runs and not reading.problems:
        reading.refuse(NO_RUNS, "/runs")
    read = [RunReading(reading, raw, f"/runs/{number}") for number, raw in enumerate(runs)]
    reading.parsed.origins = [run.origin for run in read]
    for run, folder in folders_of(zip(read, reading.parsed.origins, strict=True)):
        run.paths.prefix = folder
    for run in read:  # set by `scan`, which has all documents of a tool
        if run.properties and run.properties.folder is not None:
            run.paths.prefix = as_name(run.properties.folder).strip("/")
    usable = [run for run in read if not run.faults]
    for run in itertools.takewhile(lambda _: not reading.is_over, usable):
        run.read_results()
    for run in read if usable else ():
        if run.faults:
            detail = "; ".join(f"{each.pointer} {each.detail}" for each in run.faults)
            name = run.tool_name
            found = next((each for each in usable if each.tool_name == name), usable[0])
            found.take_unchecked(f"run of {name or 'a tool'}: {detail}", mark=name or run.pointer)
    if not usable:
        reading.problems += itertools.chain.from_iterable(run.faults for run in read)
