"""Owns ending an attempt's processes, all of them: those of its group, and those that have left it.

Out of sight is only one that has left the group, dropped its environment, and outlived its parent; on macOS,
where environments are not shown, one that has left the group and outlived its parent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.domain.records import record
from holdfast.domain.turns import ProcessMark
from holdfast.processes.machine import Machine
from holdfast.processes.owners import Place, process_start
from holdfast.processes.table import Process, carries, processes

_LOOK_EVERY = 0.02
#: a signal, and the seconds that it is given to work
Step = tuple[signal.Signals, float]
QUICKLY: tuple[Step, ...] = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
#: agents that are interrupted save what they have said so far
GENTLY: tuple[Step, ...] = ((signal.SIGINT, 5.0), *QUICKLY)


@record
class Traces:
    """What the processes of an attempt are known by."""

    group: int
    started_at: int  #: of the group's leader
    marker: str
    #: the group cannot have become another's, because its leader was our own child until a moment ago
    is_own: bool = False


@record
class Sight:
    living: frozenset[Process]  #: provably the attempt's
    is_clear: bool  #: False: there are others in the group, and nothing tells whose they are

    @property
    def is_over(self) -> bool:
        return self.is_clear and not self.living


def end_survivors(mark: ProcessMark, marker: str, machine: Machine) -> bool:
    """End what is left of a recorded group; True when provably nothing is.

    Ends nothing that is not provably the attempt's, and nothing that the caller is a part of.
    """
    place = machine.place_of(mark)
    if place is Place.HERE:
        return end_all(Traces(mark.pgid, mark.started_at, marker), QUICKLY)
    return place is Place.PAST


def end_all(traces: Traces, steps: Sequence[Step]) -> bool:
    """One step after the other until nothing lives any more; True when provably nothing does.

    That takes two looks: a process that is just becoming another program shows no environment.
    """
    for number, patience in steps:
        deadline = time.monotonic() + patience
        reached: set[Process] = set()
        while (sight := look(traces)).living and time.monotonic() < deadline:
            if any(process.pid == os.getpid() for process in sight.living):
                return False
            _signal(traces, number, sight.living - reached)
            reached |= sight.living
            time.sleep(_LOOK_EVERY)
        if sight.is_over and look(traces).is_over:
            return True
    return look(traces).is_over and look(traces).is_over


def look(traces: Traces) -> Sight:
    later = [process for process in processes() if process.started_at >= traces.started_at]
    grouped = {process for process in later if traces.group in (process.group, process.session)}
    found = {process for process in later if carries(process.pid, traces.marker)}
    leader = next((process for process in grouped if process.pid == traces.group), None)
    if leader is not None:
        is_ours = leader.started_at == traces.started_at
    else:
        is_ours = traces.is_own or not found.isdisjoint(grouped)
    if is_ours:
        found |= grouped
    return Sight(_with_descendants(found, later), is_ours or leader is not None or not grouped)


def _with_descendants(found: Iterable[Process], among: Iterable[Process]) -> frozenset[Process]:
    """A child may have changed its group and its environment: Holdfast itself does, when an agent runs it."""
    children: dict[int, list[Process]] = {}
    for process in among:
        children.setdefault(process.parent, []).append(process)
    family = set(found)
    waiting = list(family)
    while waiting:
        new = set(children.get(waiting.pop().pid, ())) - family
        family |= new
        waiting += new
    return frozenset(family)


def _signal(traces: Traces, number: signal.Signals, to: Iterable[Process]) -> None:
    """Once for each process: a second interrupt makes an agent drop what it would have saved.

    The oldest first: an agent that sees its tool die before itself would tell its model, and go on.
    """
    for process in sorted(to, key=lambda process: (process.started_at, process.pid)):
        # what we may not end (another user's) stays, and is seen by the next look
        with suppress(ProcessLookupError, PermissionError):
            if number is signal.SIGKILL and process.group == traces.group:
                os.killpg(process.group, number)  # at once, or those that fork fast would get away
            elif process_start(process.pid) == process.started_at:
                os.kill(process.pid, number)
