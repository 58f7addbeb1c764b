"""Owns how the statements of the store are said to PostgreSQL, and how their values are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple

import psycopg

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_INDEX_HINT = re.compile(r" INDEXED BY \w+")


class Said(NamedTuple):
    text: bytes
    names: tuple[str, ...]  #: of the parameters ``$1``, ``$2``, …


class _Dialect(dict[str, Said]):
    """Each statement as PostgreSQL says it: parameters have numbers, and the planner needs no hints.

    Keys never change, so rows are locked FOR NO KEY UPDATE. A full lock would also keep out the foreign
    key checks of rows that refer to it, and two who lock in the same order could still deadlock: the
    second change of a session within one transaction makes PostgreSQL look up its conversation again.
    """

    def __missing__(self, sql: str) -> Said:
        plain = _INDEX_HINT.sub("", sql).replace("FOR UPDATE", "FOR NO KEY UPDATE")
        names = tuple(dict.fromkeys(_PARAMETER.findall(plain)))
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        text = _PARAMETER.sub(lambda found: numbers[found[1]], plain)
        self[sql] = said = Said(text.encode(), names)
        return said


SAID = _Dialect()


def _write_text(value: str) -> bytes:
    written = value.encode()
    # libpq would take it for the end of the text
    if b"\0" in written:
        raise psycopg.DataError("a text cannot contain NUL")
    return written


#: how a value of each type is written, and the number of the type for PostgreSQL; 0: what its place asks for
_Form = tuple[Callable[[Any], bytes | None], int]
_FORMS: dict[type, _Form] = {
    str: (_write_text, 0),
    NoneType: (lambda _: None, 0),
    int: (b"%d".__mod__, 20),
    bool: (b"%d".__mod__, 16),
    float: (lambda value: repr(value).encode(), 701),
    bytes: (lambda value: b"\\x" + value.hex().encode(), 17),
}


def written(value: object) -> bytes | None:
    write, _ = _FORMS.get(type(value)) or _form_of_subclass(value)
    return write(value)


def type_of(value: object) -> int:
    _, number = _FORMS.get(type(value)) or _form_of_subclass(value)
    return number


def _form_of_subclass(value: object) -> _Form:
    for kind in type(value).__mro__:
        if kind in _FORMS:
            return _FORMS[kind]
    raise psycopg.DataError(f"{type(value).__name__} has no form in PostgreSQL")
