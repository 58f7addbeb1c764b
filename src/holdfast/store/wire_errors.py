"""Owns how the errors of the error tree travel, so that they are caught on the other side as what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.domain.redaction import Json
from holdfast.errors import HoldfastError


def encode_error(error: HoldfastError) -> dict[str, Json]:
    return {"code": error.code, "message": error.message, "fields": _plain(vars(error))}


def decode_error(told: Mapping[str, Json]) -> HoldfastError:
    """An error with the same code, message and data; of a code that is not known, the base of the tree."""
    kind = _by_code().get(str(told.get("code")), HoldfastError)
    error = kind.__new__(kind)
    message = str(told.get("message"))
    Exception.__init__(error, message)
    error.message, error.details = message, {}
    fields = told.get("fields")
    for name, value in fields.items() if isinstance(fields, dict) else ():
        setattr(error, name, value)
    return error


def _plain(fields: Mapping[str, object]) -> dict[str, Json]:
    return {name: _json(value) for name, value in fields.items()}


def _json(value: object) -> Json:
    if isinstance(value, Mapping):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _by_code() -> dict[str, type[HoldfastError]]:
    known: list[type[HoldfastError]] = [HoldfastError, *_below(HoldfastError)]
    # a class without a code of its own travels as the one above it
    return {kind.code: kind for kind in reversed(known)}


def _below(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
