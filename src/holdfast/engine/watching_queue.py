"""Owns a worker's ear: a thread that waits for news of the queue, and passes on that there is some."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.store.contract import QueueWatch, Store

log = logging.getLogger("holdfast")

#: one wait; news ends it
_WAIT_SECONDS = 600.0
#: before a watch that failed is opened again: twice as long each time
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
#: for the thread, which may be connecting; it ends by itself then
_LAST_SECONDS = 2.0


class QueueWatcher:
    """Whatever becomes of the watch, nobody but this thread is concerned: the worker looks by itself, too."""

    def __init__(self, store: Store, tell: Callable[[], None]) -> None:
        self._store = store
        self._tell = tell
        self._closed = threading.Event()
        self._watch: QueueWatch | None = None
        self._pause = _FIRST_PAUSE
        self._thread = threading.Thread(target=self._run, name="holdfast queue watch", daemon=True)

    def start(self) -> None:
        """Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """At once; also if it was never started."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()
        if self._thread.ident is not None:
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except HoldfastError as exc:
                if self._pause == _FIRST_PAUSE and not self._closed.is_set():
                    log.info("not told of new turns, looking for them now and then: %s", exc)
            self._closed.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _listen(self) -> None:
        with self._store.watch_queue() as self._watch:
            self._pause = _FIRST_PAUSE
            self._tell()  # of what came while nobody listened
            while not self._closed.is_set():
                if self._watch.wait(_WAIT_SECONDS):
                    self._tell()
