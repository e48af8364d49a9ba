"""The audit: the command `check` and the faults that it finds."""

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
FILE_FAULTS = [
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
FAULTS = cases(
    index=("DROP INDEX tasks_by_status", "schema: tasks_by_status is missing"),
    counter=("UPDATE counters SET n = n + 1 WHERE scope = 'tasks' AND status = 'resolved'", "is 2; it should be 1"),
    reported=("UPDATE runs SET reported = 3 WHERE seq = 2", "has a wrong number of reported tasks"),
    negative_revision=("UPDATE counters SET n = -1 WHERE scope = 'changes'", "is negative"),
    runs=("UPDATE counters SET n = 0 WHERE scope = 'runs' AND status = 'running'", "runs, running, severity 0"),
    no_counter=("DELETE FROM counters WHERE status = 'completed'", "is missing; it should be 1"),
    extra_counter=(
        "INSERT INTO counters VALUES ('default', 'tasks type:none', 'open', 4, 2)",
        "tasks type:none, open, severity 4 is 2; it should be 0",
    ),
    other_target=(f"UPDATE tasks SET target_url = '' WHERE seq = {LAST}", "reported by a run of another project"),
    other_type=("UPDATE tasks SET project_type = 'none' WHERE seq = 1", "reported by a run of another project"),
    no_sighting=(f"DELETE FROM sightings WHERE task_seq = {LAST}", "is reported by no run"),
    extra_sighting=("INSERT INTO sightings VALUES ('default', 2, 1, 1)", "has a timesSeen that is lower"),
    no_branch=("DELETE FROM branches", "belongs to a branch that does not exist"),
    branch_count=("UPDATE branches SET reported = 3", "branch topic has a wrong number of known tasks"),
    old_branch=(
        "INSERT INTO branches VALUES (9, 'default', 'old', 'web', '', 0)",
        "branch old has no run and knows no task",
    ),
    branch_elsewhere=("UPDATE branches SET target_url = ''", "is known to a branch of another project"),
    unknown_to_branch=("DELETE FROM branch_sightings WHERE task_seq = 3", "by a run of a branch that does not know it"),
    other_branch=("UPDATE tasks SET branch = 'other' WHERE seq = 4", "belongs to a branch that does not know it"),
    not_taken_over=("UPDATE tasks SET branch = 'topic' WHERE seq = 3", "belongs to a branch although the main line"),
    unlisted_failures=(
        "UPDATE sightings SET counted = 0 WHERE task_seq = 1",
        "main-line report that is marked as not counted",
    ),
    branches_counter=(
        "UPDATE counters SET n = 5 WHERE scope = 'tasks type:web branches'",
        "tasks type:web branches, open, severity 4 is 5; it should be 1",
    ),
    branch_counter=(
        "DELETE FROM counters WHERE scope = 'runs branch:topic'",
        "runs branch:topic, running, severity 0 is missing; it should be 2",
    ),
    other_words=("UPDATE task_words SET words = replace(words, 'image', 'picture')", "that differ from its texts"),
    changed_tag=("UPDATE task_tags SET status = 'dismissed'", "'a': the index differs from the task with seq 1"),
    no_tags=("DELETE FROM task_tags", "tag: default, 'a': the index differs from the task with seq 1"),
    no_words=("DELETE FROM task_words", "has search words that differ from its texts"),
    no_details=("DELETE FROM task_details WHERE task_seq = 1", "has no details"),
    status=("UPDATE history SET to_status = 'open' WHERE comment = 'Done'", "a status that differs from its history"),
    order=("UPDATE tasks SET created_at = '2026-01-01' WHERE seq = 3", "has an earlier createdAt than the task stored"),
    reason=("UPDATE history SET reason = 'fixed' WHERE comment = 'Done'", "has a reason that differs from its history"),
    assignee=("UPDATE tasks SET assignee = 'Ada' WHERE seq = 1", "has an assignee that differs from its history"),
    no_claim=(
        "UPDATE tasks SET status = 'in_progress', claim_id = 'x' WHERE seq = 1",
        "has a claim that does not exist",
    ),
    no_original=(
        "UPDATE tasks SET reason = 'duplicate', duplicate_of = 'x' WHERE seq = 2",
        "is a duplicate of a task that does not",
    ),
    duplicate_of_itself=(
        "UPDATE tasks SET reason = 'duplicate', duplicate_of = id WHERE seq = 2",
        "does not exist, or is a duplicate itself",
    ),
    no_history=("DELETE FROM history WHERE task_seq = 1", "has a status that differs from its history"),
    older_schema=(
        "UPDATE schema_version SET version = 7" if ON_POSTGRES else "PRAGMA user_version = 7",
        "has schema version 7, too old for this program to migrate; open it",
    ),
)


@pytest.mark.parametrize(("fault", "message"), [*FILE_FAULTS, *FAULTS])
def test_check_reports_each_fault_and_fails(filled: Path, fault: Any, message: str) -> None:
    assert invoke("check", "--db", str(filled)).exit_code == 0
    with connect_directly(filled) as connection:
        if callable(fault):
            fault(connection)
        else:
            connection.execute(UNCHECKED)
            connection.execute(fault)
    done = invoke("check", "--db", str(filled))
    assert done.exit_code == 1
    assert message in done.output
    assert done.stderr.startswith("Error: ")


def test_check_reports_a_sound_database_with_its_versions(app: flask.Flask, filled: Path) -> None:
    done = invoke("check", "--db", str(filled))
    assert (done.exit_code, done.stdout, "is sound" in done.stderr) == (0, "", True)
    engine = " ".join(database_of(app).engine)
    assert f"schema version {findings_service.SCHEMA_VERSION}, {engine}" in done.stderr


@pytest.mark.sqlite
def test_check_of_an_unreadable_file_prints_one_line(filled: Path) -> None:
    filled.write_bytes(filled.read_bytes()[:8192].ljust(filled.stat().st_size, b"\xff"))
    done = invoke("check", "--db", str(filled))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)


