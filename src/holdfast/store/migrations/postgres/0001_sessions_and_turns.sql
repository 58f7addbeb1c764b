-- Instants are whole microseconds since 1970, UTC. JSON is text.

CREATE TABLE conversations (
    workspace      TEXT COLLATE "C" NOT NULL,
    id             TEXT COLLATE "C" NOT NULL,
    parent_id      TEXT COLLATE "C",             -- forked from: read through up to fork_seq, as of fork_revision
    fork_seq       BIGINT,
    fork_revision  BIGINT,
    revision       BIGINT NOT NULL, -- of the newest history change
    generation     BIGINT NOT NULL,
    next_seq       BIGINT NOT NULL, -- never reused
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (workspace, id)
);
CREATE INDEX conversation_forks ON conversations (workspace, parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE sessions (
    workspace           TEXT COLLATE "C" NOT NULL,
    id                  TEXT COLLATE "C" NOT NULL,
    conversation_id     TEXT COLLATE "C" NOT NULL,
    agent               TEXT COLLATE "C" NOT NULL,
    kind                TEXT COLLATE "C" NOT NULL,
    purpose             TEXT COLLATE "C" NOT NULL,
    name                TEXT COLLATE "C",
    provider            TEXT COLLATE "C",
    phase               TEXT COLLATE "C" NOT NULL,
    resume_ready        BOOLEAN NOT NULL,
    metadata            TEXT COLLATE "C" NOT NULL,
    error_count         BIGINT NOT NULL DEFAULT 0,
    last_error          TEXT COLLATE "C",
    last_error_at       BIGINT,
    created_at          BIGINT NOT NULL,
    updated_at          BIGINT NOT NULL,
    finalized_at        BIGINT,
    summary             TEXT COLLATE "C",
    parent_session_id   TEXT COLLATE "C",
    input_tokens        BIGINT NOT NULL DEFAULT 0,
    cached_input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens       BIGINT NOT NULL DEFAULT 0,
    cost_usd            DOUBLE PRECISION NOT NULL DEFAULT 0,
    -- the lease on the head turn; fence only ever grows
    fence               BIGINT NOT NULL DEFAULT 0,
    lease_owner         TEXT COLLATE "C",
    lease_expires_at    BIGINT,
    -- the head turn, kept by promote_head
    head_seq            BIGINT,
    head_provider       TEXT COLLATE "C",
    head_runtime_id     TEXT COLLATE "C",  -- empty: any runtime
    head_priority       BIGINT,
    ready_at            BIGINT,          -- the head may be claimed now
    wake_at             BIGINT,          -- the head may be claimed from then on
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
    workspace   TEXT COLLATE "C" NOT NULL,
    session_id  TEXT COLLATE "C" NOT NULL,
    number      BIGINT NOT NULL,
    from_phase  TEXT COLLATE "C" NOT NULL,
    to_phase    TEXT COLLATE "C" NOT NULL,
    at          BIGINT NOT NULL,
    PRIMARY KEY (workspace, session_id, number),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);

CREATE TABLE runtimes (
    workspace      TEXT COLLATE "C" NOT NULL,
    id             TEXT COLLATE "C" NOT NULL,
    machine        TEXT COLLATE "C" NOT NULL,
    provider       TEXT COLLATE "C" NOT NULL,
    distribution   TEXT COLLATE "C" NOT NULL,
    home           TEXT COLLATE "C" NOT NULL,
    version        TEXT COLLATE "C",
    capabilities   TEXT COLLATE "C" NOT NULL,
    first_seen_at  BIGINT NOT NULL,
    last_seen_at   BIGINT NOT NULL,
    PRIMARY KEY (workspace, id)
);

CREATE TABLE turns (
    workspace            TEXT COLLATE "C" NOT NULL,
    conversation_id      TEXT COLLATE "C" NOT NULL,
    seq                  BIGINT NOT NULL,
    session_id           TEXT COLLATE "C" NOT NULL,
    provider             TEXT COLLATE "C" NOT NULL,
    status               TEXT COLLATE "C" NOT NULL,
    request              TEXT COLLATE "C" NOT NULL,
    priority             BIGINT NOT NULL,
    not_before           BIGINT,
    runtime_id           TEXT COLLATE "C",
    foreground           BOOLEAN NOT NULL,
    retry_of             BIGINT,
    attempts             BIGINT NOT NULL,   -- numbers them
    tries                BIGINT NOT NULL,   -- those that count against max_attempts
    max_attempts         BIGINT NOT NULL,
    next_cause           TEXT COLLATE "C" NOT NULL,   -- of the attempt that comes next
    generation           BIGINT NOT NULL,
    dropped              BIGINT,            -- the revision that took it out of the history
    failure_class        TEXT COLLATE "C",
    error                TEXT COLLATE "C",
    cancel_requested_at  BIGINT,
    enqueue_key          TEXT COLLATE "C",
    created_at           BIGINT NOT NULL,
    ended_at             BIGINT,
    PRIMARY KEY (workspace, conversation_id, seq),
    FOREIGN KEY (workspace, conversation_id) REFERENCES conversations (workspace, id),
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
);
CREATE INDEX open_turns ON turns (workspace, conversation_id, session_id, seq)
    WHERE status IN ('queued', 'claimed', 'running', 'waiting');
CREATE UNIQUE INDEX enqueued_once ON turns (workspace, session_id, enqueue_key) WHERE enqueue_key IS NOT NULL;

-- what was asked and answered: only ever added to
CREATE TABLE messages (
    workspace        TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    seq              BIGINT NOT NULL,
    role             TEXT COLLATE "C" NOT NULL,   -- prompt, response
    revision         BIGINT NOT NULL,   -- the history revision that brought it
    text             TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, role, revision)
);

