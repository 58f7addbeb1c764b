"""Owns how a session's approvals affect whether its work may continue. Hooks import this, so it stays light."""

from __future__ import annotations

from holdfast.domain.phases import ApprovalWindow
from holdfast.errors import UnreadableSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.store.sql.scope import Scope

NEWEST = """
SELECT status, answered_at, expires_at, used_at FROM approvals
WHERE workspace = :ws AND session_id = :session_id ORDER BY requested_at DESC, id DESC LIMIT 1"""

ANSWERABLE = """
SELECT 1 FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open'
    AND (expires_at IS NULL OR expires_at > :now) LIMIT 1"""


def of_session(s: Scope, session_id: str) -> ApprovalWindow | None:
    """None: none was asked for, it is void, or its answer was acted on."""
    row = s.one(NEWEST, session_id=session_id)
    if row is None:
        return None
    status, *instants = row
    if not all(at is None or type(at) is int for at in instants):
        raise UnreadableSession(s.where, session_id, "approvals: what the newest one holds is no instant")
    answered_at, expires_at, used_at = instants
    if status == "voided" or used_at is not None:
        return None
    return ApprovalWindow(answered_at=answered_at, expires_at=expires_at)


def can_be_answered(s: Scope, session_id: str) -> bool:
    return s.one(ANSWERABLE, session_id=session_id, now=s.now) is not None
