"""Owns the ways in which an attempt ends: finished, fallen back, put back, recovered, or reported too late.

Each is one transaction that leaves the record, the pointer, the counters and the queue in agreement.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.domain.decisions import DecisionKind, Fresh, Outcome, Reason, Standing, Verdict
from holdfast.domain.events import Event
from holdfast.domain.failures import (
    WAS_CANCELLED,
    Failure,
    FailureClass,
    Fallback,
    Retry,
)
from holdfast.domain.inputs import clean_text
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import ProviderSession, TranscriptMark
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json, redact_text, redact_value
from holdfast.domain.sessions import Session
from holdfast.domain.turns import (
    Attempt,
    AttemptCause,
    AttemptStatus,
    Claim,
    LateReport,
    Lease,
    Orphan,
    Situation,
    Turn,
    TurnEnd,
    TurnStatus,
)
from holdfast.domain.usage import NO_CALL_YET, NO_USAGE, Usage, UsageReport, usage_delta
from holdfast.errors import Conflict, LeaseLost, UnreadableSession
from holdfast.processes.machine import describe_owner
from holdfast.store.driver import Row
from holdfast.store.sql import (
    approvals,
    attempts,
    claims,
    codec,
    heads,
    history,
    json_text,
    leases,
    provider_sessions,
    session_statements,
    sessions,
    situations,
    turns,
)
from holdfast.store.sql.rows import cut
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.sessions import ROWS as SESSION
from holdfast.store.sql.sessions import read_session
from holdfast.store.sql.tables import ATTEMPTS, LATE_REPORTS, MISREAD, Columns, read_instant, unreadable

ATTEMPT_AND_TURN = f"""
SELECT {attempts.ROWS.of("a").sql}, {turns.ROWS.sql}, c.revision
FROM attempts a
JOIN turns t ON t.workspace = a.workspace AND t.conversation_id = a.conversation_id AND t.seq = a.seq
JOIN conversations c ON c.workspace = a.workspace AND c.id = a.conversation_id
WHERE a.workspace = :ws AND a.conversation_id = :id AND a.seq = :seq AND a.number = :number"""
LOCK_WITH_LEASE = f"""
SELECT {SESSION.sql}, fence, lease_expires_at FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"""
SETTLE_SESSION = f"""
UPDATE sessions SET {heads.HEAD_COLUMNS}, error_count = :error_count, last_error = :last_error, last_error_at = :last_error_at,
    phase = :phase, resume_ready = :resume_ready, updated_at = :now,
    lease_owner = NULL, lease_expires_at = NULL, partial_text = NULL,
    input_tokens = input_tokens + :input, cached_input_tokens = cached_input_tokens + :cached,
    output_tokens = output_tokens + :output, cost_usd = cost_usd + :cost, agent_title = :title
WHERE workspace = :ws AND id = :id"""
# a fallback is the same try of the same turn: numbered, but not counted
NUMBER_ATTEMPT = """
UPDATE turns SET status = 'claimed', attempts = :number
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
TAKE_FENCE = """
UPDATE sessions SET fence = :fence, partial_text = NULL,
    input_tokens = input_tokens + :input, cached_input_tokens = cached_input_tokens + :cached,
    output_tokens = output_tokens + :output, cost_usd = cost_usd + :cost
WHERE workspace = :ws AND id = :id"""
_LATE = LATE_REPORTS.pick("seq", "fence", "verb", "report", "at").of("r") + Columns(
    LATE_REPORTS.name, [("a.number", "number", ATTEMPTS.columns["number"].or_null)]
)
LATE = f"""
SELECT {_LATE.sql}
FROM late_reports r LEFT JOIN attempts a
    ON a.workspace = r.workspace AND a.conversation_id = r.conversation_id AND a.seq = r.seq AND a.fence = r.fence
WHERE r.workspace = :ws AND r.conversation_id = :id ORDER BY r.at, r.seq, r.fence"""

