"""Owns the threads in which calls of the store wait for it, so that the event loop need not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: at the same time; more would only wait for a connection
_MOST: Final = 40


class Threads:
    """As many as there were ever calls at the same time, up to a limit; they end with the process.

    The library's own pools hold locks that the other thread waits for, several times for each call: there and
    back takes them twice as long, and the framework's three times.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = 0
        self._count = 0

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                result = work()
            except Exception as exc:  # noqa: BLE001 - it is for whoever waits for the answer
                told: tuple[Any, ...] = (answer.set_exception, exc)
            else:
                told = (answer.set_result, result)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._settle, answer, *told)

        self._open += 1
        if self._open > self._count < _MOST:
            self._count += 1
            threading.Thread(target=self._serve, name=f"store {self._count}", daemon=True).start()
        self._calls.put(call)
        return await answer

    def _settle(self, answer: asyncio.Future[Any], settle: Callable[[Any], None], told: object) -> None:
        self._open -= 1
        if not answer.cancelled():
            settle(told)

    def _serve(self) -> None:
        while True:
            self._calls.get()()
