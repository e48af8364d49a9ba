"""The command `copy`, which copies a database to another engine and back."""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click.testing
import pytest

import findings_service as core
from findings_adapters.postgres import copying
from findings_features import audit
from tests.clients import API, Client, cases, client_of, client_with, database_of, task
from tests.engines import connect_directly, open_store
from tests.postgres_server import Databases, fresh_url, run_in
from tests.scenarios import WHOLE_TASK, post
from tests.servers import IMPORT_CORE, command, invoke, start_process, wait_until

pytestmark = pytest.mark.sqlite  # each test uses both engines
TABLES = copying.read_tables()


url = pytest.fixture(fresh_url)


def copy(source: object, target: object, *, code: int = 0) -> click.testing.Result:
    """Copy a database, and check the exit code."""
    done = invoke("copy", "--from", str(source), "--to", str(target))
    assert done.exit_code == code, done.output
    assert code or done.output.endswith("verified.\n")
    return done


def check(db: object) -> str:
    """Audit a database, check that it has no faults, and return the output."""
    done = invoke("check", "--db", str(db))
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def open_app(db: object) -> Iterator[Any]:
    """Open an application on a database, without fsync, and close it at the end."""
    app = core.create_app(core.Settings(db=str(db), synchronous="OFF"))
    try:
        yield app
    finally:
        database_of(app).close()


def rows_of(db: object) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the tables that are copied, by table."""
    with open_store(str(db)) as database, database.snapshot() as connection:
        columns = {table.name: ", ".join(table.columns) for table in TABLES}
        read = {name: connection.execute(f"SELECT {names} FROM {name}") for name, names in columns.items()}
        return {name: sorted(rows.fetchall(), key=repr) for name, rows in read.items()}


def make_schema(db: object) -> None:
    """Create an empty database with the schema."""
    with open_store(str(db)) as database, database.reading():
        pass


def is_empty(url: str) -> bool:
    """Return whether a PostgreSQL database has no tables."""
    return not run_in(url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'")


def alter(file: Path, statement: str) -> list[Any]:
    """Run a statement on a database file, and return its rows."""
    with connect_directly(file) as connection:
        return connection.execute(statement).fetchall()


def responses_of(client: Client) -> dict[str, tuple[bytes, str | None]]:
    """Return the body and ETag of the responses to a client's reads, by path."""
    queries = ("limit=200", "limit=200&sort=severity", "q=unsafe", "q=é", "mainLine=true&q=anna", "branch=feature")
    queries += ("status=dismissed,resolved", "assignee=anna", "view=full&limit=50")
    paths = [*(f"tasks?{query}" for query in queries), "runs", "runs?branch=feature", "project-types", "overview"]
    for run in client.read("runs?limit=200")["runs"]:
        paths += [f"runs/{run['id']}", f"tasks?runId={run['id']}"]
        paths += [f"runs/{run['id']}/gate"] if run["status"] == "completed" and not run["branch"] else []
        target = f"&targetUrl={run['targetUrl']}" if run["targetUrl"] else ""
        paths.append(f"brief?projectType={run['projectType']}{target}")
    for each_task in client.read("tasks?limit=200")["tasks"]:
        paths += [f"tasks/{each_task['id']}", f"tasks/{each_task['id']}/history"]
    responses = {path: client.get(f"{API}/{path}") for path in dict.fromkeys(paths)}
    assert {path: each.status_code for path, each in responses.items() if each.status_code != 200} == {}
    return {path: (each.data, each.headers.get("ETag")) for path, each in responses.items()}


# Copies to PostgreSQL and back

SITE = "https://example.com/shop"
START = {"projectType": "web", "targetUrl": SITE, "branch": "feature", "metadata": {"commit": "a\\b"}}
UNUSUAL_TEXT = "Né'w \\ line one\nline\ttwo \\N \\. 🐛"


def populate(client: Client, name: str, count: int, target: str | None = None) -> None:
    """Report tasks on the main line and on a branch, and triage one."""
    client.register("web")
    for branch in (None, "b", None):
        run = client.start(branch=branch, targetUrl=target)
        reports = [task(externalId=f"{name} {n}", title=f"Unsafe {name}{n}") for n in range(count)]
        ids = [each["id"] for each in client.submit(run, *reports)["tasks"]]
        client.submit(run, task(externalId=f"{branch}", title="Unsafe branch"))
        client.finish(run, resolveMissing=branch is None)
        client.triage(ids[-1], assignee=name, comment=f"{name} looks")


