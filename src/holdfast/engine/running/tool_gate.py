"""Owns the tool gate of one run: its rules, the question to people, and whether their answer still counts here."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.domain.approvals import Approval, ApprovalStatus, NewApproval, expiry
from holdfast.domain.decisions import Outcome, Reason, Refuse, Standing, Verdict
from holdfast.domain.events import Deferred
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import make_approval_id
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import ApprovalPolicy
from holdfast.domain.turns import AttemptStatus, Try, Turn, TurnStatus
from holdfast.engine.running.agents import Agent
from holdfast.errors import ConfigError
from holdfast.hooks import gate
from holdfast.providers.contract import ToolGate
from holdfast.store.contract import Store

_BESIDE_OTHERS = (
    "these hooks are not Holdfast's and could change a call after it was approved; remove them, or, if you trust "
    "them, name them in approvals.allow_hooks"
)
_MOST_NAMED = 10
#: characters of the gate's command: one argument has it three times, escaped, and Linux limits an argument to 128 KiB
_LONGEST_COMMAND = 20 * 1024


@contextmanager
def opened_gate(
    rights: Rights, withheld: Collection[str], answered: Approval | None = None, *, attended: bool = False
) -> Iterator[ToolGate | None]:
    """The tool gate of a run; None if every call may run. ``attended``: the agent itself can ask a person."""
    if not rights.approve_tools and not withheld:
        yield None
        return
    rules = {
        "patterns": sorted(rights.approve_tools),
        "withheld": " ".join(sorted({gate.digest(call_id) for call_id in withheld})),
        "answer": gate.ASK if attended else gate.DEFER,
        "given": None if answered is None else _given(answered),
    }
    approved = answered if answered is not None and answered.status is ApprovalStatus.APPROVED else None
    # only this user can read the folder; if the run is killed, no later run uses what is left in it
    with TemporaryDirectory(prefix="holdfast-gate-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if answered is not None:
            (folder / gate.UNUSED).touch()
            (folder / gate.NOTE).write_text(answered.note or "")
        start = [sys.executable, "-I", "-S", gate.__file__, name]
        program = shlex.join([*start, json.dumps(rules)])
        if len(program) > _LONGEST_COMMAND:
            raise ConfigError(
                "approve_tools", "too many patterns, or calls that have waited: begin another session"
            )
        # a hook that fails with any other exit code lets the call through
        yield ToolGate(
            f"{program} || exit {gate.BLOCKED}",
            2 * gate.DEADLINE_SECONDS,
            shlex.join([*start, gate.ARM]),
            folder / gate.ARMED,
            # a person answers in the agent's own program, and the gate does not see the answer
            None if attended else f"{program} {gate.DONE} || exit {gate.BLOCKED}",
            folder / gate.CHANGED,
            None if approved is None else (str(approved.call_id), folder / gate.EXECUTED),
        )


def refuse_beside_others(
    agent: Agent, work_dir: str, rights: Rights, policy: ApprovalPolicy
) -> Failure | None:
    """A failure if hooks of other programs could change a call after the gate has judged it."""
    found = agent.provider.foreign_hooks(Path(agent.runtime.home), Path(work_dir), rights)
    named = [hook for hook in found if policy.allow_hooks.isdisjoint((hook.what, hook.where))]
    if not named:
        return None
    names = "; ".join(map(str, named[:_MOST_NAMED]))
    return Failure(FailureClass.REFUSED, f"foreign_hooks: {_BESIDE_OTHERS}: {names}")


def _given(approval: Approval) -> dict[str, object]:
    return {
        "call_id": approval.call_id,
        "arguments_hash": approval.arguments_hash,
        "approved": approval.status is ApprovalStatus.APPROVED,
    }


def ask_for(call: Deferred, requested_by: str, store: Store, policy: ApprovalPolicy) -> NewApproval:
    now = store.now()
    return NewApproval(
        make_approval_id(now, os.urandom(4)),
        call.words,
        call.arguments,
        expiry(now, policy.expires_seconds),
        requested_by=requested_by,
        call_id=call.call_id,
        tool=call.tool,
    )


def awaited(store: Store, turn: Turn) -> Approval | None:
    """The open approval that a waiting turn waits for."""
    if turn.status is not TurnStatus.WAITING:
        return None
    known = store.approvals(session_id=turn.session_id)
    return next((approval for approval in known if approval.seq == turn.seq), None)


def is_void(store: Store, approval: Approval) -> bool:
    return store.get_approval(approval.id).status is ApprovalStatus.VOIDED


def refuse_elsewhere(tries: Sequence[Try], work_dir: str) -> Refuse | None:
    """Refuses to run an approved call in another directory than the one in which people were asked."""
    asked_in = next(
        (each.work_dir for each in reversed(tries) if each.status is AttemptStatus.DEFERRED), None
    )
    try:
        if asked_in is not None and Path(asked_in).samefile(work_dir):
            return None
    except OSError:
        pass  # one of the directories does not exist any more
    evidence = f"it was asked in {asked_in}"
    moved = Verdict(Reason.WORKDIR_CHANGED, Standing.FAILED, Outcome.REFUSE, evidence)
    return Refuse(Reason.WORKDIR_CHANGED, (moved,))
