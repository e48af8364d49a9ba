"""Event feed for programs that follow all changes: `GET /api/v1/events`.

The feed is the history of tasks and runs, in the order of commits; nothing else is stored for it. Writers of one client
wait for each other, also on PostgreSQL. So the seqs of its history rise in the order of its commits: no entry appears
before one that was already returned, and the feed does not lag.
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
    "finding.severity",
    "finding.linked",
    "finding.claimed",
    "finding.released",
    "finding.verified",
    "finding.proposed",
    "finding.withdrawn",
    "run.started",
    "run.finished",
]


class Event(Model):
    """An entry of the history, with its task or run in the present state.

    `by` is the name of the key that caused it, null if the service did because of a timeout. `branch` is the branch of
    the run that caused it, else null. Events about findings have all fields except `run`. Events about runs have only
    `run` and the fields up to `branch`.
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
    """A page of events, oldest first; `next` is always the link to the events after them."""

    events: list[Event]
    next: str


CURSOR = r"^(latest|[0-9a-f]{16}-[0-9]{1,15})\Z"


class EventQuery(RequestModel):
    """Query parameters of the event feed: filters, page size, cursor and waiting time."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of events on a page.")] = 100
    after: Annotated[str, Meta(pattern=CURSOR)] | None = None
    type: CommaList[EventType] | None = None
    project_type: CommaList[NoComma] | None = None
    target_url: Annotated[NonEmpty, Meta(description="Events of this target, exactly as stored.")] | None = None
    branch: RepeatedParam[NonEmpty] | None = None
    wait: Annotated[int, Meta(ge=0, le=30, description="Seconds to wait for an event if there is none yet.")] = 0


EVENT_TYPE = """CASE history.event WHEN 'comment' THEN 'finding.commented'
    WHEN 'started' THEN 'run.started' WHEN 'finished' THEN 'run.finished'
    WHEN 'reported' THEN CASE COALESCE(history.to_status, '')
        WHEN '' THEN 'finding.changed' WHEN 'open' THEN 'finding.reopened' ELSE 'finding.status' END
    ELSE 'finding.' || history.event END"""


def wanted_events(query: EventQuery, min_severity: Severity | None = None) -> list[Condition]:
    """Return the conditions that select the history entries of the events that a query asks for.

    :param min_severity: the lowest severity of events about findings; events about runs always match.
    """
    filters = {
        EVENT_TYPE: query.type,
        "COALESCE(tasks.project_type, runs.project_type)": query.project_type,
        "COALESCE(tasks.target_url, runs.target_url)": query.target_url and [query.target_url],
        "history.branch": query.branch,
    }
    conditions = [among(column, values) for column, values in filters.items() if values is not None]
    if min_severity is not None:
        rank = RANKS[min_severity]
        conditions.append(("COALESCE(tasks.severity, ?) >= ?", (rank, rank)))
    return conditions


def select_epoch(connection: Connection) -> str:
    """Return the database's epoch, a random id that `restore` renews so that older event cursors are rejected."""
    return str(connection.execute("SELECT epoch FROM epochs").fetchone()[0])


def select_latest(connection: Connection, client_id: str) -> int:
    """Return the seq of the latest history entry of a client, 0 if there is none."""
    statement = "SELECT COALESCE(MAX(seq), 0) FROM history WHERE client_id = ?"
    return int(connection.execute(statement, (client_id,)).fetchone()[0])


EXAMINED_ENTRIES = 2_000  # history entries that are examined for a page with a filter


class EventPage(Struct, frozen=True):
    """A page of events. `end` is the last history seq that it covers, `goes_on` whether more events may follow."""

    events: Iterator[Event]
    end: int
    goes_on: bool


