"""Owns making text of others harmless: nothing from a store moves the cursor, colours or breaks a line."""

from __future__ import annotations

import json
import re

# Escape sequences begin with a control character; the others reorder or hide what stands beside them.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_LINE_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029 ]+")


def one_line(text: object, limit: int | None = None) -> str:
    """The text on a single line: breaks become spaces, what is harmful becomes visible, like ``\\x1b``."""
    words = str(text)
    if limit is not None and len(words) > limit:
        words = words[:limit].rstrip() + "…"
    return visible(_LINE_BREAKS.sub(" ", words)).strip()


def visible(line: str) -> str:
    """A line with what is harmful written out; tabs stay."""
    return "\t".join(_HARMFUL.sub(_escaped, part) for part in line.split("\t"))


def harmless_json(text: str) -> str:
    """JSON that says the same, with nothing harmful left bare in its strings."""
    return _HARMFUL.sub(lambda found: json.dumps(found.group())[1:-1], text)


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")
