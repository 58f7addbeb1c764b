"""Owns a tiny model of the store: plain objects, no revisions, no rows; a fork copies, a change marks.

What the store derives from epochs and ranges is here one flag: a record of what a provider has seen is marked
as stale the moment something in it changes. Both must always agree.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from holdfast.domain.decisions import Decision, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import SessionId, conversation_of
from holdfast.domain.turns import Claim, Lease

MAX_ERRORS = 3
MAX_FAILED_RESUMES = 2
Decided = Literal["resume", "fork", "fresh"]


class Clash(Exception):
    """The store must refuse this call, and change nothing."""


@dataclass(eq=False)
class ModelTurn:
    seq: int
    session_id: str
    provider: str
    prompt: str
    priority: int = 0
    not_before: int | None = None
    max_attempts: int = 2
    status: str = "queued"
    response: str | None = None
    tries: int = 0
    cancel_requested: bool = False
    dropped: bool = False

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "claimed", "running")

    @property
    def is_leased(self) -> bool:
        return self.status in ("claimed", "running")


@dataclass
class Seen:
    """What one attempt's provider session has seen; a pointer is the one that was recorded last."""

    runtime: str
    turns: set[int]
    provider_session: str | None = None
    resumed: bool = False
    stale: bool = False
    answered: bool = False
    fork_seq: int | None = None  #: of the earliest fork on the way here


@dataclass(eq=False)
class ModelLease:
    lease: Lease
    decision: Decision
    turn: ModelTurn
    seen: Seen


@dataclass(eq=False)
class ModelSession:
    id: str
    conversation: "ModelConversation"
    provider: str
    phase: str = "initializing"
    finalized_at: int | None = None
    held: ModelLease | None = None
    pointers: dict[str, Seen] = field(default_factory=dict)  #: by provider
    newest: dict[str, Seen] = field(default_factory=dict)  #: attempt that was launched, by provider

    @property
    def is_open(self) -> bool:
        return self.finalized_at is None

    def waiting(self) -> list[ModelTurn]:
        return [turn for turn in self.conversation.turns if turn.session_id == self.id and turn.is_open]

    def head(self) -> ModelTurn | None:
        return next(iter(self.waiting()), None)


@dataclass(eq=False)
class ModelConversation:
    id: str
    parent: "ModelConversation | None" = None
    fork_seq: int = 0
    inherited: list[ModelTurn] = field(default_factory=list)  #: copies
    turns: list[ModelTurn] = field(default_factory=list)  #: its own, dropped ones too

    @property
    def next_seq(self) -> int:
        return self.fork_seq + len(self.turns) + 1

    def visible(self) -> list[ModelTurn]:
        return [turn for turn in self.inherited + self.turns if not turn.dropped]

    def first_open(self) -> int:
        return min((turn.seq for turn in self.turns if turn.is_open), default=self.next_seq)


