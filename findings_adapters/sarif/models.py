"""Models of the parts of SARIF 2.1.0 documents that this service reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

OUR_PREFIX = "findingsTaskService/"  # prefix of the names of this service's fingerprints and properties
OURS = "findingsTaskService/v1"  # name of our fingerprint, and of our property in a property bag
# Fingerprints that `scan` writes: a finding's identity, which its twins (twins.py) share, and its old identity.
IDENTITY = "findingsTaskService/identity/v2"
OLD_IDENTITY = "findingsTaskService/identity/v1"
# Run properties that `scan` writes: a map from paths to earlier paths, and the folder that relative paths are in.
RENAMES = "findingsTaskService/renames"
FOLDER = "findingsTaskService/folder"

# All members are optional and null counts as missing, because tools leave out members that the standard requires.
# Large members stay undecoded (Raw) and are decoded piece by piece.

Item = TypeVar("Item")
String = str | None
Several = list[Item | None] | None
Whole = Annotated[float, Meta(multiple_of=1)] | None  # an integer in the standard; some tools write 1.0
Level = Literal["none", "note", "warning", "error"] | None
UNREAD = msgspec.field(default_factory=Raw)


def whole(number: float | None, least: int = 0) -> int | None:
    """Return an index or line number as int; None if it is missing (or -1), below `least`, or too large."""
    return int(number) if number is not None and least <= number < 2**31 else None


class Part(Struct, rename="camel", gc=False):
    """Base class for parts of a document. Members that have no field are ignored."""


class Key(Struct, rename="camel", gc=False, frozen=True):
    """Base class for hashable parts, which are lookup keys."""


class External(Part):
    """References to other files that hold parts of a run (3.15)."""

    driver: Raw = UNREAD
    extensions: Raw = UNREAD
    results: Raw = UNREAD


class Log(Part):
    """SARIF document (3.13)."""

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
    """Properties of this service in a run's property bag."""

    renames: dict[str, str] = msgspec.field(name=RENAMES, default_factory=dict)
    folder: String = msgspec.field(name=FOLDER, default=None)


class AutomationDetails(Part):
    """Job that a run belongs to (3.17)."""

    id: Any = None


class Text(Part):
    """Object with a text: a message string (3.12), or the content of a region (3.3)."""

    text: String = None


Strings = dict[str, Text | None] | None
Prints = dict[str, str | None] | None  # fingerprints by their names


class Message(Part):
    """Message (3.11): a text, or the id of a message string of its rule or tool."""

    text: String = None
    markdown: String = None
    id: String = None
    arguments: Several[str] = None


class ComponentReference(Key, frozen=True):
    """Reference to a component: the tool itself or a plug-in (3.54)."""

    index: Whole = None
    name: String = None
    guid: String = None


class Reference(Key, frozen=True):
    """Reference to a rule or taxon (3.52)."""

    id: String = None
    index: Whole = None
    guid: String = None
    tool_component: ComponentReference | None = None


class Properties(Part):
    """Property bag (SARIF 3.8): tags, GitHub's `security-severity`, and `OURS`, which this service exports."""

    tags: Any = None
    security_severity: Any = msgspec.field(name="security-severity", default=None)
    ours: Raw = msgspec.field(name=OURS, default_factory=Raw)


Bag = Properties | list[Any] | None  # PHP writes an empty object as a list


class Configuration(Part):
    """Configuration of a rule (3.50)."""

    level: Level = None


class Relationship(Part):
    """Relationship of a rule with another rule or a taxon (3.53)."""

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
    """Component of a tool, or a taxonomy (3.19)."""

    name: String = None
    guid: String = None
    rules: Raw = UNREAD
    global_message_strings: Strings = None


class Tool(Part):
    """A tool and its plug-ins (3.18)."""

    driver: Component | None = None
    extensions: Raw = UNREAD


class ArtifactLocation(Key, frozen=True):
    """Location of a file (3.4)."""

    uri: String = None
    uri_base_id: String = None
    index: Whole = None


class Artifact(Part):
    """A file (3.24)."""

    location: ArtifactLocation | None = None


class Override(Part):
    """Configuration of a rule for one run (3.51)."""

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
        """Code of the region, or ""."""
        return (self.snippet and self.snippet.text) or ""


class PhysicalLocation(Part):
    """A place in a file (3.29)."""

    artifact_location: ArtifactLocation | None = None
    region: Region | None = None
    context_region: Region | None = None


class LogicalLocation(Part):
    """A place in a program, such as a function (3.33)."""

    name: String = None
    fully_qualified_name: String = None
    index: Whole = None


class Location(Part):
    """Location of a result (3.28)."""

    physical_location: PhysicalLocation | None = None
    logical_locations: Several[LogicalLocation] = None


class Notification(Part):
    """Notification of a tool about itself, such as about a file that it could not read (3.58)."""

    descriptor: Reference | None = None
    level: Level = None
    message: Message | None = None
    locations: Several[Location] = None


class Invocation(Part):
    """Invocation of the tool, and its outcome (3.20)."""

    execution_successful: bool | None = None
    working_directory: ArtifactLocation | None = None
    rule_configuration_overrides: Several[Override] = None
    tool_configuration_notifications: Several[Notification] = None
    tool_execution_notifications: Several[Notification] = None

    @property
    def errors(self) -> Iterator[Notification]:
        """Notifications of level `error`, about the tool's configuration or its execution."""
        notices = itertools.chain(self.tool_configuration_notifications or (), self.tool_execution_notifications or ())
        return (each for each in notices if each and each.level == "error")


class Suppression(Part):
    """Suppression of a result (3.35)."""

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
        """Reference to the rule of the result, from its members `rule`, `ruleId` and `ruleIndex`."""
        if not self.rule:
            return Reference(self.rule_id, self.rule_index)
        index = self.rule_index if whole(self.rule.index) is None else self.rule.index
        return replace(self.rule, id=self.rule_id or self.rule.id, index=index)

    @property
    def is_finding(self) -> bool:
        """Whether the result reports a problem that still exists."""
        return self.kind not in ("pass", "notApplicable") and self.baseline_state != "absent"

    @property
    def is_suppressed(self) -> bool:
        """Whether the result has an accepted suppression; one without a status counts as accepted."""
        return any(item and item.status in (None, "accepted") for item in self.suppressions or ())
