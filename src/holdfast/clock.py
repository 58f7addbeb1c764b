"""Owns the only reading of the wall clock, and how instants are written down.

An instant is a whole number of microseconds since 1970, UTC: exact to compare, so that
"30 minutes" is a fact and not a rounding.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NewType, Protocol

Instant = NewType("Instant", int)

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Anything that, called, says what time it is."""

    def __call__(self) -> Instant: ...


def system_clock() -> Instant:
    return Instant(time.time_ns() // 1000)


def running_from(start: Instant) -> Clock:
    """A clock that was set once and asks nobody else any more; nor can anyone turn it back."""
    offset = start - time.monotonic_ns() // 1000
    return lambda: Instant(offset + time.monotonic_ns() // 1000)


def after(instant: Instant, seconds: float) -> Instant:
    return Instant(instant + round(seconds * SECOND))


def seconds_between(start: Instant, end: Instant) -> float:
    return (end - start) / SECOND


def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def to_iso(instant: Instant) -> str:
    """``2026-01-08T18:05:30Z``, with a fraction only where there is one."""
    text = to_datetime(instant).isoformat()
    return text.removesuffix("+00:00") + "Z"


def from_datetime(moment: datetime) -> Instant:
    """A naive datetime is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Instant((aware - _EPOCH) // timedelta(microseconds=1))
