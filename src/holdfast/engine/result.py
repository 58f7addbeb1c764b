"""Owns the result of a run: the answer, how it came about, and the command that continues the session."""

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
    notices: tuple[str, ...] = ()  #: for a person: the session was not saved, the context is nearly full, …
    approval: Approval | None = None  #: the question that a waiting turn waits for
    past: PastTold = NOTHING_TOLD  #: what of the past was sent with the request

    @property
    def ok(self) -> bool:
        return self.turn_status is TurnStatus.DONE

    @property
    def status(self) -> str:
        """The status of the turn, or ``interrupted`` if the agent was stopped before it came to an end."""
        if self.failure is not None and self.failure.then.is_cut_off:
            return INTERRUPTED
        return self.turn_status.value

    @property
    def exit_code(self) -> int:
        """The exit code of a command: 0 done, 1 failed, 4 refused by a guard or busy, 5 waits for a person."""
        if self.ok:
            return 0
        if self.turn_status is TurnStatus.WAITING:
            return 5
        return 1 if self.failure is None else self.failure.then.exit_code

    @property
    def continue_with(self) -> str:
        """The command that continues the session."""
        if self.approval is not None:
            return f"holdfast approve {self.approval.id}"
        stopped = self.status == INTERRUPTED or self.turn_status is TurnStatus.QUEUED
        return f"holdfast resume {self.called}" + ("" if stopped else ' "..."')

    @property
    def called(self) -> str:
        """The name of the session, or its id, as a word of a shell command."""
        return self.session_id if self.session_name is None else shlex.quote(self.session_name)


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped the run. Its ``result`` is committed."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"turn {result.turn} of {result.session_id} was interrupted")
        self.result = result
