"""The audit: `check`, and what it finds."""

from __future__ import annotations

import timeit
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import flask
import pytest

import findings_service
from findings_features import migrations
from tests.clients import API, Client, cases, client_with, database_of, task
from tests.engines import ON_POSTGRES, connect_directly
from tests.files import damage_index
from tests.servers import Server, invoke

UNCHECKED = "SET session_replication_role = replica" if ON_POSTGRES else "PRAGMA ignore_check_constraints = ON"
LAST = "(SELECT MAX(seq) FROM tasks)"
PLANTED_IN_A_FILE = [
    pytest.param(*row.values, id=row.id, marks=pytest.mark.sqlite)
    for row in cases(
        integrity=(partial(damage_index, name="tasks_by_status"), "integrity: "),
        constraint=("UPDATE tasks SET severity = 9 WHERE seq = 1", "integrity: CHECK constraint failed"),
        parent=(
            "UPDATE history SET task_seq = 99 WHERE seq = 1",
            "foreign key: row 1 of history has no parent in tasks",
        ),
    )
]
PLANTED = cases(
    index=("DROP INDEX tasks_by_status", "schema: tasks_by_status is missing"),
    counter=("UPDATE counters SET n = n + 1 WHERE scope = 'tasks' AND status = 'resolved'", "says 2, but there are 1"),
    reported=("UPDATE runs SET reported = 3 WHERE seq = 2", "says that it reports another number of tasks"),
    changes_below_nothing=("UPDATE counters SET n = -1 WHERE scope = 'changes'", "is below nothing"),
    of_runs=("UPDATE counters SET n = 0 WHERE scope = 'runs' AND status = 'running'", "runs, running, severity 0"),
    no_counter=("DELETE FROM counters WHERE status = 'completed'", "is missing, but there are 1"),
    of_nothing=(
        "INSERT INTO counters VALUES ('default', 'tasks type:none', 'open', 4, 2)",
        "tasks type:none, open, severity 4 says 2, but there are 0",
    ),
    other_target=(f"UPDATE tasks SET target_url = '' WHERE seq = {LAST}", "reported by a run of another project"),
    other_type=("UPDATE tasks SET project_type = 'none' WHERE seq = 1", "reported by a run of another project"),
    no_sighting=(f"DELETE FROM sightings WHERE task_seq = {LAST}", "is reported by no run"),
    sighting_too_many=("INSERT INTO sightings VALUES ('default', 2, 1, 1)", "was seen by more runs than it says"),
    no_branch=("DELETE FROM branches", "is of a branch that is not there"),
    branch_knows=("UPDATE branches SET reported = 3", "branch topic says that it knows another number of tasks"),
    old_branch=(
        "INSERT INTO branches VALUES (9, 'default', 'old', 'web', '', 0)",
        "branch old has no run and knows no task",
    ),
    branch_elsewhere=("UPDATE branches SET target_url = ''", "is known to a branch of another project"),
    unknown=("DELETE FROM branch_sightings WHERE task_seq = 3", "by a run of a branch that does not know it"),
    of_another_branch=("UPDATE tasks SET branch = 'other' WHERE seq = 4", "is of a branch that does not know it"),
    not_taken_over=("UPDATE tasks SET branch = 'topic' WHERE seq = 3", "is of a branch, though the main line knows it"),
    uncounted=("UPDATE sightings SET counted = 0 WHERE task_seq = 1", "report of the main line that does not count"),
    of_branches=(
        "UPDATE counters SET n = 5 WHERE scope = 'tasks type:web branches'",
        "tasks type:web branches, open, severity 4 says 5, but there are 1",
    ),
    of_a_branch=(
        "DELETE FROM counters WHERE scope = 'runs branch:topic'",
        "runs branch:topic, running, severity 0 is missing, but there are 2",
    ),
    other_words=("UPDATE task_words SET words = replace(words, 'image', 'picture')", "by other words than it has"),
    tag_of_another=("UPDATE task_tags SET status = 'dismissed'", "tag: default, 'a' lists the task of seq 1 otherwise"),
    no_tags=("DELETE FROM task_tags", "tag: default, 'a' lists the task of seq 1 otherwise"),
    no_words=("DELETE FROM task_words", "is searched by other words than it has"),
    no_details=("DELETE FROM task_details WHERE task_seq = 1", "has no details"),
    status=("UPDATE history SET to_status = 'open' WHERE comment = 'Done'", "has another status than its history"),
    order=("UPDATE tasks SET created_at = '2026-01-01' WHERE seq = 3", "was created before one that came earlier"),
    reason=("UPDATE history SET reason = 'fixed' WHERE comment = 'Done'", "has another reason than its history"),
    assignee=("UPDATE tasks SET assignee = 'Ada' WHERE seq = 1", "has another assignee than its history"),
    no_history=("DELETE FROM history WHERE task_seq = 1", "has another status than its history"),
    older_schema=(
        "UPDATE schema_version SET version = 7" if ON_POSTGRES else "PRAGMA user_version = 7",
        "has schema version 7, older than any that this program opens; keep it",
    ),
)


