-- calls that must not happen twice: whoever lost the reply calls again with the same key
CREATE TABLE calls (
    workspace  TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    at         BIGINT NOT NULL,
    answer     TEXT,               -- as JSON; set before the call's transaction ends
    PRIMARY KEY (workspace, key)
);
CREATE INDEX calls_by_age ON calls (workspace, at);
