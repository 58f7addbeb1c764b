"""Owns what the lines of the log are about: the turn that a thread works for, as fields for whoever collects them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.domain.turns import Lease, Turn

_SUBJECT: ContextVar[dict[str, object] | None] = ContextVar("holdfast_log_subject", default=None)


@contextmanager
def lines_about(fields: Mapping[str, object]) -> Iterator[None]:
    """In this thread, and in those that are started in a copy of its context."""
    token = _SUBJECT.set(dict(fields))
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def go_on_about(lease: Lease) -> None:
    """The same turn in its next attempt, for every thread that speaks of it."""
    subject = _SUBJECT.get()
    if subject is not None:
        subject.update(lease_fields(lease))


def log_subject() -> Mapping[str, object]:
    """What a line that is logged here and now is about; empty: nothing in particular."""
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
