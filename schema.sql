-- SQLite schema of the Findings Task Service, which keeps all of its data in one file.
--
-- The script is idempotent: it creates missing tables and indexes and leaves existing ones alone. SQLite appends the
-- rowid, `seq`, to every index, so every index also gives the order of creation. Main lines and branches have separate
-- partial indexes, so a list of one kind is as fast as a list of both, without more index entries per row. Only this
-- file and the function that opens connections use SQLite's own dialect (pragmas, STRICT, WITHOUT ROWID).
--
-- Every key and foreign key includes the client. A key that is the rowid is `seq` alone, as SQLite requires; such a
-- `seq` is unique across all clients.
--
-- Times are ISO 8601 text in UTC with milliseconds. `seq` is the internal key and the order of creation; `id` is the
-- UUIDv7 that the API shows. A severity is stored as its rank, from 5 (critical) to 1 (info), so that an index sorts by
-- it. A missing target URL is '', because it counts as a value of a finding's identity. The main line's branch is ''.

PRAGMA application_id = 0x46545356; -- "FTSV"
PRAGMA user_version = 13;

-- Clients own runs, tasks and project types. A client never sees the data of another.
CREATE TABLE IF NOT EXISTS clients (
    id          TEXT PRIMARY KEY,
    created_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- API keys. Only the SHA-256 of a key is stored. `for_users` marks the key of a proxy, whose requests name their user.
CREATE TABLE IF NOT EXISTS api_keys (
    client_id     TEXT NOT NULL REFERENCES clients (id),
    id            TEXT NOT NULL,
    name          TEXT NOT NULL,
    level         TEXT NOT NULL CHECK (level IN ('read', 'agent', 'triage', 'full')),
    hash          TEXT NOT NULL,
    created_at    TEXT NOT NULL,
    expires_at    TEXT,
    revoked_at    TEXT,
    last_used_at  TEXT,
    for_users     INTEGER NOT NULL DEFAULT 0 CHECK (for_users IN (0, 1)),
    PRIMARY KEY (client_id, id),
    UNIQUE (hash, client_id)
) STRICT, WITHOUT ROWID;

-- Project types. `extension_schema` is the JSON Schema of the tasks' extensions, exactly as it was sent.
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

-- Runs. `created` … `unchanged` count the results of its reports, `resolved` the missing findings that it resolved, and
-- `reported` the tasks. It is partial if it reported something as unchecked. `verdict` is the gate's result, as JSON.
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

-- Tasks: the columns that lists show and triage changes. The large columns are in task_details, so that a status change
-- or another report never rewrites a screenshot. `branch` is '' once a main-line run has reported the task; until then,
-- it is the first branch that did. `reason` explains a resolved or dismissed status. `tags` is a JSON array or NULL.
-- `is_decided` is 1 once triage has changed the status or the reason. Twins are findings that differ only in location;
-- their external ids differ only in a number. The first one's has no number; the others have that id in `twin_of`.
-- `reported_severity` is the reporter's, if triage has overridden `severity`. At `until`, a dismissed task opens again.
-- `duplicate_of` is a task's id. `links`, `verification` (the latest) and `proposal` are JSON, as the API returns them.
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
    tags          TEXT,
    reported_severity  INTEGER CHECK (reported_severity BETWEEN 1 AND 5),
    until         TEXT CHECK (until IS NULL OR status = 'dismissed'),
    duplicate_of  TEXT CHECK (duplicate_of IS NULL OR COALESCE(reason, '') = 'duplicate'),
    links         TEXT,
    verification  TEXT,
    proposal      TEXT CHECK (proposal IS NULL OR status IN ('open', 'in_progress')),
    claim_id      TEXT CHECK (claim_id IS NULL OR status = 'in_progress')
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

CREATE INDEX IF NOT EXISTS tasks_by_end_of_dismissal ON tasks (client_id, until) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_original ON tasks (client_id, duplicate_of) WHERE duplicate_of IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_claim ON tasks (client_id, claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS verified_tasks ON tasks (client_id) WHERE verification IS NOT NULL;
CREATE INDEX IF NOT EXISTS proposed_tasks ON tasks (client_id) WHERE proposal IS NOT NULL;

-- Claims of agents on tasks, until a time. `sender` is the key, or the key and its user, that may use the claim;
-- `holder` is the part of its JSON form that names them: "by":…,"user":… A row without tasks is deleted at that time, or
-- with the sender's next claim.
CREATE TABLE IF NOT EXISTS claims (
    client_id  TEXT NOT NULL REFERENCES clients (id),
    id         TEXT NOT NULL,
    sender     TEXT NOT NULL,
    holder     TEXT NOT NULL,
    until      TEXT NOT NULL,
    PRIMARY KEY (client_id, id)
) STRICT, WITHOUT ROWID;

-- Former external ids of findings, for example from before a file was renamed. Only the latest few per task are kept.
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

-- Index of tasks by tag, in list order. Its rows are derived from columns of `tasks`, and each change of these columns
-- updates them. A foreign key to tasks would need another index, to find the rows of a task; so there is none.
CREATE TABLE IF NOT EXISTS task_tags (
    client_id  TEXT NOT NULL,
    tag        TEXT NOT NULL,
    main_line  INTEGER NOT NULL CHECK (main_line IN (0, 1)),
    status     TEXT NOT NULL,
    severity   INTEGER NOT NULL,
    task_seq   INTEGER NOT NULL,
    PRIMARY KEY (client_id, tag, main_line, status, severity, task_seq)
) STRICT, WITHOUT ROWID;

-- The large columns of a task. Arrays and extensions are JSON text; NULL means empty.
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

-- Search text of a task: its title, external id, evidence labels, rule, location and tags, without case and accents,
-- and with one space between two words. It is a table of its own, because a search reads this text of all tasks of a
-- client.
CREATE TABLE IF NOT EXISTS task_words (
    client_id  TEXT NOT NULL,
    task_seq   INTEGER NOT NULL,
    words      TEXT NOT NULL,
    PRIMARY KEY (client_id, task_seq),
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Which run reported which task: one row for each pair, however often the task was submitted. `counted` is 0 if a
-- branch reported a task of the main line: such a report changes nothing of the task.
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

-- Branches of a project type and target. `reported` counts the tasks that runs of the branch have reported.
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

-- Which branch knows which task, because a run of the branch reported it. A row is kept if that run is pruned for its
-- age. It is deleted with the task, or if the branch's last run that reported the task is deleted by request.
CREATE TABLE IF NOT EXISTS branch_sightings (
    client_id   TEXT NOT NULL,
    branch_seq  INTEGER NOT NULL,
    task_seq    INTEGER NOT NULL,
    PRIMARY KEY (client_id, branch_seq, task_seq),
    FOREIGN KEY (client_id, branch_seq) REFERENCES branches (client_id, seq) ON DELETE CASCADE,
    FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS branch_sightings_by_task ON branch_sightings (client_id, task_seq, branch_seq);

-- History of tasks and runs. `key_name` names the key that made the change, '' for the service. `changed` is a JSON array
-- of field names. `reason` is a status entry's new reason, `assignee` an assigned entry's new assignee. `branch` is the
-- run's. No seq is reused. A client's seqs rise in the order of its commits, because its writers wait for each other.
CREATE TABLE IF NOT EXISTS history (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id    TEXT NOT NULL,
    task_seq     INTEGER,
    run_seq      INTEGER,
    at           TEXT NOT NULL,
    event        TEXT NOT NULL CHECK (
        CASE WHEN event IN ('started', 'finished') THEN task_seq IS NULL AND run_seq IS NOT NULL
        ELSE task_seq IS NOT NULL AND run_seq IS NULL END
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
    details      TEXT,
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

-- Numbers of tasks and runs (severity 0) by scope. Scopes of the main line: 'tasks', 'tasks type:T', 'tasks target:U',
-- 'tasks type:T target:U', and the same for 'runs'; also 'tasks rule:"R"', 'tasks tag:"T"', and 'tasks tagged' for all
-- with tags. Scopes of branches end with ' branches'; their runs also count in scopes that end with ' branch:NAME'.
-- The scope 'changes' has the client's revision, which each transaction that changes its data increases.
CREATE TABLE IF NOT EXISTS counters (
    client_id  TEXT NOT NULL,
    scope      TEXT NOT NULL,
    status     TEXT NOT NULL,
    severity   INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (client_id, scope, status, severity)
) STRICT, WITHOUT ROWID;

-- Stored responses to requests with an Idempotency-Key, kept for a day so that a retry gets the same response. For a
-- key with `for_users`, `key_id` is the id of the key, a space and the user.
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

-- Ids of tasks, runs and webhooks and names of project types in a stored response's body or its request's path. A
-- deletion uses them to find the responses that it has to drop.
CREATE TABLE IF NOT EXISTS answer_references (
    client_id   TEXT NOT NULL,
    reference   TEXT NOT NULL,
    answer_seq  INTEGER NOT NULL,
    in_path     INTEGER NOT NULL CHECK (in_path IN (0, 1)),
    PRIMARY KEY (client_id, reference, answer_seq),
    FOREIGN KEY (client_id, answer_seq) REFERENCES idempotent_answers (client_id, seq) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answer_references_by_answer ON answer_references (client_id, answer_seq);

-- Webhooks. `history_seq` is the position in the history: the seq of the last entry that was delivered or skipped.
-- `attempts` counts the failed deliveries of the next event; the next attempt is due at `next_attempt_at`. `secret`
-- signs deliveries, so it is stored in plain text. `types` is a JSON array, `min_severity` a severity rank.
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

-- One row: the process that delivers to webhooks. Another process may take over after `expires_at`.
CREATE TABLE IF NOT EXISTS delivery_lease (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    holder      TEXT NOT NULL,
    expires_at  TEXT NOT NULL
) STRICT;

-- One row: the epoch of this database. A restored or copied database has another one, which invalidates event cursors.
CREATE TABLE IF NOT EXISTS epochs (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    epoch  TEXT NOT NULL
) STRICT;

-- One row: the Unicode version by which the search text of all tasks was normalized. Without a row, it is unknown.
CREATE TABLE IF NOT EXISTS folding (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    unicode_version  TEXT NOT NULL
) STRICT;

-- One row: when the last successful backup was started. The copy in a backup has the time of the previous backup.
CREATE TABLE IF NOT EXISTS backups (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    made_at  TEXT NOT NULL
) STRICT;
