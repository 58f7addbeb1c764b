"""Owns the processes that tests start: real ones, forked from a clean server so that a hundred cost little."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

#: no process of a test may need longer than this, however busy the machine is
LIMIT_SECONDS = 100.0

context = multiprocessing.get_context("forkserver")
# what every child needs is imported once, by the server; a module that is not installed is passed over
context.set_forkserver_preload(
    ["__main__", "holdfast.store.migrate", "holdfast.store.sqlite", "holdfast.store.postgres"]
    + ["tests.integration.mortal", "tests.integration.crowd"]
)

Start = Callable[[], None]
T = TypeVar("T")


class TaskFailed(AssertionError):
    """A task raised, or its process died or did not end; the text says what happened in it."""


def until(look: Callable[[], T]) -> T:
    """What there is to see, as soon as there is something."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return seen


def start(target: Callable[..., None], *args: object) -> tuple[ForkServerProcess, Connection]:
    """A process that runs ``target(connection, *args)``, and our end of its connection."""
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    # so that the end of the process is the end of what it says
    theirs.close()
    return process, ours


def together(task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run ``task(ready, *args)`` in one process each; their results in order. Raises ``TaskFailed``.

    Each task calls ``ready()`` when it is prepared; all of them return from it at the same moment.
    """
    barrier = context.Barrier(len(arguments))
    started = [start(_run, barrier, task, args) for args in arguments]
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        return [_result(connection, deadline) for _, connection in started]
    finally:
        for process, connection in started:
            _end(process, connection)


def receive(connection: Connection, deadline: float | None = None) -> Any:
    """The next thing that the process says; ``TaskFailed`` if it says nothing more, or not in time."""
    left = LIMIT_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
    if not connection.poll(left):
        raise TaskFailed("the process did not answer in time")
    try:
        return connection.recv()
    except EOFError:
        raise TaskFailed("the process died") from None


def finish(process: ForkServerProcess) -> int | None:
    """Wait for the end of a process; its exit code."""
    process.join(LIMIT_SECONDS)
    return process.exitcode


def _run(connection: Connection, barrier: Barrier, task: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = (True, task(lambda: barrier.wait(LIMIT_SECONDS), *args))
    except BaseException:  # noqa: BLE001 - told to the test, which fails with it
        barrier.abort()
        answer = (False, traceback.format_exc())
    connection.send(answer)
    connection.close()


def _result(connection: Connection, deadline: float) -> Any:
    succeeded, answer = receive(connection, deadline)
    if not succeeded:
        raise TaskFailed(answer)
    return answer


def _end(process: ForkServerProcess, connection: Connection) -> None:
    connection.close()
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
