"""Owns the course of a session: its changes, its phases with their record, and closing it."""

from __future__ import annotations

from holdfast.domain.metadata import Metadata, encode_metadata, merge_metadata
from holdfast.domain.phases import Phase
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import PhaseChange, Session, SessionError, SessionUpdate
from holdfast.errors import NotFound, PhaseConflict, SessionClosed, UnreadableSession
from holdfast.store.driver import Row
from holdfast.store.sql import sessions, turns
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_rows import COLUMNS, read_metadata, read_session
from holdfast.store.sql.shapes import MISREAD, Shape, problem_of, read_instant

LOCK = f"SELECT {COLUMNS}, head_seq FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"
UPDATE = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, metadata = COALESCE(:metadata, metadata),
    error_count = :error_count, last_error = :last_error, last_error_at = :last_error_at,
    updated_at = :now
WHERE workspace = :ws AND id = :id"""
# apart from UPDATE, because finalized_at is in indexes that an open session need not touch
CLOSE = """
UPDATE sessions SET phase = :phase, resume_ready = FALSE, updated_at = :now, finalized_at = :now,
    summary = :summary
WHERE workspace = :ws AND id = :id"""
RECORD_PHASE = """
INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at)
SELECT :ws, :id, COALESCE(MAX(number), 0) + 1, :from_phase, :to_phase, :now
FROM phase_changes WHERE workspace = :ws AND session_id = :id"""
PHASES = """
SELECT from_phase, to_phase, at FROM phase_changes
WHERE workspace = :ws AND session_id = :id ORDER BY number"""

_PHASE_CHANGE = Shape("phase_changes", "from_phase, to_phase, at")


def update(s: Scope, session_id: str, change: SessionUpdate, summary: str | None = None) -> Session:
    """The session as it is now."""
    row = s.one(LOCK, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    current, head = read_session(row[:-1], s.where), row[-1]
    if current.finalized_at is not None:
        raise SessionClosed(current.id, current.phase)
    if change.expected_phase is not None and current.phase is not change.expected_phase:
        raise PhaseConflict(current.id, change.expected_phase, current.phase)
    encoded, metadata = None, current.metadata
    if change.metadata is not None:
        encoded = encode_metadata(merge_metadata(metadata, change.metadata))
        metadata = read_metadata(encoded)
    after = _changed(s, current, change, metadata, summary)
    if after.finalized_at is None or change.has_more_than_phase:
        error = after.last_error
        s.run(
            UPDATE, id=after.id, phase=after.phase.value, resume_ready=after.resume_ready, metadata=encoded,
            error_count=after.error_count, last_error=error.message if error else None,
            last_error_at=error.at if error else None, now=s.now,
        )  # fmt: skip
    if after.finalized_at is not None:
        turns_in = None if head is None else after.conversation_id
        close(s, after.id, current.phase.value, after.phase, summary=after.summary, turns_in=turns_in)
    elif after.phase is not current.phase:
        record_phase(s, after.id, current.phase.value, after.phase)
    return after


def _changed(
    s: Scope, current: Session, change: SessionUpdate, metadata: Metadata, summary: str | None
) -> Session:
    phase = change.phase or current.phase
    ready = current.resume_ready if change.phase is None else sessions.is_ready(s, phase, current.kind)
    error = current.last_error
    errors = 0 if change.clear_errors else current.error_count
    if change.error is not None:
        error, errors = SessionError(redact_text(change.error), s.now), errors + 1
    # spelled out: dataclasses.replace would take longer than the statements around it
    return Session(
        current.id, current.conversation_id, current.agent, current.kind, current.purpose, current.name,
        current.provider, phase, ready, metadata, errors, error,
        current.created_at, s.now, s.now if phase.is_final else None,
        None if summary is None else redact_text(summary), current.parent_session_id, current.usage,
    )  # fmt: skip


def close(
    s: Scope,
    session_id: str,
    from_phase: str,
    outcome: Phase,
    *,
    summary: str | None = None,
    turns_in: str | None = None,
) -> None:
    """For good. ``turns_in``: the conversation with its open turns, of which none stays in the queue."""
    s.run(CLOSE, id=session_id, phase=outcome.value, summary=summary, now=s.now)
    record_phase(s, session_id, from_phase, outcome)
    if turns_in is not None:
        turns.cancel_all(s, turns_in, session_id)


def record_phase(s: Scope, session_id: str, from_phase: str, phase: Phase) -> None:
    s.run(RECORD_PHASE, id=session_id, from_phase=from_phase, to_phase=phase.value, now=s.now)


def phase_history(s: Scope, session_id: str) -> tuple[PhaseChange, ...]:
    try:
        return tuple(map(_read_phase_change, s.all(PHASES, id=session_id)))
    except MISREAD as exc:
        raise UnreadableSession(s.where, session_id, f"phase_changes: {problem_of(exc)}") from exc


def _read_phase_change(row: Row) -> PhaseChange:
    _PHASE_CHANGE.check(row)
    from_phase, to_phase, at = row
    return PhaseChange(from_phase, to_phase, read_instant(at))
