"""Task lists in formats other than JSON. This module has CSV (RFC 4180, https://www.rfc-editor.org/rfc/rfc4180).

A list is read from one snapshot, in batches, into an unnamed temporary file, which is then sent. So it takes little
memory, however long it is and however slowly the caller reads it. Adapters register other programs' formats with `add`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import regex
from msgspec import Meta, Struct

import findings_features.gate as gate
from findings_service import (
    API_NAMES,
    BY_ID,
    DOCUMENT_PIECE,
    KIB,
    REGISTRY,
    ApiRequest,
    Busy,
    Connection,
    Export,
    InvalidParameter,
    Response,
    StorageFull,
    TaskFilter,
    TaskHead,
    TaskOrder,
    TaskQuery,
    ThreadJob,
    cursor_of,
    in_list_time,
    next_link,
    read_cursor,
    read_task_filter,
    select_tasks,
    tags_in,
)


class ExportQuery(TaskOrder):
    """Query parameters of a task list in a format other than JSON."""

    limit: Annotated[int, Meta(ge=1, le=100_000, description="Maximum number of tasks.")] = 10_000


class ListedTask(Struct, frozen=True, gc=False):
    """A task of a list in a format other than JSON.

    `comment` is the latest comment of a dismissed task since its dismissal. In a list of one run's tasks, `known` is
    whether the run's baseline also reported the task. It is None in other lists, and without a baseline.
    """

    task: TaskHead
    comment: str | None = None
    known: bool | None = None


class ListFormat(Struct, frozen=True, kw_only=True):
    """A format of task lists other than JSON: a media type, and a function that yields the encoded list in pieces.

    If `whole` is true, each `task` is a full `Task`.
    """

    media_type: str
    write: Callable[[Iterator[ListedTask]], Iterator[bytes]]
    whole: bool = False


LAST = "SELECT MAX(seq) FROM history WHERE history.client_id = tasks.client_id AND history.task_seq = tasks.seq"
# The latest comment of each dismissed task, if it was made with the dismissal or later.
DISMISSALS = f"""SELECT tasks.id, said.comment FROM tasks
    JOIN history AS said ON said.client_id = tasks.client_id AND said.task_seq = tasks.seq
        AND said.seq = ({LAST} AND comment <> '' AND event IN ('status', 'comment'))
    WHERE {BY_ID} AND said.seq >= COALESCE(({LAST} AND from_status <> to_status), 0)"""
# The ids of the tasks, among those with some ids, that a run reported.
REPORTED = f"""SELECT tasks.id FROM tasks CROSS JOIN sightings WHERE {BY_ID}
    AND sightings.client_id = tasks.client_id AND sightings.run_seq = ? AND sightings.task_seq = tasks.seq"""


def select_listed(
    connection: Connection, client_id: str, wanted: TaskFilter, tasks: Sequence[TaskHead]
) -> list[ListedTask]:
    """Return tasks with their dismissal comments and, in a list of one run, whether its baseline reported them."""
    dismissed = json.dumps([task.id for task in tasks if task.status == "dismissed"])
    comments = dict(connection.execute(DISMISSALS, (client_id, dismissed)))
    baseline = None
    if wanted.runs and len(wanted.runs) == 1:
        baseline = gate.find_judged_baseline(connection, client_id, wanted.runs[0])
    if baseline is None:
        return [ListedTask(task, comments.get(task.id)) for task in tasks]
    all_ids = json.dumps([task.id for task in tasks])
    known = {task_id for (task_id,) in connection.execute(REPORTED, (client_id, all_ids, baseline.seq))}
    return [ListedTask(task, comments.get(task.id), task.id in known) for task in tasks]


MOST_DOCUMENTS = 4  # exports in progress per process; a client without one may start one until 4 clients have one
DOCUMENTS: list[str] = []  # the client id of each export in progress
DOCUMENT_SIZE = 2 * 1024 * 1024 * KIB  # bytes: 2 GiB


class ExportFile:
    """A long response in an unnamed temporary file, so that a slow reader costs no memory."""

    _is_open = False

    def __init__(self, folder: Path | None, client_id: str) -> None:
        """Create and open the file. :raises Busy: see `open`. :raises StorageFull: see `open`."""
        self._folder, self._client_id = folder, client_id
        self.open()

    def open(self) -> None:
        """Open the file if it is closed. :raises Busy: see `MOST_DOCUMENTS`. :raises StorageFull: on a disk error."""
        if self._is_open:
            return
        clients = set(DOCUMENTS)
        if len(DOCUMENTS) >= MOST_DOCUMENTS and (self._client_id in clients or len(clients) >= MOST_DOCUMENTS):
            raise Busy(f"{MOST_DOCUMENTS} exports are in progress")
        self.size = 0
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - `close` closes it
        except OSError as error:
            raise StorageFull(str(error.strerror)) from None
        DOCUMENTS.append(self._client_id)
        self._is_open = True

    def write(self, piece: bytes) -> None:
        """Append a piece. :raises InvalidParameter: if the file gets too long. :raises StorageFull: on a disk error."""
        self.size += len(piece)
        if self.size > DOCUMENT_SIZE:
            raise InvalidParameter("limit", f"makes more than {DOCUMENT_SIZE:,} bytes; use a lower limit")
        try:
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            raise StorageFull(str(error.strerror)) from None

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return iter(partial(self._file.read, DOCUMENT_PIECE), b"")

    def close(self) -> None:
        """Close the file, which deletes it."""
        if self._is_open:
            self._is_open = False
            DOCUMENTS.remove(self._client_id)
            with suppress(OSError):  # data that a full disk did not accept
                self._file.close()

    __del__ = close  # if the caller disconnected before the response was sent


EXPORT_BATCH = 500  # tasks in a batch
BATCH_SIZE = 4 * 1024 * KIB  # bytes of JSON in a batch, unless its only task has more


def take_batch(tasks: Iterator[TaskHead], most: int) -> tuple[list[TaskHead], bool]:
    """Return a batch of at most `most` tasks, fewer if they exceed `BATCH_SIZE`, and whether more tasks follow."""
    taken: list[TaskHead] = []
    size = 0
    for task in tasks:
        size += len(msgspec.json.encode(task))
        if len(taken) == most or (taken and size > BATCH_SIZE):
            return taken, True
        taken.append(task)
    return taken, False


def walk_tasks(
    request: ApiRequest, connection: Connection, headers: dict[str, str], *, whole: bool
) -> Iterator[ListedTask]:
    """Yield the tasks of a list up to its limit, and add a `Link` header if more tasks follow.

    All are read from one snapshot, in batches. Each batch has the time limit of a request for a list.
    """
    query: ExportQuery = request.query
    view: Any = "full" if whole else "default"
    left, after = query.limit, query.after
    batch = TaskQuery(limit=EXPORT_BATCH, sort=query.sort, view=view)
    while True:
        with in_list_time(connection):
            position = read_cursor(request, connection, "tasks", after)
            wanted = read_task_filter(connection, request.client_id, query)
            tasks, _ = select_tasks(connection, request.client_id, wanted, batch, position)
            taken, more = take_batch(tasks, min(EXPORT_BATCH, left))
            listed = select_listed(connection, request.client_id, wanted, taken)
        yield from listed
        left -= len(listed)
        if not more:
            return
        after = cursor_of(query, taken[-1])
        if not left:
            headers["Link"] = f'<{next_link(request, after)}>; rel="next"'
            return


def export_tasks(request: ApiRequest, form: ListFormat, document: ExportFile) -> Response:
    """Write a task list in a format to a file, and return the response only once the list is complete."""
    headers = {"Content-Type": form.media_type}
    document.open()
    try:
        with request.database.separate_reader("export") as connection:
            for piece in form.write(walk_tasks(request, connection, headers, whole=form.whole)):
                document.write(piece)
    except BaseException:
        document.close()
        raise
    headers["Content-Length"] = str(document.size)
    if document.size > DOCUMENT_PIECE:
        return Response(200, headers, document=document)
    with closing(document):  # as bytes: a pipe could hold all of it and close before the server opens it
        return Response(200, headers, b"".join(document))


class ExportJob(ThreadJob, eq=False, frozen=True):
    """Job that writes a task list to a file."""


def add(form: ListFormat) -> None:
    """Register a format of task lists."""

    def export(request: ApiRequest) -> ThreadJob:
        return ExportJob(partial(export_tasks, request, form, ExportFile(request.database.folder, request.client_id)))

    REGISTRY.list_exports[form.media_type] = Export(answer=export, query=ExportQuery)


COLUMNS = (
    *("id", "external_id", "title", "severity", "status", "reason", "assignee", "rule", "location", "tags"),
    *("project_type", "target_url", "branch", "run_id", "last_run_id"),
    *("created_at", "updated_at", "last_seen_at", "times_seen"),
)


def write_csv(listed: Iterator[ListedTask]) -> Iterator[bytes]:
    """Yield a CSV header, and a record for each task. Cells that a spreadsheet would run as formulas are escaped."""
    yield f"{','.join(API_NAMES[name] for name in COLUMNS)}\r\n".encode()
    for item in listed:
        yield f"{','.join(cell(item.task, name) for name in COLUMNS)}\r\n".encode()


# The start of a cell that a spreadsheet would run as a formula: one of these characters (also full-width ones) after
# any characters that an import may drop: white space, quotes and invisible ones. A cell starts at the start of a value,
# and after each separator in it, because a spreadsheet may use another separator and then ignores our quotes.
# The search goes from right to left, because a long run of separators would otherwise take quadratic time.
FORMULA = regex.compile(r"(?r)(?:^|[;,\t\r\n])[\s\p{QMark}\p{C}\p{DI}\u2800;,]*[\t\r=+@\uff0d\uff1d\uff0b\uff20-]")
CELL_START = regex.compile(r"(?<=[;,\t\r\n])(?=.)", regex.DOTALL)


def cell(task: TaskHead, name: str) -> str:
    """Return a field of a task as a CSV cell that no spreadsheet runs as a formula.

    Text is quoted; null is an empty cell. Tags, which are stored as JSON, are separated by commas.
    """
    value = ", ".join(tags_in(task.tags)) if name == "tags" else getattr(task, name)
    if not value:
        return ""
    if isinstance(value, int):
        return str(value)
    harmless = FORMULA.sub(lambda match: ("" if match.start() else "'") + CELL_START.sub("'", match[0]), value)
    return '"' + harmless.replace('"', '""') + '"'


CSV = "text/csv"


def register() -> None:
    """Register the CSV format."""
    add(ListFormat(media_type=CSV, write=write_csv))
