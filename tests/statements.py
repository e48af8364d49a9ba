"""Whether each statement that requests run on PostgreSQL names the client of every table that it reads or writes.

In the PostgreSQL pass, the first of each statement is noted with its parameters while a request is answered in this
process, and explained by the server in the end. In its plan, each scan of a table must be bound to a client by its own
conditions, where the planner puts what follows from equal columns, too
(https://www.postgresql.org/docs/15/using-explain.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flask
import regex

# What may be read without a client, and why: a table, and what its scan is then bound to.
EXEMPT = {
    "api_keys": ("hash", "a request tells its client by its key"),
    "backups": ("", "one row, of all clients' database"),
    "delivery_lease": ("", "one row, of all clients' database"),
    "epochs": ("", "one row, of all clients' database"),
    "schema_version": ("", "one row, of all clients' database"),
}
COLUMN = {"clients": "id"}  # what the client is called, elsewhere than `client_id`
CONDITIONS = ("Index Cond", "Recheck Cond", "Filter", "Join Filter", "Hash Cond", "Merge Cond", "TID Cond")
OF_SCANS = CONDITIONS[:3]
BRACKETS = regex.compile(r"\((?:[^()]|(?R))*\)")  # with all that is between them
ROWS = "given"  # the rows of a statement for many, each with its client
INSERTED = re.compile(r"\s*INSERT INTO (\w+) \(([^)]*)\)")


class Statement(NamedTuple):
    """A statement as it was sent."""

    text: str
    values: Sequence[Any]

    @property
    def shape(self) -> str:
        """The text, whatever the number of its values is."""
        return re.sub(r"\$\d+(, \$\d+)+", "$…", self.text)


class Collector:
    """Notes the statements of requests."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.statements: dict[str, Statement] = {}

    def note(self, statement: Statement) -> None:
        if statement.text in self.texts or not flask.has_request_context():
            return
        self.texts.add(statement.text)
        if re.match(r"\s*\(*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", statement.text):
            self.statements.setdefault(statement.shape, statement)

    def listen(self) -> None:
        """Note what is sent from now on."""
        from findings_adapters.postgres.store import PostgresCursor

        execute, executemany = PostgresCursor.execute, PostgresCursor.executemany

        def noting(cursor: Any, text: bytes | str, values: Any = None, **given: Any) -> Any:
            if isinstance(text, bytes):  # none of the pool's own
                self.note(Statement(text.decode(), values or ()))
            return execute(cursor, text, values, **given)

        def noting_first(cursor: Any, text: bytes, rows: Sequence[Any], **given: Any) -> Any:
            for row in rows[:1]:
                self.note(Statement(text.decode(), row))
            return executemany(cursor, text, rows, **given)

        PostgresCursor.execute, PostgresCursor.executemany = noting, noting_first  # type: ignore[method-assign]

    def complaints(self, url: str) -> list[str]:
        """Return which statements do not name the client of each table."""
        import psycopg

        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
            found = []
            for statement in self.statements.values():
                tables = unbound(explain(connection, statement), statement.text)
                if tables:
                    found.append(f"{', '.join(tables)}: {' '.join(statement.text.split())}")
        return sorted(found)


def explain(connection: Any, statement: Statement) -> dict[str, Any]:
    """Return the plan of a statement."""
    text = f"EXPLAIN (VERBOSE, FORMAT JSON) {statement.text}".encode()
    return connection.execute(text, statement.values or None).fetchone()[0][0]["Plan"]


def unbound(plan: dict[str, Any], text: str) -> list[str]:
    """Return the tables that a statement reads or writes without their client."""
    scans = [each for each in nodes(plan) if each.get("Schema") == "public" and each["Node Type"] != "ModifyTable"]
    joined = [one for each in nodes(plan) for one in conditions(each, CONDITIONS) if f"{ROWS}." in one]
    tables = {each["Relation Name"] for each in scans if not is_bound(each, joined)}
    inserted = INSERTED.match(text)
    if inserted and inserted[1] not in EXEMPT | COLUMN and "client_id" not in inserted[2]:
        tables.add(inserted[1])
    return sorted(tables)


def is_bound(scan: dict[str, Any], joined: list[str]) -> bool:
    """Tell whether all rows of a scan have the client that is given, or that of rows which have it."""
    table, alias = scan["Relation Name"], scan["Alias"]
    exempt, _ = EXEMPT.get(table, (COLUMN.get(table, "client_id"), ""))
    column = rf"{alias}\.(?:{COLUMN.get(table, 'client_id')}|{exempt})"
    own = (one for each in (scan, *bitmaps(scan)) for one in conditions(each, OF_SCANS))
    return not exempt or any(re.fullmatch(f"{column} = .+|.+ = {column}", one) for one in (*joined, *own))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the nodes of a plan."""
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def bitmaps(scan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give what finds the rows of a scan, where all of it does."""
    for each in scan.get("Plans", ()):
        if each["Node Type"] == "Bitmap Index Scan":
            yield each
        elif each["Node Type"] == "BitmapAnd":
            yield from bitmaps(each)


def conditions(node: dict[str, Any], kinds: Sequence[str]) -> Iterator[str]:
    """Give what is true for all rows of a node, each by itself."""
    for kind in kinds:
        told = re.sub(r"'(?:[^']|'')*'", "''", node.get(kind, ""))
        yield from conjuncts(re.sub(r"\((\w+\.\w+)\)::\w+", r"\1", told))  # a column as what it is already


def conjuncts(condition: str) -> Iterator[str]:
    """Give what must all be true for a condition to be."""
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
