-- The Findings Task Service keeps everything in one SQLite file with this schema.
--
-- The script is idempotent: it makes what is missing and leaves what is there. Every index ends with the
-- rowid, `seq`, by itself, and so also gives the order of creation. What is of a main line and what is not have indexes
-- of their own, so that a list of either is as quick as one of both, and a row stands in no more of them. Only this file and the
-- function that connects speak SQLite's own dialect (pragmas, STRICT, WITHOUT ROWID).
--
-- Every key and foreign key has the client. Where it does not lead, as in a key that is the rowid, that is SQLite's way:
-- there a seq is the only one of its kind among all clients.
--
-- Times are ISO 8601 UTC text with milliseconds. `seq` is the order of creation and the internal key;
-- `id` is the UUIDv7 that clients see. A severity is its rank, 5 critical … 1 info, so that an index sorts
-- it. A missing target URL is '', because it counts as a value of a finding's identity, and so is the branch of
-- what is of a target's main line.

PRAGMA application_id = 0x46545356; -- "FTSV"
PRAGMA user_version = 12;

-- Who owns runs, tasks and project types. Clients never see each other.
CREATE TABLE IF NOT EXISTS clients (
    id          TEXT PRIMARY KEY,
    created_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- API keys. Only the SHA-256 of a key is kept. One for users is a proxy's, which says with each request who that is from.
CREATE TABLE IF NOT EXISTS api_keys (
    client_id     TEXT NOT NULL REFERENCES clients (id),
    id            TEXT NOT NULL,
    name          TEXT NOT NULL,
    level         TEXT NOT NULL CHECK (level IN ('read', 'agent', 'full')),
    hash          TEXT NOT NULL,
    created_at    TEXT NOT NULL,
    expires_at    TEXT,
    revoked_at    TEXT,
    last_used_at  TEXT,
    for_users     INTEGER NOT NULL DEFAULT 0 CHECK (for_users IN (0, 1)),
    PRIMARY KEY (client_id, id),
    UNIQUE (hash, client_id)
) STRICT, WITHOUT ROWID;

-- Project types, with the JSON Schema of their tasks' extensions exactly as it was sent.
CREATE TABLE IF NOT EXISTS project_types (
    client_id         TEXT NOT NULL REFERENCES clients (id),
    name              TEXT NOT NULL,
    id                TEXT NOT NULL,
    label             TEXT NOT NULL,
    description       TEXT NOT NULL,
    extension_schema  TEXT,
    created_at        TEXT NOT NULL,
    PRIMARY KEY (client_id, name),
    UNIQUE (client_id, id)
) STRICT, WITHOUT ROWID;

-- Runs. `created` … `resolved` count what the run's submissions did, `reported` the tasks that it reports. A partial one
-- reported something that was not checked. `verdict` is the gate's when it was completed, as JSON.
CREATE TABLE IF NOT EXISTS runs (
    seq            INTEGER PRIMARY KEY,
    client_id      TEXT NOT NULL,
    id             TEXT NOT NULL,
    project_type   TEXT NOT NULL,
    target_url     TEXT NOT NULL DEFAULT '',
    metadata       TEXT NOT NULL DEFAULT '{}',
    status         TEXT NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    status_reason  TEXT,
    created_at     TEXT NOT NULL,
    updated_at     TEXT NOT NULL,
    finished_at    TEXT CHECK ((finished_at IS NULL) = (status = 'running')),
    last_used_at   TEXT NOT NULL,
    created        INTEGER NOT NULL DEFAULT 0,
    updated        INTEGER NOT NULL DEFAULT 0,
    reopened       INTEGER NOT NULL DEFAULT 0,
    unchanged      INTEGER NOT NULL DEFAULT 0,
    resolved       INTEGER NOT NULL DEFAULT 0,
    reported       INTEGER NOT NULL DEFAULT 0,
    branch         TEXT NOT NULL DEFAULT '',
    is_partial     INTEGER NOT NULL DEFAULT 0 CHECK (is_partial IN (0, 1)),
    verdict        TEXT,
    FOREIGN KEY (client_id, project_type) REFERENCES project_types (client_id, name)
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS runs_by_id ON runs (client_id, id);
CREATE UNIQUE INDEX IF NOT EXISTS runs_by_age ON runs (client_id, seq);
CREATE INDEX IF NOT EXISTS runs_by_status ON runs (client_id, status) WHERE branch = '';
CREATE INDEX IF NOT EXISTS runs_by_type ON runs (client_id, project_type, status) WHERE branch = '';
CREATE INDEX IF NOT EXISTS runs_by_target ON runs (client_id, target_url, status) WHERE branch = '';
CREATE INDEX IF NOT EXISTS branch_runs_by_status ON runs (client_id, status) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS branch_runs_by_type ON runs (client_id, project_type, status) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS branch_runs_by_target ON runs (client_id, target_url, status) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS branch_runs_by_branch ON runs (client_id, branch, status) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS runs_by_end ON runs (client_id, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_by_use ON runs (client_id, last_used_at) WHERE status = 'running';

-- Tasks: the part that lists show and triage changes. The bulk is in task_details, so that a status change
-- or another sighting never rewrites a screenshot. `branch` is '' once a run of the main line has reported the task,
-- else the branch that reported it first. `reason` is why a finished one is that, `assignee` who sees to it. `tags` is a
-- JSON array, or NULL. `is_decided` is 1 once somebody has changed the status or the reason. Twins are findings that differ
-- only in their places: the first has their external id, and each of the others that id with a number, and the id as `twin_of`.
CREATE TABLE IF NOT EXISTS tasks (
    seq           INTEGER PRIMARY KEY,
    client_id     TEXT NOT NULL,
    id            TEXT NOT NULL,
    project_type  TEXT NOT NULL,
    target_url    TEXT NOT NULL DEFAULT '',
    external_id   TEXT,
    run_id        TEXT NOT NULL,
    last_run_id   TEXT NOT NULL,
    title         TEXT NOT NULL,
    severity      INTEGER NOT NULL CHECK (severity BETWEEN 1 AND 5),
    status        TEXT NOT NULL CHECK (status IN ('open', 'in_progress', 'resolved', 'dismissed')),
    created_at    TEXT NOT NULL,
    updated_at    TEXT NOT NULL,
    last_seen_at  TEXT NOT NULL,
    times_seen    INTEGER NOT NULL DEFAULT 1,
    branch        TEXT NOT NULL DEFAULT '',
    reason        TEXT CHECK (
        reason IS NULL
        OR status IN ('resolved', 'dismissed')
        AND reason IN ('fixed', 'false_positive', 'accepted_risk', 'wont_fix', 'used_in_tests', 'duplicate')
    ),
    assignee      TEXT CHECK (assignee <> ''),
    is_decided    INTEGER NOT NULL DEFAULT 0 CHECK (is_decided IN (0, 1)),
    twin_of       TEXT,
    rule          TEXT,
    location      TEXT,
    tags          TEXT
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS tasks_by_id ON tasks (client_id, id);
CREATE UNIQUE INDEX IF NOT EXISTS tasks_by_identity ON tasks (client_id, external_id, project_type, target_url);
CREATE UNIQUE INDEX IF NOT EXISTS tasks_by_age ON tasks (client_id, seq);
CREATE INDEX IF NOT EXISTS tasks_by_status ON tasks (client_id, status, severity) WHERE branch = '';
CREATE INDEX IF NOT EXISTS tasks_by_type ON tasks (client_id, project_type, status, severity) WHERE branch = '';
CREATE INDEX IF NOT EXISTS tasks_by_target ON tasks (client_id, target_url, status, severity) WHERE branch = '';
CREATE INDEX IF NOT EXISTS tasks_by_place ON tasks (client_id, project_type, target_url, status, severity)
    WHERE branch = '';
CREATE INDEX IF NOT EXISTS branch_tasks_by_status ON tasks (client_id, status, severity) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS branch_tasks_by_type ON tasks (client_id, project_type, status, severity) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS branch_tasks_by_target ON tasks (client_id, target_url, status, severity) WHERE branch <> '';
CREATE INDEX IF NOT EXISTS tasks_by_assignee ON tasks (client_id, assignee) WHERE assignee IS NOT NULL;
CREATE INDEX IF NOT EXISTS assigned_tasks ON tasks (client_id) WHERE assignee IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_rule ON tasks (client_id, rule, status, severity)
    WHERE branch = '' AND rule IS NOT NULL;
CREATE INDEX IF NOT EXISTS branch_tasks_by_rule ON tasks (client_id, rule, status, severity)
    WHERE branch <> '' AND rule IS NOT NULL;
CREATE INDEX IF NOT EXISTS twins ON tasks (client_id, twin_of, project_type, target_url) WHERE twin_of IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_location ON tasks (client_id, substr(location, 1, 200)) WHERE location IS NOT NULL;

-- External ids that findings had before, the latest of each: of what a file was renamed from, say.
CREATE TABLE IF NOT EXISTS former_ids (
    seq           INTEGER PRIMARY KEY,
    client_id     TEXT NOT NULL,
    project_type  TEXT NOT NULL,
    target_url    TEXT NOT NULL,
    external_id   TEXT NOT NULL,
    task_seq      INTEGER NOT NULL,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS former_ids_by_id ON former_ids (client_id, external_id, project_type, target_url);
CREATE INDEX IF NOT EXISTS former_ids_by_task ON former_ids (client_id, task_seq);

-- Which tasks have a tag, in the order in which they are listed: made of a task's columns, and changed with them.
-- Nothing refers to the task, because a key that finds its rows would have to be kept for that alone.
CREATE TABLE IF NOT EXISTS task_tags (
    client_id  TEXT NOT NULL,
    tag        TEXT NOT NULL,
    main_line  INTEGER NOT NULL CHECK (main_line IN (0, 1)),
    status     TEXT NOT NULL,
    severity   INTEGER NOT NULL,
    task_seq   INTEGER NOT NULL,
    PRIMARY KEY (client_id, tag, main_line, status, severity, task_seq)
) STRICT, WITHOUT ROWID;

-- The bulk of a task. Arrays and extensions are JSON text; NULL is an empty one.
CREATE TABLE IF NOT EXISTS task_details (
    task_seq          INTEGER PRIMARY KEY,
    client_id         TEXT NOT NULL,
    description       TEXT,
    evidence          TEXT,
    remediation       TEXT,
    success_criteria  TEXT,
    extensions        TEXT,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT;

-- What a task is searched by: its title, its external id, the labels of its evidence, its rule, location and tags,
-- without case and accents and with a space between two words. By itself, because a search reads that of all tasks of a
-- client.
CREATE TABLE IF NOT EXISTS task_words (
    client_id  TEXT NOT NULL,
    task_seq   INTEGER NOT NULL,
    words      TEXT NOT NULL,
    PRIMARY KEY (client_id, task_seq),
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Which run reported which task: once each, however often it was submitted. One that does not count is a branch's, of
-- a task that the main line knew: it moved nothing of the task.
CREATE TABLE IF NOT EXISTS sightings (
    client_id  TEXT NOT NULL,
    run_seq    INTEGER NOT NULL,
    task_seq   INTEGER NOT NULL,
    counted    INTEGER NOT NULL DEFAULT 1 CHECK (counted IN (0, 1)),
    PRIMARY KEY (client_id, run_seq, task_seq),
    FOREIGN KEY (client_id, run_seq) REFERENCES runs (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sightings_by_task ON sightings (client_id, task_seq, run_seq);

-- Branches of a type and target. `reported` counts the tasks that runs of the branch have reported.
CREATE TABLE IF NOT EXISTS branches (
    seq           INTEGER PRIMARY KEY,
    client_id     TEXT NOT NULL,
    name          TEXT NOT NULL,
    project_type  TEXT NOT NULL,
    target_url    TEXT NOT NULL,
    reported      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS branches_by_name ON branches (client_id, name, project_type, target_url);
CREATE UNIQUE INDEX IF NOT EXISTS branches_by_age ON branches (client_id, seq);

-- Which branch knows which task, because a run of it has reported that: for as long as there is the task, whether or
-- not there still is the run.
CREATE TABLE IF NOT EXISTS branch_sightings (
    client_id   TEXT NOT NULL,
    branch_seq  INTEGER NOT NULL,
    task_seq    INTEGER NOT NULL,
    PRIMARY KEY (client_id, branch_seq, task_seq),
    FOREIGN KEY (client_id, branch_seq) REFERENCES branches (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS branch_sightings_by_task ON branch_sightings (client_id, task_seq, branch_seq);

-- What happened to a task or a run, and who did it: '' where that was the clock. `changed` is a JSON array of field
-- names; `reason` and `assignee` are those that the task has had since. `branch` is that of the run in which it happened.
-- A seq is never used twice, and those of a client rise in the order of its commits: its writers wait for each other.
CREATE TABLE IF NOT EXISTS history (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id    TEXT NOT NULL,
    task_seq     INTEGER,
    run_seq      INTEGER,
    at           TEXT NOT NULL,
    event        TEXT NOT NULL CHECK (
        event IN ('created', 'reported', 'status', 'assigned', 'comment') AND task_seq IS NOT NULL AND run_seq IS NULL
        OR event IN ('started', 'finished') AND task_seq IS NULL AND run_seq IS NOT NULL
    ),
    key_name     TEXT NOT NULL,
    user_name    TEXT,
    run_id       TEXT,
    branch       TEXT NOT NULL DEFAULT '',
    from_status  TEXT,
    to_status    TEXT,
    comment      TEXT,
    changed      TEXT,
    reason       TEXT,
    assignee     TEXT,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, run_seq) REFERENCES runs (client_id, seq) ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS history_by_age ON history (client_id);
CREATE INDEX IF NOT EXISTS history_by_run ON history (client_id, run_seq) WHERE run_seq IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_by_task ON history (client_id, task_seq);
CREATE INDEX IF NOT EXISTS moves_by_time ON history (client_id, at, event, from_status, to_status, task_seq)
    WHERE to_status IS NOT NULL;
CREATE INDEX IF NOT EXISTS comments_by_task ON history (client_id, task_seq) WHERE comment IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_by_resolving_run ON history (client_id, run_id)
    WHERE event = 'status' AND run_id IS NOT NULL;

-- How many tasks of the main line (or runs, with severity 0) a scope holds: 'tasks', 'tasks type:T', 'tasks target:U',
-- 'tasks type:T target:U', and the same for 'runs'; also 'tasks rule:"R"', 'tasks tag:"T"', and 'tasks tagged' for those
-- with any tag. Of what is not of the main line, all have ' branches' at their end, and for runs each again
-- ' branch:NAME'. 'changes' only rises, with each transaction that changes what is the client's: a stamp.
CREATE TABLE IF NOT EXISTS counters (
    client_id  TEXT NOT NULL,
    scope      TEXT NOT NULL,
    status     TEXT NOT NULL,
    severity   INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (client_id, scope, status, severity)
) STRICT, WITHOUT ROWID;

-- Answers to requests with an Idempotency-Key, kept for a day so that a repeated request gets its answer again. Behind
-- the id of a key for users stands the user.
CREATE TABLE IF NOT EXISTS idempotent_answers (
    seq              INTEGER PRIMARY KEY,
    client_id        TEXT NOT NULL,
    key_id           TEXT NOT NULL,
    method           TEXT NOT NULL,
    path             TEXT NOT NULL,
    idempotency_key  TEXT NOT NULL,
    body_hash        TEXT NOT NULL,
    status           INTEGER NOT NULL,
    location         TEXT,
    body             TEXT NOT NULL,
    created_at       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS idempotent_answers_by_key
    ON idempotent_answers (client_id, key_id, method, path, idempotency_key);
CREATE UNIQUE INDEX IF NOT EXISTS idempotent_answers_by_seq ON idempotent_answers (client_id, seq);
CREATE INDEX IF NOT EXISTS idempotent_answers_by_age ON idempotent_answers (client_id, created_at);

-- References of a kept answer, in its body or its path: the ids of tasks, runs and webhooks, the names of project types. A
-- deletion finds by it the answers that it drops.
CREATE TABLE IF NOT EXISTS answer_references (
    client_id   TEXT NOT NULL,
    reference   TEXT NOT NULL,
    answer_seq  INTEGER NOT NULL,
    in_path     INTEGER NOT NULL CHECK (in_path IN (0, 1)),
    PRIMARY KEY (client_id, reference, answer_seq),
    FOREIGN KEY (client_id, answer_seq) REFERENCES idempotent_answers (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answer_references_by_answer ON answer_references (client_id, answer_seq);

-- Where events go, each hook with its place in the history: the seq of the last entry that it is done with. Of the next
-- one, `attempts` have failed so far, and another is due at `next_attempt_at`. A `secret` signs, and so is kept as it is.
-- `types` is a JSON array, `min_severity` a rank.
CREATE TABLE IF NOT EXISTS webhooks (
    client_id         TEXT NOT NULL REFERENCES clients (id),
    id                TEXT NOT NULL,
    url               TEXT NOT NULL,
    types             TEXT NOT NULL,
    min_severity      INTEGER CHECK (min_severity BETWEEN 1 AND 5),
    project_type      TEXT,
    target_url        TEXT,
    format            TEXT NOT NULL CHECK (format IN ('json', 'slack')),
    secret            TEXT NOT NULL,
    state             TEXT NOT NULL CHECK (state IN ('on', 'off')),
    last_error        TEXT,
    last_delivery_at  TEXT,
    created_at        TEXT NOT NULL,
    history_seq       INTEGER NOT NULL,
    attempts          INTEGER NOT NULL DEFAULT 0,
    next_attempt_at   TEXT,
    PRIMARY KEY (client_id, id)
) STRICT, WITHOUT ROWID;

-- One row that says which process delivers to the webhooks, and until when: another one may once that is over.
CREATE TABLE IF NOT EXISTS delivery_lease (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    holder      TEXT NOT NULL,
    expires_at  TEXT NOT NULL
) STRICT;

-- One row that tells this database from what it was restored or copied from: places in the feed of events are of one.
CREATE TABLE IF NOT EXISTS epochs (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    epoch  TEXT NOT NULL
) STRICT;

-- One row that says by which version of Unicode's tables the words of all tasks are folded. Without it, that is unknown.
CREATE TABLE IF NOT EXISTS folding (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    unicode_version  TEXT NOT NULL
) STRICT;

-- One row that says when the last good backup was begun; a backup has that of the one before it.
CREATE TABLE IF NOT EXISTS backups (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    made_at  TEXT NOT NULL
) STRICT;
