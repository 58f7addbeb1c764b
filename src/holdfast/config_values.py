"""Owns how the value of a setting is written: in a file by its type, in the environment as text."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, get_args, get_origin

_MAX_SHOWN = 60
_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")


def required(kind: Any) -> tuple[Any, bool]:
    """``(float, True)`` for ``float | None``."""
    if get_origin(kind) is UnionType:
        return next(arm for arm in get_args(kind) if arm is not type(None)), True
    return kind, False


def parse(kind: Any, text: str) -> object:
    """What a file would have held in place of this text; ``ValueError`` if nothing fits."""
    kind, _ = required(kind)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        return _truth(text)
    if kind in (int, float) and text != "off":
        return kind(text)
    if get_origin(kind) is frozenset:
        return parts
    if get_origin(kind) is Mapping:
        pairs = (part.rpartition("=") for part in parts)
        return {name.strip(): _truth(word.strip()) for name, _, word in pairs}
    return text


def _truth(word: str) -> bool:
    if word.lower() not in _TRUE + _FALSE:
        raise ValueError(word)
    return word.lower() in _TRUE


def accept(kind: Any, value: object) -> object:
    """The value as its field holds it; ``ValueError`` if it is of another type."""
    kind, optional = required(kind)
    origin = get_origin(kind)
    match value:
        case "off" if optional and kind is float:
            return None
        case bool() if kind is bool:
            return value
        case int() | float() if kind is float and not isinstance(value, bool):
            return float(value)
        case int() if kind is int and not isinstance(value, bool):
            return value
        case str() if kind is str or (origin is Literal and value in get_args(kind)):
            return value
        case list() | tuple() | set() | frozenset() if origin is frozenset:
            return frozenset(accept(str, item) for item in value)
        case Mapping() if origin is Mapping:
            return {_entry_name(name): accept(bool, item) for name, item in value.items()}
        case _:
            raise ValueError(value)


def _entry_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(name)
    return name


def shown(value: object) -> str:
    """Enough to recognise it; a URL may hold a password, so never that."""
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, Mapping):
        return "a table"
    shown = repr(value)
    if "://" in shown:
        return "a URL"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
