"""Owns leases: which worker may write to a turn, proved by the fencing token in the session's row."""

from __future__ import annotations

from holdfast.clock import Instant, after
from holdfast.domain.inputs import MAX_NAME, check_text
from holdfast.domain.policy import MAX_LEASE_SECONDS
from holdfast.domain.turns import LONGEST_LEASE, Heartbeat, Lease, Orphan
from holdfast.errors import InvalidInput, LeaseLost
from holdfast.store.driver import Row
from holdfast.store.sql import codec, provider_sessions
from holdfast.store.sql.rows import cut, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import (
    ATTEMPTS,
    MISREAD,
    SESSIONS,
    TURNS,
    read_flag,
    unreadable,
)

# the fence is the session's: what else a lease names must be the attempt that has it
OF_LEASE = """
workspace = :ws AND id = :session_id AND EXISTS (
    SELECT 1 FROM attempts a WHERE a.workspace = :ws AND a.conversation_id = :conversation_id
        AND a.seq = :seq AND a.number = :attempt AND a.session_id = :session_id AND a.fence = :fence)"""
LOCK = f"SELECT fence, lease_expires_at FROM sessions WHERE {OF_LEASE} FOR UPDATE"
LOCK_IF_FREE = f"{LOCK} SKIP LOCKED"
EXPIRES_AT = "SELECT lease_expires_at FROM sessions WHERE workspace = :ws AND id = :session_id"
RENEW = """
UPDATE sessions SET lease_expires_at = :expires_at WHERE workspace = :ws AND id = :session_id"""
KEEP_RENEWAL = """
UPDATE attempts SET renewal = :renewal
WHERE workspace = :ws AND conversation_id = :conversation_id AND seq = :seq AND number = :attempt"""
RUNS = """
SELECT a.provider, a.provider_session_id, t.cancel_requested_at, a.renewal FROM attempts a INDEXED BY newest_attempts
JOIN turns t ON t.workspace = a.workspace AND t.conversation_id = a.conversation_id AND t.seq = a.seq
WHERE a.workspace = :ws AND a.session_id = :session_id AND a.fence = :fence"""
RELEASE = """
UPDATE sessions SET lease_owner = NULL, lease_expires_at = NULL, partial_text = NULL, updated_at = :now
WHERE workspace = :ws AND id = :session_id"""
_LEASE = (
    SESSIONS.pick("id").of("s")
    + ATTEMPTS.pick("conversation_id", "seq", "number").of("a")
    + SESSIONS.pick("fence", "lease_owner", "lease_expires_at").present().of("s")
)
_ORPHAN = _LEASE + ATTEMPTS.pick("process").of("a") + TURNS.pick("foreground").of("t")
_THEIR_ATTEMPTS = """
JOIN attempts a INDEXED BY newest_attempts ON a.workspace = s.workspace AND a.session_id = s.id AND a.fence = s.fence
JOIN turns t ON t.workspace = a.workspace AND t.conversation_id = a.conversation_id AND t.seq = a.seq"""
EXPIRED = f"""
SELECT {_ORPHAN.sql} FROM sessions s INDEXED BY live_leases {_THEIR_ATTEMPTS}
WHERE s.workspace = :ws AND s.lease_expires_at IS NOT NULL
    AND (s.lease_expires_at <= :now OR s.lease_expires_at > :latest)
ORDER BY s.lease_expires_at LIMIT :limit"""
HOLDER = f"""
SELECT {_ORPHAN.sql} FROM sessions s {_THEIR_ATTEMPTS}
WHERE s.workspace = :ws AND s.id = :session_id AND s.lease_expires_at IS NOT NULL"""

_NEVER = 2**62


def is_held(s: Scope, lease: Lease) -> bool:
    """Locks the session. A lease that expired and that nobody took is still held."""
    row = lock(s, lease)
    return row is not None and proves(lease, *row)


def lock(s: Scope, lease: Lease, statement: str = LOCK) -> Row | None:
    """The fence of its session, and until when that is leased; None if the lease is no attempt's."""
    return s.one(
        statement, session_id=lease.session_id, conversation_id=lease.conversation_id, seq=lease.seq,
        attempt=lease.attempt, fence=lease.fence,
    )  # fmt: skip


def lock_if_free(s: Scope, lease: Lease) -> Row | None:
    """The same; None also while another transaction has the session locked.

    A machine that loses its power in the middle of a transaction keeps its locks until the server gives the
    transaction up. Recovery looks at every session: it must not wait for that one, or nobody claims a turn.
    """
    return lock(s, lease, LOCK_IF_FREE)


def proves(lease: Lease, fence: int, expires_at: int | None) -> bool:
    return fence == lease.fence and expires_at is not None


def require(s: Scope, lease: Lease) -> None:
    if not is_held(s, lease):
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)


def expires_at(s: Scope, session_id: str) -> Instant | None:
    at: Instant | None
    (at,) = s.one(EXPIRES_AT, session_id=session_id) or (None,)
    return at


def check_seconds(seconds: float) -> None:
    """Raises InvalidInput for a lease without a duration, and for one that would outlast every outage."""
    if not 0 < seconds <= MAX_LEASE_SECONDS:
        raise InvalidInput("lease_seconds", f"must be more than 0 and at most {MAX_LEASE_SECONDS:g}")


def heartbeat(s: Scope, lease: Lease, seconds: float, renewal: str | None = None) -> Heartbeat:
    check_seconds(seconds)
    if renewal is not None:
        check_text("renewal", renewal, limit=MAX_NAME)
    require(s, lease)
    row = s.one(RUNS, session_id=lease.session_id, fence=lease.fence)
    provider, runs, stop_at, last = row or ("", None, None, None)
    if renewal is not None and last not in (lease.renewal, renewal):
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)
    # once a lease has expired, another session may have become the writer of its provider session
    if runs and provider_sessions.is_taken(s, provider, runs, lease):
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)
    until = after(s.now, seconds)
    s.run(RENEW, session_id=lease.session_id, expires_at=until)
    if renewal is not None:
        s.run(
            KEEP_RENEWAL, conversation_id=lease.conversation_id, seq=lease.seq, attempt=lease.attempt,
            renewal=renewal,
        )  # fmt: skip
    renewed = Lease(
        lease.session_id, lease.conversation_id, lease.seq, lease.attempt, lease.fence, lease.owner, until,
        renewal or lease.renewal,
    )  # fmt: skip
    return Heartbeat(renewed, cancel_requested=stop_at is not None)


def release(s: Scope, lease: Lease) -> None:
    s.run(RELEASE, session_id=lease.session_id, now=s.now)


def expired(s: Scope, limit: int, *, even_live: bool) -> tuple[Orphan, ...]:
    rows = s.all(EXPIRED, now=_NEVER if even_live else s.now, latest=s.now + LONGEST_LEASE, limit=limit)
    return tuple(readable(lambda row: _orphan(s, row), rows))


def holder(s: Scope, session_id: str) -> Orphan | None:
    row = s.one(HOLDER, session_id=session_id)
    return None if row is None else _orphan(s, row)


def _orphan(s: Scope, row: Row) -> Orphan:
    try:
        _ORPHAN.check(row)
        lease, (process, foreground) = cut(row, _LEASE)
        return Orphan(Lease(*lease), codec.decode_process(process), read_flag(foreground))
    except MISREAD as exc:
        raise unreadable(s.where, SESSIONS.name, f"lease of {row[0]}", exc) from exc
