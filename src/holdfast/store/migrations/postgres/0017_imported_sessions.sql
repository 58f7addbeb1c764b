-- when a session that its provider had kept alone became one of ours; NULL: it began here
ALTER TABLE sessions ADD COLUMN imported_at BIGINT;
-- events belong to a turn: those of a turn that was made outside Holdfast have no attempt, which is 0 then
ALTER TABLE events DROP CONSTRAINT events_workspace_conversation_id_seq_attempt_fkey;
ALTER TABLE events ADD FOREIGN KEY (workspace, conversation_id, seq)
    REFERENCES turns (workspace, conversation_id, seq) ON DELETE CASCADE;
