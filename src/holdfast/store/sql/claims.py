"""Owns the claim: pick a head turn, decide, take the lease and open the attempt, in one transaction."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from holdfast.clock import after, to_iso
from holdfast.domain.approvals import Approval
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
    decision_kind,
)
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import SessionId
from holdfast.domain.pointers import NO_RIGHTS, Pointer, Rights, choose_pointer
from holdfast.domain.resume import decide_resume, only_natively
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import (
    AttemptCause,
    Claim,
    ClaimRequest,
    Lease,
    NewTurn,
    Refusal,
    Turn,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import estimate_tokens
from holdfast.errors import Busy, Conflict, InvalidInput, NotFound, StoreCorrupt
from holdfast.store import tallies
from holdfast.store.driver import Row
from holdfast.store.sql import (
    approval_rows,
    approvals,
    attempts,
    history,
    leases,
    pointers,
    provider_sessions,
    runtimes,
    sessions,
    turns,
)
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_rows import COLUMNS, read_session
from holdfast.store.sql.shapes import Shape, read_instant

log = logging.getLogger("holdfast")

# apart from WAKE: PostgreSQL may run a subquery of an update more than once, and so exceed its limit
DUE = """
SELECT id FROM sessions
WHERE workspace = :ws AND head_provider = :provider AND wake_at IS NOT NULL AND wake_at <= :now
ORDER BY wake_at LIMIT :limit FOR UPDATE SKIP LOCKED"""
# what may be claimed already has waited long enough for its runtime
WAKE = """
UPDATE sessions SET ready_at = COALESCE(ready_at, wake_at),
    wake_at = CASE WHEN ready_at IS NULL AND head_kept THEN CAST(:kept_until AS BIGINT) END,
    head_kept = CASE WHEN ready_at IS NULL THEN head_kept ELSE FALSE END,
    head_runtime_id = CASE WHEN ready_at IS NULL THEN head_runtime_id ELSE '' END
WHERE workspace = :ws AND id = :id"""
# SQLite sorts what is no number above every number: such a head would come first, and is never picked
READY = """ready_at IS NOT NULL AND ready_at <= 9223372036854775807
    AND head_priority <= 9223372036854775807"""
PICK = f"""
SELECT id, head_priority, ready_at FROM sessions
WHERE workspace = :ws AND head_provider = :provider AND head_runtime_id = :runtime_id
    AND {READY}
ORDER BY head_priority DESC, ready_at LIMIT 1 FOR UPDATE SKIP LOCKED"""
PICK_SESSION = """
SELECT id, head_priority, ready_at FROM sessions
WHERE workspace = :ws AND id = :session_id AND head_provider = :provider
    AND (head_runtime_id = :runtime_id OR head_kept) AND head_priority <= 9223372036854775807
    AND (ready_at <= 9223372036854775807 OR wake_at <= :now) FOR UPDATE SKIP LOCKED"""
HEAD_OF = (
    "SELECT head_seq, fence, lease_owner, lease_expires_at FROM sessions WHERE workspace = :ws AND id = :id"
)
WITH_HEAD = f"SELECT {COLUMNS}, head_seq, fence FROM sessions WHERE workspace = :ws AND id = :id"
TAKE_LEASE = """
UPDATE sessions SET fence = :fence, lease_owner = :owner, lease_expires_at = :expires_at,
    ready_at = NULL, wake_at = NULL, updated_at = :now
