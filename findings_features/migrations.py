"""Migrations of databases with an older schema, from version 8 on.

A migration consists of a script, which runs before schema.sql, and a function that then fills existing rows. The core
runs all steps to its own version in one transaction. PostgreSQL has the same steps, some with SQL of its own.

This module also folds search words again when Python comes with another version of Unicode.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from findings_features.labels import foreign_labels
from findings_service import (
    DETAILS,
    REGISTRY,
    REPORTED_TASKS,
    TASK_ROW_COLUMNS,
    UNCHECKED,
    Connection,
    Database,
    Migration,
    TaskRow,
    decoder,
    evidence_labels,
    insert_references,
    move_in_counters,
    raise_revision,
    select_clients,
    tags_in,
    words_of,
)

TO_VERSION_9 = """ALTER TABLE tasks ADD COLUMN rule TEXT;
ALTER TABLE tasks ADD COLUMN location TEXT;
ALTER TABLE tasks ADD COLUMN tags TEXT;
"""
# AUTOINCREMENT and other constraints need a new table (https://www.sqlite.org/lang_altertable.html#otheralter).
TO_VERSION_10 = """ALTER TABLE api_keys ADD COLUMN for_users INTEGER NOT NULL DEFAULT 0 CHECK (for_users IN (0, 1));
CREATE TABLE new_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, client_id TEXT NOT NULL, task_seq INTEGER, run_seq INTEGER, at TEXT NOT NULL,
    event TEXT NOT NULL CHECK (
        event IN ('created', 'reported', 'status', 'assigned', 'comment') AND task_seq IS NOT NULL AND run_seq IS NULL
        OR event IN ('started', 'finished') AND task_seq IS NULL AND run_seq IS NOT NULL
    ),
    key_name TEXT NOT NULL, user_name TEXT, run_id TEXT, branch TEXT NOT NULL DEFAULT '', from_status TEXT,
    to_status TEXT, comment TEXT, changed TEXT, reason TEXT, assignee TEXT,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, run_seq) REFERENCES runs (client_id, seq) ON DELETE CASCADE
) STRICT;
INSERT INTO new_history (seq, client_id, task_seq, at, event, key_name, run_id, branch, from_status, to_status,
    comment, changed, reason, assignee)
SELECT seq, client_id, task_seq, at, event, key_name, run_id, COALESCE((
    SELECT branch FROM runs WHERE runs.client_id = history.client_id AND runs.id = history.run_id), ''), from_status,
    to_status, comment, changed, reason, assignee
FROM history;
DROP TABLE history;
ALTER TABLE new_history RENAME TO history;
"""
# The tables may have the new form already, if someone lowered the version of a database manually.
TO_VERSION_11 = """DROP TABLE IF EXISTS answer_references;
CREATE TABLE new_idempotent_answers (
    seq INTEGER PRIMARY KEY, client_id TEXT NOT NULL, key_id TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
    idempotency_key TEXT NOT NULL, body_hash TEXT NOT NULL, status INTEGER NOT NULL, location TEXT, body TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
INSERT INTO new_idempotent_answers (client_id, key_id, method, path, idempotency_key, body_hash, status, location, body,
    created_at)
SELECT client_id, key_id, method, path, idempotency_key, body_hash, status, location, body, created_at
FROM idempotent_answers;
DROP TABLE idempotent_answers;
ALTER TABLE new_idempotent_answers RENAME TO idempotent_answers;
"""
TO_VERSION_12 = """ALTER TABLE runs ADD COLUMN is_partial INTEGER NOT NULL DEFAULT 0 CHECK (is_partial IN (0, 1));
ALTER TABLE runs ADD COLUMN verdict TEXT;
ALTER TABLE tasks ADD COLUMN is_decided INTEGER NOT NULL DEFAULT 0 CHECK (is_decided IN (0, 1));
ALTER TABLE tasks ADD COLUMN twin_of TEXT;
"""
# No seq of the history may be used again, so the sequence is kept.
TO_VERSION_13 = """ALTER TABLE tasks ADD COLUMN reported_severity INTEGER CHECK (reported_severity BETWEEN 1 AND 5);
ALTER TABLE tasks ADD COLUMN until TEXT CHECK (until IS NULL OR status = 'dismissed');
ALTER TABLE tasks ADD COLUMN duplicate_of TEXT CHECK (duplicate_of IS NULL OR COALESCE(reason, '') = 'duplicate');
ALTER TABLE tasks ADD COLUMN links TEXT;
ALTER TABLE tasks ADD COLUMN verification TEXT;
ALTER TABLE tasks ADD COLUMN proposal TEXT CHECK (proposal IS NULL OR status IN ('open', 'in_progress'));
ALTER TABLE tasks ADD COLUMN claim_id TEXT CHECK (claim_id IS NULL OR status = 'in_progress');
CREATE TABLE new_api_keys (
    client_id TEXT NOT NULL REFERENCES clients (id), id TEXT NOT NULL, name TEXT NOT NULL,
    level TEXT NOT NULL CHECK (level IN ('read', 'agent', 'triage', 'full')), hash TEXT NOT NULL,
    created_at TEXT NOT NULL, expires_at TEXT, revoked_at TEXT, last_used_at TEXT,
    for_users INTEGER NOT NULL DEFAULT 0 CHECK (for_users IN (0, 1)), PRIMARY KEY (client_id, id),
    UNIQUE (hash, client_id)
) STRICT, WITHOUT ROWID;
INSERT INTO new_api_keys (client_id, id, name, level, hash, created_at, expires_at, revoked_at, last_used_at, for_users)
SELECT client_id, id, name, level, hash, created_at, expires_at, revoked_at, last_used_at, for_users FROM api_keys;
DROP TABLE api_keys;
ALTER TABLE new_api_keys RENAME TO api_keys;
CREATE TABLE new_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, client_id TEXT NOT NULL, task_seq INTEGER, run_seq INTEGER, at TEXT NOT NULL,
    event TEXT NOT NULL CHECK (
        CASE WHEN event IN ('started', 'finished') THEN task_seq IS NULL AND run_seq IS NOT NULL
        ELSE task_seq IS NOT NULL AND run_seq IS NULL END
    ),
    key_name TEXT NOT NULL, user_name TEXT, run_id TEXT, branch TEXT NOT NULL DEFAULT '', from_status TEXT,
    to_status TEXT, comment TEXT, changed TEXT, reason TEXT, assignee TEXT, details TEXT,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, run_seq) REFERENCES runs (client_id, seq) ON DELETE CASCADE
) STRICT;
INSERT INTO new_history (seq, client_id, task_seq, run_seq, at, event, key_name, user_name, run_id, branch, from_status,
    to_status, comment, changed, reason, assignee)
