"""SARIF export of findings, for code scanning and for import, written piece by piece."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

import findings_features.exports as exports
from findings_adapters.sarif.models import OURS, whole
from findings_adapters.sarif.reading import DRIVE, RULE_TEXT, SCHEME, VERSION
from findings_features.labels import cut_bytes
from findings_service import (
    RANKS,
    SEVERITIES,
    Evidence,
    Json,
    StoredStep,
    Task,
    TaskReport,
    __version__,
    decoder,
    truncate,
)

DRIVER = "Findings Task Service"
DESCRIBED_RULES = 1000  # rules with a description; of further rules only the ids are kept in memory


class Written(Struct):
    """Rule of written results: their reference to it, its descriptor for the tool, and its worst severity rank."""

    reference: Json
    descriptor: Json
    severity: int = 0


class Tools:
    """Rules of the results written so far, by tool; None is this service."""

    def __init__(self) -> None:
        self.rules: dict[str | None, dict[str, Written]] = {None: {}}
        self.parts: dict[str, int] = {}
        self.described = 0

    def rule_of(self, task: Task, extensions: Json) -> Written:
        """Return the rule of a task, or one named after its project type if it has none; add a new rule."""
        tool = word_in(extensions, "tool") if task.rule else None
        rule_id = task.rule or task.project_type
        rules = self.rules.setdefault(tool, {})
        rule = rules.get(rule_id)
        if rule is None:
            self.described += 1
            descriptor = descriptor_of(rule_id, task) if self.described <= DESCRIBED_RULES else {"id": rule_id}
            # A result refers to a rule of this service by its index, to others also by the tool's index (3.27.7).
            reference: Json = {"ruleId": rule_id, "ruleIndex": len(rules)}
            if tool is not None:
                part = {"name": tool, "index": self.parts.setdefault(tool, len(self.parts))}
                reference = {"rule": {"id": rule_id, "index": len(rules), "toolComponent": part}}
            rule = rules[rule_id] = Written(reference, descriptor)
        rule.severity = max(rule.severity, RANKS[task.severity])
        return rule

    def tool(self) -> Json:
        """Return the `tool` object of the run that was written, with all rules."""
        driver = {"name": DRIVER, "version": __version__, "rules": rules_of(self.rules[None])}
        parts = [{"name": name, "rules": rules_of(self.rules[name])} for name in self.parts]
        return {"driver": driver, "extensions": parts}


def word_in(extensions: Json, name: str) -> str | None:
    """Return a member of extensions if it is a text that is not blank, else None."""
    value = extensions.get(name)
    return value if isinstance(value, str) and value.strip() else None


def line_in(extensions: Json, name: str) -> int | None:
    """Return a member of extensions if it is a line number, else None."""
    value = extensions.get(name)
    return whole(value, 1) if type(value) is int else None


RULE_WORDS = 1024  # characters of a rule's full description that code scanning takes


def descriptor_of(rule_id: str, task: Task) -> Json:
    """Return a rule's descriptor from its first task, with all that code scanning requires."""
    full = cut_bytes(task.description or task.title, RULE_TEXT)
    steps = decoder(list[StoredStep]).decode(cast(Any, task.remediation))  # still the stored JSON
    help_text = (cut_bytes(steps[0].instruction, RULE_TEXT).strip() if steps else "") or full
    texts = {"shortDescription": task.title, "fullDescription": truncate(full, RULE_WORDS), "help": help_text}
    link = {"helpUri": help_text} if re.fullmatch(r"https?://[!-~]+", help_text) else {}
    described = {name: {"text": text} for name, text in texts.items()}
    return {"id": rule_id, **described, **link, "properties": {"tags": task.tags}}


def rules_of(rules: Mapping[str, Written]) -> list[Json]:
    """Return the rules of one tool component, each with the severity of its worst result."""
    described = []
    for rule in rules.values():
        severity = SEVERITIES[-rule.severity]
        properties = {**rule.descriptor.get("properties", {}), **score_of(severity)}
        level = {"level": LEVELS[severity]}
        described.append({**rule.descriptor, "defaultConfiguration": level, "properties": properties})
    return described


LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "none"}
SECURITY_SEVERITY = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.0"}


def score_of(severity: str) -> dict[str, str]:
    """Return the `security-severity` of a rule or result for code scanning; info has none."""
    return {"security-severity": SECURITY_SEVERITY[severity]} if severity in SECURITY_SEVERITY else {}


Where = tuple[str, int | None, int | None]  # a path or URI, its first and last line if known

