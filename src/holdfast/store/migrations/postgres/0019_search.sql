-- 0: the turn's words are in the full-text index; 1: only those of its prompt, because it was open; NULL: none.
ALTER TABLE turns ADD COLUMN search_id BIGINT;
-- all turns below this one are in the index, with all their words
ALTER TABLE conversations ADD COLUMN indexed_next BIGINT NOT NULL DEFAULT 1;

-- a turn with long texts has several pieces: a tsvector has a limit
CREATE TABLE search_words (
    workspace        TEXT COLLATE "C" NOT NULL,
    conversation_id  TEXT COLLATE "C" NOT NULL,
    seq              BIGINT NOT NULL,
    piece            BIGINT NOT NULL,
    session_id       TEXT COLLATE "C" NOT NULL,
    provider         TEXT COLLATE "C" NOT NULL,
    at               BIGINT NOT NULL,
    words            TSVECTOR NOT NULL,
    PRIMARY KEY (workspace, conversation_id, seq, piece),
    FOREIGN KEY (workspace, conversation_id, seq) REFERENCES turns (workspace, conversation_id, seq)
        ON DELETE CASCADE
);
CREATE INDEX searched_words ON search_words USING gin (words);
