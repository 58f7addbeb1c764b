-- What is looked for comes first. With the workspace in front, which without statistics seems to be as rare as
-- any key, PostgreSQL took these for look-ups by other keys, and read the whole workspace for one row.
DROP INDEX sessions_by_conversation;
CREATE INDEX sessions_by_conversation ON sessions (conversation_id, workspace);
DROP INDEX newest_attempts;
CREATE INDEX newest_attempts ON attempts (session_id, workspace, fence);
DROP INDEX pointers_to_provider_sessions;
CREATE INDEX pointers_to_provider_sessions ON pointers (provider_session_id, workspace, provider);
DROP INDEX provider_sessions_by_session;
CREATE INDEX provider_sessions_by_session ON provider_sessions (session_id, workspace);

-- every turn changes its session's row three times, and a claim reads past what that leaves in the index of heads
ALTER TABLE sessions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- every turn takes a number here: room for the new row beside the old one spares the indexes
ALTER TABLE conversations SET (fillfactor = 80);