LABELLED = re.compile(r"(?P<path>\S(?:[^:\n]|:(?!//))*):(?P<line>[1-9][0-9]{0,8})")
# Suffixes that identify a file name without folder and line: button.primary is a selector.
SUFFIXES = (
    "c|cc|cfg|cpp|cs|css|go|h|html?|ini|java|jsx?|json|kt|lock|md|mod|php|py|rb|rs|sh|sql|swift|tf|toml|tsx?|txt|vue|"
    "xml|ya?ml"
)
LOCATION = re.compile(
    rf"(?=.*(?:/|:[0-9]+\Z|\.(?:{SUFFIXES})\Z))(?!//|#|.*\[[0-9]+\])(?:\./)?"  # [1] occurs in XPaths
    r"(?P<path>(?:[A-Za-z]:(?=/))?[^\s:\"'<>|?*…]+)(?::(?P<line>[0-9]{1,9})(?::[0-9]+)?)?"
)


def where_of(task: Task, extensions: Json, evidence: Iterable[Evidence]) -> Where:
    """Return the place of a task, from extensions, location or evidence, else its target or project type.

    Code scanning requires a place. A column in the location is ignored, because a result's code is whole lines.
    """
    if file := word_in(extensions, "file"):
        return file, line_in(extensions, "line"), line_in(extensions, "endLine")
    if match := LOCATION.fullmatch((task.location or "").replace("\\", "/")):
        return match["path"], int(match["line"] or 0) or None, None
    for item in evidence:
        if match := LABELLED.fullmatch(item.label or ""):
            return match["path"], int(match["line"]), None
    return task.target_url or task.project_type, None, None


PATH_SIGNS = "/!$&'()*+,;=@~"  # not percent-encoded in a path; a colon is, as it might end a scheme


def uri_of(path: str) -> str:
    """Return the URI of a path (RFC 3986), relative if the path is relative.

    Code scanning shows only results with the scheme `file`, so an http address becomes a relative path.
    """
    if scheme := SCHEME.match(path):
        path = unquote(path[scheme.end() :].lstrip("/")) or path
    if drive := DRIVE.fullmatch(path):
        return f"file:///{quote(drive[1], safe=f'{PATH_SIGNS}:')}"
    quoted = quote(path, safe=PATH_SIGNS)
    if path.startswith("//"):
        return f"file:{quoted}"
    return f"file://{quoted}" if path.startswith("/") else quoted


def location_of(task: Task, extensions: Json) -> Json:
    """Return the SARIF location of a task, at line 1 if the line is unknown."""
    evidence = decoder(list[Evidence]).decode(cast(Any, task.evidence))
    path, line, end_line = where_of(task, extensions, evidence)
    region: Json = {"startLine": line or 1}
    if line and end_line and end_line >= line:
        region["endLine"] = end_line
    snippet = next((item.content for item in evidence if item.type == "code" and item.content), None)
    if snippet:
        region["snippet"] = {"text": snippet}
    return {"physicalLocation": {"artifactLocation": {"uri": uri_of(path)}, "region": region}}


# JSON names and attributes of the fields of a submitted task; the external id is written as a fingerprint.
SUBMITTED = dict(zip(TaskReport.__struct_encode_fields__, TaskReport.__struct_fields__, strict=True))
del SUBMITTED["externalId"], SUBMITTED["formerExternalIds"]


def result_of(item: exports.ListedTask, tools: Tools) -> Json:
    """Return a task as a SARIF result with all submitted fields except former ids, so that import restores it."""
    task = item.task
    assert isinstance(task, Task)  # noqa: S101 - `whole` requests tasks
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
        justification = ": ".join(filter(None, (task.reason, item.comment)))
        detail = {"justification": justification} if justification else {}
        result["suppressions"] = [{"kind": "external", "status": "accepted", **detail}]
    if item.known is not None:
        result["baselineState"] = "unchanged" if item.known else "new"
    result["properties"] = {
        "taskId": task.id,
        "targetUrl": task.target_url,
        **score_of(task.severity),
        "tags": task.tags,
        OURS: {name: getattr(task, field) for name, field in SUBMITTED.items()},
    }
    return result


SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def write_sarif(listed: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Yield the pieces of a SARIF document with one run: the tasks as results, then the tool with their rules."""
    tools = Tools()
    encoder = msgspec.json.Encoder()
    yield f'{{"$schema":"{SCHEMA}","version":"{VERSION}","runs":[{{"results":['.encode()
    for number, item in enumerate(listed):
        yield (b"," if number else b"") + encoder.encode(result_of(item, tools))
    yield b'],"tool":' + encoder.encode(tools.tool()) + b"}]}"
