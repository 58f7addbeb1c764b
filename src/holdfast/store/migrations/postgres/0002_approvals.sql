CREATE TABLE approvals (
    workspace        TEXT COLLATE "C" NOT NULL,
    id               TEXT COLLATE "C" NOT NULL,
    session_id       TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    seq              BIGINT,            -- the turn that waits for it; none: the agent itself has asked
    call_id          TEXT COLLATE "C",
    tool             TEXT COLLATE "C",
    what             TEXT COLLATE "C" NOT NULL,
    arguments        TEXT COLLATE "C" NOT NULL,   -- redacted
    arguments_hash   TEXT COLLATE "C" NOT NULL,   -- of the exact ones
    nonce            TEXT COLLATE "C" NOT NULL,
    requested_at     BIGINT NOT NULL,
    requested_by     TEXT COLLATE "C" NOT NULL,
    expires_at       BIGINT,
    answerers        TEXT COLLATE "C" NOT NULL,   -- empty: anyone
    status           TEXT COLLATE "C" NOT NULL,
    answered_at      BIGINT,
    answered_by      TEXT COLLATE "C",
    note             TEXT COLLATE "C",
    used_at          BIGINT,            -- an answer is acted on once
    void_reason      TEXT COLLATE "C",
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);
CREATE INDEX approvals_of_sessions ON approvals (workspace, session_id, requested_at, id);
CREATE INDEX open_approvals ON approvals (workspace, requested_at, id) WHERE status = 'open';
