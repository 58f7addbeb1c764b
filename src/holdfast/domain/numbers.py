"""Owns what whole numbers may enter the store: no less than nothing, and no more than JSON can carry exactly."""

from __future__ import annotations

from holdfast.errors import InvalidInput

MOST = 2**53


def check_whole(field: str, number: object, *, lowest: int = 0) -> int:
    if type(number) is not int:
        raise InvalidInput(field, f"must be a whole number, not {type(number).__name__}")
    if not lowest <= number <= MOST:
        raise InvalidInput(field, f"must be between {lowest} and {MOST}")
    return number
