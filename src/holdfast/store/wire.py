"""Owns the records of the Store contract as JSON, by the types that the contract declares.

Decoding checks each value against its type: ``InvalidInput`` names the place of a value that does not fit.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from math import isfinite
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from holdfast.clock import Instant
from holdfast.domain.ids import ConversationId, SessionId
from holdfast.domain.inputs import check_text, clean_text
from holdfast.domain.records import PlainRecord, record
from holdfast.domain.redaction import Json
from holdfast.domain.turns import TurnStatus
from holdfast.errors import InvalidInput

#: names the record where several are possible
TAG = "$type"


@record
class Coder:
    encode: Callable[[Any], Json]
    decode: Callable[[Json, str], Any]  #: the value, and its place for messages


#: names in annotations that their modules import for type checkers only; JSON of any shape is ``object``
_NAMES: dict[str, Any] = {
    "Any": object,
    "ConversationId": ConversationId,
    "Instant": Instant,
    "Json": object,
    "Mapping": Mapping,
    "Sequence": Sequence,
    "SessionId": SessionId,
    "TurnStatus": TurnStatus,
}


def declared(what: Any) -> dict[str, Any]:
    """The types of a record's fields, or of a verb's arguments."""
    return get_type_hints(what, localns=_NAMES)


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, PlainRecord))


@cache
def coder(hint: Any) -> Coder:
    """For a type of the contract. TypeError for a type that has no JSON form here."""
    if isinstance(hint, NewType):
        return Coder(_as_it_is, _word) if hint.__supertype__ is str else coder(hint.__supertype__)
    if hint is object:
        return Coder(_as_it_is, check_json)
    if hint is bytes:
        return Coder(lambda value: b64encode(value).decode("ascii"), _bytes)
    if hint in _PLAIN:
        return Coder(_as_it_is, partial(_plain, hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Coder(lambda value: value.value, partial(_member, hint))
    if is_record(hint):
        return _record(hint)
    return _compound(hint)


def _compound(hint: Any) -> Coder:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed(arguments)
    if origin in (tuple, frozenset, list, Sequence):
        return _many(origin, coder(arguments[0]))
    if origin in (dict, Mapping):
        return _mapping(coder(arguments[1]))
    raise TypeError(f"{hint!r} has no JSON form")


#: the most characters of a word, such as an id or a cursor
MAX_WORD = 1000
#: the numbers that every store can keep
WHOLE_NUMBERS = range(-(2**63), 2**63)

#: bool before int: a bool is an int, too
_PLAIN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    NoneType: (NoneType,),
}


def _as_it_is(value: Any) -> Json:
    kept: Json = value
    return kept


def _plain(kind: Any, value: Json, place: str) -> Any:
    if type(value) not in _PLAIN[kind]:
        raise InvalidInput(place, f"must be {'null' if kind is NoneType else kind.__name__}")
    if isinstance(value, str):
        return check_text(place, value)
    if isinstance(value, int | float) and not WHOLE_NUMBERS.start <= value < WHOLE_NUMBERS.stop:
        raise InvalidInput(place, "is too large a number")  # also for nan, which compares as False
    return float(value) if kind is float and isinstance(value, int) else value


def _bytes(value: Json, place: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidInput(place, "must be bytes in base64")
    try:
        return b64decode(value, validate=True)
    except ValueError as exc:
        raise InvalidInput(place, f"must be bytes in base64: {exc}") from exc


def check_json(value: Json, place: str) -> Json:
    """JSON of any shape. Refuses values that no store can keep, and those that are nested too deeply to be read."""
    try:
        _check_parts(value, place)
    except RecursionError:  # newer Pythons parse far deeper than their code can follow
        raise InvalidInput(place, "is nested too deeply") from None
    return value


def _check_parts(value: Json, place: str) -> None:
    match value:
        case dict():
            for name, part in value.items():
                _check_parts(part, f"{place}.{check_text(place, name)[:40]}")
        case list():
            for n, part in enumerate(value):
                _check_parts(part, f"{place}[{n}]")
        case str():
            check_text(place, value)
        case float() if not isfinite(value):
            raise InvalidInput(place, "is too large a number")


def _word(value: Json, place: str) -> str:
    """An id of any kind."""
    return check_text(place, value, limit=MAX_WORD)


def _member(kind: type[Enum], value: Json, place: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(place, f"{str(value)[:40]!r} is not one of {known}") from None


def _record(kind: type[Any]) -> Coder:
    hints = declared(kind)
    parts = [(name, coder(hints[name]), needed) for name, needed in fields_of(kind)]
    known = {name for name, _, _ in parts}

    def encode(value: Any) -> Json:
        return {name: part.encode(getattr(value, name)) for name, part, _ in parts}

    def decode(value: Json, place: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidInput(place, "must be an object")
        for name in value:
            if name not in known:
                raise InvalidInput(f"{place}.{clean_text(name[:40])}", "is not known")
        given = {}
        for name, part, needed in parts:
            if name in value:
                given[name] = part.decode(value[name], f"{place}.{name}")
            elif needed:
                raise InvalidInput(f"{place}.{name}", "is missing")
        return kind(**given)

    return Coder(encode, decode)


def fields_of(kind: type[Any]) -> list[tuple[str, bool]]:
    """The names of a record's fields, and whether each is required."""
    if issubclass(kind, PlainRecord):
        return [(name, not hasattr(kind, name)) for name in kind.__annotations__]
    return [(f.name, f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)]


