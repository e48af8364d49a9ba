"""Lists of tasks in other forms than JSON, one of them here: CSV (RFC 4180, https://www.rfc-editor.org/rfc/rfc4180).

Such a list is read at one moment, a lot at a time, into a file without a name, and goes out from there: it costs no
memory, however long it is and however slowly its client takes it. Adapters add the forms of other programs by `add`.
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
    HEAD_FIELDS,
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
    """Which part of a list of tasks that goes out in another form than JSON."""

    limit: Annotated[int, Meta(ge=1, le=100_000, description="Tasks in a document.")] = 10_000


class ListedTask(Struct, frozen=True, gc=False):
    """A task of a list that goes out in another form than JSON.

    `comment` is what was said when a dismissed one was dismissed. `known` tells, in a list of what one run reported,
    whether its baseline had reported it too; None where there is no such run, or baseline.
    """

    task: TaskHead
    comment: str | None = None
    known: bool | None = None


class ListFormat(Struct, frozen=True, kw_only=True):
    """A form in which a list of tasks goes out besides JSON: its media type, and what writes it piece by piece.

    With `whole`, each `task` is a `Task`.
    """

    media_type: str
    write: Callable[[Iterator[ListedTask]], Iterator[bytes]]
    whole: bool = False


LAST = "SELECT MAX(seq) FROM history WHERE history.client_id = tasks.client_id AND history.task_seq = tasks.seq"
# What was said of tasks, which are dismissed: last, with that or since.
DISMISSALS = f"""SELECT tasks.id, said.comment FROM tasks
    JOIN history AS said ON said.client_id = tasks.client_id AND said.task_seq = tasks.seq
        AND said.seq = ({LAST} AND comment <> '')
    WHERE {BY_ID} AND said.seq >= COALESCE(({LAST} AND from_status <> to_status), 0)"""
# Those of some tasks that a run reported.
REPORTED = f"""SELECT tasks.id FROM tasks CROSS JOIN sightings WHERE {BY_ID}
    AND sightings.client_id = tasks.client_id AND sightings.run_seq = ? AND sightings.task_seq = tasks.seq"""


def select_listed(
    connection: Connection, client_id: str, wanted: TaskFilter, tasks: Sequence[TaskHead]
) -> list[ListedTask]:
    """Return tasks of a list with what another form than JSON tells besides."""
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


MOST_DOCUMENTS = 4  # of a process, from when they are begun until they are sent; others' first ones may come beside
DOCUMENTS: list[str] = []  # the client of each of them
DOCUMENT_SIZE = 2 * 1024 * 1024 * KIB  # bytes


class ExportFile:
    """A long answer, in a file without a name, which costs no memory however slowly its client takes it."""

    _is_open = False

    def __init__(self, folder: Path | None, client_id: str) -> None:
        """Begin one. :raises Busy: if there are as many as there may be, and this client, or each of four, has one."""
        self._folder, self._client_id = folder, client_id
        self.open()

    def open(self) -> None:
        """Open the file, unless it is open: an attempt that failed has closed it. :raises Busy: see `__init__`."""
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
        """Add a piece. :raises InvalidParameter: when it is too long. :raises StorageFull: when the disk is full."""
        self.size += len(piece)
        if self.size > DOCUMENT_SIZE:
            raise InvalidParameter("limit", f"comes to more than {DOCUMENT_SIZE:,} bytes; give a lower one")
        try:
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            raise StorageFull(str(error.strerror)) from None

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return iter(partial(self._file.read, DOCUMENT_PIECE), b"")

    def close(self) -> None:
        """Drop the file."""
        if self._is_open:
            self._is_open = False
            DOCUMENTS.remove(self._client_id)
            with suppress(OSError):  # of what a full disk did not take
                self._file.close()

    __del__ = close  # where a client was gone before there was anything to send


EXPORT_LOT = 500  # tasks that are read at once of a list that becomes a document
LOT_SIZE = 4 * 1024 * KIB  # bytes of their JSON


def take_lot(tasks: Iterator[TaskHead], most: int) -> tuple[list[TaskHead], bool]:
    """Return the tasks of a lot, fewer where they are large, and whether the list goes on behind them."""
    taken: list[TaskHead] = []
    size = 0
    for task in tasks:
        size += len(msgspec.json.encode(task))
        if len(taken) == most or (taken and size > LOT_SIZE):
            return taken, True
        taken.append(task)
    return taken, False


def walk_tasks(
    request: ApiRequest, connection: Connection, headers: dict[str, str], *, whole: bool
) -> Iterator[ListedTask]:
    """Give the tasks of a list, up to its limit, a lot at a time; then, with any behind them, `headers` link to those.

    All is read at one moment. A lot may take as long as a list does.
    """
    query: ExportQuery = request.query
    view: Any = "full" if whole else "default"
    left, after = query.limit, query.after
    lot = TaskQuery(limit=EXPORT_LOT, sort=query.sort, view=view)
    while True:
        with in_list_time(connection):
            position = read_cursor(request, connection, "tasks", after)
            wanted = read_task_filter(connection, request.client_id, query)
            tasks, _ = select_tasks(connection, request.client_id, wanted, lot, position)
            taken, more = take_lot(tasks, min(EXPORT_LOT, left))
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
    """Answer a list of tasks in another form: all of it, or an error."""
    headers = {"Content-Type": form.media_type}
    document.open()
    try:
        with request.database.apart("export") as connection:
            for piece in form.write(walk_tasks(request, connection, headers, whole=form.whole)):
                document.write(piece)
    except BaseException:
        document.close()
        raise
    headers["Content-Length"] = str(document.size)
    if document.size > DOCUMENT_PIECE:
        return Response(200, headers, document=document)
    with closing(document):  # a pipe that holds all of it might be closed before the server opens it
        return Response(200, headers, b"".join(document))


class ExportJob(ThreadJob, eq=False, frozen=True):
    """Writing a list as a file."""


def add(form: ListFormat) -> None:
    """Have lists go out in a form, too."""

    def export(request: ApiRequest) -> ThreadJob:
        return ExportJob(partial(export_tasks, request, form, ExportFile(request.database.folder, request.client_id)))

    REGISTRY.list_exports[form.media_type] = Export(answer=export, query=ExportQuery)


LEADING = ("id", "external_id", "title", "severity", "status", "reason", "assignee", "rule", "location", "tags")
LEADING_SCOPE = ("project_type", "target_url", "branch")
COLUMNS = tuple(dict.fromkeys((*LEADING, *LEADING_SCOPE, *HEAD_FIELDS)))


def write_csv(listed: Iterator[ListedTask]) -> Iterator[bytes]:
    """Write tasks as CSV, a line each below the header, for people: what a spreadsheet would run is made harmless."""
    yield f"{','.join(API_NAMES[name] for name in COLUMNS)}\r\n".encode()
    for item in listed:
        yield f"{','.join(cell(item.task, name) for name in COLUMNS)}\r\n".encode()


# What a spreadsheet would run, or what begins such a cell, also in East Asian width and behind what may be dropped on
# the way there: white space, quotes, and signs that show nothing. A cell begins at the start of a value, and behind
# each separator in it, because a spreadsheet may be set to another one, and then takes no quotes for those of a cell.
# It is searched from right to left, so that a long run of separators takes no quadratic time.
FORMULA = regex.compile(r"(?r)(?:^|[;,\t\r\n])[\s\p{QMark}\p{C}\p{DI}\u2800;,]*[\t\r=+@\uff0d\uff1d\uff0b\uff20-]")
CELL_START = regex.compile(r"(?<=[;,\t\r\n])(?=.)", regex.DOTALL)


def cell(task: TaskHead, name: str) -> str:
    """Return a field of a task as a cell that no spreadsheet runs. Text is quoted; null is an empty cell.

    Tags, which are still JSON, have commas between them.
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
    """Have lists go out as CSV, too."""
    add(ListFormat(media_type=CSV, write=write_csv))
