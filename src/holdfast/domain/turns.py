"""Owns turns, attempts, events and leases: the queue and the record of what ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from holdfast.clock import SECOND, Instant
from holdfast.domain.approvals import Approval, ApprovalStatus, NewApproval
from holdfast.domain.conversations import Conversation, HistoryTurn, SeenTurns
from holdfast.domain.decisions import Decided, Decision, DecisionKind, Reason, Refuse
from holdfast.domain.events import Event
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ApprovalId, AttemptId, ConversationId, ProviderSessionId, RuntimeId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import NOTHING_YET, Pointer, Rights, TranscriptMark
from holdfast.domain.policy import MAX_LEASE_SECONDS
from holdfast.domain.records import field, record, replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.usage import NO_CALL_YET, Usage, UsageReport


class TurnStatus(StrEnum):
    QUEUED = "queued"
    CLAIMED = "claimed"  #: leased, nothing launched yet
    RUNNING = "running"
    WAITING = "waiting"  #: for an approval; no lease, no process
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self not in (TurnStatus.DONE, TurnStatus.FAILED, TurnStatus.CANCELLED)


class AttemptStatus(StrEnum):
    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  #: its lease expired while it was open
    FELL_BACK = "fell_back"  #: the provider refused the session; a fresh attempt followed
    PUT_BACK = "put_back"  #: the turn went back into the queue; does not count as a try
    DEFERRED = "deferred"  #: it waits for an approval; does not count as a try

    @property
    def has_spoken(self) -> bool:
        """Whether the agent ended the attempt itself: it answered, or asked for an approval."""
        return self in (AttemptStatus.DONE, AttemptStatus.DEFERRED)


class AttemptCause(StrEnum):
    """Why an attempt exists: the lineage of a turn's attempts."""

    FIRST = "first"
    RETRY = "retry"  #: after an infrastructure failure
    RECOVERY = "recovery"  #: after its worker vanished
    FALLBACK = "fallback"  #: after a refused resume
    APPROVAL = "approval"  #: after the answer that it had waited for


@record
class TurnRequest:
    """How a turn is to be run; recorded with it."""

    work_dir: str | None = None
    model: str | None = None
    rights: Rights | None = None  #: None: the rights of the first launch
    force_fresh: bool = False
    #: explicit: takes precedence over configuration, never replaced
    provider_session_id: ProviderSessionId | None = None
    allow_wider_rights: bool = False
    #: every pattern that ever applied to the session, besides those in ``rights``
    approve_tools: frozenset[str] = frozenset()

    def else_recorded(self, recorded: Pointer | Try | TurnRequest | None) -> TurnRequest:
        """What is asked for; the directory, the model and the rights that are not, as they were recorded."""
        if recorded is None:
            return self
        return replace(
            self,
            work_dir=self.work_dir or recorded.work_dir,
            model=self.model or recorded.model,
            rights=self.rights or recorded.rights,
        )


@record
class NewTurn:
    prompt: str
    provider: str
    request: TurnRequest = field(default_factory=TurnRequest)
    priority: int = 0  #: between sessions; the turns of one session keep their order
    not_before: Instant | None = None
    runtime_id: RuntimeId | None = None  #: only this runtime may run it
    foreground: bool = False  #: run by a person's own command: never run again automatically
    max_attempts: int | None = None  #: None: the policy's
    key: str | None = None  #: enqueueing again with the same key returns the same turn


@record
class Turn:
    conversation_id: ConversationId
    seq: int
    session_id: SessionId
    provider: str
    status: TurnStatus
    prompt: str
    response: str | None
    request: TurnRequest
    priority: int
    not_before: Instant | None
    runtime_id: RuntimeId | None
    foreground: bool
    retry_of: int | None  #: the turn that this one repeats
    attempts: int
    max_attempts: int
    generation: int
    dropped: int | None  #: the revision that took it out of the history
    failure: Failure | None
    cancel_requested: bool
    created_at: Instant
    ended_at: Instant | None
    tries: int = 0  #: the attempts that count against ``max_attempts``
    next_cause: AttemptCause = AttemptCause.FIRST  #: of the attempt that comes next

    @property
    def has_unused_answer(self) -> bool:
        """Whether its approval was answered and no attempt has used the answer yet."""
        return self.next_cause is AttemptCause.APPROVAL and self.status in (
            TurnStatus.QUEUED,
            TurnStatus.CLAIMED,
        )


