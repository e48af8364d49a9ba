"""The MCP tools: operations of the API, with the names, descriptions and argument schemas that a model reads.

All of these texts use up a model's context, even if it calls no tool. Therefore a schema has only names, types and the
hints that prevent mistakes. The service validates with its own schemas and reports each problem. Results have no
output schema, because they are self-explanatory and the protocol does not require one for structured content
(https://modelcontextprotocol.io/specification/2026-07-28/server/tools).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mcp_types as types
import regex
from msgspec import Struct

from findings_client import Json, to_camel_case
from findings_service import API, COMPONENTS, REGISTRY, Operation, schemas_of


class Tool(Struct, frozen=True):
    """An MCP tool: an operation of the API that agents may call, its description (`words`) and its effects."""

    name: str
    path: str  # below /api/v1
    words: str
    method: str = "GET"
    destroys: bool = False  # changes or replaces stored data, instead of only adding to it
    repeats: bool = False  # is idempotent
    limit: int | None = None  # default page size, if the API's default is too long for an agent

    @property
    def operation(self) -> Operation:
        """The operation of the service that the tool calls."""
        return REGISTRY.operations[self.method, f"{API}/{self.path}"]

    @property
    def reads(self) -> bool:
        """Whether the tool only reads."""
        return self.method == "GET"

    @property
    def has_query(self) -> bool:
        """Whether the arguments that are not in the path are query parameters; otherwise they are a body."""
        return self.method in ("GET", "DELETE")

    @property
    def ids(self) -> Sequence[str]:
        """The names of the path's parameters, such as `run_id`."""
        return regex.findall(r"\{(\w+)\}", self.path)

    @property
    def model(self) -> Any:
        """The model of the arguments that are not in the path: of the query, or of the body (a submission's batch)."""
        body = self.operation.body
        return self.operation.query if self.has_query else body[0] if isinstance(body, tuple) else body


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "read_brief",
            "brief",
            "Call this before you examine a target: its open and dismissed findings, with externalIds, locations and"
            " reasons for dismissal, and the JSON Schema for extensions.",
        ),
        Tool(
            "register_project_type",
            "project-types",
            "Register a project type before its first run. The same definition again changes nothing; a different"
            " one with the same name is rejected.",
            method="POST",
            repeats=True,
        ),
        Tool(
            "start_run",
            "runs",
            "Start a run: one examination of one target. Follow the warnings in the result.",
            method="POST",
        ),
        Tool(
            "submit_findings",
            "runs/{run_id}/tasks",
            "Submit up to 1,000 findings to a run; all are stored or none. A finding with a known externalId is"
            " updated, and reopened if it was resolved; dismissed findings stay dismissed. With externalIds,"
            " repeating a call is safe. Follow the warnings in the result.",
            method="POST",
            destroys=True,  # a newer report replaces the text of an older one
        ),
        Tool(
            "finish_run",
            "runs/{run_id}",
            "Finish a run; it then takes no more findings.",
            method="PATCH",
            destroys=True,  # `resolveMissing` resolves findings
            repeats=True,
        ),
        Tool(
            "check_gate",
            "runs/{run_id}/gate",
            "Check whether a finished run passes, and list the new, severe findings that fail it.",
        ),
        Tool(
            "list_findings",
            "tasks",
            "List or search findings (called tasks in results), without their bulky fields.",
            limit=20,
        ),
        Tool(
            "read_finding",
            "tasks/{task_id}",
            "Read a finding with all fields: also evidence, remediation and success criteria.",
        ),
        Tool(
            "read_history",
            "tasks/{task_id}/history",
            "Read the history of a finding, oldest first: who decided what, and why.",
            limit=100,
        ),
        Tool(
            "claim_findings",
            "tasks/claim",
            "Claim open findings to fix, worst first: no other agent gets them until the claim runs out. For each,"
            " read and fix it, then call verify_fix, propose_decision or release_finding.",
            method="POST",
        ),
        Tool(
            "verify_fix",
            "tasks/{task_id}/verifications",
            "Run the check that found a finding again, and report its outcome with proof. `fixed` with `claim` ends the"
            " claim; the finding stays in progress until a run or a person resolves it.",
            method="POST",
        ),
        Tool(
            "propose_decision",
            "tasks/{task_id}/proposal",
            "Propose that people dismiss or resolve a finding that you should not fix: a false positive, a duplicate."
            " Until they decide, nothing else changes.",
            method="PUT",
            destroys=True,  # replaces an earlier proposal
            repeats=True,
        ),
        Tool(
            "release_finding",
            "claims/{claim_id}",
            "Give back claimed findings that you could not fix; they are open again.",
            method="DELETE",
            repeats=True,
        ),
        Tool(
            "triage_finding",
            "tasks/{task_id}",
            "Triage a finding: set its status and reason, severity or assignee, or comment on it. Everyone sees the"
            " change.",
            method="PATCH",
            destroys=True,
        ),
    )
}

