"""Owns the vocabulary of the resume decision: facts, verdicts, decisions and their reasons."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import Final, TypeAlias, TypeVar

from holdfast.domain.conversations import HistoryChange
from holdfast.domain.ids import ProviderSessionId, RuntimeId
from holdfast.domain.pointers import NO_RIGHTS, ProviderSession, Rights
from holdfast.domain.records import record
from holdfast.domain.runtimes import Capabilities


class Reason(StrEnum):
    """Why a decision is what it is: the code of the guard that decided, or ``resumable``."""

    FORCE_FRESH = "force_fresh"
    RESUME_DISABLED = "resume_disabled"
    NO_POINTER = "no_pointer"
    CAPABILITY_MISSING = "capability_missing"
    GENERATION_CHANGED = "generation_changed"
    RUNTIME_CHANGED = "runtime_changed"
    WORKDIR_CHANGED = "workdir_changed"
    HISTORY_CHANGED = "history_changed"
    FORK_POINT_MOVED = "fork_point_moved"
    MODEL_CHANGED = "model_changed"
    RETIRED = "retired"
    ERRORS = "errors"
    CONTEXT_FULL = "context_full"
    TRANSCRIPT_MISSING = "transcript_missing"
    TRANSCRIPT_ALTERED = "transcript_altered"
    TRANSCRIPT_AHEAD = "transcript_ahead"
    RIGHTS_WIDER = "rights_wider"
    BUSY = "busy"
    EXPLICIT_ID = "explicit_id"  #: the id that was asked for cannot be honoured
    RESUME_FAILED = (
        "resume_failed"  #: no guard: the resumed session was answered with an error, before anything was done
    )
    RESUMABLE = "resumable"  #: every guard passed


class NotObservable(Enum):
    """A fact that cannot be seen from here yet: its guard passes for now."""

    UNSEEN = "not_observable"


NOT_OBSERVABLE: Final = NotObservable.UNSEEN

T = TypeVar("T")
#: A fact as it was looked for: seen, missing although it should be there (None), or not to be seen yet.
Seen: TypeAlias = T | NotObservable | None


@record
class ResumeRequest:
    """What the turn asks for."""

    force_fresh: Seen[bool] = False
    model: Seen[str] = NOT_OBSERVABLE  #: not observable: the caller did not choose one
    rights: Seen[Rights] = NO_RIGHTS
    allow_wider_rights: bool = False
    prompt_tokens: int = 0
    #: explicit: beats configuration and is never replaced by another
    provider_session_id: ProviderSessionId | None = None


@record
class TranscriptFacts:
    """What the provider's own store holds of the session."""

    requests: int  #: that it holds, answered or not: a provider picks up a session that has one
    prefix_intact: Seen[bool] = NOT_OBSERVABLE
    foreign_turns: Seen[int] = 0  #: turns that no attempt of ours made
    grown: Seen[bool] = NOT_OBSERVABLE  #: past the recorded mark


@record
class Facts:
    """What is known when deciding. The defaults are those of a claim: the machine's are not visible."""

    native_resume: Seen[bool] = True
    capabilities: Seen[Capabilities] = None
    generation: Seen[int] = None
    runtime_id: Seen[RuntimeId] = None
    version: Seen[str] = NOT_OBSERVABLE
    changes: Seen[tuple[HistoryChange, ...]] = None  #: of the history since the pointer's epoch
    provider_session: Seen[ProviderSession] = None
    seq: int = 1  #: of the turn that is about to run
    same_directory: Seen[bool] = NOT_OBSERVABLE
    transcript: Seen[TranscriptFacts] = NOT_OBSERVABLE
    lock_free: Seen[bool] = NOT_OBSERVABLE
    named_exists: bool = (
        False  #: the provider holds a session of the id that was asked for, and none of ours began it
    )
    other_writer: str | None = None  #: a program that has the session open, and that we did not start


