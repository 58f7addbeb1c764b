"""Owns sending a notice: it is handed to a process of its own, and nobody waits for it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys

from holdfast.config import state_dir
from holdfast.domain.notices import Notice, notice_document
from holdfast.domain.policy import NotifyPolicy
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast")

LOG_NAME = "notify.log"
_HAND_OVER_SECONDS = 5.0


def notify(policy: NotifyPolicy, notice: Notice) -> None:
    """As configured, if this occasion is wanted. Never raises, and is back before anything is delivered."""
    if not policy.wants(notice.occasion):
        return
    # only those who want notices pay for it, and hooks finalize sessions too
    import subprocess

    from holdfast.notifying import delivery
    from holdfast.processes.table import MARKER

    # a run that this one is a part of must not take it for a process that its agent left behind
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
        log.warning("nobody was told of %s: %s", notice.occasion, exc)


def _job(policy: NotifyPolicy, notice: Notice) -> str:
    words = shlex.split(policy.command) if policy.command else []
    return json.dumps(
        {
            "command": [os.path.expanduser(word) for word in words[:1]] + words[1:],  # noqa: PTH111 - a word, not yet a path
            "webhook": policy.webhook,
            "notice": notice_document(notice),
            "log": str(state_dir(os.environ) / LOG_NAME),
        }
    )
