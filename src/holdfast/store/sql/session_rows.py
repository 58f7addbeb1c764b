"""Owns reading a session's row."""

from __future__ import annotations

import json

from holdfast.domain.metadata import Metadata
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionError, SessionKind
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.errors import UnreadableSession
from holdfast.store.driver import Row
from holdfast.store.sql.shapes import (
    MISREAD,
    Shape,
    problem_of,
    read_flag,
    read_instant,
    read_optional_instant,
)

COLUMNS = """id, conversation_id, agent, kind, purpose, name, provider, phase, resume_ready, metadata,
    error_count, last_error, last_error_at, created_at, updated_at, finalized_at, summary,
    parent_session_id, input_tokens, cached_input_tokens, output_tokens, cost_usd"""

_SHAPE = Shape(
    "sessions", COLUMNS, "name provider last_error last_error_at finalized_at summary parent_session_id"
)
_KINDS = {kind.value: kind for kind in SessionKind}
_PHASES = {phase.value: phase for phase in Phase}

_decode = json.JSONDecoder().decode


def read_session(row: Row, where: str) -> Session:
    """Raises UnreadableSession."""
    try:
        _SHAPE.check(row)
        error = None if row[11] is None else SessionError(row[11], read_instant(row[12]))
        usage = Usage(row[18], row[19], row[20], row[21]) if row[18] or row[20] or row[21] else NO_USAGE
        return Session(
            row[0], row[1], row[2], _KINDS[row[3]], row[4], row[5], row[6], _PHASES[row[7]],
            read_flag(row[8]), read_metadata(row[9]), row[10], error, read_instant(row[13]),
            read_instant(row[14]), read_optional_instant(row[15]), row[16], row[17], usage,
        )  # fmt: skip
    except MISREAD as exc:
        raise UnreadableSession(where, str(row[0]), problem_of(exc)) from exc


def read_metadata(text: str) -> Metadata:
    if text == "{}":
        return {}
    value = _decode(text)
    if type(value) is not dict:
        raise ValueError("its metadata is not a JSON object")
    return value
