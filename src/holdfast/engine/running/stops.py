"""Owns being stopped: signals are taken while an agent talks, and kept while a turn is brought to its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """Between two looks at the agent a stop waits: an answer that has arrived is committed first.

    Whoever insists, by a second signal, is obeyed at once. Does nothing outside the main thread, where no
    signal arrives, and to signals whose handler does not raise.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._welcome = False
        self._pending: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def is_wanted(self) -> bool:
        return self._pending is not None

    @contextmanager
    def welcome(self) -> Iterator[None]:
        """Inside, a stop is raised where it arrives; one that has waited is raised at once."""
        self._welcome = True
        try:
            if self._pending is not None:
                self._obey(*self._pending)
            yield
        finally:
            self._welcome = False

    def postponed(self) -> BaseException | None:
        """What the stop that still waits would have raised."""
        if self._pending is None:
            return None
        try:
            self._obey(*self._pending)
        except (KeyboardInterrupt, SystemExit) as exc:
            return exc
        return None

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._welcome or self._pending is not None:
            self._obey(number, frame)
        else:
            self._pending = (number, frame)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        self._pending = None
        handler = self._before[number]
        assert callable(handler)
        handler(number, frame)
