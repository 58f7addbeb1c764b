"""Owns the form of an answer: a few blocks, lines or one JSON object, on a terminal or in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from holdfast.cli.escape import escape_json, one_line, visible
from holdfast.clock import Instant, seconds_between

SCHEMA_VERSION = 1


def prepare() -> None:
    """Replaces characters that the locale cannot encode, so that writing never fails."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def document(content: Mapping[str, object]) -> None:
    """Prints one JSON object: indented on a terminal, on one line otherwise."""
    whole = {"schema_version": SCHEMA_VERSION, **content}
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(whole, ensure_ascii=not utf8, indent=2 if is_terminal() else None, default=str)
    _write("\n".join(map(escape_json, text.split("\n"))))


def json_line(content: Mapping[str, object]) -> None:
    """Prints one JSON object on one line and flushes, for programs that follow the output."""
    _write(escape_json(json.dumps({"schema_version": SCHEMA_VERSION, **content}, default=str)))
    flush()


def flush() -> None:
    """Passes on what was written so far to programs that follow the output."""
    if sys.stdout is not None:
        sys.stdout.flush()


def line(*fields: object) -> None:
    """Prints the fields on one line, separated by tabs, for a pipe; an empty field is a dash."""
    _write("\t".join(one_line(field) or "-" for field in fields))


def say(sentence: str) -> None:
    _write(one_line(sentence))


def text(content: str) -> None:
    """Prints text of several lines with control characters escaped."""
    for part in content.split("\n"):
        _write(visible(part))


def blocks(content: Sequence[Block]) -> None:
    if is_terminal():
        from holdfast.cli import terminal  # rich is for terminals only

        terminal.show(content)
    else:
        _write(plain(content).rstrip("\n"))


def _write(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.write(f"{text}\n")


# --- blocks: the same answer for a terminal and for a pipe ---
# Named tuples: `holdfast --version` passes by here and loads nothing of the domain.


class Tone(Enum):
    PLAIN = auto()
    STRONG = auto()
    DIM = auto()
    GOOD = auto()
    WARN = auto()
    BAD = auto()


class Cell(NamedTuple):
    """One line of escaped text; made by ``cell``."""

    text: str
    tone: Tone = Tone.PLAIN


def cell(text: object, tone: Tone = Tone.PLAIN, *, limit: int | None = None, indent: int = 0) -> Cell:
    return Cell(" " * indent + one_line(text, limit), tone)


class Column(NamedTuple):
    title: str
    whole: bool = False  #: never shortened, even on a narrow terminal
    wraps: bool = False  #: continued on the next line instead of being cut


class Table(NamedTuple):
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Fields(NamedTuple):
    rows: tuple[tuple[str, Cell], ...]


class Line(NamedTuple):
    content: Cell


Block: TypeAlias = Table | Fields | Line


def plain(blocks: Sequence[Block]) -> str:
    """Returns the blocks as text without colours, one row on each line."""
    return "\n".join(_plain_block(block) for block in blocks)


def _plain_block(block: Block) -> str:
    match block:
        case Line(content):
            return f"{content.text}\n"
        case Fields(rows):
            return _aligned([(label, value.text) for label, value in rows])
        case Table(columns, rows):
            titles = tuple(column.title for column in columns)
            return _aligned([titles, *(tuple(c.text for c in row) for row in rows)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


# --- times ---


def duration(seconds: float) -> str:
    """Returns a duration in the largest unit that fits: ``42s``, ``4m``, ``3h``, ``12d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def age(then: Instant, now: Instant) -> str:
    return duration(seconds_between(then, now))
