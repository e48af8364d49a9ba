"""`DELETE` for runs, tasks and project types, and the command `prune` for old runs.

Deleted data is in no response from then on. Soon it is in no file, either: SQLite overwrites it (secure_delete,
https://www.sqlite.org/pragma.html#pragma_secure_delete), and the WAL is truncated. The tasks that only a run reported
are deleted with it. `DELETE`, unlike `prune`, also removes all references to the run from other tasks. Tasks, runs,
sightings, history and counters are written only here, in the core, and by an engine's bulk writes and copies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import click
import msgspec

from findings_features.streams import progress_bar
from findings_service import (
    BY_SEQ,
    LISTED,
    LISTED_SEQS,
    MAIN_LINE,
    REGISTRY,
    TASK_ROW_COLUMNS,
    ApiRequest,
    BranchKey,
    Connection,
    Database,
    PendingWrite,
    Principal,
    RunKey,
    ServiceError,
    TaskRow,
    counter_name,
    counter_names,
    database_option,
    drop_responses,
    find_branch_of_run,
    index_tasks,
    main,
    move_in_counters,
    open_tasks,
    opened,
    operation,
    parse_duration,
    raise_revision,
    select_clients,
    select_counts,
    select_project_type,
    select_run_key,
    select_task_row,
    select_task_rows,
    timestamp,
)


class ProjectTypeInUse(ServiceError, status=409, code="project_type_in_use"):
    """There are runs of the project type."""


# The condition that a run finished before a time. The newest completed main-line runs, partial and complete, of each
# project type and target are never old: one of them is the baseline of the next gate.
OLD = """{run}.finished_at < ? AND {run}.seq NOT IN (
    SELECT MAX(seq) FROM runs AS newest
    WHERE newest.client_id = ? AND newest.branch = '' AND newest.status = 'completed'
    GROUP BY newest.project_type, newest.target_url, newest.is_partial)"""
OLD_RUN = OLD.format(run="runs")
# The client is a parameter, so that an engine that reads all rows of the subquery first reads those of one client.
ONLY_SIGHTING = """NOT EXISTS (SELECT 1 FROM sightings AS other
    JOIN runs ON runs.client_id = other.client_id AND runs.seq = other.run_seq
    WHERE other.client_id = ? AND other.task_seq = sightings.task_seq AND {})"""


def count_old_runs(connection: Connection, client_id: str, before: str) -> tuple[int, bool]:
    """Count a client's old runs (see `OLD`). Return also whether they are over half of its finished runs."""
    statement = f"SELECT COUNT(*) FILTER (WHERE {OLD_RUN}), COUNT(finished_at) FROM runs WHERE client_id = ?"
    old, finished = connection.execute(statement, (before, client_id, client_id)).fetchone()
    return old, 2 * old > finished


def count_orphans(connection: Connection, client_id: str, before: str) -> int:
    """Count the tasks of a client that only old runs reported; `OLD` defines an old run."""
    statement = f"""SELECT COUNT(DISTINCT sightings.task_seq) FROM runs AS old
        JOIN sightings ON sightings.client_id = old.client_id AND sightings.run_seq = old.seq
        WHERE old.client_id = ? AND {OLD.format(run="old")} AND {ONLY_SIGHTING.format(f"({OLD_RUN}) IS NOT TRUE")}"""
    old = (before, client_id)
    return int(connection.execute(statement, (client_id, *old, client_id, *old)).fetchone()[0])


def remove_tasks(connection: Connection, client_id: str, tasks: Sequence[TaskRow]) -> None:
    """Delete tasks with all of their data, subtract them from the counts of tasks, and delete branches left empty."""
    connection.transaction.erases = True
    drop_responses(connection, client_id, *(task.id for task in tasks))
    index_tasks(connection, client_id, tasks, -1)
    deleted = (client_id, json.dumps([task.seq for task in tasks]))
    for kind in (RunKey, BranchKey):
        of_tasks = f"FROM {kind.sightings} WHERE client_id = ? AND task_seq {LISTED_SEQS}"
        connection.execute(
            f"""UPDATE {kind.table} SET reported = reported - (
                    SELECT COUNT(*) {of_tasks} AND {kind.column} = {kind.table}.seq)
                WHERE client_id = ? AND seq IN (SELECT {kind.column} {of_tasks})""",
            (*deleted, client_id, *deleted),
        )
    open_duplicates(connection, client_id, tasks)
    connection.execute(f"DELETE FROM tasks WHERE {BY_SEQ}", deleted)
    delete_empty_branches(connection, client_id)


