"""The SQL of three typical lists, as docs/architecture.md shows it."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

import findings_service as core
from tests.clients import Client, database_of, task
from tests.documents import HERE, blocks_of

PAGE = HERE / "docs" / "architecture.md"
CLAUSE = re.compile(r"\(|\)| (?=(?:FROM (?!json_each)|WHERE|UNION|ORDER BY)\b)")


def formatted(statement: str) -> str:
    """Return a statement with a line for each clause, and with "…" for the columns of tasks."""
    depth = 0

    def break_line(found: re.Match[str]) -> str:
        nonlocal depth
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        return "\n" + "  " * (2 * depth + 1) if found[0] == " " and depth < 2 else found[0]

    columns = " ".join(core.HEAD_COLUMNS.split())
    return CLAUSE.sub(break_line, " ".join(statement.split()).replace(columns, "…"))


@pytest.mark.sqlite
def test_documented_sql_equals_the_sql_of_lists(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = list[str]()
    open_database = core.open_database

    def open_traced(*arguments: Any, **options: Any) -> core.SQLiteConnection:
        connection = open_database(*arguments, **options)
        connection.set_trace_callback(traced.append)
        return connection

    client.submit(run, *(task(externalId=each, severity=each, rule="S101") for each in ("critical", "high", "low")))
    database_of(client.application).close()  # so that the next request opens new connections, which are traced
    monkeypatch.setattr(core, "open_database", open_traced)
    blocks = [text for _, language, text in blocks_of(PAGE) if language == "sql"]
    assert len(blocks) == 3
    for text in blocks:
        request = re.match(r"-- GET /api/v1/(\S+)\n", text)
        assert request
        traced.clear()
        client.request_json("GET", request[1].replace("RUN", run), 200)
        lists = [formatted(sql) for sql in traced if re.match(r"\s*SELECT.*\bFROM (tasks|sightings)\b", sql, re.DOTALL)]
        executed = request[0] + "".join(f"{each};\n" for each in lists)
        if os.environ.get("REPRINT"):
            PAGE.write_text(PAGE.read_text("utf-8").replace(text, executed), "utf-8")
        else:
            assert executed == text
