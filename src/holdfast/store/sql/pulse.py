"""Owns the pulse of a workspace: where the sessions stand that were active lately, or have something open."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.sessions import Pulse, SessionMark, SessionStatus
from holdfast.store.driver import Row
from holdfast.store.sql.rows import readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.sessions import STATUS
from holdfast.store.sql.tables import CONVERSATIONS, SESSIONS

_OF_SESSION = SESSIONS.pick("id", "created_at", "updated_at", "fence", "head_seq").of("sessions")
_OF_CONVERSATION = CONVERSATIONS.pick("next_seq", "revision").of("c")
_COLUMNS = _OF_SESSION + _OF_CONVERSATION
# Each arm reads one index and no more than :limit of its rows. Together they have every session that somebody may look
# at and that can change: time alone ends a lease.
_ARMS = (
    "id FROM sessions INDEXED BY sessions_by_activity WHERE workspace = :ws AND updated_at >= :since ORDER BY updated_at DESC",
    "id FROM sessions INDEXED BY ready_heads WHERE workspace = :ws AND ready_at IS NOT NULL",
    "id FROM sessions INDEXED BY waking_heads WHERE workspace = :ws AND wake_at IS NOT NULL",
    "id FROM sessions INDEXED BY live_leases WHERE workspace = :ws AND lease_expires_at IS NOT NULL",
    "session_id FROM approvals INDEXED BY open_approvals WHERE workspace = :ws AND status = 'open'",
    "session_id FROM delegations INDEXED BY open_delegations WHERE workspace = :ws AND ended_at IS NULL",
)
_NEAR = " UNION ".join(
    f"SELECT * FROM (SELECT {arm} LIMIT :limit) AS arm{'abcdef'[number]}" for number, arm in enumerate(_ARMS)
)
MARKS = f"""
SELECT {_COLUMNS.sql},
    (SELECT COUNT(*) FROM approvals a INDEXED BY approvals_of_sessions
        WHERE a.workspace = sessions.workspace AND a.session_id = sessions.id AND a.status = 'open'),
    {STATUS}
FROM sessions JOIN conversations c ON c.workspace = sessions.workspace AND c.id = sessions.conversation_id
WHERE sessions.workspace = :ws AND sessions.id IN ({_NEAR})"""
COUNT = "SELECT COUNT(*) FROM sessions WHERE workspace = :ws"


def take(s: Scope, since: Instant, limit: int) -> Pulse:
    (count,) = s.one(COUNT) or (0,)
    rows = s.all(MARKS, since=since, limit=limit, now=s.now)
    return Pulse(s.now, count, tuple(readable(lambda row: _read_mark(row, s.where), rows)), len(rows) < limit)


def _read_mark(row: Row, where: str) -> SessionMark:
    _COLUMNS.checked(where, row[: _COLUMNS.width], row[0])
    session_id, created_at, updated_at, fence, head_seq, next_seq, revision, approvals, status = row
    return SessionMark(
        session_id, SessionStatus(status), created_at, updated_at, fence, head_seq, next_seq, revision,
        approvals,
    )  # fmt: skip
