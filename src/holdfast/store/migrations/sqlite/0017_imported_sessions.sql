-- when a session that its provider had kept alone became one of ours; NULL: it began here
ALTER TABLE sessions ADD COLUMN imported_at INTEGER;
-- events belong to a turn: those of a turn that was made outside Holdfast have no attempt, which is 0 then
CREATE TABLE events_of_turns (
    workspace        TEXT    NOT NULL,
    conversation_id  TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    number           INTEGER NOT NULL,
    kind             TEXT    NOT NULL,
    at               INTEGER NOT NULL,
    data             TEXT    NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, attempt, number),
    FOREIGN KEY (workspace, conversation_id, seq)
        REFERENCES turns (workspace, conversation_id, seq) ON DELETE CASCADE
);
INSERT INTO events_of_turns (workspace, conversation_id, seq, attempt, number, kind, at, data)
SELECT workspace, conversation_id, seq, attempt, number, kind, at, data FROM events;
DROP TABLE events;
ALTER TABLE events_of_turns RENAME TO events;
