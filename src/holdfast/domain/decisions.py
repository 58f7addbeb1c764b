"""Owns the vocabulary of the resume decision: facts, verdicts, decisions, their reasons and the words for those."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from holdfast.domain.conversations import HistoryChange
from holdfast.domain.ids import ProviderSessionId, RuntimeId
from holdfast.domain.pointers import NO_RIGHTS, ProviderSession, Rights
from holdfast.domain.records import record
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.telling.quoting import on_one_line


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
    EXPLICIT_ID = "explicit_id"  #: the id that was asked for cannot be used
    RESUME_FAILED = (
        "resume_failed"  #: no guard: the resumed session was answered with an error, before anything was done
    )
    RESUMABLE = "resumable"  #: every guard passed


class NotObservable(Enum):
    """A fact that cannot be seen yet: its guard passes for now."""

    UNSEEN = "not_observable"


NOT_OBSERVABLE: Final = NotObservable.UNSEEN

T = TypeVar("T")
#: A fact that was looked for: seen, missing although it should be recorded (None), or not visible yet.
Seen: TypeAlias = T | NotObservable | None


@record
class ResumeRequest:
    """What the turn requests."""

    force_fresh: Seen[bool] = False
    model: Seen[str] = NOT_OBSERVABLE  #: not observable: the caller did not choose one
    rights: Seen[Rights] = NO_RIGHTS
    allow_wider_rights: bool = False
    prompt_tokens: int = 0
    #: explicit: takes precedence over configuration, and is never replaced by another
    provider_session_id: ProviderSessionId | None = None


@record
class TranscriptFacts:
    """What the provider's own store holds of the session."""

    requests: (
        int  #: how many requests it holds, answered or not: a provider can resume a session that has one
    )
    prefix_intact: Seen[bool] = NOT_OBSERVABLE
    foreign_turns: Seen[int] = 0  #: turns that no attempt of Holdfast made
    grown: Seen[bool] = NOT_OBSERVABLE  #: past the recorded mark


@record
class Facts:
    """What is known when deciding. The defaults are those of a claim, which cannot see the facts of the machine."""

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
    restorable: bool = False  #: the provider's files are gone or changed, and the vault has what was recorded
    restored: str = ""  #: what was put back from the vault just before this decision
    lock_free: Seen[bool] = NOT_OBSERVABLE
    named_exists: bool = (
        False  #: the provider holds a session of the id that was asked for, and none of ours began it
    )
    other_writer: str | None = None  #: a program that has the session open and was not started by Holdfast


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

    ``catch_up`` are the ranges of turns that the session has not seen; the history says which turns in them exist.
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
    """Start a new provider session with the whole context, under this id if one was asked for."""

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
    """A decision as an attempt stores it: of its verdicts, those that did not simply pass."""

    kind: DecisionKind
    reason: Reason
    verdicts: tuple[Verdict, ...]

    def about(self, provider_session_id: str | None, catch_up: tuple[tuple[int, int], ...]) -> Decision:
        """The full decision, completed by what the attempt and its pointer store."""
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
    """A verdict as it is stored."""
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


# --- the words for a reason ---
# A sentence says what the evidence shows and no more. A fact that was looked for and not found is called missing:
# it is never reported as the worst that it could have said.

_LONGEST_EVIDENCE = 400


@record
class Words:
    claim: str  #: what the guard has seen when it failed; the evidence follows in parentheses
    doubt: str  #: what is not known when its fact is missing
    holds: str  #: what is true when it passes, in a few words
    says_all: bool = False  #: the evidence says the same in other words


