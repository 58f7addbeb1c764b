-- who changed a session, and what besides the phase (JSON: keys of metadata, an error, …): a row whose phases are
-- the same is such a change
ALTER TABLE phase_changes ADD COLUMN made_by TEXT;
ALTER TABLE phase_changes ADD COLUMN change TEXT;
ALTER TABLE approvals ADD COLUMN voided_at BIGINT;

-- a conversation is idle between its turns: it used to say that it executes
INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at, made_by)
SELECT s.workspace, s.id,
    (SELECT COALESCE(MAX(p.number), 0) + 1 FROM phase_changes p
        WHERE p.workspace = s.workspace AND p.session_id = s.id),
    s.phase, 'investigating', s.updated_at, 'holdfast'
FROM sessions s WHERE s.kind = 'conversation' AND s.phase = 'executing' AND s.finalized_at IS NULL;
UPDATE sessions SET phase = 'investigating'
WHERE kind = 'conversation' AND phase = 'executing' AND finalized_at IS NULL;
