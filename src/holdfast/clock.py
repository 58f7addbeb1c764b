"""Owns the only reading of the wall clock, and how instants are written down.

An instant is a whole number of microseconds since 1970, UTC: exact to compare, so that
"30 minutes" is a fact and not a rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

# hook processes import this module, and do without typing
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NewType

    Instant = NewType("Instant", int)
else:
    Instant = int

#: a function that returns the present instant
Clock = Callable[[], Instant]

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def system_clock() -> Instant:
    return Instant(time.time_ns() // 1000)


def running_from(start: Instant) -> Clock:
    """Returns a clock that starts at ``start`` and follows the monotonic clock: setting the system's clock does not change it."""
    offset = start - time.monotonic_ns() // 1000
    return lambda: Instant(offset + time.monotonic_ns() // 1000)


def after(instant: Instant, seconds: float) -> Instant:
    return Instant(instant + round(seconds * SECOND))


def seconds_between(start: Instant, end: Instant) -> float:
    return (end - start) / SECOND


DAY = 86_400 * SECOND


def start_of_day(instant: Instant) -> Instant:
    """The beginning of its day, in UTC."""
    return Instant(instant // DAY * DAY)


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


def duration(seconds: float) -> str:
    """Returns a duration in the largest unit that fits: ``42s``, ``4m``, ``3h``, ``12d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def age(then: Instant, now: Instant) -> str:
    return duration(seconds_between(then, now))
