"""Owns how many requests one caller may make: a bucket each, that fills again by the second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_MOST_BUCKETS: Final = 10_000


class Rates:
    """A caller may be ``per_second`` fast, and twice that for a moment."""

    def __init__(self, per_second: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(1.0, 2 * per_second)
        self._seconds = seconds
        #: what was left, and when; the longest unused first
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """One request; how many seconds it comes too early, 0 if it may be made."""
        now = self._seconds()
        left, at = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._left[who] = (left if wait else left - 1, now)
        if len(self._left) > _MOST_BUCKETS:
            del self._left[next(iter(self._left))]
        return wait

    def give_back(self, who: str) -> None:
        """One request that turned out to be another caller's."""
        if who in self._left:
            left, at = self._left[who]
            self._left[who] = (min(self._most, left + 1), at)