_ATTEMPT_STATUS = {
    TurnStatus.DONE: AttemptStatus.DONE,
    TurnStatus.FAILED: AttemptStatus.FAILED,
    TurnStatus.CANCELLED: AttemptStatus.CANCELLED,
    TurnStatus.WAITING: AttemptStatus.DEFERRED,
}


@record
class Late:
    """The lease was lost: the report was kept as evidence and nothing else was changed."""

    lease: Lease

    def error(self) -> LeaseLost:
        return LeaseLost(self.lease.session_id, self.lease.seq, self.lease.fence)


def finish(s: Scope, lease: Lease, end: TurnEnd, *, by_its_worker: bool = True) -> Turn | Late:
    if end.status not in _ATTEMPT_STATUS:
        raise Conflict(f"a turn cannot end as {end.status}", status=end.status)
    if (end.status is TurnStatus.WAITING) != (end.approval is not None):
        raise Conflict("a turn waits for an approval, and no other turn has one", status=end.status)
    locked = s.one(LOCK_WITH_LEASE, id=lease.session_id)
    held = locked is not None and leases.proves(lease, *locked[-2:])
    row = s.one(ATTEMPT_AND_TURN, id=lease.conversation_id, seq=lease.seq, number=lease.attempt)
    if row is None:
        raise attempts.missing(lease)
    its_attempt, its_turn, (revision,) = cut(row, attempts.ROWS, turns.ROWS)
    attempt = attempts.read_attempt(s, its_attempt)
    is_its_own = (attempt.session_id, attempt.fence) == (lease.session_id, lease.fence)
    if locked is None or not is_its_own or not held:
        if is_its_own and attempt.status in _as_reported(end):
            return turns.read_turn(s, its_turn)
        _keep_late(s, lease, "finish", _evidence(end))
        return Late(lease)
    turn = turns.read_turn(s, its_turn)
    end = _outside_its_source(s, attempt, _about_the_resumed(attempt, end))
    end = _unless_cancelled(turn, _in_no_others(s, attempt, end))
    own = attempt.provider_session_id if end.status is TurnStatus.DONE else attempts.begun_id(attempt, turn)
    attempt = replace(
        attempt,
        provider_session_id=end.provider_session_id or own,
        transcript=end.transcript or attempt.transcript,
    )
    used = _settle_provider_session(s, attempt, end, launched=turn.status is TurnStatus.RUNNING)
    _settle_doubt(s, attempt, end)
    _end_attempt(s, attempt, end, used)
    turn = _end_turn(s, turn, end, history.read_revision(s, revision, turn.conversation_id))
    # on PostgreSQL ringing has a price, and every turn ends here: it is left out where the worker that ends this
    # turn looks for its next one anyway. A person's command does not
    looks_anyway = by_its_worker and not turn.foreground
    taker = heads.Taker(attempt.provider, attempt.runtime_id) if looks_anyway else None
    try:
        _settle_session(s, read_session(locked[:-2], s.where), end, used, taker)
    except UnreadableSession:
        # the answer is kept all the same; the session's own counters cannot be
        leases.release(s, lease)
        heads.promote_head(s, lease.conversation_id, lease.session_id, taker)
    return turn


def _settle_provider_session(s: Scope, attempt: Attempt, end: TurnEnd, *, launched: bool) -> Usage:
    """Pointer, retirement and counters of the provider session; what this attempt used.

    An attempt that was never launched does not tell where its session is or how it runs.
    """
    session_id = attempt.provider_session_id
    if not session_id:
        return used_of(end.usage, NO_USAGE)
    before, known = provider_sessions.account(s, attempt.provider, session_id)
    if before is None:
        provider_sessions.know(s, attempt.provider, session_id, attempt.session_id, attempt.forked_from)
        before = ProviderSession()
    if known == NO_USAGE and attempt.forked_from is not None:
        # a fork continues counting from where its source stood
        _, known = provider_sessions.account(s, attempt.provider, attempt.forked_from)
    used = used_of(end.usage, known)
    after = _judge_provider_session(before, attempt, end)
    provider_sessions.settle(s, attempt, after, used, end.usage.usage if end.usage.cumulative else known)
    reason = _retirement(s, after, end)
    if reason is not None:
        provider_sessions.retire(s, attempt.session_id, attempt.provider, session_id, reason)
    elif before.retired is None and _moves_pointer(s, attempt, end, launched=launched):
        pointer = attempt.pointer()
        if pointer is not None:
            moved = replace(pointer, context=end.usage.context, updated_at=s.now)
            is_empty = end.status is TurnStatus.DONE and end.response is None
            provider_sessions.move_pointer(s, moved, answered=has_spoken(end), is_empty=is_empty)
    return used


