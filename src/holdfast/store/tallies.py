"""Owns what a process counts as it works on a store: the decisions it took at claims, and its waits for locks."""

from __future__ import annotations

import threading

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

#: what was waited for: another writer of the provider's session, or of the database
PROVIDER_SESSION = "provider_session"
DATABASE = "database"

_lock = threading.Lock()
_decisions: dict[tuple[str, str], int] = {}
_waits = {PROVIDER_SESSION: 0, DATABASE: 0}


def count_decision(kind: str, reason: str) -> None:
    """What waits, waits for the provider's session."""
    with _lock:
        _decisions[kind, reason] = _decisions.get((kind, reason), 0) + 1
        _waits[PROVIDER_SESSION] += kind == "wait"


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