def test_commands_do_not_create_a_missing_database(tmp_path: Path) -> None:
    for line in ("check", "backup copy.db", "prune --finished-before 1d", "compact", "keys create x", "keys list"):
        done = invoke(*line.split(), "--db", str(tmp_path / "none.db"))
        assert (done.exit_code, done.stderr.count("\n"), list(tmp_path.iterdir())) == (1, 1, []), line
        assert ON_POSTGRES or done.stderr.startswith(f"Error: there is no file {tmp_path / 'none.db'}")
        assert ("--new" in done.stderr) == line.startswith("keys create")


def test_check_works_during_writes(server: Server) -> None:
    path, batch = f"{API}/runs/{server.start_run()}/tasks", {"tasks": [task()] * 50}
    with ThreadPoolExecutor(2) as pool:
        writes = [pool.submit(server.request, "POST", path, batch) for _ in range(40)]
        assert [invoke("check", "--db", str(server.db)).exit_code for _ in range(5)] == [0] * 5
    assert {write.result().status_code for write in writes} == {201}


def test_words_folded_with_older_unicode_are_accepted_and_folded_again(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, newer = database_of(client.application).settings.db, "Ko\N{COMBINING SNAKE BELOW}\N{KANNADA SIGN NUKTA}N"
    client.add(run, title="Plain")
    with monkeypatch.context() as patch:  # Unicode 3.2 has neither mark
        patch.setattr(findings_service, "unicodedata", unicodedata.ucd_3_2_0)
        patch.setattr(migrations, "unicodedata", unicodedata.ucd_3_2_0)
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


def test_folding_takes_linear_time() -> None:
    marks = "".join(sorted(map(chr, range(0x300, 0x34F)), key=unicodedata.combining, reverse=True))

    def seconds(text: str) -> float:
        """Return the shortest of five times for folding a text, in seconds."""
        times = timeit.repeat(partial(findings_service.fold_text, text), number=1, repeat=5)
        return min(times)

    for text in (marks * 200, "\u0f73\u0f75\u0f81" * 5000):  # each decomposes into several characters
        assert seconds(text) < 30 * seconds("\N{COMBINING ACUTE ACCENT}" * (len(text) // 10))