CREATE TABLE history_changes (
    workspace        TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    revision         BIGINT NOT NULL,
    kind             TEXT COLLATE "C" NOT NULL,   -- edit, truncate
    first_seq        BIGINT NOT NULL,
    last_seq         BIGINT NOT NULL,
    at               BIGINT NOT NULL,
    PRIMARY KEY (workspace, conversation_id, revision)
);

CREATE TABLE attempts (
    workspace            TEXT COLLATE "C" NOT NULL,
    conversation_id      TEXT COLLATE "C" NOT NULL,
    seq                  BIGINT NOT NULL,
    number               BIGINT NOT NULL,
    session_id           TEXT COLLATE "C" NOT NULL,
    provider             TEXT COLLATE "C" NOT NULL,
    runtime_id           TEXT COLLATE "C",
    version              TEXT COLLATE "C",
    owner                TEXT COLLATE "C" NOT NULL,
    claim_key            TEXT COLLATE "C" NOT NULL,
    fence                BIGINT NOT NULL,
    cause                TEXT COLLATE "C" NOT NULL,
    status               TEXT COLLATE "C" NOT NULL,
    decision             TEXT COLLATE "C" NOT NULL,
    reason               TEXT COLLATE "C" NOT NULL,
    evidence             TEXT COLLATE "C" NOT NULL,   -- the verdicts that did not pass
    provider_session_id  TEXT COLLATE "C",
    forked_from          TEXT COLLATE "C",
    work_dir             TEXT COLLATE "C",
    model                TEXT COLLATE "C",
    rights               TEXT COLLATE "C",
    transcript           TEXT COLLATE "C",
    epoch                BIGINT NOT NULL,
    generation           BIGINT NOT NULL,
    seen                 TEXT COLLATE "C" NOT NULL,
    process              TEXT COLLATE "C",
    started_at           BIGINT NOT NULL,
    ended_at             BIGINT,
    failure_class        TEXT COLLATE "C",
    error                TEXT COLLATE "C",
    input_tokens         BIGINT NOT NULL DEFAULT 0,
    cached_input_tokens  BIGINT NOT NULL DEFAULT 0,
    output_tokens        BIGINT NOT NULL DEFAULT 0,
    cost_usd             DOUBLE PRECISION NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, conversation_id, seq, number),
    FOREIGN KEY (workspace, conversation_id, seq) REFERENCES turns (workspace, conversation_id, seq)
        ON DELETE CASCADE,
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
);
-- the fence grows with every attempt of a session, so the newest attempt is the one with the largest
CREATE INDEX newest_attempts ON attempts (workspace, session_id, fence);
CREATE UNIQUE INDEX open_claims ON attempts (workspace, claim_key) WHERE status = 'open';

