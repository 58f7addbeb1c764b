-- also what has ended: a subagent that stops again must not be taken for another one
DROP INDEX open_delegations_by_provider_session;
CREATE INDEX delegations_by_provider_session ON delegations (workspace, provider_session_id);

-- whose words the answer holds: it goes with that session
ALTER TABLE calls ADD COLUMN session_id TEXT;
CREATE INDEX calls_by_session ON calls (workspace, session_id) WHERE session_id IS NOT NULL;
