"""What brings a database of an older schema up to date: the steps from version 8 on.

Each is a script, behind which schema.sql is run, and what fills the rows that are there then. The module takes all that
lead to its own version in one transaction; PostgreSQL has the same steps, some in words of its own.
"""

from __future__ import annotations

import msgspec

import findings_service as heart
from findings_adapters.marks import foreign_marks

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
FILLED_AT_ONCE = 200  # tasks, each with extensions of up to 256 KiB


def fill_marks(connection: heart.Connection) -> None:
    """Give tasks that came as SARIF their rule, location and tags, which only their extensions had until schema 9."""
    rows_of = f"""SELECT {heart.TASK_ROW_COLUMNS}, task_details.extensions, task_words.words FROM tasks {heart.DETAILS}
        JOIN task_words ON task_words.client_id = tasks.client_id AND task_words.task_seq = tasks.seq
        WHERE tasks.client_id = ? AND tasks.seq > ? AND task_details.extensions IS NOT NULL
        ORDER BY tasks.seq LIMIT ?"""
    for client_id in heart.select_clients(connection):
        last = 0
        while rows := connection.execute(rows_of, (client_id, last, FILLED_AT_ONCE)).fetchall():
            filled: list[tuple[heart.TaskRow, heart.TaskRow, str | None, str]] = []
            for *fields, extensions, words in rows:
                state, told = heart.TaskRow(*fields), msgspec.json.decode(extensions)
                last = state.seq
                if all(isinstance(told.get(name), str) for name in ("tool", "ruleId")):
                    rule, location, tags = foreign_marks(*map(told.get, ("ruleId", "file", "line", "tags")))
                    listed = msgspec.structs.replace(state, rule=rule, tags=tags)
                    words = heart.words_of(words, rule=rule, location=location, tags=heart.tags_in(tags))
                    filled.append((state, listed, location, words))
            connection.executemany(
                "UPDATE tasks SET rule = ?, location = ?, tags = ? WHERE client_id = ? AND seq = ?",
                [(new.rule, location, new.tags, client_id, new.seq) for _, new, location, _ in filled],
            )
            connection.executemany(
                "UPDATE task_words SET words = ? WHERE client_id = ? AND task_seq = ?",
                [(words, client_id, new.seq) for _, new, _, words in filled],
            )
            heart.move_in_counters(connection, client_id, [(old, new) for old, new, *_ in filled])


def register() -> None:
    """Have databases of older versions opened."""
    heart.REGISTRY.migrations[9] = heart.Migration(TO_VERSION_9, fill_marks)
    heart.REGISTRY.migrations[10] = heart.Migration(TO_VERSION_10)
