"""Owns how a person writes a moment (``2h``, ``2026-01-08``) and reads an age (``4m``)."""

from __future__ import annotations

import re
from datetime import datetime

from holdfast.clock import Instant, after, from_datetime, seconds_between
from holdfast.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RELATIVE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")
_LONGEST = 100 * 365 * 86400.0


def parse_moment(field: str, text: str, now: Instant) -> Instant:
    """An ISO date or datetime (without a zone: UTC), or a time ago."""
    relative = _RELATIVE.fullmatch(text.strip())
    if relative is not None:
        seconds = float(relative[1]) * _UNITS[relative[2]]
        if seconds > _LONGEST:
            raise InvalidInput(field, f"{text[:40]!r} is more than 100 years ago")
        return after(now, -seconds)
    try:
        return from_datetime(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        problem = "is not a moment; write 2h, 3d, 30m, 2026-01-08 or 2026-01-08T18:05:30Z"
        raise InvalidInput(field, f"{text[:40]!r} {problem}") from None


def duration(seconds: float) -> str:
    """In the largest unit that fits: ``42s``, ``4m``, ``3h``, ``12d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def age(then: Instant, now: Instant) -> str:
    return duration(seconds_between(then, now))
