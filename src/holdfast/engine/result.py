"""Owns what a run gives back: the answer, how it came about, and how to go on."""

from __future__ import annotations

import shlex

from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.records import record
from holdfast.domain.telling.transcript import NOTHING_TOLD, PastTold
from holdfast.domain.turns import TurnStatus
from holdfast.domain.usage import Usage

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
