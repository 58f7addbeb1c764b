"""Owns the face of the plain library: what its functions and its methods have in common, and first steps with it."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

MINUTE = 60.0
HOUR = 3600.0
#: the smallest step of a clock
BLINK = 0.000_001

UNKNOWN = "agent-20260108-000000-ffffffff"
NO_IDS = [UNKNOWN, "", "../../etc/passwd", "agent one"]

OPEN_PHASES = ["initializing", "investigating", "planning", "approval", "executing", "validating"]
RESUMABLE_PHASES = ["approval", "investigating", "planning"]
OUTCOMES = ["completed", "failed", "abandoned"]


class Face(Protocol):
    """What both have: the module, and what ``holdfast.open`` returns. mypy checks that they do."""

    def create_session(
        self, agent_name: str, purpose: str = ..., metadata: Mapping[str, Any] | None = ...
    ) -> str: ...

    def update_state(
        self,
        agent_id: str,
        phase: str | None = ...,
        metadata: Mapping[str, Any] | None = ...,
        error: str | None = ...,
    ) -> bool: ...

    def should_resume(self, agent_id: str) -> bool: ...

    def get_session(self, agent_id: str) -> dict[str, object] | None: ...

    def finalize_session(self, agent_id: str, outcome: str, summary: str | None = ...) -> bool: ...

    def cleanup_old_sessions(self, hours: float = ...) -> int: ...

    def list_sessions(
        self, active_only: bool = ..., agent_name: str | None = ...
    ) -> list[dict[str, object]]: ...

    def pre_delegate_hook(self, context: Mapping[str, Any]) -> dict[str, Any]: ...


def state(face: Face, agent_id: str) -> dict[str, Any]:
    found = face.get_session(agent_id)
    assert found is not None
    return found


def in_phase(face: Face, phase: str, agent_name: str = "terraform-architect") -> str:
    agent_id = face.create_session(agent_name)
    assert face.update_state(agent_id, phase=phase)
    return agent_id


def closed(face: Face, outcome: str = "completed", agent_name: str = "terraform-architect") -> str:
    agent_id = face.create_session(agent_name)
    assert face.finalize_session(agent_id, outcome)
    return agent_id


def ids(states: list[dict[str, object]]) -> list[object]:
    return [found["agent_id"] for found in states]


def damage(file: Path, statement: str, agent_id: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute(statement, (agent_id,)).rowcount == 1