def open_duplicates(connection: Connection, client_id: str, originals: Sequence[TaskRow]) -> None:
    """Open the tasks that are dismissed as duplicates of tasks to delete. Other duplicates only lose the reference.

    Duplicates that are deleted, too, stay as they are.
    """
    ids = [original.id for original in originals]
    found = select_task_rows(connection, client_id, f"client_id = ? AND duplicate_of {LISTED}", json.dumps(ids))
    states = [state for state in found if state.id not in ids]
    dismissed = [state for state in states if state.status == "dismissed"]
    open_tasks(connection, Principal("", client_id), dismissed, "status", now := timestamp())
    connection.executemany(
        "UPDATE tasks SET duplicate_of = NULL, updated_at = ? WHERE client_id = ? AND seq = ?",
        [(now, client_id, state.seq) for state in states if state.status != "dismissed"],
    )


def delete_empty_branches(connection: Connection, client_id: str) -> None:
    """Delete branches that have no runs and know no tasks."""
    connection.execute(
        """DELETE FROM branches WHERE client_id = ? AND reported = 0 AND NOT EXISTS (
               SELECT 1 FROM runs WHERE runs.client_id = branches.client_id AND runs.branch = branches.name
                   AND runs.branch <> '' AND runs.project_type = branches.project_type
                   AND runs.target_url = branches.target_url)""",
        (client_id,),
    )


PRUNE_SLICE = 200  # sightings per transaction, which takes 10 ms, or 100 ms if nothing is cached


def prune_slice(
    connection: Connection, client_id: str, run: RunKey, size: int = PRUNE_SLICE, *, deleted: bool = False
) -> tuple[int, bool]:
    """Delete up to `size` sightings of a run, and the tasks that only it reported.

    The run is deleted with its last sightings. Between two slices the data is consistent: the run has fewer tasks.
    Return the number of deleted tasks, and whether the run is gone; another process may have deleted it.

    :param deleted: whether to remove all references to the run from the remaining tasks.
    """
    if not RunKey.find(connection, client_id, "id = ?", run.id):
        return 0, True
    raise_revision(connection, client_id)
    rows = connection.execute(
        f"""SELECT {TASK_ROW_COLUMNS}, counted, {ONLY_SIGHTING.format("runs.seq <> ?")}
            FROM sightings JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
            WHERE sightings.client_id = ? AND sightings.run_seq = ? ORDER BY sightings.task_seq LIMIT ?""",
        (client_id, run.seq, client_id, run.seq, size),
    ).fetchall()
    orphans = [TaskRow(*fields) for *fields, _, only in rows if only]
    remaining = [(TaskRow(*fields), bool(counted)) for *fields, counted, only in rows if not only]
    remove_tasks(connection, client_id, orphans)
    connection.executemany(
        "DELETE FROM sightings WHERE client_id = ? AND run_seq = ? AND task_seq = ?",
        [(client_id, run.seq, state.seq) for state, _ in remaining],
    )
    connection.execute(
        "UPDATE runs SET reported = reported - ? WHERE client_id = ? AND seq = ?", (len(remaining), client_id, run.seq)
    )
    if deleted:
        recompute_after_unlink(connection, client_id, run, remaining)
    if len(rows) == size:
        return len(orphans), False
    names = counter_names("runs", *run.type_and_target, run.branch)
    connection.transaction.counters.add(client_id, names, run.status, 0, -1)
    drop_responses(connection, client_id, run.id)
    connection.execute("DELETE FROM runs WHERE client_id = ? AND seq = ?", (client_id, run.seq))
    delete_empty_branches(connection, client_id)
    return len(orphans), True


OLD_RUNS_PER_QUERY = 10_000  # old runs per query; each query scans all runs of the client


def prune_slices(
    database: Database, before: str, patience: float | None = None, refuse: Callable[[str], object] | None = None
) -> Iterator[tuple[int, int]]:
    """Delete runs that finished before a time, and tasks that only they reported, in steps.

    Each step is at most one short transaction, so that other writes are not delayed. After each step, yield the numbers
    of runs and tasks that it deleted.
    :param patience: seconds to wait for another process's lock; None for the `busy_timeout` of the settings.
    :param refuse: called with a client's id instead of deleting more than half of its finished runs.
    """
    with database.reading() as connection:
        clients = select_clients(connection)
    for client_id in clients:
        if refuse:
            with database.separate_reader("maintenance") as connection:
                _, too_many = count_old_runs(connection, client_id, before)
            if too_many:
                refuse(client_id)
                continue
        while True:
            with database.separate_reader("maintenance") as connection:
                few = f"{OLD_RUN} ORDER BY finished_at LIMIT ?"
                old = RunKey.find(connection, client_id, few, before, client_id, OLD_RUNS_PER_QUERY)
            if not old:
                break
            for run in old:
                gone = False
                while not gone:
                    with database.transaction(client_id, patience) as connection:
                        tasks, gone = prune_slice(connection, client_id, run)
                    yield int(gone), tasks


