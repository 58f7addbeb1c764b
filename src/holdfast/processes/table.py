"""Owns what the operating system says about running processes: who there is, since when, in which group.

A process that has ended and was not collected yet counts as gone: in a container without an init it may
stay listed for ever.
"""

from __future__ import annotations

import calendar
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.domain.records import record

ON_LINUX = sys.platform == "linux"
#: every process of an attempt inherits it, also one that has left the process group
MARKER = "HOLDFAST_ATTEMPT"

_PROC = Path("/proc")
_STAT_SIZE = 4096
_DEAD = ("Z", "X")
_COLUMNS = ("pid", "ppid", "pgid", "state", "lstart")


@record
class Process:
    """``started_at`` tells it from an earlier one with the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    started_at: int  #: Linux: clock ticks since boot; macOS: seconds since 1970
    has_ended: bool = False  #: and waits to be collected


def process_start(pid: int) -> int | None:
    """When the process began, in the unit of ``Process.started_at``; None if there is no such process."""
    found = _find(pid)
    return None if found is None or found.has_ended else found.started_at


def has_ended(pid: int, started_at: int) -> bool:
    """Is this process provably not running any more? One that is hidden from us may be."""
    found = _find(pid)
    if found is not None:
        return found.has_ended or found.started_at != started_at
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def processes() -> Iterator[Process]:
    """Every living process that we may see."""
    if ON_LINUX:
        with os.scandir(_PROC) as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
        listed: Iterable[Process | None] = map(_read_stat, pids)
    else:
        listed = _ask_ps("-A")
    return (process for process in listed if process and not process.has_ended)


def carries(pid: int, marker: str) -> bool:
    """Was it started with this marker? Only Linux tells, and only of processes that are our own."""
    if not ON_LINUX:
        return False
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER}={marker}".encode() in environ.split(b"\0")


def _find(pid: int) -> Process | None:
    return _read_stat(pid) if ON_LINUX else next(_ask_ps("-p", str(pid)), None)


def _read_stat(pid: int) -> Process | None:
    try:
        # every process of the machine comes by here: a Path and a file object cost more than the reading
        descriptor = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(descriptor, _STAT_SIZE).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return None
    # the second field is the program's name in parentheses, which may itself hold both and spaces
    state, parent, group, session, *rest = text[text.rfind(")") + 1 :].split()
    return Process(pid, int(parent), int(group), int(session), int(rest[15]), state in _DEAD)


def _ask_ps(*which: str) -> Iterator[Process]:
    """macOS has no /proc; its ``ps`` tells the start to the second."""
    listed = subprocess.run(
        # one option each: a comma behind an equals sign may be taken for part of a heading
        ["/bin/ps", *which] + [word for name in _COLUMNS for word in ("-o", f"{name}=")],
        env={"LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listed.stdout.splitlines():
        pid, parent, group, state, *started = line.split()
        seconds = calendar.timegm(time.strptime(" ".join(started), "%a %b %d %H:%M:%S %Y"))
        yield Process(int(pid), int(parent), int(group), int(group), seconds, state.startswith(_DEAD))
