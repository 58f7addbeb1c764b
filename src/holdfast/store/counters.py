"""Owns the counters of one process: the decisions that its claims made, and its waits for the database."""

from __future__ import annotations

import threading

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

#: what was waited for; waits for a provider's session are in the store
DATABASE = "database"

_lock = threading.Lock()
_decisions: dict[tuple[str, str], int] = {}
_waits = {DATABASE: 0}


def count_decision(kind: str, reason: str) -> None:
    with _lock:
        _decisions[kind, reason] = _decisions.get((kind, reason), 0) + 1


def count_wait(lock: str) -> None:
    with _lock:
        _waits[lock] += 1


def decisions() -> Mapping[tuple[str, str], int]:
    """By kind and reason."""
    with _lock:
        return dict(_decisions)


def waits() -> Mapping[str, int]:
    """By what was waited for."""
    with _lock:
        return dict(_waits)
