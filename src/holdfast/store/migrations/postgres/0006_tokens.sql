-- who may use the server. A token works in its workspace alone, but is looked up by its id: which workspace
-- that is, the token says. Rows stay when a token is revoked: a store that asked for tokens goes on asking.
CREATE TABLE tokens (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    workspace     TEXT COLLATE "C" NOT NULL,
    role          TEXT COLLATE "C" NOT NULL,
    name          TEXT NOT NULL,
    digest        TEXT COLLATE "C" NOT NULL,   -- SHA-256 of the secret, which only its holder knows
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    last_used_at  BIGINT,            -- to the hour
    revoked_at    BIGINT
);
CREATE INDEX tokens_by_workspace ON tokens (workspace, created_at, id);
