"""Owns the record of what was changed about a session: its phases, the trail, and the way back from an approval."""

from __future__ import annotations

from holdfast.domain.phases import Phase
from holdfast.domain.sessions import PhaseChange, Session, SessionChange
from holdfast.errors import UnreadableSession
from holdfast.store.driver import Row
from holdfast.store.sql import codec, sessions
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import PHASES, record_phase
from holdfast.store.sql.shapes import MISREAD, Shape, problem_of, read_instant

BEFORE_APPROVAL = """
SELECT from_phase FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND to_phase = 'approval' AND from_phase <> 'approval' ORDER BY number DESC LIMIT 1"""
TRAIL = """
SELECT number, at, made_by, from_phase, to_phase, change FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND number > :after ORDER BY number LIMIT :limit"""
ENTER = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, updated_at = :now
WHERE workspace = :ws AND id = :id"""

_SHAPE = Shape("phase_changes", "from_phase, to_phase, at")
_TRAIL = Shape("phase_changes", "number, at, made_by, from_phase, to_phase, change", "made_by change")
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


def trail(s: Scope, session_id: str, after: int, limit: int) -> tuple[SessionChange, ...]:
    rows = s.all(TRAIL, id=session_id, after=after, limit=limit)
    return tuple(_TRAIL.read(s.where, row, _read_change, row[0], "of", session_id) for row in rows)


def _read_change(row: Row) -> SessionChange:
    number, at, by, from_phase, to_phase, change = row
    more = {} if change is None else codec.decode_object(change)
    return SessionChange(
        number, read_instant(at), by, from_phase, to_phase, tuple(more.get("metadata", ())),
        more.get("error"), bool(more.get("cleared_errors")), bool(more.get("summary")),
    )  # fmt: skip
