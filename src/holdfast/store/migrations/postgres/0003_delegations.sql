-- who works in which delegated session, one at a time; also who only asked (outcome: asked)
CREATE TABLE delegations (
    workspace            TEXT COLLATE "C" NOT NULL,
    id                   TEXT COLLATE "C" NOT NULL,   -- the provider's id of the tool call, or minted
    session_id           TEXT COLLATE "C",            -- NULL: asked, and there was none
    agent                TEXT COLLATE "C" NOT NULL,
    project              TEXT COLLATE "C" NOT NULL,
    resumed              BOOLEAN NOT NULL,
    reason               TEXT COLLATE "C" NOT NULL,
    provider_session_id  TEXT COLLATE "C",            -- of the one who delegates
    owner                TEXT COLLATE "C",            -- the process that delegates
    provider_agent_id    TEXT COLLATE "C",
    transcript_path      TEXT COLLATE "C",
    at                   BIGINT NOT NULL,
    ended_at             BIGINT,
    outcome              TEXT COLLATE "C",
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);
CREATE INDEX delegations_by_session ON delegations (workspace, session_id) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX open_delegations ON delegations (workspace, session_id) WHERE ended_at IS NULL;
CREATE INDEX open_delegations_by_provider_session ON delegations (workspace, provider_session_id)
    WHERE ended_at IS NULL;

-- where the work is; what hooks delegate again is looked for there
ALTER TABLE sessions ADD COLUMN project TEXT COLLATE "C";
CREATE INDEX delegable_sessions ON sessions (workspace, project, agent, created_at)
    WHERE finalized_at IS NULL;
