-- A head that is kept for its runtime is left to it for as long as the worker that claims says, counted from
-- ready_at. wake_at is only for heads that are not ready.
UPDATE sessions SET wake_at = NULL WHERE ready_at IS NOT NULL;
CREATE INDEX kept_heads ON sessions (workspace, head_provider, head_priority DESC, ready_at)
    WHERE head_kept AND ready_at IS NOT NULL;
