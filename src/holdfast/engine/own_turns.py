"""Owns reading a session's own turns from the newest back: which was stopped, and which was never sent."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.store.contract import Store

_FIRST_PAGE, _LARGEST_PAGE = 4, 64  #: mostly the newest few are enough


def newest_turn(store: Store, session_id: str) -> Turn | None:
    """The newest that is still in the history."""
    return next(iter(store.newest_turns(session_id, 1, dropped=False)), None)


def newest_first(store: Store, session_id: str, before: int | None = None) -> Iterator[Turn]:
    """All of them, dropped ones included; with ``before``, those of a smaller number."""
    size = _FIRST_PAGE
    while page := store.newest_turns(session_id, size, before=before):
        yield from reversed(page)
        before, size = page[0].seq, min(2 * size, _LARGEST_PAGE)


def was_stopped(turn: Turn) -> bool:
    """It did not come to its end; one that a guard refused was never begun."""
    was_begun = turn.failure is None or turn.failure.then.was_begun
    return turn.status is not TurnStatus.DONE and was_begun


def unsent_request(store: Store, turn: Turn) -> HistoryTurn | None:
    """A turn that failed before any agent was started for it, as the history has it: agents are not told of it."""
    if turn.status is not TurnStatus.FAILED or not was_stopped(turn):
        return None
    known = store.history(turn.conversation_id, first=turn.seq, last=turn.seq)
    return known[0] if known and not was_sent(store, turn) else None


def was_sent(store: Store, turn: Turn) -> bool:
    """An agent was launched for it, so that agents are told of it."""
    return bool(store.history(turn.conversation_id, first=turn.seq, last=turn.seq, unsent=False))
