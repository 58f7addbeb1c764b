"""Owns reading the rows of sessions that were only watched, as they may be after somebody was at the file."""

from __future__ import annotations

from holdfast.domain.observed import ObservedSession
from holdfast.store.driver import Row
from holdfast.store.sql import observed
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import Shape, read_instant, read_optional_instant, readable

_SHAPE = Shape(
    "observed_sessions",
    f"{observed.FIELDS}, context_window",
    "cwd transcript_path source ended_at end_reason context_tokens context_window last_message",
)


def newest(s: Scope, limit: int) -> tuple[ObservedSession, ...]:
    return tuple(readable(lambda row: _read(s, row), observed.newest(s, limit)))


def _read(s: Scope, row: Row) -> ObservedSession:
    return _SHAPE.read(s.where, row, lambda row: _checked(observed.read(s, row)), *row[:2])


def _checked(session: ObservedSession) -> ObservedSession:
    read_instant(session.started_at)
    read_instant(session.last_seen_at)
    read_optional_instant(session.ended_at)
    return session
