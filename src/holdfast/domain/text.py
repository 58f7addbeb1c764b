"""Owns what text may enter the store: given by a person it is checked, said by an agent it is cleaned."""

from __future__ import annotations

import re

from holdfast.errors import InvalidInput

MAX_NAME = 200
MAX_TEXT = 16 * 1024 * 1024

# compiled when they are used: nearly every text is ASCII, or printable
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
_UNSTORABLE = "[\x00\ud800-\udfff]"


def check_text(field: str, text: object, *, limit: int = MAX_TEXT) -> str:
    """A person's text: refused when no store could keep it unchanged."""
    if not isinstance(text, str):
        raise InvalidInput(field, f"must be text, not {type(text).__name__}")
    if len(text) > limit:
        raise InvalidInput(field, f"is {len(text)} characters long; the limit is {limit}")
    if not text.isascii() or "\x00" in text:
        found = re.search(_UNSTORABLE, text)
        if found:
            what = "a NUL byte" if found.group() == "\x00" else "invalid UTF-8"
            raise InvalidInput(field, f"contains {what} at position {found.start()}")
    return text


def check_name(field: str, text: object) -> str:
    """A one-line name: not empty, no control characters, at most 200 characters."""
    name = check_text(field, text, limit=MAX_NAME)
    if not name.strip():
        raise InvalidInput(field, "must not be empty")
    found = None if name.isprintable() else re.search(_CONTROL, name)
    if found:
        raise InvalidInput(field, f"contains a control character at position {found.start()}")
    return name


def clean_text(text: str) -> str:
    """An agent's text: what no store can keep becomes U+FFFD, so that a turn never fails to end."""
    if text.isascii() and "\x00" not in text:
        return text
    return re.sub(_UNSTORABLE, "\ufffd", text)


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
