"""Owns errors over HTTP: those of the error tree as JSON and back, and the words for a server without an answer."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping

from holdfast.domain.redaction import Json
from holdfast.errors import HoldfastError


def encode_error(error: HoldfastError) -> dict[str, Json]:
    """Its members of a problem document: ``details`` for everyone, ``fields`` to raise the same error again."""
    fields = {name: value for name, value in vars(error).items() if name not in ("message", "details")}
    return {
        "code": error.code,
        "detail": error.message,
        "details": _plain(error.details),
        "fields": _plain(fields),
    }


def decode_error(told: Mapping[str, Json]) -> HoldfastError | None:
    """An error with the same message and data, of the class that has its code, or the base of the tree.

    None if the problem is not one of our errors.
    """
    kind = _by_code().get(str(told.get("code")), HoldfastError)
    fields, details = told.get("fields"), told.get("details")
    if not isinstance(fields, dict) or not isinstance(details, dict):
        return None
    error = kind.__new__(kind)
    message = str(told.get("detail"))
    Exception.__init__(error, message)
    error.message, error.details = message, dict(details)
    for name, value in fields.items():
        if not name.startswith("_"):
            setattr(error, name, value)
    return error


def why_unreachable(error: Exception) -> str:
    """In the words of the system, where httpx wrapped its error."""
    # httpcore raises its errors "from None": what caused them is only their context
    while type(error).__module__.startswith(("httpx", "httpcore")):
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, Exception):
            break
        error = inner
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS there; write http://, or name the proxy that does"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


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
    # a class without a code of its own is sent as its base class
    return {kind.code: kind for kind in reversed(known)}


def _below(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
