"""Owns the claim: pick a head turn, decide, take the lease and open the attempt, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.clock import after, to_iso
from holdfast.domain.approvals import Approval, why_it_waits
from holdfast.domain.conversations import Conversation, HistoryChange, SeenTurns
from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    Facts,
    Fresh,
    Refuse,
    Resume,
    ResumeRequest,
    Wait,
    because,
    decision_kind,
)
from holdfast.domain.failures import Failure, FailureClass, Retry
from holdfast.domain.guards import decide_resume, only_natively
from holdfast.domain.ids import SessionId
from holdfast.domain.pointers import NO_RIGHTS, Pointer, Rights, choose_pointer
from holdfast.domain.records import record, replace
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.statistics import TotalKind
from holdfast.domain.turns import (
    AttemptCause,
    Claim,
    ClaimRequest,
    Lease,
    NewTurn,
    Refusal,
    Situation,
    Turn,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import estimate_tokens
from holdfast.errors import Busy, Conflict, HoldfastError, InvalidInput, NotFound, StoreCorrupt
from holdfast.store import counters
from holdfast.store.driver import Row
from holdfast.store.sql import (
    approvals,
    attempts,
    heads,
    history,
    leases,
    provider_sessions,
    runtimes,
    sessions,
    situations,
    totals,
    turns,
)
from holdfast.store.sql.rows import cut
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.sessions import read_session
from holdfast.store.sql.tables import SESSIONS, read_instant

log = logging.getLogger("holdfast")

# of one moment: the turn may be given out in the history that goes with it
HEAD_TURN = f"""
SELECT {history.ROWS.of("c").sql}, {turns.ROWS.sql},
    EXISTS (SELECT 1 FROM turns o INDEXED BY open_turns
        WHERE o.workspace = t.workspace AND o.conversation_id = t.conversation_id AND o.seq < t.seq
            AND o.status IN ('queued', 'claimed', 'running', 'waiting')),
    EXISTS (SELECT 1 FROM attempts a
        WHERE a.workspace = t.workspace AND a.conversation_id = t.conversation_id AND a.seq = t.seq
            AND a.number > t.attempts),
    EXISTS (SELECT 1 FROM runtimes r WHERE r.workspace = t.workspace AND r.id = :runtime_id),
    {situations.HAS_ASKED.format(workspace="t.workspace", session_id="t.session_id")}
FROM turns t JOIN conversations c ON c.workspace = t.workspace AND c.id = t.conversation_id
WHERE t.workspace = :ws AND t.conversation_id = :id AND t.seq = :seq"""
_LEASED_HEAD = SESSIONS.pick("head_seq", "fence", "lease_owner", "lease_expires_at")
HEAD_OF = f"""
SELECT {_LEASED_HEAD.sql}, {situations.HAS_ASKED.format(workspace=":ws", session_id=":id")}
FROM sessions WHERE workspace = :ws AND id = :id"""
WAITING_HEAD = """
SELECT t.conversation_id, t.seq, t.status FROM sessions s JOIN turns t
    ON t.workspace = s.workspace AND t.conversation_id = s.conversation_id AND t.seq = s.head_seq
WHERE s.workspace = :ws AND s.id = :id"""
TAKE_LEASE = """
UPDATE sessions SET fence = :fence, lease_owner = :owner, lease_expires_at = :expires_at,
    ready_at = NULL, wake_at = NULL, updated_at = :now
