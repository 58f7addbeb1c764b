"""Owns the clock of tests: time stands still until it is moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import pytest

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


def give_time(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., float | None]
) -> None:
    """Give one module other functions of ``time``.

    To change ``time`` itself would reach every thread of the process: the event loop of a server that a test has left
    running, told an earlier time, sleeps for the difference, which may be hours.
    """
    changed = ModuleType("time")
    vars(changed).update(vars(time) | functions)
    monkeypatch.setattr(module, "time", changed)
