"""Owns what a session's metadata may be: a JSON object of bounded size, merged key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from types import NoneType

from holdfast.domain.inputs import check_text
from holdfast.domain.redaction import Json, encode_redacted
from holdfast.errors import InvalidInput

MAX_METADATA = 256 * 1024
MAX_DEPTH = 100  #: far below the depth at which readers of JSON fail, which depends on the reader
MAX_PAIRS = 20  #: pairs that one request may filter by
_SCALARS = {str, int, float, bool, NoneType}

Metadata = dict[str, Json]

# json.dumps makes an encoder for each call
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
# an escaped NUL, but not the harmless text backslash-u-0-0-0-0
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def parse_metadata(text: str, field: str = "metadata") -> Metadata:
    """Reads metadata that is given as JSON text, as on the command line."""
    check_text(field, text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(field, f"is not valid JSON: {exc}") from exc
    encode_metadata(value, field)
    return dict(value)


def encode_metadata(value: Mapping[str, Json], field: str = "metadata") -> str:
    """Redacted JSON text, ready to be written. Raises InvalidInput for a value that could not be read back unchanged."""
    if not isinstance(value, Mapping):
        raise InvalidInput(field, f"must be a JSON object, not {_kind(value)}")
    try:
        text = encode_redacted(dict(value), _encode)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(field, f"cannot be written as JSON: {exc}") from exc
    if not _is_flat(value):
        _check_shape(value, field)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_METADATA:
        raise InvalidInput(field, f"is {size} bytes as JSON; the limit is {MAX_METADATA}")
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidInput(field, "contains a NUL byte")
    return check_text(field, text)


def merge_metadata(current: Metadata, patch: Metadata) -> Metadata:
    """Shallow: a key of the patch replaces the whole value of that key."""
    return {**current, **patch}


def parse_pairs(texts: Iterable[str], field: str = "metadata") -> dict[str, str]:
    """Reads the filter of ``has_metadata``, given as ``key=value`` each."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = check_text(field, text).partition("=")
        if not separator or not key:
            raise InvalidInput(field, f"{text[:40]!r} is not key=value")
        if pairs.setdefault(key, value) != value:
            raise InvalidInput(field, f"{key[:40]!r} is given twice, with different values")
    return pairs


def has_metadata(metadata: Mapping[str, Json], wanted: Mapping[str, str]) -> bool:
    """Whether each key has that value: a text unchanged, anything else as JSON; a list has each of its items."""
    return all(key in metadata and _has(metadata[key], value) for key, value in wanted.items())


def _has(found: Json, value: str) -> bool:
    if isinstance(found, list):
        return any(_has(item, value) for item in found)
    return value == (found if isinstance(found, str) else _encode(found))


def _is_flat(value: Mapping[str, Json]) -> bool:
    """Whether all keys are texts and nothing is nested: the usual case, checked cheaply."""
    return set(map(type, value)) <= {str} and set(map(type, value.values())) <= _SCALARS


def _check_shape(value: Mapping[str, Json], field: str) -> None:
    """Refuses keys that are not texts: Python would write a number as a key, and read back a text."""
    below: list[tuple[object, int]] = [(value, 1)]
    while below:
        item, depth = below.pop()
        if depth > MAX_DEPTH:
            raise InvalidInput(field, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, Mapping):
            for key in item:
                if not isinstance(key, str):
                    raise InvalidInput(field, f"has a key that is not text but {type(key).__name__}")
            item = tuple(item.values())
        if isinstance(item, list | tuple):
            below.extend([(child, depth + 1) for child in item if isinstance(child, Mapping | list | tuple)])


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
