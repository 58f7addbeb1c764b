"""Owns which tool calls of a session wait for a person: whoever runs its turns, wherever, and in its forks."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.turns import TurnRequest
from holdfast.store.driver import Row
from holdfast.store.sql import codec
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import Shape

KEEP = "UPDATE sessions SET approve_tools = :patterns WHERE workspace = :ws AND id = :id"
COPY = """
UPDATE sessions SET approve_tools =
    (SELECT p.approve_tools FROM sessions p WHERE p.workspace = :ws AND p.id = :parent_id)
WHERE workspace = :ws AND id = :id"""


_SHAPE = Shape("sessions", "approve_tools", "approve_tools")


def read(s: Scope, approve_tools: object, session_id: str) -> frozenset[str]:
    """The patterns in a session's row."""
    return _SHAPE.read(s.where, (approve_tools,), _read, session_id)


def keep(s: Scope, session_id: str, before: frozenset[str], request: TurnRequest) -> TurnRequest:
    """The request with every pattern that was asked for in this session; fewer only if wider rights were allowed."""
    asked = request.rights.approve_tools if request.rights is not None else frozenset[str]()
    starts_over = request.allow_wider_rights and request.rights is not None
    patterns = asked if starts_over else before | asked | request.approve_tools
    if patterns != before:
        s.run(KEEP, id=session_id, patterns=codec.dump(sorted(patterns)) if patterns else None)
    return request if patterns == request.approve_tools else replace(request, approve_tools=patterns)


def _read(row: Row) -> frozenset[str]:
    (known,) = row
    return frozenset() if known is None else codec.decode_texts(known)


def copy(s: Scope, parent_id: str, child_id: str) -> None:
    s.run(COPY, parent_id=parent_id, id=child_id)
