"""What is wrong with a database: the command `check`.

The rules that the schema cannot hold, counters against what they count, and what the engine finds itself. Nothing is
written.
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
    """Yield the tasks whose stored search words differ from their texts.

    Other versions of Unicode fold other characters: then only words of ASCII are compared.
    """
    comparable = migrations.is_folded_here(connection)
    for client_id in select_clients(connection):
        for _, task_id, words, expected in migrations.select_words(connection, client_id):
            if words != expected and (comparable or f"{words}{expected}".isascii()):
                yield f"task {task_id} is searched by other words than it has"


def tag_faults(connection: Connection) -> Iterator[str]:
    """Tell where lists by tag are not what the tasks are, from both in the same order."""
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
        for (seq, tag, *_), same in itertools.groupby(heapq.merge(expected, map(tuple, listed))):
            if len(list(same)) != 2:
                yield f"tag: {client_id}, {tag!r} lists the task of seq {seq} otherwise than that is"


def recounted(connection: Connection) -> Counter[CounterKey]:
    """Count everything that the counters count, one by one, but for changes."""
    counts: Counter[CounterKey] = Counter()
    place, kind = "client_id, project_type, target_url, branch", "status, severity"
    for client, *at, rule, tags, status, severity, n in connection.execute(
        f"SELECT {place}, rule, tags, {kind}, COUNT(*) FROM tasks GROUP BY {place}, rule, tags, {kind}"
    ):
        for name in (*counter_names("tasks", *at), *label_counters(rule, tags, at[-1])):
            counts[client, name, status, severity] += n
    for client, *at, status, n in connection.execute(
        f"SELECT {place}, status, COUNT(*) FROM runs GROUP BY {place}, status"
    ):
        for name in counter_names("runs", *at):
            counts[client, name, status, 0] += n
    return counts


# Each names the ids of what breaks a rule that the schema cannot hold.
INTEGRITY_CHECKS = {
    "task {} is reported by a run of another project type or target": """
        SELECT DISTINCT tasks.id FROM sightings
        JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        WHERE tasks.project_type <> runs.project_type OR tasks.target_url <> runs.target_url""",
    "task {} is reported by no run": """
        SELECT tasks.id FROM tasks WHERE NOT EXISTS (
            SELECT 1 FROM sightings WHERE sightings.client_id = tasks.client_id AND task_seq = tasks.seq)""",
    "task {} was seen by more runs than it says": """
        SELECT tasks.id FROM tasks WHERE times_seen < (
            SELECT COUNT(*) FROM sightings JOIN sightings AS same ON same.client_id = sightings.client_id
                AND same.run_seq = sightings.run_seq AND same.task_seq = sightings.task_seq
            WHERE sightings.client_id = tasks.client_id AND sightings.task_seq = tasks.seq AND same.counted = 1)""",
    "run {} says that it reports another number of tasks": """
        SELECT runs.id FROM runs WHERE reported <> (
            SELECT COUNT(*) FROM sightings WHERE sightings.client_id = runs.client_id AND run_seq = runs.seq)""",
    "run {} is of a branch that is not there": """
        SELECT runs.id FROM runs WHERE branch <> '' AND NOT EXISTS (
            SELECT 1 FROM branches WHERE branches.client_id = runs.client_id AND name = branch
                AND branches.project_type = runs.project_type AND branches.target_url = runs.target_url)""",
    "branch {} says that it knows another number of tasks": """
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
    "task {} is of a branch that does not know it": """
        SELECT tasks.id FROM tasks WHERE branch <> '' AND NOT EXISTS (
            SELECT 1 FROM branch_sightings
            JOIN branches ON branches.client_id = branch_sightings.client_id AND branches.seq = branch_seq
            WHERE branch_sightings.client_id = tasks.client_id AND task_seq = tasks.seq AND name = branch)""",
    "task {} is of a branch, though the main line knows it": """
        SELECT DISTINCT tasks.id FROM tasks
        JOIN sightings ON sightings.client_id = tasks.client_id AND task_seq = tasks.seq
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        WHERE tasks.branch <> '' AND runs.branch = ''""",
    "task {} has a report of the main line that does not count": """
        SELECT DISTINCT tasks.id FROM sightings
        JOIN runs ON runs.client_id = sightings.client_id AND runs.seq = sightings.run_seq
        JOIN tasks ON tasks.client_id = sightings.client_id AND tasks.seq = sightings.task_seq
        WHERE counted = 0 AND runs.branch = ''""",
    "task {} was reported first by a run whose report does not count": """
        SELECT tasks.id FROM tasks JOIN runs ON runs.client_id = tasks.client_id AND runs.id = tasks.run_id
        JOIN sightings ON sightings.client_id = tasks.client_id AND run_seq = runs.seq AND task_seq = tasks.seq
        WHERE counted = 0""",
    "counter: {} is below nothing": "SELECT scope FROM counters WHERE n < 0",
    "task {} has no details": """
        SELECT tasks.id FROM tasks WHERE NOT EXISTS (
            SELECT 1 FROM task_details WHERE task_details.client_id = tasks.client_id AND task_seq = tasks.seq)""",
    "task {} was created before one that came earlier": """
        SELECT id FROM (
            SELECT id, created_at < LAG(created_at) OVER (PARTITION BY client_id ORDER BY seq) AS fell FROM tasks
        ) AS pairs WHERE fell""",
    "task {} has another status than its history": """
        SELECT tasks.id FROM tasks WHERE status <> COALESCE((
            SELECT to_status FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND to_status IS NOT NULL
            ORDER BY history.seq DESC LIMIT 1), '')""",
    "task {} has another reason than its history": """
        SELECT tasks.id FROM tasks WHERE COALESCE(reason, '') <> COALESCE((
            SELECT history.reason FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND to_status IS NOT NULL
            ORDER BY history.seq DESC LIMIT 1), '')""",
    "task {} has another assignee than its history": """
        SELECT tasks.id FROM tasks WHERE COALESCE(assignee, '') <> COALESCE((
            SELECT history.assignee FROM history
            WHERE history.client_id = tasks.client_id AND task_seq = tasks.seq AND event = 'assigned'
            ORDER BY history.seq DESC LIMIT 1), '')""",
}


