"""Owns the Store contract: every verb, none optional. These docstrings are the specification of a store.

One call is one transaction, and a call that raises an error has changed nothing. Four verbs are different:
``clean_up``, ``search`` and ``sweep_vault`` are several transactions, and ``watch_queue`` is none.

Everything happens in the workspace that the store was opened for. Rows of other workspaces do not exist for
it.

``NotFound`` is raised for an id that does not exist. A verb that lists what belongs to an id lists nothing then.
``InvalidInput`` is raised for a limit or a starting point that is negative or larger than 2**53.
``StoreCorrupt`` names a row that cannot be understood. Only calls that need this row raise it.
Instants are the store's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
from holdfast.domain.events import Event, PartialText, Writing
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ApprovalId, ProviderSessionId, RuntimeId, SessionId, Workspace
from holdfast.domain.imports import Imported, KnownSource, SessionImport
from holdfast.domain.observed import ObservedSession, Sighting
from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.domain.pointers import Pointer, ProviderSessionTotals, TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.search import SearchPage, SearchRequest
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    PhaseChange,
    Pulse,
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
    PastRequest,
    RecordedTurn,
    Refusal,
    Situation,
    Turn,
    TurnEnd,
    TurnRequest,
)
from holdfast.domain.usage import NOTHING_REPORTED, Usage, UsageGroup, UsageReport, UsageTotal
from holdfast.domain.vault import VaultBundle, VaultChunk, VaultEntry, VaultFigures, VaultSweep

if TYPE_CHECKING:
    from holdfast.store.wire import Coder

F = TypeVar("F", bound=Callable[..., Any])


@record
class Facts:
    """What is true of a verb besides what it does. The facts of a verb are declared on the verb and nowhere else."""

    roles: frozenset[Role]  #: that a token must have to call it on a server; admins may call every verb
    repeatable: bool  #: a second call with the same arguments changes nothing more
    hooks: bool  #: hooks call it: it must work with few imports
    local: bool  #: of one process: it has no call of its own over HTTP
    many: (
        bool  #: it answers with whole records, as many as there are: a server answers few of these at a time
    )
    in_parts: bool  #: its answer may be long: a server reads it with ``Store.in_parts``
    begins_work: bool  #: refused to another version, which could not read the answer, and would do no work


#: every verb by its name, in the order of the contract
FACTS: Final[dict[str, Facts]] = {}


def verb(
    *roles: Role,
    repeatable: bool = True,
    hooks: bool = False,
    local: bool = False,
    many: bool = False,
    in_parts: bool = False,
    begins_work: bool = False,
) -> Callable[[F], F]:
    """Declare the facts of a verb. What viewers may call, readers may call, too; what these may, operators and workers."""
    allowed = {*roles, Role.ADMIN}
    if Role.VIEWER in allowed:
        allowed.add(Role.READER)
    if Role.READER in allowed:
        allowed |= {Role.OPERATOR, Role.WORKER}

    def declare(function: F) -> F:
        FACTS[function.__name__] = Facts(
            frozenset(allowed), repeatable, hooks, local, many or in_parts, in_parts, begins_work
        )
        return function

    return declare


#: what is done with a session besides the verbs, and recorded with ``Store.record_deed``
DEEDS: Final = frozenset({"restore"})


class KeyedCall:
    """A call of a verb that happens once for its caller and key, however often it is made."""

    def __init__(self, caller: str, key: str, request: str, answer: Coder) -> None:
        self.caller = caller
        self.key = key
        self.request = request  #: a digest of everything that was asked for
        self.answer = answer
        self.text: str | None = None  #: the answer as JSON, after the call


class QueueWatch(AbstractContextManager["QueueWatch"], Protocol):
    """Waits for turns that can be claimed, for one thread. Leaving the context closes the watch.

    News is a hint and no promise: it may be about nothing, and it may get lost in an outage. A worker must
    look for turns now and then without news, too: time alone makes some turns claimable.
    """

    def wait(self, seconds: float) -> bool:
        """Returns True if a turn may have become claimable since the last wait, or since the watch was opened.

        Returns False when the time is over or the watch is closed. Raises StoreUnavailable when the watch is
        broken.
        """
        ...

    def close(self) -> None:
        """Idempotent. May be called from any thread: a waiting thread stops waiting."""
        ...

    def __exit__(self, *_: object) -> None:
        self.close()


class Store(Protocol):
    """Safe to use from several threads. What lies behind it is safe to use from several processes.

    Each verb declares its facts: see ``verb``.
    """

    # --- sessions ---

    @verb(Role.OPERATOR)
    def create_session(self, new: NewSession) -> Session:
        """Begin a session, and its conversation unless ``new`` names one.

        Idempotent by ``new.id``. Raises Conflict if another session has the id or the name, or if the agent
        already has an open session in that conversation.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def get_session(self, session_id: str) -> Session:
        """Raises UnreadableSession for a row that cannot be understood. Such a row affects no other verb."""
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def find_session(self, given: str) -> SessionId:
        """Find a session by its id, its name, the beginning of its id, the end of its id (at least 4 characters)
        or its title, in that order.

        Raises AmbiguousId if several sessions fit.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def session_state(self, session_id: str) -> SessionState:
        """Returns the session's status at this moment, and the provider session that its provider would resume."""
        ...

    @verb(Role.VIEWER, Role.AGENT, many=True)
    def phase_history(self, session_id: str) -> tuple[PhaseChange, ...]:
        """Returns the changes of phase, oldest first; none for an unknown session."""
        ...

    @verb(Role.VIEWER, many=True)
    def trail(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[SessionChange, ...]:
        """Returns who changed what about a session: the changes with a number above ``after``, oldest first.

        Recorded are changes of phase, metadata, errors and summary, and who has put in, cancelled, repeated or edited
        a turn, renamed or forked a session, cut its history or restored its files. Of metadata only the keys are recorded. Who made a change before schema version 11 is not known.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, repeatable=False)
    def record_deed(self, session_id: str, did: str) -> None:
        """Record in the trail who has done something with a session that no verb of the store does.

        ``did`` is one of ``DEEDS``: a server accepts no other words from operators and workers.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, repeatable=False)
    def update_session(self, session_id: str, change: SessionUpdate) -> Session:
        """Change what ``change`` gives, and nothing else. The session counts as active now.

        Any phase may follow any open phase; the change is recorded. Phase ``approval`` may be left for
        another open phase only when no approval is waiting: raises Conflict while one can be answered or a
        turn waits for one. Approvals that have merely expired become void then.

        Metadata is merged key by key. An error raises the error count by one; ``clear_errors`` sets the count
        to zero first. A summary replaces the summary before it.

        Raises SessionClosed if the phase is final, PhaseConflict if the phase is not ``expected_phase``,
        InvalidInput if the merged metadata is too large.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def finalize_session(self, session_id: str, outcome: Phase, summary: str | None) -> Session:
        """Close the session for good.

        Waiting turns are cancelled, and a running turn is asked to stop. Approvals without an answer become
        void, and so do answers that a turn has not acted on. Without a summary, the summary of an earlier
        update stays.

        Raises SessionClosed if the session is closed already: a session is never finalized twice.
        """
        ...

    @verb(Role.VIEWER, many=True)
    def list_sessions(self, wanted: SessionFilter, limit: int, cursor: str | None = None) -> SessionPage:
        """Returns a page of at most ``limit`` sessions, newest first, with the state of each.

        By activity, a session that becomes active between two pages may be missing from them.

        A page may hold fewer sessions although more follow, for example when their metadata is long: only a
        page without a cursor is the last one. A row that cannot be understood is named in the page; it raises
        no error.
        """
        ...

    @verb(Role.VIEWER)
    def pulse(self, since: Instant, limit: int = 1000) -> Pulse:
        """Returns where the sessions stand that were active since then, or have an open turn, approval or delegation.

        Of each of these groups at most ``limit`` sessions. A row that cannot be understood is left out. Takes a time
        that does not depend on how many sessions are neither active nor open, but for counting them.
        """
        ...

    @verb(Role.VIEWER, many=True)
    def children(self, session_id: str) -> tuple[Session, ...]:
        """Returns the sessions that were forked from this one, oldest first."""
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def rename_session(self, session_id: str, name: str | None) -> Session:
        """Names are unique: raises Conflict if another session has this name. None removes the name."""
        ...

    @verb(Role.OPERATOR)
    def attend(self, session_id: str, owner: str, seconds: float, title: str | None = None) -> None:
        """Say that a person uses the agent's own program on the session: it is running for so many seconds more.

        ``owner``: the process that started the program, see ``processes.owners``. With 0 seconds, the program of this
        owner has ended; that of another one stays. ``title``: of the provider session, as far as it is known.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def remove_session(self, session_id: str) -> None:
        """Delete a session and its conversation.

        Raises Busy while the session is leased or a person uses its program, and Conflict while forks or other agents need the
        conversation. A provider session that another session points to, or was the last to write to, belongs
        to that session from then on. What the vault has of provider sessions that belong to nobody then is dropped.
        """
        ...

    @verb(Role.OPERATOR)
    def clean_up(self, old: Old, *, dry_run: bool = False) -> CleanupReport:
        """Abandon sessions that have been idle since before a cutoff, and delete sessions that have been final
        since before it.

        Delegated sessions have one cutoff. Conversations have a cutoff of their own; without one they are
        kept. Sessions that are leased, have waiting turns, or have an approval that can still be answered are
        not idle. A conversation stays while a fork that stays reads through to it. Retired provider session
        ids are kept for good.

        With ``old.project``, only sessions of that directory are touched, and with ``old.places`` only those
        of these directories in it. A session belongs to the project it was begun in; if none is recorded, to
        the directories of its pointers, all of which must be inside. A conversation stays while a session of
        another project shares it. Without ``old.project``, observed sessions that were last seen before
        ``old.cutoff`` are deleted, too.

        Works in batches, each in one transaction that looks again at what it takes. If a batch raises an
        error, the batches before it have happened, and another call continues. ``dry_run`` reads once and
        changes nothing.
        """
        ...

    # --- conversations ---

    @verb(Role.VIEWER, Role.AGENT)
    def get_conversation(self, conversation_id: str) -> Conversation: ...

    @verb(Role.VIEWER, Role.AGENT, in_parts=True)
    def history(
        self,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        unsent: bool = True,
    ) -> tuple[HistoryTurn, ...]:
        """Returns the current history, oldest first; with ``limit``, only its newest turns. Reads through forks.

        Without ``unsent``, returns only the turns that agents are told of. Left out are turns that have not
        begun, and turns that were refused, cancelled, interrupted or could not run (locked, config,
        missing_binary) before any agent was started for them.
        """
        ...

    @verb(Role.READER, Role.AGENT, many=True)
    def read_past(self, conversation_id: str, revision: int, wanted: PastRequest) -> tuple[RecordedTurn, ...]:
        """Returns a page of what agents are told of the past: the newest turns of ``wanted.spans``, newest first.

        Reads through forks. ``wanted.unsent`` is as in ``history``. All is read at one moment. Raises Conflict if the history is not at ``revision`` any more: it was edited or
        truncated since.

        A page has at most ``wanted.limit`` turns, fewer if they are long, and at least one: only an empty page
        is the end, and the next page begins below the last turn of this one. A turn that has too many calls
        for a page is alone on its page, with its newest calls; ``wanted.before`` continues with older ones.
        """
        ...

    @verb(Role.READER)
    def search(self, wanted: SearchRequest) -> SearchPage:
        """Find sessions by the words of their turns: prompts, answers, tool calls, and the first 16,384 characters of
        each result of a tool. Returns at most ``wanted.limit`` sessions, each with its best turn and a snippet.

        A word is found in any case and without its accents. Everything but letters and digits separates words, so
        the parts of a path or of ``snake_case`` are words, and the whole is found as a phrase. Turns that have all
        words are found; if there are none, turns that have some of them, those with the rarest words first.

        A turn is found by its texts as they are now, under the session that made it: an inherited turn of a fork
        under the session it was forked from, and a change that only the fork made to it not at all. Turns that left
        the history are not found. An open turn is found by its prompt.

        Turns are committed without being indexed. Each call first adds missing turns to the index, for at most 2
        seconds, in transactions of their own; ``pending`` says how many are left. Among very many matches, an engine
        may rank only the newest 1,000.

        Raises InvalidInput if there is nothing to look for, ConfigError if the SQLite in use has no FTS5.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def edit_turn(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        """Add a revision of a turn's texts; later turns stay. Every pointer that has seen the turn stops being
        resumable.

        The prompt of an open turn can be edited. A turn that already runs keeps the old prompt; its pointer
        stops being resumable, too. Raises SessionClosed.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def truncate(self, session_id: str, keep: int) -> Conversation:
        """Take every turn after ``keep`` out of the history. Waiting turns among them are cancelled, their
        approvals void.

        Raises Conflict while one of these turns runs. The rows stay, and sequence numbers are not used again.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def retry_turn(self, session_id: str, seq: int, *, prompt: str | None = None) -> Turn:
        """Truncate before ``seq`` and enqueue the prompt of that turn again, as a new turn with ``retry_of``."""
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def new_generation(self, session_id: str) -> Conversation:
        """Begin again with an empty history. No earlier pointer is resumable."""
        ...

    @verb(Role.OPERATOR)
    def fork(
        self, session_id: str, child_id: SessionId, *, at: int | None = None, name: str | None = None
    ) -> Session:
        """Begin a new session on a new conversation that starts with this history up to turn ``at``.

        By default ``at`` is the last turn before the first open one. Takes constant time, however long the
        history is. The parent is not changed, and its later changes are invisible to the child. Idempotent by
        ``child_id``. Raises Conflict if ``at`` is an open turn or comes after one.
        """
        ...

    # --- the queue ---

    @verb(Role.OPERATOR, repeatable=False)
    def enqueue_turn(self, session_id: str, new: NewTurn) -> Turn:
        """Put a turn into the queue. Idempotent by ``new.key``. Raises SessionClosed if the session is final."""
        ...

    @verb(Role.OPERATOR, Role.WORKER, repeatable=False)
    def record_turn(self, session_id: str, new: NewTurn, response: str | None, usage: Usage) -> Turn:
        """Record a turn that has already happened; it counts as a success. Idempotent by ``new.key``.

        Raises InvalidInput for impossible usage: negative, not finite, or larger than 2**53.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def get_turn(self, conversation_id: str, seq: int) -> Turn: ...

    @verb(Role.VIEWER, Role.AGENT, in_parts=True)
    def turns(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[Turn, ...]:
        """Returns this session's own turns in order, including those that were dropped from the history."""
        ...

    @verb(Role.VIEWER, Role.AGENT, in_parts=True)
    def newest_turns(
        self, session_id: str, limit: int, *, before: int | None = None, dropped: bool = True
    ) -> tuple[Turn, ...]:
        """Returns the last ``limit`` turns of this session, in order, however many turns other agents made since.

        With ``before``, only turns with a smaller number; without ``dropped``, only turns that are still in
        the history.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def head_turn(self, session_id: str) -> Turn | None:
        """Returns the session's oldest open turn: the one that runs, waits, or comes next."""
        ...

    @verb(Role.WORKER, begins_work=True)
    def claim_turn(self, request: ClaimRequest) -> Claim | None:
        """Take the best head turn that this runtime can run, decide how to run it, and open the attempt.

        Two claims never get the same turn. Turns of one session run one at a time and in order; the priority
        orders sessions. A head that must wait, for a time or for another writer of its provider session, is
        passed over and takes no lease. A head that cannot be understood is passed over, too. A head that a
        guard refuses ends as failed.

        A turn that is pinned to no runtime is first offered to the runtime that its session's pointer names.
        Other runtimes get it after ``request.affinity_seconds`` (by default the store's
        ``queue.affinity_seconds``), or at once if they claim this session by its id.

        The decision is made in the same transaction, for the claiming runtime, and the claim carries the
        session's situation, read in the same transaction. Idempotent by ``request.key`` while the attempt is
        open: a repeated call gets the same claim.

        A turn whose approval was answered resumes the provider session that deferred it; if that is
        impossible, the turn is refused and the approval becomes void. If ``request.session_id`` waits for an
        approval: raises NeedsApproval, or Refused once the approval has expired.
        """
        ...

    @verb(Role.WORKER, local=True)
    def watch_queue(self) -> QueueWatch:
        """Watch for turns that can be claimed. Not a transaction: reads nothing, and only a claim decides.

        Every turn that becomes claimable after this call is news, whoever caused it. Two kinds are not: a
        turn that the worker's own ``finish_turn`` leaves to that worker, and a turn that becomes claimable by
        the passing of time.
        """
        ...

    @verb(begins_work=True)
    def start_turn(self, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
        """Enqueue a turn and claim it at once. Raises Busy, and changes nothing, if the session has open turns.

        If the first open turn waits for an approval: raises NeedsApproval, or Refused once the approval has
        expired. A turn of a person does not wait for a turn that waits for a limit to pass: that turn ends as
        failed.

        Idempotent by ``request.key``, like a claim. Raises Conflict if another turn has ``new.key``.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def situation(self, session_id: str, provider: str | None = None) -> Situation:
        """Returns what the next turn of a session depends on, all read at one moment, without texts. Changes nothing.

        Without ``provider``, the session's own provider is used, else that of its pointer. Every claim
        carries the same record, read in its own transaction.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def adopt_turns(self, adoption: Adoption, lease: Lease | None = None) -> Situation | None:
        """Take turns that were made in the provider's own program into the history, and move the pointer past them.

        Returns the situation afterwards. Returns None and changes nothing if somebody else has the session's
        lease, or if the pointer is not ``adoption.before`` any more. Idempotent: each turn is recorded once
        under its key. Raises LeaseLost if ``lease``, of the turn that is about to be sent, is not held any
        more, and SessionClosed.
        """
        ...

    @verb(Role.WORKER)
    def heartbeat(self, lease: Lease, seconds: float, renewal: str | None = None) -> Heartbeat:
        """Renew a lease from now on. An expired lease is renewed, too, if nobody took the lease or its provider
        session.

        ``renewal`` is a random word that the holder draws for each renewal, and repeats if the reply was
        lost. The renewed lease carries the word. Raises LeaseLost if the lease is not held, or if the last
        renewal was neither the lease's own nor this one: then a copy of the holder, as on a machine made from
        a snapshot of this one, has renewed it.
        """
        ...

    @verb(Role.WORKER)
    def launch(self, lease: Lease, launched: Launch) -> None:
        """Record what is about to start: the turn runs, and the answer that it acts on is used.

        Raises LeaseLost if the lease is not held, or if it had expired and its provider session has another
        writer since. Raises Refused if the new provider session id is retired. Raises Conflict:

        - for a decision that is stronger than the claim's
        - for a provider session id other than the one that the turn asked for, for a fork that reuses its
          source's id, and for an id that another session or another workspace has used
        - for anything but a resume, if the turn acts on an answer
        - for another directory than the turn asked for; if the turn asked for none, for another directory
          than was recorded on this runtime, or on no known runtime
        - for rights that are wider than the turn asked for; if the turn asked for none, wider than were
          recorded
        """
        ...

    @verb(Role.WORKER)
    def record_events(self, lease: Lease, events: Sequence[Event]) -> None:
        """Atomic. Idempotent by ``event.number``. Raises LeaseLost; nothing is written then."""
        ...

    @verb(Role.WORKER)
    def put_partial_text(self, lease: Lease, number: int, writing: Writing) -> None:
        """Show the text that the agent is writing now, in the place of the one before. ``number`` is that of the event
        in which the whole text will be recorded.

        Of a long text the end is kept, at most 16,384 characters. Secrets are redacted; a word that is not finished is
        left out, because half a secret has no shape. The text is gone when the attempt ends, whoever ends it.

        Not durable: a crash of the machine may lose the text, and nothing else. Raises LeaseLost; nothing is
        written then.
        """
        ...

    @verb(Role.READER, Role.AGENT)
    def partial_text(self, session_id: str) -> PartialText | None:
        """Returns the text that the session's running attempt is writing. None if there is none, or if it is recorded
        as an event by now.
        """
        ...

    @verb(Role.WORKER)
    def pin(
        self, lease: Lease, provider_session_id: ProviderSessionId, transcript: TranscriptMark | None = None
    ) -> None:
        """Record that the provider's store holds this provider session, and point to it. Idempotent.

        A resumed provider session counts as having seen the turn only if its transcript has another turn.

        Raises Conflict if the attempt runs another provider session or forks this one, or if another session
        or another workspace has used this one. If the lease is lost, no pointer moves, and the id is recorded
        only where the session's newest attempt has none; otherwise raises LeaseLost.
        """
        ...

    @verb(Role.WORKER, begins_work=True)
    def fall_back(
        self, lease: Lease, failure: Failure, key: str, usage: UsageReport = NOTHING_REPORTED
    ) -> Claim:
        """Continue with a fresh provider session, because the one to resume or fork failed before anything was done.

        A provider session that is ``gone`` is retired. After any other failure it is in doubt, and its
        pointer stays until the fresh attempt ends. If the fresh attempt is answered, the doubted session is
        retired as ``poisoned``. Otherwise it is kept, since the cause may lie elsewhere. Usage that was
        reported all the same is counted.

        Opens a new attempt of the same try, under a new fencing token. Idempotent by ``key``. Raises Conflict
        if nothing was resumed, if the turn asked for this provider session by name, or if the turn acts on an
        answer.
        """
        ...

    @verb(Role.WORKER, repeatable=False)
    def put_back(
        self, lease: Lease, not_before: Instant | None = None, because: Failure | None = None
    ) -> Turn:
        """Return a turn to the queue. This does not count as a try. The attempt records ``because``.

        A turn that was launched already continues later, as after a recovery. A turn that was asked to stop
        is cancelled instead. A turn that a person started ends as failed, unless it has an answer to act on.
        Raises LeaseLost.
        """
        ...

    @verb(Role.WORKER)
    def finish_turn(self, lease: Lease, end: TurnEnd) -> Turn:
        """End a turn: its response, usage, pointer, retirement, counters, retry and queue change together.

        Idempotent. Raises LeaseLost if the fencing token is stale: the report is kept apart as evidence, and
        nothing else changes. Raises InvalidInput for impossible usage, as ``record_turn`` does.

        The provider session: an empty id never replaces a pointer, and a retired id never becomes one. A
        provider session that its provider did not save is retired. Another id after a failed resume is a
        rejection: the failure counts against the session that was asked for, and no pointer moves. A resumed
        session has seen the turn if it answered, or if its transcript has another turn. A fork never reuses
        its source's provider session id; a source in which a fork was answered is retired. An id that another
        session or another workspace has used is not recorded: the answer is kept, and the next turn starts
        fresh.

        Approvals: status ``waiting`` needs an approval. The attempt is deferred, which does not count as a
        try, nobody holds the turn, the pointer moves as after an answer, and the session is in phase
        ``approval``. A turn that was asked to stop is cancelled instead. A turn that ends for good makes the
        answers void that it has not acted on; ``refused_by`` says why.

        The phase: without ``phase``, a conversation that is ``initializing`` becomes ``investigating``.
        ``phase`` does not take a session from ``approval`` to another open phase while an approval is
        waiting.

        ``retry_at`` puts a failed turn back into the queue while tries are left; after a limit, once.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def cancel_turn(self, session_id: str, seq: int) -> Turn:
        """Cancel a waiting turn at once, which makes its approval void. A running turn is asked to stop.

        Raises Conflict if the turn has ended in another way.
        """
        ...

    @verb(Role.VIEWER, many=True)
    def orphans(self, limit: int = 100, *, even_live: bool = False) -> tuple[Orphan, ...]:
        """Returns open attempts whose lease has expired, the oldest first; with ``even_live``, all open attempts."""
        ...

    @verb(Role.VIEWER)
    def holder(self, session_id: str) -> Orphan | None:
        """Returns the open attempt of a leased session, whether or not the lease has expired."""
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
        """End an orphan's attempt as interrupted. The turn runs again unless a person started it.

        A turn that was not launched yet keeps the answer that it was to act on, and runs again. A turn that
        does not run again keeps ``response``: what its agent had said so far.

        ``transcript`` says that the attempt's provider session holds the request: the session points to it,
        as after ``pin``. If the request is ``answered`` there to its end, the turn is done with that
        response, and its usage is unknown. A turn that was asked to stop is never treated as ``answered``.

        ``events`` are recorded as by ``record_events``. Raises Conflict if the attempt has recorded an event
        with one of these numbers meanwhile: its worker is late, not gone.

        The caller has made sure that the attempt's process is gone. With ``owner_is_gone`` the caller has
        made sure that the lease's owner is gone, too; then the lease need not have expired. Raises Conflict
        if the attempt is no orphan any more, or while another transaction writes to its session: recovery
        waits for nobody.
        """
        ...

    # --- approvals ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT)
    def request_approval(self, session_id: str, new: NewApproval) -> Approval:
        """Record a question of an agent to people. Its session is in phase ``approval`` then.

        Idempotent by ``new.id``. Raises SessionClosed, and Conflict if another request has the id.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def get_approval(self, approval_id: str) -> Approval: ...

    @verb(Role.VIEWER, Role.AGENT)
    def find_approval(self, given: str) -> ApprovalId:
        """Find an approval by its id, by the unique beginning of its id, or by its session.

        By a session: the only approval that can be answered now, else the session's newest one. Raises
        AmbiguousId.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT, many=True)
    def approvals(
        self,
        *,
        session_id: str | None = None,
        open_only: bool = True,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Approval, ...]:
        """Returns approvals, oldest first; with ``after``, those behind that approval. NotFound if ``after`` is
        unknown.

        Open ones are those without an answer, including expired ones. There may be fewer than ``limit``
        although more follow, for example when their arguments are long: only an empty answer is the end.
        """
        ...

    @verb(Role.OPERATOR)
    def answer_approval(self, approval_id: str, answer: Answer) -> Approval:
        """Answer an approval, once. The same verdict again, by anyone, returns the same approval.

        A turn that waits for the answer becomes the head of its session's queue again, and the session
        returns to the phase before the approval unless another approval is open. Without a waiting turn the
        phase stays. Either way the session counts as active now.

        Raises Refused with the reason, and changes nothing, for other arguments, another nonce, the opposite
        verdict, a closed session, a void approval, a person who may not answer it, and from ``expires_at``
        on.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def approval_window(self, session_id: str) -> ApprovalWindow | None:
        """Returns how the newest approval of a session affects ``may_continue``; None if it does not."""
        ...

    # --- the record ---

    @verb(Role.VIEWER, Role.AGENT, many=True)
    def attempts(self, conversation_id: str, seq: int) -> tuple[Attempt, ...]: ...

    @verb(Role.READER, many=True)
    def attempts_in(
        self, provider: str, provider_session_id: ProviderSessionId, limit: int = 1000
    ) -> tuple[Attempt, ...]:
        """Returns the attempts of any session that were launched in this provider session, newest first."""
        ...

    @verb(Role.READER)
    def owner_of(
        self, provider: str, provider_session_id: ProviderSessionId, besides: str | None = None
    ) -> SessionId | None:
        """Returns the session that a provider session belongs to; the newest if there are several.

        A provider session belongs to each session whose agent has saved something in it, whose pointer names
        it, or that was imported from it. A fork that has not run yet does not own its source's provider session. Returns None if it
        belongs to ``besides`` or nobody.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def newest_attempt(self, session_id: str) -> Attempt | None:
        """Returns the last attempt of a session, successful or not: it decides how the session is judged."""
        ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def events(
        self, conversation_id: str, seq: int, *, after: tuple[int, int] = (0, 0), limit: int = 1000
    ) -> tuple[tuple[int, Event], ...]:
        """Returns pairs of attempt number and event, in order, after the pair ``after``."""
        ...

    @verb(Role.READER, Role.AGENT, in_parts=True)
    def newest_events(self, conversation_id: str, seq: int, limit: int) -> tuple[tuple[int, Event], ...]:
        """Returns the last ``limit`` pairs of attempt number and event, in order."""
        ...

    @verb(Role.VIEWER, many=True)
    def late_reports(self, conversation_id: str) -> tuple[LateReport, ...]: ...

    # --- pointers, runtimes ---

    @verb(Role.VIEWER, Role.AGENT)
    def explain(
        self,
        session_id: str,
        provider: str,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
        pointer: Pointer | None = None,
    ) -> Decision:
        """Returns what a claim of this session's next turn would decide now. Changes nothing.

        Without ``request``, the turn is the waiting head of this provider, else a plain one. ``pointer``
        takes the place of the stored pointer.
        """
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def pointer(self, session_id: str, provider: str) -> Pointer | None:
        """A pointer without a runtime gets the runtime of the attempt that made this provider session."""
        ...

    @verb(Role.VIEWER, Role.AGENT)
    def pointers(self, session_id: str) -> tuple[Pointer, ...]: ...

    @verb(Role.OPERATOR, Role.WORKER)
    def set_pointer(self, pointer: Pointer, counted: Usage | None = None, *, unowned: bool = False) -> None:
        """Write a pointer as a whole. Its runtime, if any, must be registered.

        ``counted`` are the provider session's cumulative figures now: the next attempt is charged only for
        what is added.

        Raises Refused if the id is retired, InvalidInput if the id is empty, Conflict if another workspace
        has used the id. With ``unowned``, raises Refused also if the provider session belongs to another
        session: see ``owner_of``.
        """
        ...

    @verb(Role.OPERATOR, repeatable=False)
    def clear_pointer(self, session_id: str, provider: str, expected: ProviderSessionId) -> bool:
        """Delete a pointer if it still names ``expected``. The newest attempt may still be resumed: ``retire``
        prevents that.
        """
        ...

    @verb(Role.OPERATOR)
    def retire(
        self, session_id: str, provider: str, provider_session_id: ProviderSessionId, why: str
    ) -> None:
        """Never use this provider session again. Idempotent; the first reason stays."""
        ...

    @verb(Role.VIEWER)
    def provider_sessions(self, session_id: str) -> tuple[ProviderSessionTotals, ...]:
        """Returns every provider session that this session used or points to, with its usage, oldest first."""
        ...

    @verb(Role.VIEWER)
    def usage(
        self,
        group: UsageGroup,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        session_id: str | None = None,
    ) -> tuple[UsageTotal, ...]:
        """Returns the usage of all attempts that began in this time, added up by ``group``, in the order of the
        groups.
        """
        ...

    @verb(Role.WORKER)
    def register_runtime(self, runtime: Runtime) -> RuntimeId:
        """Record that a runtime was seen now. The recorded time is exact to five seconds."""
        ...

    @verb(Role.VIEWER)
    def runtimes(self) -> tuple[KnownRuntime, ...]: ...

    # --- delegations ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def delegate(self, new: NewDelegation) -> Delegated:
        """Give a subagent a session: the newest session of this agent in this project that may continue and that
        nobody else works in, else a new one.

        Idempotent by ``new.id``. Two calls at the same time never get the same session. Taking a session
        counts as activity. With ``new.told``, it is that session, which is made if it does not exist; if
        somebody else works in it, the delegation is recorded as lost.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def ask_delegation(self, question: Question) -> Delegated:
        """Returns which session a delegation would continue. Takes nothing; the question is recorded. Idempotent
        by ``question.id``.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def end_delegation(self, end: DelegationEnd) -> EndedDelegation | None:
        """End a delegation because its subagent stopped, and close the session with the outcome.

        The session stays open if it is in phase ``approval`` or has an approval that can be answered.
        ``lost`` ends only the delegation, so that the session can be taken again. A delegation that has
        ended, and a session that is closed, stay as they are; the answer says how they ended.

        A session that was never delegated is found by its own id. Without any id, a subagent that has stopped
        before keeps its outcome; raises AmbiguousId if several other delegations fit. Returns None if none
        fits.
        """
        ...

    @verb(Role.READER, Role.AGENT, hooks=True, many=True)
    def open_delegations(
        self, agent: str | None = None, project: str | None = None
    ) -> tuple[Delegation, ...]:
        """Returns the delegations that hold an open session of this agent in this project, oldest first; without
        an agent, all.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def lose_delegations(self, provider_session_id: str) -> int:
        """End all open delegations of an orchestrator that is gone, as lost. Returns how many."""
        ...

    @verb(Role.READER, Role.AGENT, many=True)
    def delegations(self, session_id: str) -> tuple[Delegation, ...]:
        """Returns the delegations of one session, newest first, including those that only asked."""
        ...

    @verb(Role.READER, Role.AGENT, many=True)
    def free_sessions(self, limit: int = 200) -> tuple[FreeSession, ...]:
        """Returns delegated sessions with a project that may continue and that nobody works in, newest first.

        At most ``limit``, and fewer if their metadata is long.
        """
        ...

    @verb(Role.VIEWER)
    def delegation_counts(self) -> DelegationCounts: ...

    # --- sessions that providers kept alone ---

    @verb(Role.OPERATOR)
    def import_sessions(
        self, batch: Sequence[SessionImport], sources: Sequence[KnownSource] = ()
    ) -> tuple[Imported, ...]:
        """Take sessions of providers in, each with its turns, their events and its pointer, and remember their sources.

        Atomic. Idempotent: a session that exists under its id gets the turns that it lacks, a turn that is known under
        its key gets the events and the response that it lacks, and the pointer has seen all of its turns but the dead
        ones. So a long session comes in several calls. Dead turns are kept out of the history. A session whose source
        comes with the call is complete: its words are added to the index of ``search``.

        A session that is not taken in raises no error: its answer says why, and its source is not remembered. A
        provider session belongs to one session (see ``owner_of``), also to one whose turn runs in it and has saved
        nothing yet; one whose session was deleted here stays out, unless the import ``takes_back``. A fork or a
        subagent stands below the session that it comes from, whichever of the two is imported first. Raises
        NotFound for a runtime that is not registered, and InvalidInput for times and usage that are none.
        """
        ...

    @verb(Role.READER, many=True)
    def sources(
        self, machine: str, provider: str, home: str, *, after: str = "", limit: int = 1000
    ) -> tuple[KnownSource, ...]:
        """Returns the sources below a provider's home on a machine that were looked at, by their places, behind ``after``."""
        ...

    # --- sessions that were only watched ---

    @verb(Role.OPERATOR, Role.WORKER, Role.AGENT, hooks=True)
    def observe_session(self, seen: Sighting) -> ObservedSession:
        """Record what was seen of a provider's session, whoever began that session.

        Idempotent, in any order: the newest event says where the session runs and whether it has ended, an
        event counts once, and a reading of the transcript counts only if it begins where the last one ended.
        """
        ...

    @verb(Role.READER, Role.AGENT, hooks=True)
    def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None: ...

    @verb(Role.READER, many=True)
    def observed_sessions(self, limit: int = 100) -> tuple[ObservedSession, ...]:
        """Returns the observed sessions; the one that was seen last comes first."""
        ...

    @verb(Role.READER, Role.AGENT, hooks=True)
    def welcome(
        self, provider: str, provider_session_id: str, project: str, besides: str | None = None
    ) -> Welcome:
        """Returns what an agent should know when it begins to work in a project, in this provider session.

        ``besides`` is the session of Holdfast that runs the agent: the agent is not warned of that session. Of a session
        that was only imported, and in which no turn of ours ever ran, the agent is not told whose it is.
        """
        ...

    # --- the vault: the providers' own session files, byte for byte ---

    @verb(Role.OPERATOR, Role.WORKER)
    def lacking_chunks(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Returns those of the digests, at most 1000, that no chunk has. Each of them once."""
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def add_chunks(self, chunks: Sequence[VaultChunk]) -> None:
        """Add chunks. Idempotent by their digest: a chunk that is there stays as it is, for another 24 hours at least.

        Raises InvalidInput for a chunk that cannot be read back, has more than 1 MiB, or has another digest than its
        bytes. The digests of encrypted chunks are not compared. Behind a server, one call takes 8 MiB of chunks.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def keep_bundles(
        self, bundles: Sequence[VaultBundle], chunks: Sequence[VaultChunk] = (), *, repacked: bool = False
    ) -> None:
        """Write bundles whole, together with chunks that are new, as ``add_chunks`` does.

        Atomic, and idempotent: a bundle that is as asked for is not changed. Parts that a file had before stay as they
        are: to append to a file adds its new parts. The store sets ``kept_at``, and counts up ``revision``.
        ``repacked``: the files have the same bytes in other parts; ``kept_at`` stays.

        Raises Conflict if a bundle has another revision than the given one (0: it does not exist), so that nobody
        overwrites what others have kept meanwhile. Raises Conflict also if a chunk is missing. Raises Refused
        (``vault_full``) if a bundle grows and all of them together then take more than ``vault.limit_bytes``;
        ``needed_bytes`` in its details is by how much these bundles would grow. Raises InvalidInput for a file whose
        name leads out of its folder.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def bundle(
        self, provider: str, provider_session_id: ProviderSessionId, branch: str = ""
    ) -> VaultBundle | None: ...

    @verb(Role.OPERATOR, Role.WORKER, many=True)
    def bundles(self, provider: str, provider_session_id: ProviderSessionId) -> tuple[VaultBundle, ...]:
        """Returns the session itself, if it is kept, and then its other branches."""
        ...

    @verb(Role.WORKER, many=True)
    def read_chunks(self, digests: Sequence[str]) -> tuple[VaultChunk, ...]:
        """Returns the first ones of the chunks that are asked for, in this order: as many as have 8 MiB, at least one.

        Raises NotFound for a chunk that is not there.
        """
        ...

    @verb(Role.OPERATOR, Role.WORKER)
    def drop_bundle(
        self,
        provider: str,
        provider_session_id: ProviderSessionId,
        branch: str = "",
        kept_at: Instant | None = None,
    ) -> bool:
        """Delete a bundle; with ``kept_at``, only if it has not been changed since. Returns whether it was deleted.

        ``remove_session`` and ``clean_up`` do the same with every provider session that belongs to no session any more.
        """
        ...

    @verb(Role.READER, many=True)
    def vault_entries(self, *, after: VaultEntry | None = None, limit: int = 1000) -> tuple[VaultEntry, ...]:
        """Returns what is kept, without its parts: the bundle that was changed first comes first."""
        ...

    @verb(Role.VIEWER)
    def vault_figures(self) -> VaultFigures: ...

    @verb(Role.OPERATOR, Role.WORKER)
    def sweep_vault(self) -> VaultSweep:
        """Delete the chunks that no bundle has used for 24 hours. Several transactions, each of some chunks."""
        ...

    # --- tokens: who may use a server on this store, in this workspace ---

    @verb()
    def create_token(self, new: NewToken) -> Token:
        """Idempotent by ``new.id``. Raises Conflict if another token has the id."""
        ...

    @verb(Role.WORKER)
    def agent_token(self, lease: Lease) -> str | None:
        """Make a token for the agent of this attempt. It replaces the token that was made for its session before.

        The token opens that session and the delegations below it, until the lease ends. Returns None if no
        token was ever made on this store: nobody needs one then. Raises LeaseLost.
        """
        ...

    @verb()
    def tokens(self) -> tuple[Token, ...]:
        """Returns all tokens, oldest first, including revoked ones."""
        ...

    @verb()
    def revoke_token(self, token_id: str) -> Token:
        """Revoke a token for good. Idempotent; the first time stays."""
        ...

    # --- the store itself ---

    @verb(Role.VIEWER, Role.AGENT)
    def now(self) -> Instant:
        """Returns the store's own time."""
        ...

    @verb(Role.VIEWER)
    def bytes_used(self) -> int: ...

    @verb(Role.VIEWER)
    def statistics(self) -> Statistics:
        """Returns counts of everything in this workspace. Rows that cannot be understood are left out."""
        ...

    @verb(Role.VIEWER)
    def totals(
        self, *, since: Instant | None = None, until: Instant | None = None, agent: str | None = None
    ) -> Totals:
        """Returns what ever happened in this workspace, added up over whole days from ``since`` to ``until``,
        both included.

        Deleted rows are counted as if they were there. Reads more than ``statistics``.
        """
        ...

    # --- the store itself, looked at where it is ---

    @verb(local=True)
    def find_damage(self, *, deep: bool = False) -> tuple[str, ...]:
        """Returns what the engine itself finds wrong with its data, one sentence each, a hundred at most.

        Reads the whole database on SQLite; ``deep`` also compares indexes and references. On PostgreSQL only
        failed checksums are known.
        """
        ...

    @verb(local=True)
    def back_up(self) -> str | None:
        """Copy the whole database into a new file beside it, which only this user may read; returns its path.

        The copy is of one moment, complete and synced. Returns None where an engine makes no such copies.
        """
        ...

    @verb(local=True)
    def require_same_version(self) -> None:
        """Raises ConfigError if this store is behind a server that speaks another version of this contract."""
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
        """The workspace that the store was opened for."""
        ...

    @property
    def where(self) -> str:
        """The file or the address of the store, without any password."""
        ...

    def within(self, workspace: Workspace) -> Store:
        """Returns the same store for another workspace; it is closed with this one."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...
