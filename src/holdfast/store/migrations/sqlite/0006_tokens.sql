-- who may use the server. A token works in its workspace alone, but is looked up by its id: which workspace
-- that is, the token says. Rows stay when a token is revoked: a store that asked for tokens goes on asking.
CREATE TABLE tokens (
    id            TEXT NOT NULL PRIMARY KEY,
    workspace     TEXT NOT NULL,
    role          TEXT NOT NULL,
    name          TEXT NOT NULL,
    digest        TEXT NOT NULL,   -- SHA-256 of the secret, which only its holder knows
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    last_used_at  INTEGER,            -- to the hour
    revoked_at    INTEGER
) WITHOUT ROWID;
CREATE INDEX tokens_by_workspace ON tokens (workspace, created_at, id);
