"""Owns importing the sessions that hooks have marked: lists, workers and a process that a hook starts do it.

A hook only leaves a mark in the spool, without reading the session. The process that imports the session removes the
marks that were there before it read the session.
"""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

from holdfast.config import default_url, load_settings
from holdfast.engine.default import open_with
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import Forbidden, HoldfastError
from holdfast.hooks.process import record_names
from holdfast.hooks.settings import spool_dir
from holdfast.hooks.spool import AGAIN_SECONDS, is_stale, remove_marks, watched_marks

log = logging.getLogger("holdfast")

#: if a person waits, no import begins after this time, and larger files are left for later
WAIT_SECONDS = 1.0
MOST_BYTES = 16 * 1024 * 1024
#: of one carrier; if something still waits then, the next hook starts another one
_MOST_LOOKS = 20


def take_in_watched(opened: Holdfast, seconds: float = WAIT_SECONDS) -> frozenset[str]:
    """Imports the sessions that hooks of this machine have marked, the newest first. Returns the marks that stay.

    ``seconds`` limits the time, because a person waits. If it is infinite, large sessions are imported, too, and marks
    of sessions in which nothing was said for a day are removed.

    Without marks, this reads one directory. Never raises: a session that cannot be imported keeps its mark.
    """
    spool = _spool_of(opened)
    if spool is None:
        return frozenset()
    until = time.monotonic() + seconds
    is_waited_for = not math.isinf(seconds)
    left: set[str] = set()
    for (provider, native), names in watched_marks(spool).items():
        is_late = time.monotonic() > until
        taken = None if is_late else _take_in(opened, provider, native, MOST_BYTES if is_waited_for else None)
        if taken or (taken is False and not is_waited_for and is_stale(names[0])):
            remove_marks(spool, names)
        else:
            left.update(names)
    return frozenset(left)


def _take_in(opened: Holdfast, provider: str, native: str, most: int | None) -> bool | None:
    """Whether the session was imported; None if the store refused to try."""
    try:
        return opened.take_in(provider, native, most_bytes=most)
    except Forbidden as exc:  # another process, with another token, may
        log.debug("%s session %s is not taken in: %s", provider, native, exc)
    except HoldfastError as exc:
        log.warning("%s session %s is not taken in yet: %s", provider, native, exc)
    return None


def _spool_of(opened: Holdfast) -> str | None:
    settings = opened.settings
    if settings is None:
        return None
    return spool_dir(os.environ, settings.url or default_url(os.environ), settings.workspace)


def carry(directory: str) -> None:
    """Runs in the process that a hook starts: brings everything that hooks have left to the store.

    The store is the one that is configured for ``directory``. Waits a little for what hooks add meanwhile.
    """
    settings = load_settings(environ=os.environ, cwd=Path(directory))
    for _ in range(_MOST_LOOKS):
        with open_with(settings) as opened:  # empties the spool
            left = take_in_watched(opened, math.inf)
            spool = _spool_of(opened)
        time.sleep(AGAIN_SECONDS + 1)
        if spool is None:
            return
        marks = {name for names in watched_marks(spool).values() for name in names}
        if not record_names(spool) and marks <= left:
            return
