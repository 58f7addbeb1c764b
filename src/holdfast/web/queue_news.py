"""Owns watching the queue over HTTP: a request that is answered when a turn can be claimed, or after its time."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from holdfast.engine.holdfast import Holdfast
from holdfast.errors import HoldfastError, StoreUnavailable, TooMany
from holdfast.store.contract import QueueWatch, Store
from holdfast.store.verbs import LONGEST_WATCH_SECONDS
from holdfast.web.access import Guarded, caller_of
from holdfast.web.serving import Served
from holdfast.web.streams import Streams

router = APIRouter(tags=["queue"], route_class=Guarded)

log = logging.getLogger("holdfast.web")

#: how long a queue is watched after the last answer: most callers ask again
_KEPT_SECONDS: Final = 30.0
#: each queue has a thread, and a connection to the database
_MOST_QUEUES: Final = 32


class News(BaseModel):
    mark: str  #: for the next request: news since this answer
    news: bool  #: since the mark that was given


class _Queue:
    """Watches one workspace in a thread; everything else happens in the event loop."""

    def __init__(self, store: Store, forget: Callable[[], object]) -> None:
        self._store = store
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._name = os.urandom(8).hex()
        self._rung = 0
        self._askers = 0
        self._news = asyncio.Event()
        self._opened = self._loop.create_future()
        self._ending: asyncio.TimerHandle | None = None
        self._watch: QueueWatch | None = None
        self._closed = False
        self._failure: HoldfastError | None = None
        threading.Thread(target=self._listen, name="holdfast queue", daemon=True).start()

    @property
    def _mark(self) -> str:
        return f"{self._name}-{self._rung}"

    async def since(self, mark: str | None, seconds: float) -> News:
        """Raises the error that ended the watch."""
        self._askers += 1
        if self._ending is not None:
            self._ending.cancel()
        try:
            await asyncio.shield(self._opened)
            if mark == self._mark and not self._closed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), seconds)
        finally:
            self._askers -= 1
            if not self._askers and not self._closed:
                self._ending = self._loop.call_later(_KEPT_SECONDS, self.close)
        if self._failure is not None:
            raise self._failure
        return News(mark=self._mark, news=mark is not None and mark != self._mark)

    def close(self) -> None:
        """Answers everyone who waits. Only once: later, another queue may be watched in its place."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._news.set()
        if self._watch is not None:
            self._watch.close()

    # --- the thread ---

    def _listen(self) -> None:
        try:
            with self._store.watch_queue() as self._watch:
                self._tell(self._open)
                while not self._closed:
                    if self._watch.wait(LONGEST_WATCH_SECONDS):
                        self._tell(self._ring)
        except HoldfastError as exc:
            self._tell(self._fail, exc)
        except Exception as exc:
            log.exception("the queue cannot be watched")
            self._tell(self._fail, StoreUnavailable(self._store.where, f"cannot be watched: {exc!r}"))

    def _tell(self, happened: Callable[..., None], *about: object) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(happened, *about)

    def _open(self) -> None:
        self._opened.set_result(None)

    def _ring(self) -> None:
        self._rung += 1
        self._news.set()
        self._news = asyncio.Event()

    def _fail(self, error: HoldfastError) -> None:
        self._failure = error
        if not self._opened.done():
            self._opened.set_result(None)
        self.close()


class Queues:
    """The queues that are watched, and how many callers wait in them."""

    def __init__(self) -> None:
        self._watched: dict[Holdfast, _Queue] = {}
        self._askers = Streams(most=500, most_each=200)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def news(self, holdfast: Holdfast, caller: str, mark: str | None, seconds: float) -> News:
        if self._closed:
            return News(mark=mark or "", news=False)
        self._askers.open(caller)
        try:
            return await self._of(holdfast).since(mark, seconds)
        finally:
            self._askers.close(caller)

    def _of(self, holdfast: Holdfast) -> _Queue:
        found = self._watched.get(holdfast)
        if found is None:
            if len(self._watched) >= _MOST_QUEUES:
                raise TooMany("too many queues are watched")
            self._loop = asyncio.get_running_loop()
            found = _Queue(holdfast.store, partial(self._watched.pop, holdfast, None))
            self._watched[holdfast] = found
        return found

    def close(self) -> None:
        """Called when the server stops; from any thread, also from a signal handler."""
        self._closed = True
        if self._watched and self._loop is not None:
            self._loop.call_soon_threadsafe(self._close_all)

    def _close_all(self) -> None:
        for queue in list(self._watched.values()):
            queue.close()


@router.get("/queue/news", name="watch_queue")
async def watch_queue(
    request: Request,
    holdfast: Served,
    mark: Annotated[str | None, Query(max_length=60)] = None,
    seconds: Annotated[float, Query(ge=0, le=LONGEST_WATCH_SECONDS)] = LONGEST_WATCH_SECONDS,
) -> News:
    """Whether a turn may have become claimable since the answer with this mark; waits up to ``seconds`` for one.

    Without a mark, or with one that this server does not know, the answer comes at once.
    """
    queues: Queues = request.app.state.queues
    return await queues.news(holdfast, caller_of(request).id, mark, seconds)
