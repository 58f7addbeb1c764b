"""Owns the notices of sessions and approvals: what a person is told about each, and what to type."""

from __future__ import annotations

from holdfast.domain.approvals import Approval
from holdfast.domain.notices import Notice, Occasion
from holdfast.domain.sessions import Session


def done_notice(session: Session) -> Notice:
    what = f"{session.phase}: {session.summary}" if session.summary else str(session.phase)
    at = session.finalized_at or session.updated_at
    command = f"holdfast show {session.id}"
    return Notice(Occasion.SESSION_DONE, session.id, session.agent, what, command, at)


def approval_notice(approval: Approval, agent: str) -> Notice:
    command = f"holdfast approve {approval.id}"
    return Notice(
        Occasion.APPROVAL_WANTED,
        approval.session_id,
        agent,
        approval.what,
        command,
        approval.requested_at,
        approval.seq,
    )
