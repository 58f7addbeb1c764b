-- who works in which delegated session, one at a time; also who only asked (outcome: asked)
CREATE TABLE delegations (
    workspace            TEXT NOT NULL,
    id                   TEXT NOT NULL,   -- the provider's id of the tool call, or minted
    session_id           TEXT,            -- NULL: asked, and there was none
    agent                TEXT NOT NULL,
    project              TEXT NOT NULL,
    resumed              INTEGER NOT NULL,
    reason               TEXT NOT NULL,
    provider_session_id  TEXT,            -- of the one who delegates
    owner                TEXT,            -- the process that delegates
    provider_agent_id    TEXT,
    transcript_path      TEXT,
    at                   INTEGER NOT NULL,
    ended_at             INTEGER,
    outcome              TEXT,
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX delegations_by_session ON delegations (workspace, session_id) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX open_delegations ON delegations (workspace, session_id) WHERE ended_at IS NULL;
CREATE INDEX open_delegations_by_provider_session ON delegations (workspace, provider_session_id)
    WHERE ended_at IS NULL;

-- where the work is; what hooks delegate again is looked for there
ALTER TABLE sessions ADD COLUMN project TEXT;
CREATE INDEX delegable_sessions ON sessions (workspace, project, agent, created_at)
    WHERE finalized_at IS NULL;
