"""What happened, in the order in which it was stored: `GET /api/v1/events`, which a program follows.

The history of tasks and runs is the feed: nothing is stored for it. A client's writers wait for each other, so that its
numbers in the history rise in the order of its commits, on PostgreSQL too: behind what was told nothing older ever
comes, and the feed lags behind nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from findings_service import (
    HEAD_COLUMNS,
    LISTED_SEQS,
    PATTERNS,
    RANKS,
    REGISTRY,
    RUN_COLUMNS,
    ApiRequest,
    CommaList,
    Condition,
    Connection,
    InvalidParameter,
    Model,
    NoComma,
    NonEmpty,
    Reason,
    RepeatedParam,
    RequestModel,
    Response,
    Run,
    Severity,
    TaskHead,
    TaskStatus,
    among,
    in_list_time,
    json_response,
    next_link,
    operation,
    run_model,
    take_items,
    task_head,
)

EventType = Literal[
    "finding.created",
    "finding.changed",
    "finding.reopened",
    "finding.status",
    "finding.assigned",
    "finding.commented",
    "run.started",
    "run.finished",
]


class Event(Model):
    """One entry of the history, with its task or its run as they stand now.

    `by` is the name of the key that did it, null where that was the clock. `branch` is that of the run in which it
    happened. What is about a finding has all fields but `run`.
    """

    id: str
    type: EventType
    at: str
    by: str | None
    user: str | None
    branch: str | None
    task: TaskHead | UnsetType = UNSET
    run: Run | UnsetType = UNSET
    run_id: str | UnsetType | None = UNSET
    from_: TaskStatus | UnsetType | None = field(name="from", default=UNSET)
    to: TaskStatus | UnsetType | None = UNSET
    reason: Reason | UnsetType | None = UNSET
    assignee: str | UnsetType | None = UNSET
    comment: str | UnsetType | None = UNSET
    changed: list[str] | UnsetType = UNSET


class Events(Model):
    """What happened, oldest first; `next` is the link to what comes behind it, now or later."""

    events: list[Event]
    next: str


CURSOR = r"^(latest|[0-9a-f]{16}-[0-9]{1,15})\Z"


class EventQuery(RequestModel):
    """Which events, and how long to wait for one."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Events on a page.")] = 100
    after: Annotated[str, Meta(pattern=CURSOR)] | None = None
    type: CommaList[EventType] | None = None
    project_type: CommaList[NoComma] | None = None
    target_url: Annotated[NonEmpty, Meta(description="What is of this target, exactly as stored.")] | None = None
    branch: RepeatedParam[NonEmpty] | None = None
    wait: Annotated[int, Meta(ge=0, le=30, description="Seconds to wait for an event, where there is none yet.")] = 0


EVENT_TYPE = """CASE history.event WHEN 'created' THEN 'finding.created' WHEN 'status' THEN 'finding.status'
    WHEN 'assigned' THEN 'finding.assigned' WHEN 'comment' THEN 'finding.commented'
    WHEN 'started' THEN 'run.started' WHEN 'finished' THEN 'run.finished'
    ELSE CASE COALESCE(history.to_status, '') WHEN '' THEN 'finding.changed' WHEN 'open' THEN 'finding.reopened'
        ELSE 'finding.status' END END"""


def wanted_events(query: EventQuery, min_severity: Severity | None = None) -> list[Condition]:
    """Return the conditions on history entries whose events a query asks for.

    :param min_severity: of events about findings; events about runs have no severity.
    """
    asked = {
        EVENT_TYPE: query.type,
        "COALESCE(tasks.project_type, runs.project_type)": query.project_type,
        "COALESCE(tasks.target_url, runs.target_url)": query.target_url and [query.target_url],
        "history.branch": query.branch,
    }
    conditions = [among(column, values) for column, values in asked.items() if values is not None]
    if min_severity is not None:
        rank = RANKS[min_severity]
        conditions.append(("COALESCE(tasks.severity, ?) >= ?", (rank, rank)))
    return conditions


def select_epoch(connection: Connection) -> str:
    """Return the epoch of the database."""
    return str(connection.execute("SELECT epoch FROM epochs").fetchone()[0])


def select_latest(connection: Connection, client_id: str) -> int:
    """Return the place behind all that has happened so far."""
    statement = "SELECT COALESCE(MAX(seq), 0) FROM history WHERE client_id = ?"
    return int(connection.execute(statement, (client_id,)).fetchone()[0])


LOOKED_AT = 2_000  # entries of which one page's are chosen, where not all are wanted


class EventPage(Struct, frozen=True):
    """Some events; `end` is the place up to which there are no others, and `goes_on` whether any may stand behind."""

    events: Iterator[Event]
    end: int
    goes_on: bool