@pytest.fixture
def used(tmp_path: Path) -> tuple[Path, str]:
    """A database with rows in every table and a second client: its path, and a key."""
    with open_app(tmp_path / "lived.db") as app:
        client = client_of(app)
        populate(client, "anna", 6, SITE)
        assert post(client, "webhooks", {"url": "https://hooks.invalid/"}).status_code == 201
        whole = {name: value for name, value in WHOLE_TASK.items() if name != "status"}
        unusual = {"title": UNUSUAL_TEXT, "tags": ["é"], "formerExternalIds": ["img-alt-0"]}
        found = client.add(post(client, "runs", START, "of feature").json["id"], **whole | unusual)
        client.triage(found, "dismissed", reason="false_positive", comment=UNUSUAL_TEXT)
        decision = {"severity": "low", "until": "2120-01-01", "links": [{"rel": "issue", "url": SITE}]}
        assert client.patch(f"{API}/tasks/{found}", json=decision).status_code == 200
        for path, body in (
            (f"tasks/{found}/verifications", {"outcome": "fixed", "comment": UNUSUAL_TEXT}),
            ("tasks/claim", {}),
        ):
            assert post(client, path, body, path).status_code in (200, 201)
        with database_of(app).transaction() as connection:
            core.insert_client(connection, "other")  # its sequence numbers follow those of the first client
        populate(client_of(app, client="other"), "other", 3)
    return tmp_path / "lived.db", client.key


def test_copy_to_postgresql_and_back_changes_no_response(used: tuple[Path, str], url: str, tmp_path: Path) -> None:
    before, key = used
    with open_app(before) as app:
        expected = responses_of(client_with(app, key))
    assert len(expected) > 30
    rows = rows_of(before)
    assert all(rows.values())
    back = tmp_path / "back.db"
    copy(before, url)
    copy(url, back)
    for copied, engine in ((url, "PostgreSQL"), (back, "SQLite")):
        assert rows_of(copied) == rows
        assert engine in check(copied)
        with open_app(copied) as app:
            assert responses_of(client_with(app, key)) == expected
    assert oct(back.stat().st_mode & 0o777) == "0o600"
    assert not list(tmp_path.glob("back.db.partial*"))


def test_copied_database_accepts_writes(used: tuple[Path, str], url: str, tmp_path: Path) -> None:
    before, key = used
    copy(before, url)
    for db in (url, tmp_path / "back.db"):
        with open_app(db) as app:
            client = client_with(app, key)
            runs = {run["id"] for run in client.read("runs")["runs"]}
            assert post(client, "runs", START, "of feature").json["id"] in runs
            run = client.start(targetUrl=SITE)
            done = client.submit(run, task(externalId="anna 0", title=f"{db}"), task(externalId=f"in {db}"))
            assert [each["result"] for each in done["tasks"]] == ["updated", "created"]
            client.finish(run)
        check(db)
        if db == url:
            copy(url, tmp_path / "back.db")


def test_history_numbers_continue_after_a_copied_webhook_position(small: Path, url: str, tmp_path: Path) -> None:
    back, twin = tmp_path / "back.db", tmp_path / "twin.db"
    with open_app(small) as app:
        client = client_of(app)
        run = client.start(targetUrl=SITE)
        assert post(client, "webhooks", {"url": "https://hooks.invalid/"}).status_code == 201
        client.remove(f"runs/{run}")
    for source, target in ((small, url), (url, back), (back, twin)):
        copy(source, target)
        with open_app(target) as app:
            run = client_with(app, client.key).start(targetUrl=SITE)
            with database_of(app).reading() as connection:
                (position,) = connection.execute("SELECT MAX(history_seq) FROM webhooks").fetchone()
                (newest,) = connection.execute("SELECT MAX(seq) FROM history").fetchone()
            client_with(app, client.key).remove(f"runs/{run}")
        assert newest > position


# Sequence numbers


@pytest.mark.parametrize(
    ("spans", "shifts"),
    cases(
        none=([], {}),
        apart=([("a", 1, 5), ("b", 6, 9)], {}),
        equal=([("b", 1, 5), ("a", 1, 5)], {"b": 5}),
        overlapping=([("a", 1, 5), ("b", 5, 6), ("c", 7, 9)], {"b": 1, "c": 1}),
        only_one_overlapping=([("a", 1, 5), ("b", 5, 6), ("c", 8, 9)], {"b": 1}),
    ),
)
def test_overlapping_number_ranges_are_shifted_apart(spans: Any, shifts: Mapping[str, int]) -> None:
    assert copying.shifts_of(spans) == shifts
    ranges = [range(first + shifts.get(client, 0), last + 1 + shifts.get(client, 0)) for client, first, last in spans]
    assert sum(map(len, ranges)) == len({seq for numbers in ranges for seq in numbers})


