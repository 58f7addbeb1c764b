"""Owns the commands that explain a session: show, why and tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from holdfast.cli import output
from holdfast.cli.arguments import session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.explained import why_blocks
from holdfast.cli.listing import phase_tone, status_tone
from holdfast.cli.output import Cell, Column, Table, Tone, cell
from holdfast.cli.portrait import Portrait, portrait_blocks
from holdfast.cli.verdicts import continue_words, verdict
from holdfast.domain.sessions import Session, SessionState
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


@command("show", "holdfast show deploy", "holdfast show deploy --turns 20 --json")
@session_argument
@click.option("--turns", type=click.IntRange(0, 10_000), default=5, show_default=True, metavar="N",
              help="How many of the last turns.")  # fmt: skip
@pass_invocation
def show(run: Invocation, session: str, turns: int) -> None:
    """Show everything about a session.

    Its status, phase and age, where it comes from, what its providers could pick up, its last turns, what it cost,
    and what would happen next.
    """
    portrait = _portrait(run.holdfast, run.find(session), turns)
    if run.json:
        output.document(_portrait_document(portrait))
    else:
        output.blocks(portrait_blocks(portrait))


def _portrait(holdfast: Holdfast, session_id: str, turns: int) -> Portrait:
    store = holdfast.store
    explanation = holdfast.why(session_id)
    session = explanation.session
    return Portrait(
        session=session,
        state=store.session_state(session.id),
        phases=store.phase_history(session.id),
        conversation=store.get_conversation(session.conversation_id),
        turns=store.history(session.conversation_id, limit=turns) if turns else (),
        late_reports=store.late_reports(session.conversation_id),
        approvals=store.approvals(session_id=session.id),
        pointers=store.pointers(session.id),
        policy=holdfast.policy.resume,
        provider_sessions=store.provider_sessions(session.id),
        forks=store.children(session.id),
        provider=explanation.provider,
        explanation=explanation,
        verdict=_verdict(holdfast, explanation),
        now=store.now(),
    )


def _verdict(holdfast: Holdfast, explanation: Explanation) -> str:
    return verdict(explanation, _continue_words(holdfast, explanation), holdfast.store.now())


def _continue_words(holdfast: Holdfast, explanation: Explanation) -> str:
    return continue_words(
        explanation.may_continue, explanation.session, holdfast.policy.continue_, holdfast.store.now()
    )


def _portrait_document(portrait: Portrait) -> dict[str, object]:
    pointer = next((p for p in portrait.pointers if p.provider == portrait.provider), None)
    return {
        **session_document(portrait.session, portrait.state, portrait.phases),
        **conversation_document(portrait.conversation),
        **provider_session_document(pointer, portrait.provider_sessions),
        **explanation_document(portrait.explanation, portrait.verdict),
        "forks": [fork.id for fork in portrait.forks],
        "pointers": [pointer_document(p, portrait.policy) for p in portrait.pointers],
        "provider_sessions": [totals_document(t) for t in portrait.provider_sessions],
        "turns": [history_turn_document(t) for t in portrait.turns],
        "late_reports": [late_report_document(late) for late in portrait.late_reports],
        "approvals": [approval_document(one, portrait.now) for one in portrait.approvals],
    }


@command("why", "holdfast why deploy", "holdfast why deploy --provider codex")
@session_argument
@click.option("--provider", metavar="NAME", help="For this provider; by default the session's own.")
@pass_invocation
def why(run: Invocation, session: str, provider: str | None) -> None:
    """Say how a session would go on, and why.

    Every guard is listed with its verdict and its evidence, then the verdict in one sentence, then what was
    decided the last time. Nothing is changed.
    """
    explanation = run.holdfast.why(run.find(session), provider)
    sentence = _verdict(run.holdfast, explanation)
    if run.json:
        asked = {"session_id": explanation.session.id, "provider": explanation.provider}
        output.document(asked | explanation_document(explanation, sentence))
    else:
        words = _continue_words(run.holdfast, explanation)
        output.blocks(why_blocks(explanation, words, sentence, run.holdfast.store.now()))


@command("tree", "holdfast tree deploy")
@session_argument
@pass_invocation
def tree(run: Invocation, session: str) -> None:
    """Show the family of forks a session belongs to."""
    session_id = run.find(session)
    family = _family(run.holdfast, run.holdfast.tree(session_id))
    if run.json:
        output.document({"session_id": session_id, "family": [_member_document(one) for one in family]})
    else:
        output.blocks([Table(_TREE_COLUMNS, tuple(_member_row(one, session_id) for one in family))])


_TREE_COLUMNS = (
    Column("SESSION", whole=True),
    Column("FORKED AT"),
    Column("STATUS", whole=True),
    Column("PHASE", whole=True),
    Column("AGENT"),
    Column("NAME"),
)


@dataclass(frozen=True, slots=True)
class _Member:
    session: Session
    state: SessionState
    depth: int
    forked_at: int | None


def _family(holdfast: Holdfast, root: Tree) -> Iterator[_Member]:
    """Parents before their forks, however deep the family is."""
    waiting = [(root, 0)]
    while waiting:
        branch, depth = waiting.pop()
        session = branch.session
        state = holdfast.store.session_state(session.id)
        yield _Member(session, state, depth, _forked_at(holdfast, session))
        waiting += [(child, depth + 1) for child in reversed(branch.children)]


def _member_row(member: _Member, asked: str) -> tuple[Cell, ...]:
    session = member.session
    at = "" if member.forked_at is None else f"turn {member.forked_at}"
    return (
        cell(session.id, Tone.STRONG if session.id == asked else Tone.PLAIN, indent=2 * member.depth),
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
