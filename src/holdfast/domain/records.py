"""Owns the two ways to declare a record: ``PlainRecord`` for what hook processes read, ``record`` for everything else.

A hook process reads this module and does without ``dataclasses`` and ``typing``: importing those would take half of
its time. So ``dataclasses`` is imported when the first ``record`` is declared.

Settings and policies are not records: they are frozen dataclasses, because they check themselves when they are made,
and must stay valid afterwards.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from dataclasses import field
    from typing import TypeVar, dataclass_transform

    T = TypeVar("T")
else:
    field = None

    def dataclass_transform(**_: object) -> object:
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A slotted dataclass. To mypy a record is frozen: assigning to a field is an error.

    At run time a record is not frozen: making a frozen instance takes five times as long, and a page of sessions or
    a decision with its verdicts is hardly anything else.
    """
    from dataclasses import dataclass

    # hashable like a frozen one: nobody assigns to it
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class PlainRecord:
    """Annotations are the fields, class attributes their defaults. Made by keyword; equal when all fields are."""

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