def select_events(
    connection: Connection, client_id: str, behind: int, limit: int, wanted: Sequence[Condition]
) -> EventPage:
    """Return the first events behind a place in the history. Where a filter leaves few, only so many are looked at.

    :param connection: one that sees one moment.
    """
    most = LOOKED_AT if wanted else limit
    rows = connection.execute(
        "SELECT seq FROM history WHERE client_id = ? AND seq > ? ORDER BY seq LIMIT ?", (client_id, behind, most + 1)
    )
    seqs = [seq for (seq,) in rows]
    goes_on = len(seqs) > most
    end = max([behind, *seqs[:most]])
    if wanted:
        asked = " AND ".join(text for text, _ in wanted)
        rows = connection.execute(
            f"""SELECT history.seq FROM history
                LEFT JOIN tasks ON tasks.client_id = history.client_id AND tasks.seq = history.task_seq
                LEFT JOIN runs ON runs.client_id = history.client_id AND runs.seq = history.run_seq
                WHERE history.client_id = ? AND history.seq > ? AND history.seq <= ? AND {asked}
                ORDER BY history.seq LIMIT ?""",
            (client_id, behind, end, *(value for _, values in wanted for value in values), limit + 1),
        )
        seqs = [seq for (seq,) in rows]
        if len(seqs) > limit:
            goes_on, end = True, seqs[limit - 1]
    return EventPage(read_events(connection, client_id, seqs[:limit]), end, goes_on)


READ_AT_ONCE = 100  # events, whose runs have metadata of up to 64 KiB


def read_events(connection: Connection, client_id: str, seqs: Sequence[int]) -> Iterator[Event]:
    """Give the events of some entries of the history, which are there."""
    epoch = select_epoch(connection)
    for start in range(0, len(seqs), READ_AT_ONCE):
        listed = (client_id, json.dumps(seqs[start : start + READ_AT_ONCE]))
        entries = connection.execute(
            f"""SELECT seq, {EVENT_TYPE}, at, NULLIF(key_name, ''), user_name, NULLIF(branch, ''), task_seq, run_seq,
                    run_id, from_status, to_status, reason, assignee, comment, COALESCE(changed, '[]')
                FROM history WHERE (client_id = ?) IS TRUE AND seq {LISTED_SEQS} ORDER BY seq""",
            listed,
        ).fetchall()
        tasks = read_by_seq(connection, client_id, "tasks", HEAD_COLUMNS, (entry[6] for entry in entries))
        runs = read_by_seq(connection, client_id, "runs", RUN_COLUMNS, (entry[7] for entry in entries))
        for seq, kind, at, by, user, branch, task_seq, run_seq, *rest, changed in entries:
            entry = f"{epoch}-{seq}", kind, at, by, user, branch
            if run_seq is not None:
                yield Event(*entry, run=run_model(runs[run_seq]))
            else:
                yield Event(*entry, task_head(tasks[task_seq]), UNSET, *(*rest, json.loads(changed)))


def read_by_seq(
    connection: Connection, client_id: str, table: str, columns: str, seqs: Iterable[int | None]
) -> dict[int, Sequence[Any]]:
    """Return rows of a table by their seqs."""
    rows = connection.execute(
        f"""SELECT {table}.seq, {columns} FROM {table}
            WHERE ({table}.client_id = ?) IS TRUE AND {table}.seq {LISTED_SEQS}""",
        (client_id, json.dumps(sorted({seq for seq in seqs if seq is not None}))),
    )
    return {seq: row for seq, *row in rows}


def place_of(connection: Connection, client_id: str, after: str | None) -> int:
    """Return the place in the history that a cursor is, the beginning without one.

    :raises InvalidParameter: for one of another epoch.
    """
    if after is None:
        return 0
    if after == "latest":
        return select_latest(connection, client_id)
    epoch, _, seq = after.partition("-")
    if epoch != select_epoch(connection):
        detail = (
            "is of the time before this database was restored or copied, and what came after it may never have happened"
            " here; begin with after=latest, or without it from the oldest"
        )
        raise InvalidParameter("after", detail)
    return int(seq)


class LongPoll(Response, kw_only=True):
    """A response without events yet; a server that can wait calls `again` now and then until a moment."""

    until: float  # as time.monotonic has it
    again: Callable[[], Response]


@operation("GET", "/api/v1/events", "read", {200: Events}, query=EventQuery)
def get_events(request: ApiRequest) -> Response:
    """Get what happened, oldest first, or wait for it."""
    query: EventQuery = request.query
    until = time.monotonic() + query.wait
    wanted = wanted_events(query)

    def read(after: str | None) -> Response:
        with request.database.snapshot() as connection, in_list_time(connection):
            behind = place_of(connection, request.client_id, after)
            page = select_events(connection, request.client_id, behind, query.limit, wanted)
            taken = take_items(page.events, query.limit)
            end: str = taken.last.id if taken.more else f"{select_epoch(connection)}-{page.end}"
        answer = json_response(200, Events(taken.items, next_link(request, end)))
        if taken.items or page.goes_on:
            return answer

        def read_again() -> Response:
            request.service.authenticate(
                request.environ.get("HTTP_AUTHORIZATION", "")
            )  # it may have been revoked meanwhile
            return read(end)

        return LongPoll(answer.status, answer.headers, answer.body, until=until, again=read_again)

    return read(query.after)


def register() -> None:
    """Have it answered."""
    REGISTRY.add_operations(get_events)
    PATTERNS[CURSOR] = (
        "is not a valid cursor of the event feed; use the `next` link unchanged, or start with after=latest"
    )
