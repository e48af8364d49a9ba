"""The parts of SARIF 2.1.0 documents that are read, as models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

OUR_MARKS = "findingsTaskService/"  # with which the names of our fingerprints and members begin
OURS = "findingsTaskService/v1"  # the name of our fingerprint, and of our member in a property bag
# Fingerprints that `scan` writes: the identity of a finding, which twins share, and that by the earlier algorithm.
IDENTITY = "findingsTaskService/identity/v2"
OLD_IDENTITY = "findingsTaskService/identity/v1"
# In a run's property bag, written by `scan`: paths with earlier ones, and the folder that its relative paths lie in.
RENAMES = "findingsTaskService/renames"
FOLDER = "findingsTaskService/folder"

# Everything is optional, and null is nothing: tools leave out what the standard requires. What is large is left
# unread, as Raw, and read piece by piece.

Item = TypeVar("Item")
String = str | None
Several = list[Item | None] | None
Whole = Annotated[float, Meta(multiple_of=1)] | None  # where the standard says integer; some write 1.0
Level = Literal["none", "note", "warning", "error"] | None
UNREAD = msgspec.field(default_factory=Raw)


def whole(number: float | None, least: int = 0) -> int | None:
    """Return an index or, from 1, a line number as int; None for a missing one, such as -1."""
    return int(number) if number is not None and least <= number < 2**31 else None


class Part(Struct, rename="camel", gc=False):
    """The base of all parts of a document. Members without a name here are passed over."""


class Key(Struct, rename="camel", gc=False, frozen=True):
    """The base of those by which something is looked up: they can be hashed."""


class External(Part):
    """References to other files that hold parts of a run (3.15)."""

    driver: Raw = UNREAD
    extensions: Raw = UNREAD
    results: Raw = UNREAD


class Log(Part):
    """The document itself (3.13)."""

    version: Raw = UNREAD
    runs: Raw = UNREAD


class Run(Part):
    """One run of a tool (3.14)."""

    tool: Raw = UNREAD
    results: Raw = UNREAD
    artifacts: Raw = UNREAD
    automation_details: Raw = UNREAD
    external_property_file_references: Raw = UNREAD
    invocations: Raw = UNREAD
    logical_locations: Raw = UNREAD
    original_uri_base_ids: Raw = UNREAD
    properties: Raw = UNREAD
    taxonomies: Raw = UNREAD


class RunProperties(Part):
    """Our members of a run's property bag."""

    renames: dict[str, str] = msgspec.field(name=RENAMES, default_factory=dict)
    folder: String = msgspec.field(name=FOLDER, default=None)


class AutomationDetails(Part):
    """Which job a run belongs to (3.17)."""

    id: Any = None


class Text(Part):
    """A text, alone or as a message's string (3.12)."""

    text: String = None


Strings = dict[str, Text | None] | None
Prints = dict[str, str | None] | None  # fingerprints by their names


class Message(Part):
    """A message (3.11): a text, or the id of one of the texts of its rule or tool."""

    text: String = None
    markdown: String = None
    id: String = None
    arguments: Several[str] = None


class ComponentReference(Key, frozen=True):
    """Which part of a tool is meant (3.54)."""

    index: Whole = None
    name: String = None
    guid: String = None


class Reference(Key, frozen=True):
    """Which rule or taxon is meant (3.52)."""

    id: String = None
    index: Whole = None
    guid: String = None
    tool_component: ComponentReference | None = None


class Properties(Part):
    """A property bag (3.8): its tags, GitHub's `security-severity`, and the properties of this service."""

    tags: Any = None
    security_severity: Any = msgspec.field(name="security-severity", default=None)
    ours: Raw = msgspec.field(name=OURS, default_factory=Raw)


Bag = Properties | list[Any] | None  # PHP writes an empty one as a list


class Configuration(Part):
    """How a rule is set (3.50)."""

    level: Level = None


class Relationship(Part):
    """A relationship of a rule with another rule or a taxon (3.53)."""

    target: Reference | None = None


