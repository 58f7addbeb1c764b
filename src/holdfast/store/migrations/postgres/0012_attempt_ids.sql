-- random, made before the launch, and part of what the agent is sent: by it a turn is known again
ALTER TABLE attempts ADD COLUMN id TEXT;
-- the provider's session as it was before the launch: what stands behind it came with this attempt, or after
ALTER TABLE attempts ADD COLUMN transcript_before TEXT;
CREATE INDEX attempts_by_provider_session ON attempts (provider_session_id, workspace)
    WHERE provider_session_id IS NOT NULL;
