"""Owns a history as text: oldest turn first, the newest kept, within a budget, every cut visible."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.telling.quoting import fitted, on_one_line, quoted
from holdfast.domain.text import utf8_size

#: no turn is shorter than this in a transcript: more turns than fit in that way need not be read
LEAST_TURN_BYTES = 40

_GAP = "\n\n"
_AGENT = 60


def transcript(history: Sequence[HistoryTurn], size: int, message_characters: int) -> str:
    """At most ``size`` bytes. Turns that do not fit are left out from the oldest on, and counted.

    The newest one is there if anything is: its messages are shortened until it fits.
    """
    whole = whole_transcript(history, size, message_characters)
    if whole is not None:
        return whole
    note = _left_out(history)
    room = size - utf8_size(note) - len(_GAP)
    newest = fitted(lambda limit: _turn(history[-1], limit), message_characters, room)
    if not newest:
        return note if utf8_size(note) <= size else ""
    kept = [newest]
    room -= utf8_size(newest)
    for turn in reversed(history[:-1]):
        text = _turn(turn, message_characters)
        room -= utf8_size(text) + len(_GAP)
        if room < 0:
            break
        kept.append(text)
    omitted = history[: len(history) - len(kept)]
    return _GAP.join([*([_left_out(omitted)] if omitted else []), *reversed(kept)])


def whole_transcript(history: Sequence[HistoryTurn], size: int, message_characters: int) -> str | None:
    """Every turn, or None if that is more than ``size`` bytes. A message that is too long is still cut."""
    if len(history) * LEAST_TURN_BYTES > size:
        return None
    texts: list[str] = []
    room = size + len(_GAP)
    for turn in reversed(history):
        texts.append(_turn(turn, message_characters))
        room -= utf8_size(texts[-1]) + len(_GAP)
        if room < 0:
            return None
    return _GAP.join(reversed(texts))


def _turn(turn: HistoryTurn, message_characters: int) -> str:
    heading = f"Turn {turn.seq}, agent {on_one_line(turn.agent, _AGENT)}, {turn.status}."
    lines = [heading, "Request:", quoted(turn.prompt, message_characters)]
    if turn.response is None:
        return "\n".join([*lines, "No answer."])
    return "\n".join([*lines, "Answer:", quoted(turn.response, message_characters)])


def _left_out(omitted: Sequence[HistoryTurn]) -> str:
    characters = sum(len(turn.prompt) + len(turn.response or "") for turn in omitted)
    turns = "1 earlier turn" if len(omitted) == 1 else f"{len(omitted):,} earlier turns"
    return f"[... {turns} left out, {characters:,} characters ...]"
