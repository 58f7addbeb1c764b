"""Owns the picture of one session for a person: everything that ``show`` tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.cli.listing import phase_tone, status_tone
from holdfast.cli.output import Block, Cell, Column, Fields, Line, Table, Tone, age, cell
from holdfast.clock import Instant, to_iso
from holdfast.domain.approvals import Approval
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.pointers import Pointer, ProviderSessionTotals
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.sessions import PhaseChange, Session, SessionState
from holdfast.domain.turns import LateReport
from holdfast.domain.usage import ContextState, ContextUse, Usage, context_state
from holdfast.engine.explain import Explanation

_LONGEST = 300
_MOST_LATE = 5

_TURN_COLUMNS = (
    Column("TURN", whole=True),
    Column("STATUS", whole=True),
    Column("AGENT"),
    Column("PROMPT"),
    Column("RESPONSE"),
)


@dataclass(frozen=True, slots=True)
class Portrait:
    session: Session
    state: SessionState
    phases: tuple[PhaseChange, ...]
    conversation: Conversation
    turns: tuple[HistoryTurn, ...]  #: the last ones, oldest first
    late_reports: tuple[LateReport, ...]  #: of workers that had lost their turn, in this conversation
    approvals: tuple[Approval, ...]  #: those without an answer
    pointers: tuple[Pointer, ...]
    provider_sessions: tuple[ProviderSessionTotals, ...]
    forks: tuple[Session, ...]
    provider: str
    explanation: Explanation
    verdict: str
    policy: ResumePolicy
    now: Instant


def portrait_blocks(portrait: Portrait) -> list[Block]:
    facts = (
        *_identity(portrait),
        *_state(portrait),
        *_lineage(portrait),
        *_late_reports(portrait),
        *_providers(portrait),
    )
    blocks: list[Block] = [Fields(facts)]
    if portrait.turns:
        blocks.append(Table(_TURN_COLUMNS, tuple(map(_turn_row, portrait.turns))))
    blocks.append(Line(cell(portrait.verdict, Tone.STRONG)))
    return blocks


def _identity(portrait: Portrait) -> Iterator[tuple[str, Cell]]:
    session = portrait.session
    yield "session", cell(session.id, Tone.STRONG)
    if session.name is not None:
        yield "name", cell(session.name)
    yield "agent", cell(session.agent)
    yield "provider", cell(session.provider or f"{portrait.provider} (by default)")
    yield "kind", cell(session.kind.value)
    if session.purpose:
        yield "purpose", cell(session.purpose, limit=_LONGEST)


def _state(portrait: Portrait) -> Iterator[tuple[str, Cell]]:
    session, now = portrait.session, portrait.now
    yield "status", cell(portrait.state.status.value, status_tone(portrait.state.status))
    yield "phase", cell(session.phase.value, phase_tone(session.phase))
    if portrait.phases:
        yield (
            "phases",
            cell(" → ".join([portrait.phases[0].from_phase, *(c.to_phase for c in portrait.phases)])),
        )
    for asked in portrait.approvals:
        answer = "it has expired" if asked.is_expired(now) else f"holdfast approve {asked.id}"
        yield "waits for", cell(f"{asked.what} ({answer})", Tone.WARN, limit=_LONGEST)
    yield "created", cell(_when(session.created_at, now))
    yield "active", cell(_when(session.updated_at, now))
    if session.finalized_at is not None:
        yield "closed", cell(f"{_when(session.finalized_at, now)}, after {session.duration_seconds:.0f}s")
    if session.summary is not None:
        yield "summary", cell(session.summary, limit=_LONGEST)
    if session.last_error is not None:
        error = session.last_error
        yield "errors", cell(f"{session.error_count} since the last success", Tone.WARN)
        yield "last error", cell(f"{_when(error.at, now)}: {error.message}", limit=_LONGEST)
    if session.metadata:
        yield "metadata", cell(json.dumps(session.metadata, ensure_ascii=False), limit=_LONGEST)
    yield "usage", cell(_usage(session.usage))


def _lineage(portrait: Portrait) -> Iterator[tuple[str, Cell]]:
    conversation = portrait.conversation
    changed = f"revision {conversation.revision}, generation {conversation.generation}"
    yield "conversation", cell(f"{conversation.id} ({changed})")
    point = conversation.fork_point
    if point is not None:
        parent = portrait.session.parent_session_id or point.conversation_id
        yield "forked from", cell(f"{parent} at turn {point.seq}")
    if portrait.forks:
        yield "forks", cell(", ".join(fork.id for fork in portrait.forks), limit=_LONGEST)


def _late_reports(portrait: Portrait) -> Iterator[tuple[str, Cell]]:
    for late in portrait.late_reports[-_MOST_LATE:]:
        told = f"{late.report.get('status')}, {late.report.get('response') or 'without an answer'}"
        attempt = "" if late.attempt is None else f"attempt {late.attempt}, "
        words = f"turn {late.seq}, {attempt}{_when(late.at, portrait.now)}: {told}"
        yield "reported too late", cell(words, Tone.WARN, limit=_LONGEST)


def _providers(portrait: Portrait) -> Iterator[tuple[str, Cell]]:
    for pointer in portrait.pointers:
        yield f"{pointer.provider} points to", cell(_pointer(pointer, portrait.now))
        if pointer.context is not None and pointer.context.window:
            yield f"{pointer.provider} context", _context(pointer.context, portrait.policy)
    for known in portrait.provider_sessions:
        retired = f", retired: {known.retired}" if known.retired is not None else ""
        source = f", forked from {known.forked_from}" if known.forked_from is not None else ""
        yield f"{known.provider} session", cell(f"{known.id}: {_usage(known.usage)}{source}{retired}")


def _context(use: ContextUse, policy: ResumePolicy) -> Cell:
    state = context_state(use, policy)
    share = f"{use.tokens} of {use.window} tokens, {use.tokens / use.window:.0%}: {state}"
    return cell(share, Tone.GOOD if state is ContextState.OK else Tone.WARN)


def _pointer(pointer: Pointer, now: Instant) -> str:
    parts: list[str] = [pointer.provider_session_id]
    if pointer.is_fork_source:
        parts.append("to be forked at the first launch")
    for word, value in (("in", pointer.work_dir), ("with", pointer.model), ("on", pointer.runtime_id)):
        if value is not None:
            parts.append(f"{word} {value}")
    if pointer.seen is not None:
        parts.append(f"has seen turns {pointer.seen}")
    parts.append(f"{age(pointer.updated_at, now)} ago")
    return ", ".join(parts)


def _turn_row(turn: HistoryTurn) -> tuple[Cell, ...]:
    tone = Tone.BAD if turn.status == "failed" else Tone.PLAIN
    return (
        cell(turn.seq),
        cell(f"{turn.status}{_repeats(turn)}", tone),
        cell(turn.agent),
        cell(turn.prompt, limit=_LONGEST),
        cell(turn.response or "", limit=_LONGEST),
    )


def _repeats(turn: HistoryTurn) -> str:
    words = [] if turn.retry_of is None else [f"retry of {turn.retry_of}"]
    if turn.attempts > 1:
        words.append(f"{turn.attempts} attempts")
    return f" ({', '.join(words)})" if words else ""


def _when(instant: Instant, now: Instant) -> str:
    return f"{to_iso(instant)} ({age(instant, now)} ago)"


def _usage(usage: Usage) -> str:
    tokens = f"{usage.input_tokens} tokens in ({usage.cached_input_tokens} cached), {usage.output_tokens} out"
    return f"{tokens}, ${usage.cost_usd:.4f}"
