"""Owns changing a session: its phase, metadata, errors and summary, and closing it.

Apart from ``sessions`` because a change of phase depends on approvals, which are built on sessions themselves.
"""

from __future__ import annotations

from holdfast.domain.metadata import Metadata, encode_metadata, merge_metadata
from holdfast.domain.phases import Phase
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json, redact_text
from holdfast.domain.sessions import Session, SessionError, SessionUpdate
from holdfast.errors import NotFound, PhaseConflict, SessionClosed
from holdfast.store.sql import sessions
from holdfast.store.sql.json_text import dump
from holdfast.store.sql.session_statements import close, record_phase
from holdfast.store.sql.sessions import ROWS, read_metadata, read_session

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.store.sql.scope import Scope

LOCK = f"SELECT {ROWS.sql}, head_seq FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"
UPDATE = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, metadata = COALESCE(:metadata, metadata),
    error_count = :error_count, last_error = :last_error, last_error_at = :last_error_at,
    summary = :summary, updated_at = :now
WHERE workspace = :ws AND id = :id"""


def update(s: Scope, session_id: str, change: SessionUpdate) -> Session:
    """The session as it is now."""
    row = s.one(LOCK, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    current, head = read_session(row[:-1], s.where), row[-1]
    if current.finalized_at is not None:
        raise SessionClosed(current.id, current.phase)
    if change.expected_phase is not None and current.phase is not change.expected_phase:
        raise PhaseConflict(current.id, change.expected_phase, current.phase)
    if current.phase is Phase.APPROVAL and change.phase is not None and _stays_open(change.phase):
        from holdfast.store.sql import approvals  # built on turns, which most changes do without

        approvals.leave_behind(s, current.id)
    encoded, metadata = None, current.metadata
    if change.metadata is not None:
        encoded = encode_metadata(merge_metadata(metadata, change.metadata))
        metadata = read_metadata(encoded)
    after = _changed(s, current, change, metadata)
    more = _besides_the_phase(change, after.last_error)
    if after.finalized_at is None or change.has_more_than_phase:
        error = after.last_error
        s.run(
            UPDATE, id=after.id, phase=after.phase.value, resume_ready=after.resume_ready, metadata=encoded,
            error_count=after.error_count, last_error=error.message if error else None,
            last_error_at=error.at if error else None, summary=after.summary, now=s.now,
        )  # fmt: skip
    if after.finalized_at is not None:
        turns_in = None if head is None else after.conversation_id
        close(
            s, after.id, current.phase.value, after.phase, summary=after.summary, turns_in=turns_in,
            change=more,
        )  # fmt: skip
    elif after.phase is not current.phase or more is not None:
        record_phase(s, after.id, current.phase.value, after.phase, more)
    return after


def _besides_the_phase(change: SessionUpdate, error: SessionError | None) -> str | None:
    """For the trail, without secrets: of metadata the keys alone; ``error`` is redacted by now."""
    if change.summary is None and not change.has_more_than_phase:
        return None
    more: dict[str, Json] = {}
    if change.metadata:
        more["metadata"] = list[Json](sorted({redact_text(key) for key in change.metadata}))
    if change.error is not None and error is not None:
        more["error"] = error.message
    if change.clear_errors:
        more["cleared_errors"] = True
    if change.summary is not None and not (change.phase and change.phase.is_final):
        more["summary"] = True
    return dump(more) if more else None


def _stays_open(phase: Phase) -> bool:
    return phase is not Phase.APPROVAL and not phase.is_final


def _changed(s: Scope, current: Session, change: SessionUpdate, metadata: Metadata) -> Session:
    phase = change.phase or current.phase
    ready = current.resume_ready if change.phase is None else sessions.is_ready(s, phase, current.kind)
    error = current.last_error
    errors = 0 if change.clear_errors else current.error_count
    if change.error is not None:
        error, errors = SessionError(redact_text(change.error), s.now), errors + 1
    return replace(
        current,
        phase=phase,
        resume_ready=ready,
        metadata=metadata,
        error_count=errors,
        last_error=error,
        updated_at=s.now,
        finalized_at=s.now if phase.is_final else None,
        summary=current.summary if change.summary is None else redact_text(change.summary),
    )
