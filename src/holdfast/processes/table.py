"""Owns the table of running processes: which there are, which of them belong to an attempt, and ending those.

An attempt's processes are those of its process group and those that have left it. Only a process that has left the
group, dropped its environment and outlived its parent cannot be found; on macOS, where environments are not shown,
one that has left the group and outlived its parent.
"""

from __future__ import annotations

import calendar
import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path, PurePath

from holdfast.domain.records import record
from holdfast.domain.turns import Attempt, Lease, ProcessMark
from holdfast.processes.machine import Machine
from holdfast.processes.owners import DEAD, ON_LINUX, Location, process_start, read_stat

#: every process of an attempt inherits it, also one that has left the process group
MARKER = "HOLDFAST_ATTEMPT"

_MARKER = re.compile(r"([A-Za-z0-9._:@+=-]{1,200})\.([0-9]{1,9})\.[0-9]{1,9}\.[0-9]{1,18}\.[0-9a-f]{16}")
_PROC = Path("/proc")
_COLUMNS = ("pid", "ppid", "pgid", "state", "lstart")


@record
class Process:
    """``started_at`` tells a process from an earlier one with the same pid."""

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


def marker_of(run: Lease | Attempt, workspace: str) -> str:
    """The value of ``MARKER`` for one attempt: every process of the attempt has it in its environment.

    The workspace and the owner are part of it: people choose ids of sessions, and may choose the same ids in another
    workspace or another store.
    """
    number = run.attempt if isinstance(run, Lease) else run.number
    whose = hashlib.sha256(f"{workspace} {run.owner}".encode()).hexdigest()[:16]
    return f"{run.conversation_id}.{run.seq}.{number}.{run.fence}.{whose}"


def marked_turn(marker: str) -> tuple[str, int] | None:
    """The conversation and the number of the turn that a marker names; None if it is not a marker."""
    read = _MARKER.fullmatch(marker)
    return None if read is None else (read[1], int(read[2]))


def carries(pid: int, marker: str) -> bool:
    """Whether the process was started with this marker. Only Linux tells, and only of processes of the same user."""
    return f"{MARKER}={marker}".encode() in _environ(pid).split(b"\0")


def carried_markers() -> dict[str, set[int]]:
    """Returns the markers that running processes were started with, and the groups of those processes: see ``carries``."""
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


def program_that_writes(path: str, group: int | None = None) -> str | None:
    """Names another process that has the file open for writing; ``carries`` says which processes can be seen.

    With a process group, only a process of this group that is no ancestor of this one.
    """
    if not ON_LINUX:
        return None
    left_out = {os.getpid()} if group is None else {os.getpid(), *(one.pid for one in ancestors())}
    for process in processes():
        if process.pid in left_out or group not in (None, process.group):
            continue
        if _writes(process.pid, path):
            return f"{name_of(process.pid)} (process {process.pid})"
    return None


def ancestors() -> Iterator[Process]:
    """The processes that this one runs under, its parent first."""
    listed = {} if ON_LINUX else {process.pid: process for process in ask_ps("-A")}
    pid = os.getppid()
    while pid and (process := _read_process(pid) if ON_LINUX else listed.get(pid)) is not None:
        yield process
        pid = process.parent


def programs_of(pid: int) -> frozenset[str]:
    """The names that the process may be known by: its program, and the script that an interpreter runs."""
    return frozenset(PurePath(word).stem for word in _words(_read(pid, "cmdline"))[:2]) | {name_of(pid)}


def has_same_stdin(pid: int) -> bool:
    """Whether the process has the same file, pipe or terminal as its standard input; see ``carries`` for where this can be seen."""
    try:
        return os.path.samestat(os.stat(_PROC / str(pid) / "fd" / "0"), os.fstat(0))  # noqa: PTH116 - samestat takes the results
    except OSError:
        return False


def command_lines(program: str) -> Iterator[CommandLine]:
    """The command lines of processes that run this program, also through an interpreter; see ``carries`` for which can be seen."""
    for process in processes() if ON_LINUX else ():
        words = _words(_read(process.pid, "cmdline"))
        at = next((n for n, word in enumerate(words) if PurePath(word).stem == program), None)
        if at is None:
            continue
        pairs = (word.partition("=") for word in _words(_environ(process.pid)))
        environ = {name: value for name, _, value in pairs}
        yield CommandLine(process.pid, tuple(words[at + 1 :]), environ)


