"""Validation of SARIF extensions, dropping members that the project type's schema rejects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from findings_service import Parsed, Problem, Settings, TimeLimit, check_extensions, decoder, task_of, truncate

FULL_BATCHES = 2  # times `schema_timeout` for each document; stopping the service waits for this
OTHERS_SHARE = 0.2  # times `schema_timeout`, added for each batch of the document


def judge(schema: str, parsed: Parsed, settings: Settings) -> None:
    """Validate extensions against a project type's schema, and drop the members that it rejects.

    At most `max_batch` tasks are validated at a time, so that only the problems of one batch take memory.

    :raises ExtensionCheckTimeout: if the time limit is exceeded.
    """
    size, count = settings.max_batch, len(parsed.reports)
    seconds = settings.schema_timeout * (FULL_BATCHES + OTHERS_SHARE * count / size)
    with TimeLimit(seconds):
        for start in () if parsed.problems else range(0, count, size):
            batch: Sequence[int] = range(start, min(start + size, count))
            while batch:
                batch = validate_batch(schema, parsed, batch, seconds)


def validate_batch(schema: str, parsed: Parsed, batch: Sequence[int], seconds: float) -> list[int]:
    """Validate extensions of a batch of reports; return the indexes of reports whose extensions lost members.

    All are dropped if problems name none. Extensions that this service exported lose none; their problems are recorded.
    """
    extensions = [parsed.extensions[index] for index in batch]
    indexes = {task_of(Problem("", parsed.extensions[index][1])): index for index in batch}
    changed = []
    for task, problems in itertools.groupby(check_extensions(schema, extensions, seconds), task_of):
        text, pointer = parsed.extensions[indexes[task]]
        if pointer.endswith("/extensions"):  # exported by this service, so never shortened
            parsed.problems += problems
        elif text is None:
            for each in problems:
                detail = truncate(f"the project type's schema requires more than SARIF provides: {each.detail}")
                parsed.problems.append(Problem(detail, pointer))
        else:
            remaining = without(text, problems, pointer)
            parsed.reports[indexes[task]].extensions = remaining
            parsed.extensions[indexes[task]] = remaining, pointer
            changed.append(indexes[task])
    return changed


def without(extensions: str, problems: Iterable[Problem], pointer: str) -> str | None:
    """Return extensions without the members that problems name, or None if these are all members or none."""
    names = {(problem.pointer or "")[len(pointer) + 1 :].partition("/")[0] for problem in problems}
    members: dict[str, Raw] = decoder(dict[str, Raw]).decode(extensions)
    remaining = {name: value for name, value in members.items() if name not in names}
    return msgspec.json.encode(remaining).decode() if 0 < len(remaining) < len(members) else None
