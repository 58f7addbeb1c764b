"""Owns the data of the unit tests: each builder makes a new value that is fine, changed as the test asks."""

from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.clock import SECOND, Instant
from holdfast.domain.conversations import ChangeKind, HistoryChange, SeenTurns
from holdfast.domain.decisions import (
    Decision,
    Facts,
    Reason,
    ResumeRequest,
    TranscriptFacts,
    Verdict,
    decision_kind,
)
from holdfast.domain.guards import GUARDS, decide_resume
from holdfast.domain.ids import ConversationId, ProviderSessionId, RuntimeId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Pointer, ProviderSession, Rights, TranscriptMark
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.runtimes import Capabilities, Runtime
from holdfast.domain.sessions import Session, SessionKind
from holdfast.domain.usage import ContextUse

NOON = Instant(1_767_873_600 * SECOND)  #: 2026-01-08T12:00:00Z
HERE = RuntimeId("rt-here")
RECORDED_ID = ProviderSessionId("5b1c2d3e-recorded")
OTHER_ID = ProviderSessionId("9f8e7d6c-other")
WIDER = Rights("bypassPermissions")  #: than any pointer here records


def a_session(**changes: Any) -> Session:
    """A delegated session that may go on at NOON."""
    session = Session(
        id=SessionId("agent-20260108-115500-abc12345"),
        conversation_id=ConversationId("conv-20260108-115500-abc12345"),
        agent="terraform-architect",
        kind=SessionKind.DELEGATED,
        purpose="approval_workflow",
        name=None,
        provider="claude",
        phase=Phase.APPROVAL,
        resume_ready=True,
        metadata={},
        error_count=0,
        last_error=None,
        created_at=Instant(NOON - 300 * SECOND),
        updated_at=Instant(NOON - 60 * SECOND),
        finalized_at=None,
        summary=None,
        parent_session_id=None,
    )
    return replace(session, **changes)


def a_runtime(**changes: Any) -> Runtime:
    runtime = Runtime(
        machine="build-7", provider="claude", distribution="npm", home="/home/ada/.claude", version="2.1.0"
    )
    return replace(runtime, **changes)


def capabilities(**changes: Any) -> Capabilities:
    """Everything a provider can do, except forking at an earlier turn."""
    able = Capabilities(
        can_resume=True,
        can_fork=True,
        can_fork_at_turn=False,
        chooses_id=True,
        append_only_transcript=True,
        reports_context=True,
    )
    return replace(able, **changes)


def a_pointer(**changes: Any) -> Pointer:
    """Recorded in full after four turns."""
    pointer = Pointer(
        session_id=SessionId("agent-20260108-115500-abc12345"),
        provider="claude",
        provider_session_id=RECORDED_ID,
        runtime_id=HERE,
        work_dir="/srv/infra",
        model="opus",
        epoch=2,
        generation=1,
        seen=SeenTurns.up_to(4),
        rights=Rights("plan", frozenset({"Read", "Grep"}), frozenset({"/srv/modules"}), ("--verbose",)),
        transcript=TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=4096, digest="d1935t"),
        context=ContextUse(tokens=20_000, window=200_000),
        version="2.1.0",
        updated_at=NOON,
    )
    return replace(pointer, **changes)


def a_fork_source(**changes: Any) -> Pointer:
    """Forked at the last of its turns."""
    return a_pointer(**{"fork_seq": 4} | changes)


def a_transcript(**changes: Any) -> TranscriptFacts:
    """What the provider's store holds when nobody touched it."""
    return replace(TranscriptFacts(requests=4, prefix_intact=True, foreign_turns=0, grown=False), **changes)


def some_facts(**changes: Any) -> Facts:
    """Everything there is to see at launch, all of it as recorded; the fifth turn is about to run."""
    seen = Facts(
        native_resume=True,
        capabilities=capabilities(),
        generation=1,
        runtime_id=HERE,
        version="2.1.0",
        changes=(),
        provider_session=ProviderSession(),
        seq=5,
        same_directory=True,
        transcript=a_transcript(),
        lock_free=True,
    )
    return replace(seen, **changes)


def a_request(**changes: Any) -> ResumeRequest:
    """Asks for what the pointer records."""
    return replace(ResumeRequest(model="opus", rights=a_pointer().rights, prompt_tokens=100), **changes)


def an_edit(seq: int, revision: int) -> HistoryChange:
    return HistoryChange(revision, ChangeKind.EDIT, seq, seq)


def a_truncation(first: int, last: int, revision: int) -> HistoryChange:
    return HistoryChange(revision, ChangeKind.TRUNCATE, first, last)


@dataclass(frozen=True)
class Situation:
    """All that a decision is made from; as it is, the recorded session is resumed."""

    pointer: Pointer | None = field(default_factory=a_pointer)
    request: ResumeRequest = field(default_factory=a_request)
    facts: Facts = field(default_factory=some_facts)
    policy: ResumePolicy = field(default_factory=ResumePolicy)

    def decide(self) -> Decision:
        return decide_resume(self.pointer, self.request, self.facts, self.policy)

    def verdict(self, reason: str) -> Verdict:
        """What the guard of this reason says; every guard speaks exactly once."""
        verdicts = self.decide().verdicts
        assert len(verdicts) == len(GUARDS)
        (found,) = (verdict for verdict in verdicts if verdict.reason == reason)
        return found


def said(decision: Decision) -> tuple[str, Reason]:
    return decision_kind(decision), decision.reason