def used_of(report: UsageReport, baseline: Usage) -> Usage:
    return usage_delta(report.usage, baseline) if report.cumulative else report.usage


def has_spoken(end: TurnEnd) -> bool:
    """The agent ended the attempt itself: it answered, or asked for an approval."""
    return end.status in (TurnStatus.DONE, TurnStatus.WAITING)


def _judge_provider_session(before: ProviderSession, attempt: Attempt, end: TurnEnd) -> ProviderSession:
    if has_spoken(end):
        return replace(before, errors=0, failed_resumes=0)
    if end.failure is None or not end.failure.then.blames_session:
        return before
    resumed = attempt.decision.kind is DecisionKind.RESUME
    return replace(
        before, errors=before.errors + 1, failed_resumes=before.failed_resumes + (1 if resumed else 0)
    )


def _retirement(s: Scope, state: ProviderSession, end: TurnEnd) -> str | None:
    if end.failure is not None and end.failure.then.retires:
        return end.failure.then.retired_as
    if not end.resumable:
        return "not_saved"
    if end.status is TurnStatus.FAILED and state.failed_resumes >= s.policy.resume.max_failed_resumes:
        return "failed_resumes"
    return None


def _moves_pointer(s: Scope, attempt: Attempt, end: TurnEnd, *, launched: bool) -> bool:
    """A session that never finished a turn is only pointed at when its provider is known to hold it."""
    if not has_spoken(end) and attempts.stands_in(s, attempt):
        return False
    if end.status is TurnStatus.DONE or end.transcript is not None:
        return True
    if not launched and not has_spoken(end):
        return False
    stored = provider_sessions.pointer(s, attempt.session_id, attempt.provider)
    return stored is not None and stored.provider_session_id == attempt.provider_session_id


def _as_reported(end: TurnEnd) -> tuple[AttemptStatus, ...]:
    """What the attempt has become if this very end was reported before."""
    if end.status is TurnStatus.WAITING:
        return AttemptStatus.DEFERRED, AttemptStatus.CANCELLED
    return (_ATTEMPT_STATUS[end.status],)


def _unless_cancelled(turn: Turn, end: TurnEnd) -> TurnEnd:
    """A turn that was asked to stop is cancelled instead of waiting for an approval."""
    if end.status is not TurnStatus.WAITING:
        return end
    if turn.cancel_requested or turn.dropped is not None:
        return replace(end, status=TurnStatus.CANCELLED, approval=None)
    return replace(end, response=None, failure=None, phase=Phase.APPROVAL)


def _about_the_resumed(attempt: Attempt, end: TurnEnd) -> TurnEnd:
    """Another id after a failed resume is a rejection: the failure counts against the session that was asked for."""
    other = end.provider_session_id and end.provider_session_id != attempt.provider_session_id
    if not other or has_spoken(end) or attempt.decision.kind is not DecisionKind.RESUME:
        return end
    usage = UsageReport(used_of(end.usage, NO_USAGE))
    return replace(end, provider_session_id=None, transcript=None, usage=usage)


def _outside_its_source(s: Scope, attempt: Attempt, end: TurnEnd) -> TurnEnd:
    """A fork never reuses its source's provider session id.

    If the turn was answered in the source all the same, the source holds a turn of another branch: it is retired.
    """
    source = attempt.forked_from
    if source is None or end.provider_session_id != source:
        return end
    _, known = provider_sessions.account(s, attempt.provider, source)
    end = replace(
        end, provider_session_id=None, transcript=None, usage=UsageReport(used_of(end.usage, known))
    )  # fmt: skip
    if end.status is not TurnStatus.DONE:
        return end
    provider_sessions.retire(s, attempt.session_id, attempt.provider, source, "forked_in_place")
    return replace(end, resumable=False)