def integrity_errors(connection: Connection) -> Iterator[str]:
    """Tell everything that is wrong with a database: the file, the counters, the search, the sightings, the history."""
    yield from connection.integrity_errors()
    expected = recounted(connection)
    for client, name, status, severity, n in connection.execute(
        "SELECT client_id, scope, status, severity, n FROM counters WHERE scope <> 'changes'"
    ):
        right = expected.pop((client, name, status, severity), 0)
        if n != right:
            yield f"counter: {client}, {name}, {status}, severity {severity} says {n}, but there are {right}"
    for (client, name, status, severity), n in expected.items():
        yield f"counter: {client}, {name}, {status}, severity {severity} is missing, but there are {n}"
    yield from word_faults(connection)
    yield from tag_faults(connection)
    for complaint, statement in INTEGRITY_CHECKS.items():
        yield from (complaint.format(row[0]) for row in connection.execute(statement))


def failing_webhooks(connection: Connection) -> Iterator[str]:
    """Tell of the webhooks that something cannot be delivered to, which is no fault of the database's."""
    for client_id, hook_id, state, attempts, error, later in connection.execute(
        """SELECT client_id, id, state, attempts, last_error, next_attempt_at FROM webhooks
           WHERE attempts > 0 ORDER BY client_id, id"""
    ):
        state = f"is tried again at {later}" if state == "on" else "is off until a PATCH switches it on"
        often = "once" if attempts == 1 else f"{attempts} times"
        yield f"webhook {hook_id} of client {client_id!r} has failed {often} ({error}) and {state}"


def audit(connection: Connection, db: str) -> None:
    """Print what is wrong with a database. :raises click.ClickException: when anything is."""
    found = list(integrity_errors(connection))
    refuse_for(found, f"{len(found)} fault{'s' if len(found) > 1 else ''} in {db}")


def refuse_for(faults: Sequence[str], summary: str) -> None:
    """Print faults. :raises click.ClickException: with a summary of them, when there are any."""
    for fault in faults:
        click.echo(fault)
    if faults:
        raise click.ClickException(summary)


@click.command()
@database_option
def check(db: str) -> None:
    """Audit a database, also one in use. Exit code 1 and one line for each fault."""
    with opened(db) as database, database.snapshot() as connection:
        for complaint in failing_webhooks(connection):
            click.echo(complaint, err=True)
        if not migrations.is_folded_here(connection):
            click.echo(
                "Words for the search that are not ASCII are not checked: they were made by another version of Unicode."
                " The next start of the service makes them again.",
                err=True,
            )
        audit(connection, database.name)
    engine = " ".join(database.engine)
    click.echo(f"{database.name} is sound: schema version {SCHEMA_VERSION}, {engine}.", err=True)


def register() -> None:
    """Add the command."""
    main.add_command(check)
