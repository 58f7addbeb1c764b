"""Owns the name of a process that is never reused, and whether that process can still be running.

An owner is ``pid/start/machine/boot``, where ``boot`` is itself ``kernel/pids/host``: see ``Machine``.
Hook processes import this module, so costly modules are imported where they are needed.
"""

from __future__ import annotations

import os
import re
import sys
from enum import StrEnum, auto
from functools import cache

ON_LINUX = sys.platform == "linux"

_PROC = "/proc"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PID_NAMESPACE = "/proc/self/ns/pid"
_STAT_SIZE = 4096
#: states of a process that has ended and was not collected yet: in a container without an init it may stay listed
DEAD = ("Z", "X")
_OWNER = r"([0-9]{1,9})/([0-9]{1,20})/([^/]*)/(.*)"


class Location(StrEnum):
    """Where a recorded process is, as seen from this process."""

    HERE = auto()  #: among the processes that we can see, if it still runs
    PAST = auto()  #: on this machine, before its last boot: it is gone
    ELSEWHERE = auto()  #: on another machine, or not visible from here


@cache
def this_user() -> str:
    """The name of the user who runs this process."""
    import pwd  # only when something is signed

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user nobody named
        return f"uid-{os.getuid()}"


def make_owner(pid: int, started_at: int | None, machine: str, boot: str) -> str:
    return f"{pid}/{started_at}/{machine}/{boot}"


def is_gone(owner: str, machine: str, boot: str) -> bool:
    """True only if the process behind an owner provably does not exist any more; we are on ``machine``."""
    found = re.fullmatch(_OWNER, owner)
    if found is None:
        return False
    pid, start, its_machine, its_boot = found.groups()
    if its_machine != machine:
        return False
    location = location_of_boot(its_boot, boot)
    return location is Location.PAST or (location is Location.HERE and has_ended(int(pid), int(start)))


def location_of_boot(boot: str, own_boot: str) -> Location:
    """Both boots are of one machine. What is not certain is elsewhere: containers of one host share its boot and see
    different processes, and machines made from one image may share an id and differ in name."""
    kernel, pids, host = _parts(boot)
    own_kernel, own_pids, own_host = _parts(own_boot)
    if not kernel or not own_kernel:
        return Location.ELSEWHERE
    if kernel == own_kernel:
        return Location.HERE if pids == own_pids else Location.ELSEWHERE
    return Location.PAST if host == own_host else Location.ELSEWHERE


def boot_id() -> str:
    """See ``Machine.boot``; a part that the system does not tell is empty."""
    kernel = pids = ""
    if ON_LINUX:
        kernel = _read(_BOOT_ID).strip()
        try:
            pids = os.readlink(_PID_NAMESPACE)  # noqa: PTH115 - it names no path: pid:[4026531836]
        except OSError:
            pass
    else:  # kern.boottime would move when the clock is set
        import subprocess

        try:
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            kernel = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            pass
    return f"{kernel}/{pids}/{os.uname().nodename}"


def process_start(pid: int) -> int | None:
    """When the process began: in clock ticks since boot on Linux, in seconds since 1970 elsewhere; None if gone."""
    found = _find(pid)
    return None if found is None or found[0] else found[1]


def has_ended(pid: int, started_at: int) -> bool:
    """Whether this process provably does not run any more. One that is hidden from us may still run."""
    found = _find(pid)
    if found is not None:
        return found[0] or found[1] != started_at
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _find(pid: int) -> tuple[bool, int] | None:
    """Whether the process has ended and only waits to be collected, and when it began; None if there is none."""
    if ON_LINUX:
        found = read_stat(pid)
        return None if found is None else (found[0] in DEAD, found[4])
    from holdfast.processes.table import ask_ps

    listed = next(ask_ps("-p", str(pid)), None)
    return None if listed is None else (listed.has_ended, listed.started_at)


def read_stat(pid: int) -> tuple[str, int, int, int, int] | None:
    """State, parent, group, session and start, as Linux tells them; None if there is no such process."""
    text = _read(f"{_PROC}/{pid}/stat")
    if not text:
        return None
    # the second field is the program's name in parentheses, which may itself hold both and spaces
    state, parent, group, session, *rest = text[text.rfind(")") + 1 :].split()
    return state, int(parent), int(group), int(session), int(rest[15])


def _read(path: str) -> str:
    """Reads as cheaply as possible: for every process of the machine, a Path and a file object cost more than the reading."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, _STAT_SIZE).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""


def _parts(boot: str) -> tuple[str, str, str]:
    kernel, _, rest = boot.partition("/")
    pids, _, host = rest.partition("/")
    return kernel, pids, host