def _in_no_others(s: Scope, attempt: Attempt, end: TurnEnd) -> TurnEnd:
    """Drops the reported id if that provider session belongs to another session; the answer is kept."""
    reported = end.provider_session_id
    if not reported or reported == attempt.provider_session_id:
        return end
    if provider_sessions.find_owner(s, attempt.provider, reported, attempt.session_id) is None:
        return end
    usage = UsageReport(used_of(end.usage, NO_USAGE))
    resumable = end.resumable and not has_spoken(end)
    return replace(end, provider_session_id=None, transcript=None, usage=usage, resumable=resumable)


def _evidence(end: TurnEnd) -> dict[str, Json]:
    failure = end.failure
    return {
        "status": end.status.value,
        "response": None if end.response is None else clean_text(end.response),
        "failure": None if failure is None else [failure.failure_class.value, clean_text(failure.message)],
        "provider_session_id": end.provider_session_id,
    }


def _end_attempt(s: Scope, attempt: Attempt, end: TurnEnd, used: Usage) -> None:
    failure = end.failure
    s.run(
        attempts.END, id=attempt.conversation_id, seq=attempt.seq, number=attempt.number,
        status=_ATTEMPT_STATUS[end.status].value, now=s.now,
        failure_class=failure.failure_class.value if failure else None,
        error=redact_text(clean_text(failure.message)) if failure else None,
        provider_session_id=attempt.provider_session_id,
        transcript=codec.encode_transcript(attempt.transcript), input=used.input_tokens,
        cached=used.cached_input_tokens, output=used.output_tokens, cost=used.cost_usd,
    )  # fmt: skip


def _end_turn(s: Scope, turn: Turn, end: TurnEnd, revision: int) -> Turn:
    """The turn as it is afterwards; ``revision`` is that of its conversation."""
    if end.approval is not None:
        if turn.has_unused_answer:
            approvals.void_of_turn(s, turn, "asked_again")
        approvals.add(s, turn.session_id, turn.conversation_id, turn.seq, end.approval)
        turns.wait(s, turn)
        return replace(turn, status=TurnStatus.WAITING, not_before=None, tries=turn.tries - 1)
    if end.status is TurnStatus.FAILED and end.retry_at is not None and _may_retry(s, turn, end):
        # what runs again has no answer yet
        cause = AttemptCause.APPROVAL if turn.has_unused_answer else AttemptCause.RETRY
        turns.requeue(s, turn.conversation_id, turn.seq, end.retry_at, cause, turn.tries)
        return replace(turn, status=TurnStatus.QUEUED, not_before=end.retry_at, next_cause=cause)
    response = turn.response
    if end.response is not None:
        response = history.kept_response(end.response)
        history.add_text(s, turn.conversation_id, turn.seq, revision, prompt=None, response=response)
    failure = end.failure
    if failure is not None:
        failure = Failure(failure.failure_class, redact_text(clean_text(failure.message)))
    elif end.status is TurnStatus.CANCELLED:
        failure = WAS_CANCELLED
    if end.refused_by is not None and turn.has_unused_answer:
        approvals.void_of_turn(s, turn, end.refused_by)
    turns.end(s, turn, end.status, failure)
    return replace(turn, status=end.status, response=response, failure=failure, ended_at=s.now)


def _may_retry(s: Scope, turn: Turn, end: TurnEnd) -> bool:
    """A person's own command is never run again by itself, nor what someone wants to stop.

    A limit is waited for once: who runs into it again has to ask a person.
    """
    if turn.foreground or turn.cancel_requested or turn.dropped is not None:
        return False
    if end.failure is not None and end.failure.then.retry is Retry.AT_RESET:
        known = attempts.of_turn(s, turn.conversation_id, turn.seq)
        limits = [a for a in known if a.failure and a.failure.then.retry is Retry.AT_RESET]
        if len(limits) > 1:
            return False
    return turn.tries < turn.max_attempts


