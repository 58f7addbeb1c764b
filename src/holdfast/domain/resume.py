"""Owns the decision: can a provider's own session go on, and if not, why.

``decide_resume`` is total: any input gives a decision. It runs at claim with what the database
knows, and again at launch with what only the worker's machine can see; ``decide_at_launch`` makes
sure that the second run only ever weakens the first. Every guard is evaluated each time, so that a
decision explains itself; the strongest outcome wins, and within a rank the order of ``GUARDS``.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.decisions import (
    Decision,
    Facts,
    Fork,
    Fresh,
    Outcome,
    Reason,
    Refuse,
    Resume,
    ResumeRequest,
    Standing,
    Verdict,
    Wait,
    outcome_of,
)
from holdfast.domain.guards import GUARDS, Case
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy


def decide_resume(
    pointer: Pointer | None, request: ResumeRequest, facts: Facts, policy: ResumePolicy
) -> Decision:
    """One value decides both whether the provider's session is resumed and what is sent."""
    wanted = request.provider_session_id
    if wanted is not None and pointer is not None:
        was_never_saved = pointer.transcript == NOTHING_YET and facts.transcript is None
        if pointer.provider_session_id != wanted or was_never_saved:
            pointer = None  # the name is a new one
    case = Case(pointer, request, facts, policy, explicit=wanted is not None and pointer is not None)
    verdicts = tuple([guard(case) for guard in GUARDS])
    worst = max(verdicts, key=_strength)
    return _decision(case, worst, verdicts)


def decide_at_launch(
    claimed: Decision, pointer: Pointer | None, request: ResumeRequest, facts: Facts, policy: ResumePolicy
) -> Decision:
    """The same question with the machine's own facts: the answer only ever weakens the claim's.

    Each guard's verdict is the launch's, which has seen more; except where only the store could see.
    """
    launched = decide_resume(pointer, request, facts, policy)
    verdicts = _together(claimed.verdicts, launched.verdicts)
    if outcome_of(launched) > outcome_of(claimed):
        return replace(launched, verdicts=verdicts)
    if isinstance(claimed, Resume | Fork) and isinstance(launched, Resume | Fork):
        return replace(claimed, verdicts=verdicts)
    return claimed


def only_natively(decision: Decision, provider_session_id: str | None) -> Decision:
    """For a turn that acts on an answer: what was asked waits in this provider session, and nowhere else."""
    match decision:
        case Wait() | Refuse():
            return decision
        case Resume(session_id) if session_id == provider_session_id:
            return decision
        case Resume():
            return Refuse(Reason.EXPLICIT_ID, decision.verdicts)
        case Fork() | Fresh():
            return Refuse(decision.reason, decision.verdicts)


def _together(claimed: tuple[Verdict, ...], launched: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    at_claim = {verdict.reason: verdict for verdict in claimed}
    return tuple(
        at_claim.get(verdict.reason, verdict) if verdict.standing is Standing.NOT_OBSERVABLE else verdict
        for verdict in launched
    )


def _strength(verdict: Verdict) -> int:
    # max() keeps the first of equals, which is the order of the guards
    return verdict.outcome


def _decision(case: Case, worst: Verdict, verdicts: tuple[Verdict, ...]) -> Decision:
    if worst.outcome is Outcome.REFUSE:
        return Refuse(worst.reason, verdicts)
    if worst.outcome is Outcome.WAIT:
        return Wait(worst.reason, verdicts)
    if worst.outcome is Outcome.FRESH or case.pointer is None:
        return Fresh(worst.reason, verdicts, case.request.provider_session_id)
    pointer = case.pointer
    catch_up = pointer.catch_up(case.facts.seq)
    if pointer.is_fork_source:
        return Fork(pointer.provider_session_id, catch_up, verdicts)
    return Resume(pointer.provider_session_id, catch_up, verdicts)
