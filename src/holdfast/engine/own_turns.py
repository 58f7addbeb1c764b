"""Owns reading a session's own turns from the newest back, however many of others stand between them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.domain.turns import Turn
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