def _settle_session(s: Scope, session: Session, end: TurnEnd, used: Usage, taker: heads.Taker | None) -> None:
    """Errors count since the last success. Failures that do not concern the work are not counted."""
    errors, error = session.error_count, session.last_error
    message, at = (error.message, error.at) if error else (None, None)
    if end.status is TurnStatus.DONE:
        errors = 0
    elif end.failure is not None and end.failure.then.is_error:
        errors, message, at = errors + 1, redact_text(clean_text(end.failure.message)), s.now
    phase, ready = session.phase, session.resume_ready
    wanted = end.phase or session.phase_after_turn
    if wanted is not None and not session.phase.is_final and not _is_asking(s, session, wanted):
        phase = wanted
        ready = sessions.is_ready(s, phase, session.kind)
    s.run(
        SETTLE_SESSION, id=session.id, error_count=errors, last_error=message, last_error_at=at,
        phase=phase.value, resume_ready=ready, now=s.now, input=used.input_tokens,
        cached=used.cached_input_tokens, output=used.output_tokens, cost=used.cost_usd,
        title=sessions.kept_title(end.title) or session.agent_title,
        **heads.next_head(s, session.conversation_id, session.id, taker),
    )  # fmt: skip
    if phase.is_final and session.finalized_at is None:
        session_statements.close(s, session.id, session.phase.value, phase, turns_in=session.conversation_id)
    elif phase is not session.phase:
        session_statements.record_phase(s, session.id, session.phase.value, phase)


def _is_asking(s: Scope, session: Session, phase: Phase) -> bool:
    """True if an open approval keeps the session in phase approval; a final phase ends it all the same."""
    return session.phase is Phase.APPROVAL and not phase.is_final and approvals.has_open(s, session.id)


def fall_back(s: Scope, lease: Lease, failure: Failure, key: str, usage: UsageReport) -> Claim:
    """Continue fresh, under the same lease. A session that is gone is retired now, a doubted one after an answer."""
    known = claims.redeliver(s, key, runtime=None)
    if known is not None and known.lease == replace(
        lease, attempt=lease.attempt + 1, fence=lease.fence + 1, expires_at=known.lease.expires_at
    ):
        return known
    leases.require(s, lease)
    attempt = attempts.get(s, lease)
    if attempt.decision.kind not in (DecisionKind.RESUME, DecisionKind.FORK):
        raise Conflict(f"turn {lease.seq} did not resume a session: there is nothing to fall back from")
    conversation = history.get(s, lease.conversation_id)
    turn = turns.get(s, lease.conversation_id, lease.seq)
    if turn.request.provider_session_id is not None:
        raise Conflict(f"turn {lease.seq} asked for this session by name: it is not replaced by another")
    if attempt.cause is AttemptCause.APPROVAL:
        raise Conflict(f"turn {lease.seq} acts on an answer in this session: it is not replaced by another")
    attempts.refuse_miscounted(s, turn)
    s.run(
        attempts.END, id=lease.conversation_id, seq=lease.seq, number=lease.attempt,
        status=AttemptStatus.FELL_BACK.value, now=s.now, failure_class=failure.failure_class.value,
        error=redact_text(clean_text(failure.message)), provider_session_id=attempt.provider_session_id,
        transcript=codec.encode_transcript(attempt.transcript), **_figures(usage.usage),
    )  # fmt: skip
    decision = _fallen_back(failure)
    if decision.reason is Reason.RETIRED:
        _let_go(s, attempt, failure.then.retired_as)
    opening = attempts.Opening(
        replace(lease, attempt=lease.attempt + 1, fence=lease.fence + 1),
        # what the refused session was launched with is what the fresh one is launched with
        replace(turn, request=replace(
            turn.request, work_dir=attempt.work_dir, rights=turn.request.rights or attempt.rights
        )),
        conversation, decision, None, attempt.seen, attempt.runtime_id, attempt.version, key,
    )  # fmt: skip
    return _open_fallback(s, opening, turn, usage.usage)


