-- a person uses the agent's own program on the session: the process that says so, since when, and until when it is believed
ALTER TABLE sessions ADD COLUMN program_owner TEXT;
ALTER TABLE sessions ADD COLUMN program_began_at INTEGER;
ALTER TABLE sessions ADD COLUMN program_until INTEGER;
CREATE INDEX sessions_in_programs ON sessions (workspace, program_until) WHERE program_until IS NOT NULL;
-- the title that the agent gave to its own session
ALTER TABLE sessions ADD COLUMN agent_title TEXT;
DROP INDEX sessions_by_title;
CREATE INDEX sessions_by_title ON sessions (workspace, LOWER(SUBSTR(COALESCE(agent_title, purpose), 1, 40)));
-- the sessions of a directory
CREATE INDEX sessions_by_project ON sessions (workspace, project) WHERE project IS NOT NULL;
CREATE INDEX pointers_by_directory ON pointers (workspace, work_dir);
CREATE INDEX attempts_by_directory ON attempts (workspace, work_dir);
