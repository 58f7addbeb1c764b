-- The number of the turn's words in the full-text index; odd: only of its prompt, because it was open; NULL: none.
-- The index itself is made when it is first needed: an SQLite without FTS5 can do everything but search.
ALTER TABLE turns ADD COLUMN search_id INTEGER;
-- all turns below this one are in the index, with all their words
ALTER TABLE conversations ADD COLUMN indexed_next INTEGER NOT NULL DEFAULT 1;
