"""Owns measuring: subjects take turns in short rounds, and rounds are compared, not totals.

What disturbs the machine for a second disturbs every subject of that round alike. A figure is the median
over the rounds; a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Meter = Literal["cpu", "wall"]
Clock = Callable[[], int]

#: CPU is that of the whole process: who works in threads of its own pays for them too
_CLOCKS: dict[Meter, Clock] = {"cpu": time.process_time_ns, "wall": time.perf_counter_ns}


def cpu_of(pids: Sequence[int]) -> Clock:
    """Of these processes together, each with all its threads. OSError where the system does not tell."""
    system = ctypes.CDLL(None)
    if not hasattr(system, "clock_getcpuclockid"):
        raise OSError("the system does not tell the CPU of another process")
    clocks = [ctypes.c_int() for _ in pids]
    for pid, clock in zip(pids, clocks, strict=True):
        if error := system.clock_getcpuclockid(pid, ctypes.byref(clock)):
            raise OSError(error, f"the CPU of process {pid} cannot be read")
    return lambda: sum(time.clock_gettime_ns(clock.value) for clock in clocks)


@dataclass(frozen=True, slots=True)
class Pace:
    """So many rounds, or as many as fit into the time, but never fewer than the fewest."""

    rounds: int
    fewest: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """One subject's way of doing one thing: ``prepare`` makes a batch of inputs, unmeasured."""

    batch: Callable[[Sequence[Any]], object]
    prepare: Callable[[int], Sequence[Any]]


def calls(run: Callable[[Any], object], prepare: Callable[[int], Sequence[Any]]) -> Task:
    def batch(inputs: Sequence[Any]) -> None:
        for given in inputs:
            run(given)

    return Task(batch, prepare)


def awaits(
    run: Callable[[Any], Coroutine[Any, Any, object]],
    prepare: Callable[[int], Sequence[Any]],
    drive: Callable[[Coroutine[Any, Any, object]], object],
) -> Task:
    """A whole batch inside one event loop, as an asynchronous program would do it."""

    async def each(inputs: Sequence[Any]) -> None:
        for given in inputs:
            await run(given)

    return Task(lambda inputs: drive(each(inputs)), prepare)


@dataclass(slots=True)
class Series:
    """Microseconds for one call, one figure a round."""

    rounds: list[float] = field(default_factory=list)

    @property
    def typical(self) -> float:
        return median(self.rounds)


def interleave(
    tasks: Mapping[str, Task], pace: Pace, *, batch: int | Mapping[str, int], meter: Meter | Clock
) -> dict[str, Series]:
    """The order rotates from round to round, so that nobody always follows the same neighbour."""
    clock = _CLOCKS[meter] if isinstance(meter, str) else meter
    names = list(tasks)
    result = {name: Series() for name in names}

    def one_round(number: int) -> None:
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            size = batch if isinstance(batch, int) else batch[name]
            result[name].rounds.append(_one_batch(tasks[name], size, clock))

    gc.collect()
    gc.freeze()  # what is there now, the peers' many modules, need not be looked at again
    start = time.monotonic()
    one_round(0)  # warms up, and shows how long a round takes
    affordable = int(pace.seconds / (time.monotonic() - start))
    for series in result.values():
        series.rounds.clear()
    for number in range(max(pace.fewest, min(pace.rounds, affordable))):
        one_round(number + 1)
    gc.unfreeze()
    return result


def _one_batch(task: Task, size: int, clock: Clock) -> float:
    inputs = task.prepare(size)
    gc.collect()
    gc.disable()
    try:
        start = clock()
        task.batch(inputs)
        return (clock() - start) / len(inputs) / 1000
    finally:
        gc.enable()


def ratio(one: Series, other: Series) -> float:
    return median(a / b for a, b in zip(one.rounds, other.rounds, strict=True))
