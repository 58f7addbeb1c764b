-- what is looked for comes first: PostgreSQL, without statistics, takes the workspace for as rare as any key
DROP INDEX sessions_by_conversation;
CREATE INDEX sessions_by_conversation ON sessions (conversation_id, workspace);
DROP INDEX newest_attempts;
CREATE INDEX newest_attempts ON attempts (session_id, workspace, fence);
DROP INDEX pointers_to_provider_sessions;
CREATE INDEX pointers_to_provider_sessions ON pointers (provider_session_id, workspace, provider);
DROP INDEX provider_sessions_by_session;
CREATE INDEX provider_sessions_by_session ON provider_sessions (session_id, workspace);
