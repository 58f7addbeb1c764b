"""Owns which turns a person is told of who is not there."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.failures import Retry
from holdfast.domain.notices import Notice, Occasion
from holdfast.domain.turns import TurnStatus
from holdfast.engine.result import RunResult
from holdfast.notifying import approval_notice


def turn_notice(result: RunResult, agent: str, at: Instant) -> Notice | None:
    """Of a turn that needs a person: it asks, it failed for good, or its provider allows no more for now."""
    if result.approval is not None:
        return approval_notice(result.approval, agent)
    failure = result.failure
    if failure is None:
        return None
    if failure.then.retry is Retry.AT_RESET:
        occasion = Occasion.LIMIT_REACHED
    elif result.turn_status is TurnStatus.FAILED:
        occasion = Occasion.TURN_FAILED
    else:
        return None
    what = f"{failure.failure_class}: {failure.message}"
    return Notice(occasion, result.session_id, agent, what, result.continue_with, at, result.turn)
