-- calls that must not happen twice: whoever lost the reply calls again with the same key
CREATE TABLE calls (
    workspace  TEXT COLLATE "C" NOT NULL,
    caller     TEXT COLLATE "C" NOT NULL,   -- whose key it is: the id of a token, or empty
    key        TEXT COLLATE "C" NOT NULL,
    request    TEXT COLLATE "C" NOT NULL,   -- the digest of what was asked for: a key is good for that alone
    at         BIGINT NOT NULL,
    answer     TEXT,               -- as JSON; set before the call's transaction ends
    PRIMARY KEY (workspace, caller, key)
);
CREATE INDEX calls_by_age ON calls (workspace, at);