@dataclass
class Model:
    now: int
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  #: by provider session
    failed_resumes: dict[str, int] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)

    # --- looking ---

    def conversations(self) -> list[ModelConversation]:
        found = {session.conversation.id: session.conversation for session in self.sessions.values()}
        return list(found.values())

    def of(self, conversation: ModelConversation) -> list[ModelSession]:
        return [session for session in self.sessions.values() if session.conversation is conversation]

    def claimable(self, provider: str, session_id: str | None) -> list[ModelTurn]:
        heads = [head for session in self.sessions.values() if (head := session.head())]
        return [
            head
            for head in heads
            if head.status == "queued"
            and head.provider == provider
            and (session_id is None or head.session_id == session_id)
            and (head.not_before is None or head.not_before <= self.now)
        ]

    def decide(self, session: ModelSession, provider: str, runtime: str) -> Decided:
        """A provider session goes on only where it was, as long as nothing that it has seen has changed."""
        stored, newest = session.pointers.get(provider), session.newest.get(provider)
        if newest is not None and newest.provider_session is None:
            newest = None
        known = stored
        if stored is None or (stored.runtime != runtime and newest is not None and newest.runtime == runtime):
            known = newest
        if known is None or known.provider_session is None:
            return "fresh"
        if known is not stored and known.resumed and not known.answered:
            return "fresh"
        if known.runtime != runtime or known.stale or known.provider_session in self.retired:
            return "fresh"
        if self.errors.get(known.provider_session, 0) >= MAX_ERRORS:
            return "fresh"
        if known.fork_seq is None:
            return "resume"
        grown = max(known.turns) > known.fork_seq
        return "fresh" if grown or self._is_written(known.provider_session) else "fork"

    def _is_written(self, provider_session: str) -> bool:
        return any(
            held.seen.provider_session == provider_session and held.lease.expires_at > self.now
            for session in self.sessions.values()
            if (held := session.held)
        )

    # --- the history ---

    def put(self, session: ModelSession, prompt: str, provider: str, **more: int | None) -> ModelTurn:
        turn = ModelTurn(session.conversation.next_seq, session.id, provider, prompt)
        turn = replace(turn, **more)  # type: ignore[arg-type] # numbers all of them
        session.conversation.turns.append(turn)
        return turn

    def changed(self, conversation: ModelConversation, first: int, last: int) -> None:
        touched = set(range(first, last + 1))
        for session in self.of(conversation):
            for seen in (*session.pointers.values(), *session.newest.values()):
                seen.stale = seen.stale or bool(seen.turns & touched)

    def truncate(self, conversation: ModelConversation, keep: int) -> None:
        going = [turn for turn in conversation.visible() if turn.seq > keep]
        if any(turn.is_leased for turn in going):
            raise Clash
        if going:
            self.changed(conversation, going[0].seq, conversation.next_seq - 1)
        for turn in going:
            turn.dropped = True
            if turn.is_open:
                turn.status = "cancelled"

    def begin_again(self, conversation: ModelConversation) -> None:
        self.truncate(conversation, 0)
        for session in self.of(conversation):
            for seen in (*session.pointers.values(), *session.newest.values()):
                seen.stale = True

    def fork(self, parent: ModelSession, child_id: str, at: int | None) -> None:
        source = parent.conversation
        if at is None:
            settled = [turn.seq for turn in source.visible() if turn.seq < source.first_open()]
            at = max(settled, default=0)
        if at >= source.first_open():
            raise Clash
        inherited = [replace(turn) for turn in source.visible() if turn.seq <= at]
        conversation = ModelConversation(conversation_of(SessionId(child_id)), source, at, inherited)
        child = ModelSession(child_id, conversation, parent.provider)
        child.pointers = {
            provider: replace(
                seen,
                turns=set(seen.turns),
                fork_seq=at if seen.fork_seq is None else min(at, seen.fork_seq),
                resumed=False,
            )
            for provider, seen in parent.pointers.items()
        }
        self.sessions[child_id] = child

    # --- turns ---

    def claim(self, session: ModelSession, claimed: Claim, runtime: str) -> None:
        turn = session.head()
        assert turn is not None
        others = {other.seq for other in session.conversation.turns if other.is_open and other.seq < turn.seq}
        seen = Seen(runtime, set(range(1, turn.seq + 1)) - others)
        if isinstance(claimed.decision, Resume):
            seen.provider_session, seen.resumed = claimed.decision.provider_session_id, True
        turn.status, turn.tries = "claimed", turn.tries + 1
        session.held = ModelLease(claimed.lease, claimed.decision, turn, seen)

    def point(self, session: ModelSession, held: ModelLease) -> None:
        """Without an answer, what is pointed at already has seen what it had seen before."""
        used, pointer = held.seen.provider_session, session.pointers.get(held.turn.provider)
        known = pointer is not None and pointer.provider_session == used
        if used is not None and used not in self.retired and (held.seen.answered or not known):
            session.pointers[held.turn.provider] = held.seen

    def retire(self, session: ModelSession, provider: str, provider_session: str) -> None:
        self.retired.add(provider_session)
        pointer = session.pointers.get(provider)
        if pointer is not None and pointer.provider_session == provider_session:
            del session.pointers[provider]

    def fall_back(self, session: ModelSession, held: ModelLease, fresh: Claim) -> None:
        assert held.seen.provider_session is not None
        self.retire(session, held.turn.provider, held.seen.provider_session)
        seen = Seen(held.seen.runtime, set(held.seen.turns))
        held.turn.status = "claimed"
        session.held = ModelLease(fresh.lease, fresh.decision, held.turn, seen)

    def succeed(self, session: ModelSession, held: ModelLease, response: str) -> None:
        held.turn.status, held.turn.response = "done", response
        held.seen.answered = True
        session.newest[held.turn.provider] = held.seen
        if held.seen.provider_session is not None:
            self.errors[held.seen.provider_session] = self.failed_resumes[held.seen.provider_session] = 0
        self.point(session, held)
        session.held = None

    def fail(self, session: ModelSession, held: ModelLease, why: FailureClass, *, again: bool) -> None:
        turn, used = held.turn, held.seen.provider_session
        may_retry = again and not turn.cancel_requested and turn.tries < turn.max_attempts
        turn.status = "queued" if may_retry else "failed"
        turn.not_before = self.now if may_retry else turn.not_before
        session.held = None
        if used is None:
            return
        if why.then.blames_session:
            self.errors[used] = self.errors.get(used, 0) + 1
            self.failed_resumes[used] = self.failed_resumes.get(used, 0) + held.seen.resumed
        if why.then.retires or self.failed_resumes.get(used, 0) >= MAX_FAILED_RESUMES:
            self.retire(session, turn.provider, used)

    def put_back(self, session: ModelSession, held: ModelLease) -> None:
        turn = held.turn
        turn.status = "cancelled" if turn.cancel_requested else "queued"
        turn.not_before = None
        turn.tries -= 1
        session.held = None

    def recover(self, session: ModelSession, held: ModelLease) -> None:
        turn = held.turn
        turn.not_before = None
        if turn.cancel_requested:
            turn.status = "cancelled"
        elif turn.tries >= turn.max_attempts:
            turn.status = "failed"
        else:
            turn.status = "queued"
        session.held = None

    def cancel(self, turn: ModelTurn) -> None:
        if turn.status == "queued":
            turn.status = "cancelled"
        elif turn.is_open:
            turn.cancel_requested = True
        elif turn.status != "cancelled":
            raise Clash

    def finalize(self, session: ModelSession, phase: str) -> None:
        for turn in session.waiting():
            self.cancel(turn)
        session.phase, session.finalized_at = phase, self.now

    # --- time goes by ---

    def deletable(self, cutoff: int) -> set[str]:
        """Sessions of conversations that are over since before ``cutoff`` and that no remaining fork reads."""
        gone: set[str] = set()
        while True:
            remaining = [c for c in self.conversations() if c.id not in gone]
            parents = {c.parent.id for c in remaining if c.parent}
            more = {c.id for c in remaining if c.id not in parents and self._is_over(c, cutoff)}
            if not more:
                return {s.id for s in self.sessions.values() if s.conversation.id in gone}
            gone |= more

    def _is_over(self, conversation: ModelConversation, cutoff: int) -> bool:
        return all(
            session.finalized_at is not None and session.finalized_at < cutoff and session.held is None
            for session in self.of(conversation)
        )
