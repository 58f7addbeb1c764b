"""Owns the Store contract: every verb, none optional; these docstrings are its specification, whole and in one place.

One call is one transaction, and a call that raises has changed nothing; ``clean_up`` alone is several, and
``watch_queue`` none. Everything happens in the workspace that the store was opened for; what is in another one
does not exist.
``NotFound`` is raised for an id that does not exist; a verb that only lists what belongs to it lists nothing. Instants are the store's own.
``InvalidInput`` refuses a limit or a place to begin that is negative or beyond 2**53.
``StoreCorrupt`` names a row that cannot be understood, to whoever asks for what it belongs to: nobody else is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from holdfast.clock import Instant
from holdfast.domain.approvals import Answer, Approval, NewApproval
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision
from holdfast.domain.delegations import (
    Delegated,
    Delegation,
    DelegationCounts,
    DelegationEnd,
    EndedDelegation,
    FreeSession,
    NewDelegation,
    Question,
)
from holdfast.domain.events import Event
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ApprovalId, ProviderSessionId, RuntimeId, SessionId, Workspace
from holdfast.domain.observed import ObservedSession, Sighting
from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.domain.pointers import Pointer, ProviderSessionTotals, TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    PhaseChange,
    Session,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionState,
    SessionUpdate,
)
from holdfast.domain.statistics import Statistics, Totals
from holdfast.domain.telling.welcome import Welcome
from holdfast.domain.tokens import NewToken, Role, Token
from holdfast.domain.turns import (
    Adoption,
    Attempt,
    Claim,
    ClaimRequest,
    Heartbeat,
    LateReport,
    Launch,
    Lease,
    NewTurn,
    Orphan,
    Refusal,
    Situation,
    Turn,
    TurnEnd,
    TurnRequest,
)
from holdfast.domain.usage import NOTHING_REPORTED, Usage, UsageGroup, UsageReport, UsageTotal

if TYPE_CHECKING:
    from holdfast.store.wire import Coder

F = TypeVar("F", bound=Callable[..., Any])


@record
class Facts:
    """What is true of a verb besides what it does; it stands on the verb, and nowhere else."""

    roles: frozenset[Role]  #: that a token must have to call it on a server; admins may call every verb
    repeatable: bool  #: a second call with the same arguments changes nothing more
    hooks: bool  #: hooks call it: it must work with few imports
    local: bool  #: of one process: it has no call of its own over HTTP
    in_parts: bool  #: its answer may be long: a server reads it with ``Store.in_parts``


#: every verb by its name, in the order of the contract
FACTS: Final[dict[str, Facts]] = {}


def verb(
    *roles: Role,
    repeatable: bool = True,
    hooks: bool = False,
    local: bool = False,
    in_parts: bool = False,
) -> Callable[[F], F]:
    """Declare the facts of a verb. What readers may call, operators and workers may call, too."""
    allowed = {*roles, Role.ADMIN}
    if Role.READER in allowed:
        allowed |= {Role.OPERATOR, Role.WORKER}

    def declare(function: F) -> F:
        FACTS[function.__name__] = Facts(frozenset(allowed), repeatable, hooks, local, in_parts)
        return function

    return declare


@dataclass(slots=True)
class KeyedCall:
    """A call of a verb that happens once for its caller and key, however often it is made."""

    caller: str
    key: str
    request: str  #: a digest of everything that was asked for
    answer: Coder
    text: str | None = None  #: the answer as JSON, after the call


class QueueWatch(AbstractContextManager["QueueWatch"], Protocol):
    """For one waiting thread; its end closes it.

    News is a hint and no promise: it may be about nothing, and may get lost in an outage. Whoever waits looks
    for turns now and then all the same, as for those whose time comes.
    """

    def wait(self, seconds: float) -> bool:
        """Whether a turn may have become claimable, since the last wait or since it was opened.

        False once the time is over, or it is closed. StoreUnavailable: it is of no use any more.
        """
        ...

    def close(self) -> None:
        """Idempotent, and from any thread: who waits stops waiting."""
        ...

    def __exit__(self, *_: object) -> None:
        self.close()


class Store(Protocol):
    """Safe to use from several threads and, for what lies behind it, from several processes.

    Each verb declares its facts: see ``verb``.
    """

    # --- sessions ---

    @verb(Role.OPERATOR)
    def create_session(self, new: NewSession) -> Session:
        """Begin a session, and its conversation unless one is named.

        Idempotent by ``new.id``. Conflict: the id is another session's, the name is taken, or the
        agent already has an open session in that conversation.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def get_session(self, session_id: str) -> Session:
        """UnreadableSession for a row that cannot be understood; such a row affects no other verb."""
        ...

    @verb(Role.READER, Role.AGENT)
    def find_session(self, given: str) -> SessionId:
        """By id, by name, or by the unique beginning of an id, in that order. AmbiguousId for several."""
        ...

    @verb(Role.READER, Role.AGENT)
    def session_state(self, session_id: str) -> SessionState:
        """Its status, by what is true at this moment, and where its provider would pick up."""
        ...

    @verb(Role.READER, Role.AGENT)
    def phase_history(self, session_id: str) -> tuple[PhaseChange, ...]:
        """Oldest first; empty for an unknown session."""
        ...

    @verb(Role.READER)
    def trail(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[SessionChange, ...]:
        """Who changed what about a session, oldest first, those with a number behind ``after``.

        Of metadata only the keys. What a change before version 11 was made by is not known.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, repeatable=False)
    def update_session(self, session_id: str, change: SessionUpdate) -> Session:
        """Change what is given, and nothing else; the session counts as active now.

        Any phase may follow any open one; the change is recorded in the history. Only ``approval`` is left
        for another open one when nothing is asked any more: Conflict while an approval can be answered or
        a turn waits for it; one that has merely expired is void then. SessionClosed once
        the phase is final. PhaseConflict if the phase is not ``expected_phase``. Metadata is merged
        key by key; InvalidInput if the result is too large. An error raises the error count by one; ``clear_errors`` sets it back before. A summary replaces the one before.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def finalize_session(self, session_id: str, outcome: Phase, summary: str | None) -> Session:
        """Close for good: turns that wait are cancelled, one that runs is asked to stop, and what was
        asked without an answer is void, and so is an answer that a turn has not acted on.

        Without a summary, the one that an update gave it stays.
        SessionClosed if it is closed already: a session is never finalized twice.
        """
        ...

    @verb(Role.READER)
    def list_sessions(self, wanted: SessionFilter, limit: int, cursor: str | None = None) -> SessionPage:
        """Newest first, at most ``limit`` rows a page, and each one's state. A row that cannot be understood
        is named, not raised. A page may hold fewer rows, of much metadata for example, and still not be the last one.
        """
        ...

    @verb(Role.READER)
    def children(self, session_id: str) -> tuple[Session, ...]:
        """The sessions that were forked from this one, oldest first."""
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def rename_session(self, session_id: str, name: str | None) -> Session:
        """Names are unique: Conflict if another session has it."""
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def remove_session(self, session_id: str) -> None:
        """Delete it and its conversation. Busy while it is leased; Conflict while forks or others need it.

        A provider session that another session points to, or was the last to write to, becomes that one's.
        """
        ...

    @verb(Role.OPERATOR)
    def clean_up(self, old: Old, *, dry_run: bool = False) -> CleanupReport:
        """Abandon what has been idle since before a cutoff, delete what has been final since before it.

        Delegated sessions have one cutoff, conversations one of their own, or none: then they stay. With a
        ``project`` nothing outside that directory, or outside ``old.places`` in it, is touched; without, what was only watched and last seen before ``old.cutoff`` is deleted.
        A session belongs to the project it was begun in; if none is recorded, to the directories of its pointers, all of which must be inside.
        A conversation that a session of another project shares stays.
        Leased sessions, those with waiting turns, and those with an approval that can still be answered are not idle. What a remaining fork reads through
        to stays. A retired provider session id is remembered for good. Works in batches, each as a whole:
        others may come in between, and are respected; if it raises, the batches before have happened, and
        another call goes on. ``dry_run`` is one look, and changes nothing.
        """
        ...

    # --- conversations ---

    @verb(Role.READER, Role.AGENT)
    def get_conversation(self, conversation_id: str) -> Conversation: ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def history(
        self,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        unsent: bool = True,
    ) -> tuple[HistoryTurn, ...]:
        """The current history, oldest first; with ``limit``, its newest turns. Reads through forks.

        Without ``unsent``, what agents are told of: not the turns that wait to be begun, nor those that were
        refused, cancelled, interrupted or found impossible (locked, config, missing_binary) before any agent was
        started for them.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def edit_turn(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        """Add a revision; later turns stay. SessionClosed. Every pointer that has seen the turn stops being resumable.

        An open turn's prompt can be edited; what already runs keeps the old one, and is noticed later.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def truncate(self, session_id: str, keep: int) -> Conversation:
        """Take every turn after ``keep`` out of the history; waiting ones are cancelled, their approvals void.

        Conflict while one of them runs. Rows and sequence numbers stay taken.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def retry_turn(self, session_id: str, seq: int, *, prompt: str | None = None) -> Turn:
        """Truncate before ``seq`` and enqueue its prompt again, as a new turn with ``retry_of``."""
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def new_generation(self, session_id: str) -> Conversation:
        """Begin again with an empty history; no pointer from before is resumable."""
        ...

    @verb(Role.OPERATOR)
    def fork(
        self, session_id: str, child_id: SessionId, *, at: int | None = None, name: str | None = None
    ) -> Session:
        """A new session on a new conversation that begins with this history up to ``at``.

        In constant time, whatever lies behind it. The parent is not changed, and its later changes
        are invisible to the child. By default everything before the first open turn. Idempotent by
        ``child_id``. Conflict if ``at`` is not settled yet.
        """
        ...

    # --- the queue ---

    @verb(Role.OPERATOR, repeatable=False)
    def enqueue_turn(self, session_id: str, new: NewTurn) -> Turn:
        """Idempotent by ``new.key``. SessionClosed if the session is final."""
        ...

    @verb(Role.OPERATOR, Role.WORKER, repeatable=False)
    def record_turn(self, session_id: str, new: NewTurn, response: str | None, usage: Usage) -> Turn:
        """A turn that has already happened. Idempotent by ``new.key``; counts as a success.

        InvalidInput for usage that nobody can have had: negative, not finite, or beyond 2**53.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def get_turn(self, conversation_id: str, seq: int) -> Turn: ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def turns(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[Turn, ...]:
        """This session's own turns in order, dropped ones included."""
        ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def newest_turns(
        self, session_id: str, limit: int, *, before: int | None = None, dropped: bool = True
    ) -> tuple[Turn, ...]:
        """The last ``limit`` of this session's own turns, in order, however many of others came since.

        With ``before``, those of a smaller number; without ``dropped``, those that are still in the history.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def head_turn(self, session_id: str) -> Turn | None:
        """The session's oldest open turn: the one that runs, waits, or comes next."""
        ...

    @verb(Role.WORKER)
    def claim_turn(self, request: ClaimRequest) -> Claim | None:
        """Take the best head turn that this runtime can run, decide how, and open the attempt.

        Two claims never get the same turn. Turns of one session run one at a time and in order;
        priority orders sessions. A turn that is pinned to no runtime is at first for the one that its
        session's pointer names. Any other gets it once it could have run for ``request.affinity_seconds``
        (by default the store's own ``queue.affinity_seconds``), or at once by a claim of that very session. A head that must wait, for a time or for another writer of its
        provider session, is passed over and takes no lease; so is one that cannot be understood. A head
        that a guard refuses ends as failed. The decision is made in the same transaction, from the claiming runtime. Idempotent by
        ``request.key`` while the attempt is open: the answer to a lost reply is the same claim.

        The claim carries the session's situation, read in the same transaction.

        A turn whose approval was answered resumes the very provider session that deferred, or is refused,
        and then the approval is void. If the one session that was asked for waits for an approval:
        NeedsApproval, or Refused once that has expired.
        """
        ...

    @verb(Role.WORKER, local=True)
    def watch_queue(self) -> QueueWatch:
        """Be told when a turn can be claimed. No transaction: it reads nothing, and a claim decides.

        What becomes claimable after this call is news, whoever did it; but not to a worker what its own
        ``finish_turn`` leaves to it, nor what only the passing of time makes claimable.
        """
        ...

    @verb()
    def start_turn(self, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
        """Enqueue a turn and claim it at once. Busy if the session has open turns: nothing is changed.

        NeedsApproval if the first of them waits for one, or Refused once that has expired. A person's turn
        does not wait for one that itself waits for a limit to pass: that one ends as failed.

        Idempotent by ``request.key`` like a claim. Conflict if ``new.key`` is another turn's already.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def situation(self, session_id: str, provider: str | None = None) -> Situation:
        """What the next turn of a session depends on, all of one moment, without texts. Changes nothing.

        Without a provider, the session's own is meant, else that of its pointer. Every claim carries the same
        record, read in its own transaction.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def adopt_turns(self, adoption: Adoption, lease: Lease | None = None) -> Situation | None:
        """Take turns that were made in the provider's own program into the history, and move the pointer past them.

        The situation afterwards. None, and nothing has changed, if somebody else has the session's lease, or if
        the pointer is not ``adoption.before`` any more. Idempotent: each turn is recorded once under its key.
        LeaseLost if ``lease``, of the turn that is about to be sent, is not held any more. SessionClosed.
        """
        ...

    @verb(Role.WORKER)
    def heartbeat(self, lease: Lease, seconds: float, renewal: str | None = None) -> Heartbeat:
        """Renew from now on; an expired lease too, if nobody took it or its provider session. Else LeaseLost.

        ``renewal`` is a word that the holder draws for each renewal, and says again if the reply was lost. The
        renewed lease carries it. LeaseLost, if the last renewal was neither the lease's own nor this one: a
        copy of the holder, as on a machine made from a snapshot of this one, has the same lease and goes on.
        """
        ...

    @verb(Role.WORKER)
    def launch(self, lease: Lease, launched: Launch) -> None:
        """Record what is about to start: the turn runs, and the answer that it acts on is used up.

        Refused if its new id is retired.

        LeaseLost, also if the lease had expired and its provider session has another writer since.
        Conflict for a decision stronger than the claim's, for an id other than the one that was asked
        for, for a fork with the id of its source, for an id that another session or another workspace has
        used, for anything but a resume to act on an answer, for another directory than the turn asked for, or
        else than was recorded (a directory of another runtime does not count, one of no known runtime does), and
        for rights that are wider than those that the turn asked for, or else those that were recorded.
        """
        ...

    @verb(Role.WORKER)
    def record_events(self, lease: Lease, events: Sequence[Event]) -> None:
        """Atomic. Idempotent by ``event.number``. LeaseLost: nothing is written then."""
        ...

    @verb(Role.WORKER)
    def pin(
        self, lease: Lease, provider_session_id: ProviderSessionId, transcript: TranscriptMark | None = None
    ) -> None:
        """The provider's store holds this session: point to it. Idempotent.

        A resumed one has seen the turn only if its transcript has another turn.

        Conflict if the attempt runs another one, is a fork of this one, or if another session or another workspace
        has used this one. After the lease is lost only an empty slot of the
        session's newest attempt is filled, and no pointer moves; LeaseLost otherwise.
        """
        ...

    @verb(Role.WORKER)
    def fall_back(
        self, lease: Lease, failure: Failure, key: str, usage: UsageReport = NOTHING_REPORTED
    ) -> Claim:
        """The session that was to be resumed, or forked, did not work before anything was done: go on fresh.

        One that is ``gone`` is retired. Any other failure leaves it in doubt, and its pointer as it is, until the
        fresh attempt ends: answered, it retires that session as ``poisoned``; else the session is kept, since the
        fault may lie elsewhere. What was used all the same, in a session that nobody asked for, counts as it is.

        A new attempt of the same try, under a new fencing token. Idempotent by ``key``. Conflict if
        nothing was resumed, if the turn asked for that very session by name, or if it acts on an answer.
        """
        ...

    @verb(Role.WORKER, repeatable=False)
    def put_back(
        self, lease: Lease, not_before: Instant | None = None, because: Failure | None = None
    ) -> Turn:
        """Return a turn to the queue; this does not count as a try. The attempt says ``because`` of what. LeaseLost.

        What was launched already is gone on with, as after a recovery. One that was asked to stop is cancelled
        instead, and one that a person started ends as failed, unless it has an answer to act on.
        """
        ...

    @verb(Role.WORKER)
    def finish_turn(self, lease: Lease, end: TurnEnd) -> Turn:
        """Turn end, response, usage, pointer, retirement, counters, retry and queue, as one.

        InvalidInput for usage that nobody can have had, as in ``record_turn``. Idempotent. LeaseLost if the token is stale: the report is kept apart as evidence, and
        nothing else changes. An empty id never replaces a pointer; a retired one never becomes one.
        A provider session that its provider did not save is retired. Another id after a failed resume
        is a rejection: the session that was asked for answers for it, and no pointer moves. A resumed
        session has seen the turn if it answered, or if its transcript has another turn; else what it had seen.
        The id of its source is none of a fork's own; a source in which a fork was answered is retired. An id that
        another session or another workspace has used is not recorded; what was answered there counts, and the next
        turn starts fresh.

        ``waiting`` takes an approval: the attempt is deferred, which does not count as a try, nobody holds
        the turn, the pointer moves as if it had answered, and the session is in phase ``approval``; one that
        was asked to stop is cancelled instead. Without ``phase``, a conversation that is ``initializing`` becomes
        ``investigating``. ``phase`` does not take a session out of ``approval`` for another
        open one while something is asked. A turn that ends for good voids what it has not acted on; ``refused_by`` says why.

        ``retry_at`` puts a failed turn back into the queue while tries are left; after a limit, once.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def cancel_turn(self, session_id: str, seq: int) -> Turn:
        """At once for a waiting turn, whose approval is void then; a running one is asked to stop.

        Conflict if it has ended otherwise.
        """
        ...

    @verb(Role.READER)
    def orphans(self, limit: int = 100, *, even_live: bool = False) -> tuple[Orphan, ...]:
        """Open attempts whose lease has expired, the oldest first; ``even_live``: those that have not, too."""
        ...

    @verb(Role.READER)
    def holder(self, session_id: str) -> Orphan | None:
        """The open attempt of a session that is leased now, whether or not the lease has expired."""
        ...

    @verb(Role.WORKER, repeatable=False)
    def recover(
        self,
        orphan: Orphan,
        *,
        owner_is_gone: bool = False,
        response: str | None = None,
        transcript: TranscriptMark | None = None,
        answered: bool = False,
        events: Sequence[Event] = (),
    ) -> Turn:
        """End an orphan's attempt as interrupted; the turn runs again unless a person started it.

        One that had not been launched yet keeps the answer that it was to act on, and runs again.

        A turn that does not run again keeps ``response``: what its agent had said by then. With ``transcript``
        the attempt's own provider session holds its request, and is pointed at, as after ``pin``; if that is
        ``answered`` there to its end, the turn is done, with that response, and what it used is not known.
        Nothing is ``answered`` that was asked to stop.

        ``events`` are kept as by ``record_events``: what happened in the attempt, and nobody has recorded yet.
        Conflict if the attempt has recorded an event of such a number meanwhile: its worker is late, not gone.

        Whoever calls has made sure that its process is gone; with ``owner_is_gone`` also that the
        lease's owner is, and then it need not have expired. Conflict if it is no orphan any more,
        or while another transaction writes to its session: recovery waits for nobody.
        """
        ...

    # --- approvals ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT)
    def request_approval(self, session_id: str, new: NewApproval) -> Approval:
        """An agent asks, and its session is in phase ``approval``. Idempotent by ``new.id``.

        SessionClosed. Conflict if the id is another request's.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def get_approval(self, approval_id: str) -> Approval: ...

    @verb(Role.READER, Role.AGENT)
    def find_approval(self, given: str) -> ApprovalId:
        """By id, by the unique beginning of one, or by a session: the only one of it that can be answered now,
        else its newest. AmbiguousId.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def approvals(
        self,
        *,
        session_id: str | None = None,
        open_only: bool = True,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Approval, ...]:
        """Oldest first, those behind the approval ``after``; NotFound if there is none of that id.

        Open ones are those without an answer, expired ones included. There may be fewer than ``limit``, of long
        arguments for example, though more follow: only an empty answer is the end.
        """
        ...

    @verb(Role.OPERATOR)
    def answer_approval(self, approval_id: str, answer: Answer) -> Approval:
        """Once: the same verdict again gives the same row, whoever repeats it.

        Refused, with the reason and nothing changed, for other arguments, another nonce, the other
        verdict, a closed session, a voided approval, someone who is not among those who may answer,
        and from ``expires_at`` on. A turn that waits for it is the head of its session's queue again,
        and the phase is the one before the approval unless another one is open; without a turn the
        phase stays. Either way the session counts as active now.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def approval_window(self, session_id: str) -> ApprovalWindow | None:
        """How the newest approval of a session bears on ``may_continue``; None: not at all."""
        ...

    # --- the record ---

    @verb(Role.READER, Role.AGENT)
    def attempts(self, conversation_id: str, seq: int) -> tuple[Attempt, ...]: ...

    @verb(Role.READER)
    def attempts_in(
        self, provider: str, provider_session_id: ProviderSessionId, limit: int = 1000
    ) -> tuple[Attempt, ...]:
        """Those of any session that were launched in this provider session, the newest first."""
        ...

    @verb(Role.READER)
    def owner_of(
        self, provider: str, provider_session_id: ProviderSessionId, besides: str | None = None
    ) -> SessionId | None:
        """The session that a provider session belongs to, the newest if there are several.

        It belongs to each session whose agent has saved something there, or whose pointer names it; not to a fork
        that has not run yet. None if it belongs to ``besides``, or to nobody.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def newest_attempt(self, session_id: str) -> Attempt | None:
        """The attempt that decides how a session is judged: the last one, not the last good one."""
        ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def events(
        self, conversation_id: str, seq: int, *, after: tuple[int, int] = (0, 0), limit: int = 1000
    ) -> tuple[tuple[int, Event], ...]:
        """Pairs of attempt number and event, in order, after a given pair."""
        ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def newest_events(self, conversation_id: str, seq: int, limit: int) -> tuple[tuple[int, Event], ...]:
        """The last ``limit`` of them, in order."""
        ...

    @verb(Role.READER)
    def late_reports(self, conversation_id: str) -> tuple[LateReport, ...]: ...

    # --- pointers, runtimes ---

    @verb(Role.READER, Role.AGENT)
    def explain(
        self,
        session_id: str,
        provider: str,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
        pointer: Pointer | None = None,
    ) -> Decision:
        """What a claim of this session's next turn would decide now. Changes nothing.

        Without a request, the turn of this provider that waits at the head, or else a plain one. With a
        ``pointer``, what it would decide if that one were set.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def pointer(self, session_id: str, provider: str) -> Pointer | None:
        """A missing runtime is filled in from the attempt that produced this very provider session."""
        ...

    @verb(Role.READER, Role.AGENT)
    def pointers(self, session_id: str) -> tuple[Pointer, ...]: ...

    @verb(Role.OPERATOR, Role.WORKER)
    def set_pointer(self, pointer: Pointer, counted: Usage | None = None, *, unowned: bool = False) -> None:
        """Written whole. Refused if the id is retired, InvalidInput if it is empty, Conflict if another workspace
        has used it.

        With ``unowned``, Refused also if the provider session belongs to another session: see ``owner_of``.
        The runtime, if any, must be registered. ``counted`` are the cumulative figures at which the provider
        session stands: what of them was not ours is then not booked to the attempt that reports them next.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def clear_pointer(self, session_id: str, provider: str, expected: ProviderSessionId) -> bool:
        """Only if it still names ``expected``. The newest attempt may go on speaking for it; ``retire`` is for good."""
        ...

    @verb(Role.OPERATOR)
    def retire(
        self, session_id: str, provider: str, provider_session_id: ProviderSessionId, why: str
    ) -> None:
        """Never use this provider session again. Idempotent; the first reason stays."""
        ...

    @verb(Role.READER)
    def provider_sessions(self, session_id: str) -> tuple[ProviderSessionTotals, ...]:
        """Every provider session that this session used or points to, with what it cost, oldest first."""
        ...

    @verb(Role.READER)
    def usage(
        self,
        group: UsageGroup,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        session_id: str | None = None,
    ) -> tuple[UsageTotal, ...]:
        """What all attempts that began in that time have used together, by ``group``, in its order."""
        ...

    @verb(Role.WORKER)
    def register_runtime(self, runtime: Runtime) -> RuntimeId:
        """It was seen now; when that is recorded, it is exact to five seconds."""
        ...

    @verb(Role.READER)
    def runtimes(self) -> tuple[KnownRuntime, ...]: ...

    # --- delegations ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def delegate(self, new: NewDelegation) -> Delegated:
        """A session for a subagent: the newest of this agent in this project that may go on and that nobody
        else works in, else a new one. Idempotent by ``new.id``; of two at once, no two get the same session.
        Taking one counts as activity. With ``new.told`` it is that one, made if need be; if someone else works
        in it, the delegation is recorded as lost.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def ask_delegation(self, question: Question) -> Delegated:
        """What would go on? Takes and changes nothing, but is itself on record. Idempotent by ``question.id``."""
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def end_delegation(self, end: DelegationEnd) -> EndedDelegation | None:
        """The subagent stopped: its session is closed with the outcome, or left to wait if it is in phase approval
        or has an approval that can be answered.

        What has ended, and a session that is closed, stays as it is, and the answer says how it ended. ``lost`` ends the delegation alone, so that
        the session can be taken again. A session that was never delegated is found by its own id. Without any id,
        a subagent that has stopped before stays what it was, and AmbiguousId if several others fit. None: unknown.
        """
        ...

    @verb(Role.READER, Role.AGENT, hooks=True)
    def open_delegations(
        self, agent: str | None = None, project: str | None = None
    ) -> tuple[Delegation, ...]:
        """Those that hold an open session of this agent in this project, oldest first. Without an agent: all."""
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def lose_delegations(self, provider_session_id: str) -> int:
        """All open ones of an orchestrator that is gone are lost; how many."""
        ...

    @verb(Role.READER, Role.AGENT)
    def delegations(self, session_id: str) -> tuple[Delegation, ...]:
        """Of one session, newest first; also those that only asked."""
        ...

    @verb(Role.READER, Role.AGENT)
    def free_sessions(self, limit: int = 200) -> tuple[FreeSession, ...]:
        """Delegated sessions with a project that may continue and that nobody works in, newest first: at most
        ``limit``, and fewer of those with much metadata.
        """
        ...

    @verb(Role.READER)
    def delegation_counts(self) -> DelegationCounts: ...

    # --- sessions that were only watched ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def observe_session(self, seen: Sighting) -> ObservedSession:
        """Write down what was seen of a provider's session, begun by whomever.

        Idempotent, in any order: the newest event says where it runs and whether it has ended, an event counts
        once, and a reading of its transcript only if it begins where the one before it ended.
        """
        ...

    @verb(Role.READER, Role.AGENT, hooks=True)
    def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None: ...

    @verb(Role.READER)
    def observed_sessions(self, limit: int = 100) -> tuple[ObservedSession, ...]:
        """The one that was seen last comes first."""
        ...

    @verb(Role.READER, Role.AGENT, hooks=True)
    def welcome(
        self, provider: str, provider_session_id: str, project: str, besides: str | None = None
    ) -> Welcome:
        """What an agent is to know when it begins to work in a project, in this session of its provider.

        ``besides``: the session of Holdfast that runs it, which need not be warned of itself.
        """
        ...

    # --- tokens: who may use a server on this store, in this workspace ---

    @verb()
    def create_token(self, new: NewToken) -> Token:
        """Idempotent by ``new.id``. Conflict if that is another token's."""
        ...

    @verb(Role.WORKER)
    def agent_token(self, lease: Lease) -> str | None:
        """A new token for the agent of this attempt, which replaces one that was made for its session before.

        It opens that session and the delegations below it, until the lease ends. None on a store that no
        token was made for: nobody needs one. LeaseLost.
        """
        ...

    @verb()
    def tokens(self) -> tuple[Token, ...]:
        """Oldest first, revoked ones too."""
        ...

    @verb()
    def revoke_token(self, token_id: str) -> Token:
        """For good. Idempotent; the first time stays."""
        ...

    # --- the store itself ---

    @verb(Role.READER, Role.AGENT)
    def now(self) -> Instant:
        """The store's own time."""
        ...

    @verb(Role.READER)
    def bytes_used(self) -> int: ...

    @verb(Role.READER)
    def statistics(self) -> Statistics:
        """Everything there is in this workspace, counted; what cannot be understood is left out."""
        ...

    @verb(Role.READER)
    def totals(
        self, *, since: Instant | None = None, until: Instant | None = None, agent: str | None = None
    ) -> Totals:
        """What ever happened in this workspace, added up over the days from ``since`` to ``until``, both whole.

        What was deleted since is counted as if it were there; the cheap part of ``statistics`` it is not.
        """
        ...

    # --- for a server that works on this store; ConfigError on a store that is itself behind a server ---

    @verb(local=True)
    def asks_for_tokens(self) -> bool:
        """Whether anyone ever made a token, in any workspace."""
        ...

    @verb(local=True)
    def check_token(self, token_id: str, secret: str) -> Token | None:
        """The token of any workspace that is valid now and has this secret."""
        ...

    @verb(local=True)
    def signed(self, by: str) -> Store:
        """The same store; ``by`` is recorded as the author of every change, instead of the user of this process."""
        ...

    @verb(local=True)
    def once(self, call: KeyedCall) -> Store:
        """The same store, for one call of a verb that is not repeatable.

        A call under a known key changes nothing, and gets the first answer again. Conflict if the caller used the
        key for another request.
        """
        ...

    @verb(local=True)
    def in_parts(self, verb: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The answer of a verb that is read in parts, one part at a time. Nothing is locked between two parts."""
        ...

    @property
    def workspace(self) -> Workspace:
        """The one that it was opened for."""
        ...

    @property
    def where(self) -> str:
        """The file or the address, without any password."""
        ...

    def within(self, workspace: Workspace) -> Store:
        """The same store for another workspace; it is closed with this one."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...