# Names in the API (members, parameters, a header) whose tool argument has a different name.
ARGUMENTS = {"tasks": "findings", "after": "next", "Idempotency-Key": "idempotencyKey"}

NEXT = "The `next` of a result, unchanged. It contains the other arguments, except ids."
REQUEST_KEY = "Your own; repeat a lost call with it."
TARGET = "Exactly as stored."
ORIGINAL = "With reason duplicate: the other finding's id."

# Descriptions of arguments, where the name and the type are not enough.
MEANINGS = {
    "run_id": "A run's id from start_run.",
    "task_id": "A finding's id.",
    "claim_id": "A claim's id from claim_findings.",
    "BriefQuery.targetUrl": f"{TARGET} If omitted: findings without a target.",
    "BriefQuery.branch": "Include this branch's findings.",
    "RunStart.projectType": "A registered project type.",
    "RunStart.targetUrl": "The examined site or repository, a part of findings' identity: the same in every run.",
    "RunStart.branch": "Omit it for the main line.",
    "RunStart.metadata": "Such as commit, model, versions.",
    "RunUpdate.statusReason": "Why it failed, in one sentence.",
    "RunUpdate.resolveMissing": "Only with completed, and only if the run examined the whole target: resolve its"
    " findings that the run did not report.",
    "TaskReport.externalId": "Your id of the finding, the same in every run: from rule and place, not from wording or"
    " line numbers. Default: computed from rule and location.",
    "TaskReport.status": "Only for a new finding; default open.",
    "TaskReport.extensions": "Must match the extensionSchema of the project type.",
    "TaskReport.evidence": "Each item needs a label, url or content.",
    "TaskReport.rule": "Id of the broken rule: S101, 1.4.3.",
    "TaskReport.location": "Where it is: src/app.py:42, a URL, a selector.",
    "TaskReport.tags": "Other labels to search by.",
    "TaskBatch.tasks": "An empty list if you found nothing.",
    "GateQuery.failOn": "The lowest severity that fails the run.",
    "GateQuery.only": "`new`: only what the baseline did not report.",
    "GateQuery.baseline": "A completed run; default: the main line's latest before this one.",
    "TaskQuery.after": NEXT,
    "TaskQuery.targetUrl": TARGET,
    "TaskQuery.mainLine": "`false`: reported only on branches.",
    "TaskQuery.rule": "Any of these.",
    "TaskQuery.location": "This location and below: src and src/app.py match src/app.py:42.",
    "TaskQuery.tag": "Any of these.",
    "TaskQuery.without": "Findings without this field.",
    "TaskQuery.newIn": "A run: what it reported and its main-line baseline did not.",
    "TaskQuery.missingFrom": "A run: unfinished findings of its target that it did not report.",
    "TaskQuery.assigned": "`true`: has any assignee.",
    "TaskQuery.createdSince": "A date or time (ISO 8601).",
    "TaskQuery.q": "Words, each in title, externalId, rule, location, a tag or an evidence label.",
    "TaskQuery.view": "`full` adds the bulky fields.",
    "HistoryQuery.after": NEXT,
    "TaskUpdate.reason": "Only with status resolved or dismissed.",
    "TaskUpdate.assignee": 'Who works on it; "" for no one.',
    "TaskUpdate.severity": "Overrides the reported one; `reported` ends that.",
    "TaskUpdate.until": 'When a dismissal ends (ISO 8601); "" for never.',
    "TaskUpdate.duplicateOf": ORIGINAL,
    "TaskUpdate.links": "Replaces all.",
    "Link.rel": "pull_request, commit, issue.",
    "ClaimRequest.targetUrl": TARGET,
    "ClaimRequest.branch": "Default: the main line.",
    "ClaimRequest.location": "This location and below.",
    "ClaimRequest.limit": "Default 1.",
    "ClaimRequest.seconds": "Default 1800; then others may claim them.",
    "ReleaseQuery.task": "Default: all of the claim.",
    "VerificationRequest.claim": "Your claim's id; send it with the last criterion.",
    "VerificationRequest.criterion": "A success criterion, word for word.",
    "VerificationRequest.evidence": "Proof, unless in a comment: the diff, the check's output.",
    "ProposalRequest.until": "When a dismissal ends (ISO 8601).",
    "ProposalRequest.duplicateOf": ORIGINAL,
    "ProjectTypeDefinition.name": "Letters, digits, '.', '_' and '-'.",
    "ProjectTypeDefinition.extensionSchema": "A JSON Schema for findings' extensions; omit it to allow any.",
}

