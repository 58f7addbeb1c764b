"""Owns JSON as the text of a column. Light: the commands that scripts call import this, and not ``codec``."""

from __future__ import annotations

import json

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

# json.dumps and json.loads make a coder for each call
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_decode_first = json.JSONDecoder().raw_decode


def dump(value: object) -> str:
    return _encode(value)


def load(text: str) -> Any:
    try:
        value, end = _decode_first(text)
    except ValueError:
        return _decode(text)
    # ``decode`` looks for spaces before and behind, which takes as long as a short value itself; we write none
    return value if end == len(text) else _decode(text)


def decode_object(text: str) -> dict[str, Any]:
    value = load(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