def test_every_column_with_a_sequence_number_has_a_known_owner() -> None:
    found = {f"{table.name}.{table.columns[at]}": owner for table in TABLES for at, owner in table.numbers.items()}
    columns = {f"{table.name}.{column}" for table in TABLES for column in table.columns}
    assert found.keys() == {column for column in columns if column.endswith("seq")}
    owners = {
        "answer_seq": "idempotent_answers",
        "branch_seq": "branches",
        "task_seq": "tasks",
        "run_seq": "runs",
        "history_seq": "history",
    }
    for column, owner in found.items():
        table, _, name = column.partition(".")
        assert owner == owners.get(name, table)


def test_clients_with_equal_sequence_numbers_are_copied_to_a_file(url: str, tmp_path: Path) -> None:
    counts = {"default": 150, "one": 3, "two": 260}
    with open_app(url) as app:
        for name in counts:
            with database_of(app).transaction() as connection:
                core.insert_client(connection, name)
        clients = {name: client_of(app, client=name) for name in counts}
        for name, count in counts.items():
            populate(clients[name], name, count)
            for table in ("runs", "history", "branches"):
                run_in(url, f"ALTER SEQUENCE {table}_seq_seq RESTART")
        expected = {name: responses_of(client) for name, client in clients.items()}
    file = tmp_path / "all.db"
    done = copy(url, file)
    assert "the same row numbers in runs, tasks, branches, history; some were shifted" in done.output
    check(file)
    with open_app(file) as app:
        assert {name: responses_of(client_with(app, client.key)) for name, client in clients.items()} == expected
        populate(client_with(app, clients["one"].key), "one", 4)
    check(file)


def test_copy_between_postgresql_databases_and_schemas(small: Path, url: str, postgres: Databases) -> None:
    other = postgres.new()
    run_in(other, "CREATE SCHEMA apart")
    copy(small, url)
    for source, target in ((url, other), (other, f"{other}?options=-csearch_path%3Dapart")):
        copy(source, target)
        assert rows_of(target) == rows_of(small)
        check(target)
    postgres.drop(other)


# Refused sources and targets


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.db"
    with open_app(path) as app:
        populate(client_of(app), "tests", 2)
    return path


