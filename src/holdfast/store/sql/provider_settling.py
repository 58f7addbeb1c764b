"""Owns what the end of an attempt means for its provider session: its counters, its retirement, its pointer."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.decisions import DecisionKind
from holdfast.domain.pointers import ProviderSession
from holdfast.domain.turns import Attempt, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport, usage_delta
from holdfast.store.sql import attempts, pointers, provider_sessions
from holdfast.store.sql.scope import Scope


def settle(s: Scope, attempt: Attempt, end: TurnEnd, *, launched: bool) -> Usage:
    """Pointer, retirement and counters of the provider session; what this attempt used.

    One that was never launched says nothing about where its session is, or how it is run.
    """
    session_id = attempt.provider_session_id
    if not session_id:
        return used_of(end.usage, NO_USAGE)
    before, known = provider_sessions.account(s, attempt.provider, session_id)
    if before is None:
        provider_sessions.know(s, attempt.provider, session_id, attempt.session_id, attempt.forked_from)
        before = ProviderSession()
    if known == NO_USAGE and attempt.forked_from is not None:
        # a fork goes on counting from where its source stood
        _, known = provider_sessions.account(s, attempt.provider, attempt.forked_from)
    used = used_of(end.usage, known)
    after = _judge_provider_session(before, attempt, end)
    provider_sessions.settle(s, attempt, after, used, end.usage.usage if end.usage.cumulative else known)
    reason = _retirement(s, after, end)
    if reason is not None:
        pointers.retire(s, attempt.session_id, attempt.provider, session_id, reason)
    elif before.retired is None and _moves_pointer(s, attempt, end, launched=launched):
        pointer = attempt.pointer()
        if pointer is not None:
            moved = replace(pointer, context=end.usage.context, updated_at=s.now)
            is_empty = end.status is TurnStatus.DONE and end.response is None
            pointers.move(s, moved, answered=has_spoken(end), is_empty=is_empty)
    return used


def used_of(report: UsageReport, baseline: Usage) -> Usage:
    return usage_delta(report.usage, baseline) if report.cumulative else report.usage


def has_spoken(end: TurnEnd) -> bool:
    """The agent came to an end of its own: it has answered, or asks back."""
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
    stored = pointers.get(s, attempt.session_id, attempt.provider)
    return stored is not None and stored.provider_session_id == attempt.provider_session_id
