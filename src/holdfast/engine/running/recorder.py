"""Owns the record of a running attempt: what its agent says becomes events, written in small fenced batches."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.clock import Clock, Instant
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Event,
    EventKind,
    Named,
    Recorded,
    Returned,
    Said,
)
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.turns import Lease
from holdfast.errors import OUTAGES, Conflict, InvalidInput, LeaseLost
from holdfast.store.contract import Store
from holdfast.store.wire import check_json

log = logging.getLogger("holdfast")

#: a batch is written when it is this old, or this large
_BATCH_SECONDS = 1.0
_BATCH_EVENTS = 256
_BATCH_CHARACTERS = 256 * 1024
#: what waits for an unreachable store, which is tried once for each age of a batch; beyond it the oldest go
_MOST_EVENTS_WAITING = 4096
_MOST_CHARACTERS_WAITING = 8 * 1024 * 1024
#: between two looks into the provider's own store, which may open files: first, and at most; each wait is twice the last
_FIRST_LOOK_SECONDS = 0.05
_LOOK_SECONDS = 1.0
#: of one event; the whole answer is kept with the turn, and whole outputs by the provider
MAX_EVENT = 32 * 1024
_CUT = " [cut]"


class Recorder:
    """``saved`` looks whether the provider's own store holds the session by now."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        clock: Clock,
        saved: Callable[[ProviderSessionId], TranscriptMark | None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._saved = saved
        self._batch: list[Event] = []
        self._size = 0
        self._number = 0
        self._unwritten_calls: set[str] = set()  #: that began, and have not returned
        self._since = 0.0
        self._is_unreachable = False
        self._dropped = 0  #: of the oldest events that waited
        self._said: list[str] = []
        self._said_size = 0
        self._unpinned: ProviderSessionId | None = None
        self._looked_at: float | None = None
        self._look_after = _FIRST_LOOK_SECONDS
        self.is_fenced = False  #: the lease is lost: nothing can be recorded any more

    def add(self, event: AgentEvent) -> None:
        """Pieces of text that follow each other become one event."""
        if isinstance(event, Said):
            self._said.append(event.text)
            self._said_size += len(event.text)
            self._since = self._since or time.monotonic()
            if self._said_size >= MAX_EVENT:
                self._put_text()
        elif isinstance(event, Named):
            self._unpinned, self._looked_at = event.session_id, None
            self._look_after = _FIRST_LOOK_SECONDS
        else:
            self._put_text()
            self._put(event.kind, recorded_data(event))
            if isinstance(event, Called):
                self._unwritten_calls.add(event.call_id)
            elif isinstance(event, Returned):
                self._unwritten_calls.discard(event.call_id)
        is_large = len(self._batch) >= _BATCH_EVENTS or self._size >= _BATCH_CHARACTERS
        if is_large and not self._is_unreachable:
            self._flush()

    def tick(self, *, more_to_come: bool = False) -> None:
        """Between lines: write what has waited long enough, and pin the session once it is on disk.

        A call that has begun does not wait, nor does its session: if all of us were killed while it runs, nobody
        else might know of it.
        """
        is_old = self._since > 0 and time.monotonic() - self._since >= _BATCH_SECONDS
        has_begun = bool(self._unwritten_calls) and not more_to_come and not self._is_unreachable
        if is_old or has_begun:
            self._flush()
        is_due = self._looked_at is None or time.monotonic() - self._looked_at >= self._look_after
        if is_due or has_begun:
            self._pin()

    def close(self, patience: float) -> None:
        """Whatever is left, written now; a store that cannot be reached is waited for, so many seconds."""
        until = time.monotonic() + patience
        self._flush()
        while self._batch and not self.is_fenced and time.monotonic() < until:
            time.sleep(_BATCH_SECONDS)
            self._flush()
        self._pin()

    def write_rest(self) -> None:
        """Write what ``close`` could not. Raises while the store cannot be reached, and keeps the events."""
        while self._batch and not self.is_fenced:
            self._write(_first_batch(self._batch))

    def _flush(self) -> None:
        """A store that cannot be reached gets it later: what has piled up by then, one batch after the other."""
        self._put_text()
        if not self._batch or self.is_fenced:
            return
        try:
            while self._batch:
                self._write(_first_batch(self._batch))
        except LeaseLost:
            self.is_fenced, self._batch, self._size = True, [], 0
        except OUTAGES as exc:
            if not self._is_unreachable:
                log.warning("events wait to be recorded: %s", exc)
            self._since, self._is_unreachable = time.monotonic(), True
            return
        self._since, self._is_unreachable = 0.0, False
        self._unwritten_calls.clear()

    def _write(self, events: list[Event]) -> None:
        self._store.record_events(self._lease, [*self._gap(), *events])
        self._batch, self._dropped = self._batch[len(events) :], 0
        self._size -= sum(_size(event.data) for event in events)

    def _gap(self) -> tuple[Event, ...]:
        """The notice of what was dropped, in the place of the last of it."""
        if not self._dropped:
            return ()
        first = self._batch[0]
        text = f"{self._dropped} events were dropped: the store could not be reached"
        return (Event(first.number - 1, EventKind.NOTICE, {"text": text}, first.at),)

    def _pin(self) -> None:
        """An id whose session the provider has not saved is not worth pointing at."""
        if self._unpinned is None or self.is_fenced:
            return
        self._looked_at = time.monotonic()
        mark = self._saved(self._unpinned)
        if mark is None:
            self._look_after = min(2 * self._look_after, _LOOK_SECONDS)
            return
        try:
            self._store.pin(self._lease, self._unpinned, mark)
        except LeaseLost:
            self.is_fenced = True
        except Conflict:
            pass  # the provider runs another session than it was asked to: judged at the end
        except OUTAGES as exc:
            log.warning("the session waits to be pinned: %s", exc)
            return
        self._unpinned = None

    def _put_text(self) -> None:
        if self._said:
            said, self._said, self._said_size = Said("".join(self._said)), [], 0
            for kind, data in _as_recorded(said):
                self._put(kind, data)

    def _put(self, kind: EventKind, data: dict[str, Json]) -> None:
        self._number += 1
        self._since = self._since or time.monotonic()
        self._size += _size(data)
        self._batch.append(Event(self._number, kind, data, self._clock()))
        while self._is_unreachable and self._is_too_much():
            self._size -= _size(self._batch.pop(0).data)
            self._dropped += 1

    def _is_too_much(self) -> bool:
        return len(self._batch) > _MOST_EVENTS_WAITING or self._size > _MOST_CHARACTERS_WAITING


def late_events(found: Sequence[Said | Called | Returned], after: int, at: Instant) -> list[Event]:
    """What nobody has reported while it happened, numbered behind ``after``: of more than a batch, the newest."""
    newest: deque[tuple[EventKind, dict[str, Json]]] = deque()
    size = 0
    for kind, data in reversed([one for event in found for one in _as_recorded(event)]):
        size += _size(data)
        if len(newest) >= _BATCH_EVENTS or (newest and size > _BATCH_CHARACTERS):
            break
        newest.appendleft((kind, data))
    return [Event(number, kind, data, at) for number, (kind, data) in enumerate(newest, after + 1)]


def _as_recorded(event: Recorded) -> Iterator[tuple[EventKind, dict[str, Json]]]:
    """A text that is too long for one event becomes several; anything else that is too long is cut."""
    if isinstance(event, Said):
        for part in _parts(event.text):
            yield event.kind, {"text": part}
    else:
        yield event.kind, recorded_data(event)


def _parts(text: str) -> Iterator[str]:
    text = clean_text(text)
    return (text[start : start + MAX_EVENT] for start in range(0, len(text), MAX_EVENT))


def recorded_data(event: Recorded) -> dict[str, Json]:
    """What is recorded of an event, bounded in size; secrets are taken out by the store."""
    data = {name: _bounded(value) for name, value in event.data.items()}
    return data | {"is_cut": True} if any(map(_is_cut, data.values())) else data


def _first_batch(waiting: list[Event]) -> list[Event]:
    size = 0
    for count, event in enumerate(waiting[:_BATCH_EVENTS], 1):
        size += _size(event.data)
        if size >= _BATCH_CHARACTERS:
            return waiting[:count]
    return waiting[:_BATCH_EVENTS]


def _size(data: Mapping[str, Json]) -> int:
    return sum(len(value if isinstance(value, str) else json.dumps(value)) for value in data.values())


def _bounded(value: Json, *, inside: bool = False) -> Json:
    """Of an object, each value by itself; inside it, what is too large, or what a server would refuse, as its text."""
    if isinstance(value, str):
        return _short(value)
    if not inside:
        if isinstance(value, dict):
            return {_short(name): _bounded(each, inside=True) for name, each in value.items()}
        return value  # a number or a flag, of ours
    text = json.dumps(value, ensure_ascii=False)
    try:
        return check_json(value, "arguments") if len(text) <= MAX_EVENT else _short(text)
    except InvalidInput:
        return _short(text)


def _is_cut(kept: Json) -> bool:
    """With its sign of the cut, a text that was cut is longer than one that was not can be."""
    values = kept.values() if isinstance(kept, dict) else (kept,)
    return any(isinstance(value, str) and len(value) > MAX_EVENT for value in values)


def _short(text: str) -> str:
    text = clean_text(text)
    return text if len(text) <= MAX_EVENT else text[:MAX_EVENT] + _CUT