# Schema keywords that a tool's schema includes.
KEYWORDS = ("type", "enum", "items", "properties", "required", "minimum", "maximum", "default")


def slim(schema: Json) -> Json:
    """Return a schema with only `KEYWORDS`, without `$ref`, and with descriptions of members from `MEANINGS`.

    Some clients cannot resolve `$ref`. A nullable type becomes the plain type, because an argument can be omitted.
    """
    schema = schema | next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), {})
    if name := schema.get("$ref", "").removeprefix(COMPONENTS):
        whole = slim(components()[name] | {"default": schema.get("default")})
        for member, each in whole.get("properties", {}).items():
            if meaning := MEANINGS.get(f"{name}.{member}"):
                each["description"] = meaning
        return whole
    shown = {key: schema[key] for key in KEYWORDS if schema.get(key) not in (None, [], {})}
    if isinstance(shown.get("type"), list):
        shown["type"] = next(each for each in shown["type"] if each != "null")
    if "enum" in shown:
        shown["type"] = "string"  # every enum here has strings, and some clients require the type
    if "items" in shown:
        shown["items"] = slim(shown["items"])
    if "properties" in shown:
        shown["properties"] = {name: slim(each) for name, each in shown["properties"].items()}
    return shown


@cache
def components() -> Json:
    """Return the schemas of all models of tool arguments, by name."""
    return schemas_of({tool.model for tool in TOOLS.values()})[1]


@cache
def input_schema(tool: Tool) -> Json:
    """Return the JSON Schema of a tool's arguments."""
    schema = slim({"$ref": COMPONENTS + tool.model.__name__})
    properties: Json = {to_camel_case(each): {"type": "string", "description": MEANINGS[each]} for each in tool.ids}
    taken = schema.get("properties", {})
    properties |= {ARGUMENTS.get(each, each): shown for each, shown in taken.items() if each != "page"}
    if tool.limit:
        properties["limit"]["default"] = tool.limit
    if tool.method == "POST":
        properties["idempotencyKey"] = {"type": "string", "description": REQUEST_KEY}
    required = [*map(to_camel_case, tool.ids), *(ARGUMENTS.get(each, each) for each in schema.get("required", ()))]
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    return whole | ({"required": required} if required else {})


@cache
def describe(tool: Tool) -> types.Tool:
    """Return a tool in MCP's form: name, description, argument schema and hints about its effects.

    Hints that the protocol defaults to, or ignores for a tool that only reads, are left out.
    """
    hints = types.ToolAnnotations(
        read_only_hint=tool.reads or None,
        destructive_hint=None if tool.reads else tool.destroys,
        idempotent_hint=tool.repeats or None,
        open_world_hint=False,
    )
    return types.Tool(name=tool.name, description=tool.words, input_schema=input_schema(tool), annotations=hints)