@pytest.mark.parametrize(("fault", "told"), [*PLANTED_IN_A_FILE, *PLANTED])
def test_check_tells_each_fault_and_fails(filled: Path, fault: Any, told: str) -> None:
    assert invoke("check", "--db", str(filled)).exit_code == 0
    with connect_directly(filled) as connection:
        if callable(fault):
            fault(connection)
        else:
            connection.execute(UNCHECKED)
            connection.execute(fault)
    done = invoke("check", "--db", str(filled))
    assert done.exit_code == 1
    assert told in done.output
    assert done.stderr.startswith("Error: ")


def test_check_tells_of_a_sound_database_and_its_versions(app: flask.Flask, filled: Path) -> None:
    done = invoke("check", "--db", str(filled))
    assert (done.exit_code, done.stdout, "is sound" in done.stderr) == (0, "", True)
    engine = " ".join(database_of(app).engine)
    assert f"schema version {findings_service.SCHEMA_VERSION}, {engine}" in done.stderr


@pytest.mark.sqlite
def test_check_of_a_file_damaged_beyond_reading_is_one_line(filled: Path) -> None:
    filled.write_bytes(filled.read_bytes()[:8192].ljust(filled.stat().st_size, b"\xff"))
    done = invoke("check", "--db", str(filled))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)


def test_a_command_makes_no_database_of_its_own(tmp_path: Path) -> None:
    for line in ("check", "backup copy.db", "prune --finished-before 1d", "compact", "keys create x", "keys list"):
        done = invoke(*line.split(), "--db", str(tmp_path / "none.db"))
        assert (done.exit_code, done.stderr.count("\n"), list(tmp_path.iterdir())) == (1, 1, []), line
        assert ON_POSTGRES or done.stderr.startswith(f"Error: there is no file {tmp_path / 'none.db'}")
        assert ("--new" in done.stderr) == line.startswith("keys create")


def test_check_reads_a_database_that_is_being_written(server: Server) -> None:
    path, batch = f"{API}/runs/{server.start_run()}/tasks", {"tasks": [task()] * 50}
    with ThreadPoolExecutor(2) as pool:
        writes = [pool.submit(server.request, "POST", path, batch) for _ in range(40)]
        assert [invoke("check", "--db", str(server.db)).exit_code for _ in range(5)] == [0] * 5
    assert {write.result().status_code for write in writes} == {201}


def test_words_of_another_version_of_unicode_are_no_fault_and_are_folded_again(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, newer = database_of(client.application).settings.db, "Ko\N{COMBINING SNAKE BELOW}\N{KANNADA SIGN NUKTA}N"
    client.add(run, title="Plain")
    with monkeypatch.context() as old:  # version 3.2 knows neither mark
        old.setattr(findings_service, "unicodedata", unicodedata.ucd_3_2_0)
        old.setattr(migrations, "unicodedata", unicodedata.ucd_3_2_0)
        migrations.refold(database_of(client.application))
        client.add(run, title=newer)
    done = invoke("check", "--db", str(db))
    assert (done.exit_code, "not ASCII are not checked" in done.stderr) == (0, True)
    tag = client.get(f"{API}/tasks?q=kon").headers["ETag"]
    client = client_with(findings_service.create_app(db=str(db)), client.key)
    assert client.get(f"{API}/tasks?q=kon", headers={"If-None-Match": tag}).json["total"] == 1
    database_of(client.application).close()
    done = invoke("check", "--db", str(db))
    assert (done.exit_code, "not ASCII" in done.stderr) == (0, False)


def test_words_are_folded_in_linear_time() -> None:
    marks = "".join(sorted(map(chr, range(0x300, 0x34F)), key=unicodedata.combining, reverse=True))

    def took(text: str) -> float:
        """Return the least of some times that it takes to fold a text."""
        times = timeit.repeat(partial(findings_service.fold_text, text), number=1, repeat=5)
        return min(times)

    for text in (marks * 200, "\u0f73\u0f75\u0f81" * 5000):  # those decompose into several
        assert took(text) < 30 * took("\N{COMBINING ACUTE ACCENT}" * (len(text) // 10))
