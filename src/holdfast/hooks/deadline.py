"""Owns a hook's deadline: an alarm that interrupts whatever it waits for."""

from __future__ import annotations

import signal

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

#: for the input, and until the store is held; then nothing is left to wait for
SECONDS = 4.0
#: for what the store was too slow for, to be written into the spool. Whoever calls a hook gives it less: this is only
#: for a disk that does not answer at all
LATE_SECONDS = 60.0

_runs = False


class DeadlinePassed(BaseException):
    """Nobody in between may take it for an ordinary error."""


def start() -> None:
    global _runs  # noqa: PLW0603 - there is one alarm in a process
    signal.signal(signal.SIGALRM, _give_up)
    _runs = True
    signal.setitimer(signal.ITIMER_REAL, SECONDS)


def prolong() -> None:
    """Nothing in a process that has none: the alarm may be somebody else's."""
    if _runs:
        signal.setitimer(signal.ITIMER_REAL, LATE_SECONDS)


def stop() -> None:
    if _runs:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _give_up(*_: object) -> NoReturn:
    raise DeadlinePassed(f"after {SECONDS:g} seconds")
