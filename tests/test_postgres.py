"""The PostgreSQL engine: SQL dialect, schema, URLs, connections, transactions and failures."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import click
import pytest

import findings_service as core
from findings_adapters.postgres import dialect
from findings_adapters.serving import commits
from findings_features import audit
from tests.clients import cases, patch_core
from tests.postgres_server import USER, Databases, MakeServer, PostgresServer, db_name, fresh_url, run_in
from tests.servers import PATIENCE, wait_until

store = pytest.importorskip("findings_adapters.postgres.store", reason="psycopg is not installed")
psycopg = pytest.importorskip("psycopg")

SCHEMA = core.schema_path().read_text("utf-8")
ADD_TO_COUNTER = """INSERT INTO counters (client_id, scope, status, severity, n) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (client_id, scope, status, severity) DO UPDATE SET n = counters.n + excluded.n"""
OpenAt = Callable[..., store.PostgresDatabase]


url = pytest.fixture(fresh_url)


@pytest.fixture
def open_at() -> Iterator[OpenAt]:
    """A factory that opens databases of the service, filled with the clients `one` and `two`."""
    opened: list[store.PostgresDatabase] = []

    def open_url(url: str, *, fill: bool = True, **settings: Any) -> store.PostgresDatabase:
        database = core.database_for(core.Settings.read(**{"db": url, "busy_timeout": PATIENCE, **settings}))
        assert isinstance(database, store.PostgresDatabase)
        opened.append(database)
        if fill:
            wait_until(lambda: has_clients(database))
        return database

    yield open_url
    for database in opened:
        database.close()


def has_clients(database: store.PostgresDatabase) -> bool:
    """Insert the clients `one` and `two`. Return False if the server did not accept a connection in time."""
    with suppress(core.Busy), database.transaction() as connection:
        core.insert_client(connection, "one")
        core.insert_client(connection, "two")
        return True
    return False


@pytest.fixture
def database(url: str, open_at: OpenAt) -> store.PostgresDatabase:
    return open_at(url)


def counts(database: store.PostgresDatabase) -> dict[str, int]:
    with database.reading() as connection:
        return dict(connection.execute("SELECT scope, n FROM counters WHERE client_id = ? ORDER BY scope", ("one",)))


def add(database: store.PostgresDatabase, scope: str, n: int = 1) -> None:
    with database.transaction("one") as connection:
        connection.execute(ADD_TO_COUNTER, ("one", scope, "", 0, n))


def backends(postgres: Databases, url: str) -> list[int]:
    condition = f"datname = '{db_name(url)}' AND backend_type = 'client backend'"  # no autovacuum workers
    return [pid for (pid,) in postgres.run(f"SELECT pid FROM pg_stat_activity WHERE {condition} ORDER BY pid")]


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` in another thread during the block, and re-raise its exception afterwards."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(PATIENCE)


# The dialect


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT ? WHERE a = ?", "SELECT $1 WHERE a = $2"),
        ("SELECT '?', 'it''s ?', ?", "SELECT '?', 'it''s ?', $1"),
        ("SELECT 1 -- why?\nWHERE a = ?", "SELECT 1 -- why?\nWHERE a = $1"),
        ("SELECT GROUP_CONCAT(a, ',')", "SELECT string_agg(a, ',')"),
    ],
    ids=["marks", "quotes", "comments", "words"],
)
def test_sqlite_statement_is_translated(sql: str, expected: str) -> None:
    assert dialect.translated(sql) == expected


def test_every_key_and_index_contains_the_client_id() -> None:
    for statement in dialect.schema_statements():
        body = statement.partition("(")[2]
        if "client_id" not in body or statement.startswith("CREATE INDEX"):
            continue
        for key in re.findall(r"(?:PRIMARY KEY|UNIQUE|FOREIGN KEY|ON \w+) \(([^)]*)\)", statement):
            assert "client_id" in key, statement


# The schema


COLUMNS_OF = {
    "ours": """SELECT tables.name, columns.name, replace(lower(columns.type), 'integer', 'bigint'), "notnull" OR pk,
        dflt_value FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
        WHERE tables.type = 'table'""",
    "theirs": f"""SELECT table_name, column_name, data_type, CASE is_nullable WHEN 'NO' THEN 1 ELSE 0 END,
        replace(column_default, '::text', '') FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name <> '{dialect.VERSION_TABLE}'""",
}
OF_TABLES = ("CHECK (", "FOREIGN KEY (", "REFERENCES ", "ON DELETE CASCADE", "UNIQUE (", "PRIMARY KEY")


def test_both_engines_have_the_same_schema(database: store.PostgresDatabase) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        ours = {row for row in connection.execute(COLUMNS_OF["ours"]) if not row[0].startswith("sqlite_")}
    with database.reading() as connection:
        assert {*connection.execute(COLUMNS_OF["theirs"])} == ours
    statements = [*dialect.cut_statements(SCHEMA)]
    for table in (each for each in statements if each.startswith("CREATE TABLE")):
        assert all(table.count(word) == dialect.replaced(table, dialect.SCHEMA).count(word) for word in OF_TABLES), (
            table
        )
    for index in (each for each in statements if each.startswith("CREATE UNIQUE") and "(client_id, seq)" not in each):
        assert dialect.replaced(index, dialect.SCHEMA) == index


def test_texts_sort_by_code_point(database: store.PostgresDatabase) -> None:
    texts = ["B", "a", "É", "z", "\uffff", "\U0001f600"]
    with database.transaction("one") as connection:
        connection.executemany(ADD_TO_COUNTER, [("one", text, "", 0, 1) for text in texts])
    assert list(counts(database)) == sorted(texts)


def test_integrity_check_reports_differences_from_the_schema(url: str, open_at: OpenAt) -> None:
    database = open_at(f"{url}?pool_size=1")
    with database.snapshot() as connection:
        assert list(audit.integrity_errors(connection)) == []
    with database.transaction() as connection:
        connection.execute("DROP INDEX tasks_by_status")
        connection.execute("ALTER TABLE runs DROP COLUMN reported")
        connection.execute("ALTER TABLE tasks DROP CONSTRAINT tasks_severity_check")
        connection.execute("ALTER TABLE tasks ALTER COLUMN title DROP NOT NULL")
        connection.execute("ALTER TABLE history DROP CONSTRAINT history_client_id_task_seq_fkey")
    with database.snapshot() as connection:
        messages = "\n".join(connection.integrity_errors())
    for name in ("tasks_by_status", "runs.reported", "severity >= 1", "tasks.title", "history FOREIGN KEY"):
        assert name in messages


def test_concurrent_starts_create_and_migrate_the_schema_once(
    url: str, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(counts, [open_at(url, fill=False) for _ in range(6)])) == [{}] * 6
    add(open_at(url), "a")
    newer = core.SCHEMA_VERSION + 1
    steps = (
        "ALTER TABLE counters ADD COLUMN colour TEXT NOT NULL DEFAULT '';\n"
        "UPDATE counters SET n = n + 1, colour = 'it''s; red' || CAST(n AS TEXT);"
    )
    patch_core(monkeypatch, "SCHEMA_VERSION", newer)
    monkeypatch.setitem(core.REGISTRY.migrations, newer, core.Migration(steps))
    with ThreadPoolExecutor(4) as pool:
        assert [each["a"] for each in pool.map(counts, [open_at(url, fill=False) for _ in range(4)])] == [2] * 4
    assert run_in(url, "SELECT colour FROM counters WHERE scope = 'a'") == [("it's; red1",)]
    assert run_in(url, "SELECT version FROM schema_version") == [(newer,)]


def assert_url_refused(url: str, message: str) -> None:
    """Check that the service refuses a database, in one line without the password."""
    with pytest.raises(core.DatabaseUnusable, match=message) as refused:
        core.create_app(db=url)
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


VERSION_TABLE = "CREATE TABLE schema_version (id int, version int); INSERT INTO schema_version VALUES (1, 999)"


@pytest.mark.parametrize(
    ("statement", "message"),
    cases(
        newer=(VERSION_TABLE, r"schema version \d+, newer than this program's"),
        tables_of_another_program=("CREATE TABLE tasks (id int)", "of another program in its schema public: tasks"),
        unreadable_version=("CREATE TABLE schema_version (version int)", "schema_version"),
    ),
)
def test_database_of_another_program_or_version_is_refused(url: str, statement: str, message: str) -> None:
    run_in(url, statement)
    assert_url_refused(url, message)


def test_missing_inaccessible_or_non_utf8_database_is_refused(postgres: Databases, url: str) -> None:
    name, role = db_name(url), f"stranger_{os.getpid()}"
    postgres.run(f"CREATE ROLE {role} LOGIN")
    postgres.run(f"CREATE DATABASE {name}_latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        assert_url_refused(url.replace(f"{USER}@", f"{role}@"), "permission denied for schema public")
        assert_url_refused(url.replace(name, f"{name}_latin"), "its encoding is LATIN1, not UTF8")
        wrong = url.replace(f"{USER}@", f"{USER}:s3cret@").replace(name, "nothing_here")
        assert_url_refused(wrong, 'database "nothing_here" does not exist')
    finally:
        postgres.run(f"DROP DATABASE {name}_latin")
        postgres.run(f"DROP ROLE {role}")


def test_old_server_version_is_refused(
    url: str, database: store.PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.disconnect()
    monkeypatch.setattr(store, "OLDEST", 10**9)
    assert_url_refused(url, "; 15 or newer is needed")
    with pytest.raises(core.Busy, match="cannot be reached"):
        counts(database)


# URLs


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u:s3cret@h:1/d", "postgresql://u@h:1/d"),
        ("postgres://h/d?password=s3cret", "postgresql://h/d"),
        ("postgresql://u@h1:1,h2:2/d", "postgresql://u@h1:1,h2:2/d"),
        ("postgresql://u@[::1]:5/d", "postgresql://u@[::1]:5/d"),
        ("postgresql:///d?host=/run/x&user=u&sslpassword=s3cret", "postgresql:///d?host=/run/x&user=u"),
        ("postgresql://h/d?options=-csearch_path%3Ds&pool_size=2", "postgresql://h/d?options=-csearch_path%3Ds"),
    ],
)
def test_database_name_omits_the_password(url: str, name: str) -> None:
    assert store.Address.of(url, 10).name == name


def test_command_error_omits_the_password() -> None:
    with pytest.raises(click.ClickException) as raised, core.readable_errors("postgresql://u:s3cret@h/d?password=x"):
        raise core.Busy
    assert raised.value.message.startswith("postgresql://u@h/d cannot be used: ")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@[::1/d",
        "postgresql://u:s3cret/2@h/d",
        "postgresql://u:1@s3cret@h/d",
        "postgresql://u:1%s3cret@h/d",
        "postgresql://u:1?s3cret@h/d",
        "postgresql://u:s3cret@h/d?nonsense=1",
        "postgresql://u:s3cret@h/d?pool_size=0",
        "postgresql://u:s3cret@h/d?prepare=maybe",
    ],
)
def test_invalid_url_is_rejected_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(core.ConfigurationError) as refused:
        core.database_for(core.Settings.read(db=url))
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_url_parameters_override_defaults_and_are_decoded_as_in_libpq() -> None:
    address = store.Address.of("postgresql://h/d?connect_timeout=9&application_name=x&options=-cjit%3Don", 10)
    for parameter in ("connect_timeout=9", "application_name=x", "-c jit=off", "-cjit=on'"):
        assert parameter in address.conninfo
    assert address.conninfo.index("jit=off") < address.conninfo.index("jit=on")
    address = store.Address.of("postgresql://h/d?password=a+b%2Bc&pool_size=%33&application_name=", 10)
    read = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    assert (read["password"], address.ours.pool_size, read["application_name"]) == ("a+b+c", 3, "")


def test_windows_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.poll")
    with pytest.raises(core.ConfigurationError, match="require Linux or macOS"):
        core.database_for(core.Settings.read(db="postgresql://h/d"))


# Connections, transactions and the pipeline


def test_executemany_stores_updates_and_deletes_each_row(database: store.PostgresDatabase) -> None:
    texts = ["", "a'b\"c\\d{e},NULL", "\x01\t\n", "é\U0010ffff", "NULL", "least", "most"]
    numbers = [*range(5), -(2**63), 2**63 - 1]
    rows = [("one", text, None if n % 2 else text, n) for text, n in zip(texts, numbers, strict=True)]
    with database.transaction("one") as connection:
        connection.execute("CREATE TABLE things (client_id TEXT, a TEXT, b TEXT, n BIGINT)")
        assert connection.executemany("INSERT INTO things (client_id, a, b, n) VALUES (?, ?, ?, ?)", rows).rowcount == 7
        for row in rows:
            assert connection.execute("SELECT * FROM things WHERE a = ? AND n = ?", row[1::2]).fetchall() == [row]
        changes = [("x", 1, "one"), ("y", 1, "one"), ("z", 2, "one"), ("n", 99, "one")]
        changed = connection.executemany("UPDATE things SET b = ? WHERE n = ? AND client_id = ?", changes)
        assert changed.rowcount == 3
        assert connection.execute("SELECT b FROM things WHERE n IN (1, 2) ORDER BY n").fetchall() == [("y",), ("z",)]
        deleted = connection.executemany("DELETE FROM things WHERE n = ?", [(n,) for n in (0, 0, 1, 77)])
        assert deleted.rowcount == 2
        assert connection.executemany("DELETE FROM things WHERE n = ?", []).rowcount == 0


def test_executemany_applies_repeated_keys_one_after_another(database: store.PostgresDatabase) -> None:
    with database.transaction("one") as connection:
        connection.executemany(ADD_TO_COUNTER, [("one", "a", "", 0, 1), ("one", "b", "", 0, 1), ("one", "a", "", 0, 5)])
    assert counts(database) == {"a": 6, "b": 1}


def test_generated_numbers_follow_the_order_of_the_rows(database: store.PostgresDatabase) -> None:
    names = [f"n{number}" for number in range(500)]
    with database.transaction("one") as connection:
        connection.executemany(
            "INSERT INTO branches (client_id, name, project_type, target_url) VALUES (?, ?, '', '')",
            [("one", name) for name in names],
        )
        rows = connection.execute("SELECT name FROM branches WHERE client_id = ? ORDER BY seq", ("one",)).fetchall()
    assert [name for (name,) in rows] == names


def test_snapshot_is_consistent_and_read_only(database: store.PostgresDatabase) -> None:
    add(database, "a")
    with database.snapshot() as connection:
        for name in ("b", "c"):
            assert connection.execute("SELECT COUNT(*) FROM counters").fetchone() == (1,)
            add(database, name)
    with pytest.raises(core.Busy), database.snapshot() as connection:
        connection.execute(ADD_TO_COUNTER, ("one", "d", "", 0, 1))
    assert counts(database) == {"a": 1, "b": 1, "c": 1}


def test_pipelined_error_rolls_back_the_transaction(database: store.PostgresDatabase) -> None:
    def write() -> None:
        with database.transaction("one") as connection:
            connection.execute(ADD_TO_COUNTER, ("one", "a", "", 0, 1))
            connection.execute("INSERT INTO clients (id, created_at) VALUES (?, ?)", ("one", ""))  # already exists
            connection.execute(ADD_TO_COUNTER, ("one", "b", "", 0, 1))

    with pytest.raises(store.PostgresError, match="clients_pkey"):
        write()
    assert counts(database) == {}
    add(database, "again")
    assert counts(database) == {"again": 1}


def test_writers_wait_for_their_own_client_only(database: store.PostgresDatabase) -> None:
    order: list[str] = []

    def write(client_id: str, patience: float | None = None) -> None:
        with database.transaction(client_id, patience) as connection:
            connection.execute("SELECT 1").fetchone()
            order.append(client_id)

    with ThreadPoolExecutor(1) as pool, database.transaction("one") as connection:
        connection.execute("SELECT 1").fetchone()
        pool.submit(write, "two").result(PATIENCE)
        for patience in (0, 0.05):
            with pytest.raises(core.Busy, match="Another writer"):
                pool.submit(write, "one", patience).result(PATIENCE)
        pool.submit(write, "one")
        time.sleep(0.1)
        assert order == ["two"]
    assert order == ["two", "one"]


def test_deadlock_raises_try_again(database: store.PostgresDatabase) -> None:
    both = threading.Barrier(2)

    def write(first: str, second: str) -> None:
        with database.transaction(first) as connection:
            connection.execute("SELECT 1").fetchone()
            both.wait()
            connection.lock(second, None)

    with pytest.raises(core.TryAgain), in_thread(lambda: write("one", "two")):
        write("two", "one")


def test_last_use_times_stay_buffered_until_written(database: store.PostgresDatabase) -> None:
    with database.transaction("one") as connection:
        core.insert_key(connection, "k", "one", "full")
        (key_id,) = connection.execute("SELECT id FROM api_keys WHERE client_id = ?", ("one",)).fetchone()
    database.record_use("one", "api_keys", key_id, "2026-01-01T00:00:00.000Z")
    with database.transaction("two"):
        pass
    assert database.last_uses
    with suppress(KeyError), database.transaction("one"):
        raise KeyError
    assert database.last_uses
    database.write_uses()
    assert not database.last_uses
    with database.reading() as connection:
        assert connection.execute("SELECT last_used_at FROM api_keys").fetchone() == ("2026-01-01T00:00:00.000Z",)


def test_large_pipeline_sends_and_receives_at_the_same_time(database: store.PostgresDatabase) -> None:
    with database.reading() as connection:
        cursors = [connection.execute("SELECT ? || ?", ("x" * 300_000, "y")) for _ in range(50)]
        assert {len(cursor.fetchone()[0]) for cursor in cursors} == {300_001}


def test_rows_are_fetched_as_they_are_consumed(database: store.PostgresDatabase) -> None:
    numbers = "SELECT n FROM generate_series(1, 1000) AS task_details (n)"
    with database.snapshot() as connection:
        rows = iter(connection.execute(numbers))
        assert next(rows) == (1,)
        assert connection.execute("SELECT 0").fetchall() == [(0,)]
        assert [n for (n,) in rows] == list(range(2, 1001))
        cursor = connection.execute(numbers)
        assert [n for (n,), _ in zip(cursor, range(20), strict=False)] == list(range(1, 21))
        assert cursor.fetchone() == (22,)  # zip has consumed 21
        assert len(cursor.fetchall()) == 978
    with pytest.raises(store.PostgresError, match="division"), database.snapshot() as connection:
        list(connection.execute("SELECT 1 / (n - 500) FROM generate_series(1, 1000) AS task_details (n)"))
    assert counts(database) == {}


def test_connections_are_returned_to_the_pool_and_reused(postgres: Databases, url: str, open_at: OpenAt) -> None:
    database = open_at(f"{url}?pool_size=1")
    for _ in range(10):
        add(database, "a")
        with suppress(ZeroDivisionError), database.snapshot() as connection:
            connection.execute("SELECT 1")
            raise ZeroDivisionError
        counts(database)
    assert len(backends(postgres, url)) == 1
    database.close()
    wait_until(lambda: not backends(postgres, url))
    assert counts(database) == {"a": 10}


def test_exhausted_pool_waits_for_a_connection_or_raises_busy(url: str, open_at: OpenAt) -> None:
    impatient, database = open_at(f"{url}?pool_size=1", busy_timeout=0.2), open_at(f"{url}?pool_size=1", fill=False)
    with impatient.reading(), pytest.raises(core.Busy, match="all connections to it are in use"):
        counts(impatient)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: add(database, "a"), range(20)))
    assert counts(database) == {"a": 20}


@pytest.mark.parametrize("prepare", ["on", "off"])
def test_prepare_parameter_controls_prepared_statements(url: str, open_at: OpenAt, prepare: str) -> None:
    database = open_at(f"{url}?prepare={prepare}")
    for _ in range(8):
        counts(database)
    with database.reading() as connection:
        prepared = connection.execute("SELECT COUNT(*) FROM pg_prepared_statements").fetchone()[0]
    assert bool(prepared) == (prepare == "on")


def test_synchronous_setting_overrides_the_servers_default(postgres: Databases, url: str, open_at: OpenAt) -> None:
    def mode(**settings: Any) -> str:
        with open_at(url, fill=False, **settings).reading() as connection:
            return str(connection.execute("SELECT current_setting('synchronous_commit')").fetchone()[0])

    for theirs, synchronous, ours in (
        ("off", "FULL", "on"),
        ("remote_apply", "FULL", "remote_apply"),
        ("on", "NORMAL", "off"),
    ):
        postgres.run(f"ALTER DATABASE {db_name(url)} SET synchronous_commit = '{theirs}'")
        assert mode(synchronous=synchronous) == ours


def test_limited_query_raises_timeout_error(database: store.PostgresDatabase) -> None:
    with pytest.raises(TimeoutError), database.snapshot() as connection, connection.limited(0.02):
        connection.execute("SELECT pg_sleep(5)").fetchall()
    with pytest.raises(TimeoutError), database.snapshot() as connection, connection.limited(0.02):
        [connection.execute("SELECT 1").fetchall() for _ in range(10_000)]
    with database.snapshot() as connection, connection.limited(0.5):
        connection.execute("SELECT 1").fetchall()
    with database.reading() as connection:
        assert connection.execute("SELECT current_setting('statement_timeout')").fetchone() == ("30s",)


def test_externally_cancelled_query_raises_busy(
    postgres: Databases, url: str, database: store.PostgresDatabase
) -> None:
    def cancel() -> None:
        active = f"SELECT pid FROM pg_stat_activity WHERE datname = '{db_name(url)}' AND query LIKE '%pg_sleep%'"
        wait_until(lambda: postgres.run(active))
        postgres.run(f"SELECT pg_cancel_backend(pid) FROM ({active}) AS active")

    def read() -> None:
        with database.snapshot() as connection, connection.limited(PATIENCE):
            connection.execute("SELECT pg_sleep(600)").fetchall()

    with pytest.raises(core.Busy), in_thread(cancel):
        read()


def test_merged_ranges_contain_no_duplicates(database: store.PostgresDatabase) -> None:
    with database.transaction("one") as connection:
        for client_id in ("one", "two"):
            connection.executemany(
                "INSERT INTO branches (seq, client_id, name, project_type, target_url) VALUES (?, ?, ?, ?, '')",
                [(number, client_id, f"n{number}", str(number % 3)) for number in range(1, 101)],
            )
    condition = "SELECT branches.seq AS seq FROM branches WHERE branches.client_id = ? AND branches.project_type = ?"
    with database.snapshot() as connection:
        merged = f"{connection.merged([condition] * 3, 'seq DESC', 7)} ORDER BY seq DESC LIMIT ? OFFSET ?"
        values = ("one", "0", "one", "1", "one", "0", 5, 2)
        assert connection.execute(merged, values).fetchall() == [(97,), (96,), (94,), (93,), (91,)]


def test_sequence_numbers_are_allocated_per_client(database: store.PostgresDatabase) -> None:
    with database.transaction("one") as connection:
        assert connection.take_seqs("one", 3, 7) == range(8, 11)
        assert connection.take_seqs("one", 1, 7) == range(11, 12)
        assert connection.take_seqs("two", 2, 0) == range(1, 3)


# Maintenance


def test_only_one_process_runs_maintenance(postgres: Databases, url: str, open_at: OpenAt) -> None:
    first, second = open_at(url), open_at(url)
    assert first.owns_maintenance()
    assert not second.owns_maintenance()
    first.close()
    wait_until(second.owns_maintenance)
    assert not first.owns_maintenance()
    postgres.end_connections(url)
    wait_until(lambda: first.owns_maintenance() or second.owns_maintenance())
    assert first.owns_maintenance() != second.owns_maintenance()


def test_maintenance_covers_all_clients_during_a_long_write(database: store.PostgresDatabase) -> None:
    for client_id in ("one", "two"):
        with database.transaction(client_id) as connection:
            core.insert_project_type(connection, client_id, "web", "web", "", None)
            core.insert_run(connection, core.Principal("", client_id, "", ""), "web", "", "{}", core.MAIN_LINE)
    with database.transaction() as connection:
        connection.execute("UPDATE runs SET last_used_at = '2026-01-01T00:00:00.000Z'")
    wait_until(database.owns_maintenance)
    steps = commits.maintenance_steps(database)
    with ThreadPoolExecutor(1) as pool:
        with database.transaction("one") as connection:
            connection.execute("SELECT 1").fetchone()
            maintenance = pool.submit(lambda: [next(steps), next(steps)])
            time.sleep(0.3)
        maintenance.result(PATIENCE)
    with database.reading() as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("failed",), ("failed",)]


@pytest.mark.parametrize("known", [False, True])
def test_concurrent_key_creation_creates_one_key(
    database: store.PostgresDatabase, url: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def wait_for_both(select: Callable[..., object], *arguments: object) -> object:
        found = select(*arguments)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return found

    def make() -> None:
        with suppress(click.ClickException):
            core.create_key.callback("ci", "default" if known else "new", "agent", None, False, False, url)

    for name in ("select_live_keys", "select_keys"):
        monkeypatch.setattr(core, name, partial(wait_for_both, getattr(core, name)))
    if known:
        with database.transaction() as connection:
            core.insert_client(connection, "default")
    service = core.Service(core.Settings(db=url))
    core.open_once(service)  # as `serve` does before it creates the first key

    def make_first() -> None:
        with database.transaction("default") as connection:
            core.insert_first_key(connection, service.settings)

    for work in (make, make_first):
        both.reset()
        with in_thread(work):
            work()
        with database.transaction() as connection:
            assert connection.execute("SELECT COUNT(*) FROM api_keys").fetchone() == (1,)
            connection.execute("DELETE FROM api_keys")
    service.database.close()


def test_forked_child_does_not_use_its_parents_connections(database: store.PostgresDatabase) -> None:
    add(database, "a")
    child = os.fork()
    if not child:
        try:
            add(database, "a")
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add(database, "a")
    assert counts(database) == {"a": 3}


# Failures


def test_idle_connection_that_was_closed_is_replaced(
    postgres: Databases, url: str, database: store.PostgresDatabase
) -> None:
    add(database, "a")
    postgres.end_connections(url)
    add(database, "a")
    assert counts(database) == {"a": 2}


def test_connection_lost_before_or_during_commit_raises_the_right_error(
    postgres: Databases, url: str, database: store.PostgresDatabase
) -> None:
    def write(*scopes: str) -> None:
        with database.transaction("one") as connection:
            for scope in scopes:
                assert connection.execute(ADD_TO_COUNTER, ("one", scope, "", 0, 1)).rowcount
                postgres.end_connections(url)

    with pytest.raises(core.TryAgain):
        write("a", "b")
    with pytest.raises(core.Busy, match="may or may not be stored") as refused:
        write("c")
    assert not isinstance(refused.value, core.TryAgain)
    assert refused.value.headers["Retry-After"]
    add(database, "d")
    assert counts(database) == {"d": 1}


def test_read_on_a_silent_or_closed_connection_raises_try_again(
    postgres: Databases, url: str, database: store.PostgresDatabase
) -> None:
    def read(reading: Callable[[], Any], patience: float) -> None:
        with reading() as connection:
            connection.execute("SELECT 1").fetchall()
            if patience == PATIENCE:
                postgres.end_connections(url)
            connection.link.patience = patience
            connection.execute("SELECT pg_sleep(2)").fetchall()

    for reading, patience in ((database.snapshot, PATIENCE), (database.reading, 0.2)):
        with pytest.raises(core.TryAgain):
            read(reading, patience)
        assert counts(database) == {}


def test_statement_timeout_raises_busy(url: str, open_at: OpenAt) -> None:
    database = open_at(f"{url}?options=-cstatement_timeout%3D1000")
    with pytest.raises(core.Busy, match="too long"), database.transaction("one") as connection:
        connection.execute("SELECT pg_sleep(5)").fetchall()
    add(database, "a")
    assert counts(database) == {"a": 1}


def test_full_disk_and_oversized_index_entries_raise_specific_errors(database: store.PostgresDatabase) -> None:
    with pytest.raises(core.StorageFull, match="disk is full"), database.transaction("one") as connection:
        connection.execute("DO $$ BEGIN RAISE disk_full; END $$").fetchall()
    scope = "".join(map(chr, range(0x4E00, 0x5600)))  # hardly compressible
    with pytest.raises(core.ValidationFailed) as refused:
        add(database, scope)
    assert "2,500 bytes" in refused.value.problems[0].detail
    assert counts(database) == {}


def test_server_without_free_connections_raises_busy(own_server: MakeServer, open_at: OpenAt) -> None:
    server = own_server(max_connections="8", superuser_reserved_connections="0")
    database = open_at(server.url)
    database.disconnect()
    with ExitStack() as others:
        with suppress(psycopg.OperationalError):
            while True:
                others.enter_context(psycopg.connect(server.url))
        with pytest.raises(core.Busy, match="cannot be reached"):
            counts(database)

    def is_reached() -> bool:
        with suppress(core.Busy):
            return counts(database) == {}
        return False

    wait_until(is_reached)  # the server notices a little later that the other connections were closed


def test_write_waits_during_a_server_restart(own_server: MakeServer, open_at: OpenAt) -> None:
    server = own_server()
    database = open_at(server.url)
    server.stop()
    with in_thread(lambda: add(database, "a")):
        server.start()
    assert counts(database) == {"a": 1}


def test_standby_serves_reads_rejects_writes_and_can_be_promoted(own_server: MakeServer, open_at: OpenAt) -> None:
    server = own_server(wal_level="replica", max_wal_senders="4")
    database = open_at(server.url)
    add(database, "a")
    standby = PostgresServer(server.folder, server.programs, port=5433)
    standby.run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-D", standby.data, "-d", server.url)
    with (standby.data / "postgresql.conf").open("a") as file:
        file.write(f"\nport = 5433\nunix_socket_directories = '{server.folder}'\n")
    standby.start()
    try:
        reader = open_at(standby.url, fill=False)
        assert counts(reader) == {"a": 1}
        with pytest.raises(core.Busy, match="standby"):
            add(reader, "b")
        either = standby.url.replace(":5433/", f":5433,{server.url.split('@')[1].split('/')[0]}/")
        follower = open_at(either, fill=False)  # connects to the primary
        add(follower, "c")
        wait_until(lambda: "c" in counts(reader))  # replication is asynchronous
        server.stop("immediate")
        standby.run("pg_ctl", "-D", standby.data, "promote")
        wait_until(lambda: succeeds(lambda: add(follower, "d")))
        wait_until(lambda: succeeds(lambda: add(reader, "e")))
        assert counts(follower) == {"a": 1, "c": 1, "d": 1, "e": 1}
    finally:
        standby.stop("immediate")


def succeeds(work: Callable[[], object]) -> bool:
    """Return whether `work` succeeds, False if the database is busy."""
    with suppress(core.Busy):
        work()
        return True
    return False
