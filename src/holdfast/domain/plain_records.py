"""Owns records for the hook processes: dataclasses alone would take half the time that such a process has.

They are declared and checked like any other record: annotations are the fields, class attributes their defaults.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=True)
class PlainRecord:
    """Made by keyword; equal when all fields are."""

    def __init__(self, **fields: object) -> None:
        known = type(self).__annotations__
        strange = fields.keys() - known.keys()
        missing = [name for name in known if name not in fields and not hasattr(type(self), name)]
        if strange or missing:
            raise TypeError(f"{type(self).__name__}: {sorted(strange) or missing}")
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _fields(self) == _fields(other)

    __hash__ = None  # type: ignore[assignment] # some hold dictionaries

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in _fields(self).items())
        return f"{type(self).__name__}({shown})"


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__annotations__}