class Rule(Part):
    """A rule of a tool (3.49)."""

    id: String = None
    guid: String = None
    name: String = None
    short_description: Text | None = None
    full_description: Text | None = None
    help: Text | None = None
    help_uri: String = None
    default_configuration: Configuration | None = None
    message_strings: Strings = None
    relationships: Several[Relationship] = None
    properties: Bag = None


class Component(Part):
    """A part of a tool, or a taxonomy (3.19)."""

    name: String = None
    guid: String = None
    rules: Raw = UNREAD
    global_message_strings: Strings = None


class Tool(Part):
    """A tool and its plug-ins (3.18)."""

    driver: Component | None = None
    extensions: Raw = UNREAD


class ArtifactLocation(Key, frozen=True):
    """Where a file is (3.4)."""

    uri: String = None
    uri_base_id: String = None
    index: Whole = None


class Artifact(Part):
    """A file (3.24)."""

    location: ArtifactLocation | None = None


class Override(Part):
    """A rule that was set anew for one run (3.51)."""

    descriptor: Reference | None = None
    configuration: Configuration | None = None


class Region(Part):
    """A part of a file (3.30)."""

    start_line: Whole = None
    start_column: Whole = None
    end_line: Whole = None
    snippet: Text | None = None

    @property
    def code(self) -> str:
        """The code of the region, or ""."""
        return (self.snippet and self.snippet.text) or ""


class PhysicalLocation(Part):
    """A place in a file (3.29)."""

    artifact_location: ArtifactLocation | None = None
    region: Region | None = None
    context_region: Region | None = None


class LogicalLocation(Part):
    """A place in a program: a function, say (3.33)."""

    name: String = None
    fully_qualified_name: String = None
    index: Whole = None


class Location(Part):
    """Where a result is (3.28)."""

    physical_location: PhysicalLocation | None = None
    logical_locations: Several[LogicalLocation] = None


class Notification(Part):
    """Notification of a tool about itself, such as about a file that it could not read (3.58)."""

    descriptor: Reference | None = None
    level: Level = None
    message: Message | None = None
    locations: Several[Location] = None


class Invocation(Part):
    """How the tool was called, and how that went (3.20)."""

    execution_successful: bool | None = None
    working_directory: ArtifactLocation | None = None
    rule_configuration_overrides: Several[Override] = None
    tool_configuration_notifications: Several[Notification] = None
    tool_execution_notifications: Several[Notification] = None

    @property
    def errors(self) -> Iterator[Notification]:
        """The notifications of level error."""
        said = itertools.chain(self.tool_configuration_notifications or (), self.tool_execution_notifications or ())
        return (each for each in said if each and each.level == "error")


class Suppression(Part):
    """That a result was set aside (3.35)."""

    status: Literal["accepted", "underReview", "rejected"] | None = None


class Result(Part):
    """A result of a tool (3.27)."""

    rule_id: String = None
    rule_index: Whole = None
    rule: Reference | None = None
    kind: Literal["notApplicable", "pass", "fail", "review", "open", "informational"] | None = None
    level: Level = None
    message: Message | None = None
    locations: Several[Location] = None
    fingerprints: Prints = None
    partial_fingerprints: Prints = None
    correlation_guid: String = None
    suppressions: Several[Suppression] = None
    baseline_state: Literal["new", "unchanged", "updated", "absent"] | None = None
    taxa: Several[Reference] = None
    properties: Bag = None

    @property
    def reference(self) -> Reference:
        """Which rule it is of."""
        if not self.rule:
            return Reference(self.rule_id, self.rule_index)
        index = self.rule_index if whole(self.rule.index) is None else self.rule.index
        return replace(self.rule, id=self.rule_id or self.rule.id, index=index)

    @property
    def is_finding(self) -> bool:
        """Whether it says that something is the matter, and still is."""
        return self.kind not in ("pass", "notApplicable") and self.baseline_state != "absent"

    @property
    def is_suppressed(self) -> bool:
        """Whether somebody has set it aside."""
        return any(item and item.status in (None, "accepted") for item in self.suppressions or ())