def select_events(
    connection: Connection, client_id: str, after: int, limit: int, wanted: Sequence[Condition]
) -> EventPage:
    """Return at most `limit` events after a history seq. A filter examines at most `EXAMINED_ENTRIES` entries.

    :param connection: one in a snapshot, from which the events are read as they are used.
    """
    examined = EXAMINED_ENTRIES if wanted else limit
    rows = connection.execute(
        "SELECT seq FROM history WHERE client_id = ? AND seq > ? ORDER BY seq LIMIT ?", (client_id, after, examined + 1)
    )
    seqs = [seq for (seq,) in rows]
    goes_on = len(seqs) > examined
    end = max([after, *seqs[:examined]])
    if wanted:
        condition = " AND ".join(text for text, _ in wanted)
        rows = connection.execute(
            f"""SELECT history.seq FROM history
                LEFT JOIN tasks ON tasks.client_id = history.client_id AND tasks.seq = history.task_seq
                LEFT JOIN runs ON runs.client_id = history.client_id AND runs.seq = history.run_seq
                WHERE history.client_id = ? AND history.seq > ? AND history.seq <= ? AND {condition}
                ORDER BY history.seq LIMIT ?""",
            (client_id, after, end, *(value for _, values in wanted for value in values), limit + 1),
        )
        seqs = [seq for (seq,) in rows]
        if len(seqs) > limit:
            goes_on, end = True, seqs[limit - 1]
    return EventPage(read_events(connection, client_id, seqs[:limit]), end, goes_on)


READ_AT_ONCE = 100  # events read at once; each run may have 64 KiB of metadata


def read_events(connection: Connection, client_id: str, seqs: Sequence[int]) -> Iterator[Event]:
    """Yield the events of history entries by their seqs, all of which must exist."""
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
        for seq, kind, at, by, user, branch, task_seq, run_seq, *details, changed in entries:
            entry = f"{epoch}-{seq}", kind, at, by, user, branch
            if run_seq is not None:
                yield Event(*entry, run=run_model(runs[run_seq]))
            else:
                yield Event(*entry, task_head(tasks[task_seq]), UNSET, *(*details, json.loads(changed)))


def read_by_seq(
    connection: Connection, client_id: str, table: str, columns: str, seqs: Iterable[int | None]
) -> dict[int, Sequence[Any]]:
    """Return columns of a client's rows in a table, as a mapping by seq. A None in `seqs` is skipped."""
    rows = connection.execute(
        f"""SELECT {table}.seq, {columns} FROM {table}
            WHERE ({table}.client_id = ?) IS TRUE AND {table}.seq {LISTED_SEQS}""",
        (client_id, json.dumps(sorted({seq for seq in seqs if seq is not None}))),
    )
    return {seq: row for seq, *row in rows}


def place_of(connection: Connection, client_id: str, after: str | None) -> int:
    """Return the history seq of a cursor: 0 without a cursor, the newest one for "latest".

    :raises InvalidParameter: if the cursor is from before the database was restored or copied.
    """
    if after is None:
        return 0
    if after == "latest":
        return select_latest(connection, client_id)
    epoch, _, seq = after.partition("-")
    if epoch != select_epoch(connection):
        detail = (
            "is a cursor from before this database was restored or copied, and later events of that time may be missing"
            " here; start with after=latest, or without `after` from the oldest event"
        )
        raise InvalidParameter("after", detail)
    return int(seq)


class LongPoll(Response, kw_only=True):
    """A response without events. A server that can wait calls `again` repeatedly until there are some."""

    until: float  # when to stop waiting, as a time of time.monotonic
    again: Callable[[], Response]


@operation("GET", "/api/v1/events", "read", {200: Events}, query=EventQuery)
def get_events(request: ApiRequest) -> Response:
    """Get events, oldest first, or wait for the next one."""
    query: EventQuery = request.query
    until = time.monotonic() + query.wait
    wanted = wanted_events(query)

    def read(after: str | None) -> Response:
        with request.database.snapshot() as connection, in_list_time(connection):
            position = place_of(connection, request.client_id, after)
            page = select_events(connection, request.client_id, position, query.limit, wanted)
            taken = take_items(page.events, query.limit)
            end: str = taken.last.id if taken.more else f"{select_epoch(connection)}-{page.end}"
        response = json_response(200, Events(taken.items, next_link(request, end)))
        if taken.items or page.goes_on:
            return response

        def read_again() -> Response:
            request.service.authenticate(
                request.environ.get("HTTP_AUTHORIZATION", "")
            )  # the key may have been revoked meanwhile
            return read(end)

        return LongPoll(response.status, response.headers, response.body, until=until, again=read_again)

    return read(query.after)


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_events)
    PATTERNS[CURSOR] = (
        "is not a valid cursor of the event feed; use the `next` link unchanged, or start with after=latest"
    )
