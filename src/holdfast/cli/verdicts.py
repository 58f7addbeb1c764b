"""Owns the sentences that say why a session goes on as it does."""

from __future__ import annotations

from typing import assert_never

from holdfast.cli.output import age, duration
from holdfast.clock import Instant, to_iso
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision, Fork, Fresh, Reason, Refuse, Resume, Standing, Wait, because
from holdfast.domain.phases import MayContinue
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.runtimes import KnownRuntime
from holdfast.domain.sessions import Session
from holdfast.domain.telling.transcript import ranges_text
from holdfast.domain.turns import Turn
from holdfast.engine.explain import Explanation, WaitingTurn


def continue_words(answer: MayContinue, session: Session | None, policy: ContinuePolicy, now: Instant) -> str:
    """Why the work may or may not go on; None for a session that nobody can read."""
    if session is None:
        unreadable = answer is MayContinue.UNREADABLE
        return "its row cannot be understood" if unreadable else "there is no such session"
    match answer:
        case MayContinue.YES:
            return "every criterion is met"
        case MayContinue.FINAL:
            return f"it is {session.phase}, which is final; its work can go on in a fork"
        case MayContinue.PHASE:
            return f"{session.phase} is none of {', '.join(sorted(policy.resumable_phases))}"
        case MayContinue.NOT_READY:
            return "it is not marked as ready to be resumed"
        case MayContinue.ERRORS:
            return f"{session.error_count} errors since the last success; the limit is {policy.max_errors}"
        case MayContinue.TOO_OLD:
            limit = duration(policy.max_idle_seconds or 0)
            return f"idle for {age(session.updated_at, now)}; the limit is {limit}"
        case MayContinue.EXPIRED:
            return "nobody answered in time what it asked; it can ask again, or go to another phase"
        case MayContinue.NOT_FOUND | MayContinue.UNREADABLE:
            return "it changed while it was looked at"
        case _:
            assert_never(answer)


def verdict(explanation: Explanation, why_continue: str, now: Instant) -> str:
    """All of it in one sentence."""
    session = explanation.session
    if explanation.may_continue is MayContinue.FINAL:
        return f"The work is {session.phase}; it can go on in a fork: holdfast fork {session.id}"
    if explanation.waits_for is not None:
        return _waiting(explanation.waits_for, explanation.may_continue)
    if explanation.waiting is not None and (waits := _in_queue(explanation.waiting, now)):
        return waits
    if explanation.may_continue is not MayContinue.YES:
        reason = explanation.may_continue.value
        rule = f"By the rules the work should not go on ({reason}: {why_continue})."
        return f"{rule} A turn that is put in all the same: {_lower(next_turn(explanation.decision, explanation.provider))}"
    return next_turn(explanation.decision, explanation.provider)


def _waiting(asked: Approval, answer: MayContinue) -> str:
    waits = f"Turn {asked.seq} waits for an approval: {asked.what}"
    if answer is MayContinue.EXPIRED:
        return (
            f"{waits}. It has expired; to give it up: holdfast cancel {asked.session_id} --turn {asked.seq}"
        )
    return f"{waits}. To answer: holdfast approve {asked.id}"


def _in_queue(waiting: WaitingTurn, now: Instant) -> str:
    """Nothing, if it waits for a worker only."""
    sentences = []
    if waiting.until is not None:
        sentences.append(_until(waiting.turn, waiting.until, now))
    if waiting.runtime is not None:
        sentences.append(_pinned(waiting.turn, waiting.runtime, now))
    return " ".join(sentences)


def _until(turn: Turn, until: Instant, now: Instant) -> str:
    left = f"in {age(now, until)}"
    if turn.attempts:
        return f"Turn {turn.seq} is tried again at {to_iso(until)} ({left}, attempt {turn.attempts + 1})."
    return f"Turn {turn.seq} is not begun before {to_iso(until)} ({left})."


def _pinned(turn: Turn, known: KnownRuntime, now: Instant) -> str:
    where = f"{known.runtime.provider} in {known.runtime.home} on machine {known.runtime.machine[:12]}"
    seen = f"last seen at {to_iso(known.last_seen_at)} ({age(known.last_seen_at, now)} ago)"
    return f"Turn {turn.seq} waits for the runtime {known.id} alone ({where}), {seen}."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def next_turn(decision: Decision, provider: str) -> str:
    match decision:
        case Resume(provider_session_id):
            return f"The next turn resumes the {provider} session {provider_session_id}{_provided(decision)}."
        case Fork(provider_session_id):
            return f"The next turn forks the {provider} session {provider_session_id}{_provided(decision)}."
        case Fresh():
            start = f"The next turn starts a fresh {provider} session with the whole context"
            return f"{start}: {because(decision).note}."
        case Wait():
            return f"The next turn waits: {because(decision).note}."
        case Refuse():
            return f"The next turn would be refused: {because(decision).note}."
        case _:
            assert_never(decision)


def this_turn(decision: Decision) -> str:
    """Said before anything runs."""
    match decision:
        case Resume(provider_session_id):
            return f"resuming session {provider_session_id}{_catching_up(decision)}"
        case Fork(provider_session_id):
            return f"forking session {provider_session_id}{_catching_up(decision)}"
        case Fresh():
            if decision.reason is Reason.NO_POINTER:
                return "starting a new session (no_pointer)"
            return f"starting fresh: {because(decision).note}"
        case Wait():
            return f"waiting: {because(decision).note}"
        case Refuse():
            return f"refused: {because(decision).note}"
        case _:
            assert_never(decision)


def _catching_up(decision: Resume | Fork) -> str:
    told = ranges_text(decision.catch_up)
    word = "turn" if told.isdecimal() else "turns"
    return f", telling it of {word} {told}" if told else ""


def _provided(decision: Decision) -> str:
    unseen = sum(v.standing is Standing.NOT_OBSERVABLE for v in decision.verdicts)
    return f", if the {unseen} guards that cannot be judged from here pass too" if unseen else ""
