-- calls that must not happen twice: whoever lost the reply calls again with the same key
CREATE TABLE calls (
    workspace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    answer     TEXT,               -- as JSON; set before the call's transaction ends
    PRIMARY KEY (workspace, key)
) WITHOUT ROWID;
CREATE INDEX calls_by_age ON calls (workspace, at);