#: in microseconds; a lease that ends later than this from now was not granted by this clock
LONGEST_LEASE = round((MAX_LEASE_SECONDS + 300) * SECOND)


@record
class Lease:
    """The right to write to one turn; ``fence`` proves it."""

    session_id: SessionId
    conversation_id: ConversationId
    seq: int
    attempt: int
    fence: int
    owner: str
    expires_at: Instant
    renewal: str | None = None  #: the word of its last renewal; None: not renewed, or renewed without a word

    def is_over(self, now: Instant) -> bool:
        """Expired; or longer than any lease can be, as after the clock was set back, or of an older version."""
        return self.expires_at <= now or self.expires_at > now + LONGEST_LEASE


@record
class ClaimRequest:
    """``key`` identifies the call: a repetition after a lost reply gets the same claim again."""

    runtime: Runtime
    owner: str
    key: str
    lease_seconds: float
    session_id: SessionId | None = None  #: only this session
    #: how long a turn is left to the runtime that holds its session; None: as the store's own settings say
    affinity_seconds: float | None = None


@record
class ProcessMark:
    """Identifies a launched process group, also after its process id is reused."""

    machine: str
    boot_id: str
    pgid: int
    started_at: int  #: clock ticks since boot


@record
class Orphan:
    """An open attempt whose lease has expired."""

    lease: Lease
    process: ProcessMark | None
    foreground: bool


#: attempts that a situation holds at most, the newest ones
MOST_TRIES = 200


@record
class Try:
    """One earlier attempt, without its evidence, its usage and what it has seen."""

    number: int
    fence: int
    provider: str
    status: AttemptStatus
    kind: DecisionKind
    provider_session_id: ProviderSessionId | None
    forked_from: ProviderSessionId | None
    work_dir: str | None
    model: str | None
    rights: Rights | None
    launched: bool  #: a process was started
    saved: bool  #: the provider's own session holds something of it
    started_at: Instant
    failure: Failure | None

    @property
    def reached_agent(self) -> bool:
        """The agent may have been sent the request."""
        spoke = self.status.has_spoken or self.status is AttemptStatus.FELL_BACK
        return self.launched or self.saved or spoke


@record
class TriedTurn:
    """One turn of the session that was tried before."""

    seq: int
    status: TurnStatus
    is_dropped: bool  #: it left the history
    failure: Failure | None
    work_dir: str | None  #: that the turn asked for
    tries: tuple[Try, ...]  #: oldest first

    @property
    def was_stopped(self) -> bool:
        """An agent worked on the turn, and somebody or something else ended it."""
        stopped = self.failure is not None and self.failure.then.was_stopped
        return stopped and any(each.reached_agent for each in self.tries)

    @property
    def first_spoken(self) -> Try | None:
        """The first attempt in which the agent came to an end of its own."""
        return next((each for each in self.tries if each.status.has_spoken), None)


