"""Owns how foreign text appears in what an agent is sent: quoted, and shortened visibly. Light: hook processes read it.

A quoted line begins with ``> ``, so that no foreign text can look like a line of Holdfast.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.domain.inputs import clean_text, utf8_size


def quoted(text: str, limit: int) -> str:
    """Every line after ``> ``; of a text with more than ``limit`` characters the beginning and the end."""
    lines = clean_text(shortened(text, limit)).splitlines() or [""]
    return "\n".join(f"> {line}" if line else ">" for line in lines)


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters: the middle is left out, and a note says how much. The note alone may be longer."""
    if len(text) <= limit:
        return text
    kept = max(0, limit - len(_note(len(text))))
    tail = kept // 3
    return f"{text[: kept - tail]}{_note(len(text) - kept)}{text[len(text) - tail :]}"


def _note(characters: int) -> str:
    return f"\n[... {characters:,} characters left out ...]\n"


def on_one_line(text: str, limit: int) -> str:
    """The text on one line; of more than ``limit`` characters the beginning."""
    line = " ".join(clean_text(text[: 2 * limit]).split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[:limit]} [...]"


def fitted(render: Callable[[int], str], limit: int, size: int) -> str:
    """Calls ``render`` with lower and lower limits until the text fits into ``size`` bytes; "" if it never does."""
    text = render(limit)
    while utf8_size(text) > size and limit > 0:
        limit = max(0, limit * size // utf8_size(text) - 1)
        text = render(limit)
    return text if utf8_size(text) <= size else ""
