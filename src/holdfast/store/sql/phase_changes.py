"""Owns the record of a session's phases: each change, and the way back from an approval."""

from __future__ import annotations

from holdfast.domain.phases import Phase
from holdfast.domain.sessions import PhaseChange, Session
from holdfast.errors import UnreadableSession
from holdfast.store.driver import Row
from holdfast.store.sql import sessions
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import PHASES, record_phase
from holdfast.store.sql.shapes import MISREAD, Shape, problem_of, read_instant

BEFORE_APPROVAL = """
SELECT from_phase FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND to_phase = 'approval' ORDER BY number DESC LIMIT 1"""
ENTER = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, updated_at = :now
WHERE workspace = :ws AND id = :id"""

_SHAPE = Shape("phase_changes", "from_phase, to_phase, at")
_OPEN = {phase.value: phase for phase in Phase if not phase.is_final}


def enter(s: Scope, session: Session, phase: Phase) -> None:
    """An open phase; the session must be locked, and counts as active now."""
    ready = sessions.is_ready(s, phase, session.kind)
    s.run(ENTER, id=session.id, phase=phase.value, resume_ready=ready, now=s.now)
    if phase is not session.phase:
        record_phase(s, session.id, session.phase.value, phase)


def before_approval(s: Scope, session: Session) -> Phase:
    (phase,) = s.one(BEFORE_APPROVAL, id=session.id) or (None,)
    return _OPEN.get(phase, Phase.EXECUTING)


def of_session(s: Scope, session_id: str) -> tuple[PhaseChange, ...]:
    try:
        return tuple(map(_read, s.all(PHASES, id=session_id)))
    except MISREAD as exc:
        raise UnreadableSession(s.where, session_id, f"phase_changes: {problem_of(exc)}") from exc


def _read(row: Row) -> PhaseChange:
    _SHAPE.check(row)
    from_phase, to_phase, at = row
    return PhaseChange(from_phase, to_phase, read_instant(at))
