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
    parent_session_id, input_tokens, cached_input_tokens, output_tokens, cost_usd, project"""

SHAPE = Shape(
    "sessions",
    COLUMNS,
    "name provider last_error last_error_at finalized_at summary parent_session_id project",
)
_KINDS = {kind.value: kind for kind in SessionKind}
_PHASES = {phase.value: phase for phase in Phase}

_decode = json.JSONDecoder().decode


def read_session(row: Row, where: str) -> Session:
    """Raises UnreadableSession."""
    (
        session_id, conversation_id, agent, kind, purpose, name, provider, phase, resume_ready, metadata,
        error_count, last_error, last_error_at, created_at, updated_at, finalized_at, summary, parent_id,
        input_tokens, cached_input_tokens, output_tokens, cost_usd, project,
    ) = row  # fmt: skip
    try:
        SHAPE.check(row)
        error = None if last_error is None else SessionError(last_error, read_instant(last_error_at))
        usage = NO_USAGE
        if input_tokens or output_tokens or cost_usd:
            usage = Usage(input_tokens, cached_input_tokens, output_tokens, cost_usd)
        return Session(
            session_id, conversation_id, agent, _KINDS[kind], purpose, name, provider, _PHASES[phase],
            read_flag(resume_ready), read_metadata(metadata), error_count, error, read_instant(created_at),
            read_instant(updated_at), read_optional_instant(finalized_at), summary, parent_id, usage,
            project,
        )  # fmt: skip
    except MISREAD as exc:
        raise UnreadableSession(where, str(session_id), problem_of(exc)) from exc


def read_metadata(text: str) -> Metadata:
    if text == "{}":
        return {}
    value = _decode(text)
    if type(value) is not dict:
        raise ValueError("its metadata is not a JSON object")
    return value
