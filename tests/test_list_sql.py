"""The SQL of three typical lists, as docs/architecture.md prints it."""

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


def written(statement: str) -> str:
    """Return a statement in lines that begin with its clauses, without the names of the columns that it returns."""
    depth = 0

    def broken(found: re.Match[str]) -> str:
        nonlocal depth
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        return "\n" + "  " * (2 * depth + 1) if found[0] == " " and depth < 2 else found[0]

    columns = " ".join(core.HEAD_COLUMNS.split())
    return CLAUSE.sub(broken, " ".join(statement.split()).replace(columns, "…"))


@pytest.mark.sqlite
def test_the_documented_sql_is_what_lists_run(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    opening = core.open_database

    def open_traced(*arguments: Any, **options: Any) -> core.SQLiteConnection:
        connection = opening(*arguments, **options)
        connection.set_trace_callback(seen.append)
        return connection

    client.submit(run, *(task(externalId=each, severity=each, rule="S101") for each in ("critical", "high", "low")))
    database_of(client.application).close()  # its connections are opened again, and traced
    monkeypatch.setattr(core, "open_database", open_traced)
    printed = [text for _, language, text in blocks_of(PAGE) if language == "sql"]
    assert len(printed) == 3
    for text in printed:
        asked = re.match(r"-- GET /api/v1/(\S+)\n", text)
        assert asked
        seen.clear()
        client.ask("GET", asked[1].replace("RUN", run), 200)
        lists = [written(each) for each in seen if re.match(r"\s*SELECT.*\bFROM (tasks|sightings)\b", each, re.DOTALL)]
        ran = asked[0] + "".join(f"{each};\n" for each in lists)
        if os.environ.get("REPRINT"):
            PAGE.write_text(PAGE.read_text("utf-8").replace(text, ran), "utf-8")
        else:
            assert ran == text