# The id of the first or last created run that reported a task, among runs whose reports counted, else among all runs.
# The row `same` is looked up by its key; otherwise SQLite would scan all sightings of the client in order.
REPORTED_BY = """COALESCE(
    (SELECT runs.id FROM sightings
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        JOIN sightings AS same ON same.client_id = sightings.client_id
            AND same.run_seq = sightings.run_seq AND same.task_seq = sightings.task_seq
        WHERE sightings.client_id = tasks.client_id AND sightings.task_seq = tasks.seq AND same.counted = 1
        ORDER BY sightings.run_seq {order} LIMIT 1),
    (SELECT runs.id FROM sightings
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        WHERE sightings.client_id = tasks.client_id AND sightings.task_seq = tasks.seq
        ORDER BY sightings.run_seq {order} LIMIT 1))"""


def recompute_after_unlink(
    connection: Connection, client_id: str, run: RunKey, remaining: Sequence[tuple[TaskRow, bool]]
) -> None:
    """Update tasks that other runs still report, after a run's sightings of them were deleted.

    :param remaining: these tasks, each with whether the run's report of it counted.
    """
    connection.executemany(
        "UPDATE tasks SET times_seen = times_seen - 1 WHERE client_id = ? AND seq = ? AND times_seen > 1",
        [(client_id, state.seq) for state, counted in remaining if counted],
    )
    tasks = (client_id, json.dumps([state.seq for state, _ in remaining]))
    connection.execute(
        f"UPDATE history SET run_id = NULL WHERE run_id = ? AND client_id = ? AND task_seq {LISTED_SEQS}",
        (run.id, *tasks),
    )
    for column, order in (("run_id", "ASC"), ("last_run_id", "DESC")):  # also replaces ids of pruned runs
        connection.execute(
            f"""UPDATE tasks SET {column} = {REPORTED_BY.format(order=order)}
                WHERE {BY_SEQ} AND ({column} = ? OR NOT EXISTS (
                    SELECT 1 FROM runs WHERE runs.client_id = ? AND runs.id = tasks.{column}))""",
            (*tasks, run.id, client_id),
        )
    connection.execute(  # from now on the report of the new first run counts
        f"""UPDATE sightings SET counted = 1 WHERE client_id = ? AND counted = 0 AND (run_seq, task_seq) IN (
                SELECT runs.seq, tasks.seq FROM tasks
                JOIN runs ON runs.client_id = tasks.client_id AND runs.id = tasks.run_id
                WHERE {BY_SEQ})""",
        (client_id, *tasks),
    )
    if branch := find_branch_of_run(connection, client_id, run):  # it still knows the tasks of its other runs
        forgotten = connection.execute(
            f"""DELETE FROM branch_sightings WHERE branch_seq = ? AND client_id = ? AND task_seq {LISTED_SEQS}
                AND NOT EXISTS (SELECT 1 FROM sightings
                    JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
                    WHERE sightings.client_id = branch_sightings.client_id
                        AND sightings.task_seq = branch_sightings.task_seq AND runs.branch = ?)""",
            (branch.seq, *tasks, branch.name),
        ).rowcount
        connection.execute(
            "UPDATE branches SET reported = reported - ? WHERE client_id = ? AND seq = ?",
            (forgotten, client_id, branch.seq),
        )
    states = select_task_rows(connection, client_id, BY_SEQ, tasks[1])  # the deletion may have opened duplicates
    move_to_branch(connection, client_id, {state.seq: state for state in states if state.branch == run.branch})


def move_to_branch(connection: Connection, client_id: str, states: Mapping[int, TaskRow]) -> None:
    """Move tasks to the branch of their new first run, unless the main line reports them.

    :param states: tasks, by seq, that belonged to the branch (or main line) of the deleted run.
    """
    rows = connection.execute(
        f"""SELECT tasks.seq, runs.branch FROM tasks
            JOIN runs ON runs.client_id = tasks.client_id AND runs.id = tasks.run_id
            WHERE {BY_SEQ} AND runs.branch <> tasks.branch
                AND NOT EXISTS (SELECT 1 FROM sightings
                    JOIN runs AS others ON others.client_id = sightings.client_id AND others.seq = run_seq
                    WHERE sightings.client_id = tasks.client_id AND task_seq = tasks.seq AND others.branch = '')""",
        (client_id, json.dumps([*states])),
    ).fetchall()
    connection.executemany(
        "UPDATE tasks SET branch = ?, updated_at = ? WHERE client_id = ? AND seq = ?",
        [(name, timestamp(), client_id, seq) for seq, name in rows],
    )
    moved = [(states[seq], msgspec.structs.replace(states[seq], branch=name)) for seq, name in rows]
    move_in_counters(connection, client_id, moved)


