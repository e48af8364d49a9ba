"""Decisions about several tasks alike: `PATCH /api/v1/tasks`, all of them or none."""

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
    Model,
    PendingWrite,
    Problem,
    Response,
    TaskRow,
    TaskStatus,
    TaskUpdate,
    Text,
    ValidationFailed,
    decision_problems,
    json_pointer,
    json_response,
    operation,
    reason_problem,
    select_task_rows,
    task_head,
    triage_tasks,
    truncate,
)


class TasksUpdate(TaskUpdate, kw_only=True):
    """One triage decision about several tasks, all of them or none; `ifMatch` has ETags that they must still have."""

    ids: Annotated[list[Text], Meta(min_length=1, max_length=1000)]
    if_match: dict[Text, Text] | None = None


class TriagedTask(Model, gc=False):
    """What a task is after a decision about several."""

    id: str
    status: TaskStatus
    etag: str


class Triage(Model):
    """What a decision about several tasks did, with those in the order sent; `updated` counts what got an entry."""

    updated: int
    unchanged: int
    tasks: list[TriagedTask]


def id_problems(update: TasksUpdate, states: Mapping[str, TaskRow]) -> Iterator[Problem]:
    """Tell about which tasks a decision cannot be taken; those that the client has are in these states."""
    met = set()
    for index, task_id in enumerate(update.ids):
        pointer, told = f"/ids/{index}", truncate(task_id)
        if task_id in met:
            yield Problem("is there already; ids must differ", pointer, value=told)
        elif task_id not in states:
            yield Problem(f"there is no task {told!r}", pointer, value=told)
        elif problem := reason_problem(update, states[task_id], pointer):
            yield problem
        met.add(task_id)


def select_etags(connection: Connection, client_id: str, task_ids: Iterable[str]) -> dict[str, str]:
    """Return the ETags of those of some tasks that the client has, by their ids."""
    statement = f"SELECT {HEAD_COLUMNS} FROM tasks WHERE {BY_ID}"
    rows = connection.execute(statement, (client_id, json.dumps(list(task_ids))))
    return {head.id: head.etag for head in map(task_head, rows)}


def require_matches(connection: Connection, client_id: str, expected: Mapping[str, str]) -> None:
    """Check that tasks are what the caller has seen. :raises ChangedMeanwhile: with those that are not any more."""
    found = select_etags(connection, client_id, expected)
    problems = [
        Problem("is not the task's ETag any more", json_pointer(["ifMatch", task_id]))
        for task_id, etag in expected.items()
        if etag != found[task_id]
    ]
    if problems:
        raise ChangedMeanwhile(
            f"{len(problems):,} of the tasks were changed since their ETags were answered; nothing was stored.",
            problems,
        )


@operation("PATCH", "/api/v1/tasks", "full", {200: Triage}, body=TasksUpdate, refusals=(ChangedMeanwhile,), keyed=True)
def patch_tasks(request: ApiRequest) -> PendingWrite:
    """Triage several tasks alike: all of them or none."""
    update: TasksUpdate = request.checked_body()
    others = sorted((update.if_match or {}).keys() - set(update.ids))
    strange = (Problem("is none of `ids`", json_pointer(["ifMatch", other])) for other in others)
    unfit = [*decision_problems(update), *strange]

    def judged(connection: Connection) -> list[TaskRow]:
        rows = select_task_rows(connection, request.client_id, BY_ID, json.dumps(update.ids))
        states = {state.id: state for state in rows}
        if update.if_match and not unfit and len(states) == len(update.ids):
            require_matches(connection, request.client_id, update.if_match)
        if problems := [*unfit, *id_problems(update, states)]:
            raise ValidationFailed(problems)
        return [states[task_id] for task_id in update.ids]

    if unfit:
        with request.database.reading() as connection:
            judged(connection)

    def triage(connection: Connection) -> Response:
        ordered = judged(connection)
        updated = triage_tasks(connection, request.principal, ordered, update)
        etags = select_etags(connection, request.client_id, update.ids)
        tasks = [TriagedTask(state.id, update.status or state.status, etags[state.id]) for state in ordered]
        return json_response(200, Triage(updated, len(tasks) - updated, tasks), names=update.ids)

    return PendingWrite(request, triage)


def register() -> None:
    """Have such decisions answered; the same rules hold for them as for one."""
    RULES["TasksUpdate"] = RULES["TaskUpdate"]
    REGISTRY.add_operations(patch_tasks)
