-- what lists and people look for: the last active sessions, the end of an id, a title
CREATE INDEX sessions_by_activity ON sessions (workspace, updated_at, id);
CREATE INDEX sessions_by_end ON sessions (workspace, SUBSTR(id, LENGTH(id) - 3));
CREATE INDEX sessions_by_title ON sessions (workspace, LOWER(SUBSTR(purpose, 1, 40)));
