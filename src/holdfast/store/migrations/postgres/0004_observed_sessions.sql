-- Sessions of a provider that hooks have seen, whoever started them.

CREATE TABLE observed_sessions (
    workspace            TEXT COLLATE "C" NOT NULL,
    provider             TEXT COLLATE "C" NOT NULL,
    id                   TEXT COLLATE "C" NOT NULL,
    cwd                  TEXT COLLATE "C",
    transcript_path      TEXT COLLATE "C",
    source               TEXT COLLATE "C", -- how it began: startup, resume, fork, clear, compact
    started_at           BIGINT NOT NULL,
    last_seen_at         BIGINT NOT NULL,
    ended_at             BIGINT,
    end_reason           TEXT COLLATE "C",
    compactions          BIGINT NOT NULL DEFAULT 0,
    compacted_at         BIGINT, -- the last time: the same event counts once
    input_tokens         BIGINT NOT NULL DEFAULT 0,
    cached_input_tokens  BIGINT NOT NULL DEFAULT 0,
    output_tokens        BIGINT NOT NULL DEFAULT 0,
    context_tokens       BIGINT, -- of the last call to the model
    transcript_offset    BIGINT NOT NULL DEFAULT 0, -- what lies before it is counted
    last_message         TEXT COLLATE "C", -- the last one that was counted
    PRIMARY KEY (workspace, provider, id)
);
CREATE INDEX observed_sessions_seen ON observed_sessions (workspace, last_seen_at);
