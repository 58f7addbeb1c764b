"""Owns the form of an answer: a few blocks, lines or one JSON object, on a terminal or in a pipe."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from holdfast.clock import Instant, to_datetime, to_iso
from holdfast.domain.records import record
from holdfast.domain.usage import cost_words
from holdfast.escape import escape_json, one_line, visible

SCHEMA_VERSION = 1
_COMMAND = re.compile(r"\b(?:holdfast|npm|pipx) [^;,()]+")


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def can_draw() -> bool:
    """Whether the terminal can do more than print one line after the other."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def document(content: Mapping[str, object]) -> None:
    """Prints one JSON object: indented on a terminal, on one line otherwise."""
    whole = {"schema_version": SCHEMA_VERSION, **content}
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(whole, ensure_ascii=not utf8, indent=2 if is_terminal() else None, default=str)
    _put("\n".join(map(escape_json, text.split("\n"))))


def json_line(content: Mapping[str, object]) -> None:
    """Prints one JSON object on one line and flushes, for programs that follow the output."""
    _put(escape_json(json.dumps({"schema_version": SCHEMA_VERSION, **content}, default=str)))
    flush()


def flush() -> None:
    """Passes on what was written so far to programs that follow the output."""
    if sys.stdout is not None:
        sys.stdout.flush()


def line(*fields: object) -> None:
    """Prints the fields on one line, separated by tabs, for a pipe; an empty field is a dash."""
    _put("\t".join(one_line(field) or "-" for field in fields))


def say(sentence: str) -> None:
    _put(one_line(sentence))


def tell(sentence: str) -> None:
    """Prints a sentence beside the answer, to standard error; on a terminal, lines end between words."""
    if sys.stderr is None:
        return
    text = f"holdfast: {one_line(sentence)}"
    if sys.stderr.isatty() and can_draw():
        text = _folded(text)
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _folded(text: str) -> str:
    """Lines that fit. A command stays on one line, however long: somebody will copy it."""
    import shutil
    import textwrap

    columns = shutil.get_terminal_size().columns
    if len(text) <= columns:
        return text
    kept = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(kept, columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def text(content: str) -> None:
    """Prints text of several lines with control characters escaped."""
    for part in content.split("\n"):
        _put(visible(part))


def blocks(content: Sequence[Block]) -> None:
    if is_terminal():
        from holdfast.cli import terminal  # rich is for terminals only

        terminal.show(content)
    else:
        _put(plain(content).rstrip("\n"))


def write(text: str) -> None:
    """Prints text that is escaped already, as it is."""
    if sys.stdout is not None:
        sys.stdout.write(text)


def _put(text: str) -> None:
    write(f"{text}\n")


# --- blocks: the same answer for a terminal and for a pipe ---


class Tone(Enum):
    PLAIN = auto()
    STRONG = auto()
    DIM = auto()
    GOOD = auto()
    WARN = auto()
    BAD = auto()


@record
class Cell:
    """One line of escaped text; made by ``cell``."""

    text: str
    tone: Tone = Tone.PLAIN


def cell(text: object, tone: Tone = Tone.PLAIN, *, limit: int | None = None, indent: int = 0) -> Cell:
    return Cell(" " * indent + one_line(text, limit), tone)


@record
class Column:
    title: str
    whole: bool = False  #: never shortened, even on a narrow terminal
    wraps: bool = False  #: continued on the next line instead of being cut


@record
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@record
class Fields:
    rows: tuple[tuple[str, Cell], ...]


@record
class Line:
    content: Cell


@record
class Paragraph:
    """Lines without a space between them, each of several cells, and a command to copy; all but the first are indented."""

    lines: tuple[tuple[Cell, ...], ...]
    command: Cell


Block = Table | Fields | Line | Paragraph


def plain(blocks: Sequence[Block]) -> str:
    """Returns the blocks as text without colours, one row on each line."""
    return "\n".join(_plain_block(block) for block in blocks)


def _plain_block(block: Block) -> str:
    match block:
        case Line(content):
            return f"{content.text}\n"
        case Paragraph(lines, command):
            every = (*lines, (command,))
            return "".join(
                f"{'  ' if n else ''}{''.join(c.text for c in one)}\n" for n, one in enumerate(every)
            )
        case Fields(rows):
            return _aligned([(label, value.text) for label, value in rows])
        case Table(columns, rows):
            titles = tuple(column.title for column in columns)
            return _aligned([titles, *(tuple(c.text for c in row) for row in rows)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


# --- money and times ---


def money(cost_usd: float) -> str:
    """A dash if it is not known: no turn is free, but not every agent says what it costs."""
    return cost_words(cost_usd) if cost_usd else "–"


def long_ago(seconds: float) -> str:
    """A time ago as a sentence says it: ``just now``, ``2 hours ago``."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def local(instant: Instant) -> str:
    """The moment on the clock of whoever looks at the terminal."""
    try:
        return f"{to_datetime(instant).astimezone():%Y-%m-%d %H:%M:%S}"
    except OverflowError:  # an agent's own session may claim to be of the year 9999
        return to_iso(instant)


def moment(instant: Instant) -> str:
    """Local for a person at a terminal, ISO for a program behind a pipe."""
    return local(instant) if is_terminal() else to_iso(instant)