def _union(arms: tuple[Any, ...]) -> Coder:
    """One record at most is recognized by its shape; where several are possible, a tag names the record."""
    records = [arm for arm in arms if is_record(arm)]
    others = [arm for arm in arms if arm not in records]
    if len(records) > 1:
        return _tagged(records, others)
    choices = [coder(arm) for arm in (*others, *records)]
    kinds = [_kinds_of(arm) for arm in (*others, *records)]

    def encode(value: Any) -> Json:
        for choice, expected in zip(choices, kinds, strict=True):
            if isinstance(value, expected[0]):
                return choice.encode(value)
        raise TypeError(f"{type(value).__name__} is not one of {arms}")

    def decode(value: Json, place: str) -> Any:
        # by the exact type: a bool would pass for an int
        fits = [c for c, expected in zip(choices, kinds, strict=True) if type(value) in expected[1]]
        if not fits:
            raise InvalidInput(place, "has another type than expected")
        return fits[0].decode(value, place)

    return Coder(encode, decode)


def _kinds_of(arm: Any) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """The types of a value of this arm: in Python, and as JSON."""
    if isinstance(arm, NewType):
        return _kinds_of(arm.__supertype__)
    if arm in _PLAIN:
        return _PLAIN[arm], _PLAIN[arm]
    if isinstance(arm, type) and issubclass(arm, Enum):
        return (arm,), tuple({type(member.value) for member in arm})
    if is_record(arm):
        return (arm,), (dict,)
    origin = get_origin(arm)
    if origin in (dict, Mapping):
        return (Mapping,), (dict,)
    return (tuple, frozenset, list), (list,)


def _tagged(records: list[Any], others: list[Any]) -> Coder:
    by_name = {kind.__name__: (kind, coder(kind)) for kind in records}
    rest = _union(tuple(others)) if len(others) > 1 else coder(others[0]) if others else None

    def encode(value: Any) -> Json:
        found = by_name.get(type(value).__name__)
        if found is None:
            if rest is None:
                raise TypeError(f"{type(value).__name__} is not one of {', '.join(by_name)}")
            return rest.encode(value)
        content = found[1].encode(value)
        assert isinstance(content, dict)
        return {TAG: type(value).__name__, **content}

    def decode(value: Json, place: str) -> Any:
        if not isinstance(value, dict):
            if rest is None:
                raise InvalidInput(place, "must be an object")
            return rest.decode(value, place)
        found = by_name.get(str(value.get(TAG)))
        if found is None:
            raise InvalidInput(f"{place}.{TAG}", f"must be one of {', '.join(by_name)}")
        return found[1].decode({name: part for name, part in value.items() if name != TAG}, place)

    return Coder(encode, decode)


def _fixed(arguments: tuple[Any, ...]) -> Coder:
    parts = [coder(argument) for argument in arguments]

    def decode(value: Json, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(parts):
            raise InvalidInput(place, f"must be a list of {len(parts)}")
        return tuple(
            part.decode(item, f"{place}[{n}]")
            for n, (part, item) in enumerate(zip(parts, value, strict=True))
        )

    return Coder(lambda value: [part.encode(item) for part, item in zip(parts, value, strict=True)], decode)


def _many(origin: Any, part: Coder) -> Coder:
    make = origin if origin in (frozenset, list) else tuple

    def decode(value: Json, place: str) -> Any:
        if not isinstance(value, list):
            raise InvalidInput(place, "must be a list")
        return make(part.decode(item, f"{place}[{n}]") for n, item in enumerate(value))

    def encode(value: Any) -> Json:
        items = sorted(value) if origin is frozenset else value
        return [part.encode(item) for item in items]

    return Coder(encode, decode)


def _mapping(part: Coder) -> Coder:
    def decode(value: Json, place: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidInput(place, "must be an object")
        return {
            check_text(place, name): part.decode(item, f"{place}.{name[:40]}") for name, item in value.items()
        }

    return Coder(lambda value: {name: part.encode(item) for name, item in value.items()}, decode)