SELECT seq, client_id, task_seq, run_seq, at, event, key_name, user_name, run_id, branch, from_status, to_status,
    comment, changed, reason, assignee
FROM history;
DELETE FROM sqlite_sequence WHERE name = 'new_history';
INSERT INTO sqlite_sequence (name, seq) SELECT 'new_history', seq FROM sqlite_sequence WHERE name = 'history';
DROP TABLE history;
ALTER TABLE new_history RENAME TO history;
"""


def fill_labels(connection: Connection) -> None:
    """Set rule, location and tags of SARIF tasks from their extensions. Before schema 9 only these had them."""
    statement = f"""SELECT {TASK_ROW_COLUMNS}, task_details.extensions FROM tasks {DETAILS}
        WHERE tasks.client_id = ? AND task_details.extensions IS NOT NULL ORDER BY tasks.seq"""
    for client_id in select_clients(connection):
        for *fields, extensions in connection.stream(statement, (client_id,)):
            state, values = TaskRow(*fields), msgspec.json.decode(extensions)
            if all(isinstance(values.get(name), str) for name in ("tool", "ruleId")):
                rule, location, tags = foreign_labels(*map(values.get, ("ruleId", "file", "line", "tags")))
                connection.execute(
                    "UPDATE tasks SET rule = ?, location = ?, tags = ? WHERE client_id = ? AND seq = ?",
                    (rule, location, tags, client_id, state.seq),
                )
                labelled = msgspec.structs.replace(state, rule=rule, tags=tags)
                move_in_counters(connection, client_id, [(state, labelled)])
        last = 0
        while last := update_words(
            connection, client_id, last, "(rule IS NOT NULL OR location IS NOT NULL OR tags IS NOT NULL)"
        ):
            pass


def fill_references(connection: Connection) -> None:
    """Store the ids and names that stored responses contain. Rows are streamed: a body may have a megabyte."""
    stored = "SELECT seq, path, body FROM idempotent_answers WHERE client_id = ? AND body <> ''"
    for client_id in select_clients(connection):
        for seq, path, body in connection.stream(stored, (client_id,)):
            response = msgspec.json.decode(body)
            names = [response.get(name) for name in ("id", "runId", "lastRunId", "name")]
            names += [task["id"] for task in response.get("tasks", ())]
            in_path = path.rpartition("/api/v1/")[2].split("/")[1:2]
            references = {**dict.fromkeys(filter(None, names), False), **dict.fromkeys(in_path, True)}
            insert_references(connection, client_id, seq, references)


def fill_decided_and_partial(connection: Connection) -> None:
    """Set `is_decided`, `twin_of` (for numbered SARIF duplicates), and `is_partial` (for `not-checked` findings)."""
    for client_id in select_clients(connection):
        connection.execute(
            """UPDATE tasks SET is_decided = 1 WHERE client_id = ? AND seq IN (
                SELECT task_seq FROM history WHERE client_id = ? AND event = 'status' AND run_id IS NULL)""",
            (client_id, client_id),
        )
        connection.execute(
            """UPDATE tasks SET twin_of = substr(external_id, 1, 40) WHERE client_id = ?
                AND substr(external_id, 41, 1) = '-' AND length(external_id) BETWEEN 42 AND 50
                AND trim(substr(external_id, 1, 40), '0123456789abcdef') = ''
                AND trim(substr(external_id, 42), '0123456789') = ''""",
            (client_id,),
        )
        connection.execute(
            f"""UPDATE runs SET is_partial = 1 WHERE client_id = ? AND seq IN (
                SELECT run_seq FROM {REPORTED_TASKS} WHERE sightings.client_id = ? AND tasks.rule = ?)""",
            (client_id, client_id, UNCHECKED),
        )


# Search words


class Labelled(Struct, gc=False):
    """The label of a stored evidence item."""

    label: str | None = None


WORDS_AT_ONCE = 100  # tasks per transaction
NOT_ASCII = "words GLOB '*[^ -~]*'"


def select_words(
    connection: Connection, client_id: str, after: int = 0, condition: str = "TRUE", most: int = sys.maxsize
) -> Iterator[tuple[int, str, str | None, str]]:
    """Yield (seq, id, stored search words, expected search words) of at most `most` tasks after a seq.

    :param connection: one in a transaction or snapshot.
    """
    rows = connection.stream(
        f"""SELECT tasks.seq, id, words, title, external_id, rule, location, tags, COALESCE(evidence, '[]')
            FROM tasks LEFT JOIN task_details
                ON task_details.client_id = tasks.client_id AND task_details.task_seq = tasks.seq
            LEFT JOIN task_words ON task_words.client_id = tasks.client_id AND task_words.task_seq = tasks.seq
            WHERE tasks.client_id = ? AND tasks.seq > ? AND {condition} ORDER BY tasks.seq LIMIT ?""",
        (client_id, after, most),
    )
    for seq, task_id, words, title, external_id, rule, location, tags, evidence in rows:
        labels = evidence_labels(decoder(list[Labelled]).decode(evidence))
        yield seq, task_id, words, words_of(title, external_id, labels, rule, location, tags_in(tags))


def update_words(connection: Connection, client_id: str, after: int, condition: str) -> int:
    """Update search words of the next `WORDS_AT_ONCE` tasks. Return the last one's seq, or 0 if there are no more."""
    found = list(select_words(connection, client_id, after, condition, WORDS_AT_ONCE))
    changed = [(expected, client_id, seq) for seq, _, words, expected in found if words != expected]
    connection.executemany("UPDATE task_words SET words = ? WHERE client_id = ? AND task_seq = ?", changed)
    if changed:
        raise_revision(connection, client_id)
    return found[-1][0] if found else 0


