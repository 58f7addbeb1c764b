"""Owns the past as text: oldest turn first, within a budget; older turns are shortened before any is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.domain.conversations import HistoryTurn, SeenTurns
from holdfast.domain.inputs import utf8_size
from holdfast.domain.records import record, replace
from holdfast.domain.telling.quoting import fitted, on_one_line, quoted
from holdfast.domain.telling.tool_calls import ToolCall
from holdfast.domain.turns import AttemptSummary, TurnStatus

#: no turn takes fewer bytes in a transcript, so more turns than fit at this size need not be read
LEAST_TURN_BYTES = 40
#: characters of a request or an answer that is shortened to its first line
FIRST_LINE_CHARACTERS = 200
_FIRST_LINES = (FIRST_LINE_CHARACTERS, 80)
#: of a tool's result that is shortened
RESULT_CHARACTERS = 500

_GAP = "\n\n"
_AGENT = 60
_ON_A_LINE = 300
_MOST_RANGES = 6  #: that are listed one by one
_NOTE_BYTES = 700  #: kept free for the line that says what was cut
#: lines of Holdfast in a transcript; quoted lines begin with ``> ``
_TOLD = re.compile(r"^Turn ([0-9]{1,18}), agent ", re.MULTILINE)
_LEFT_OUT_TURNS = re.compile(r"^\[\.\.\. turns? ([0-9, -]+) (?:is|are) left out", re.MULTILINE)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@record
class PastTurn:
    """One turn as an agent is told of it: its request, its tool calls, its answer."""

    turn: HistoryTurn
    calls: tuple[ToolCall, ...] = ()
    is_outline: bool = False  #: only the beginnings of its texts were read, and none of its calls
    is_unread: bool = False  #: it is there, and nothing of it was read
    calls_unread: bool = False  #: its texts are whole, and its calls were not read
    older_calls: int = 0  #: that came before ``calls``, and were not read
    begun_before: bool = False  #: the turn that is about to run: its request follows by itself
    attempts: tuple[AttemptSummary, ...] = ()  #: oldest first; the packet tells how each began and ended

    @property
    def is_whole(self) -> bool:
        """Its texts, its newest calls and its attempts were read."""
        return not (self.is_outline or self.is_unread or self.calls_unread)


@record
class Cuts:
    """Which parts of the past are shortened or left out."""

    left_out: tuple[int, ...] = ()  #: turns
    first_lines: tuple[int, ...] = ()  #: turns
    without_calls: tuple[int, ...] = ()  #: turns that are told without their tool calls
    calls: int = 0  #: of turns that are told: calls that are left out, the oldest of their turn
    messages: int = 0  #: requests and answers whose middle is left out
    results: int = 0  #: results of tools, and their arguments, that are cut
    unrecorded: int = (
        0  #: how many of those were cut when they were recorded, so that the rest does not exist
    )

    def __bool__(self) -> bool:
        turns = self.left_out or self.first_lines or self.without_calls
        return bool(turns or self.calls or self.messages or self.results)

    @property
    def words(self) -> str:
        """All cuts in one line; "" if there are none."""
        parts = []
        if self.left_out:
            parts.append(f"{_turns(self.left_out)} left out")
        if self.first_lines:
            parts.append(f"{_turns(self.first_lines)} summarised to {_their(self.first_lines)} first lines")
        if self.without_calls:
            parts.append(f"the tool calls of {_numbers(self.without_calls)} not listed")
        if self.calls:
            parts.append(f"{_counted(self.calls, 'tool call')} left out")
        shortened = [
            _counted(n, what) for n, what in ((self.messages, "message"), (self.results, "tool result")) if n
        ]
        if shortened:
            parts.append(f"{' and '.join(shortened)} shortened")
        if self.unrecorded:
            parts.append(f"the rest of {_counted(self.unrecorded, 'tool result')} was not recorded")
        return "; ".join(parts)


@record
class PastTold:
    """How much of the past a text contains."""

    turns: tuple[int, ...] = ()  #: told of, in full or in part
    cuts: Cuts = Cuts()

    @property
    def covers(self) -> SeenTurns:
        """All turns that the text contains, or says that it leaves out."""
        return SeenTurns(ranges(sorted({*self.turns, *self.cuts.left_out})))


NOTHING_TOLD = PastTold()


@record
class Told:
    text: str
    past: PastTold = NOTHING_TOLD


def past_document(past: PastTold) -> dict[str, object]:
    """As plain JSON; turns are ranges."""
    cuts = past.cuts
    return {
        "turns": ranges_text(ranges(past.turns)),
        "left_out": ranges_text(ranges(cuts.left_out)),
        "first_lines": ranges_text(ranges(cuts.first_lines)),
        "without_tool_calls": ranges_text(ranges(cuts.without_calls)),
        "tool_calls_left_out": cuts.calls,
        "messages_shortened": cuts.messages,
        "tool_results_shortened": cuts.results,
        "tool_results_unrecorded": cuts.unrecorded,
    }


@record
class _Rendered:
    text: str
    messages: int = 0  #: that were shortened
    results: int = 0
    unrecorded: int = 0  #: of the results
    in_short: bool = False  #: by its first lines


_LEFT_OUT = _Rendered("")


def transcript(past: Sequence[PastTurn], size: int, message_characters: int, where: str = "") -> Told:
    """At most ``size`` bytes. The newest turns are whole; what does not fit is shortened before it is left out.

    The first line names every cut, and ``where`` the whole text is found. The newest turn is left out last: its
    messages are shortened until it fits.
    """
    whole = _whole(past, size)
    if whole is not None:
        return whole
    room = size - _NOTE_BYTES if size > 2 * _NOTE_BYTES else size // 2
    newest = _newest(past[-1], room, message_characters)
    room -= utf8_size(newest.text)
    outlines = _outlines(past[:-1], room)
    spare = room - sum(utf8_size(each.text) + len(_GAP) for each in outlines)
    rendered = [newest]
    for each, outline in zip(reversed(past[:-1]), outlines, strict=False):
        chosen = _most_that_fits(each, spare + utf8_size(outline.text), message_characters) or outline
        spare -= utf8_size(chosen.text) - utf8_size(outline.text)
        rendered.append(chosen)
    rendered += [_LEFT_OUT] * (len(past) - len(rendered))
    return _assembled(past, rendered[::-1], where, size)


def read_transcript(text: str) -> SeenTurns:
    """The turns that a transcript in ``text`` tells of, or says that it leaves out."""
    found = [(seq, "") for seq in _TOLD.findall(text)]
    for listed in _LEFT_OUT_TURNS.findall(text):
        found += _RANGE.findall(listed)
    told = SeenTurns()
    for first, last in found:
        told = told.union(SeenTurns(((int(first), int(last or first)),)))
    return told


def _whole(past: Sequence[PastTurn], size: int) -> Told | None:
    """Every turn in its own words, or None if that is more than ``size`` bytes."""
    if not past:
        return Told("")
    if len(past) * LEAST_TURN_BYTES > max(size, 0) or not all(map(_is_read, past)):
        return None
    texts: list[str] = []
    room = size + len(_GAP)
    for each in reversed(past):
        texts.append(_render(each, None, None).text)
        room -= utf8_size(texts[-1]) + len(_GAP)
        if room < 0:
            return None
    return Told(_GAP.join(reversed(texts)), PastTold(tuple(each.turn.seq for each in past)))


def _newest(newest: PastTurn, room: int, message_characters: int) -> _Rendered:
    best = _most_that_fits(newest, room, message_characters)
    if best is not None:
        return best
    rendered = _render(newest, 0, 0)

    def at(limit: int) -> str:
        nonlocal rendered
        rendered = _render(newest, limit, min(limit, RESULT_CHARACTERS))
        return rendered.text

    text = "" if newest.is_outline else fitted(at, message_characters, room)
    return (
        replace(rendered, text=text)
        if text
        else _Rendered(fitted(lambda _: _outline(newest), 0, room), in_short=True)
    )


def _outlines(older: Sequence[PastTurn], room: int) -> list[_Rendered]:
    """The first lines of those that fit, the newest first: of all in half of the room, else of most in more."""
    found: list[_Rendered] = []
    for characters in _FIRST_LINES:
        found = [
            _Rendered(_outline(each, characters), in_short=True)
            for each in reversed(older)
            if not each.is_unread
        ]
        if sum(utf8_size(each.text) + len(_GAP) for each in found) <= room // 2:
            return found
    room = room * 3 // 4
    for number, each in enumerate(found):
        room -= utf8_size(each.text) + len(_GAP)
        if room < 0:
            return found[:number]
    return found


def _most_that_fits(each: PastTurn, room: int, message_characters: int) -> _Rendered | None:
    if each.is_outline:
        return None
    for limits in ((None, None), (message_characters, RESULT_CHARACTERS)):
        rendered = _render(each, *limits)
        if utf8_size(rendered.text) <= room:
            return rendered
    return None


def _assembled(past: Sequence[PastTurn], rendered: Sequence[_Rendered], where: str, size: int) -> Told:
    told = [(each.turn.seq, each, how) for each, how in zip(past, rendered, strict=True)]
    cuts = Cuts(
        left_out=tuple(seq for seq, _, how in told if not how.text),
        first_lines=tuple(seq for seq, _, how in told if how.text and how.in_short),
        without_calls=tuple(
            seq for seq, each, how in told if how.text and not how.in_short and each.calls_unread
        ),
        calls=sum(each.older_calls for _, each, how in told if how.text and not how.in_short),
        messages=sum(how.messages for how in rendered),
        results=sum(how.results for how in rendered),
        unrecorded=sum(how.unrecorded for how in rendered),
    )
    note = f"[... {cuts.words}{f'; {where}' if where else ''} ...]" if cuts else ""
    texts = [text for text in (note, *(how.text for how in rendered)) if text]
    while texts and utf8_size(_GAP.join(texts)) > size:
        del texts[0]  # with a tiny budget, the newest turn matters more than the line about cuts
    return Told(_GAP.join(texts), PastTold(tuple(seq for seq, _, how in told if how.text), cuts))


def _render(each: PastTurn, message_characters: int | None, result_characters: int | None) -> _Rendered:
    """None: as much as there is."""
    turn = each.turn
    lines, cut = [_heading(each)], 0
    if not each.begun_before:
        lines += ["Request:", quoted(turn.prompt, _limit(turn.prompt, message_characters))]
        cut += _is_longer(turn.prompt, message_characters)
    results = unrecorded = 0
    if each.calls:
        older = f" ({_counted(each.older_calls, 'earlier one')} left out)" if each.older_calls else ""
        lines.append(f"Tool calls{older}:")
        for call in each.calls:
            lines.append(_call(call, _limit(call.arguments, result_characters)))
            if call.output:
                lines.append(quoted(call.output, _limit(call.output, result_characters)))
            longer = (_is_longer(text, result_characters) for text in (call.arguments, call.output))
            results += max(sum(longer), call.unrecorded)
            unrecorded += call.unrecorded
    if turn.response is not None:
        lines += ["Answer:", quoted(turn.response, _limit(turn.response, message_characters))]
        cut += _is_longer(turn.response, message_characters)
    elif not each.begun_before:
        lines.append(no_answer(turn))
    return _Rendered("\n".join(lines), cut, results, unrecorded)


def _outline(each: PastTurn, characters: int = FIRST_LINE_CHARACTERS) -> str:
    """The turn by the first lines of its texts."""
    turn = each.turn
    lines = [_heading(each)]
    if not each.begun_before:
        lines.append(f"Request: {on_one_line(turn.prompt, characters)}")
    if each.calls:
        lines.append(f"{_counted(len(each.calls) + each.older_calls, 'tool call')}, not listed.")
    if turn.response is not None:
        lines.append(f"Answer: {on_one_line(turn.response, characters)}")
    elif not each.begun_before:
        lines.append(no_answer(turn))
    return "\n".join(lines)


def _heading(each: PastTurn) -> str:
    turn = each.turn
    agent = f"agent {on_one_line(turn.agent, _AGENT)}"
    if each.begun_before:
        return f"Turn {turn.seq}, {agent}, was begun before and did not end; its request follows below."
    return f"Turn {turn.seq}, {agent}, {turn.status}."


def no_answer(turn: HistoryTurn) -> str:
    if turn.failure is None:
        # a turn that was made outside Holdfast and broken off is done, too, but was never begun here
        is_answered = turn.status is TurnStatus.DONE and turn.attempts > 0
        return "An empty answer, or one that was too long to be read." if is_answered else "No answer."
    why = f"{turn.failure.failure_class}: {turn.failure.message}"
    return f"No answer ({on_one_line(why, _ON_A_LINE)})."


def _call(call: ToolCall, limit: int) -> str:
    tool, arguments = on_one_line(call.tool, _ON_A_LINE), on_one_line(call.arguments, limit)
    return f"- {call.outcome.words}: {tool} {arguments}"


def _limit(text: str, characters: int | None) -> int:
    return len(text) if characters is None else characters


def _is_longer(text: str, characters: int | None) -> bool:
    return characters is not None and len(text) > characters


def _is_read(past: PastTurn) -> bool:
    """Whether the whole turn was read and recorded."""
    return past.is_whole and not past.older_calls and not any(call.unrecorded for call in past.calls)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _turns(seqs: Sequence[int]) -> str:
    return f"{_numbers(seqs)} {'is' if len(seqs) == 1 else 'are'}"


def _their(seqs: Sequence[int]) -> str:
    return "its" if len(seqs) == 1 else "their"


def _numbers(seqs: Sequence[int]) -> str:
    found = ranges(seqs)
    if len(found) > _MOST_RANGES:
        return f"{len(seqs):,} of the turns {seqs[0]}-{seqs[-1]}"
    return f"turn{'' if len(seqs) == 1 else 's'} {ranges_text(found)}"


def ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Sorted numbers as ranges without gaps."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


def ranges_text(found: Iterable[tuple[int, int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
