-- Instants are whole microseconds since 1970, UTC. JSON is text. Booleans are 0 and 1.

CREATE TABLE conversations (
    workspace      TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    parent_id      TEXT,             -- forked from: read through up to fork_seq, as of fork_revision
    fork_seq       INTEGER,
    fork_revision  INTEGER,
    revision       INTEGER NOT NULL, -- of the newest history change
    generation     INTEGER NOT NULL,
    next_seq       INTEGER NOT NULL, -- never reused
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (workspace, id)
) WITHOUT ROWID;
CREATE INDEX conversation_forks ON conversations (workspace, parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE sessions (
    workspace           TEXT    NOT NULL,
    id                  TEXT    NOT NULL,
    conversation_id     TEXT    NOT NULL,
    agent               TEXT    NOT NULL,
    kind                TEXT    NOT NULL,
    purpose             TEXT    NOT NULL,
    name                TEXT,
    provider            TEXT,
    phase               TEXT    NOT NULL,
    resume_ready        INTEGER NOT NULL,
    metadata            TEXT    NOT NULL,
    error_count         INTEGER NOT NULL DEFAULT 0,
    last_error          TEXT,
    last_error_at       INTEGER,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    finalized_at        INTEGER,
    summary             TEXT,
    parent_session_id   TEXT,
    input_tokens        INTEGER NOT NULL DEFAULT 0,
    cached_input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens       INTEGER NOT NULL DEFAULT 0,
    cost_usd            REAL    NOT NULL DEFAULT 0,
    -- the lease on the head turn; fence only ever grows
    fence               INTEGER NOT NULL DEFAULT 0,
    lease_owner         TEXT,
    lease_expires_at    INTEGER,
    -- the head turn, kept by promote_head
    head_seq            INTEGER,
    head_provider       TEXT,
    head_runtime_id     TEXT,             -- empty: any runtime
    head_priority       INTEGER,
    ready_at            INTEGER,          -- the head may be claimed now
    wake_at             INTEGER,          -- the head may be claimed from then on
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, conversation_id) REFERENCES conversations (workspace, id)
);
CREATE INDEX sessions_created ON sessions (workspace, created_at, id);
CREATE INDEX sessions_active ON sessions (workspace, created_at, id) WHERE finalized_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (workspace, agent, created_at, id);
CREATE UNIQUE INDEX sessions_by_name ON sessions (workspace, name) WHERE name IS NOT NULL;
CREATE INDEX sessions_by_conversation ON sessions (workspace, conversation_id);
CREATE INDEX sessions_by_parent ON sessions (workspace, parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE UNIQUE INDEX one_open_session ON sessions (workspace, conversation_id, agent) WHERE finalized_at IS NULL;
CREATE INDEX ready_heads ON sessions (workspace, head_provider, head_runtime_id, head_priority DESC, ready_at)
    WHERE ready_at IS NOT NULL;
CREATE INDEX waking_heads ON sessions (workspace, head_provider, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX live_leases ON sessions (workspace, lease_expires_at) WHERE lease_expires_at IS NOT NULL;

CREATE TABLE phase_changes (
    workspace   TEXT    NOT NULL,
    session_id  TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    from_phase  TEXT    NOT NULL,
    to_phase    TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (workspace, session_id, number),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE runtimes (
    workspace      TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    machine        TEXT    NOT NULL,
    provider       TEXT    NOT NULL,
    distribution   TEXT    NOT NULL,
    home           TEXT    NOT NULL,
    version        TEXT,
    capabilities   TEXT    NOT NULL,
    first_seen_at  INTEGER NOT NULL,
    last_seen_at   INTEGER NOT NULL,
    PRIMARY KEY (workspace, id)
) WITHOUT ROWID;

CREATE TABLE turns (
    workspace            TEXT    NOT NULL,
    conversation_id      TEXT    NOT NULL,
    seq                  INTEGER NOT NULL,
    session_id           TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    status               TEXT    NOT NULL,
    request              TEXT    NOT NULL,
    priority             INTEGER NOT NULL,
    not_before           INTEGER,
    runtime_id           TEXT,
    foreground           INTEGER NOT NULL,
    retry_of             INTEGER,
    attempts             INTEGER NOT NULL,   -- numbers them
    tries                INTEGER NOT NULL,   -- those that count against max_attempts
    max_attempts         INTEGER NOT NULL,
    next_cause           TEXT    NOT NULL,   -- of the attempt that comes next
    generation           INTEGER NOT NULL,
    dropped              INTEGER,            -- the revision that took it out of the history
    failure_class        TEXT,
    error                TEXT,
    cancel_requested_at  INTEGER,
    enqueue_key          TEXT,
    created_at           INTEGER NOT NULL,
    ended_at             INTEGER,
    PRIMARY KEY (workspace, conversation_id, seq),
    FOREIGN KEY (workspace, conversation_id) REFERENCES conversations (workspace, id),
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
) WITHOUT ROWID;
CREATE INDEX open_turns ON turns (workspace, conversation_id, session_id, seq)
    WHERE status IN ('queued', 'claimed', 'running', 'waiting');
CREATE UNIQUE INDEX enqueued_once ON turns (workspace, session_id, enqueue_key) WHERE enqueue_key IS NOT NULL;

-- what was asked and answered: only ever added to
CREATE TABLE messages (
    workspace        TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    role             TEXT    NOT NULL,   -- prompt, response
    revision         INTEGER NOT NULL,   -- the history revision that brought it
    text             TEXT    NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, role, revision)
);

CREATE TABLE history_changes (
    workspace        TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    revision         INTEGER NOT NULL,
    kind             TEXT    NOT NULL,   -- edit, truncate
    first_seq        INTEGER NOT NULL,
    last_seq         INTEGER NOT NULL,
    at               INTEGER NOT NULL,
    PRIMARY KEY (workspace, conversation_id, revision)
) WITHOUT ROWID;

CREATE TABLE attempts (
    workspace            TEXT    NOT NULL,
    conversation_id      TEXT    NOT NULL,
    seq                  INTEGER NOT NULL,
    number               INTEGER NOT NULL,
    session_id           TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    runtime_id           TEXT,
    version              TEXT,
    owner                TEXT    NOT NULL,
    claim_key            TEXT    NOT NULL,
    fence                INTEGER NOT NULL,
    cause                TEXT    NOT NULL,
    status               TEXT    NOT NULL,
    decision             TEXT    NOT NULL,
    reason               TEXT    NOT NULL,
    evidence             TEXT    NOT NULL,   -- the verdicts that did not pass
    provider_session_id  TEXT,
    forked_from          TEXT,
    work_dir             TEXT,
    model                TEXT,
    rights               TEXT,
    transcript           TEXT,
    epoch                INTEGER NOT NULL,
    generation           INTEGER NOT NULL,
    seen                 TEXT    NOT NULL,
    process              TEXT,
    started_at           INTEGER NOT NULL,
    ended_at             INTEGER,
    failure_class        TEXT,
    error                TEXT,
    input_tokens         INTEGER NOT NULL DEFAULT 0,
    cached_input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens        INTEGER NOT NULL DEFAULT 0,
    cost_usd             REAL    NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, conversation_id, seq, number),
    FOREIGN KEY (workspace, conversation_id, seq) REFERENCES turns (workspace, conversation_id, seq)
        ON DELETE CASCADE,
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
) WITHOUT ROWID;
-- the fence grows with every attempt of a session, so the newest attempt is the one with the largest
CREATE INDEX newest_attempts ON attempts (workspace, session_id, fence);
CREATE UNIQUE INDEX open_claims ON attempts (workspace, claim_key) WHERE status = 'open';

CREATE TABLE events (
    workspace        TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    number           INTEGER NOT NULL,
    kind             TEXT    NOT NULL,
    at               INTEGER NOT NULL,
    data             TEXT    NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, attempt, number),
    FOREIGN KEY (workspace, conversation_id, seq, attempt)
        REFERENCES attempts (workspace, conversation_id, seq, number) ON DELETE CASCADE
);

