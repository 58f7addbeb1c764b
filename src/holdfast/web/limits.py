"""Owns what one call may ask for: so many rows, words that can be ids, and records that the engine would have made.

Whoever calls the Store contract over HTTP need not have used the engine, which checks what a person gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from holdfast.domain.approvals import Answer, check_note
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.ids import check_id, check_provider, check_session_name
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.pointers import Pointer, Rights
from holdfast.domain.sessions import NewSession
from holdfast.domain.turns import NewTurn, Turn
from holdfast.engine.conversations import accepted_arguments, check_turn
from holdfast.engine.rights import check_rights
from holdfast.errors import InvalidInput
from holdfast.providers.registry import get_provider, provider_names
from holdfast.store.contract import Store
from holdfast.store.pages import Pace, characters
from holdfast.store.wire import MAX_WORD

AnyTurn = TypeVar("AnyTurn", HistoryTurn, Turn)

MAX_PAGE: Final = 10_000
#: of a page that is shown to somebody, whole records with their texts
MAX_SHOWN: Final = 500
#: of their texts; the page ends with the turn that goes beyond it
_SHOWN_CHARACTERS: Final = 4 * 1024 * 1024
_TEXTS: Final = frozenset({"prompt", "response", "summary", "why"})


def check_arguments(store: Store, verb: str, arguments: Mapping[str, object]) -> None:
    for name, value in arguments.items():
        place = f"{verb}.{name}"
        match value:
            case int() if name == "limit" and value > MAX_PAGE:
                raise InvalidInput(place, f"must be at most {MAX_PAGE}")
            case str() if name in _TEXTS:
                check_text(place, value)
            case str():
                check_text(place, value, limit=MAX_WORD)
            case NewSession():
                _check_session(value)
            case NewTurn():
                _check_turn(store, str(arguments["session_id"]), value)
            case Pointer(provider=provider, rights=Rights() as rights) if provider in provider_names():
                check_rights(rights, get_provider(provider), allow_wider=True)
            case Answer():
                check_note(value.note)
            case _:
                pass


def shown(read: Callable[[int, AnyTurn | None], Sequence[AnyTurn]], limit: int) -> Iterator[AnyTurn]:
    """At most ``limit`` turns, fewer if they are long: ``read`` gets how many, and the last one that it has given."""
    pace, left, size = Pace(), limit, 0
    last: AnyTurn | None = None
    while left and size < _SHOWN_CHARACTERS:
        found = read(min(pace.size, left), last)
        if not found:
            return
        yield from found
        pace.adapt(found)
        left, size, last = left - len(found), size + characters(found), found[-1]


def _check_session(new: NewSession) -> None:
    check_id("id", new.id)
    check_name("agent", new.agent)
    check_text("purpose", new.purpose)
    if new.name is not None:
        check_session_name(new.name)
    if new.provider is not None:
        check_provider(new.provider)
    if new.conversation_id is not None:
        check_id("conversation", new.conversation_id)


def _check_turn(store: Store, session_id: str, new: NewTurn) -> None:
    check_turn(new.prompt, new, accepted=accepted_arguments(store, session_id, new.request))
    if new.key is not None:
        check_text("key", new.key, limit=MAX_WORD)
