"""Owns the stream of what changes in a workspace (SSE): one watcher of the store, however many callers are connected."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from holdfast.clock import after
from holdfast.domain.records import record
from holdfast.domain.sessions import Pulse, SessionMark
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import HoldfastError, StoreUnavailable, TooMany
from holdfast.store.contract import Store
from holdfast.web.access import Guarded, caller_of
from holdfast.web.admission import Callers
from holdfast.web.page.login import credentials
from holdfast.web.serving import Served, served
from holdfast.web.streams import LONGEST_SECONDS, MEDIA_TYPE, SIGN_SECONDS, Streams, TimedStream

router = APIRouter(tags=["events"], route_class=Guarded)

log = logging.getLogger("holdfast.web")

#: between two looks at the store, and after a change by a request to this server
LOOK_SECONDS: Final = 0.5
_STIRRED_SECONDS: Final = 0.05
#: how long a workspace is watched after the last caller has gone: most of them come back
_KEPT_SECONDS: Final = 60.0
#: each has a thread
_MOST_WATCHED: Final = 32
#: A look has the sessions that were active in this time, so that a transaction which is committed late is seen, too.
_WINDOW_SECONDS: Final = 30.0
#: sessions of one kind in a look; if there are more, callers are told to read their lists again, now and then
_MOST_MARKS: Final = 2000
RELOAD_SECONDS: Final = 5.0
#: messages that are kept for callers who were away
_KEPT_MESSAGES: Final = 2000
_PLACE: Final = re.compile(r"([0-9a-f]{16})-(\d{1,15})\Z", re.ASCII)

#: a message, as OpenAPI has it
_MESSAGE: Final = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}


@record
class Change:
    """What has changed in a session. Numbers and states alone: every caller who may see states gets it."""

    session_id: str
    what: tuple[str, ...]  #: session, status, turn, turn_ended, history, approval, removed
    mark: SessionMark | None  #: None: it was removed

    @property
    def document(self) -> dict[str, Any]:
        mark = self.mark
        return {
            "session": self.session_id,
            "what": list(self.what),
            "status": None if mark is None else mark.status.value,
            "turns": None if mark is None else mark.next_seq - 1,
            "open_turn": None if mark is None else mark.head_seq,
            "open_approvals": None if mark is None else mark.open_approvals,
        }


class Gap(Exception):
    """More has changed than can be named."""


class Marks:
    """Compares each pulse with the one before it."""

    def __init__(self, first: Pulse) -> None:
        self._known = {mark.id: mark for mark in first.marks}
        self._sessions = first.sessions
        self._since = after(first.now, -_WINDOW_SECONDS)
        self._was_whole = first.is_whole

    def changes(self, pulse: Pulse) -> list[Change]:
        """Raises Gap: then the next call begins with this pulse."""
        since, found = after(pulse.now, -_WINDOW_SECONDS), {mark.id: mark for mark in pulse.marks}
        known, last_since, sessions = self._known, self._since, self._sessions
        whole = self._was_whole and pulse.is_whole
        self._known, self._sessions, self._since, self._was_whole = (
            found,
            pulse.sessions,
            since,
            pulse.is_whole,
        )
        if not whole:
            raise Gap
        changed = [
            Change(mark.id, what, mark)
            for mark in pulse.marks
            if (what := tuple(_differences(known.get(mark.id), mark)))
        ]
        gone = [mark for mark in known.values() if mark.id not in found]
        removed = [mark.id for mark in gone if mark.updated_at >= since]
        began = sum(mark.created_at >= last_since and mark.id not in known for mark in pulse.marks)
        # an old session was imported or removed, or there are more of them than the pulse has
        if pulse.sessions != sessions + began - len(removed):
            raise Gap
        changed += [Change(session_id, ("removed",), None) for session_id in removed]
        # what was open has ended, without any activity: its turns were cancelled, or its approval became void
        changed += [
            Change(mark.id, ("status", "turn", "approval"), None)
            for mark in gone
            if mark.updated_at < since and (mark.head_seq is not None or mark.open_approvals)
        ]
        return changed


def _differences(before: SessionMark | None, now: SessionMark) -> Iterator[str]:
    if before is None or before.updated_at != now.updated_at:
        yield "session"
    if before is None or before.status is not now.status:
        yield "status"
    if before is None:
        return
    if (before.next_seq, before.head_seq, before.fence) != (now.next_seq, now.head_seq, now.fence):
        yield "turn"
    if _has_ended(before, now):
        yield "turn_ended"
    if before.revision != now.revision:
        yield "history"
    if before.open_approvals != now.open_approvals:
        yield "approval"


def _has_ended(before: SessionMark, now: SessionMark) -> bool:
    """The oldest open turn is another one, or one was put in and ended between two looks."""
    if before.head_seq is None:
        return now.next_seq > before.next_seq and now.head_seq != before.next_seq
    return now.head_seq != before.head_seq


@record
class _Message:
    number: int
    kind: str
    data: str


class _Workspace:
    """Watches one workspace in a thread; everything else happens in the event loop."""

    def __init__(self, store: Store, forget: Callable[[], object]) -> None:
        self._store = store
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._name = os.urandom(8).hex()
        self._number = 0
        self._messages: deque[_Message] = deque(maxlen=_KEPT_MESSAGES)
        self._news = asyncio.Event()
        self._readers = 0
        self._ending: asyncio.TimerHandle | None = None
        self._closed = False
        self._opened = self._loop.create_future()
        self._stirred = threading.Event()
        self._has_gap = False
        self._reload_at = 0.0
        threading.Thread(target=self._watch, name="holdfast changes", daemon=True).start()

    async def messages(self, last: str | None, check: Callable[[], object]) -> AsyncIterator[str]:
        """From the message behind ``last`` on. ``check`` raises if the caller may not listen any more."""
        self._readers += 1
        if self._ending is not None:
            self._ending.cancel()
        try:
            await asyncio.shield(self._opened)
            place = self._place(last)
            yield self._text(self._number if place is None else place, _first(last, place))
            async for text in self._behind(self._number if place is None else place, check):
                yield text
        finally:
            self._readers -= 1
            if not self._readers and not self._closed:
                self._ending = self._loop.call_later(_KEPT_SECONDS, self.close)

    async def _behind(self, place: int, check: Callable[[], object]) -> AsyncIterator[str]:
        until = time.monotonic() + LONGEST_SECONDS
        while not self._closed and time.monotonic() < until:
            news = self._news
            waiting = [message for message in self._messages if message.number > place]
            if waiting and waiting[0].number > place + 1:
                yield self._text(self._number, "reload")  # this caller reads too slowly
                place = self._number
                continue
            for message in waiting:
                yield self._text(message.number, message.kind, message.data)
                place = message.number
            if self._number > place:
                continue
            try:
                await asyncio.wait_for(news.wait(), SIGN_SECONDS)
            except TimeoutError:
                try:
                    await run_in_threadpool(check)
                except StoreUnavailable:
                    pass  # the store may come back
                except HoldfastError:
                    return
                yield ": still here\n\n"

    def _place(self, last: str | None) -> int | None:
        """The number of the last message that the caller has; None if those behind it are not known any more."""
        found = _PLACE.match(last or "")
        if found is None or found[1] != self._name:
            return None
        number = int(found[2])
        oldest = self._messages[0].number if self._messages else self._number + 1
        return number if oldest - 1 <= number <= self._number else None

    def _text(self, number: int, kind: str, data: str = "{}") -> str:
        return f"id: {self._name}-{number}\nevent: {kind}\ndata: {data}\n\n"

    def stir(self) -> None:
        self._stirred.set()

    def close(self) -> None:
        """Ends every stream. Idempotent: later, the workspace may be watched again."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._news.set()
        self._stirred.set()
        if not self._opened.done():
            self._opened.set_result(None)

    # --- the thread ---

    def _watch(self) -> None:
        marks: Marks | None = None
        while not self._closed:
            try:
                marks = self._look(marks)
            except StoreUnavailable:
                marks = None  # callers are told to read again as soon as the store is back
            except Exception:
                log.exception("the changes of a workspace cannot be watched")
                self._tell(self.close)
                return
            self._stirred.wait(LOOK_SECONDS)
            self._stirred.clear()
            time.sleep(_STIRRED_SECONDS)  # what many requests have changed is looked at once

    def _look(self, marks: Marks | None) -> Marks:
        pulse = self._store.pulse(after(self._store.now(), -_WINDOW_SECONDS), _MOST_MARKS)
        if marks is None:
            self._tell(self._begin)
            return Marks(pulse)
        messages = []
        try:
            messages = [("change", json.dumps(one.document)) for one in marks.changes(pulse)]
        except Gap:
            self._has_gap = True
        if self._has_gap and time.monotonic() >= self._reload_at:
            messages.append(("reload", "{}"))
            self._has_gap, self._reload_at = False, time.monotonic() + RELOAD_SECONDS
        if messages:
            self._tell(self._add, messages)
        return marks

    def _tell(self, happened: Callable[..., None], *about: object) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(happened, *about)

    # --- what the thread tells the event loop ---

    def _begin(self) -> None:
        if self._opened.done():
            self._add([("reload", "{}")])
        else:
            self._opened.set_result(None)

    def _add(self, messages: Iterable[tuple[str, str]]) -> None:
        for kind, data in messages:
            self._number += 1
            self._messages.append(_Message(self._number, kind, data))
        self._news.set()
        self._news = asyncio.Event()


