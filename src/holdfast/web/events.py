"""Owns the stream of a session's events (SSE): from the caller's last event until the session is closed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.clock import to_iso
from holdfast.domain.events import Event, PartialText
from holdfast.domain.records import record, replace
from holdfast.engine.session_log import BEGINNING, EventPosition, events_after, is_over
from holdfast.errors import HoldfastError, InvalidInput, StoreUnavailable, TooMany
from holdfast.store.contract import Store
from holdfast.web.access import Guarded, caller_of
from holdfast.web.admission import Callers
from holdfast.web.resources import SessionPath
from holdfast.web.serving import Served

router = APIRouter(tags=["events"], route_class=Guarded)

MEDIA_TYPE: Final = "text/event-stream"
LOOK_SECONDS: Final = 1.0
#: between two looks while the agent is writing
WRITING_LOOK_SECONDS: Final = 0.25
#: between two signs of life; at each, the caller's token is checked again
SIGN_SECONDS: Final = 15.0
#: then the stream ends, and the caller asks again with the last id
LONGEST_SECONDS: Final = 600.0
#: events that are read at a time
_PAGE: Final = 64
_PLACE: Final = re.compile(r"(\d{1,15})-(\d{1,15})-(\d{1,15})\Z", re.ASCII)


class Streams:
    """Counts open streams; ``closing`` is set when the server stops."""

    def __init__(self, most: int = 500, most_each: int = 50) -> None:
        self.closing = False
        self._most = most
        self._most_each = most_each
        self._open: Counter[str] = Counter()

    def open(self, caller: str) -> None:
        if self._open.total() >= self._most or self._open[caller] >= self._most_each:
            raise TooMany("too many streams are open")
        self._open[caller] += 1

    def close(self, caller: str) -> None:
        self._open[caller] -= 1
        self._open += Counter()  # drops counts of zero


@record
class Follower:
    store: Store
    session_id: str
    callers: Callers
    authorization: list[str]
    streams: Streams

    async def messages(self, place: EventPosition) -> AsyncIterator[str]:
        until = time.monotonic() + LONGEST_SECONDS
        sign_at = time.monotonic() + SIGN_SECONDS
        told: PartialText | None = None
        while not self.streams.closing and time.monotonic() < until:
            try:
                partial, found, over = await run_in_threadpool(self._look, place)
                if time.monotonic() >= sign_at:
                    await run_in_threadpool(self.callers.identify, self.authorization)
                    sign_at = time.monotonic() + SIGN_SECONDS
                    yield ": still here\n\n"
            except StoreUnavailable:
                partial, found, over = told, [], False  # the store may come back
            except HoldfastError:
                return
            for place, event in found:
                yield _message(place, event)
            if found:
                continue
            if partial is None and told is not None:
                yield _partial_message(replace(told, text="", skipped=0))
            elif partial is not None and partial != told:
                yield _partial_message(partial)
            told = partial
            if over:
                yield "event: end\ndata: {}\n\n"
                return
            await asyncio.sleep(LOOK_SECONDS if partial is None else WRITING_LOOK_SECONDS)

    def _look(
        self, place: EventPosition
    ) -> tuple[PartialText | None, list[tuple[EventPosition, Event]], bool]:
        # before the events are read: those that come in between are still found, and told before the text after them
        over = is_over(self.store, self.session_id)
        partial = self.store.partial_text(self.session_id)
        return partial, list(islice(events_after(self.store, self.session_id, place), _PAGE)), over


class TimedStream(StreamingResponse):
    """Also ends if the caller does not read what was sent."""

    def __init__(self, messages: AsyncIterator[str], streams: Streams, caller: str) -> None:
        super().__init__(messages, media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
        self._streams = streams
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open(self._caller)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_SECONDS + SIGN_SECONDS):
                    await super().__call__(scope, receive, send)
        finally:
            self._streams.close(self._caller)


@router.get(
    "/sessions/{session}/events",
    name="events",
    response_class=StreamingResponse,
    responses={200: {"description": "Events", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}},
)
async def events(
    request: Request,
    holdfast: Served,
    session: SessionPath,
    last_event_id: Annotated[str | None, Header(max_length=60)] = None,
) -> TimedStream:
    """One message for each event, with the id turn-attempt-number; ``Last-Event-ID`` continues after that event.

    While the agent writes, messages ``partial_text``, without an id, have the text so far: each replaces the one before.

    The stream ends with a message ``end`` when the session is closed. If it breaks off, ask for it again.
    """
    place = _place(last_event_id)
    session_id = await run_in_threadpool(holdfast.find, session)
    streams: Streams = request.app.state.streams
    follower = Follower(
        holdfast.store,
        session_id,
        request.app.state.callers,
        request.headers.getlist("authorization"),
        streams,
    )
    return TimedStream(follower.messages(place), streams, caller_of(request).id)


def _place(last: str | None) -> EventPosition:
    if last is None:
        return BEGINNING
    found = _PLACE.match(last)
    if found is None:
        raise InvalidInput("Last-Event-ID", "must be the id of an event: turn-attempt-number")
    return EventPosition(*map(int, found.groups()))


def _message(place: EventPosition, event: Event) -> str:
    data: dict[str, Any] = {
        "turn": place.turn,
        "attempt": place.attempt,
        "number": place.number,
        "at": to_iso(event.at),
        "kind": event.kind.value,
        "data": dict(event.data),
    }
    # on one line: JSON has no bare newlines
    return f"id: {'-'.join(map(str, place))}\nevent: {event.kind.value}\ndata: {json.dumps(data)}\n\n"


def _partial_message(partial: PartialText) -> str:
    """Without an id: a caller that asks again continues after the last event."""
    data = {
        "turn": partial.turn,
        "attempt": partial.attempt,
        "number": partial.number,
        "text": partial.text,
        "skipped": partial.skipped,
    }
    return f"event: partial_text\ndata: {json.dumps(data)}\n\n"
