"""Search for tasks by their words: the parameter `q` of task lists.

The core stores a row with the folded words of each task. A search scans all of these rows of a client, a million in
0.2 s. A trigram index (FTS5) would be faster, but would make each batch of submitted tasks a fifth more expensive.
"""

from __future__ import annotations

from msgspec import Struct

from findings_features.cells import select_cells
from findings_service import REGISTRY, Condition, Connection, Filter, IndexRange, InvalidParameter, ListPlan, fold_text

LOOKUP_COST = 4  # rows that are scanned in the time of one lookup by key


class Words(Struct, frozen=True):
    """A search: the folded words that a task must all contain."""

    words: tuple[str, ...]

    @property
    def held(self) -> str:
        """The condition that the words of a task contain all words of the search."""
        return " AND ".join(["instr(task_words.words, ?) > 0"] * len(self.words))

    def condition(self, client_id: str) -> Condition:
        """Return the SQL condition, with values, that a task has all words of the search."""
        where = f"task_words.client_id = ? AND task_words.task_seq = tasks.seq AND {self.held}"
        return f"(SELECT 1 FROM task_words WHERE {where}) IS NOT NULL", (client_id, *self.words)

    def plan(self, connection: Connection, client_id: str) -> ListPlan:
        """Plan a list of the tasks that have all words of the search."""
        ranges = (IndexRange(("task_words.client_id = ?", self.held), (client_id, *self.words), "task_words"),)
        size = sum(select_cells(connection, client_id, "tasks", Filter()).values()) // LOOKUP_COST
        return ListPlan(ranges=ranges, settled={"search"}, size=size)


def search_words(text: str) -> Words:
    """Return a search for the words of a text, the longest (usually the rarest) first.

    :raises InvalidParameter: if the text has no words.
    """
    words = sorted(set(fold_text(text).split()), key=lambda word: (-len(word), word))
    if not words:
        raise InvalidParameter("q", "must contain more than white space and accents")
    return Words(tuple(words))


def register() -> None:
    """Register the search."""
    REGISTRY.search = search_words