CREATE TABLE pointers (
    workspace            TEXT    NOT NULL,
    session_id           TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    provider_session_id  TEXT    NOT NULL,
    runtime_id           TEXT,
    version              TEXT,
    work_dir             TEXT,
    model                TEXT,
    epoch                INTEGER,
    generation           INTEGER,
    seen                 TEXT,
    rights               TEXT,
    transcript           TEXT,
    context_tokens       INTEGER,
    context_window       INTEGER,
    fork_seq             INTEGER,            -- set: belongs to the session this one was forked from
    updated_at           INTEGER NOT NULL,
    PRIMARY KEY (workspace, session_id, provider),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE,
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
) WITHOUT ROWID;

CREATE INDEX pointers_to_provider_sessions ON pointers (workspace, provider, provider_session_id);

CREATE TABLE provider_sessions (
    workspace                     TEXT    NOT NULL,
    provider                      TEXT    NOT NULL,
    id                            TEXT    NOT NULL,
    session_id                    TEXT    NOT NULL,
    forked_from                   TEXT,
    first_seen_at                 INTEGER NOT NULL,
    last_seen_at                  INTEGER NOT NULL,
    errors                        INTEGER NOT NULL DEFAULT 0,
    failed_resumes                INTEGER NOT NULL DEFAULT 0,
    retired_at                    INTEGER,
    retired_reason                TEXT,
    -- the one writer, or the last one: live exactly while that session's lease carries this fence
    holder_session_id             TEXT,
    holder_fence                  INTEGER,
    input_tokens                  INTEGER NOT NULL DEFAULT 0,
    cached_input_tokens           INTEGER NOT NULL DEFAULT 0,
    output_tokens                 INTEGER NOT NULL DEFAULT 0,
    cost_usd                      REAL    NOT NULL DEFAULT 0,
    -- what the provider itself last reported, to take deltas from
    reported_input_tokens         INTEGER NOT NULL DEFAULT 0,
    reported_cached_input_tokens  INTEGER NOT NULL DEFAULT 0,
    reported_output_tokens        INTEGER NOT NULL DEFAULT 0,
    reported_cost_usd             REAL    NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, provider, id)
) WITHOUT ROWID;
CREATE INDEX provider_sessions_by_session ON provider_sessions (workspace, session_id);

-- what a worker reported after it had lost its lease: evidence, never applied
CREATE TABLE late_reports (
    workspace        TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    verb             TEXT    NOT NULL,
    report           TEXT    NOT NULL,
    at               INTEGER NOT NULL
);
CREATE INDEX late_reports_by_turn ON late_reports (workspace, conversation_id, seq);
