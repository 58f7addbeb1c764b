"""Owns the packet: where the work of a session stands, to hand it over, as a record, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict

from holdfast.clock import to_iso
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Because
from holdfast.domain.inputs import utf8_size
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.records import record
from holdfast.domain.telling.answers import ToldAnswer, answers_text
from holdfast.domain.telling.quoting import fitted, on_one_line, quoted
from holdfast.domain.telling.tool_calls import ToolCall
from holdfast.domain.telling.transcript import PastTurn, transcript
from holdfast.domain.usage import BYTES_PER_TOKEN

PACKET_SCHEMA_VERSION = 1
_ON_A_LINE = 300  #: characters of one thing in a list


@record
class GroundTruth:
    """What git says about the work directory; ``problem`` if it cannot be asked."""

    work_dir: str | None
    branch: str = ""
    head: str = ""
    status: str = ""
    diff_stat: str = ""
    problem: str = ""


@record
class Start:
    """How a turn was started: the decision of one attempt, and how that ended."""

    turn: int
    attempt: int
    decision: str
    reason: str
    status: str


@record
class TurnFailure:
    turn: int
    failure_class: str
    message: str


@record
class Packet:
    session_id: str
    agent: str
    goal: str
    phase: str
    next_turn: int
    interrupted: bool  #: the next turn was begun before and did not end
    why_fresh: Because
    ground_truth: GroundTruth
    turns: tuple[HistoryTurn, ...]  #: the newest before the next one, oldest first
    tool_calls: tuple[ToolCall, ...]  #: the newest that have ended, oldest first
    in_flight: tuple[ToolCall, ...]
    artifacts: tuple[str, ...]  #: files that tools wrote, oldest first
    starts: tuple[Start, ...]
    failures: tuple[TurnFailure, ...]
    open_approval: str | None = None
    answers: tuple[ToldAnswer, ...] = ()  #: that the agent was not told yet, oldest first

    @property
    def is_unfinished(self) -> bool:
        """Whether something was begun and its end is not known."""
        return self.interrupted or bool(self.in_flight)

    @property
    def next_step(self) -> str:
        if self.in_flight:
            return "Find out what the calls in flight did; only then continue."
        if self.interrupted:
            return f"Turn {self.next_turn} was begun before: look at what is already done, then finish it."
        if self.failures and self.turns and self.failures[-1].turn == self.turns[-1].seq:
            return f"Turn {self.failures[-1].turn} failed: look at what is already done before repeating any of it."
        return f"Take up the request of turn {self.next_turn}."


def packet_document(packet: Packet) -> dict[str, object]:
    """The packet as plain JSON; the fields of its parts are those of their records."""
    return {
        "schema_version": PACKET_SCHEMA_VERSION,
        "session_id": packet.session_id,
        "agent": packet.agent,
        "why_fresh": {"reason": packet.why_fresh.reason.value, "words": packet.why_fresh.sentence},
        "goal": packet.goal,
        "phase": packet.phase,
        "step": {"turn": packet.next_turn, "interrupted": packet.interrupted},
        "ground_truth": asdict(packet.ground_truth),
        "turns": [_turn_document(turn) for turn in packet.turns],
        "tool_calls": [_call_document(call) for call in packet.tool_calls],
        "in_flight": [_call_document(call) for call in packet.in_flight],
        "artifacts": list(packet.artifacts),
        "open_approval": packet.open_approval,
        "answers": [asdict(answer) for answer in packet.answers],
        "decisions": [asdict(start) for start in packet.starts],
        "failures": [
            {"turn": f.turn, "class": f.failure_class, "message": f.message} for f in packet.failures
        ],
        "next_step": packet.next_step,
    }  # fmt: skip


def _turn_document(turn: HistoryTurn) -> dict[str, object]:
    return {
        "seq": turn.seq,
        "agent": turn.agent,
        "status": turn.status,
        "prompt": turn.prompt,
        "response": turn.response,
        "at": to_iso(turn.at),
    }


def _call_document(call: ToolCall) -> dict[str, object]:
    return {
        "turn": call.turn,
        "tool": call.tool,
        "arguments": call.arguments,
        "outcome": call.outcome.value,
        "output": call.output,
    }


# --- Markdown: what an agent reads, within its budget, every cut visible ---


@record
class _Section:
    title: str
    rank: int  #: the section with the lowest rank gets room first
    share: int  #: the section takes at most this fraction (1/share) of the room that is left
    body: Callable[[int], str]  #: its text within so many bytes; "" if there is none


def packet_markdown(packet: Packet, policy: ContextPolicy) -> str:
    """At most ``policy.packet_tokens``, as ``estimate_tokens`` counts them.

    The ground truth and the calls in flight get room first; the turns get what the others leave.
    """
    return _markdown(packet, _sections(packet, policy), policy.packet_tokens * BYTES_PER_TOKEN)


def frame_markdown(packet: Packet, policy: ContextPolicy, size: int) -> str:
    """The packet without the parts that are sent beside it: why it is fresh, the turns, and their tool calls."""
    beside = ("Why this is a fresh session", "Answers", "Last turns", "Tool calls")
    sections = tuple(section for section in _sections(packet, policy) if section.title not in beside)
    return _markdown(packet, sections, min(size, policy.packet_tokens * BYTES_PER_TOKEN))


def _markdown(packet: Packet, sections: tuple[_Section, ...], size: int) -> str:
    lead = f"# Where the work of session {packet.session_id} stands"
    texts: dict[str, str] = {}
    room = size - utf8_size(lead)
    for section in sorted(sections, key=lambda s: s.rank):
        heading = f"\n\n## {section.title}\n\n"
        body = section.body(max(0, room - utf8_size(heading)) // section.share)
        texts[section.title] = heading + body if body else ""
        room -= utf8_size(texts[section.title])
    return lead + "".join(texts[section.title] for section in sections)


def _sections(packet: Packet, policy: ContextPolicy) -> tuple[_Section, ...]:
    """In the order in which they are read."""
    why = f"{packet.why_fresh.reason}: {packet.why_fresh.sentence}."
    turns = tuple(PastTurn(turn) for turn in packet.turns)
    in_flight = "In flight when it stopped: check before repeating"
    return (
        _Section("Why this is a fresh session", 0, 1, lambda _: why),
        _Section("Goal", 6, 4, lambda room: _quote(packet.goal, room)),
        _Section("Phase and step", 1, 1, lambda _: _step(packet)),
        _Section("Ground truth", 3, 2, lambda room: _ground_truth(packet.ground_truth, room)),
        _Section(in_flight, 4, 3, lambda room: newest_lines(map(call_line, packet.in_flight), room)),
        _Section("Open approval", 5, 4, lambda room: _quote(packet.open_approval or "", room)),
        _Section("Answers", 5, 4, lambda room: answers_text(packet.answers, room)),
        _Section("What failed", 7, 8, lambda room: newest_lines(map(_failure_line, packet.failures), room)),
        _Section("Last turns", 11, 1, lambda room: _last_turns(turns, room, policy)),
        _Section("Tool calls", 8, 4, lambda room: newest_lines(map(call_line, packet.tool_calls), room)),
        _Section("Files written", 9, 8, lambda room: newest_lines(map(_line, packet.artifacts), room)),
        _Section("How turns were started", 10, 8, lambda room: newest_lines(map(_start_line, packet.starts), room)),
        _Section("Next step", 2, 1, lambda _: packet.next_step),
    )  # fmt: skip


def _last_turns(turns: tuple[PastTurn, ...], room: int, policy: ContextPolicy) -> str:
    return transcript(turns, room, policy.message_characters).text


def _step(packet: Packet) -> str:
    again = ", begun before and not ended" if packet.interrupted else ""
    return f"Phase {packet.phase}; the next turn is {packet.next_turn}{again}."


def _ground_truth(truth: GroundTruth, room: int) -> str:
    lines = [f"- Directory: {_line(truth.work_dir or 'not known')}"]
    if truth.problem:
        lines.append(f"- {_line(truth.problem)}")
    if truth.head:
        lines += [f"- Branch: {_line(truth.branch)}", f"- HEAD: {_line(truth.head)}"]
        lines += ["- Status:", _quote(truth.status or "nothing changed", room // 3)]
    if truth.diff_stat:
        lines += ["- Changes against HEAD:", _quote(truth.diff_stat, room // 3)]
    while utf8_size("\n".join(lines)) > room:
        lines.pop()
    return "\n".join(lines)


def call_line(call: ToolCall) -> str:
    said = f": {_line(call.output)}" if call.output else ""
    return f"turn {call.turn}, {call.outcome.words}: {_line(call.tool)} {_line(call.arguments)}{said}"


def _failure_line(failure: TurnFailure) -> str:
    return f"turn {failure.turn}, {_line(failure.failure_class)}: {_line(failure.message)}"


def _start_line(start: Start) -> str:
    how = f"{start.decision} ({start.reason}), {start.status}"
    return f"turn {start.turn}, attempt {start.attempt}: {_line(how)}"


def _line(text: str) -> str:
    return on_one_line(text, _ON_A_LINE)


def _quote(text: str, room: int) -> str:
    return fitted(lambda limit: quoted(text, limit), room, room) if text else ""


def newest_lines(lines: Iterable[str], room: int) -> str:
    """A list of the newest lines that fit, with a count of the others; "" if not even that fits."""
    items = [f"- {line}" for line in lines]
    if utf8_size("\n".join(items)) <= room:
        return "\n".join(items)
    room -= utf8_size(_left_out(len(items)))
    if room < 0:
        return ""
    first = len(items)
    while room > utf8_size(items[first - 1]):  # its line break takes one more
        first -= 1
        room -= utf8_size(items[first]) + 1
    return "\n".join([_left_out(first), *items[first:]])


def _left_out(count: int) -> str:
    return f"- [... {count} earlier left out ...]"
