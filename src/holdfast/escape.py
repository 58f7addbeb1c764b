"""Owns escaping text for people: no text from a store moves the cursor, changes colours, breaks a line or reorders it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

# Control characters begin escape sequences; the others here reorder or hide the text beside them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_LINE_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029 ]+")


def one_line(text: object, limit: int | None = None) -> str:
    """Returns the text on a single line: line breaks become spaces, unsafe characters are written out, like ``\\x1b``."""
    words = str(text)
    if limit is not None and len(words) > limit:
        words = words[:limit].rstrip() + "…"
    return visible(_LINE_BREAKS.sub(" ", words)).strip()


def visible(line: str) -> str:
    """Writes out the unsafe characters of a line; tabs stay."""
    return "\t".join(_UNSAFE.sub(_escaped, part) for part in line.split("\t"))


def lines(text: str) -> Iterator[str]:
    """The lines of a text, each with its unsafe characters written out."""
    return map(visible, text.replace("\r\n", "\n").split("\n"))


def escape_json(text: str) -> str:
    """Returns JSON with the same content and every unsafe character in its strings escaped."""
    return _UNSAFE.sub(lambda found: json.dumps(found.group())[1:-1], text)


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")
