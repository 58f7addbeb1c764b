-- calls that must not happen twice: whoever lost the reply calls again with the same key
CREATE TABLE calls (
    workspace  TEXT    NOT NULL,
    caller     TEXT    NOT NULL,   -- whose key it is: the id of a token, or empty
    key        TEXT    NOT NULL,
    request    TEXT    NOT NULL,   -- the digest of what was asked for: a key is good for that alone
    at         INTEGER NOT NULL,
    answer     TEXT,               -- as JSON; set before the call's transaction ends
    PRIMARY KEY (workspace, caller, key)
) WITHOUT ROWID;
CREATE INDEX calls_by_age ON calls (workspace, at);
