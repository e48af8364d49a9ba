"""The tools: operations of the API under names that say what they do, and what a model is told of them.

Every word of this stands in a model's context, whether it calls a tool or not. So a schema has names, types and what
keeps from mistakes; the service judges by its own schemas, and tells of each rule that is broken. What tools answer
explains itself, and has no schema (https://modelcontextprotocol.io/specification/2026-07-28/server/tools: structured
content wants none).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mcp_types as types
import regex
from msgspec import Struct

from findings_client import Json, in_camel_case
from findings_service import (
    API,
    COMPONENTS,
    REGISTRY,
    Operation,
    schemas_of,
)


class Tool(Struct, frozen=True):
    """An operation that agents may call, and what it does beside reading."""

    name: str
    path: str  # below /api/v1
    words: str
    method: str = "GET"
    destroys: bool = False  # also changes what is there, rather than only adding to it
    repeats: bool = False  # the same call again changes nothing more
    limit: int | None = None  # of a list, where its own default is long for an agent

    @property
    def operation(self) -> Operation:
        """The operation of the service."""
        return REGISTRY.operations[self.method, f"{API}/{self.path}"]

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"

    @property
    def ids(self) -> Sequence[str]:
        """The arguments that stand in the path, as the path calls them."""
        return regex.findall(r"\{(\w+)\}", self.path)

    @property
    def model(self) -> Any:
        """The model of all other arguments; of a submission, that of several findings."""
        body = self.operation.body
        return self.operation.query if self.reads else body[0] if isinstance(body, tuple) else body


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "read_brief",
            "brief",
            "Read what is known before you examine a target: its open and dismissed findings with their"
            " externalIds, where they are and why they were dismissed, and the schema that extensions must fit.",
        ),
        Tool(
            "register_project_type",
            "project-types",
            "Register a project type, once, before the first run of it. The same definition again changes"
            " nothing; another one under the same name is refused.",
            method="POST",
            repeats=True,
        ),
        Tool(
            "start_run",
            "runs",
            "Start a run: one examination of one target. Its answer has the id that findings are submitted to,"
            " and warnings where the target is nearly one that is known.",
            method="POST",
        ),
        Tool(
            "submit_findings",
            "runs/{run_id}/tasks",
            "Submit findings to a run, up to 1,000 at once, all or none. A finding that is known by its"
            " externalId is updated, and reopened if it was resolved; what people dismissed stays dismissed. With"
            " externalIds the same call again is safe. Heed the warnings of the answer.",
            method="POST",
            destroys=True,  # an older report's text gives way to the newer one's
        ),
        Tool(
            "finish_run",
            "runs/{run_id}",
            "Finish a run, for good: nothing more can be submitted to it.",
            method="PATCH",
            destroys=True,  # `resolveMissing` resolves findings
            repeats=True,
        ),
        Tool(
            "check_gate",
            "runs/{run_id}/gate",
            "Tell whether a finished run passes, and which findings stop it: the new and severe ones.",
        ),
        Tool(
            "list_findings",
            "tasks",
            "List or search findings (answers call them tasks), without their bulky fields.",
            limit=20,
        ),
        Tool(
            "read_finding",
            "tasks/{task_id}",
            "Read a whole finding: evidence, remediation and success criteria too.",
        ),
        Tool(
            "read_history",
            "tasks/{task_id}/history",
            "Read what happened to a finding, oldest first: who decided what, and why.",
            limit=100,
        ),
        Tool(
            "triage_finding",
            "tasks/{task_id}",
            "Decide about a finding: give it a status and a reason, assign it, or comment on it. Everybody sees"
            " the decision, and the history keeps it.",
            method="PATCH",
            destroys=True,
        ),
    )
}

# What arguments are called otherwise than in the API: members and parameters, and a header.
ARGUMENTS = {"tasks": "findings", "after": "next", "Idempotency-Key": "idempotencyKey"}

NEXT = "The `next` of an answer, as it is, for what comes behind it. It holds the other arguments, but for the ids."
REPEATABLE = "A key of your own making; repeat it to ask again after a lost answer, and the call is done once."
TARGET = "Exactly as it is known."

# What a model should know of an argument beyond its name and type.
MEANINGS = {
    "run_id": "The id of a run, as start_run answered it.",
    "task_id": "The id of a finding, as submit_findings and list_findings answer it.",
    "BriefQuery.targetUrl": f"{TARGET} Without it, findings that have none.",
    "BriefQuery.branch": "Also what runs of this branch reported.",
    "BriefQuery.limit": "Findings that are listed.",
    "RunStart.projectType": "The name of a registered project type.",
    "RunStart.targetUrl": "What is examined, a site or a repository. With the project type it tells findings of"
    " one target from those of another: use the same one every night.",
    "RunStart.branch": "The branch; leave it out for the main line.",
    "RunStart.metadata": "What else to remember of the run: commit, model, versions.",
    "RunUpdate.statusReason": "Why it failed, or anything else in one sentence.",
    "RunUpdate.resolveMissing": "With completed only: resolve the findings of this target that have an externalId and"
    " that this run did not report. Only for a run that looked at everything.",
    "TaskReport.externalId": "Your own id of the finding, the same every night: made of the rule and the place, not"
    " of wording or line numbers. Without it every submission makes a new finding.",
    "TaskReport.status": "Leave it out, and it is open; it counts for a new finding only.",
    "TaskReport.extensions": "What the extensionSchema of the project type asks for.",
    "TaskReport.evidence": "Each with a label, a url or a content.",
    "TaskReport.rule": "What it breaks, by its own name: S101, 1.4.3.",
    "TaskReport.location": "Where it is: src/app.py:42, an address, a selector.",
    "TaskReport.tags": "What else to find it by.",
    "TaskBatch.tasks": "An empty list says that nothing was found.",
    "GateQuery.failOn": "The lowest severity that stops the run.",
    "GateQuery.only": "`new`: what the baseline did not report.",
    "GateQuery.baseline": "A completed run; without it, the main line's latest before this one.",
    "TaskQuery.after": NEXT,
    "TaskQuery.targetUrl": TARGET,
    "TaskQuery.mainLine": "`false`: what only branches know.",
    "TaskQuery.rule": "Any of these rules.",
    "TaskQuery.location": "There, and below it: src/app.py finds src/app.py:42, and so does src.",
    "TaskQuery.tag": "Any of these tags.",
    "TaskQuery.without": "Those that have none.",
    "TaskQuery.newIn": "A run: what it reported, and the completed run of the main line before it did not.",
    "TaskQuery.missingFrom": "A run: the open and in-progress findings of its target that it did not report.",
    "TaskQuery.assigned": "`true`: to anybody.",
    "TaskQuery.createdSince": "A day or a time (ISO 8601).",
    "TaskQuery.q": "Words, each somewhere in the title, externalId, rule, location, a tag or a label of the evidence.",
    "TaskQuery.view": "`full` adds the bulky fields.",
    "HistoryQuery.after": NEXT,
    "TaskUpdate.reason": "Goes with the statuses resolved and dismissed.",
    "TaskUpdate.assignee": 'Who works on it; "" for nobody.',
    "ProjectTypeDefinition.name": "Letters, digits, '.', '_' and '-'.",
    "ProjectTypeDefinition.extensionSchema": "A JSON Schema for the extensions of findings; leave it out to admit all.",
}

# Keywords of a schema that a tool shows.
TOLD = ("type", "enum", "items", "properties", "required", "minimum", "maximum", "default", "additionalProperties")


def slim(schema: Json) -> Json:
    """Return a schema as a model is told of it: whole in itself, for clients that know no references.

    Its members have their meanings, and what may be null is left out instead.
    """
    schema = schema | next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), {})
    if name := schema.get("$ref", "").removeprefix(COMPONENTS):
        whole = slim(components()[name] | {"default": schema.get("default")})
        for member, each in whole.get("properties", {}).items():
            if meaning := MEANINGS.get(f"{name}.{member}"):
                each["description"] = meaning
        return whole
    told = {key: schema[key] for key in TOLD if schema.get(key) not in (None, [], {})}
    if isinstance(told.get("type"), list):
        told["type"] = next(each for each in told["type"] if each != "null")
    if "enum" in told:
        told["type"] = "string"  # all are, and some clients refuse an enum that does not say so
    if "items" in told:
        told["items"] = slim(told["items"])
    if "properties" in told:
        told["properties"] = {name: slim(each) for name, each in told["properties"].items()}
    return told


@cache
def components() -> Json:
    """Return the schemas of all models that tools take."""
    return schemas_of({tool.model for tool in TOOLS.values()})[1]


@cache
def input_schema(tool: Tool) -> Json:
    """Return the JSON Schema of a tool's arguments."""
    schema = slim({"$ref": COMPONENTS + tool.model.__name__})
    properties: Json = {in_camel_case(each): {"type": "string", "description": MEANINGS[each]} for each in tool.ids}
    taken = schema.get("properties", {})
    properties |= {ARGUMENTS.get(each, each): told for each, told in taken.items() if each != "page"}
    if tool.limit:
        properties["limit"]["default"] = tool.limit
    if tool.method == "POST":
        properties["idempotencyKey"] = {"type": "string", "description": REPEATABLE}
    required = [*map(in_camel_case, tool.ids), *(ARGUMENTS.get(each, each) for each in schema.get("required", ()))]
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    return whole | ({"required": required} if required else {})


@cache
def told_tool(tool: Tool) -> types.Tool:
    """Return a tool as clients are told of it."""
    hints = types.ToolAnnotations(
        read_only_hint=tool.reads,
        destructive_hint=tool.destroys,
        idempotent_hint=tool.reads or tool.repeats,
        open_world_hint=False,
    )
    return types.Tool(name=tool.name, description=tool.words, input_schema=input_schema(tool), annotations=hints)
