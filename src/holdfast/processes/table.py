"""Owns the list of running processes: who there is, since when, in which group."""

from __future__ import annotations

import calendar
import os
import re
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path, PurePath

from holdfast.domain.records import record
from holdfast.processes.owners import DEAD, ON_LINUX, read_stat

#: every process of an attempt inherits it, also one that has left the process group
MARKER = "HOLDFAST_ATTEMPT"

_PROC = Path("/proc")
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


@record
class CommandLine:
    """A running program, as it was called."""

    pid: int
    arguments: tuple[str, ...]
    environ: Mapping[str, str]

    def gives(self, options: Collection[str], value: str) -> bool:
        """Whether one of the options has this value: ``--option value`` or ``--option=value``."""
        pairs = zip(self.arguments, self.arguments[1:], strict=False)
        joined = {f"{option}={value}" for option in options}
        return not joined.isdisjoint(self.arguments) or any(
            option in options and given == value for option, given in pairs
        )


def processes() -> Iterator[Process]:
    """Every living process that we may see."""
    if ON_LINUX:
        listed: Iterable[Process | None] = map(_read_process, _pids())
    else:
        listed = ask_ps("-A")
    return (process for process in listed if process and not process.has_ended)


def _pids() -> list[int]:
    with os.scandir(_PROC) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def carries(pid: int, marker: str) -> bool:
    """Was it started with this marker? Only Linux tells, and only of processes that are our own."""
    return f"{MARKER}={marker}".encode() in _environ(pid).split(b"\0")


def carried_markers() -> dict[str, set[int]]:
    """The markers that running processes were started with, and the groups that those are in: see ``carries``."""
    name = f"{MARKER}=".encode()
    found: dict[str, set[int]] = {}
    for pid in _pids() if ON_LINUX else ():
        environ = _environ(pid)
        process = _read_process(pid) if name in environ else None
        if process is None or process.has_ended:
            continue
        for variable in environ.split(b"\0"):
            if variable.startswith(name):
                found.setdefault(variable.removeprefix(name).decode(errors="replace"), set()).add(
                    process.group
                )
    return found


def program_that_writes(path: str) -> str | None:
    """Another process that has the file open for writing, in words: see ``carries`` for who can be seen."""
    if not ON_LINUX:
        return None
    for process in processes():
        if process.pid != os.getpid() and _writes(process.pid, path):
            return f"{_name(process.pid)} (process {process.pid})"
    return None


def command_lines(program: str) -> Iterator[CommandLine]:
    """Of the processes that run a program of this name, also by an interpreter: see ``carries`` for who can be seen."""
    for process in processes() if ON_LINUX else ():
        words = _words(_read(process.pid, "cmdline"))
        at = next((n for n, word in enumerate(words) if PurePath(word).stem == program), None)
        if at is None:
            continue
        pairs = (word.partition("=") for word in _words(_environ(process.pid)))
        environ = {name: value for name, _, value in pairs}
        yield CommandLine(process.pid, tuple(words[at + 1 :]), environ)


def _words(told: bytes) -> list[str]:
    """A NUL stands behind each."""
    return [word.decode(errors="surrogateescape") for word in told.split(b"\0")[:-1]]


def _writes(pid: int, path: str) -> bool:
    process = _PROC / str(pid)
    try:
        with os.scandir(process / "fd") as descriptors:
            for descriptor in descriptors:
                if os.readlink(descriptor.path) == path:  # noqa: PTH115 - every file of every process comes by
                    told = (process / "fdinfo" / descriptor.name).read_text()
                    flags = re.search(r"^flags:\s*([0-7]+)$", told, re.MULTILINE)
                    if flags is not None and int(flags[1], 8) & os.O_ACCMODE:
                        return True
    except OSError:
        pass  # it has ended, or is somebody else's
    return False


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "a program"


def _environ(pid: int) -> bytes:
    return _read(pid, "environ") if ON_LINUX else b""


def _read(pid: int, name: str) -> bytes:
    """Every process of the machine comes by, in every worker: the plainest way to read a file is the cheapest."""
    try:
        with FileIO(f"{_PROC}/{pid}/{name}") as file:
            return file.readall()
    except OSError:
        return b""


def _read_process(pid: int) -> Process | None:
    found = read_stat(pid)
    if found is None:
        return None
    state, parent, group, session, started_at = found
    return Process(pid, parent, group, session, started_at, state in DEAD)


def ask_ps(*which: str) -> Iterator[Process]:
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
        yield Process(int(pid), int(parent), int(group), int(group), seconds, state.startswith(DEAD))