def test_copy_refuses_a_target_with_data(small: Path, url: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    copy(small, url)
    copy(small, other)
    for target in (url, other):
        rows = rows_of(target)
        refused = copy(small, target, code=1)
        assert "already has data of this service, in clients, api_keys, project_types" in refused.output
        assert len(refused.output.splitlines()) == 1
        assert rows_of(target) == rows


def test_copy_fills_a_database_with_an_empty_schema(small: Path, url: str, tmp_path: Path) -> None:
    for target in (url, str(tmp_path / "new.db")):
        make_schema(target)
        copy(small, target)
        assert rows_of(target) == rows_of(small)
        check(target)


def test_copy_refuses_a_target_file_that_is_open(small: Path, tmp_path: Path) -> None:
    with open_app(tmp_path / "new.db") as app:
        with database_of(app).reading():
            pass
        assert "open in another process" in copy(small, tmp_path / "new.db", code=1).output
    assert not list(tmp_path.glob("*.partial*"))


def test_copy_refuses_a_target_of_another_program(small: Path, url: str, tmp_path: Path) -> None:
    run_in(url, "CREATE TABLE tasks (n INT)")
    alter(tmp_path / "theirs.db", "CREATE TABLE tasks (n INT)")
    assert "has tables of another program" in copy(small, url, code=1).output
    assert "of another program" in copy(small, tmp_path / "theirs.db", code=1).output


def test_copy_refuses_the_source_or_its_wal_as_target(small: Path, url: str) -> None:
    copy(small, url)
    for source, target in ((small, small), (small, f"{small}-wal"), (url, url)):
        assert "is the source, or belongs to it" in copy(source, target, code=1).output


def test_copy_refuses_a_source_that_is_missing_or_not_a_database(url: str, tmp_path: Path) -> None:
    junk, new = tmp_path / "junk.db", tmp_path / "new.db"
    junk.write_bytes(b"junk" * 1024)
    for source, target, message in (
        (tmp_path / "none.db", url, "there is no file"),
        (url, new, "there is no database of this service at postgresql://"),
        (junk, new, f"Error: {junk} cannot be used"),
        (tmp_path, new, f"Error: {tmp_path} cannot be used"),
    ):
        assert message in copy(source, target, code=1).output
    assert is_empty(url)
    assert not new.exists()


@pytest.mark.parametrize("paths", [("", "new.db"), ("old.db", "")], ids=["from", "to"])
def test_copy_refuses_an_empty_name(paths: tuple[str, str]) -> None:
    assert "must not be empty" in copy(*paths, code=2).output


def test_copy_does_not_migrate_an_older_source(small: Path, tmp_path: Path) -> None:
    alter(small, "PRAGMA user_version = 6")
    before = small.read_bytes()
    assert "has schema version 6" in copy(small, tmp_path / "new.db", code=1).output
    assert small.read_bytes() == before


LONG = "".join(random.Random(1).choices([chr(number) for number in range(0x400, 0x2000)], k=2000))


@pytest.mark.parametrize(
    ("changes", "messages"),
    cases(
        nul=("title = 'a' || char(0) || 'b'", ["of tasks: the one with client_id 'default', id '{id}' has U+0000"]),
        too_large=(f"external_id = '{LONG}'", ["index row size", "tasks_by_identity", "at most about 2,500 bytes"]),
        faults=("times_seen = 0", ["has a timesSeen that is lower", "every row was copied unchanged"]),
    ),
)
def test_copy_reports_values_that_postgresql_rejects(small: Path, url: str, changes: str, messages: list[str]) -> None:
    ((task_id,),) = alter(small, f"UPDATE tasks SET {changes} WHERE seq = 2 RETURNING id")
    refused = copy(small, url, code=1).output
    assert all(message.format(id=task_id) in refused for message in messages), refused
    assert is_empty(url)


def test_copy_reports_text_that_is_not_utf8(small: Path, tmp_path: Path) -> None:
    alter(small, "UPDATE tasks SET title = CAST(x'61ff' AS TEXT) WHERE seq = 2")
    assert "a row of tasks has a text that is not valid UTF-8" in copy(small, tmp_path / "new.db", code=1).output
    assert not (tmp_path / "new.db").exists()


# Failures


def test_copy_to_postgresql_with_different_values_is_dropped(small: Path, url: str) -> None:
    make_schema(url)
    run_in(
        url,
        """CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN NEW.title = replace(NEW.title, 'tests1', 'tests2'); RETURN NEW; END $$;
           CREATE TRIGGER spoil BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION spoil()""",
    )
    done = copy(small, url, code=1)
    assert "tasks: 4 rows were stored, but not all as they were read" in done.output
    assert "was dropped" in done.output
    assert not any(rows_of(url).values())


@pytest.mark.parametrize(
    ("change", "message"),
    cases(
        a_row_less=(lambda row: [row] if row[0] > 1 else [], "rows were read, but"),
        another_value=(lambda row: [(*row[:-1], row[-1] or "x")], "not all as they were read"),
        texts_changed_places=(lambda row: [(*row[:4], row[5], row[4], *row[6:])], "CHECK constraint failed"),
    ),
)
def test_copy_to_a_file_with_different_rows_is_removed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, message: str
) -> None:
    fill = copying.FileTarget.fill

    def spoil_history(self: Any, table: copying.Table, rows: Any) -> None:
        fill(self, table, (each for row in rows for each in (change(row) if table.name == "history" else [row])))

    monkeypatch.setattr(copying.FileTarget, "fill", spoil_history)
    assert message in copy(small, tmp_path / "new.db", code=1).output
    assert not list(tmp_path.glob("new.db*"))


SLOW_COPY = f"""{IMPORT_CORE}, time
from findings_adapters.postgres import copying

filled = copying.moved

def slowly(rows, table, shifts, sign=1):
    for row in filled(rows, table, shifts, sign):
        yield row
        if table.name == "sightings" and sign == 1:
            print("under way", flush=True)
            time.sleep(60)

copying.moved = slowly
findings_service.main()
"""


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_copy_leaves_no_target(small: Path, url: str, tmp_path: Path, how: signal.Signals) -> None:
    for target in (url, str(tmp_path / "new.db")):
        line = [sys.executable, "-c", SLOW_COPY, "copy", "--from", str(small), "--to", target]
        process = start_process(line, tmp_path / "slow", "under way")
        assert process.stop(how) != 0
        assert "Traceback" not in process.log_text()
    wait_until(lambda: is_empty(url))
    assert not (tmp_path / "new.db").exists()
    assert how == signal.SIGKILL or not list(tmp_path.glob("new.db*"))
    copy(small, tmp_path / "new.db")


