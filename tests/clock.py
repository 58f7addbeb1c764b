"""Owns the clock of tests: time stands still until it is moved."""

from __future__ import annotations

from holdfast.clock import SECOND, Instant, after

NOON = Instant(1_767_873_600 * SECOND)  #: 2026-01-08T12:00:00Z


class ManualClock:
    """A ``Clock`` that says what it was last set to; starts at NOON."""

    def __init__(self, start: Instant = NOON) -> None:
        self.now = start

    def __call__(self) -> Instant:
        return self.now

    def advance(self, seconds: float) -> Instant:
        """Move on, or back by a negative number; the new time."""
        self.now = after(self.now, seconds)
        return self.now