def is_folded_here(connection: Connection) -> bool:
    """Return whether all search words were folded with the Unicode version of this Python."""
    version: object = connection.execute("SELECT unicode_version FROM folding").fetchone()
    return version == (unicodedata.unidata_version,)


def note_folding(connection: Connection, version: str) -> None:
    """Store the version of Unicode with which all search words are folded."""
    connection.execute(
        """INSERT INTO folding (id, unicode_version) VALUES (1, ?)
           ON CONFLICT (id) DO UPDATE SET unicode_version = excluded.unicode_version""",
        (version,),
    )


def refold(database: Database) -> None:
    """Fold search words again if another version of Unicode folded them, except ASCII ones, which do not differ.

    Each transaction is short, so that a large database does not need one large transaction.
    """
    with database.reading() as connection:
        if is_folded_here(connection):
            return
        clients = select_clients(connection)
    for client_id in clients:
        last = 0
        while True:
            with database.transaction(client_id) as connection:
                last = update_words(connection, client_id, last, NOT_ASCII)
            if not last:
                break
    with database.transaction() as connection:
        note_folding(connection, unicodedata.unidata_version)


def register() -> None:
    """Register the migrations and the update of search words."""
    REGISTRY.refresh = refold
    REGISTRY.migrations |= {
        9: Migration(TO_VERSION_9, fill_labels),
        10: Migration(TO_VERSION_10),
        11: Migration(TO_VERSION_11, fill_references),
        12: Migration(TO_VERSION_12, fill_decided_and_partial),
        13: Migration(TO_VERSION_13),
    }
