"""Owns what a run gives back: the answer, how it came about, and how to go on."""

from __future__ import annotations

import shlex

from holdfast.clock import Instant, to_iso
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision, decision_document
from holdfast.domain.failures import Failure, Retry
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.notices import Notice, Occasion
from holdfast.domain.records import record
from holdfast.domain.telling.transcript import NOTHING_TOLD, PastTold, past_document
from holdfast.domain.turns import TurnStatus
from holdfast.domain.usage import Usage
from holdfast.notifying import approval_notice

INTERRUPTED = "interrupted"


@record
class RunResult:
    session_id: SessionId
    turn: int
    turn_status: TurnStatus
    text: str | None
    decision: Decision
    provider: str
    provider_session_id: ProviderSessionId | None
    work_dir: str
    usage: Usage
    failure: Failure | None = None
    session_name: str | None = None
    notices: tuple[str, ...] = ()  #: worth a person's attention: not saved, context nearly full …
    approval: Approval | None = None  #: what a turn that waits is waiting for
    past: PastTold = NOTHING_TOLD  #: what of the past was sent along with the request

    @property
    def ok(self) -> bool:
        return self.turn_status is TurnStatus.DONE

    @property
    def status(self) -> str:
        """``done``, ``failed``, ``cancelled``, ``waiting`` for a person, or ``interrupted`` for a failure that says
        nothing about the work."""
        if self.failure is not None and self.failure.then.is_cut_off:
            return INTERRUPTED
        return self.turn_status.value

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0 done, 1 failed, 4 refused by a guard or busy, 5 waits for a person."""
        if self.ok:
            return 0
        if self.turn_status is TurnStatus.WAITING:
            return 5
        return 1 if self.failure is None else self.failure.then.exit_code

    @property
    def continue_with(self) -> str:
        """The command that goes on from here."""
        if self.approval is not None:
            return f"holdfast approve {self.approval.id}"
        stopped = self.status == INTERRUPTED or self.turn_status is TurnStatus.QUEUED
        return f"holdfast resume {self.called}" + ("" if stopped else ' "..."')

    @property
    def called(self) -> str:
        """The session as a person would write it in a shell."""
        return self.session_id if self.session_name is None else shlex.quote(self.session_name)


class RunInterrupted(KeyboardInterrupt):
    """Someone stopped the run; ``result`` is what it came to, and is committed."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"turn {result.turn} of {result.session_id} was interrupted")
        self.result = result


def result_document(result: RunResult) -> dict[str, object]:
    failure = result.failure
    return {
        "session_id": result.session_id,
        "turn": result.turn,
        "status": result.status,
        "text": result.text,
        "decision": decision_document(result.decision),
        "provider": result.provider,
        "provider_session_id": result.provider_session_id,
        "work_dir": result.work_dir,
        "usage": {
            "input_tokens": result.usage.input_tokens,
            "cached_input_tokens": result.usage.cached_input_tokens,
            "output_tokens": result.usage.output_tokens,
            "cost_usd": result.usage.cost_usd,
        },
        "failure": None
        if failure is None
        else {"class": failure.failure_class.value, "message": failure.message},
        "notices": list(result.notices),
        "approval": None if result.approval is None else _approval(result.approval),
        "past": past_document(result.past),
        "continue_with": result.continue_with,
    }


def _approval(approval: Approval) -> dict[str, object]:
    return {
        "id": approval.id,
        "what": approval.what,
        "tool": approval.tool,
        "arguments": dict(approval.arguments),
        "arguments_hash": approval.arguments_hash,
        "expires_at": None if approval.expires_at is None else to_iso(approval.expires_at),
    }


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
