"""Owns delegations: which session a subagent works in, taken by one at a time, and how it came back.

Light: hook processes read this module.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.domain.records import PlainRecord

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from holdfast.clock import Instant
    from holdfast.domain.ids import SessionId


class DelegationReason(StrEnum):
    RESUMABLE = "session_resumable"
    NOT_RESUMABLE = "session_not_resumable"
    NONE = "no_existing_session"


class DelegationOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"  #: its session was given up meanwhile
    PAUSED = "paused"  #: in phase approval: the session stays open
    LOST = "lost"  #: the subagent gave no answer, or the program that delegated is gone; the session is free again
    ASKED = "asked"  #: only asked what to do: nothing was taken


class NewDelegation(PlainRecord):
    """Work for an agent: in a session of that agent that may continue, otherwise in a new one."""

    id: str  #: the provider's id of the tool call, or minted
    agent: str
    project: str
    new_session_id: SessionId  #: the id of the session that is made if none may continue
    purpose: str = ""
    provider: str | None = None
    provider_session_id: str | None = None  #: of the session that delegates
    owner: str | None = None  #: the process that delegates, see ``processes.owners``
    told: str | None = None  #: set: the subagent was told this session already, so no other is used


class Question(PlainRecord):
    """Asks which session a delegation would continue. No session is made, and none is taken."""

    id: str
    agent: str
    project: str
    session_id: str | None = None  #: judge this session; None: the newest that may continue
    task_id: str | None = None


def is_about(metadata: Mapping[str, Any], task_id: str | None) -> bool:
    """Whether a session with this metadata is about the task: true unless both name a task and they differ."""
    known = metadata.get("task_id")
    return task_id is None or known is None or str(known) == task_id


class DelegatedApproval(PlainRecord):
    """The newest approval of the session, and its answer."""

    id: str
    what: str
    status: str
    note: str | None


class DelegatedSession(PlainRecord):
    """What a delegation needs to know of a session."""

    id: str
    phase: str
    created_at: Instant
    metadata: Mapping[str, Any]
    history: Sequence[tuple[str, str, Instant]]  #: from, to, at
    approval: DelegatedApproval | None = None


class FreeSession(PlainRecord):
    """A session that nobody works in, with everything that ``may_continue`` looks at."""

    agent: str
    project: str
    purpose: str
    session: DelegatedSession
    resume_ready: bool
    error_count: int
    updated_at: Instant
    answered_at: Instant | None  #: of the newest approval, as in ``ApprovalWindow``
    expires_at: Instant | None
    is_waiting: bool  #: there is such an approval

    @property
    def window(self) -> ApprovalWindow | None:
        if not self.is_waiting:
            return None
        return ApprovalWindow(answered_at=self.answered_at, expires_at=self.expires_at)

    @property
    def phase(self) -> Phase:
        return Phase(self.session.phase)

    @property
    def is_delegated(self) -> bool:
        return True


class Delegated(PlainRecord):
    """The answer to a delegation or a question. ``session`` is None only if a question named one that does not exist."""

    id: str
    reason: DelegationReason
    session: DelegatedSession | None

    @property
    def resumed(self) -> bool:
        return self.reason is DelegationReason.RESUMABLE


class DelegationEnd(PlainRecord):
    """A subagent stopped. Which delegation that ends is found by ``id``, if its session and
    ``provider_session_id`` are those given; else by its session; else as the only open one of ``agent`` that
    ``provider_session_id`` has delegated.
    """

    id: str | None = None
    session_id: str | None = None
    agent: str | None = None
    provider_session_id: str | None = None  #: of the session that delegated
    outcome: DelegationOutcome
    summary: str | None = None
    transcript_path: str | None = None
    provider_agent_id: str | None = None


class EndedDelegation(PlainRecord):
    """The result of a ``DelegationEnd``."""

    id: str | None  #: None: the session was never delegated
    session_id: str
    outcome: DelegationOutcome
    ended_now: bool = False  #: False: it was over before
    finalized_now: bool = False
    queued: bool = False  #: True: the store is elsewhere and will decide the result


class Delegation(PlainRecord):
    id: str
    session_id: str | None
    agent: str
    project: str
    resumed: bool
    reason: str
    provider_session_id: str | None
    owner: str | None
    provider_agent_id: str | None
    transcript_path: str | None
    at: Instant
    ended_at: Instant | None
    outcome: str | None


class DelegationCounts(PlainRecord):
    """For the resume rate."""

    delegations: int
    resumed: int
