"""Owns the packet: where the work of a session stands, to hand it over, as a record and as JSON."""

from __future__ import annotations

from holdfast.clock import to_iso
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.records import record
from holdfast.domain.telling.answers import ToldAnswer, answer_document
from holdfast.domain.telling.reasons import Because
from holdfast.domain.telling.tool_calls import ToolCall

PACKET_SCHEMA_VERSION = 1


@record
class GroundTruth:
    """What the work directory itself says; ``problem`` if it cannot be asked."""

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
        """Something was begun whose end nobody knows."""
        return self.interrupted or bool(self.in_flight)

    @property
    def next_step(self) -> str:
        if self.in_flight:
            return "Find out what the calls in flight did; only then go on."
        if self.interrupted:
            return f"Turn {self.next_turn} was begun before: look at what is already done, then finish it."
        if self.failures and self.turns and self.failures[-1].turn == self.turns[-1].seq:
            return f"Turn {self.failures[-1].turn} failed: look at what is already done before repeating any of it."
        return f"Take up the request of turn {self.next_turn}."


def packet_document(packet: Packet) -> dict[str, object]:
    """The packet as plain JSON."""
    truth = packet.ground_truth
    return {
        "schema_version": PACKET_SCHEMA_VERSION,
        "session_id": packet.session_id,
        "agent": packet.agent,
        "why_fresh": {"reason": packet.why_fresh.reason.value, "words": packet.why_fresh.sentence},
        "goal": packet.goal,
        "phase": packet.phase,
        "step": {"turn": packet.next_turn, "interrupted": packet.interrupted},
        "ground_truth": {
            "work_dir": truth.work_dir,
            "branch": truth.branch,
            "head": truth.head,
            "status": truth.status,
            "diff_stat": truth.diff_stat,
            "problem": truth.problem,
        },
        "turns": [_turn_document(turn) for turn in packet.turns],
        "tool_calls": [_call_document(call) for call in packet.tool_calls],
        "in_flight": [_call_document(call) for call in packet.in_flight],
        "artifacts": list(packet.artifacts),
        "open_approval": packet.open_approval,
        "answers": [answer_document(answer) for answer in packet.answers],
        "decisions": [
            {"turn": s.turn, "attempt": s.attempt, "decision": s.decision, "reason": s.reason, "status": s.status}
            for s in packet.starts
        ],
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