WORDS: Final[Mapping[Reason, Words]] = MappingProxyType(
    {
        Reason.FORCE_FRESH: Words(
            "a fresh start was asked for",
            "whether a fresh start was asked for",
            "no fresh start asked for",
            says_all=True,
        ),
        Reason.RESUME_DISABLED: Words(
            "resuming is switched off",
            "whether resuming is switched on",
            "resuming switched on",
        ),
        Reason.NO_POINTER: Words(
            "no earlier session is on record",
            "which earlier session there is",
            "earlier session on record",
            says_all=True,
        ),
        Reason.CAPABILITY_MISSING: Words(
            "the installed program cannot do what it would take",
            "what the installed program can do",
            "program can do it",
        ),
        Reason.GENERATION_CHANGED: Words(
            "the conversation was reset",
            "whether the conversation was reset",
            "conversation not reset",
        ),
        Reason.RUNTIME_CHANGED: Words(
            "the earlier session belongs to another installation or version",
            "whether this is the installation that it ran on",
            "same installation",
        ),
        Reason.WORKDIR_CHANGED: Words(
            "the earlier session worked in another directory",
            "whether it worked in this directory",
            "same directory",
        ),
        Reason.HISTORY_CHANGED: Words(
            "the history was changed after the earlier session had seen it",
            "whether the history was changed since",
            "same history",
        ),
        Reason.FORK_POINT_MOVED: Words(
            "the session to fork cannot be forked at this turn",
            "whether the session to fork has continued since",
            "fork point reachable",
        ),
        Reason.MODEL_CHANGED: Words(
            "another model was chosen",
            "whether the model is the same",
            "same model",
        ),
        Reason.RETIRED: Words(
            "the earlier session is not used again",
            "whether the earlier session may be used",
            "session still in use",
        ),
        Reason.ERRORS: Words(
            "the earlier session failed too often",
            "how often the earlier session failed",
            "few failures",
        ),
        Reason.CONTEXT_FULL: Words(
            "with this request the earlier session's context window would be too full",
            "how full the earlier session's context window is",
            "room in the context",
        ),
        Reason.TRANSCRIPT_MISSING: Words(
            "the earlier session cannot be picked up",
            "whether the earlier session can be picked up",
            "agent's files there",
        ),
        Reason.TRANSCRIPT_ALTERED: Words(
            "the earlier session's record was changed",
            "whether the earlier session's record was changed",
            "agent's files unchanged",
        ),
        Reason.TRANSCRIPT_AHEAD: Words(
            "the earlier session was continued outside Holdfast",
            "whether the earlier session was continued outside Holdfast",
            "nothing added outside",
        ),
        Reason.RIGHTS_WIDER: Words(
            "more rights were asked for than the earlier session has",
            "which rights the earlier session has",
            "no wider rights",
        ),
        Reason.BUSY: Words(
            "the earlier session is in use",
            "whether the earlier session is in use",
            "session free",
        ),
        Reason.EXPLICIT_ID: Words(
            "the session that was asked for cannot be used",
            "whether the session that was asked for can be used",
            "asked-for session usable",
        ),
        Reason.RESUME_FAILED: Words(
            "the model's service answered the earlier session with an error",
            "whether the earlier session works",
            "service takes the session",
        ),
        Reason.RESUMABLE: Words(
            "nothing prevents resuming; this is what a fresh start would be told",
            "whether anything prevents resuming",
            "nothing in the way",
        ),
    }
)


@record
class Because:
    """Why a decision was made, as the guard that decided has seen it."""

    reason: Reason
    standing: Standing = Standing.FAILED
    evidence: str = ""

    @property
    def sentence(self) -> str:
        """A sentence for agents and people, without a full stop."""
        words = WORDS[self.reason]
        seen = on_one_line(self.evidence, _LONGEST_EVIDENCE)  # it may quote the output of a program
        if self.standing is Standing.MISSING:
            return f"it is not known {words.doubt}" + (f" ({seen})" if seen else "")
        return f"{words.claim} ({seen})" if seen and not words.says_all else words.claim

    @property
    def note(self) -> str:
        """For people: the code, which they can look up, and the evidence."""
        return f"{self.reason} ({self.evidence})" if self.evidence else self.reason.value

    @property
    def message(self) -> str:
        """The failure message of a turn that was not launched."""
        return f"{self.reason}: {self.evidence}"


def because(decision: Decision | Decided) -> Because:
    """The verdict of the guard that gave the decision's reason."""
    for verdict in decision.verdicts:
        if verdict.reason is decision.reason:
            return Because(verdict.reason, verdict.standing, verdict.evidence)
    return Because(decision.reason)
