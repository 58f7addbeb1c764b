"""Owns reading a session's own turns from the newest back, however many of others stand between them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.domain.turns import Turn
from holdfast.store.contract import Store

_PAGE = 50


def newest_turn(store: Store, session_id: str) -> Turn | None:
    """The newest that is still in the history."""
    return next(iter(store.newest_turns(session_id, 1, dropped=False)), None)


def newest_first(store: Store, session_id: str, before: int | None = None) -> Iterator[Turn]:
    """All of them, dropped ones included; with ``before``, those of a smaller number."""
    while page := store.newest_turns(session_id, _PAGE, before=before):
        yield from reversed(page)
        before = page[0].seq
