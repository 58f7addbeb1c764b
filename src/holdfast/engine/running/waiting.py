"""Owns turns that wait for a person: what is asked, and whether the answer still counts where it is acted on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.domain.approvals import Approval, ApprovalStatus, NewApproval, expiry
from holdfast.domain.decisions import Outcome, Reason, Refuse, Standing, Verdict
from holdfast.domain.events import Deferred
from holdfast.domain.ids import make_approval_id
from holdfast.domain.policy import ApprovalPolicy
from holdfast.domain.turns import AttemptStatus, Try, Turn, TurnStatus
from holdfast.store.contract import Store


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
    """What a turn that waits is waiting for."""
    if turn.status is not TurnStatus.WAITING:
        return None
    known = store.approvals(session_id=turn.session_id)
    return next((approval for approval in known if approval.seq == turn.seq), None)


def is_void(store: Store, approval: Approval) -> bool:
    return store.get_approval(approval.id).status is ApprovalStatus.VOIDED


def refuse_elsewhere(tries: Sequence[Try], work_dir: str) -> Refuse | None:
    """What people approved, they approved for one directory: a session that was moved since is elsewhere."""
    asked_in = next(
        (each.work_dir for each in reversed(tries) if each.status is AttemptStatus.DEFERRED), None
    )
    try:
        if asked_in is not None and Path(asked_in).samefile(work_dir):
            return None
    except OSError:
        pass  # one of them is gone
    evidence = f"it was asked in {asked_in}"
    moved = Verdict(Reason.WORKDIR_CHANGED, Standing.FAILED, Outcome.REFUSE, evidence)
    return Refuse(Reason.WORKDIR_CHANGED, (moved,))
