"""Tasks by the words that they have: the parameter `q` of a list of tasks.

The module stores a row for each task with its words, folded. A search reads those from the first to the last of a
client's, a million in a fifth of a second. An index of three letters (FTS5) would answer sooner, and make each batch a
fifth dearer.
"""

from __future__ import annotations

from msgspec import Struct

from findings_features.cells import select_cells
from findings_service import (
    REGISTRY,
    Condition,
    Connection,
    Filter,
    IndexRange,
    InvalidParameter,
    ListPlan,
    fold_text,
)

LOOKUP_COST = 4  # words of tasks that are read in the time in which those of one are looked up


class Words(Struct, frozen=True):
    """The words of a search."""

    words: tuple[str, ...]

    @property
    def held(self) -> str:
        """The condition that they all stand in those of a task."""
        return " AND ".join(["instr(task_words.words, ?) > 0"] * len(self.words))

    def condition(self, client_id: str) -> Condition:
        """Return the condition that a task has them all."""
        where = f"task_words.client_id = ? AND task_words.task_seq = tasks.seq AND {self.held}"
        return f"(SELECT 1 FROM task_words WHERE {where}) IS NOT NULL", (client_id, *self.words)

    def plan(self, connection: Connection, client_id: str) -> ListPlan:
        """Plan the list of all tasks that have them all."""
        ranges = (IndexRange(("task_words.client_id = ?", self.held), (client_id, *self.words), "task_words"),)
        size = sum(select_cells(connection, client_id, "tasks", Filter()).values()) // LOOKUP_COST
        return ListPlan(ranges=ranges, settled={"search"}, size=size)


def search_words(text: str) -> Words:
    """Return a search for the words of a text, the longest and so rarest first.

    :raises InvalidParameter: if the text has no words.
    """
    words = sorted(set(fold_text(text).split()), key=lambda word: (-len(word), word))
    if not words:
        raise InvalidParameter("q", "must have something besides white space and accents")
    return Words(tuple(words))


def register() -> None:
    """Have searches read."""
    REGISTRY.search = search_words
