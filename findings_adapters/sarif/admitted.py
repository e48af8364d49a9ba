"""The members of a SARIF result's extensions that the schema of a project type admits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from findings_service import (
    Parsed,
    Problem,
    Settings,
    TimeLimit,
    check_extensions,
    decoder,
    task_of,
    truncate,
)

FULL_BATCHES = 2  # that may take all the time of a batch: a stop of the service waits for this
OTHERS_SHARE = 0.2  # of that time, for each further batch


def judge(schema: str, parsed: Parsed, settings: Settings) -> None:
    """Check the extensions against a project type's schema, and leave out the members that it does not admit.

    One group of at most `max_batch` tasks is checked at a time, so that only the problems of one group take memory.

    :raises ExtensionCheckTimeout: when the time was not enough.
    """
    size, count = settings.max_batch, len(parsed.reports)
    seconds = settings.schema_timeout * (FULL_BATCHES + OTHERS_SHARE * count / size)
    with TimeLimit(seconds):
        for start in () if parsed.problems else range(0, count, size):
            lot: Sequence[int] = range(start, min(start + size, count))
            while lot:
                lot = judge_lot(schema, parsed, lot, seconds)


def judge_lot(schema: str, parsed: Parsed, lot: Sequence[int], seconds: float) -> list[int]:
    """Check the extensions of some reports, and return those that must be checked again, with fewer members.

    A report is left with no member where none is at fault. Extensions that this service wrote itself lose none.
    """
    extensions = [parsed.extensions[place] for place in lot]
    places = {task_of(Problem("", parsed.extensions[place][1])): place for place in lot}
    changed = []
    for task, problems in itertools.groupby(check_extensions(schema, extensions, seconds), task_of):
        text, pointer = parsed.extensions[places[task]]
        if pointer.endswith("/extensions"):  # they stand in the document as they are
            parsed.problems += problems
        elif text is None:
            for each in problems:
                detail = truncate(f"the project type's schema asks for more: {each.detail}")
                parsed.problems.append(Problem(detail, pointer))
        else:
            left = without(text, problems, pointer)
            parsed.reports[places[task]].extensions = left
            parsed.extensions[places[task]] = left, pointer
            changed.append(places[task])
    return changed


def without(extensions: str, problems: Iterable[Problem], pointer: str) -> str | None:
    """Return extensions without the members that problems are about, None where that is all or none of them."""
    names = {(problem.pointer or "")[len(pointer) + 1 :].partition("/")[0] for problem in problems}
    members: dict[str, Raw] = decoder(dict[str, Raw]).decode(extensions)
    left = {name: value for name, value in members.items() if name not in names}
    return msgspec.json.encode(left).decode() if 0 < len(left) < len(members) else None