WHERE workspace = :ws AND id = :id"""

#: above every fence
_NEWEST = 2**62


class Position(NamedTuple):
    """Where a session stands when its turn is judged."""

    session: Session
    conversation: Conversation
    turn: Turn
    open_before: Sequence[int]  #: open turns of other agents in the conversation
    fence: int  #: of the session's newest attempt
    has_asked: bool = False  #: people, for something


@record
class Judged:
    decision: Decision
    pointer: Pointer | None
    covers: SeenTurns
    approval: Approval | None
    stored: Pointer | None  #: the one in the table; ``pointer`` may come from the newest attempt


def claim(s: Scope, request: ClaimRequest, memory: heads.QueueMemory) -> Claim | None:
    heads.check_request(request)
    heads.mend_waits(s, request.runtime.provider, memory)
    known = redeliver(s, request.key, request.runtime)
    if known is not None:
        return known
    heads.wake(s, request.runtime.provider)
    for _ in range(heads.MAX_CANDIDATES):
        picked = heads.pick(s, request)
        if picked is None:
            refuse_unanswered(s, request.session_id)
            return None
        claimed = _claim_head(s, request, picked)
        if claimed is not None:
            return claimed
    return None


def start(s: Scope, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
    """A turn that is claimed as it is put in. A session with other work under way is Busy: nothing changes."""
    leases.check_seconds(request.lease_seconds)
    if new.provider != request.runtime.provider:
        raise InvalidInput("provider", f"{new.provider} does not run on a {request.runtime.provider} runtime")
    if new.runtime_id not in (None, request.runtime.id):
        raise InvalidInput("runtime_id", f"the turn is pinned to {new.runtime_id}")
    locked = turns.lock_both(s, session_id)
    conversation = locked.conversation
    known = redeliver(s, request.key, request.runtime)
    if known is not None:
        return known
    session = sessions.get(s, session_id)
    if new.foreground:
        _give_way(s, session)
    fence, has_asked = _idle_fence(s, session_id)
    if turns.known(s, locked, new) is not None:
        raise Conflict(f"the turn with the key {new.key} is there already", key=new.key)
    runtimes.register(s, request.runtime, refresh=False)
    taker = heads.Taker(new.provider, request.runtime.id)
    turn = turns.put(s, locked._replace(head_seq=None), new, taker=taker)  # idle by now
    open_before = turns.open_before(s, conversation.id, turn.seq)
    at = Position(session, replace(conversation, next_seq=turn.seq + 1), turn, open_before, fence, has_asked)
    judged = judge(s, at, request.runtime)
    counters.count_decision(decision_kind(judged.decision), judged.decision.reason)
    if isinstance(judged.decision, Wait):
        raise Busy(f"the {new.provider} session of {session_id}")
    if isinstance(judged.decision, Refuse):
        return _refuse(s, turn, judged.decision)
    claimed = _take(s, request, at, judged)
    if claimed is None:
        raise Busy(f"the {new.provider} session of {session_id}")
    return claimed


def _idle_fence(s: Scope, session_id: str) -> tuple[int, bool]:
    """Of a session with no open turn, and whether it has asked people; else Busy, or what its turn waits for."""
    head = s.one(HEAD_OF, id=session_id)
    if head is None:
        raise NotFound("session", session_id)
    leased, (has_asked,) = cut(head, _LEASED_HEAD)
    seq, fence, owner, expires_at = _LEASED_HEAD.checked(s.where, leased, session_id)
    if seq is not None:
        refuse_unanswered(s, session_id)
        until = None if expires_at is None else to_iso(read_instant(expires_at))
        raise Busy(f"session {session_id} (turn {seq})", owner, until)
    return int(fence), bool(has_asked)


def refuse_unanswered(s: Scope, session_id: str | None) -> None:
    """If the head of this session waits for an answer, nothing of it runs until then."""
    row = None if session_id is None else s.one(WAITING_HEAD, id=session_id)
    if row is not None and row[-1] == TurnStatus.WAITING:
        conversation_id, seq, _ = row
        raise _unanswered(s, turns.get(s, conversation_id, seq))


def _unanswered(s: Scope, turn: Turn) -> HoldfastError:
    approval = approvals.of_turn(s, turn)
    if approval is None:
        raise NotFound("approval of turn", str(turn.seq), session_id=turn.session_id)
    return why_it_waits(approval, s.now)


def _give_way(s: Scope, session: Session) -> None:
    """A person does not wait for a turn that itself waits for a limit to pass: that one has failed."""
    turn = _head(s, session)
    if turn is None or turn.status is not TurnStatus.QUEUED or turn.next_cause is not AttemptCause.RETRY:
        return
    (*_, last) = attempts.of_turn(s, turn.conversation_id, turn.seq)
    limited = last.failure is not None and last.failure.then.retry is Retry.AT_RESET
    if limited and turn.not_before is not None and turn.not_before > s.now:
        turns.end(s, turn, TurnStatus.FAILED, last.failure)
        heads.promote_head(s, session.conversation_id, session.id)


def redeliver(s: Scope, key: str, runtime: Runtime | None) -> Claim | None:
    """The claim whose reply was lost: the same call gets the same lease, never a second one."""
    attempt = attempts.open_claim(s, key)
    if attempt is None:
        return None
    turn = turns.get(s, attempt.conversation_id, attempt.seq)
    expires_at = leases.expires_at(s, attempt.session_id)
    lease = Lease(
        attempt.session_id, attempt.conversation_id, attempt.seq, attempt.number, attempt.fence,
        attempt.owner, s.now if expires_at is None else expires_at,
    )  # fmt: skip
    stored, pointer = find_pointer(s, attempt.session_id, turn, runtime, attempt.fence)
    decision = attempt.decision.about(
        attempt.provider_session_id or attempt.forked_from or turn.request.provider_session_id,
        () if pointer is None else pointer.catch_up(turn.seq),
    )  # fmt: skip
    known = Situation(
        sessions.get(s, attempt.session_id),
        history.get(s, turn.conversation_id),
        turn.provider,
        stored,
        s.now,
    )
    has_asked = situations.has_asked(s, attempt.session_id)
    situation = situations.complete(s, known, seq=turn.seq, fence=attempt.fence, has_asked=has_asked)
    return Claim(
        lease, turn, decision, pointer, attempt.cause, attempt.epoch, attempt.generation, attempt.seen, situation,
        approvals.of_turn(s, turn) if turn.has_unused_answer else None, attempt.id,
    )  # fmt: skip


def _claim_head(s: Scope, request: ClaimRequest, row: Row) -> Claim | None:
    """None: this head cannot run now, and is out of the way."""
    try:
        return _judge_head(s, request, row)
    except (StoreCorrupt, NotFound) as exc:
        # somebody may repair the row; until then it does not hold up other turns
        session_id = str(row[0])
        about = {"session": session_id}
        log.warning("session %s passed over: %s", session_id, exc, extra={"about": about})
        heads.postpone(s, session_id)
        return None


def _judge_head(s: Scope, request: ClaimRequest, row: Row) -> Claim | None:
    known, picked, _ = cut(row, sessions.ROWS, heads.PICKED)
    session = read_session(known, s.where)
    head_seq, fence, *_ = heads.PICKED.checked(s.where, picked, session.id)
    at = _position(s, session, head_seq, fence, request.runtime)
    turn = at.turn
    if turn.session_id != session.id:
        raise StoreCorrupt(s.where, f"turns: the head of {session.id} is a turn of {turn.session_id}")
    if turn.status is not TurnStatus.QUEUED:
        # whatever the session's row says: a turn that waits for an approval must not run
        raise StoreCorrupt(s.where, f"turns: the head of {session.id} is offered while it is {turn.status}")
    judged = judge(s, at, request.runtime)
    counters.count_decision(decision_kind(judged.decision), judged.decision.reason)
    match judged.decision:
        case Wait():
            totals.count(s, TotalKind.LOCK_WAIT, "claim", agent=session.agent, provider=turn.provider)
            heads.postpone(s, session.id)
            return None
        case Refuse():
            _refuse(s, turn, judged.decision)
            return None
        case _:
            claimed = _take(s, request, at, judged)
            if claimed is None:
                heads.postpone(s, session.id)
            return claimed


def _position(s: Scope, session: Session, head_seq: int, fence: int, runtime: Runtime) -> Position:
    row = s.one(HEAD_TURN, id=session.conversation_id, seq=head_seq, runtime_id=runtime.id)
    if row is None:
        raise NotFound("turn", str(head_seq), conversation_id=session.conversation_id)
    in_conversation, head, (has_open_before, is_miscounted, knows_runtime, has_asked) = cut(
        row, history.ROWS, turns.ROWS
    )
    conversation, turn = history.read_conversation(s, in_conversation), turns.read_turn(s, head)
    if is_miscounted:
        raise attempts.miscounted(s, turn)
    if not knows_runtime:
        runtimes.register(s, runtime, refresh=False)
    open_before = turns.open_before(s, conversation.id, turn.seq) if has_open_before else []
    return Position(session, conversation, turn, open_before, fence, bool(has_asked))


def _take(s: Scope, request: ClaimRequest, at: Position, judged: Judged) -> Claim | None:
    """None: someone else took the provider session since it was judged."""
    conversation, turn, fence = at.conversation, at.turn, at.fence + 1
    lease = Lease(
        turn.session_id, turn.conversation_id, turn.seq, turn.attempts + 1, fence, request.owner,
        after(s.now, request.lease_seconds),
    )  # fmt: skip
    decision = judged.decision
    named = decision.provider_session_id if isinstance(decision, Resume | Fresh) else None
    if named is not None and not provider_sessions.take(s, turn.provider, named, lease):
        return None
    runtime = request.runtime
    known = Situation(at.session, conversation, turn.provider, judged.stored, s.now)
    situation = situations.complete(s, known, seq=turn.seq, fence=fence, has_asked=at.has_asked)
    opening = attempts.Opening(
        lease, turn, conversation, decision, judged.pointer, judged.covers, runtime.id, runtime.version,
        request.key,
    )  # fmt: skip
    cause = attempts.open_attempt(s, opening)
    s.run(
        TAKE_LEASE, id=turn.session_id, fence=lease.fence, owner=lease.owner, expires_at=lease.expires_at,
        now=s.now,
    )  # fmt: skip
    return Claim(
        lease, attempts.as_claimed(turn), decision, judged.pointer, cause, conversation.revision,
        conversation.generation, judged.covers, situation, judged.approval, opening.id,
    )  # fmt: skip


def _refuse(s: Scope, turn: Turn, decision: Refuse) -> Refusal:
    failure = Failure(FailureClass.REFUSED, because(decision).message)
    if turn.has_unused_answer:
        approvals.void_of_turn(s, turn, decision.reason)
    turns.end(s, turn, TurnStatus.FAILED, failure)
    heads.promote_head(s, turn.conversation_id, turn.session_id)
    return Refusal(turns.get(s, turn.conversation_id, turn.seq), decision)


def judge(s: Scope, at: Position, runtime: Runtime | None, pointer: Pointer | None = None) -> Judged:
    """What the database knows, put to ``decide_resume``. Without a runtime its facts cannot be seen.

    ``pointer``: in place of the one that is stored.
    """
    session, conversation, turn = at.session, at.conversation, at.turn
    stored = None
    if pointer is None:
        stored, pointer = find_pointer(s, session.id, turn, runtime, at.fence + 1)
    wanted = turn.request.provider_session_id
    target = wanted or (pointer.provider_session_id if pointer else None)
    state = provider_sessions.state(s, turn.provider, target, besides=session.id) if target else None
    if state is not None and wanted is not None:
        owner = provider_sessions.find_owner(s, turn.provider, wanted, session.id)
        if owner is not None and owner.is_elsewhere:
            state = replace(state, is_elsewhere=True)
        elif owner is not None:
            closed = sessions.is_closed(s, owner.session_id)
            state = replace(state, owner=owner.session_id, owner_is_closed=closed)
    facts = Facts(
        native_resume=s.policy.resume.native_resume_for(session.agent, turn.provider),
        capabilities=runtime.capabilities if runtime else NOT_OBSERVABLE,
        generation=conversation.generation,
        runtime_id=runtime.id if runtime else NOT_OBSERVABLE,
        version=runtime.version if runtime else NOT_OBSERVABLE,
        changes=_changes(s, conversation, pointer),
        provider_session=state,
        seq=turn.seq,
    )
    request = ResumeRequest(
        force_fresh=turn.request.force_fresh,
        model=turn.request.model or NOT_OBSERVABLE,
        rights=_asked_rights(turn, pointer),
        allow_wider_rights=turn.request.allow_wider_rights,
        prompt_tokens=estimate_tokens(turn.prompt),
        provider_session_id=wanted,
    )
    decision = decide_resume(pointer, request, facts, s.policy.resume)
    approval = approvals.of_turn(s, turn) if turn.has_unused_answer else None
    if approval is not None:
        holds_call, _ = attempts.deferred_in(s, turn.conversation_id, turn.seq)
        decision = only_natively(decision, holds_call)
    covers = SeenTurns.up_to(turn.seq, without=at.open_before)
    if approval is not None and pointer is not None and pointer.seen is not None:
        covers = pointer.seen  # an agent that continues with its call is sent nothing
    return Judged(decision, pointer, covers, approval, stored)


def _asked_rights(turn: Turn, pointer: Pointer | None) -> Rights | None:
    """Returns the rights that the turn asks for, else those that were recorded."""
    rights = turn.request.else_recorded(pointer).rights
    return NO_RIGHTS if rights is None and pointer is None else rights


def explain(
    s: Scope,
    session_id: str,
    provider: str,
    request: TurnRequest | None,
    runtime: Runtime | None,
    pointer: Pointer | None,
) -> Decision:
    session = sessions.get(s, session_id)
    conversation = history.get(s, session.conversation_id)
    turn = _head(s, session) if request is None else None
    if turn is None or turn.status is not TurnStatus.QUEUED or turn.provider != provider:
        turn = _next_turn(s, session, conversation, provider, request or TurnRequest())
    return judge(s, Position(session, conversation, turn, (), _NEWEST), runtime, pointer).decision


def situation(s: Scope, session_id: str, provider: str | None) -> Situation:
    """As of now, with how a plain turn would be sent, as far as the database knows."""
    found = situations.of_session(s, session_id, provider)
    if found.provider is None:
        return found
    plain = _next_turn(s, found.session, found.conversation, found.provider, TurnRequest())
    at = Position(found.session, found.conversation, plain, (), _NEWEST)
    return replace(found, decision=judge(s, at, None).decision)


def _next_turn(
    s: Scope, session: Session, conversation: Conversation, provider: str, request: TurnRequest
) -> Turn:
    """One that is not there yet."""
    return turns.make(
        conversation, conversation.next_seq, session.id, NewTurn("", provider, request), now=s.now
    )


def _head(s: Scope, session: Session) -> Turn | None:
    (seq, *_) = s.one(HEAD_OF, id=session.id) or (None,)
    return None if seq is None else turns.get(s, session.conversation_id, seq)


def find_pointer(
    s: Scope, session_id: SessionId, turn: Turn, runtime: Runtime | None, before_fence: int
) -> tuple[Pointer | None, Pointer | None]:
    """The stored one, and the one that counts on this runtime."""
    stored = provider_sessions.pointer(s, session_id, turn.provider)
    if runtime is None or (stored is not None and stored.runtime_id == runtime.id):
        return stored, stored
    newest = attempts.newest_pointer(s, session_id, turn.provider, before_fence)
    return stored, choose_pointer(stored, newest, runtime.id)


def _changes(
    s: Scope, conversation: Conversation, pointer: Pointer | None
) -> tuple[HistoryChange, ...] | None:
    if pointer is None or pointer.epoch is None:
        return None
    return history.changes_since(s, conversation, pointer.epoch)
