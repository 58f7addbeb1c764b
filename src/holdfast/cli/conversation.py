"""Owns a conversation as a person reads it: on a terminal in a pager, in a pipe as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from holdfast.cli.output import Cell, Tone, cell, local
from holdfast.domain.telling.tool_calls import CallOutcome
from holdfast.domain.turns import TurnStatus
from holdfast.engine.reading import (
    Answers,
    AttemptBegins,
    CallEnds,
    Notes,
    Piece,
    Reader,
    Says,
    TurnBegins,
    TurnEnds,
)
from holdfast.engine.session_log import AuditEntry
from holdfast.escape import lines, one_line

#: Text of agents is indented: only a line of ours begins at the edge.
INDENT: Final = 2
QUOTE: Final = "> "
#: a longer text is shown as it is: laying it out would take long
LONGEST_MARKDOWN: Final = 64 * 1024
_LONGEST = 300

_CALL_TONES: Final = {CallOutcome.OK: Tone.GOOD, CallOutcome.ERROR: Tone.BAD}
_TURN_TONES: Final = {TurnStatus.DONE: Tone.DIM, TurnStatus.FAILED: Tone.BAD}


class Sheet(Protocol):
    """How each part of a conversation is written; every one ends with a line break."""

    def heading(self, cell: Cell) -> str: ...

    def line(self, cell: Cell) -> str: ...

    def folded(self, mark: Cell, words: str, note: str) -> str: ...

    def prompt(self, text: str) -> str: ...

    def markdown(self, text: str) -> str: ...


class PlainSheet:
    """Without colours or a width: for a pipe."""

    def heading(self, cell: Cell) -> str:
        return f"{cell.text}\n"

    def line(self, cell: Cell) -> str:
        return f"{' ' * INDENT}{cell.text}\n"

    def folded(self, mark: Cell, words: str, note: str) -> str:
        return f"{' ' * INDENT}{mark.text} {words}{f'  {note}' if note else ''}\n"

    def prompt(self, text: str) -> str:
        return plain_prompt(text)

    def markdown(self, text: str) -> str:
        return plain_prose(text)


def plain_prompt(text: str) -> str:
    return "".join(f"{' ' * INDENT}{QUOTE}{line}".rstrip() + "\n" for line in lines(text))


def plain_prose(text: str) -> str:
    return "".join(f"{' ' * INDENT}{line}".rstrip() + "\n" for line in lines(text))


def opening(reader: Reader, sheet: Sheet) -> str:
    """Which session it is."""
    shown = ("session", "name", "agent", "provider", "forked from")
    facts = (f"{name} {value}" for name, value in reader.facts(local) if name in shown)
    return sheet.heading(cell(" · ".join(facts), Tone.STRONG))


def conversation(pieces: Iterable[Piece | None], sheet: Sheet) -> Iterator[str]:
    """The pieces as text; "" for each None. Calls that follow each other stand together."""
    was_folded = False
    for piece in pieces:
        text = "" if piece is None else _text(piece, sheet)
        is_folded = isinstance(piece, CallEnds)
        gap = "\n" if text and not (is_folded and was_folded) else ""
        was_folded = is_folded if text else was_folded
        yield gap + text


def _text(piece: Piece, sheet: Sheet) -> str:
    match piece:
        case TurnBegins(read):
            words = (f"Turn {read.turn.seq}", local(read.turn.at), *read.marks)
            return sheet.heading(cell(" · ".join(words), Tone.STRONG)) + sheet.prompt(read.turn.prompt)
        case Says(text) | Answers(text):
            return sheet.markdown(text)
        case CallEnds(call):
            mark = Cell(piece.mark, _CALL_TONES.get(call.outcome, Tone.WARN))
            return sheet.folded(mark, one_line(call.words, _LONGEST), one_line(piece.note, _LONGEST))
        case Notes(text):
            return sheet.line(cell(text, Tone.DIM))
        case AttemptBegins():
            return sheet.line(cell(piece.words, Tone.WARN))
        case TurnEnds():
            words = tuple(filter(None, (piece.words(local), piece.spent)))
            tone = _TURN_TONES.get(piece.read.turn.status, Tone.WARN)
            return sheet.line(cell(", ".join(words), tone)) if words else ""
        case AuditEntry():
            by = "" if piece.by is None else f" (by {piece.by})"
            return sheet.heading(cell(f"{local(piece.at)} · {piece.kind}: {piece.words}{by}"))
