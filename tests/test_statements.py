"""Tests of the check that every statement of a request names the client of each table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import open_store
from tests.postgres_server import Databases
from tests.statements import Collector, Statement

BOUND = (
    "SELECT title FROM tasks WHERE client_id = $1 AND seq = 5",
    "SELECT 1 FROM tasks JOIN runs ON runs.client_id = tasks.client_id AND runs.id = run_id WHERE runs.client_id = $1",
    "SELECT id FROM runs WHERE client_id = $1 AND EXISTS (SELECT 1 FROM tasks WHERE client_id = runs.client_id)",
    "SELECT (SELECT 1 FROM tasks WHERE client_id = runs.client_id AND run_id = runs.id) FROM runs WHERE client_id = $1",
    "DELETE FROM tasks USING unnest(ARRAY[$1], ARRAY[1]) AS given (v1, v2) WHERE client_id = v1 AND seq = v2",
    "INSERT INTO clients (id, created_at) VALUES ($1, '')",
    "SELECT 1 FROM clients WHERE id = $1",
    "SELECT client_id FROM api_keys WHERE hash = $1",
    "SELECT id FROM backups WHERE $1 <> ''",
)
UNBOUND = {
    "tasks": (
        "SELECT title FROM tasks WHERE seq = 5 AND title = $1",
        "SELECT title FROM tasks WHERE client_id = $1 OR seq = 5",
        "SELECT title FROM tasks WHERE client_id <> $1",
        "SELECT title FROM runs JOIN tasks ON run_id = runs.id WHERE runs.client_id = $1",
        "SELECT id FROM runs WHERE client_id = $1 AND EXISTS (SELECT 1 FROM tasks WHERE run_id = runs.id)",
        "UPDATE tasks SET title = '' WHERE title = $1",
        "SELECT title FROM tasks JOIN runs ON runs.client_id = tasks.client_id WHERE title = $1",
        "DELETE FROM tasks USING unnest(ARRAY[$1], ARRAY[1]) AS given (v1, v2) WHERE title = v1 AND seq = v2",
    ),
    "runs": ("SELECT title FROM tasks JOIN runs ON run_id = runs.id WHERE tasks.client_id = $1",),
    "clients": ("SELECT id FROM clients WHERE created_at = $1",),
    "api_keys": ("SELECT id FROM api_keys WHERE name = $1",),
}


@pytest.fixture(scope="module")
def url(postgres: Databases) -> Iterator[str]:
    """The URL of a database with the schema."""
    url = postgres.new()
    with open_store(url) as database, database.reading():
        pass
    yield url
    postgres.drop(url)


def tables_reported(text: str, url: str) -> list[str]:
    collector = Collector()
    collector.statements[text] = Statement(text, ["default"])
    return [complaint.partition(":")[0] for complaint in collector.complaints(url)]


def test_statements_that_do_not_name_the_client_of_a_table_are_reported(url: str) -> None:
    for tables, texts in ({"": BOUND} | UNBOUND).items():
        for text in texts:
            assert tables_reported(text, url) == ([tables] if tables else []), text
