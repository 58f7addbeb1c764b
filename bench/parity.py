"""Owns the proof that the comparison is fair: floor and Holdfast leave the same rows behind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from bench import workload as w

_START = 1_767_895_530_000_000
_SECOND = 1_000_000


class NotTheSameRows(Exception):
    """The floor writes something else than Holdfast does, so a ratio would mean nothing."""


class Clock:
    def __init__(self) -> None:
        self.now = _START

    def __call__(self) -> int:
        return self.now


Tables = Mapping[str, Sequence[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Candidate:
    open: Callable[[Clock], w.Subject]
    rows: Callable[[], Tables]  #: everything that was written, in a fixed order


def check(ours: Candidate, floor: Candidate) -> int:
    """Run every verb on both with the same ids and the same clock; how many rows agree."""
    sessions = [w.new_session_id() for _ in range(6)]
    for candidate in (ours, floor):
        clock = Clock()
        with mock.patch("os.urandom", random.Random(0).randbytes):  # an attempt has a random id
            _work(candidate.open(clock), clock, sessions)
    written = floor.rows()
    for table, rows in ours.rows().items():
        for one, other in itertools.zip_longest(rows, written.get(table, [])):
            if one != other:
                raise NotTheSameRows(f"{table}:\n  holdfast {one}\n  floor    {other}")
    return sum(len(rows) for rows in written.values())


def _work(subject: w.Subject, clock: Clock, sessions: list[str]) -> None:
    recorded, queued, forked, child, old, idle = sessions
    steps: list[Callable[[], object]] = [
        lambda: subject.create(old),
        lambda: subject.queue_turn(old),
        lambda: subject.finalize(old),
        lambda: subject.create(idle),
        lambda: subject.record_turn(idle),
        lambda: _pass_a_day(clock),
        lambda: subject.create(recorded),
        lambda: subject.update(recorded),
        lambda: subject.record_turn(recorded),
        lambda: subject.record_turn(recorded),
        lambda: subject.finalize(recorded),
        lambda: subject.create(queued),
        lambda: subject.queue_turn(queued),
        lambda: subject.queue_turn(queued),
        lambda: subject.update(queued),
        lambda: subject.create(forked),
        lambda: subject.queue_turn(forked),
        lambda: subject.record_turn(forked),
        lambda: subject.fork(forked, child),
        lambda: subject.clean_up(clock.now - 3600 * _SECOND),
    ]
    for step in steps:
        clock.now += _SECOND
        step()
    subject.close()


def order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def _pass_a_day(clock: Clock) -> None:
    clock.now += 24 * 3600 * _SECOND
