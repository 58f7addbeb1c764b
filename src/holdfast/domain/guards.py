"""Owns the guards, and the decision that they make together: can a provider's own session continue, and if not, why.

Each guard looks at one thing. A fact that cannot be seen yet passes for now; a fact that should be recorded and is
missing fails. ``decide_resume`` is total: any input gives a decision. It runs at the claim with what the database
knows, and again at the launch with what only the worker's machine can see; ``decide_at_launch`` makes sure that the
second run can only weaken the first. Every guard is evaluated each time, so that a decision explains itself. The
strongest outcome decides; between equal outcomes the order of ``GUARDS`` picks the reason.

To add a guard: a ``Reason`` and its words in ``decisions``, a function here and its place in ``GUARDS``, and a row in
``docs/reference/guards.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
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
    TranscriptFacts,
    Verdict,
    Wait,
    outcome_of,
)
from holdfast.domain.pointers import NOTHING_YET, Pointer, ProviderSession
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record, replace
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_CALL_YET, ContextState, context_state
from holdfast.errors import Refused


@record
class Case:
    """Everything a guard may look at."""

    pointer: Pointer | None
    request: ResumeRequest
    facts: Facts
    policy: ResumePolicy
    explicit: bool  #: the caller named the pointer's own id


_NOT_TOLD = "cannot be determined on this machine"


def belongs_to(owner: str, *, is_closed: bool) -> str:
    """Why the provider session of another session cannot be used, and what to type instead."""
    if is_closed:
        return (
            f"it belongs to session {owner}, which is closed: holdfast fork {owner} PROMPT continues from it"
        )
    return f"it belongs to session {owner}: holdfast resume {owner} PROMPT continues it"


def not_for_others(provider: str, named: str, owner: str, *, is_closed: bool) -> Refused:
    told = belongs_to(owner, is_closed=is_closed)
    return Refused("explicit_id", f"{provider} session {named} cannot be used: {told}", owner=owner)


def _passed(reason: Reason, evidence: str = "") -> Verdict:
    return Verdict(reason, Standing.PASSED, Outcome.RESUME, evidence) if evidence else _PASSED[reason]


def _not_applicable(reason: Reason) -> Verdict:
    return _NOT_APPLICABLE[reason]


#: the verdicts that most guards give
_PASSED = {reason: Verdict(reason, Standing.PASSED, Outcome.RESUME, "") for reason in Reason}
_NOT_APPLICABLE = {reason: Verdict(reason, Standing.NOT_APPLICABLE) for reason in Reason}


def _failed(case: Case, reason: Reason, evidence: str, outcome: Outcome = Outcome.FRESH) -> Verdict:
    return Verdict(reason, Standing.FAILED, _no_other_id(case, outcome), evidence)


def _unseen(
    case: Case,
    reason: Reason,
    fact: object,
    name: str,
    outcome: Outcome = Outcome.FRESH,
    missing: str = "is not recorded",
) -> Verdict:
    """The verdict on a fact that is missing or cannot be seen yet."""
    if fact is NOT_OBSERVABLE:
        return Verdict(reason, Standing.NOT_OBSERVABLE, Outcome.RESUME, f"{name} cannot be seen yet")
    return Verdict(reason, Standing.MISSING, _no_other_id(case, outcome), f"{name} {missing}")


def _either(*facts: object) -> object:
    """Which of several facts decides: a missing one takes precedence over one that cannot be seen yet."""
    return None if any(fact is None for fact in facts) else NOT_OBSERVABLE


def _no_other_id(case: Case, outcome: Outcome) -> Outcome:
    """An id that the caller named is never replaced: a fresh start becomes a refusal."""
    return max(outcome, Outcome.REFUSE) if case.explicit else outcome


def _force_fresh(case: Case) -> Verdict:
    asked = case.request.force_fresh
    if asked is None or asked is NOT_OBSERVABLE:
        return _unseen(case, Reason.FORCE_FRESH, asked, "whether a fresh start was asked for")
    if asked:
        return _failed(case, Reason.FORCE_FRESH, "a fresh start was asked for")
    return _passed(Reason.FORCE_FRESH)


def _resume_disabled(case: Case) -> Verdict:
    if case.explicit:
        return _passed(Reason.RESUME_DISABLED, "an explicit id takes precedence over the configuration")
    if not case.policy.session_persistence:
        return _failed(case, Reason.RESUME_DISABLED, "policy session_persistence is off")
    allowed = case.facts.native_resume
    if allowed is None or allowed is NOT_OBSERVABLE:
        return _unseen(case, Reason.RESUME_DISABLED, allowed, "the policy native_resume")
    if not allowed:
        return _failed(case, Reason.RESUME_DISABLED, "policy native_resume is off")
    return _passed(Reason.RESUME_DISABLED)


def _no_pointer(case: Case) -> Verdict:
    if case.pointer is None:
        return _failed(case, Reason.NO_POINTER, "nothing to resume is recorded")
    if not case.pointer.provider_session_id:
        return _unseen(case, Reason.NO_POINTER, None, "the id of the provider session")
    return _passed(Reason.NO_POINTER)


def _capability_missing(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.CAPABILITY_MISSING)
    can = case.facts.capabilities
    if can is None or can is NOT_OBSERVABLE:
        return _unseen(case, Reason.CAPABILITY_MISSING, can, "what the binary can do")
    if case.pointer.is_fork_source and not can.can_fork:
        return _failed(case, Reason.CAPABILITY_MISSING, "the provider cannot fork a session")
    if not case.pointer.is_fork_source and not can.can_resume:
        return _failed(case, Reason.CAPABILITY_MISSING, "the provider cannot resume a session")
    return _passed(Reason.CAPABILITY_MISSING)


def _generation_changed(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.GENERATION_CHANGED)
    recorded, current = case.pointer.generation, case.facts.generation
    if recorded is None or current is None or current is NOT_OBSERVABLE:
        return _unseen(case, Reason.GENERATION_CHANGED, _either(recorded, current), "the generation")
    if recorded != current:
        return _failed(
            case, Reason.GENERATION_CHANGED, f"the conversation was reset ({recorded} -> {current})"
        )
    return _passed(Reason.GENERATION_CHANGED)


def _runtime_changed(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.RUNTIME_CHANGED)
    place = _same_runtime(case, case.pointer.runtime_id)
    if place.outcome is not Outcome.RESUME or not case.policy.same_version:
        return place
    version = _same_version(case, case.pointer.version)
    return place if version.standing is Standing.PASSED else version


def _same_runtime(case: Case, recorded: str | None) -> Verdict:
    claiming = case.facts.runtime_id
    if recorded is None or claiming is None or claiming is NOT_OBSERVABLE:
        return _unseen(case, Reason.RUNTIME_CHANGED, _either(recorded, claiming), "the runtime")
    if recorded != claiming:
        return _failed(case, Reason.RUNTIME_CHANGED, f"recorded on {recorded}, claimed by {claiming}")
    return _passed(Reason.RUNTIME_CHANGED)


def _same_version(case: Case, recorded: str | None) -> Verdict:
    version = case.facts.version
    if recorded is None or version is None or version is NOT_OBSERVABLE:
        return _unseen(case, Reason.RUNTIME_CHANGED, _either(recorded, version), "the version")
    if recorded != version:
        return _failed(case, Reason.RUNTIME_CHANGED, f"recorded by version {recorded}, now {version}")
    return _passed(Reason.RUNTIME_CHANGED)


def _workdir_changed(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.WORKDIR_CHANGED)
    same = case.facts.same_directory
    if case.pointer.work_dir is None or same is None or same is NOT_OBSERVABLE:
        return _unseen(case, Reason.WORKDIR_CHANGED, _either(case.pointer.work_dir, same), "the work dir")
    if not same:
        return _failed(case, Reason.WORKDIR_CHANGED, f"recorded in {case.pointer.work_dir}")
    return _passed(Reason.WORKDIR_CHANGED)


def _history_changed(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.HISTORY_CHANGED)
    seen, changes = case.pointer.seen_here, case.facts.changes
    if seen is None or case.pointer.epoch is None or changes is None:
        return _unseen(case, Reason.HISTORY_CHANGED, None, "the history it has seen")
    if changes is NOT_OBSERVABLE:
        return _unseen(case, Reason.HISTORY_CHANGED, changes, "the history")
    for change in changes:
        if change.revision > case.pointer.epoch and seen.touched_by(change):
            where = f"turn {change.first}" if change.kind == "edit" else f"turns from {change.first}"
            return _failed(
                case, Reason.HISTORY_CHANGED, f"{change.kind} of {where} (revision {change.revision})"
            )
    return _passed(Reason.HISTORY_CHANGED)


def _fork_point_moved(case: Case) -> Verdict:
    if case.pointer is None or case.pointer.fork_seq is None:
        return _not_applicable(Reason.FORK_POINT_MOVED)
    seen, fork_seq, can = case.pointer.seen, case.pointer.fork_seq, case.facts.capabilities
    if seen is None or can is None:
        return _unseen(case, Reason.FORK_POINT_MOVED, None, "the length of the session")
    if can is NOT_OBSERVABLE:
        return _unseen(case, Reason.FORK_POINT_MOVED, can, "what the binary can do")
    if can.can_fork_at_turn:
        return _passed(Reason.FORK_POINT_MOVED, "the provider forks at a turn")
    if seen.last > fork_seq:
        return _failed(
            case, Reason.FORK_POINT_MOVED, f"the session goes to turn {seen.last}, the fork to {fork_seq}"
        )
    return _fork_source_grown(case)


def _fork_source_grown(case: Case) -> Verdict:
    session, transcript = case.facts.provider_session, case.facts.transcript
    if isinstance(session, ProviderSession) and session.held_by is not None:
        return _failed(case, Reason.FORK_POINT_MOVED, f"{session.held_by} is writing to the session")
    if case.facts.restorable:
        return _not_applicable(Reason.FORK_POINT_MOVED)
    grown = transcript.grown if isinstance(transcript, TranscriptFacts) else transcript
    if grown is None or grown is NOT_OBSERVABLE:
        return _unseen(case, Reason.FORK_POINT_MOVED, grown, "the length of the session", missing=_NOT_TOLD)
    if grown:
        return _failed(case, Reason.FORK_POINT_MOVED, "the session has grown past the fork point")
    return _passed(Reason.FORK_POINT_MOVED)


def _model_changed(case: Case) -> Verdict:
    if case.pointer is None or not case.policy.same_model:
        return _not_applicable(Reason.MODEL_CHANGED)
    recorded, asked = case.pointer.model, case.request.model
    if recorded is None or asked is None or asked is NOT_OBSERVABLE:
        return _unseen(case, Reason.MODEL_CHANGED, _either(recorded, asked), "the model")
    if recorded != asked:
        return _failed(case, Reason.MODEL_CHANGED, f"recorded with {recorded}, asked for {asked}")
    return _passed(Reason.MODEL_CHANGED)


def _retired(case: Case) -> Verdict:
    session = case.facts.provider_session
    if case.pointer is None and case.request.provider_session_id is None:
        return _not_applicable(Reason.RETIRED)
    if session is None or session is NOT_OBSERVABLE:
        return _unseen(case, Reason.RETIRED, session, "the state of the provider session")
    if session.retired is not None:
        # an id that was asked for by name is never replaced by another
        by_name = case.request.provider_session_id is not None
        outcome = Outcome.REFUSE if by_name else Outcome.FRESH
        return _failed(case, Reason.RETIRED, f"retired: {session.retired}", outcome)
    return _passed(Reason.RETIRED)


def _errors(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.ERRORS)
    session = case.facts.provider_session
    if session is None or session is NOT_OBSERVABLE:
        return _unseen(case, Reason.ERRORS, session, "the errors of the provider session")
    if session.errors >= case.policy.max_provider_session_errors:
        return _failed(case, Reason.ERRORS, f"{session.errors} errors since its last success")
    return _passed(Reason.ERRORS)


def _context_full(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.CONTEXT_FULL)
    use, can = case.pointer.context, case.facts.capabilities
    if use == NO_CALL_YET:
        return _passed(Reason.CONTEXT_FULL, "Holdfast has seen no call of it end yet")
    if use is None or use.window <= 0:
        # the fact is missing only if the provider reports how full its window is; else it cannot be seen
        told = isinstance(can, Capabilities) and can.reports_context
        return _unseen(case, Reason.CONTEXT_FULL, None if told else NOT_OBSERVABLE, "the context window")
    state = context_state(use, case.policy, case.request.prompt_tokens)
    share = f"{use.tokens} + {case.request.prompt_tokens} of {use.window} tokens"
    if state in (ContextState.REFRESH, ContextState.CRITICAL):
        return _failed(case, Reason.CONTEXT_FULL, share)
    return _passed(Reason.CONTEXT_FULL, share if state is ContextState.WARN else "")


def _transcript_missing(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.TRANSCRIPT_MISSING)
    transcript = case.facts.transcript
    if transcript is NOT_OBSERVABLE:
        return _unseen(case, Reason.TRANSCRIPT_MISSING, transcript, "the provider's own session")
    if transcript is None and case.facts.restorable:
        return _restorable(case, case.pointer, Reason.TRANSCRIPT_MISSING, "its files are gone")
    if transcript is None:
        named = f"the provider's store does not hold session {case.pointer.provider_session_id}"
        return Verdict(Reason.TRANSCRIPT_MISSING, Standing.MISSING, _no_other_id(case, Outcome.FRESH), named)
    if transcript.requests < 1:
        return _failed(case, Reason.TRANSCRIPT_MISSING, "the provider's session holds no request yet")
    return _passed(Reason.TRANSCRIPT_MISSING, case.facts.restored)


def _restorable(case: Case, pointer: Pointer, reason: Reason, lost: str) -> Verdict:
    """The verdict on a session that the vault can put back, by the policy ``restore``."""
    if case.policy.restore == "auto":
        return _passed(reason, f"{lost}: the next turn restores the session from the vault")
    command = f"holdfast restore {pointer.session_id}"
    return _failed(case, reason, f"{lost}, and the vault has them: {command} puts them back", Outcome.REFUSE)


def _transcript_altered(case: Case) -> Verdict:
    transcript, can = case.facts.transcript, case.facts.capabilities
    if case.pointer is None or not (isinstance(can, Capabilities) and can.append_only_transcript):
        return _not_applicable(Reason.TRANSCRIPT_ALTERED)
    if transcript is None and case.facts.restorable:
        return _not_applicable(Reason.TRANSCRIPT_ALTERED)
    intact = transcript.prefix_intact if isinstance(transcript, TranscriptFacts) else transcript
    if case.pointer.transcript is None or intact is None or intact is NOT_OBSERVABLE:
        fact = _either(case.pointer.transcript, intact)
        missing = "is not recorded" if case.pointer.transcript is None else "cannot be compared"
        return _unseen(case, Reason.TRANSCRIPT_ALTERED, fact, "how the session had begun", missing=missing)
    if not intact and case.facts.restorable:
        return _restorable(case, case.pointer, Reason.TRANSCRIPT_ALTERED, "its files were changed or cut off")
    if not intact:
        return _failed(case, Reason.TRANSCRIPT_ALTERED, "its recorded beginning has changed")
    return _passed(Reason.TRANSCRIPT_ALTERED)


def _transcript_ahead(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.TRANSCRIPT_AHEAD)
    transcript = case.facts.transcript
    if case.facts.restorable:
        return _not_applicable(Reason.TRANSCRIPT_AHEAD)
    foreign = transcript.foreign_turns if isinstance(transcript, TranscriptFacts) else transcript
    if foreign is None or foreign is NOT_OBSERVABLE:
        return _unseen(
            case,
            Reason.TRANSCRIPT_AHEAD,
            foreign,
            "how many turns were made outside Holdfast",
            missing=_NOT_TOLD,
        )
    if not foreign:
        return _passed(Reason.TRANSCRIPT_AHEAD)
    evidence = f"{foreign} turns were made outside Holdfast"
    if case.policy.transcript_ahead == "fresh":
        return _failed(case, Reason.TRANSCRIPT_AHEAD, evidence)
    return _passed(Reason.TRANSCRIPT_AHEAD, evidence)


def _rights_wider(case: Case) -> Verdict:
    if case.pointer is None:
        return _not_applicable(Reason.RIGHTS_WIDER)
    if case.request.allow_wider_rights:
        return _passed(Reason.RIGHTS_WIDER, "wider rights were allowed explicitly")
    recorded, asked = case.pointer.rights, case.request.rights
    if recorded is None or asked is None or asked is NOT_OBSERVABLE:
        fact = _either(recorded, asked)
        return _unseen(case, Reason.RIGHTS_WIDER, fact, "the launch profile", Outcome.REFUSE)
    if not asked.within(recorded):
        return _failed(
            case,
            Reason.RIGHTS_WIDER,
            "wider than at the first launch; --allow-wider-rights accepts that",
            Outcome.REFUSE,
        )
    return _passed(Reason.RIGHTS_WIDER)


def _busy(case: Case) -> Verdict:
    by_name = case.request.provider_session_id is not None
    if case.pointer is None and not by_name:
        return _not_applicable(Reason.BUSY)
    if case.pointer is not None and case.pointer.is_fork_source:
        # forking only reads; fork_point_moved judges a source that changes
        return _not_applicable(Reason.BUSY)
    outcome = Outcome.REFUSE if by_name else Outcome.WAIT
    session, free = case.facts.provider_session, case.facts.lock_free
    if isinstance(session, ProviderSession) and session.held_by is not None:
        return _failed(case, Reason.BUSY, f"{session.held_by} is writing to it", outcome)
    if isinstance(case.facts.other_writer, str):
        return _failed(case, Reason.BUSY, f"{case.facts.other_writer} has it open", outcome)
    if free is False:
        return _failed(case, Reason.BUSY, "a process on this machine is writing to it", outcome)
    if free is True and session is not None:
        # the claim read the store's row, which is valid as long as the lease
        return _passed(Reason.BUSY)
    return _unseen(case, Reason.BUSY, _either(session, free), "who is writing to the session", outcome)


def _explicit_id(case: Case) -> Verdict:
    if case.explicit and case.pointer is not None and case.pointer.is_fork_source:
        return _failed(case, Reason.EXPLICIT_ID, "it belongs to the session this one was forked from")
    if case.request.provider_session_id is None or case.explicit:
        return _not_applicable(Reason.EXPLICIT_ID)
    session, can = case.facts.provider_session, case.facts.capabilities
    if isinstance(session, ProviderSession) and session.owner is not None:
        told = belongs_to(session.owner, is_closed=session.owner_is_closed)
        return _failed(case, Reason.EXPLICIT_ID, told, Outcome.REFUSE)
    if isinstance(session, ProviderSession) and session.is_elsewhere:
        return _failed(case, Reason.EXPLICIT_ID, "it belongs to another workspace", Outcome.REFUSE)
    if case.facts.named_exists is True:
        return _failed(
            case,
            Reason.EXPLICIT_ID,
            "it exists already, and no turn of Holdfast began it; holdfast run --provider-session-id continues it",
            Outcome.REFUSE,
        )
    if can is None or can is NOT_OBSERVABLE:
        return _unseen(case, Reason.EXPLICIT_ID, can, "what the binary can do", Outcome.REFUSE)
    if not can.chooses_id:
        return _failed(
            case, Reason.EXPLICIT_ID, "the provider does not let the caller choose an id", Outcome.REFUSE
        )
    return _passed(Reason.EXPLICIT_ID)


#: of several guards with the strongest outcome, the first gives the reason
GUARDS: Final[tuple[Callable[[Case], Verdict], ...]] = (
    _force_fresh,
    _resume_disabled,
    _no_pointer,
    _capability_missing,
    _generation_changed,
    _runtime_changed,
    _workdir_changed,
    _history_changed,
    _fork_point_moved,
    _model_changed,
    _retired,
    _errors,
    _context_full,
    _transcript_missing,
    _transcript_altered,
    _transcript_ahead,
    _rights_wider,
    _busy,
    _explicit_id,
)


def decide_resume(
    pointer: Pointer | None, request: ResumeRequest, facts: Facts, policy: ResumePolicy
) -> Decision:
    """The decision says both whether the provider's session is resumed and what is sent."""
    wanted = request.provider_session_id
    if wanted is not None and pointer is not None:
        was_never_saved = pointer.transcript == NOTHING_YET and facts.transcript is None
        if pointer.provider_session_id != wanted or was_never_saved:
            pointer = None  # the id that was asked for names a new session
    case = Case(pointer, request, facts, policy, explicit=wanted is not None and pointer is not None)
    verdicts = tuple([guard(case) for guard in GUARDS])
    # of equal outcomes max() keeps the first, so the order of GUARDS decides
    worst = max(verdicts, key=attrgetter("outcome"))
    return _decision(case, worst, verdicts)


def decide_at_launch(
    claimed: Decision, pointer: Pointer | None, request: ResumeRequest, facts: Facts, policy: ResumePolicy
) -> Decision:
    """Decides again with the facts of the machine; the result is never stronger than the claim's decision.

    Each verdict is the launch's, which sees more, except where only the store could see the fact.
    """
    launched = decide_resume(pointer, request, facts, policy)
    verdicts = _together(claimed.verdicts, launched.verdicts)
    if outcome_of(launched) > outcome_of(claimed):
        return replace(launched, verdicts=verdicts)
    if isinstance(claimed, Resume | Fork) and isinstance(launched, Resume | Fork):
        return replace(claimed, verdicts=verdicts)
    return claimed


def only_natively(decision: Decision, provider_session_id: str | None) -> Decision:
    """For a turn that acts on an answer: its tool call waits in this provider session, so nothing but a resume of it will do."""
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