def _first(last: str | None, place: int | None) -> str:
    return "reload" if last is not None and place is None else "ready"


class Changes:
    """The workspaces that are watched, and how many callers listen to them."""

    def __init__(self) -> None:
        self.streams = Streams(most=500, most_each=250)
        self._watched: dict[str, _Workspace] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def of(self, holdfast: Holdfast) -> _Workspace:
        name = holdfast.store.workspace
        found = self._watched.get(name)
        if found is None:
            if len(self._watched) >= _MOST_WATCHED:
                raise TooMany("too many workspaces are watched")
            self._loop = asyncio.get_running_loop()
            found = _Workspace(holdfast.store, partial(self._watched.pop, name, None))
            self._watched[name] = found
        return found

    def stir(self) -> None:
        """A request has changed something: the next look is at once."""
        for watched in self._watched.values():
            watched.stir()

    def close(self) -> None:
        """Called when the server stops; from any thread, also from a signal handler."""
        self.streams.closing = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._close_all)

    def _close_all(self) -> None:
        for watched in list(self._watched.values()):
            watched.close()


@router.get(
    "/changes",
    name="changes",
    response_class=StreamingResponse,
    responses={200: {"description": "Changes", "content": {MEDIA_TYPE: {"schema": _MESSAGE}}}},
)
async def changes(
    request: Request, _described: Served, last_event_id: Annotated[str | None, Header(max_length=60)] = None
) -> TimedStream:
    """Which sessions of the workspace change, whoever changes them. ``Last-Event-ID`` continues after that message.

    First comes a message ``ready``: what is read from now on is as new as the stream. ``change`` names a session and
    what has changed of it. ``reload`` says that more has changed than can be named: read what you show again.
    """
    watched: Changes = request.app.state.changes
    callers: Callers = request.app.state.callers
    check = partial(callers.identify, credentials(request.scope))
    # all callers share a watcher, which must not have the limits of one of them
    messages = watched.of(served(request)).messages(last_event_id, check)
    return TimedStream(messages, watched.streams, caller_of(request).id)
