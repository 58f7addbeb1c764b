-- where sessions were read from, and in which state: what has not changed since is not read again
CREATE TABLE sources (
    workspace            TEXT    NOT NULL,
    machine              TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    place                TEXT    NOT NULL,   -- the path of a file; of a session in a database, with its id behind a #
    home                 TEXT    NOT NULL,
    size                 INTEGER NOT NULL,
    mtime_ns             INTEGER NOT NULL,
    provider_session_id  TEXT,
    session_id           TEXT,               -- that has what the source holds
    work_dir             TEXT,
    first_key            TEXT,               -- of its first turn; forks have the same one
    reason               TEXT,               -- why nothing of it, or nothing new, was taken in
    PRIMARY KEY (workspace, machine, provider, place)
) WITHOUT ROWID;
CREATE INDEX sources_of_sessions ON sources (workspace, session_id) WHERE session_id IS NOT NULL;

-- provider sessions whose sessions were deleted here: an import does not bring them back
CREATE TABLE tombstones (
    workspace            TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    provider_session_id  TEXT    NOT NULL,
    removed_at           INTEGER NOT NULL,
    PRIMARY KEY (workspace, provider, provider_session_id)
) WITHOUT ROWID;

-- forks and subagents of a session that is imported after them
CREATE INDEX provider_sessions_by_source ON provider_sessions (workspace, provider, forked_from)
    WHERE forked_from IS NOT NULL;