@record
class Situation:
    """What the next turn of a session depends on.

    ``tried`` reaches back to the newest turn that was answered and is still in the history, at most
    ``MOST_TRIES`` attempts. Turns of other sessions in the same conversation are not in it.
    """

    session: Session
    conversation: Conversation
    provider: str | None  #: that was asked for, else the session's, else that of its pointer
    pointer: Pointer | None  #: of that provider, as it is stored
    now: Instant
    tried: tuple[TriedTurn, ...] = ()  #: oldest first
    untold: tuple[Approval, ...] = ()  #: settled since the agent last answered: it is to be told of them
    withheld: frozenset[str] = frozenset()  #: ids of the tool calls that have ever waited for a person
    #: who has the lease of the session. None in a claim: the claim itself has it
    holder: Orphan | None = None
    #: how a plain turn would be sent, as far as the store knows. None in a claim, which has its own
    decision: Decision | None = None

    def earlier(self, seq: int) -> Iterator[TriedTurn]:
        """The turns that were tried before turn ``seq``, the newest first."""
        return (turn for turn in reversed(self.tried) if turn.seq < seq)

    def tries_of(self, seq: int) -> tuple[Try, ...]:
        """The earlier attempts of one turn, oldest first."""
        return next((turn.tries for turn in self.tried if turn.seq == seq), ())

    @property
    def newest_try(self) -> Try | None:
        return self.tried[-1].tries[-1] if self.tried else None

    @property
    def last_directory(self) -> str | None:
        """Where the session ran last, or was to run."""
        for turn in reversed(self.tried):
            for each in reversed(turn.tries):
                if each.work_dir is not None:
                    return each.work_dir
            if turn.work_dir is not None:
                return turn.work_dir
        return None


def last_told(tried: Iterable[TriedTurn], seq: int) -> Instant:
    """When the agent was last told of answers: as the newest turn before ``seq`` began that it has answered.

    A turn that failed, or runs again, is told the same answers once more.
    """
    for turn in reversed(tuple(tried)):
        # the first one that spoke: what continues after a tool call's approval is told nothing
        spoken = None if turn.is_dropped or turn.seq >= seq else turn.first_spoken
        if spoken is not None:
            return spoken.started_at
    return Instant(0)


@record
class Claim:
    lease: Lease
    turn: Turn
    decision: Decision
    pointer: Pointer | None
    cause: AttemptCause
    epoch: int
    generation: int
    covers: SeenTurns  #: what the agent will have seen once this turn was sent
    situation: Situation  #: of the moment in which it was decided
    approval: Approval | None = (
        None  #: answered and not used yet: the turn is resumed natively or not run at all
    )
    attempt_id: AttemptId | None = None  #: None only from a server that is older than attempt ids


@record
class Refusal:
    """A turn that a guard refused: it has ended as failed, and there is no lease."""

    turn: Turn
    decision: Refuse


@record
class Launch:
    """What is known when the process starts; ``decision`` may only weaken the claim's."""

    decision: Decision
    process: ProcessMark | None = None
    provider_session_id: ProviderSessionId | None = None  #: minted by us before the launch
    work_dir: str | None = None
    model: str | None = None
    rights: Rights | None = None
    transcript: TranscriptMark | None = None  #: the session that is resumed, as it was before this attempt
    #: turns that its prompt tells of; the agent has seen these and those of ``Claim.covers`` once it was sent
    told: SeenTurns = SeenTurns()


@record
class TurnEnd:
    """Everything that an attempt's end changes, applied as one."""

    status: TurnStatus
    response: str | None = None
    failure: Failure | None = None
    provider_session_id: ProviderSessionId | None = None  #: as the provider returned it
    resumable: bool = True  #: the provider's store really holds the session
    transcript: TranscriptMark | None = None
    usage: UsageReport = field(default_factory=UsageReport)
    retry_at: Instant | None = None  #: the same turn again, while attempts are left
    phase: Phase | None = None
    approval: NewApproval | None = None  #: what a turn that ends as ``waiting`` waits for
    refused_by: Reason | None = None  #: the guard that refused at the launch
    title: str | None = (
        None  #: of the provider session; None: it has none, or the session keeps the one it had
    )


@record
class AttemptSummary:
    """How an attempt began and ended."""

    number: int
    status: AttemptStatus
    kind: DecisionKind
    reason: Reason
    failure: Failure | None


@record
class WithheldCall:
    """A tool call that waited for a person, and what became of its approval."""

    call_id: str
    approval_id: ApprovalId
    status: ApprovalStatus
    is_used: bool  #: the answer was used: the call was made, or the agent was told that it is denied
    void_reason: str | None


