-- Sessions of a provider that hooks have seen, whoever started them.

CREATE TABLE observed_sessions (
    workspace            TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    id                   TEXT    NOT NULL,
    cwd                  TEXT,
    transcript_path      TEXT,
    source               TEXT,             -- how it began: startup, resume, fork, clear, compact
    started_at           INTEGER NOT NULL,
    last_seen_at         INTEGER NOT NULL,
    ended_at             INTEGER,
    end_reason           TEXT,
    compactions          INTEGER NOT NULL DEFAULT 0,
    compacted_at         INTEGER,          -- the last time: the same event counts once
    input_tokens         INTEGER NOT NULL DEFAULT 0,
    cached_input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens        INTEGER NOT NULL DEFAULT 0,
    context_tokens       INTEGER,          -- of the last call to the model
    transcript_offset    INTEGER NOT NULL DEFAULT 0, -- what lies before it is counted
    last_message         TEXT,             -- the last one that was counted
    PRIMARY KEY (workspace, provider, id)
) WITHOUT ROWID;
CREATE INDEX observed_sessions_seen ON observed_sessions (workspace, last_seen_at);
