"""Owns the heads that can run: which come back into the queue, which one a claim gets, which is put aside."""

from __future__ import annotations

from holdfast.clock import after
from holdfast.domain.turns import ClaimRequest
from holdfast.store.driver import Row
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_rows import COLUMNS

# materialized, or PostgreSQL may run it more than once, and so exceed its limit; what may be claimed
# already has waited long enough for its runtime
WAKE = """
WITH due AS MATERIALIZED (
    SELECT id FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND wake_at IS NOT NULL AND wake_at <= :now
    ORDER BY wake_at LIMIT :limit FOR UPDATE SKIP LOCKED)
UPDATE sessions SET ready_at = COALESCE(ready_at, wake_at),
    wake_at = CASE WHEN ready_at IS NULL AND head_kept THEN CAST(:kept_until AS BIGINT) END,
    head_kept = CASE WHEN ready_at IS NULL THEN head_kept ELSE FALSE END,
    head_runtime_id = CASE WHEN ready_at IS NULL THEN head_runtime_id ELSE '' END
WHERE workspace = :ws AND id IN (SELECT id FROM due)"""
# SQLite sorts what is no number above every number: such a head would come first, and is never picked
READY = """ready_at IS NOT NULL AND ready_at <= 9223372036854775807
    AND head_priority <= 9223372036854775807"""
PICKED = f"{COLUMNS}, head_seq, fence, head_priority, ready_at"


def _best(runtime_id: str) -> str:
    return f"""
    SELECT {PICKED} FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND head_runtime_id = {runtime_id}
        AND {READY}
    ORDER BY head_priority DESC, ready_at LIMIT 1 FOR UPDATE SKIP LOCKED"""


# the best of the heads for this runtime, and the best of those that anyone may run
PICK = f"""
SELECT * FROM ({_best(":runtime_id")}) AS mine UNION ALL SELECT * FROM ({_best("''")}) AS anyones"""
PICK_SESSION = f"""
SELECT {PICKED} FROM sessions
WHERE workspace = :ws AND id = :session_id AND head_provider = :provider
    AND (head_runtime_id IN (:runtime_id, '') OR head_kept) AND head_priority <= 9223372036854775807
    AND (ready_at <= 9223372036854775807 OR wake_at <= :now) FOR UPDATE SKIP LOCKED"""
POSTPONE = "UPDATE sessions SET ready_at = NULL, wake_at = :wake_at WHERE workspace = :ws AND id = :id"

#: heads that cannot run now are passed over, but a claim looks at no more than this many
MAX_CANDIDATES = 16
#: fewer come back than a claim passes over, so that those behind them have their turn in the end
MAX_WOKEN = 8


def wake(s: Scope, provider: str) -> None:
    s.run(
        WAKE, provider=provider, now=s.now, limit=MAX_WOKEN,
        kept_until=after(s.now, s.policy.queue.affinity_seconds),
    )  # fmt: skip


def pick(s: Scope, request: ClaimRequest) -> Row | None:
    """``PICKED`` of the session whose head comes next. It is locked; what others have locked is not seen."""
    runtime = request.runtime
    if request.session_id is not None:
        return s.one(
            PICK_SESSION, provider=runtime.provider, runtime_id=runtime.id, session_id=request.session_id,
            now=s.now,
        )  # fmt: skip
    return min(s.all(PICK, provider=runtime.provider, runtime_id=runtime.id), key=_rank, default=None)


def _rank(head: Row) -> tuple[int, int]:
    *_, priority, ready_at = head
    return -priority, ready_at


def postpone(s: Scope, session_id: str) -> None:
    s.run(POSTPONE, id=session_id, wake_at=after(s.now, s.policy.queue.lock_delay_seconds))