WHERE workspace = :ws AND id = :id"""
POSTPONE = "UPDATE sessions SET ready_at = NULL, wake_at = :wake_at WHERE workspace = :ws AND id = :id"

_HEAD = Shape("sessions", "head_seq, fence")
_LEASED_HEAD = Shape(
    "sessions", "head_seq, fence, lease_owner, lease_expires_at", "head_seq lease_owner lease_expires_at"
)
#: heads that cannot run now are passed over, but a claim looks at no more than this many
MAX_CANDIDATES = 16
#: fewer come back than a claim passes over, so that those behind them have their turn in the end
MAX_WOKEN = 8


@dataclass(frozen=True, slots=True)
class Judged:
    decision: Decision
    pointer: Pointer | None
    covers: SeenTurns
    approval: Approval | None


def claim(s: Scope, request: ClaimRequest) -> Claim | None:
    known = redeliver(s, request.key, request.runtime)
    if known is not None:
        return known
    for (due,) in s.all(DUE, provider=request.runtime.provider, now=s.now, limit=MAX_WOKEN):
        s.run(WAKE, id=due, kept_until=after(s.now, s.policy.queue.affinity_seconds))
    runtime_id = runtimes.register(s, request.runtime, refresh=False)
    for _ in range(MAX_CANDIDATES):
        picked = _pick(s, request, runtime_id)
        if picked is None:
            approvals.refuse_unanswered(s, request.session_id)
            return None
        claimed = _claim_head(s, request, picked)
        if claimed is not None:
            return claimed
    return None


def start(s: Scope, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
    """A turn that is claimed as it is put in. A session with other work under way is Busy: nothing changes."""
    if new.provider != request.runtime.provider:
        raise InvalidInput("provider", f"{new.provider} does not run on a {request.runtime.provider} runtime")
    if new.runtime_id not in (None, request.runtime.id):
        raise InvalidInput("runtime_id", f"the turn is pinned to {new.runtime_id}")
    conversation = turns.lock_both(s, session_id)
    known = redeliver(s, request.key, request.runtime)
    if known is not None:
        return known
    session = sessions.get(s, session_id)
    if new.foreground:
        _give_way(s, session)
    fence = _idle_fence(s, session_id)
    if turns.known(s, conversation, session_id, new) is not None:
        raise Conflict(f"the turn with the key {new.key} is there already", key=new.key)
    runtimes.register(s, request.runtime, refresh=False)
    taker = turns.Taker(new.provider, request.runtime.id)
    turn = turns.put(s, conversation, session.id, new, taker=taker)
    judged = judge(s, session, conversation, turn, request.runtime)
    tallies.count_decision(decision_kind(judged.decision), judged.decision.reason)
    if isinstance(judged.decision, Wait):
        raise Busy(f"the {new.provider} session of {session_id}")
    if isinstance(judged.decision, Refuse):
        return _refuse(s, turn, judged.decision)
    claimed = _take(s, request, fence + 1, conversation, turn, judged)
    if claimed is None:
        raise Busy(f"the {new.provider} session of {session_id}")
    return claimed


def _idle_fence(s: Scope, session_id: str) -> int:
    """Of a session with no open turn; else Busy, or what its turn waits for."""
    head = s.one(HEAD_OF, id=session_id)
    if head is None:
        raise NotFound("session", session_id)
    seq, fence, owner, expires_at = _LEASED_HEAD.read(s.where, head, tuple, session_id)
    if seq is not None:
        approvals.refuse_unanswered(s, session_id)
        until = None if expires_at is None else to_iso(read_instant(expires_at))
        raise Busy(f"session {session_id} (turn {seq})", owner, until)
    return int(fence)


def _give_way(s: Scope, session: Session) -> None:
    """A person does not wait for a turn that itself waits for a limit to pass: that one has failed."""
    turn = _head(s, session)
    if turn is None or turn.status is not TurnStatus.QUEUED or turn.next_cause is not AttemptCause.RETRY:
        return
    (*_, last) = attempts.of_turn(s, turn.conversation_id, turn.seq)
    limited = last.failure is not None and last.failure.failure_class is FailureClass.LIMIT
    if limited and turn.not_before is not None and turn.not_before > s.now:
        turns.end(s, turn, TurnStatus.FAILED, last.failure)
        turns.promote_head(s, session.conversation_id, session.id)


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
    pointer = find_pointer(s, attempt.session_id, turn, runtime, attempt.fence)
    decision = attempt.decision.about(
        attempt.provider_session_id or attempt.forked_from or turn.request.provider_session_id,
        () if pointer is None else pointer.catch_up(turn.seq),
    )  # fmt: skip
    return Claim(
        lease, turn, decision, pointer, attempt.cause, attempt.epoch, attempt.generation, attempt.seen,
        approval_rows.of_turn(s, turn) if turn.has_unused_answer else None,
    )  # fmt: skip


def _pick(s: Scope, request: ClaimRequest, runtime_id: str) -> str | None:
    """The best of the heads pinned to this runtime and of those that anyone may run."""
    found = []
    for pin in (runtime_id, ""):
        if request.session_id is None:
            row = s.one(PICK, provider=request.runtime.provider, runtime_id=pin)
        else:
            row = s.one(
                PICK_SESSION, provider=request.runtime.provider, runtime_id=pin,
                session_id=request.session_id, now=s.now,
            )  # fmt: skip
        if row is not None:
            found.append(row)
    if not found:
        return None
    session_id, _, _ = min(found, key=_rank)
    return str(session_id)


def _rank(head: Row) -> tuple[int, int]:
    _, priority, ready_at = head
    return -priority, ready_at


def _claim_head(s: Scope, request: ClaimRequest, session_id: str) -> Claim | None:
    """None: this head cannot run now, and is out of the way."""
    row = s.one(WITH_HEAD, id=session_id)
    if row is None:
        return None
    try:
        return _judge_head(s, request, row)
    except (StoreCorrupt, NotFound) as exc:
        # it may be mended one day; until then it holds up nobody else
        about = {"session": session_id}
        log.warning("session %s passed over: %s", session_id, exc, extra={"about": about})
        _postpone(s, session_id)
        return None


def _judge_head(s: Scope, request: ClaimRequest, row: Row) -> Claim | None:
    session = read_session(row[:-2], s.where)
    head_seq, fence = _HEAD.read(s.where, row[-2:], tuple, session.id)
    # the conversation first: an edit in between then makes the epoch too old, which errs towards fresh
    conversation = history.get(s, session.conversation_id)
    turn = turns.get(s, session.conversation_id, head_seq)
    if turn.session_id != session.id:
        raise StoreCorrupt(s.where, f"turns: the head of {session.id} is a turn of {turn.session_id}")
    if turn.status is not TurnStatus.QUEUED:
        # whatever the session's row says: what waits for an approval is run by nobody
        raise StoreCorrupt(s.where, f"turns: the head of {session.id} is offered while it is {turn.status}")
    judged = judge(s, session, conversation, turn, request.runtime)
    tallies.count_decision(decision_kind(judged.decision), judged.decision.reason)
    match judged.decision:
        case Wait():
            _postpone(s, session.id)
            return None
        case Refuse():
            _refuse(s, turn, judged.decision)
            return None
        case _:
            claimed = _take(s, request, fence + 1, conversation, turn, judged)
            if claimed is None:
                _postpone(s, session.id)
            return claimed


def _postpone(s: Scope, session_id: str) -> None:
    s.run(POSTPONE, id=session_id, wake_at=after(s.now, s.policy.queue.lock_delay_seconds))


def _take(
    s: Scope, request: ClaimRequest, fence: int, conversation: Conversation, turn: Turn, judged: Judged
) -> Claim | None:
    """None: someone else took the provider session since it was judged."""
    lease = Lease(
        turn.session_id, turn.conversation_id, turn.seq, turn.attempts + 1, fence, request.owner,
        after(s.now, request.lease_seconds),
    )  # fmt: skip
    decision = judged.decision
    named = decision.provider_session_id if isinstance(decision, Resume | Fresh) else None
    if named is not None and not provider_sessions.take(s, turn.provider, named, lease):
        return None
    runtime = request.runtime
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
        conversation.generation, judged.covers, judged.approval,
    )  # fmt: skip


def _refuse(s: Scope, turn: Turn, decision: Refuse) -> Refusal:
    evidence = next((v.evidence for v in decision.verdicts if v.reason is decision.reason), "")
    failure = Failure(FailureClass.REFUSED, f"{decision.reason}: {evidence}")
    if turn.has_unused_answer:
        approval_rows.void_of_turn(s, turn, decision.reason)
    turns.end(s, turn, TurnStatus.FAILED, failure)
    turns.promote_head(s, turn.conversation_id, turn.session_id)
    return Refusal(turns.get(s, turn.conversation_id, turn.seq), decision)


def judge(
    s: Scope, session: Session, conversation: Conversation, turn: Turn, runtime: Runtime | None
) -> Judged:
    """What the database knows, put to ``decide_resume``. Without a runtime its facts cannot be seen."""
    pointer = find_pointer(s, session.id, turn, runtime)
    wanted = turn.request.provider_session_id
    target = wanted or (pointer.provider_session_id if pointer else None)
    state = provider_sessions.state(s, turn.provider, target, besides=session.id) if target else None
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
    approval = approval_rows.of_turn(s, turn) if turn.has_unused_answer else None
    if approval is not None:
        holds_call, _ = attempts.deferred_in(s, turn.conversation_id, turn.seq)
        decision = only_natively(decision, holds_call)
    covers = SeenTurns.up_to(turn.seq, without=turns.open_before(s, conversation.id, turn.seq))
    if approval is not None and pointer is not None and pointer.seen is not None:
        covers = pointer.seen  # nothing is said to an agent that goes on with its call
    return Judged(decision, pointer, covers, approval)


def _asked_rights(turn: Turn, pointer: Pointer | None) -> Rights | None:
    """A turn that says nothing runs with what was recorded."""
    if turn.request.rights is not None:
        return turn.request.rights
    return pointer.rights if pointer is not None else NO_RIGHTS


def explain(
    s: Scope, session_id: str, provider: str, request: TurnRequest | None, runtime: Runtime | None
) -> Decision:
    session = sessions.get(s, session_id)
    conversation = history.get(s, session.conversation_id)
    turn = _head(s, session) if request is None else None
    if turn is None or turn.status is not TurnStatus.QUEUED or turn.provider != provider:
        turn = Turn(
            conversation.id, conversation.next_seq, session.id, provider, TurnStatus.QUEUED, "", None,
            request or TurnRequest(), 0, None, None, False, None, 0, 1, conversation.generation, None, None,
            False, s.now, None,
        )  # fmt: skip
    return judge(s, session, conversation, turn, runtime).decision


def _head(s: Scope, session: Session) -> Turn | None:
    (seq, *_) = s.one(HEAD_OF, id=session.id) or (None,)
    return None if seq is None else turns.get(s, session.conversation_id, seq)


def find_pointer(
    s: Scope, session_id: SessionId, turn: Turn, runtime: Runtime | None, before_fence: int = 2**62
) -> Pointer | None:
    stored = pointers.get(s, session_id, turn.provider)
    if runtime is None or (stored is not None and stored.runtime_id == runtime.id):
        return stored
    newest = attempts.newest_pointer(s, session_id, turn.provider, before_fence)
    return choose_pointer(stored, newest, runtime.id)


def _changes(
    s: Scope, conversation: Conversation, pointer: Pointer | None
) -> tuple[HistoryChange, ...] | None:
    if pointer is None or pointer.epoch is None:
        return None
    return history.changes_since(s, conversation, pointer.epoch)