def _words(told: bytes) -> list[str]:
    """Each word ends with a NUL."""
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
        pass  # the process has ended, or belongs to another user
    return False


def name_of(pid: int) -> str:
    """The name of its program, as far as that can be seen."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "a program"


def _environ(pid: int) -> bytes:
    return _read(pid, "environ") if ON_LINUX else b""


def _read(pid: int, name: str) -> bytes:
    """Reads as cheaply as possible: every worker reads this of every process on the machine."""
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
    """Asks ``ps``: macOS has no /proc. The start of a process is known to the second."""
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


_LOOK_EVERY = 0.02
#: a signal, and how many seconds it has to work
Step = tuple[signal.Signals, float]
QUICKLY: tuple[Step, ...] = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
#: an agent that gets SIGINT saves what it has said so far
GENTLY: tuple[Step, ...] = ((signal.SIGINT, 5.0), *QUICKLY)


@record
class Traces:
    """How the processes of an attempt are recognised."""

    group: int
    started_at: int  #: of the group's leader
    marker: str
    #: the group id cannot have been reused, because its leader was our own child until a moment ago
    is_own: bool = False


@record
class Sight:
    living: frozenset[Process]  #: provably the attempt's
    is_clear: bool  #: False: the group has other processes, and nothing tells whose they are

    @property
    def is_over(self) -> bool:
        return self.is_clear and not self.living


def end_survivors(mark: ProcessMark, marker: str, machine: Machine) -> bool:
    """Ends what is left of a recorded group. Returns True only if provably nothing is left.

    Ends only processes that provably belong to the attempt, and never a group that the caller is part of.
    """
    location = machine.location_of(mark)
    if location is Location.HERE:
        return end_all(Traces(mark.pgid, mark.started_at, marker), QUICKLY)
    return location is Location.PAST


def end_all(traces: Traces, steps: Sequence[Step]) -> bool:
    """Takes one step after the other until no process is left. Returns True only if provably none is.

    That takes two looks: a process that is just becoming another program shows no environment.
    """
    for number, patience in steps:
        deadline = time.monotonic() + patience
        reached: set[Process] = set()
        while (sight := look(traces)).living and time.monotonic() < deadline:
            if any(process.pid == os.getpid() for process in sight.living):
                return False
            _signal(traces, number, sight.living - reached)
            reached |= sight.living
            time.sleep(_LOOK_EVERY)
        if sight.is_over and look(traces).is_over:
            return True
    return look(traces).is_over and look(traces).is_over


def look(traces: Traces) -> Sight:
    later = [process for process in processes() if process.started_at >= traces.started_at]
    grouped = {process for process in later if traces.group in (process.group, process.session)}
    found = {process for process in later if carries(process.pid, traces.marker)}
    leader = next((process for process in grouped if process.pid == traces.group), None)
    if leader is not None:
        is_ours = leader.started_at == traces.started_at
    else:
        is_ours = traces.is_own or not found.isdisjoint(grouped)
    if is_ours:
        found |= grouped
    return Sight(_with_descendants(found, later), is_ours or leader is not None or not grouped)


def _with_descendants(found: Iterable[Process], among: Iterable[Process]) -> frozenset[Process]:
    """A child may have changed its group and its environment: Holdfast itself does, when an agent runs it."""
    children: dict[int, list[Process]] = {}
    for process in among:
        children.setdefault(process.parent, []).append(process)
    family = set(found)
    waiting = list(family)
    while waiting:
        new = set(children.get(waiting.pop().pid, ())) - family
        family |= new
        waiting += new
    return frozenset(family)


def _signal(traces: Traces, number: signal.Signals, to: Iterable[Process]) -> None:
    """Signals each process once: a second SIGINT makes an agent drop what it would have saved.

    The oldest first: an agent that sees its tool die before itself would report that to its model, and continue.
    """
    for process in sorted(to, key=lambda process: (process.started_at, process.pid)):
        # a process that we may not signal (another user's) stays, and the next look sees it
        with suppress(ProcessLookupError, PermissionError):
            if number is signal.SIGKILL and process.group == traces.group:
                os.killpg(process.group, number)  # at once, or those that fork fast would get away
            elif process_start(process.pid) == process.started_at:
                os.kill(process.pid, number)
