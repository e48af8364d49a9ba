"""Database files: with content, damaged, moved, and of other programs or versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import flask
import flask.json.provider
import pytest

from findings_service import create_app
from tests.clients import API, Client, assert_storage_problem, cases, database_of, task
from tests.engines import connect_directly


@pytest.fixture
def filled(app: flask.Flask, client: Client, tmp_path: Path) -> Path:
    """A closed database with two main-line runs, two runs of a branch, four tasks and some history."""
    client.register("web")
    first, second = (client.start("web", targetUrl=f"https://example.com/{name}") for name in "ab")
    tagged = task(externalId="x", tags=["a", "b"])
    ids = [item["id"] for item in client.submit(first, tagged, task(severity="low"))["tasks"]]
    client.add(second, externalId="x", status="dismissed")
    client.triage(ids[1], "resolved", comment="Done")
    client.finish(first)
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="y")
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="x")
    database_of(app).close()
    return tmp_path / "findings.db"


def stored_rows(db: Path) -> list[list[Any]]:
    """Return all rows of a database, except keys, stored responses and health."""
    tables = ("clients", "project_types", "runs", "tasks", "task_details", "task_tags", "sightings", "history")
    with connect_directly(db) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in (*tables, "counters")]


def damage_index(connection: sqlite3.Connection, name: str) -> None:
    """Corrupt an entry of an index in the file."""
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    whole = bytearray(path.read_bytes())
    start = (page - 1) * size
    whole[start : start + size] = whole[start : start + size].replace(b"dismissed", b"dismissee")
    path.write_bytes(whole)


def assert_storage_unusable(send: Callable[..., Any]) -> None:
    """Check that reads, writes and the health check all return 503 `storage_full`."""
    for method, path, body in (
        ("GET", f"{API}/tasks", None),
        ("POST", f"{API}/runs", {"projectType": "web"}),
        ("GET", "/healthz", None),
    ):
        assert_storage_problem(send(method, path, body), "storage_full")


def move_database_away(db: Path) -> None:
    """Move a database file, its WAL and its shared memory file."""
    for suffix in ("", "-wal", "-shm"):
        db.with_name(f"{db.name}{suffix}").rename(db.with_name(f"moved.db{suffix}"))


def move_database_back(db: Path) -> None:
    for moved in db.parent.glob("moved.db*"):
        moved.rename(moved.with_name(moved.name.replace("moved.db", db.name)))


def database_files(folder: Path) -> dict[str, bytes]:
    """Return the database files and WALs of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.db*") if not path.name.endswith(("-shm", ".log"))}


def database_of_version(version: int, path: Path) -> None:
    database_of(create_app(db=str(path))).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")


UNUSABLE = cases(
    text=(lambda path: path.write_text("Not a database. " * 1000, "utf-8"), "not a database"),
    short_text=(lambda path: path.write_text("Hi.", "utf-8"), "not a database"),
    others=(foreign_database, "another program's SQLite database"),
    folder=(lambda path: path.mkdir(), "cannot be"),
    nowhere=(lambda path: path.symlink_to(path.parent / "no" / "such.db"), "cannot be"),
    itself=(lambda path: path.symlink_to(path), "cannot be"),
    newer=(partial(database_of_version, 99), "has schema version 99, newer than this program's"),
    older=(partial(database_of_version, 7), "has schema version 7"),
)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of a folder's files, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
