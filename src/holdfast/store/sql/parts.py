"""Owns reading a long answer in parts: each is one consistent view, and small enough to keep many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.events import Event
from holdfast.domain.turns import Turn
from holdfast.store.pages import Pace
from holdfast.store.sql import attempts, history, sessions, turns
from holdfast.store.sql.scope import Scope

Read = Callable[[], Scope]
AnyTurn = TypeVar("AnyTurn", HistoryTurn, Turn)

#: at a time; the size of one has a limit of its own
_EVENTS: Final = 64


def _history(read: Read, conversation_id: str, **wanted: Any) -> Iterator[tuple[HistoryTurn, ...]]:
    """All of it as of one revision: a change that comes in between is not in it."""
    given = {"first": 1, "last": None, "limit": None, "unsent": True} | wanted
    given |= {name: history.LAST_SEQ for name in ("last", "limit") if given[name] is None}
    with read() as s:
        conversation = history.get(s, conversation_id)
        seqs = history.seqs(s, conversation, **given)
    listed = frozenset(seqs)

    def between(first: int, last: int) -> tuple[HistoryTurn, ...]:
        with read() as s:
            found = history.read(s, conversation, first=first, last=last, unsent=given["unsent"])
        return tuple(turn for turn in found if turn.seq in listed)

    return _in_steps(seqs, between)


def _newest_turns(
    read: Read, session_id: str, limit: int, before: int | None = None, *, dropped: bool = True
) -> Iterator[tuple[Turn, ...]]:
    up_to = history.LAST_SEQ if before is None else before
    with read() as s:
        session = sessions.get(s, session_id)
        seqs = turns.newest_seqs(s, session, up_to, limit, dropped=dropped)
    listed = frozenset(seqs)

    def between(first: int, last: int) -> tuple[Turn, ...]:
        with read() as s:
            found = turns.of_session(s, session, first - 1, history.LAST_SEQ, last)
        return tuple(turn for turn in found if turn.seq in listed)

    return _in_steps(seqs, between)


def _in_steps(
    seqs: Sequence[int], between: Callable[[int, int], tuple[AnyTurn, ...]]
) -> Iterator[tuple[AnyTurn, ...]]:
    pace, done = Pace(), 0
    while window := seqs[done : done + pace.size]:
        found = between(window[0], window[-1])
        pace.adapt(found)
        done += len(window)
        yield found


def _turns(read: Read, session_id: str, after: int = 0, limit: int = 1000) -> Iterator[tuple[Turn, ...]]:
    with read() as s:
        session = sessions.get(s, session_id)
    pace = Pace()
    while limit:
        with read() as s:
            found = turns.of_session(s, session, after, min(pace.size, limit))
        if not found:
            return
        pace.adapt(found)
        after, limit = found[-1].seq, limit - len(found)
        yield found


def _events(
    read: Read, conversation_id: str, seq: int, after: tuple[int, int] = (0, 0), limit: int = 1000
) -> Iterator[tuple[tuple[int, Event], ...]]:
    while limit:
        with read() as s:
            found = attempts.events_of_turn(s, conversation_id, seq, after, min(_EVENTS, limit))
        if not found:
            return
        (attempt, last) = found[-1]
        after, limit = (attempt, last.number), limit - len(found)
        yield found


def _newest_events(
    read: Read, conversation_id: str, seq: int, limit: int
) -> Iterator[tuple[tuple[int, Event], ...]]:
    with read() as s:
        behind = attempts.before_newest_events(s, conversation_id, seq, limit)
    return _events(read, conversation_id, seq, behind, limit)


#: how the answer of each is read; they take the verb's own arguments
VERBS: Final[Mapping[str, Callable[..., Iterator[tuple[Any, ...]]]]] = {
    "events": _events,
    "history": _history,
    "newest_events": _newest_events,
    "newest_turns": _newest_turns,
    "turns": _turns,
}
