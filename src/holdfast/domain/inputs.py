"""Owns which texts and numbers may enter the store: a person's input is checked, an agent's text is cleaned."""

from __future__ import annotations

import re

from holdfast.errors import InvalidInput

MAX_NAME = 200
MAX_TEXT = 16 * 1024 * 1024
MAX_NUMBER = 2**53  #: every JSON reader keeps whole numbers up to this one exactly

# compiled when they are used: nearly every text is ASCII, or printable, and hook processes import this module
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
_UNSTORABLE = "[\x00\ud800-\udfff]"


def check_text(field: str, text: object, *, limit: int = MAX_TEXT) -> str:
    """Checks a person's text. Raises InvalidInput if a store could not keep it unchanged."""
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
    """Checks a one-line name: not empty, no control characters, at most 200 characters."""
    name = check_text(field, text, limit=MAX_NAME)
    if not name.strip():
        raise InvalidInput(field, "must not be empty")
    found = None if name.isprintable() else re.search(_CONTROL, name)
    if found:
        raise InvalidInput(field, f"contains a control character at position {found.start()}")
    return name


def clean_text(text: str) -> str:
    """Cleans an agent's text: characters that no store can keep become U+FFFD, so that the turn can always end."""
    if text.isascii() and "\x00" not in text:
        return text
    return re.sub(_UNSTORABLE, "\ufffd", text)


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def check_whole(field: str, number: object, *, lowest: int = 0) -> int:
    """Checks a whole number. Raises InvalidInput unless it is between ``lowest`` and ``MAX_NUMBER``."""
    if type(number) is not int:
        raise InvalidInput(field, f"must be a whole number, not {type(number).__name__}")
    if not lowest <= number <= MAX_NUMBER:
        raise InvalidInput(field, f"must be between {lowest} and {MAX_NUMBER}")
    return number
