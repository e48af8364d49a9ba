"""One decision on several tasks: `PATCH /api/v1/tasks` changes all of them or none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from findings_service import (
    BY_ID,
    HEAD_COLUMNS,
    REGISTRY,
    RULES,
    ApiRequest,
    ChangedMeanwhile,
    Connection,
    Decision,
    Model,
    PendingWrite,
    Problem,
    Response,
    TaskRow,
    TaskStatus,
    Text,
    ValidationFailed,
    decision_problems,
    duplicate_problems,
    json_pointer,
    json_response,
    operation,
    select_task_rows,
    state_problems,
    task_head,
    triage_tasks,
    truncate,
)


class TasksUpdate(Decision, kw_only=True):
    """One triage decision on all of several tasks or none. `ifMatch` has ETags, by task id, that must still match."""

    ids: Annotated[list[Text], Meta(min_length=1, max_length=1000)]
    if_match: dict[Text, Text] | None = None


class TriagedTask(Model, gc=False):
    """A task after a decision on several tasks."""

    id: str
    status: TaskStatus
    etag: str


class Triage(Model):
    """The result of a decision on several tasks, in the order sent. `updated` counts tasks with a new history entry."""

    updated: int
    unchanged: int
    tasks: list[TriagedTask]


def id_problems(update: TasksUpdate, states: Mapping[str, TaskRow]) -> Iterator[Problem]:
    """Yield a problem for each id that is repeated, is unknown or cannot take the decision."""
    seen = set()
    for index, task_id in enumerate(update.ids):
        pointer, shown = f"/ids/{index}", truncate(task_id)
        if task_id in seen:
            yield Problem("is a duplicate; ids must differ", pointer, value=shown)
        elif task_id not in states:
            yield Problem(f"there is no task {shown!r}", pointer, value=shown)
        else:
            yield from state_problems(update, states[task_id], pointer)
        seen.add(task_id)


def select_etags(connection: Connection, client_id: str, task_ids: Iterable[str]) -> dict[str, str]:
    """Return the ETags of a client's tasks by id; unknown ids are left out."""
    statement = f"SELECT {HEAD_COLUMNS} FROM tasks WHERE {BY_ID}"
    rows = connection.execute(statement, (client_id, json.dumps(list(task_ids))))
    return {head.id: head.etag for head in map(task_head, rows)}


def require_matches(connection: Connection, client_id: str, expected: Mapping[str, str]) -> None:
    """Check that tasks still have their expected ETags. :raises ChangedMeanwhile: with each task that has another."""
    found = select_etags(connection, client_id, expected)
    problems = [
        Problem("is no longer the task's ETag", json_pointer(["ifMatch", task_id]))
        for task_id, etag in expected.items()
        if etag != found[task_id]
    ]
    if problems:
        raise ChangedMeanwhile(
            f"{len(problems):,} of the tasks were changed since their ETags were returned; nothing was stored.",
            problems,
        )


@operation(
    "PATCH", "/api/v1/tasks", "triage", {200: Triage}, body=TasksUpdate, refusals=(ChangedMeanwhile,), keyed=True
)
def patch_tasks(request: ApiRequest) -> PendingWrite:
    """Apply one triage decision to several tasks: to all of them or to none."""
    update: TasksUpdate = request.checked_body()
    others = sorted((update.if_match or {}).keys() - set(update.ids))
    unlisted = (Problem("must be one of `ids`", json_pointer(["ifMatch", other])) for other in others)
    body_problems = [*decision_problems(update), *unlisted]

    def select_checked(connection: Connection) -> list[TaskRow]:
        rows = select_task_rows(connection, request.client_id, BY_ID, json.dumps(update.ids))
        states = {state.id: state for state in rows}
        if update.if_match and not body_problems and len(states) == len(update.ids):
            require_matches(connection, request.client_id, update.if_match)
        duplicate = duplicate_problems(connection, request.client_id, update.duplicate_of, update.ids)
        if problems := [*body_problems, *id_problems(update, states), *duplicate]:
            raise ValidationFailed(problems)
        return [states[task_id] for task_id in update.ids]

    if body_problems:
        with request.database.reading() as connection:
            select_checked(connection)

    def triage(connection: Connection) -> Response:
        ordered = select_checked(connection)
        updated = triage_tasks(connection, request.principal, [(state, update) for state in ordered])
        etags = select_etags(connection, request.client_id, update.ids)
        tasks = [TriagedTask(state.id, update.status or state.status, etags[state.id]) for state in ordered]
        return json_response(200, Triage(updated, len(tasks) - updated, tasks), names=update.ids)

    return PendingWrite(request, triage)


def register() -> None:
    """Register the endpoint. The rules for a decision on one task apply to its decisions, too."""
    RULES["TasksUpdate"] = RULES["TaskUpdate"]
    REGISTRY.add_operations(patch_tasks)