def _fallen_back(failure: Failure) -> Fresh:
    reason, words = Reason.RESUME_FAILED, ""
    if failure.then.fallback is Fallback.ALWAYS:
        reason, words = Reason.RETIRED, "the provider refused it: "
    # redacted before it is cut: half a secret has no shape any more
    evidence = redact_text(clean_text(words + failure.message))[:300]
    return Fresh(reason, (Verdict(reason, Standing.FAILED, Outcome.FRESH, evidence),))


def _let_go(s: Scope, refused: Attempt, why: str) -> None:
    """Of the session that an attempt was to resume; the source of a fork is not the fork's to retire."""
    if refused.decision.kind is DecisionKind.RESUME and refused.provider_session_id:
        provider_sessions.retire(s, refused.session_id, refused.provider, refused.provider_session_id, why)
    else:
        provider_sessions.clear_pointer(s, refused.session_id, refused.provider, refused.forked_from or "")


def _settle_doubt(s: Scope, attempt: Attempt, end: TurnEnd) -> None:
    """A fresh start that was answered shows that the error lay in the history of the session it stands in for."""
    if attempt.decision.reason is not Reason.RESUME_FAILED or not has_spoken(end):
        return
    before = attempts.of_turn(s, attempt.conversation_id, attempt.seq)
    doubted = next((one for one in before if one.number == attempt.number - 1), None)
    if doubted is not None:
        blamed = doubted.failure or Failure(FailureClass.POISONED, "")
        _let_go(s, doubted, blamed.then.retired_as)


def _figures(used: Usage) -> dict[str, object]:
    return {
        "input": used.input_tokens,
        "cached": used.cached_input_tokens,
        "output": used.output_tokens,
        "cost": used.cost_usd,
    }


def _open_fallback(s: Scope, opening: attempts.Opening, turn: Turn, used: Usage) -> Claim:
    lease, conversation = opening.lease, opening.conversation
    session_id = lease.session_id
    stored = provider_sessions.pointer(s, session_id, turn.provider)
    known = Situation(sessions.get(s, session_id), conversation, turn.provider, stored, s.now)
    has_asked = situations.has_asked(s, session_id)
    situation = situations.complete(s, known, seq=turn.seq, fence=lease.fence, has_asked=has_asked)
    s.run(TAKE_FENCE, id=lease.session_id, fence=lease.fence, **_figures(used))
    attempts.insert(s, opening, AttemptCause.FALLBACK)
    s.run(NUMBER_ATTEMPT, id=turn.conversation_id, seq=turn.seq, number=lease.attempt)
    return Claim(
        lease, replace(turn, status=TurnStatus.CLAIMED, attempts=lease.attempt), opening.decision, None,
        AttemptCause.FALLBACK, conversation.revision, conversation.generation, opening.covers, situation,
        attempt_id=opening.id,
    )  # fmt: skip


def put_back(s: Scope, lease: Lease, not_before: Instant | None, because: Failure | None) -> Turn:
    """The turn waits again, as it did before, and this does not count as a try."""
    leases.require(s, lease)
    turn = turns.get(s, lease.conversation_id, lease.seq)
    attempt = attempts.interrupt(s, lease, turn, AttemptStatus.PUT_BACK, because)
    if turn.cancel_requested:
        turns.end(s, turn, TurnStatus.CANCELLED, WAS_CANCELLED)
    elif turn.foreground and not turn.has_unused_answer:
        turns.end(s, turn, TurnStatus.FAILED, Failure(FailureClass.LOCKED, "it could not run at once"))
    else:
        launched = turn.status is TurnStatus.RUNNING
        cause = AttemptCause.RECOVERY if launched else attempt.cause
        turns.requeue(s, turn.conversation_id, turn.seq, not_before, cause, turn.tries - 1)
    leases.release(s, lease)
    heads.promote_head(s, lease.conversation_id, lease.session_id)
    return turns.get(s, lease.conversation_id, lease.seq)


