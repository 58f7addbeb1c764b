"""Owns notices to people: what each one says, and handing it to a process that delivers it in the background."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys

from holdfast.config import state_dir
from holdfast.domain.approvals import Approval
from holdfast.domain.notices import Notice, Occasion, notice_document
from holdfast.domain.policy import NotifyPolicy
from holdfast.domain.sessions import Session
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast")

LOG_NAME = "notify.log"
_HAND_OVER_SECONDS = 5.0


def done_notice(session: Session) -> Notice:
    what = f"{session.phase}: {session.summary}" if session.summary else str(session.phase)
    at = session.finalized_at or session.updated_at
    command = f"holdfast show {session.id}"
    return Notice(Occasion.SESSION_DONE, session.id, session.agent, what, command, at)


def approval_notice(approval: Approval, agent: str) -> Notice:
    command = f"holdfast approve {approval.id}"
    return Notice(
        Occasion.APPROVAL_WANTED,
        approval.session_id,
        agent,
        approval.what,
        command,
        approval.requested_at,
        approval.seq,
        approval.id,
    )


def notify(policy: NotifyPolicy, notice: Notice) -> None:
    """Send the notice if the policy wants its occasion. Never raises; returns before the notice is delivered."""
    if not policy.wants(notice.occasion):
        return
    # imported here because hooks finalize sessions too: only users who want notices pay for these imports
    import subprocess

    from holdfast.notifying import delivery
    from holdfast.processes.table import MARKER

    # the marker names the processes of a run: with it, a run around this one would end the delivery as a process
    # that its agent left behind
    environ = {name: value for name, value in os.environ.items() if name != MARKER}
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", delivery.__file__],
            input=_job(policy, notice).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            cwd="/",
            timeout=_HAND_OVER_SECONDS,
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, HoldfastError) as exc:
        log.warning("the notice about %s was not sent: %s", notice.occasion, exc)


def _job(policy: NotifyPolicy, notice: Notice) -> str:
    words = shlex.split(policy.command) if policy.command else []
    return json.dumps(
        {
            "command": [os.path.expanduser(word) for word in words[:1]] + words[1:],  # noqa: PTH111 - a word, not yet a path
            "webhook": policy.webhook,
            "notice": notice_document(notice, policy.page),
            "log": str(state_dir(os.environ) / LOG_NAME),
        }
    )
