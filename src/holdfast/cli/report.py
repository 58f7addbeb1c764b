"""Owns the form of an answer to a person: a few blocks, the same for a terminal and for a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from holdfast.cli.harmless import one_line


class Tone(Enum):
    PLAIN = auto()
    STRONG = auto()
    DIM = auto()
    GOOD = auto()
    WARN = auto()
    BAD = auto()


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of harmless text; made by ``cell``."""

    text: str
    tone: Tone = Tone.PLAIN


def cell(text: object, tone: Tone = Tone.PLAIN, *, limit: int | None = None, indent: int = 0) -> Cell:
    return Cell(" " * indent + one_line(text, limit), tone)


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    whole: bool = False  #: never shortened, however narrow the terminal
    wraps: bool = False  #: goes on in the next line instead of being cut


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Fields:
    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class Line:
    content: Cell


Block: TypeAlias = Table | Fields | Line


def plain(blocks: Sequence[Block]) -> str:
    """The blocks as text without colours, one row a line."""
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
