"""Owns the result of a run: the answer, how it came about, and the command that continues the session."""

from __future__ import annotations

import shlex

from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision
from holdfast.domain.events import DeniedCall
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.records import record
from holdfast.domain.telling.transcript import NOTHING_TOLD, PastTold
from holdfast.domain.turns import TurnStatus
from holdfast.domain.usage import Usage

INTERRUPTED = "interrupted"
WIDER = "--allow-wider-rights"


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
    denied: tuple[DeniedCall, ...] = ()  #: calls that the agent was not allowed to make, by its rights
    allowing: Rights | None = None  #: the rights with which it may make them; None: no option gives them

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
        """The command that continues the session, and with it a turn that did not come to its end."""
        if self.approval is not None:
            return f"holdfast approve {self.approval.id}"
        was_begun = self.failure is not None and self.failure.then.was_begun
        stopped = self.turn_status is TurnStatus.QUEUED or (
            self.turn_status is TurnStatus.FAILED and was_begun
        )
        return f"holdfast resume {self.called}" + ("" if stopped else ' "..."')

    @property
    def allow_with(self) -> str | None:
        """The command that continues the session with the right to make the calls that were denied."""
        if self.allowing is None:
            return None
        before, dashes, after = " ".join(map(shlex.quote, _options(self.allowing))).partition(" -- ")
        return f'holdfast resume {self.called} "try again" {before} {WIDER}{dashes}{after}'

    @property
    def called(self) -> str:
        """The name of the session as a word of a shell command; its id if that would read as an option."""
        name = self.session_name
        return self.session_id if name is None or name.startswith("-") else shlex.quote(name)


def _options(rights: Rights) -> list[str]:
    """The rights as options of the command."""
    options = [] if rights.permission_mode is None else ["--permission-mode", rights.permission_mode]
    for option, values in (
        ("--allow-tool", rights.allowed_tools),
        ("--add-dir", rights.extra_dirs),
        ("--approve-tools", rights.approve_tools),
    ):
        for value in sorted(values):
            options += [option, value]
    return [*options, *(("--", *rights.extra_args) if rights.extra_args else ())]


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped the run. Its ``result`` is committed."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"turn {result.turn} of {result.session_id} was interrupted")
        self.result = result
