"""Decisions about several tasks alike: `PATCH /api/v1/tasks`, all of them or none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

import findings_service as heart


class TasksUpdate(heart.TaskUpdate, kw_only=True):
    """One triage decision about several tasks, for all of them or none."""

    ids: Annotated[list[heart.Text], Meta(min_length=1, max_length=1000)]


class TriagedTask(heart.Model, gc=False):
    """What a task is after a decision about several."""

    id: str
    status: heart.TaskStatus


class Triage(heart.Model):
    """What a decision about several tasks did, with those in the order sent; `updated` counts what got an entry."""

    updated: int
    unchanged: int
    tasks: list[TriagedTask]


def id_problems(update: TasksUpdate, states: Mapping[str, heart.TaskRow]) -> Iterator[heart.Problem]:
    """Tell about which tasks a decision cannot be taken; those that the client has are in these states."""
    met = set()
    for index, task_id in enumerate(update.ids):
        pointer = f"/ids/{index}"
        if task_id in met:
            yield heart.Problem("is there already; ids must differ", pointer, value=heart.truncate(task_id))
        elif task_id not in states:
            yield heart.Problem(f"there is no task {heart.truncate(task_id)!r}", pointer, value=heart.truncate(task_id))
        elif problem := heart.reason_problem(update, states[task_id], pointer):
            yield problem
        met.add(task_id)


@heart.operation("PATCH", "/api/v1/tasks", "full", {200: Triage}, body=TasksUpdate, keyed=True)
def patch_tasks(call: heart.Call) -> heart.PendingWrite:
    """Triage several tasks alike: all of them or none."""
    update: TasksUpdate = call.checked_body()
    unfit = heart.decision_problems(update)

    def judged(connection: heart.Connection) -> list[heart.TaskRow]:
        rows = heart.select_task_rows(connection, call.client_id, heart.BY_ID, json.dumps(update.ids))
        states = {state.id: state for state in rows}
        if problems := [*unfit, *id_problems(update, states)]:
            raise heart.ValidationFailed(problems)
        return [states[task_id] for task_id in update.ids]

    if unfit:
        with call.database.reading() as connection:
            judged(connection)

    def triage(connection: heart.Connection) -> heart.Answer:
        ordered = judged(connection)
        updated = heart.triage_tasks(connection, call.principal, ordered, update)
        tasks = [TriagedTask(state.id, update.status or state.status) for state in ordered]
        return heart.json_answer(200, Triage(updated, len(tasks) - updated, tasks))

    return heart.PendingWrite(call, triage)


def register() -> None:
    """Have such decisions answered; the same rules hold for them as for one."""
    heart.RULES["TasksUpdate"] = heart.RULES["TaskUpdate"]
    heart.REGISTRY.add_operations(patch_tasks)
