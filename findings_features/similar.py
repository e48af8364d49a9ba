"""Other tasks that may be the same finding: `GET /api/v1/tasks/{id}/similar`.

Agents reword titles, and two scanners have two names for one rule. So a person, or the agent that is about to fix a
task, asks what else was found in its file. Nothing is stored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import regex
from msgspec import Meta

from findings_features.groups import file_of
from findings_service import (
    BY_SEQ,
    HEAD_COLUMNS,
    NO_TARGET,
    REGISTRY,
    UNFINISHED,
    ApiRequest,
    Connection,
    Model,
    RequestModel,
    Response,
    TaskFilter,
    TaskHead,
    ThreadJob,
    fold_text,
    in_list_time,
    json_response,
    operation,
    plan_tasks,
    select_task,
    task_head,
    to_json_text,
)

Likeness = Literal["rule", "location", "words"]


class SimilarTask(TaskHead, gc=False):
    """A task that may be the same finding. `because` names what it has in common; a location is compared as a file."""

    because: list[Likeness]


class SimilarTasks(Model):
    """Tasks that may be the same finding as another one, best first."""

    tasks: list[SimilarTask]


class SimilarQuery(RequestModel):
    """Query parameters of similar tasks."""

    limit: Annotated[int, Meta(ge=1, le=50, description="Maximum number of tasks.")] = 10


MOST_COMPARED = 1000  # tasks of the file, the newest ones


def title_words(task: TaskHead) -> set[str]:
    """Return the words of a task's title, without case and accents; words of one or two letters are left out."""
    return set(regex.findall(r"\w{3,}", fold_text(task.title)))


def select_similar(connection: Connection, client_id: str, task: TaskHead) -> list[SimilarTask]:
    """Return the unfinished and dismissed tasks that may be the same finding as a task, best first.

    They are of the same target and file, and have its rule, or at least half of the words of the shorter title.
    """
    if task.location is None:
        return []
    file, words = file_of(task.location), title_words(task)
    statuses = frozenset((*UNFINISHED, "dismissed"))
    wanted = TaskFilter(target_url=task.target_url or NO_TARGET, statuses=statuses, location=file)
    keys = plan_tasks(connection, client_id, wanted).select_sort_keys(connection, MOST_COMPARED, 0)
    seqs = to_json_text([seq for (seq,) in keys])
    rows = connection.execute(f"SELECT {HEAD_COLUMNS} FROM tasks WHERE {BY_SEQ} ORDER BY seq DESC", (client_id, seqs))
    found = list[tuple[bool, int, SimilarTask]]()
    for other in map(task_head, rows):
        shared, shorter = words & title_words(other), min(len(words), len(title_words(other)))
        same_rule, same_words = task.rule is not None and task.rule == other.rule, 0 < shorter <= 2 * len(shared)
        if other.id != task.id and file_of(other.location or "") == file and (same_rule or same_words):
            common: dict[Likeness, bool] = {"rule": same_rule, "location": True, "words": same_words}
            because = [name for name, is_common in common.items() if is_common]
            found.append((same_rule, len(shared), SimilarTask(*(*msgspec.structs.astuple(other), because))))
    return [each for *_, each in sorted(found, key=lambda item: item[:2], reverse=True)]


@operation("GET", "/api/v1/tasks/{task_id}/similar", "read", {200: SimilarTasks}, query=SimilarQuery)
def get_similar(request: ApiRequest, task_id: str) -> ThreadJob:
    """List other unfinished or dismissed tasks that may be the same finding."""

    def read(connection: Connection) -> Response:
        with in_list_time(connection):
            task = select_task(connection, request.client_id, task_id)
            found = select_similar(connection, request.client_id, task)
            return json_response(200, SimilarTasks(found[: request.query.limit]))

    return request.read_slowly(read)


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_similar)