class Standing(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"  #: fails: the fact should be there and is not
    NOT_OBSERVABLE = "not_observable"  #: passes for now
    NOT_APPLICABLE = "not_applicable"  #: there is nothing to guard


class Outcome(IntEnum):
    """Stronger outcomes are larger."""

    RESUME = 0
    FRESH = 1
    WAIT = 2
    REFUSE = 3


@record
class Verdict:
    reason: Reason
    standing: Standing
    outcome: Outcome = Outcome.RESUME
    evidence: str = ""


@record
class Resume:
    """Continue the provider's own session.

    ``catch_up`` are the ranges it has not seen; what of them is in the history, the history says.
    """

    provider_session_id: ProviderSessionId
    catch_up: tuple[tuple[int, int], ...]
    verdicts: tuple[Verdict, ...]
    reason: Reason = Reason.RESUMABLE


@record
class Fork:
    """Let the provider fork this session of the parent into a new one."""

    provider_session_id: ProviderSessionId
    catch_up: tuple[tuple[int, int], ...]
    verdicts: tuple[Verdict, ...]
    reason: Reason = Reason.RESUMABLE


@record
class Fresh:
    """Start a new provider session with the whole context; use this id if one was asked for."""

    reason: Reason
    verdicts: tuple[Verdict, ...]
    provider_session_id: ProviderSessionId | None = None


@record
class Wait:
    """Nothing is launched now; the turn stays in the queue."""

    reason: Reason
    verdicts: tuple[Verdict, ...]


@record
class Refuse:
    """Nothing is launched; the turn ends as failed."""

    reason: Reason
    verdicts: tuple[Verdict, ...]


Decision = Resume | Fork | Fresh | Wait | Refuse


def outcome_of(decision: Decision) -> Outcome:
    match decision:
        case Resume() | Fork():
            return Outcome.RESUME
        case Fresh():
            return Outcome.FRESH
        case Wait():
            return Outcome.WAIT
        case Refuse():
            return Outcome.REFUSE


class DecisionKind(StrEnum):
    RESUME = "resume"
    FORK = "fork"
    FRESH = "fresh"
    WAIT = "wait"
    REFUSE = "refuse"


_KINDS = {
    Resume: DecisionKind.RESUME,
    Fork: DecisionKind.FORK,
    Fresh: DecisionKind.FRESH,
    Wait: DecisionKind.WAIT,
    Refuse: DecisionKind.REFUSE,
}


def decision_kind(decision: Decision) -> DecisionKind:
    return _KINDS[type(decision)]


@record
class Decided:
    """A decision as an attempt keeps it: of its verdicts, those that did not simply pass."""

    kind: DecisionKind
    reason: Reason
    verdicts: tuple[Verdict, ...]

    def about(self, provider_session_id: str | None, catch_up: tuple[tuple[int, int], ...]) -> Decision:
        """The decision itself, with what the attempt and its pointer keep of it."""
        session_id = ProviderSessionId(provider_session_id or "")
        match self.kind:
            case DecisionKind.RESUME:
                return Resume(session_id, catch_up, self.verdicts, self.reason)
            case DecisionKind.FORK:
                return Fork(session_id, catch_up, self.verdicts, self.reason)
            case DecisionKind.FRESH:
                return Fresh(self.reason, self.verdicts, session_id or None)
            case DecisionKind.WAIT:
                return Wait(self.reason, self.verdicts)
            case DecisionKind.REFUSE:
                return Refuse(self.reason, self.verdicts)


def evidence_row(verdict: Verdict) -> list[str]:
    """A verdict as it is kept, and shown again."""
    return [
        verdict.reason.value,
        verdict.standing.value,
        verdict.outcome.name.lower(),
        verdict.evidence,
    ]


def decided_document(decided: Decided) -> dict[str, object]:
    return {
        "kind": decided.kind.value,
        "reason": decided.reason.value,
        "evidence": list(map(evidence_row, decided.verdicts)),
    }


def decision_document(decision: Decision) -> dict[str, object]:
    """A decision as plain JSON, every guard with its verdict."""
    return {
        "kind": decision_kind(decision).value,
        "reason": decision.reason.value,
        "guards": [
            {
                "guard": v.reason.value,
                "verdict": v.standing.value,
                "outcome": v.outcome.name.lower(),
                "evidence": v.evidence,
            }
            for v in decision.verdicts
        ],
    }