CREATE TABLE events (
    workspace        TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    seq              BIGINT NOT NULL,
    attempt          BIGINT NOT NULL,
    number           BIGINT NOT NULL,
    kind             TEXT COLLATE "C" NOT NULL,
    at               BIGINT NOT NULL,
    data             TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, attempt, number),
    FOREIGN KEY (workspace, conversation_id, seq, attempt)
        REFERENCES attempts (workspace, conversation_id, seq, number) ON DELETE CASCADE
);

CREATE TABLE pointers (
    workspace            TEXT COLLATE "C" NOT NULL,
    session_id           TEXT COLLATE "C" NOT NULL,
    provider             TEXT COLLATE "C" NOT NULL,
    provider_session_id  TEXT COLLATE "C" NOT NULL,
    runtime_id           TEXT COLLATE "C",
    version              TEXT COLLATE "C",
    work_dir             TEXT COLLATE "C",
    model                TEXT COLLATE "C",
    epoch                BIGINT,
    generation           BIGINT,
    seen                 TEXT COLLATE "C",
    rights               TEXT COLLATE "C",
    transcript           TEXT COLLATE "C",
    context_tokens       BIGINT,
    context_window       BIGINT,
    fork_seq             BIGINT,             -- set: belongs to the session this one was forked from
    updated_at           BIGINT NOT NULL,
    PRIMARY KEY (workspace, session_id, provider),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE,
    FOREIGN KEY (workspace, runtime_id) REFERENCES runtimes (workspace, id)
);

CREATE INDEX pointers_to_provider_sessions ON pointers (workspace, provider, provider_session_id);

CREATE TABLE provider_sessions (
    workspace                     TEXT COLLATE "C" NOT NULL,
    provider                      TEXT COLLATE "C" NOT NULL,
    id                            TEXT COLLATE "C" NOT NULL,
    session_id                    TEXT COLLATE "C" NOT NULL,
    forked_from                   TEXT COLLATE "C",
    first_seen_at                 BIGINT NOT NULL,
    last_seen_at                  BIGINT NOT NULL,
    errors                        BIGINT NOT NULL DEFAULT 0,
    failed_resumes                BIGINT NOT NULL DEFAULT 0,
    retired_at                    BIGINT,
    retired_reason                TEXT COLLATE "C",
    -- the one writer, or the last one: live exactly while that session's lease carries this fence
    holder_session_id             TEXT COLLATE "C",
    holder_fence                  BIGINT,
    input_tokens                  BIGINT NOT NULL DEFAULT 0,
    cached_input_tokens           BIGINT NOT NULL DEFAULT 0,
    output_tokens                 BIGINT NOT NULL DEFAULT 0,
    cost_usd                      DOUBLE PRECISION NOT NULL DEFAULT 0,
    -- what the provider itself last reported, to take deltas from
    reported_input_tokens         BIGINT NOT NULL DEFAULT 0,
    reported_cached_input_tokens  BIGINT NOT NULL DEFAULT 0,
    reported_output_tokens        BIGINT NOT NULL DEFAULT 0,
    reported_cost_usd             DOUBLE PRECISION NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, provider, id)
);
CREATE INDEX provider_sessions_by_session ON provider_sessions (workspace, session_id);

-- what a worker reported after it had lost its lease: evidence, never applied
CREATE TABLE late_reports (
    workspace        TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    seq              BIGINT NOT NULL,
    fence            BIGINT NOT NULL,
    verb             TEXT COLLATE "C" NOT NULL,
    report           TEXT COLLATE "C" NOT NULL,
    at               BIGINT NOT NULL
);
CREATE INDEX late_reports_by_turn ON late_reports (workspace, conversation_id, seq);