def recover(  # noqa: PLR0913 - what is known about the end, by keyword
    s: Scope,
    orphan: Orphan,
    *,
    owner_is_gone: bool,
    response: str | None,
    transcript: TranscriptMark | None,
    answered: bool,
    events: Sequence[Event],
) -> Turn:
    """End an attempt that no process runs any more. Its turn runs again unless it was answered or a person started it."""
    lease = orphan.lease
    fence, expires_at = leases.lock_if_free(s, lease) or (None, None)
    is_held = expires_at is not None and not replace(lease, expires_at=expires_at).is_over(s.now)
    if fence != lease.fence or expires_at is None or (is_held and not owner_is_gone):
        raise Conflict(f"turn {lease.seq} of {lease.session_id} is no orphan any more", seq=lease.seq)
    if events:
        attempts.add_events_behind(s, lease, events)
    turn = turns.get(s, lease.conversation_id, lease.seq)
    if answered and not turn.cancel_requested and turn.dropped is None:
        return _answered(s, lease, response, transcript)
    if transcript is not None:
        _pin(s, lease, transcript)
    failure = Failure(FailureClass.INTERRUPTED, f"its worker {describe_owner(lease.owner)} went away")
    attempts.interrupt(s, lease, turn, AttemptStatus.INTERRUPTED, failure)
    leases.release(s, lease)
    if turn.cancel_requested or turn.dropped is not None:
        turns.end(s, turn, TurnStatus.CANCELLED, WAS_CANCELLED)
    elif turn.has_unused_answer:
        response = None
        turns.requeue(s, turn.conversation_id, turn.seq, None, AttemptCause.APPROVAL, turn.tries - 1)
    elif turn.foreground or turn.tries >= turn.max_attempts:
        turns.end(s, turn, TurnStatus.FAILED, failure)
    else:
        response = None  # what runs again has no answer yet
        turns.requeue(s, turn.conversation_id, turn.seq, None, AttemptCause.RECOVERY, turn.tries)
    if response is not None:
        revision = history.get(s, lease.conversation_id).revision
        said = history.kept_response(response)
        history.add_text(s, lease.conversation_id, lease.seq, revision, prompt=None, response=said)
    heads.promote_head(s, lease.conversation_id, lease.session_id)
    return turns.get(s, lease.conversation_id, lease.seq)


def _pin(s: Scope, lease: Lease, transcript: TranscriptMark) -> None:
    """Unless another session has become the writer there since the lease expired."""
    attempt = attempts.get(s, lease)
    own = attempt.provider_session_id
    if own and not provider_sessions.is_taken(s, attempt.provider, own, lease):
        attempts.pin(s, lease, own, transcript)


def _answered(s: Scope, lease: Lease, response: str | None, transcript: TranscriptMark | None) -> Turn:
    """End the turn as its worker would have ended it. Its usage is not known."""
    unknown = UsageReport(context=NO_CALL_YET)
    end = TurnEnd(TurnStatus.DONE, response, transcript=transcript, usage=unknown)
    ended = finish(s, lease, end, by_its_worker=False)
    assert isinstance(ended, Turn), "the lease is the attempt's, and nobody has taken it"
    return ended


def _keep_late(s: Scope, lease: Lease, verb: str, report: dict[str, Json]) -> None:
    s.run(
        LATE_REPORTS.insert, conversation_id=lease.conversation_id, seq=lease.seq, fence=lease.fence, verb=verb,
        report=json_text.dump(redact_value(report)), at=s.now,
    )  # fmt: skip


def late_reports(s: Scope, conversation_id: str) -> tuple[LateReport, ...]:
    return tuple(_read_late(s, row) for row in s.all(LATE, id=conversation_id))


def _read_late(s: Scope, row: Row) -> LateReport:
    try:
        _LATE.check(row)
        seq, fence, verb, report, at, attempt = row
        return LateReport(seq, fence, verb, json_text.decode_object(report), read_instant(at), attempt)
    except MISREAD as exc:
        raise unreadable(s.where, LATE_REPORTS.name, f"report on turn {row[0]}", exc) from exc
