"""Owns the gate of one run: a private folder with what may run only when a person says so, and their answer."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.pointers import Rights
from holdfast.hooks import gate
from holdfast.providers.contract import ToolGate
from holdfast.store.contract import Store

#: oldest first is how they come, and the newest counts
_MOST_APPROVALS = 10_000


@contextmanager
def opened_gate(
    rights: Rights, withheld: Collection[str], answered: Approval | None = None, *, attended: bool = False
) -> Iterator[ToolGate | None]:
    """None if every call may run. ``attended``: a person sits in front of the agent and can be asked there."""
    if not rights.approve_tools and not withheld:
        yield None
        return
    # its folder is for this user alone, and a run that is killed leaves nothing in it that counts later
    with TemporaryDirectory(prefix="holdfast-gate-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        rules = {
            "patterns": sorted(rights.approve_tools),
            "withheld": sorted(withheld),
            "answer": gate.ASK if attended else gate.DEFER,
        }
        (folder / gate.RULES).write_text(json.dumps(rules))
        if answered is not None:
            (folder / gate.ANSWER).write_text(json.dumps(_answer(answered)))
        program = shlex.join([sys.executable, "-I", "-S", gate.__file__, name])
        # in any other way than with this code a hook that fails lets the call through
        command = f"{program} || exit {gate.BLOCKED}"
        yield ToolGate(command, 2 * gate.DEADLINE_SECONDS, f"{program} {gate.ARM}", folder / gate.ARMED)


def calls_of(store: Store, session_id: str) -> frozenset[str]:
    """Calls that once waited. An agent may still hold one and would run it, whatever its rights are by now."""
    known = store.approvals(session_id=session_id, open_only=False, limit=_MOST_APPROVALS)
    return frozenset(approval.call_id for approval in known if approval.call_id is not None)


def _answer(approval: Approval) -> dict[str, object]:
    return {
        "call_id": approval.call_id,
        "arguments_hash": approval.arguments_hash,
        "approved": approval.status is ApprovalStatus.APPROVED,
        "note": approval.note,
    }