def test_lost_connection_during_a_copy_is_reported_in_one_line(
    small: Path, url: str, postgres: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = copying.moved

    def moved_until_the_end(rows: Any, table: copying.Table, *more: Any) -> Any:
        if table.name == "sightings":
            postgres.end_connections(url)
        return moved(rows, table, *more)

    monkeypatch.setattr(copying, "moved", moved_until_the_end)
    refused = copy(small, url, code=1)
    assert len(refused.output.splitlines()) == 1
    assert "terminating connection" in refused.output
    assert is_empty(url)


def test_copy_reports_a_locked_target(small: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr("findings_adapters.postgres.bulk.LOCK_TIME", 0.2)
    make_schema(url)
    with psycopg.connect(url) as session:
        session.execute("SELECT * FROM tasks")
        assert "other sessions are using its tables" in copy(small, url, code=1).output
    copy(small, url)


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "server"])
def test_copy_is_a_snapshot_of_a_source_that_is_written(
    small: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    if not is_file:
        copy(small, url)
    source, target = (small, url) if is_file else (url, tmp_path / "new.db")
    before, seen = rows_of(source), copying.Tally.seen
    with open_app(source) as app:
        client, titles = client_of(app), itertools.count()

        def seen_later(self: copying.Tally, rows: Any) -> Iterator[Any]:
            yield from seen(self, rows)
            client.submit(client.start(), task(title=f"{next(titles)}"))

        monkeypatch.setattr(copying.Tally, "seen", seen_later)
        copy(source, target)
    assert next(titles) > 20
    assert len(rows_of(target)["tasks"]) == len(before["tasks"])
    check(target)


# The command


def test_copy_between_files_works_without_psycopg(small: Path, tmp_path: Path) -> None:
    without = (sys.executable, "-c", f"{IMPORT_CORE}, sys; sys.modules['psycopg'] = None; findings_service.main()")
    assert "Copy a database to a new file" in command("copy", "--help", program=without).stdout
    done = command("copy", "--from", str(small), "--to", str(tmp_path / "new.db"), program=without)
    assert (done.returncode, done.stderr.endswith("verified.\n")) == (0, True), done.stderr
    refused = command("copy", "--from", str(small), "--to", "postgresql:///nowhere", program=without)
    assert refused.returncode == 1
    assert "pip install '.[postgres]'" in refused.stderr


def test_copy_prints_the_number_of_rows_of_each_table(small: Path, tmp_path: Path) -> None:
    counts = dict(line.split() for line in copy(small, tmp_path / "new.db").output.splitlines()[1:-1])
    assert counts.keys() == {table.name for table in TABLES}
    assert (counts["tasks"], counts["runs"], counts["task_details"]) == ("4", "3", "4")


def test_backup_records_are_not_copied(small: Path, url: str, tmp_path: Path) -> None:
    assert command("backup", str(tmp_path / "a.db"), "--db", str(small)).returncode == 0
    counts = []
    for target in (small, tmp_path / "new.db", url):
        if target != small:
            copy(small, target)
        with open_store(str(target)) as database, database.reading() as connection:
            counts += connection.execute("SELECT COUNT(*) FROM backups").fetchone()
    assert counts == [1, 0, 0]


def test_audit_is_not_limited_by_the_statement_timeout(
    small: Path, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = pytest.importorskip("findings_adapters.postgres.store")
    copy(small, url)
    second = 2.0
    monkeypatch.setattr(store, "STATEMENT_TIME", second / 2)
    monkeypatch.setattr(store, "SILENCE", second / 10)
    slow = f"SELECT id FROM runs WHERE pg_sleep({0.4 * second}) IS NULL"  # there are three runs
    monkeypatch.setattr(audit, "INTEGRITY_CHECKS", {"it is {}": slow})
    check(url)
    monkeypatch.setattr(audit, "INTEGRITY_CHECKS", {})
    copy(url, tmp_path / "new.db")


@pytest.mark.parametrize(
    ("arguments", "tool"),
    [(("backup", "a.db"), "pg_dump"), (("compact",), "VACUUM FULL"), (("restore", __file__), "pg_restore")],
)
def test_file_commands_name_the_postgresql_tool(small: Path, url: str, arguments: tuple[str, ...], tool: str) -> None:
    copy(small, url)
    done = command(*arguments, "--db", url.replace("@", ":secret@"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert tool in done.stderr
    assert "secret" not in done.stderr
