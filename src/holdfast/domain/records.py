"""Owns how records are declared: frozen for whoever writes code, cheap for whoever runs it.

To mypy a record is frozen: assigning to one is an error. At run time it is a plain slotted dataclass,
because a frozen instance takes five times as long to make, and a page of sessions or a decision with
its verdicts is hardly anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    # hashable like a frozen one: nobody assigns to it
    return dataclass(slots=True, unsafe_hash=True)(cls)
