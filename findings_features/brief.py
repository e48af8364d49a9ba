"""Known findings that an agent should read before it scans: `GET /api/v1/brief`.

A brief is read with queries over the indexes of tasks and sightings; nothing is stored for it. Adapters register
formats other than JSON with `add`.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

import findings_features.overview as overview
from findings_service import (
    BY_SEQ,
    DETAILS,
    NO_TARGET,
    REGISTRY,
    SEVERITY_NAME,
    ApiRequest,
    Connection,
    Export,
    MaybeSchema,
    Model,
    NonEmpty,
    ProjectType,
    ProjectTypeWithSchema,
    Reason,
    RequestModel,
    Row,
    Severity,
    Summary,
    TaskStatus,
    ThreadJob,
    UnknownProjectType,
    in_list_time,
    json_response,
    located,
    make_response,
    operation,
    require_registered,
    select_project_type,
    summary_of,
    truncate,
)


class ResolvedFinding(Model, gc=False):
    """A resolved finding. An agent that finds it again reports it under the same `externalId`."""

    external_id: str
    title: str
    rule: str | None
    location: str | None


class KnownFinding(ResolvedFinding, gc=False):
    """An open, in-progress or dismissed finding. `lastComment` is the latest on a status change, else the latest.

    `excerpt` is the first non-blank line of the content of its first evidence item, cut at 120 characters.
    """

    severity: Severity
    status: TaskStatus
    reason: Reason | None
    last_comment: str | None
    excerpt: str | None


class Brief(Model):
    """The known findings of a type and target, most severe first. `omitted` counts unresolved ones over the limit.

    `summary` counts all tasks of the type and target, including resolved ones and those without an `externalId`.
    """

    project_type: str
    target_url: str | None
    branch: str | None
    summary: Summary
    extension_schema: MaybeSchema
    resolved: list[ResolvedFinding]
    tasks: list[KnownFinding]
    omitted: int


class BriefQuery(RequestModel):
    """Query parameters of a brief: what the agent will examine."""

    project_type: Annotated[NonEmpty, Meta(description="A registered project type.")]
    target_url: (
        Annotated[NonEmpty, Meta(description="The target, exactly as stored. Without it: findings without a target.")]
        | None
    ) = None
    branch: (
        Annotated[
            NonEmpty,
            Meta(description="Add findings of this branch's runs. Without it: only findings of the main line."),
        ]
        | None
    ) = None
    location: (
        Annotated[NonEmpty, Meta(description="Only findings at this location; `summary` still counts all.")] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=200, description="The maximum size of `tasks`, and of `resolved`.")] = 50


EXCERPT_LENGTH = 120
# The JSON of the first evidence item from its member "content" on, long enough for an excerpt of escaped characters.
# Quotes inside a text are escaped, so only a member's name matches. Every item has this member, which may be null.
CONTENT = """substr(task_details.evidence, instr(task_details.evidence, '"content":'), 1000)"""
WHOLE_CHARACTERS = re.compile(r'"content":("(?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*)')  # without an escape that is cut in two


def excerpt_of(content: str | None) -> str | None:
    """Return the first non-blank line of a text, cut, or None. :param content: what `CONTENT` selected."""
    match = WHOLE_CHARACTERS.match(content or "")
    lines = msgspec.json.decode(f'{match[1]}"', type=str).splitlines() if match else []
    return next((truncate(line, EXCERPT_LENGTH) for line in lines if line.strip()), None)


IN_BRIEF = """tasks.external_id IS NOT NULL AND tasks.status IN ('open', 'in_progress', 'dismissed')"""
RESOLVED = "tasks.external_id IS NOT NULL AND tasks.status = 'resolved'"
ORDER = "ORDER BY tasks.severity DESC, tasks.last_seen_at DESC, tasks.seq DESC"
# Findings with the columns and in the order of a brief.
LISTED = f"""SELECT tasks.external_id, tasks.title, tasks.rule, tasks.location, {SEVERITY_NAME}, tasks.status,
        tasks.reason, (
        SELECT comment FROM history WHERE history.client_id = tasks.client_id
            AND history.task_seq = tasks.seq AND comment IS NOT NULL AND event IN ('status', 'comment')
             ORDER BY event DESC, history.seq DESC LIMIT 1),
        {CONTENT}
    FROM tasks {DETAILS}
    WHERE {BY_SEQ} {ORDER}"""


def select_brief(
    connection: Connection, client_id: str, project_type: ProjectTypeWithSchema, query: BriefQuery
) -> Brief:
    """Return the brief of a type and target: most severe findings first; of equal severity, those seen last first."""
    scope = client_id, query.project_type, query.target_url or NO_TARGET
    lines = [(overview.Known(*scope), "")]
    if query.branch:  # without the main line's findings, which are in the first entry
        lines.append((overview.Known(*scope, query.branch), "AND tasks.branch <> ''"))
    at_location, values = located(query.location) if query.location else ("1 = 1", ())
    counts, ranked, matching = list[Row](), list[Row](), 0
    resolved = list[Row]()
    for known, condition in lines:
        counts += known.select(connection, "tasks.status, tasks.severity, COUNT(*)", f"{condition} GROUP BY 1, 2")
        columns = "COUNT(*) OVER (), tasks.severity, tasks.last_seen_at, tasks.seq"
        rows = known.select(
            connection, columns, f"{condition} AND {IN_BRIEF} AND {at_location} {ORDER} LIMIT ?", *values, query.limit
        )
        matching += rows[0][0] if rows else 0
        ranked += [row[1:] for row in rows]
        columns = "tasks.severity, tasks.seq, tasks.external_id, tasks.title, tasks.rule, tasks.location"
        order = "ORDER BY tasks.severity DESC, tasks.seq DESC LIMIT ?"
        resolved += known.select(
            connection, columns, f"{condition} AND {RESOLVED} AND {at_location} {order}", *values, query.limit
        )
    seqs = [seq for *_, seq in heapq.nlargest(query.limit, ranked)]
    findings = connection.execute(LISTED, (client_id, json.dumps(seqs)))
    return Brief(
        project_type=query.project_type,
        target_url=query.target_url,
        branch=query.branch,
        summary=summary_of(counts),
        extension_schema=project_type.extension_schema,
        resolved=[ResolvedFinding(*row[2:]) for row in heapq.nlargest(query.limit, resolved)],
        tasks=[KnownFinding(*(*fields, excerpt_of(content))) for *fields, content in findings],
        omitted=matching - len(seqs),
    )


EXPORTS: dict[str, Export] = {}  # by media type; adapters register theirs with `add`


def read_brief(request: ApiRequest, connection: Connection) -> tuple[Brief, ProjectType]:
    """Return the requested brief and its project type. :raises UnknownProjectType: if that is not registered."""
    with in_list_time(connection):
        require_registered(connection, request.client_id, request.query.project_type, parameter="projectType")
        project_type = select_project_type(connection, request.client_id, request.query.project_type)
        return select_brief(connection, request.client_id, project_type, request.query), project_type


@operation(
    "GET", "/api/v1/brief", "read", {200: Brief}, query=BriefQuery, exports=EXPORTS, refusals=(UnknownProjectType,)
)
def get_brief(request: ApiRequest) -> ThreadJob:
    """Get the known findings and the extension schema that an agent needs before it scans."""
    return request.read_slowly(lambda connection: json_response(200, read_brief(request, connection)[0]))


def add(media_type: str, write: Callable[[Brief, ProjectType], bytes]) -> None:
    """Register a format of briefs. `write` gets a brief and its project type, and returns the encoded brief."""

    def export(request: ApiRequest) -> ThreadJob:
        kind = f"{media_type}; charset=utf-8"
        return request.read_slowly(lambda connection: make_response(200, write(*read_brief(request, connection)), kind))

    EXPORTS[media_type] = Export(answer=export)


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_brief)
