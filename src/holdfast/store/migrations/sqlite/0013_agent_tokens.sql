-- what an agent that is running may use the server with: the token of a session's newest attempt, good as long
-- as the lease with that fence
CREATE TABLE agent_tokens (
    workspace   TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    id          TEXT NOT NULL,   -- found by this alone, as tokens are
    digest      TEXT NOT NULL,
    fence       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (workspace, session_id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE UNIQUE INDEX agent_tokens_by_id ON agent_tokens (id);
