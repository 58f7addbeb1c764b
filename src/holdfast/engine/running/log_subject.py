"""Owns the subject of log lines: the turn that a thread works for, as fields of each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.domain.turns import Lease, Turn

_SUBJECT: ContextVar[dict[str, object] | None] = ContextVar("holdfast_log_subject", default=None)


@contextmanager
def lines_about(fields: Mapping[str, object]) -> Iterator[None]:
    """Log lines inside the block have these fields: in this thread, and in threads with a copy of its context."""
    token = _SUBJECT.set(dict(fields))
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def log_about(lease: Lease) -> None:
    """Changes the fields to the turn's next attempt, for all threads that log about the turn."""
    subject = _SUBJECT.get()
    if subject is not None:
        subject.update(lease_fields(lease))


def log_subject() -> Mapping[str, object]:
    """The fields for a line that is logged now; empty outside of ``lines_about``."""
    return _SUBJECT.get() or {}


def lease_fields(lease: Lease) -> dict[str, object]:
    return {"session": lease.session_id, "turn": lease.seq, "attempt": lease.attempt}


def turn_fields(turn: Turn) -> dict[str, object]:
    return {
        "session": turn.session_id,
        "turn": turn.seq,
        "attempt": turn.attempts,
        "provider": turn.provider,
    }
