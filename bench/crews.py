"""Owns crews: processes that work at the same time, each on a connection of its own, and what they get done."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from bench.measure import Series

#: whose imports a process need not repeat; read when the first process is started
_PRELOADED = ["bench.crowd", "bench.fleet", "bench.waking"]
#: of a shift, before anything counts
WARM_UP_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0

# neither the threads nor the connections of this process get into another
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(_PRELOADED)


@dataclass(slots=True)
class Shift:
    """The same for all workers of a crew; the clock is that of the machine."""

    counts_at: float
    ends_at: float
    turns: int = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    def done(self) -> None:
        """One turn."""
        if self.counts_at <= time.monotonic() < self.ends_at:
            self.turns += 1


class Worker(Protocol):
    def work(self, shift: Shift) -> None:
        """Turn after turn, until the shift is over."""
        ...

    def close(self) -> None: ...


#: by the URL of its store, and its number in the crew
Hire = Callable[[str, int], Worker]


@dataclass(frozen=True, slots=True)
class Crew:
    workers: list[Connection[Any, Any]]

    def turns_per_second(self, seconds: float) -> float:
        counts_at = time.monotonic() + WARM_UP_SECONDS
        for worker in self.workers:
            worker.send(Shift(counts_at, counts_at + seconds))
        turns: int = sum(answer_of(worker) for worker in self.workers)
        return turns / seconds


@contextmanager
def hired(hire: Hire, url: str, size: int) -> Iterator[Crew]:
    """Each worker is there, with its connection, when this returns."""
    with ExitStack() as stack:
        workers = [stack.enter_context(started(_serve, hire, url, number)) for number in range(size)]
        for worker in workers:
            answer_of(worker)
        yield Crew(workers)


@contextmanager
def started(target: Callable[..., None], *args: object) -> Iterator[Connection[Any, Any]]:
    """A process with one end of a pipe as its last argument. It is to end when the other end is closed."""
    here, there = processes.Pipe()
    process = processes.Process(target=target, args=(*args, there))
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(_PATIENCE_SECONDS)


def answer_of(process: Connection[Any, Any]) -> Any:
    if not process.poll(_PATIENCE_SECONDS):
        raise TimeoutError("a process does not answer")
    return process.recv()


def compare(
    crews: Mapping[str, tuple[Hire, str]], size: int, rounds: int, seconds: float
) -> dict[str, Series]:
    """Turns a second. The crews take turns, each shift after the other, and the order rotates."""
    names = list(crews)
    result = {name: Series() for name in names}
    with ExitStack() as stack:
        at_work = {name: stack.enter_context(hired(*crew, size)) for name, crew in crews.items()}
        for number in range(rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                result[name].rounds.append(at_work[name].turns_per_second(seconds))
    return result


def _serve(hire: Hire, url: str, number: int, orders: Connection[Any, Any]) -> None:
    """Until the other end of the pipe is closed."""
    worker = hire(url, number)
    orders.send(0)
    try:
        while True:
            shift = orders.recv()
            worker.work(shift)
            orders.send(shift.turns)
    except (EOFError, ConnectionError):
        worker.close()
