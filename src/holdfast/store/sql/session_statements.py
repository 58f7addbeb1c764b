"""Owns what hooks do with sessions besides delegating them: beginning a conversation, looking at approvals, closing.

Apart from ``sessions`` and ``approvals`` only because hook processes import this, so it stays light.
"""

from __future__ import annotations

from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.errors import UnreadableSession
from holdfast.store.sql.tables import CONVERSATIONS, PHASE_CHANGES

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.store.sql.scope import Scope

# apart from other updates, because finalized_at is in indexes that an open session need not touch
CLOSE = """
UPDATE sessions SET phase = :phase, resume_ready = FALSE, updated_at = :now, finalized_at = :now,
    summary = COALESCE(:summary, summary)
WHERE workspace = :ws AND id = :id"""
RECORD_PHASE = """
INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at, made_by, change)
SELECT :ws, :id, COALESCE(MAX(number), 0) + 1, :from_phase, :to_phase, :now, :by, :change
FROM phase_changes WHERE workspace = :ws AND session_id = :id"""
RECORD_DEED = """
INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at, made_by, change)
SELECT :ws, :id, COALESCE(
        (SELECT MAX(number) FROM phase_changes WHERE workspace = :ws AND session_id = :id), 0) + 1,
    phase, phase, :now, :by, :change
FROM sessions WHERE workspace = :ws AND id = :id"""
# the answer to an agent's own question stays what it was: it may have been acted on
VOID_APPROVALS = """
UPDATE approvals INDEXED BY approvals_of_sessions SET status = 'voided', void_reason = :reason, voided_at = :now
WHERE workspace = :ws AND session_id = :id AND used_at IS NULL AND status <> 'voided' AND (status = 'open' OR seq IS NOT NULL)"""
PHASE_CHANGE = PHASE_CHANGES.pick("from_phase", "to_phase", "at")
PHASES = f"""
SELECT {PHASE_CHANGE.sql} FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND from_phase <> to_phase ORDER BY number"""
NEWEST_APPROVAL = """
SELECT status, answered_at, expires_at, used_at FROM approvals
WHERE workspace = :ws AND session_id = :session_id ORDER BY requested_at DESC, id DESC LIMIT 1"""
ANSWERABLE = """
SELECT 1 FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open'
    AND (expires_at IS NULL OR expires_at > :now) LIMIT 1"""


def begin_conversation(s: Scope, conversation_id: str) -> None:
    """An empty one, for a session that joins none; nothing if it exists."""
    row = CONVERSATIONS.new(id=conversation_id, revision=0, generation=0, next_seq=1, created_at=s.now)
    s.run(CONVERSATIONS.insert_once, **row)


def close(  # noqa: PLR0913 - what is known about the end, by keyword
    s: Scope,
    session_id: str,
    from_phase: str,
    outcome: Phase,
    *,
    summary: str | None = None,
    turns_in: str | None = None,
    change: str | None = None,
) -> None:
    """Close a session for good.

    ``turns_in`` is its conversation if it has open turns: none of them stays in the queue. ``change``, as JSON, is what
    else the trail records.
    """
    s.run(CLOSE, id=session_id, phase=outcome.value, summary=summary, now=s.now)
    record_phase(s, session_id, from_phase, outcome, change)
    s.run(VOID_APPROVALS, id=session_id, reason=f"session_{outcome}", now=s.now)
    if turns_in is not None:
        from holdfast.store.sql import turns  # a hook seldom has any

        turns.cancel_all(s, turns_in, session_id)


def record_phase(s: Scope, session_id: str, from_phase: str, phase: Phase, change: str | None = None) -> None:
    """Record a change of phase, and by whom. ``change``: what else has changed, as JSON."""
    s.run(
        RECORD_PHASE, id=session_id, from_phase=from_phase, to_phase=phase.value, now=s.now, by=s.by,
        change=change,
    )  # fmt: skip


def record_deed(s: Scope, session_id: str, did: str, turn: int | None = None) -> None:
    """Record for the trail who did something that changes no phase. The session must be locked, or new."""
    from holdfast.store.sql.json_text import dump  # hooks do nothing of the kind

    s.run(RECORD_DEED, id=session_id, now=s.now, by=s.by, change=dump({"did": did, "turn": turn}))


def approval_window(s: Scope, session_id: str) -> ApprovalWindow | None:
    """How the newest approval of a session affects whether its work may continue.

    None: nobody asked for one, it is void, or its answer was used.
    """
    row = s.one(NEWEST_APPROVAL, session_id=session_id)
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