@record
class PastRequest:
    """Which turns of the past are read at a time, and how much of each."""

    spans: tuple[tuple[int, int], ...]  #: of sequence numbers, both ends included
    limit: int = 100  #: turns
    calls: bool = True  #: with their attempts and tool calls
    characters: int | None = None  #: of each text, from its beginning; None: all
    #: an attempt and the number of one of its events: only calls before this event
    before: tuple[int, int] | None = None
    unsent: bool = False  #: also turns that no agent was sent


@record
class RecordedTurn:
    """A turn of the past with what is on record of it, as ``read_past`` gives it."""

    turn: HistoryTurn
    conversation_id: (
        ConversationId  #: that the turn was recorded in; the inherited turns of a fork have its source's
    )
    attempts: tuple[AttemptSummary, ...] = ()  #: oldest first
    #: tool calls and their results with the number of their attempt, the newest ones, oldest first
    calls: tuple[tuple[int, Event], ...] = ()
    older_calls: int = 0  #: how many tool calls came before ``calls``
    withheld: tuple[WithheldCall, ...] = ()  #: oldest first


@record
class Attempt:
    conversation_id: ConversationId
    seq: int
    number: int
    session_id: SessionId
    provider: str
    runtime_id: RuntimeId | None
    owner: str
    fence: int
    cause: AttemptCause
    status: AttemptStatus
    decision: Decided
    provider_session_id: ProviderSessionId | None
    work_dir: str | None
    model: str | None
    epoch: int
    seen: SeenTurns
    process: ProcessMark | None
    started_at: Instant
    ended_at: Instant | None
    failure: Failure | None
    usage: Usage
    version: str | None
    rights: Rights | None
    transcript: TranscriptMark | None
    generation: int
    forked_from: ProviderSessionId | None
    id: AttemptId | None = None  #: random, made before the launch; None for one of an older version
    before: TranscriptMark | None = None  #: the session that it resumed, as it was at its launch

    def as_try(self) -> Try:
        """As a situation has it."""
        return Try(
            self.number,
            self.fence,
            self.provider,
            self.status,
            self.decision.kind,
            self.provider_session_id,
            self.forked_from,
            self.work_dir,
            self.model,
            self.rights,
            self.process is not None,
            self.transcript is not None,
            self.started_at,
            self.failure,
        )

    def pointer(self) -> Pointer | None:
        """The pointer that this attempt alone gives: where its provider session can be resumed."""
        if not self.provider_session_id:
            return None
        has_begun_it = self.decision.kind is DecisionKind.FRESH and not self.status.has_spoken
        return Pointer(
            self.session_id,
            self.provider,
            self.provider_session_id,
            self.runtime_id,
            self.work_dir,
            self.model,
            self.epoch,
            self.generation,
            self.seen,
            self.rights,
            self.transcript or (NOTHING_YET if has_begun_it else None),
            None if self.status.has_spoken else NO_CALL_YET,
            self.version,
            self.started_at,
        )


@record
class Heartbeat:
    """The renewed lease, and whether the turn was asked to stop."""

    lease: Lease
    cancel_requested: bool


@record
class LateReport:
    """What a worker reported after it had lost its lease: stored as evidence, never applied."""

    seq: int
    fence: int
    verb: str
    report: Mapping[str, Json]
    at: Instant
    attempt: int | None = None  #: the attempt that had that fence


@record
class OutsideTurn:
    """A turn that a person made in the agent's own program."""

    key: str  #: recorded once under it
    prompt: str
    response: str | None
    began_at: Instant | None = None  #: None: not known, so that it is recorded as of now
    ended_at: Instant | None = None
    events: tuple[Event, ...] = ()  #: the calls that it made, numbered from 1


@record
class Adoption:
    """What a provider's own session holds beyond what is known of it, and how far its pointer moves with that."""

    before: Pointer  #: the pointer by which that was found
    turns: tuple[OutsideTurn, ...]
    seen: SeenTurns  #: what the session has really seen, besides these turns
    transcript: TranscriptMark | None  #: how far it was read
    moves: bool = True  #: False: the turns join the history, and the pointer stays behind them
    counted: Usage | None = None  #: as in ``Store.set_pointer``
    title: str | None = None  #: as in ``TurnEnd``
