"""Check of every statement that requests run on PostgreSQL: it must name the client of each table.

In test runs on PostgreSQL, `Collector` records each statement of requests once, with its parameters. At the end, the
server explains them. In its plan, the conditions of each scan of a table must include the client's id. The planner adds
conditions that follow from equal columns, too (https://www.postgresql.org/docs/15/using-explain.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flask
import regex

# Tables that may be read without the client: the column that a scan must name instead, if any, and the reason.
EXEMPT = {
    "api_keys": ("hash", "the API key determines the client"),
    "backups": ("", "one row, shared by all clients"),
    "delivery_lease": ("", "one row, shared by all clients"),
    "epochs": ("", "one row, shared by all clients"),
    "schema_version": ("", "one row, shared by all clients"),
}
COLUMN = {"clients": "id"}  # tables whose client column is not `client_id`
CONDITIONS = ("Index Cond", "Recheck Cond", "Filter", "Join Filter", "Hash Cond", "Merge Cond", "TID Cond")
SCAN_CONDITIONS = CONDITIONS[:3]
BRACKETS = regex.compile(r"\((?:[^()]|(?R))*\)")  # including their content
ROWS_ALIAS = "given"  # the alias of the values in a statement about many rows, each with its client
INSERTED = re.compile(r"\s*INSERT INTO (\w+) \(([^)]*)\)")


class Statement(NamedTuple):
    """A statement as it was sent."""

    text: str
    values: Sequence[Any]

    @property
    def shape(self) -> str:
        """The text without the number of its parameters."""
        return re.sub(r"\$\d+(, \$\d+)+", "$…", self.text)


class Collector:
    """Recorder of the statements of requests."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.statements: dict[str, Statement] = {}

    def record(self, statement: Statement) -> None:
        if statement.text in self.texts or not flask.has_request_context():
            return
        self.texts.add(statement.text)
        if re.match(r"\s*\(*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", statement.text):
            self.statements.setdefault(statement.shape, statement)

    def listen(self) -> None:
        """Record the statements that are sent from now on."""
        from findings_adapters.postgres.store import PostgresCursor

        execute, executemany = PostgresCursor.execute, PostgresCursor.executemany

        def recording_execute(cursor: Any, text: bytes | str, values: Any = None, **options: Any) -> Any:
            if isinstance(text, bytes):  # the connection pool's own statements are str
                self.record(Statement(text.decode(), values or ()))
            return execute(cursor, text, values, **options)

        def recording_executemany(cursor: Any, text: bytes, rows: Sequence[Any], **options: Any) -> Any:
            for row in rows[:1]:
                self.record(Statement(text.decode(), row))
            return executemany(cursor, text, rows, **options)

        PostgresCursor.execute, PostgresCursor.executemany = recording_execute, recording_executemany  # type: ignore[method-assign]

    def complaints(self, url: str) -> list[str]:
        """Return the statements that do not name the client of a table, each with its tables."""
        import psycopg

        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
            complaints = []
            for statement in self.statements.values():
                tables = unbound(explain(connection, statement), statement.text)
                if tables:
                    complaints.append(f"{', '.join(tables)}: {' '.join(statement.text.split())}")
        return sorted(complaints)


def explain(connection: Any, statement: Statement) -> dict[str, Any]:
    text = f"EXPLAIN (VERBOSE, FORMAT JSON) {statement.text}".encode()
    return connection.execute(text, statement.values or None).fetchone()[0][0]["Plan"]


def unbound(plan: dict[str, Any], text: str) -> list[str]:
    """Return the tables that a statement reads or writes without naming the client."""
    scans = [each for each in nodes(plan) if each.get("Schema") == "public" and each["Node Type"] != "ModifyTable"]
    join_conditions = [one for each in nodes(plan) for one in conditions(each, CONDITIONS) if f"{ROWS_ALIAS}." in one]
    tables = {each["Relation Name"] for each in scans if not is_bound(each, join_conditions)}
    inserted = INSERTED.match(text)
    if inserted and inserted[1] not in EXEMPT | COLUMN and "client_id" not in inserted[2]:
        tables.add(inserted[1])
    return sorted(tables)


def is_bound(scan: dict[str, Any], join_conditions: list[str]) -> bool:
    """Check if a scan is limited to one client, directly or by equality with the client of another row."""
    table, alias = scan["Relation Name"], scan["Alias"]
    exempt, _ = EXEMPT.get(table, (COLUMN.get(table, "client_id"), ""))
    column = rf"{alias}\.(?:{COLUMN.get(table, 'client_id')}|{exempt})"
    own = (one for each in (scan, *bitmaps(scan)) for one in conditions(each, SCAN_CONDITIONS))
    return not exempt or any(re.fullmatch(f"{column} = .+|.+ = {column}", one) for one in (*join_conditions, *own))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def bitmaps(scan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the index scans of a bitmap scan that all rows must match."""
    for each in scan.get("Plans", ()):
        if each["Node Type"] == "Bitmap Index Scan":
            yield each
        elif each["Node Type"] == "BitmapAnd":
            yield from bitmaps(each)


def conditions(node: dict[str, Any], kinds: Sequence[str]) -> Iterator[str]:
    """Yield the conditions that every row of a node meets, one at a time."""
    for kind in kinds:
        condition = re.sub(r"'(?:[^']|'')*'", "''", node.get(kind, ""))
        yield from conjuncts(re.sub(r"\((\w+\.\w+)\)::\w+", r"\1", condition))  # remove casts of columns


def conjuncts(condition: str) -> Iterator[str]:
    outside = BRACKETS.sub(lambda found: "_" * len(found[0]), condition)
    if condition and not outside.strip("_"):
        yield from conjuncts(condition[1:-1])
    elif " AND " in outside:
        begin = 0
        for found in re.finditer(" AND |$", outside):
            yield from conjuncts(condition[begin : found.start()])
            begin = found.end()
    else:
        yield condition
