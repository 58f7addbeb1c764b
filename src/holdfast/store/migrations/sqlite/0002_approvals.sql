CREATE TABLE approvals (
    workspace        TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    session_id       TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    seq              INTEGER,            -- the turn that waits for it; none: the agent itself has asked
    call_id          TEXT,
    tool             TEXT,
    what             TEXT    NOT NULL,
    arguments        TEXT    NOT NULL,   -- redacted
    arguments_hash   TEXT    NOT NULL,   -- of the exact ones
    nonce            TEXT    NOT NULL,
    requested_at     INTEGER NOT NULL,
    requested_by     TEXT    NOT NULL,
    expires_at       INTEGER,
    answerers        TEXT    NOT NULL,   -- empty: anyone
    status           TEXT    NOT NULL,
    answered_at      INTEGER,
    answered_by      TEXT,
    note             TEXT,
    used_at          INTEGER,            -- an answer is acted on once
    void_reason      TEXT,
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);
CREATE INDEX approvals_of_sessions ON approvals (workspace, session_id, requested_at, id);
CREATE INDEX open_approvals ON approvals (workspace, requested_at, id) WHERE status = 'open';
