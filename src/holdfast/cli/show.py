"""Owns the commands that show one session: show, tree and packet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import compress

import click

from holdfast.cli import output
from holdfast.cli.arguments import provider_option, session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.listing import WIDE, phase_tone, status_tone
from holdfast.cli.output import Block, Cell, Column, Fields, Line, Table, Tone, cell
from holdfast.cli.why import TO_PERSON, TO_PROGRAM
from holdfast.clock import Instant, age
from holdfast.domain.approvals import Approval
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.ids import short_id
from holdfast.domain.pointers import Pointer, ProviderSessionTotals
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.sessions import PhaseChange, Session, SessionKind, SessionState, SessionStatus
from holdfast.domain.telling.packet import packet_document, packet_markdown
from holdfast.domain.turns import LateReport
from holdfast.domain.usage import ContextState, ContextUse, Usage, context_state
from holdfast.engine.documents import (
    approval_document,
    conversation_document,
    explanation_document,
    history_turn_document,
    late_report_document,
    pointer_document,
    provider_session_document,
    session_document,
    totals_document,
)
from holdfast.engine.explain import Explanation, Tree
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.wording import verdict


@command("show", "holdfast show deploy", "holdfast show deploy --turns 20 --json")
@session_argument
@click.option("--turns", type=click.IntRange(0, 10_000), default=5, show_default=True, metavar="N",
              help="How many of the last turns to show.")  # fmt: skip
@pass_invocation
def show(run: Invocation, session: str, turns: int) -> None:
    """Show everything about a session.

    Its status, phase and age, its origin, what its providers can resume, its last turns, its cost, its last
    answer, and what happens next.
    """
    view = _view(run.holdfast, run.find(session), turns)
    if run.json:
        output.document(_view_document(view))
    elif output.is_terminal():
        verdict_line = Line(cell(view.spoken, Tone.STRONG))
        output.blocks(_view_blocks(view))
        _show_answer(view)
        output.blocks([verdict_line])
    else:
        output.blocks([*_view_blocks(view), Line(cell(view.verdict, Tone.STRONG))])


#: of the last answer; the rest is in the log
_MOST_LINES = 40


def _show_answer(view: SessionView) -> None:
    """The newest answer, laid out as in the log."""
    from holdfast.cli.terminal_sheet import TerminalSheet  # rich is for terminals only

    answered = next((turn for turn in reversed(view.turns) if turn.response), None)
    output.write("\n")
    if answered is None:
        return
    sheet = TerminalSheet()
    heading = cell(f"Answer of turn {answered.seq}", Tone.STRONG)
    *lines, _ = sheet.markdown(answered.response or "").split("\n")
    output.write(sheet.heading(heading))
    output.write("".join(f"{line}\n" for line in lines[:_MOST_LINES]))
    if len(lines) > _MOST_LINES:
        more = f"{len(lines) - _MOST_LINES} more lines: holdfast log {view.session.id} --turn {answered.seq}"
        output.write(sheet.line(cell(more, Tone.DIM)))
    output.write("\n")


def _view(holdfast: Holdfast, session_id: str, turns: int) -> SessionView:
    store = holdfast.store
    explanation = holdfast.why(session_id)
    session = explanation.session
    shown = store.history(session.conversation_id, limit=turns + 1) if turns else ()
    return SessionView(
        session=session,
        state=holdfast.session_state(session.id),
        phases=store.phase_history(session.id),
        conversation=store.get_conversation(session.conversation_id),
        turns=shown[-turns:],
        has_earlier_turns=len(shown) > turns,
        late_reports=store.late_reports(session.conversation_id),
        approvals=store.approvals(session_id=session.id),
        pointers=store.pointers(session.id),
        policy=holdfast.policy.resume,
        provider_sessions=store.provider_sessions(session.id),
        forks=store.children(session.id),
        provider=explanation.provider,
        explanation=explanation,
        verdict=verdict(explanation, holdfast.policy.continue_, store.now(), TO_PROGRAM),
        spoken=verdict(explanation, holdfast.policy.continue_, store.now(), TO_PERSON),
        now=store.now(),
    )


def _view_document(view: SessionView) -> dict[str, object]:
    pointer = next((p for p in view.pointers if p.provider == view.provider), None)
    return {
        **session_document(view.session, view.state, view.phases),
        **conversation_document(view.conversation),
        **provider_session_document(pointer, view.provider_sessions),
        **explanation_document(view.explanation, view.verdict),
        "forks": _forks(view.forks),
        "subagents": _subagents(view.forks),
        "pointers": [pointer_document(p, view.policy) for p in view.pointers],
        "provider_sessions": [totals_document(t) for t in view.provider_sessions],
        "turns": [history_turn_document(t) for t in view.turns],
        "late_reports": [late_report_document(late) for late in view.late_reports],
        "approvals": [approval_document(one, view.now) for one in view.approvals],
    }


_LONGEST = 300
_MOST_LATE = 5

_TURN_COLUMNS = (
    Column("TURN", whole=True),
    Column("STATUS", whole=True),
    Column("AGENT"),
    Column("PROMPT"),
    Column("RESPONSE"),
)


@record
class SessionView:
    session: Session
    state: SessionState
    phases: tuple[PhaseChange, ...]
    conversation: Conversation
    turns: tuple[HistoryTurn, ...]  #: the last ones, oldest first
    has_earlier_turns: bool  #: besides those
    late_reports: tuple[LateReport, ...]  #: from workers that had lost their turn, in this conversation
    approvals: tuple[Approval, ...]  #: those without an answer
    pointers: tuple[Pointer, ...]
    provider_sessions: tuple[ProviderSessionTotals, ...]
    forks: tuple[Session, ...]
    provider: str
    explanation: Explanation
    verdict: str
    spoken: str  #: the same for a person
    policy: ResumePolicy
    now: Instant


def _view_blocks(view: SessionView) -> list[Block]:
    facts = (
        *_identity(view),
        *_state(view),
        *_lineage(view),
        *_late_reports(view),
        *_providers(view),
    )
    blocks: list[Block] = [Fields(facts)]
    if view.turns:
        blocks.append(Table(_TURN_COLUMNS, tuple(_turn_row(turn, view.state) for turn in view.turns)))
        if view.has_earlier_turns and output.is_terminal():
            blocks.append(Line(cell(f"All turns: holdfast log {short_id(view.session.id)}", Tone.DIM)))
    return blocks


def _identity(view: SessionView) -> Iterator[tuple[str, Cell]]:
    session = view.session
    yield "session", cell(session.id, Tone.STRONG)
    if session.name is not None:
        yield "name", cell(session.name)
    elif session.title and output.is_terminal():
        yield "title", cell(session.title, limit=_LONGEST)
    yield "agent", cell(session.agent)
    yield "provider", cell(session.provider or f"{view.provider} (by default)")
    if view.state.directory is not None:
        yield "directory", cell(view.state.directory)
    yield "kind", cell(session.kind.value)
    if session.purpose and not (output.is_terminal() and session.purpose == session.title):
        yield "purpose", cell(session.purpose, limit=_LONGEST)


def _state(view: SessionView) -> Iterator[tuple[str, Cell]]:
    session, now = view.session, view.now
    yield "status", cell(view.state.status.value, status_tone(view.state.status))
    has_phases = session.uses_phases or not output.is_terminal()  # scripts read the phase of any session
    if has_phases:
        yield "phase", cell(session.phase.value, phase_tone(session.phase))
    if view.phases and has_phases:
        yield (
            "phases",
            cell(" → ".join([view.phases[0].from_phase, *(c.to_phase for c in view.phases)])),
        )
    for asked in view.approvals:
        answer = "expired" if asked.is_expired(now) else f"holdfast approve {asked.id}"
        people = f"{', '.join(sorted(asked.answerers))}: " if asked.answerers else ""
        yield "waits for", cell(f"{people}{asked.what} ({answer})", Tone.WARN, limit=_LONGEST)
    yield "created", cell(_when(session.created_at, now))
    yield "active", cell(_when(session.updated_at, now))
    if session.imported_at is not None:
        yield "imported", cell(_when(session.imported_at, now))
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


def _lineage(view: SessionView) -> Iterator[tuple[str, Cell]]:
    conversation = view.conversation
    changed = f"revision {conversation.revision}, generation {conversation.generation}"
    yield "conversation", cell(f"{conversation.id} ({changed})")
    point = conversation.fork_point
    if point is not None:
        parent = view.session.parent_session_id or point.conversation_id
        yield "forked from", cell(f"{parent} at turn {point.seq}")
    elif view.session.parent_session_id is not None:
        how = "subagent of" if view.session.kind is SessionKind.SUBAGENT else "forked from"
        yield how, cell(view.session.parent_session_id)
    below = {"forks": _forks(view.forks), "subagents": _subagents(view.forks)}
    for what, ids in below.items():
        if ids:
            yield what, cell(", ".join(ids), limit=_LONGEST)


def _forks(children: tuple[Session, ...]) -> list[str]:
    return [child.id for child in children if child.kind is not SessionKind.SUBAGENT]


def _subagents(children: tuple[Session, ...]) -> list[str]:
    return [child.id for child in children if child.kind is SessionKind.SUBAGENT]


def _late_reports(view: SessionView) -> Iterator[tuple[str, Cell]]:
    for late in view.late_reports[-_MOST_LATE:]:
        told = f"{late.report.get('status')}, {late.report.get('response') or 'without an answer'}"
        attempt = "" if late.attempt is None else f"attempt {late.attempt}, "
        words = f"turn {late.seq}, {attempt}{_when(late.at, view.now)}: {told}"
        yield "reported too late", cell(words, Tone.WARN, limit=_LONGEST)


def _providers(view: SessionView) -> Iterator[tuple[str, Cell]]:
    for pointer in view.pointers:
        yield f"{pointer.provider} points to", cell(_pointer(pointer, view.now))
        if pointer.context is not None and pointer.context.window:
            yield f"{pointer.provider} context", _context(pointer.context, view.policy)
    for known in view.provider_sessions:
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
        seen = str(pointer.seen)
        parts.append(f"has seen {'turn' if seen.isdecimal() else 'turns'} {seen}")
    parts.append(f"{age(pointer.updated_at, now)} ago")
    return ", ".join(parts)


def _turn_row(turn: HistoryTurn, state: SessionState) -> tuple[Cell, ...]:
    is_cut_off = state.status is SessionStatus.INTERRUPTED and turn.status in ("claimed", "running")
    status = state.status.value if is_cut_off else turn.status.value
    tone = Tone.BAD if is_cut_off or turn.status == "failed" else Tone.PLAIN
    return (
        cell(turn.seq),
        cell(f"{status}{_repeats(turn)}", tone),
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
    return f"{output.moment(instant)} ({age(instant, now)} ago)"


def _usage(usage: Usage) -> str:
    tokens = f"{usage.input_tokens} tokens in ({usage.cached_input_tokens} cached), {usage.output_tokens} out"
    return f"{tokens}, {output.money(usage.cost_usd)}"


# --- tree ---


@command("tree", "holdfast tree deploy")
@session_argument
@pass_invocation
def tree(run: Invocation, session: str) -> None:
    """Show the family of forks and subagents a session belongs to."""
    session_id = run.find(session)
    family = _family(run.holdfast, run.holdfast.tree(session_id))
    if run.json:
        output.document({"session_id": session_id, "family": [_member_document(one) for one in family]})
    else:
        is_narrow = output.is_terminal() and shutil.get_terminal_size().columns < WIDE
        shown = [not (is_narrow and column.title == "PHASE") for column in _TREE_COLUMNS]
        rows = (_member_row(one, session_id, short=is_narrow) for one in family)
        columns = tuple(compress(_TREE_COLUMNS, shown))
        output.blocks([Table(columns, tuple(tuple(compress(row, shown)) for row in rows))])


_TREE_COLUMNS = (
    Column("SESSION", whole=True),
    Column("FORKED AT"),
    Column("STATUS", whole=True),
    Column("PHASE", whole=True),
    Column("AGENT"),
    Column("NAME"),
)


@record
class _Member:
    session: Session
    state: SessionState
    depth: int
    forked_at: int | None


def _family(holdfast: Holdfast, root: Tree) -> Iterator[_Member]:
    """Yields parents before their forks, without recursion."""
    waiting = [(root, 0)]
    while waiting:
        branch, depth = waiting.pop()
        session = branch.session
        state = holdfast.session_state(session.id)
        yield _Member(session, state, depth, _forked_at(holdfast, session))
        waiting += [(child, depth + 1) for child in reversed(branch.children)]


def _member_row(member: _Member, asked: str, *, short: bool) -> tuple[Cell, ...]:
    session = member.session
    at = "" if member.forked_at is None else f"turn {member.forked_at}"
    if session.kind is SessionKind.SUBAGENT:
        at = "subagent"
    return (
        cell(
            short_id(session.id) if short else session.id,
            Tone.STRONG if session.id == asked else Tone.PLAIN,
            indent=2 * member.depth,
        ),
        cell(at),
        cell(member.state.status.value, status_tone(member.state.status)),
        cell(session.phase.value, phase_tone(session.phase)),
        cell(session.agent),
        cell(session.name or ""),
    )


def _member_document(member: _Member) -> dict[str, object]:
    document = session_document(member.session, member.state)
    return document | {"depth": member.depth, "forked_at": member.forked_at}


def _forked_at(holdfast: Holdfast, session: Session) -> int | None:
    point = holdfast.store.get_conversation(session.conversation_id).fork_point
    return None if point is None else point.seq


# --- packet ---


@command("packet", "holdfast packet deploy", "holdfast packet deploy --cwd . --json")
@session_argument
@click.option("--cwd", metavar="DIR", type=click.Path(exists=True, file_okay=False, resolve_path=True),
              help="The directory to describe; by default the session's last one.")  # fmt: skip
@provider_option(help="For this provider; by default the session's own.")
@pass_invocation
def packet(run: Invocation, session: str, cwd: str | None, provider: str | None) -> None:
    """Print the state of a session's work, to hand it over.

    The goal, the state of git in the directory, the last turns and tool calls, unfinished calls, failures and
    the next step, in a few pages of Markdown. A new provider session gets the packet with the turns if a turn
    was shortened or left unfinished. Changes nothing.
    """
    gathered = run.holdfast.packet(run.find(session), provider, cwd)
    if run.json:
        output.document(packet_document(gathered))
    else:
        output.text(packet_markdown(gathered, run.holdfast.policy.context))
