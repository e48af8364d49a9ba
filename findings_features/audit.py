"""Consistency check of a database: the command `check`.

It checks the rules that the schema cannot enforce, compares the counters with the rows that they count, and runs the
engine's own check. It writes nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import click

import findings_features.migrations as migrations
from findings_service import (
    SCHEMA_VERSION,
    Connection,
    CounterKey,
    counter_names,
    database_option,
    label_counters,
    main,
    opened,
    select_clients,
    tags_in,
)


def word_faults(connection: Connection) -> Iterator[str]:
    """Yield a message for each task whose stored search words differ from its texts.

    If another version of Unicode folded the words, only ASCII words are compared: others may differ legitimately.
    """
    comparable = migrations.is_folded_here(connection)
    for client_id in select_clients(connection):
        for _, task_id, words, expected in migrations.select_words(connection, client_id):
            if words != expected and (comparable or f"{words}{expected}".isascii()):
                yield f"task {task_id} has search words that differ from its texts"


def tag_faults(connection: Connection) -> Iterator[str]:
    """Yield a message for each difference between the rows of `task_tags` and the tags of the tasks."""
    for client_id in select_clients(connection):
        tasks = connection.stream(
            """SELECT seq, tags, CASE branch WHEN '' THEN 1 ELSE 0 END, status, severity FROM tasks
               WHERE client_id = ? AND tags IS NOT NULL ORDER BY seq""",
            (client_id,),
        )
        expected = ((seq, tag, *state) for seq, tags, *state in tasks for tag in sorted(tags_in(tags)))
        listed = connection.stream(
            """SELECT task_seq, tag, main_line, status, severity FROM task_tags
               WHERE client_id = ? ORDER BY task_seq, tag""",
            (client_id,),
        )
        for (seq, tag, *_), equal in itertools.groupby(heapq.merge(expected, map(tuple, listed))):
            if len(list(equal)) != 2:
                yield f"tag: {client_id}, {tag!r}: the index differs from the task with seq {seq}"


def count_from_rows(connection: Connection) -> Counter[CounterKey]:
    """Return the correct value of each counter except that of changes, counted from the rows of tasks and runs."""
    counts: Counter[CounterKey] = Counter()
    columns, kind = "client_id, project_type, target_url, branch", "status, severity"
    for client, *scope, rule, tags, status, severity, n in connection.execute(
        f"SELECT {columns}, rule, tags, {kind}, COUNT(*) FROM tasks GROUP BY {columns}, rule, tags, {kind}"
    ):
        for name in (*counter_names("tasks", *scope), *label_counters(rule, tags, scope[-1])):
            counts[client, name, status, severity] += n
    for client, *scope, status, n in connection.execute(
        f"SELECT {columns}, status, COUNT(*) FROM runs GROUP BY {columns}, status"
    ):
        for name in counter_names("runs", *scope):
            counts[client, name, status, 0] += n
    return counts


# The message and the query of each rule that the schema cannot enforce. A query selects the ids that break its rule.
INTEGRITY_CHECKS = {
    "task {} is reported by a run of another project type or target": """
        SELECT DISTINCT tasks.id FROM sightings
        JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        WHERE tasks.project_type <> runs.project_type OR tasks.target_url <> runs.target_url""",
    "task {} is reported by no run": """
        SELECT tasks.id FROM tasks WHERE NOT EXISTS (
            SELECT 1 FROM sightings WHERE sightings.client_id = tasks.client_id AND task_seq = tasks.seq)""",
    "task {} has a timesSeen that is lower than the number of runs that reported it": """
        SELECT tasks.id FROM tasks WHERE times_seen < (
            SELECT COUNT(*) FROM sightings JOIN sightings AS same ON same.client_id = sightings.client_id
                AND same.run_seq = sightings.run_seq AND same.task_seq = sightings.task_seq
            WHERE sightings.client_id = tasks.client_id AND sightings.task_seq = tasks.seq AND same.counted = 1)""",
    "run {} has a wrong number of reported tasks": """
        SELECT runs.id FROM runs WHERE reported <> (
            SELECT COUNT(*) FROM sightings WHERE sightings.client_id = runs.client_id AND run_seq = runs.seq)""",
    "run {} belongs to a branch that does not exist": """
        SELECT runs.id FROM runs WHERE branch <> '' AND NOT EXISTS (
            SELECT 1 FROM branches WHERE branches.client_id = runs.client_id AND name = branch
                AND branches.project_type = runs.project_type AND branches.target_url = runs.target_url)""",
    "branch {} has a wrong number of known tasks": """
        SELECT name FROM branches WHERE reported <> (
            SELECT COUNT(*) FROM branch_sightings
            WHERE branch_sightings.client_id = branches.client_id AND branch_seq = branches.seq)""",
    "branch {} has no run and knows no task": """
        SELECT name FROM branches WHERE reported = 0 AND NOT EXISTS (
            SELECT 1 FROM runs WHERE runs.client_id = branches.client_id AND runs.branch = name AND runs.branch <> ''
                AND runs.project_type = branches.project_type AND runs.target_url = branches.target_url)""",
    "task {} is known to a branch of another project type or target": """
        SELECT DISTINCT tasks.id FROM branch_sightings
        JOIN tasks ON tasks.client_id = branch_sightings.client_id AND tasks.seq = branch_sightings.task_seq
        JOIN branches ON branches.client_id = branch_sightings.client_id AND branches.seq = branch_sightings.branch_seq
        WHERE tasks.project_type <> branches.project_type OR tasks.target_url <> branches.target_url""",
    "task {} is reported by a run of a branch that does not know it": """
        SELECT DISTINCT tasks.id FROM sightings
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
        WHERE runs.branch <> '' AND NOT EXISTS (
            SELECT 1 FROM branch_sightings
            JOIN branches ON branches.client_id = branch_sightings.client_id AND branches.seq = branch_seq
            WHERE branch_sightings.client_id = tasks.client_id AND branch_sightings.task_seq = tasks.seq
                AND name = runs.branch)""",
    "task {} belongs to a branch that does not know it": """
        SELECT tasks.id FROM tasks WHERE branch <> '' AND NOT EXISTS (
            SELECT 1 FROM branch_sightings
            JOIN branches ON branches.client_id = branch_sightings.client_id AND branches.seq = branch_seq
            WHERE branch_sightings.client_id = tasks.client_id AND task_seq = tasks.seq AND name = branch)""",
    "task {} belongs to a branch although the main line knows it": """
        SELECT DISTINCT tasks.id FROM tasks
        JOIN sightings ON sightings.client_id = tasks.client_id AND task_seq = tasks.seq
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        WHERE tasks.branch <> '' AND runs.branch = ''""",
    "task {} has a main-line report that is marked as not counted": """
        SELECT DISTINCT tasks.id FROM sightings
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
        WHERE counted = 0 AND runs.branch = ''""",
    "task {} has a first report that is marked as not counted": """
        SELECT tasks.id FROM tasks JOIN runs ON runs.client_id = tasks.client_id AND runs.id = tasks.run_id
        JOIN sightings ON sightings.client_id = tasks.client_id AND run_seq = runs.seq AND task_seq = tasks.seq
        WHERE counted = 0""",
    "counter: {} is negative": "SELECT scope FROM counters WHERE n < 0",
    "task {} has no details": """
        SELECT tasks.id FROM tasks WHERE NOT EXISTS (
            SELECT 1 FROM task_details WHERE task_details.client_id = tasks.client_id AND task_seq = tasks.seq)""",
    "task {} has an earlier createdAt than the task stored before it": """
        SELECT id FROM (
            SELECT id, created_at < LAG(created_at) OVER (PARTITION BY client_id ORDER BY seq) AS fell FROM tasks
        ) AS pairs WHERE fell""",
    "task {} has a status that differs from its history": """
        SELECT tasks.id FROM tasks WHERE status <> COALESCE((
            SELECT to_status FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND to_status IS NOT NULL
            ORDER BY history.seq DESC LIMIT 1), '')""",
    "task {} has a reason that differs from its history": """
        SELECT tasks.id FROM tasks WHERE COALESCE(reason, '') <> COALESCE((
            SELECT history.reason FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND to_status IS NOT NULL
            ORDER BY history.seq DESC LIMIT 1), '')""",
    "task {} has an assignee that differs from its history": """
        SELECT tasks.id FROM tasks WHERE COALESCE(assignee, '') <> COALESCE((
            SELECT history.assignee FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND event = 'assigned'
            ORDER BY history.seq DESC LIMIT 1), '')""",
    "task {} has a claim that does not exist": """
        SELECT id FROM tasks WHERE claim_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM claims WHERE claims.client_id = tasks.client_id AND claims.id = claim_id)""",
    "task {} is a duplicate of a task that does not exist, or is a duplicate itself": """
        SELECT id FROM tasks WHERE duplicate_of IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM tasks AS other WHERE other.client_id = tasks.client_id AND other.id = tasks.duplicate_of
                AND other.duplicate_of IS NULL)""",
}


def integrity_errors(connection: Connection) -> Iterator[str]:
    """Yield a message for each fault of a database: in its file, counters, search words, tags, or other rows."""
    yield from connection.integrity_errors()
    expected = count_from_rows(connection)
    for client, name, status, severity, n in connection.execute(
        "SELECT client_id, scope, status, severity, n FROM counters WHERE scope <> 'changes'"
    ):
        actual = expected.pop((client, name, status, severity), 0)
        if n != actual:
            yield f"counter: {client}, {name}, {status}, severity {severity} is {n}; it should be {actual}"
    for (client, name, status, severity), n in expected.items():
        yield f"counter: {client}, {name}, {status}, severity {severity} is missing; it should be {n}"
    yield from word_faults(connection)
    yield from tag_faults(connection)
    for message, statement in INTEGRITY_CHECKS.items():
        yield from (message.format(row[0]) for row in connection.execute(statement))


def failing_webhooks(connection: Connection) -> Iterator[str]:
    """Yield a message for each webhook whose last delivery failed. These are not faults of the database."""
    for client_id, hook_id, state, attempts, error, later in connection.execute(
        """SELECT client_id, id, state, attempts, last_error, next_attempt_at FROM webhooks
           WHERE attempts > 0 ORDER BY client_id, id"""
    ):
        state = f"is retried at {later}" if state == "on" else "is off until a PATCH turns it on"
        often = "once" if attempts == 1 else f"{attempts} times"
        yield f"webhook {hook_id} of client {client_id!r} has failed {often} ({error}) and {state}"


def audit(connection: Connection, db: str) -> None:
    """Print the faults of a database, which messages call `db`. :raises click.ClickException: if there are any."""
    found = list(integrity_errors(connection))
    raise_for_faults(found, f"{len(found)} fault{'s' if len(found) > 1 else ''} in {db}")


def raise_for_faults(faults: Sequence[str], summary: str) -> None:
    """Print faults. :raises click.ClickException: with the summary, if there are any faults."""
    for fault in faults:
        click.echo(fault)
    if faults:
        raise click.ClickException(summary)


@click.command()
@database_option
def check(db: str) -> None:
    """Check a database, even while it is in use. Print a line for each fault; exit with 1 if there are any."""
    with opened(db) as database, database.snapshot() as connection:
        for message in failing_webhooks(connection):
            click.echo(message, err=True)
        if not migrations.is_folded_here(connection):
            click.echo(
                "Search words that are not ASCII are not checked: another version of Unicode was used to fold them."
                " The next start of the service updates them.",
                err=True,
            )
        audit(connection, database.name)
    engine = " ".join(database.engine)
    click.echo(f"{database.name} is sound: schema version {SCHEMA_VERSION}, {engine}.", err=True)


def register() -> None:
    """Register the command."""
    main.add_command(check)
