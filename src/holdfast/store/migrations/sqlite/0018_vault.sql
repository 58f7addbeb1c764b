-- the providers' own session files, byte for byte: pieces by their digest, and which pieces make up which file
CREATE TABLE vault_chunks (
    workspace   TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    size        INTEGER NOT NULL,   -- of the plain bytes
    codec       TEXT    NOT NULL,
    stored      INTEGER NOT NULL,   -- of data
    touched_at  INTEGER NOT NULL,   -- when it was added, or when a file last stopped using it
    data        BLOB    NOT NULL,
    PRIMARY KEY (workspace, digest)
);
CREATE INDEX vault_chunks_by_touch ON vault_chunks (workspace, touched_at, digest, stored);
CREATE TABLE vault_bundles (
    workspace            TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    provider_session_id  TEXT    NOT NULL,
    branch               TEXT    NOT NULL,   -- empty: the session itself
    home                 TEXT    NOT NULL,
    runtime_id           TEXT,
    work_dir             TEXT,
    kept_at              INTEGER NOT NULL,
    revision             INTEGER NOT NULL,
    stored_bytes         INTEGER NOT NULL,
    PRIMARY KEY (workspace, provider, provider_session_id, branch)
) WITHOUT ROWID;
CREATE INDEX vault_bundles_by_age
    ON vault_bundles (workspace, kept_at, provider, provider_session_id, branch, stored_bytes);
CREATE TABLE vault_files (
    workspace            TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    provider_session_id  TEXT    NOT NULL,
    branch               TEXT    NOT NULL,
    number               INTEGER NOT NULL,   -- 0 is the main file
    name                 TEXT    NOT NULL,
    size                 INTEGER NOT NULL,
    PRIMARY KEY (workspace, provider, provider_session_id, branch, number),
    FOREIGN KEY (workspace, provider, provider_session_id, branch)
        REFERENCES vault_bundles (workspace, provider, provider_session_id, branch) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE vault_parts (
    workspace            TEXT    NOT NULL,
    provider             TEXT    NOT NULL,
    provider_session_id  TEXT    NOT NULL,
    branch               TEXT    NOT NULL,
    file                 INTEGER NOT NULL,
    number               INTEGER NOT NULL,
    digest               TEXT    NOT NULL,
    size                 INTEGER NOT NULL,
    stored               INTEGER NOT NULL,
    PRIMARY KEY (workspace, provider, provider_session_id, branch, file, number),
    FOREIGN KEY (workspace, provider, provider_session_id, branch, file)
        REFERENCES vault_files (workspace, provider, provider_session_id, branch, number) ON DELETE CASCADE,
    FOREIGN KEY (workspace, digest) REFERENCES vault_chunks (workspace, digest)
) WITHOUT ROWID;
CREATE INDEX vault_parts_by_chunk ON vault_parts (workspace, digest);
