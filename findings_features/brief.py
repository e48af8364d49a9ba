"""What an agent should know before it scans: `GET /api/v1/brief`, the worst of what is known already.

A brief is made of queries over the indexes of tasks and sightings, and stores nothing. Adapters add other forms than
JSON by `add`.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable
from typing import Annotated, Any

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
    """A finding that was resolved; if it is there again, it is reported under the same `externalId`."""

    external_id: str
    title: str
    rule: str | None
    location: str | None


class KnownFinding(ResolvedFinding, gc=False):
    """A known finding; `lastComment` is the latest comment of a change of its status, else the latest comment.

    `excerpt` is the first line of its first evidence's content that is not blank, at most 120 characters of it.
    """

    severity: Severity
    status: TaskStatus
    reason: Reason | None
    last_comment: str | None
    excerpt: str | None


class Brief(Model):
    """The known findings of a type and target, most severe first, and how many more there are.

    `summary` counts all tasks of the type and target, also resolved ones and those without an externalId.
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
    """What an agent is about to examine."""

    project_type: Annotated[NonEmpty, Meta(description="A registered project type.")]
    target_url: (
        Annotated[NonEmpty, Meta(description="The target, exactly as stored. Without it, findings that have none.")]
        | None
    ) = None
    branch: (
        Annotated[
            NonEmpty,
            Meta(description="Also what runs of this branch reported. Without it, the main line's alone."),
        ]
        | None
    ) = None
    location: (
        Annotated[NonEmpty, Meta(description="Findings there, as in a list of tasks; `summary` counts all.")] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=200, description="Findings in `tasks`, and in `resolved`.")] = 50


EXCERPT_LENGTH = 120
# The content of a task's first evidence from its name on, as much as an excerpt needs even where each sign of it is
# escaped. A quote inside a text is escaped, so it is the name; the first evidence has it, be it null, as all have.
CONTENT = """substr(task_details.evidence, instr(task_details.evidence, '"content":'), 1000)"""
WHOLE_SIGNS = re.compile(r'"content":("(?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*)')  # the last may be cut in two


def excerpt_of(content: str | None) -> str | None:
    """Return the first line that is not blank of what CONTENT found, None where there is none."""
    signs = WHOLE_SIGNS.match(content or "")
    lines = msgspec.json.decode(f'{signs[1]}"', type=str).splitlines() if signs else []
    return next((truncate(line, EXCERPT_LENGTH) for line in lines if line.strip()), None)


IN_BRIEF = """tasks.external_id IS NOT NULL AND tasks.status IN ('open', 'in_progress', 'dismissed')"""
RESOLVED = "tasks.external_id IS NOT NULL AND tasks.status = 'resolved'"
ORDER = "ORDER BY tasks.severity DESC, tasks.last_seen_at DESC, tasks.seq DESC"
# Findings as a brief lists them, and in its order.
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
    """Return what is known of a type and target: the worst first, of those what was seen last, then the newest."""
    place = client_id, query.project_type, query.target_url or NO_TARGET
    lines = [(overview.Known(*place), "")]
    if query.branch:  # what the main line knows, too, is there already
        lines.append((overview.Known(*place, query.branch), "AND tasks.branch <> ''"))
    there, values = located(query.location) if query.location else ("1 = 1", ())
    counted, places, listed = list[tuple[Any, ...]](), list[tuple[Any, ...]](), 0
    resolved = list[tuple[Any, ...]]()
    for known, condition in lines:
        counted += known.select(connection, "tasks.status, tasks.severity, COUNT(*)", f"{condition} GROUP BY 1, 2")
        columns = "COUNT(*) OVER (), tasks.severity, tasks.last_seen_at, tasks.seq"
        rows = known.select(
            connection, columns, f"{condition} AND {IN_BRIEF} AND {there} {ORDER} LIMIT ?", *values, query.limit
        )
        listed += rows[0][0] if rows else 0
        places += [row[1:] for row in rows]
        columns = "tasks.severity, tasks.seq, tasks.external_id, tasks.title, tasks.rule, tasks.location"
        order = "ORDER BY tasks.severity DESC, tasks.seq DESC LIMIT ?"
        resolved += known.select(
            connection, columns, f"{condition} AND {RESOLVED} AND {there} {order}", *values, query.limit
        )
    seqs = [seq for *_, seq in heapq.nlargest(query.limit, places)]
    findings = connection.execute(LISTED, (client_id, json.dumps(seqs)))
    return Brief(
        project_type=query.project_type,
        target_url=query.target_url,
        branch=query.branch,
        summary=summary_of(counted),
        extension_schema=project_type.extension_schema,
        resolved=[ResolvedFinding(*row[2:]) for row in heapq.nlargest(query.limit, resolved)],
        tasks=[KnownFinding(*(*known, excerpt_of(content))) for *known, content in findings],
        omitted=listed - len(seqs),
    )


EXPORTS: dict[str, Export] = {}  # by media type; adapters add theirs by `add`


def read_brief(request: ApiRequest, connection: Connection) -> tuple[Brief, ProjectType]:
    """Return what a request asks for, and what the project type is. :raises UnknownProjectType: where it is none."""
    with in_list_time(connection):
        require_registered(connection, request.client_id, request.query.project_type, parameter="projectType")
        project_type = select_project_type(connection, request.client_id, request.query.project_type)
        return select_brief(connection, request.client_id, project_type, request.query), project_type


@operation(
    "GET",
    "/api/v1/brief",
    "read",
    {200: Brief},
    query=BriefQuery,
    exports=EXPORTS,
    refusals=(UnknownProjectType,),
)
def get_brief(request: ApiRequest) -> ThreadJob:
    """Get what an agent should know before it scans: what is known already, and what extensions must be like."""
    return request.read_slowly(lambda connection: json_response(200, read_brief(request, connection)[0]))


def add(media_type: str, write: Callable[[Brief, ProjectType], bytes]) -> None:
    """Have briefs go out in a form, too, in which `write` writes one, with what its project type is."""

    def export(request: ApiRequest) -> ThreadJob:
        kind = f"{media_type}; charset=utf-8"
        return request.read_slowly(lambda connection: make_response(200, write(*read_brief(request, connection)), kind))

    EXPORTS[media_type] = Export(answer=export)


def register() -> None:
    """Have briefs answered."""
    REGISTRY.add_operations(get_brief)