@operation("DELETE", "/api/v1/runs/{run_id}", "full", {204: None})
def delete_run(request: ApiRequest, run_id: str) -> PendingWrite:
    """Delete a run, even a running one, and the tasks that only it reported."""

    def remove(connection: Connection) -> None:
        run = select_run_key(connection, request.client_id, run_id)
        connection.execute(
            "UPDATE history SET run_id = NULL WHERE client_id = ? AND run_id = ? AND event = 'status'",
            (request.client_id, run.id),
        )
        while not prune_slice(connection, request.client_id, run, 512, deleted=True)[1]:  # sightings per slice
            pass

    return PendingWrite(request, remove)


@operation("DELETE", "/api/v1/tasks/{task_id}", "full", {204: None})
def delete_task(request: ApiRequest, task_id: str) -> PendingWrite:
    """Delete a task with its history."""

    def remove(connection: Connection) -> None:
        task = select_task_row(connection, request.client_id, task_id)
        remove_tasks(connection, request.client_id, [task])

    return PendingWrite(request, remove)


@operation("DELETE", "/api/v1/project-types/{name}", "full", {204: None}, refusals=(ProjectTypeInUse,))
def delete_project_type(request: ApiRequest, name: str) -> PendingWrite:
    """Delete a project type that has no runs."""
    client_id = request.client_id
    counters = [counter_name("runs", name, None, line) for line in (MAIN_LINE, None)]

    def remove(connection: Connection) -> None:
        select_project_type(connection, client_id, name)
        if runs := sum(n for *_, n in select_counts(connection, client_id, counters)):
            there, them = ("is 1 run", "it") if runs == 1 else (f"are {runs:,} runs", "them")
            raise ProjectTypeInUse(f"There {there} of project type {name!r}; delete {them} first.")
        drop_responses(connection, client_id, name)
        connection.execute("DELETE FROM project_types WHERE client_id = ? AND name = ?", (client_id, name))
        connection.transaction.erases = True

    return PendingWrite(request, remove)


HOUR = 3600.0  # seconds; a shorter duration is probably a mistake


def duration_with_unit(_: click.Context, __: click.Parameter, text: str) -> float:
    """Parse a duration to seconds. :raises click.BadParameter: if it is not valid or has no unit (90 may mean days)."""
    with suppress(ValueError):
        if text.strip()[-1:].isalpha():
            return parse_duration(text)
    raise click.BadParameter(f"{text!r} is not a valid duration with a unit; use, for example, 12h or 90d")


@click.command()
@click.option(
    "--finished-before", callback=duration_with_unit, required=True, metavar="AGE", help="How long ago, such as 90d."
)
@click.option("--dry-run", is_flag=True, help="Only print how many runs and tasks would be removed.")
@click.option(
    "--yes",
    is_flag=True,
    help="Allow a duration of less than an hour, and do not ask (on a terminal) before removing more than half of a"
    " client's finished runs.",
)
@database_option
def prune(finished_before: float, dry_run: bool, yes: bool, db: str) -> None:
    """Remove old runs, and the tasks that only they report.

    The newest completed main-line run of each project type and target is kept as the baseline of the next gate.
    """
    if finished_before < HOUR and not (yes or dry_run):
        raise click.UsageError(
            "--finished-before is less than an hour; use a longer duration, or --yes to remove such runs"
        )
    before = timestamp(ago=finished_before)
    with opened(db) as database:
        expected = orphans = 0
        with database.snapshot() as connection:
            for client_id in select_clients(connection):
                old, too_many = count_old_runs(connection, client_id, before)
                orphans += count_orphans(connection, client_id, before) if dry_run else 0
                expected += old
                if too_many and sys.stdin and sys.stdin.isatty() and not (dry_run or yes):
                    click.confirm(f"Remove {old} (over half) of {client_id!r}'s finished runs?", abort=True, err=True)
        runs = tasks = 0
        database.run_maintenance()  # takes the checkpoint lock, unless a service has it
        with progress_bar("Removing", expected) as bar:
            for more_runs, more_tasks in () if dry_run else prune_slices(database, before):
                runs, tasks = runs + more_runs, tasks + more_tasks
                bar.update(more_runs)
    would = f"Would remove {expected} runs and {orphans} tasks."
    click.echo(would if dry_run else f"Removed {runs} runs and {tasks} tasks.")
    if runs:
        click.echo(
            "New findings reuse the freed space; run `findings-service compact` to return it to the disk.", err=True
        )


def register() -> None:
    """Register the endpoints and the command."""
    REGISTRY.add_operations(delete_run, delete_task, delete_project_type)
    main.add_command(prune)
