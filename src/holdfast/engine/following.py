"""Owns following a session: its events from a position on, and waiting until its work is done or needs a person."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from holdfast.domain.approvals import Approval
from holdfast.domain.events import Event
from holdfast.domain.phases import Phase
from holdfast.domain.records import record
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.engine.past import newest_turn
from holdfast.store.contract import Store
from holdfast.store.pages import Pace

#: events that are read at a time; one may have 32 KiB
_PAGE = 64


class EventPosition(NamedTuple):
    """The place of one event in a session."""

    turn: int
    attempt: int
    number: int


BEGINNING = EventPosition(0, 0, 0)


def events_behind(
    store: Store, session_id: str, place: EventPosition, only: int | None = None
) -> Iterator[tuple[EventPosition, Event]]:
    """The events after ``place``, in order; with ``only``, those of this turn."""
    for turn in _turns(store, session_id, max(0, place.turn - 1)):
        if only is not None and turn.seq != only:
            continue
        behind = (place.attempt, place.number) if turn.seq == place.turn else (0, 0)
        while found := store.events(turn.conversation_id, turn.seq, after=behind, limit=_PAGE):
            for tried, event in found:
                yield EventPosition(turn.seq, tried, event.number), event
            behind = (found[-1][0], found[-1][1].number)


def is_over(store: Store, session_id: str, only: int | None = None) -> bool:
    """Whether no more events can come: the session is closed or, with ``only``, that turn has ended."""
    session = store.get_session(session_id)
    if only is None:
        return session.finalized_at is not None
    return not store.get_turn(session.conversation_id, only).status.is_open


def _turns(store: Store, session_id: str, after: int) -> Iterator[Turn]:
    pace = Pace()
    while found := store.turns(session_id, after=after, limit=pace.size):
        yield from found
        pace.adapt(found)
        after = found[-1].seq


_FIRST_LOOK, _LAST_LOOK = 0.1, 2.0


class Reached(StrEnum):
    DONE = "done"  #: completed, or its newest turn is done and none is open
    FAILED = "failed"  #: failed or abandoned, or its newest turn did not end well
    NEEDS_PERSON = "needs_person"  #: a person has to answer an approval
    STILL_OPEN = "still_open"  #: a turn waits or runs, or there is no turn yet


@record
class Waited:
    session: Session
    reached: Reached
    turn: Turn | None = None  #: the newest one
    approval: Approval | None = None  #: the oldest that can be answered, else the oldest that expired


def wait_for(store: Store, session_id: str, timeout: float | None) -> Waited:
    """Looks from time to time until the session has reached an end; with ``timeout``, at most so many seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_LOOK
    while True:
        waited = look(store, session_id)
        if waited.reached is not Reached.STILL_OPEN:
            return waited
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return waited
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_LOOK)


def look(store: Store, session_id: str) -> Waited:
    """How far the work of a session has come by now."""
    session = store.get_session(session_id)
    turn = newest_turn(store, session.id)
    if session.finalized_at is not None:
        done = session.phase is Phase.COMPLETED
        return Waited(session, Reached.DONE if done else Reached.FAILED, turn)
    asked = store.approvals(session_id=session.id)
    if asked:
        now = store.now()
        in_time = (approval for approval in asked if not approval.is_expired(now))
        return Waited(session, Reached.NEEDS_PERSON, turn, next(in_time, asked[0]))
    if turn is None or turn.status.is_open:
        return Waited(session, Reached.STILL_OPEN, turn)
    return Waited(session, Reached.DONE if turn.status is TurnStatus.DONE else Reached.FAILED, turn)
