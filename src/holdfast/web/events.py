"""Owns the stream of a session's events (SSE): from the caller's last event until the session is closed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from holdfast.clock import to_iso
from holdfast.domain.events import Event, PartialText
from holdfast.domain.records import record, replace
from holdfast.domain.turns import Turn
from holdfast.engine.documents import failure_document
from holdfast.engine.session_log import BEGINNING, EventPosition, is_over, log_after
from holdfast.errors import HoldfastError, InvalidInput, StoreUnavailable
from holdfast.store.contract import Store
from holdfast.web.access import Guarded, caller_of
from holdfast.web.admission import Callers
from holdfast.web.resources import SessionPath
from holdfast.web.serving import Served
from holdfast.web.streams import LONGEST_SECONDS, MEDIA_TYPE, SIGN_SECONDS, Streams, TimedStream

router = APIRouter(tags=["events"], route_class=Guarded)

LOOK_SECONDS: Final = 1.0
#: between two looks while the agent is writing
WRITING_LOOK_SECONDS: Final = 0.25
#: events that are read at a time
_PAGE: Final = 64
_PLACE: Final = re.compile(r"(\d{1,15})-(?:(\d{1,15})-(\d{1,15})|end)\Z", re.ASCII)


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
            for place, what in found:
                yield _message(place, what) if isinstance(what, Event) else _end(what)
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
    ) -> tuple[PartialText | None, list[tuple[EventPosition, Event | Turn]], bool]:
        # before the events are read: those that come in between are still found, and told before the text after them
        over = is_over(self.store, self.session_id)
        partial = self.store.partial_text(self.session_id)
        return partial, list(islice(log_after(self.store, self.session_id, place), _PAGE)), over


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
    """One message for each event, with the id turn-attempt-number; ``Last-Event-ID`` continues after that message.

    While the agent writes, messages ``partial_text``, without an id, have the text so far: each replaces the one before.
    When a turn has ended, a message ``turn_ended`` with the id turn-end follows its events.

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
        raise InvalidInput("Last-Event-ID", "must be the id of a message: turn-attempt-number, or turn-end")
    turn, attempt, number = found.groups()
    if attempt is None:
        return EventPosition.end_of(int(turn))
    return EventPosition(int(turn), int(attempt), int(number))


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


def _end(turn: Turn) -> str:
    data = {"turn": turn.seq, "status": turn.status.value, "failure": failure_document(turn.failure)}
    return f"id: {turn.seq}-end\nevent: turn_ended\ndata: {json.dumps(data)}\n\n"
