"""Owns following a session: its events in order, from a place that somebody has already got to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.domain.events import Event
from holdfast.domain.turns import Turn
from holdfast.store.contract import Store
from holdfast.store.pages import Pace

#: of events at a time; one may have 32 KiB
_PAGE = 64


class Place(NamedTuple):
    turn: int
    attempt: int
    number: int


BEGINNING = Place(0, 0, 0)


def events_behind(
    store: Store, session_id: str, place: Place, only: int | None = None
) -> Iterator[tuple[Place, Event]]:
    """What was told once is not told again; ``only``: of this turn."""
    for turn in _turns(store, session_id, max(0, place.turn - 1)):
        if only is not None and turn.seq != only:
            continue
        behind = (place.attempt, place.number) if turn.seq == place.turn else (0, 0)
        while found := store.events(turn.conversation_id, turn.seq, after=behind, limit=_PAGE):
            for tried, event in found:
                yield Place(turn.seq, tried, event.number), event
            behind = (found[-1][0], found[-1][1].number)


def is_over(store: Store, session_id: str, only: int | None = None) -> bool:
    """Nothing more can happen: the session is closed, or the one turn has ended."""
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
