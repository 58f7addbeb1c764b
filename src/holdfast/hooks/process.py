"""Owns what each hook process has of its own: its deadline, its log and its directories."""

from __future__ import annotations

import json
import os
import signal

from holdfast.clock import SECOND, system_clock, to_iso
from holdfast.errors import InvalidInput, StoreUnavailable

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import NoReturn

# --- the deadline ---

#: for reading the input and for waiting until the store is locked; no wait follows after that
DEADLINE_SECONDS = 4.0
#: for writing into the spool what the store was too slow for. The agent's own limit is shorter: this one is for a
#: disk that does not answer at all
LATE_SECONDS = 60.0

_has_deadline = False


class DeadlinePassed(BaseException):
    """No ``except Exception`` may catch it."""


class StoreLocked(StoreUnavailable):
    """Other writers held the store for too long; nothing else is wrong with it."""


def start_deadline() -> None:
    """Raise DeadlinePassed wherever this process waits when the time is over."""
    global _has_deadline  # noqa: PLW0603 - there is one alarm in a process
    signal.signal(signal.SIGALRM, _give_up)
    _has_deadline = True
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_SECONDS)


def prolong_deadline() -> None:
    """Does nothing without a deadline: the alarm may belong to somebody else in this process."""
    if _has_deadline:
        signal.setitimer(signal.ITIMER_REAL, LATE_SECONDS)


def stop_deadline() -> None:
    if _has_deadline:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _give_up(*_: object) -> NoReturn:
    raise DeadlinePassed(f"after {DEADLINE_SECONDS:g} seconds")


# --- the log ---

LOG_NAME = "hooks.log"
MOST_LOG_BYTES = 1_000_000
_LONGEST_VALUE = 2000
_MOST_VALUES = 100


class HookLog:
    """JSON lines that only this user may read, of limited size. Writing never fails."""

    def __init__(self, environ: Mapping[str, str], event: str) -> None:
        directory = state_dir(environ)
        self._path = None if directory is None else f"{directory}/{LOG_NAME}"
        self._event = event

    def say(self, what: str, **fields: object) -> None:
        """Write one line: what happened, and the fields that tell more about it."""
        shown = {name: _shown(value) for name, value in fields.items()}
        line = json.dumps({"at": to_iso(system_clock()), "event": self._event, "what": what, **shown})
        try:
            if self._path is not None:
                self._append(self._path, f"{line}\n".encode())
        except OSError:
            pass

    def problem(self, error: BaseException) -> None:
        self.say("failed", error=type(error).__name__, message=error)

    def _append(self, path: str, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size > MOST_LOG_BYTES:
                os.replace(path, f"{path}.1")
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return [str(one)[:_LONGEST_VALUE] for one in value[:_MOST_VALUES]]
    return value if isinstance(value, int) else str(value)[:_LONGEST_VALUE]


# --- directories ---

#: no hook lives that long
_STALE_SECONDS = 300


def state_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def cache_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def _xdg(environ: Mapping[str, str], variable: str, under_home: str) -> str | None:
    """As ``config_files.xdg``: the specification says to ignore a relative value."""
    base, home = environ.get(variable, ""), environ.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/{under_home}" if home.startswith("/") else ""
    return f"{base}/holdfast" if base else None


def stale_files(
    directory: str, is_partial: Callable[[str], bool], seconds: float = _STALE_SECONDS
) -> Iterator[str]:
    """Files that killed processes left half written: nobody has written to them for so many seconds."""
    now = system_clock()
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        try:
            if is_partial(name) and now - os.stat(path).st_mtime_ns // 1000 > seconds * SECOND:
                yield path
        except OSError:  # another process removed it first
            continue


def find_project(environ: Mapping[str, str], directory: str) -> str:
    """The project that the agent's program names; else the repository around the directory, else the directory.

    InvalidInput for a text that cannot be a path.
    """
    told = environ.get("CLAUDE_PROJECT_DIR", "")
    try:
        here = os.path.realpath(told if os.path.isabs(told) else directory)
    except ValueError as exc:
        raise InvalidInput("cwd", f"is no path: {exc}") from exc
    at = here
    while not os.path.lexists(f"{at}/.git"):
        above = os.path.dirname(at)
        if above == at or told:
            return here
        at = above
    return at


# --- records in a spool, as far as every hook must know them ---

RECORD = ".record"  #: how the name of a record ends
PARTIAL = ".new"  #: the same while it is written


def record_names(directory: str) -> list[str]:
    """The records that wait, oldest first."""
    return sorted(name for name in names_in(directory) if name.endswith(RECORD))


def names_in(directory: str) -> list[str]:
    """Of a spool, which may not be there yet."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


WATCHED = ".watched"  #: how the name of a mark ends


def mark_watched(directory: str, provider: str, session_id: str) -> None:
    """Leave a mark: there may be something new in the files of this agent's session.

    Each mark is a file of its own, and replaces the earlier ones: whoever takes the session in removes the marks that
    were there before it looked, and none that came since.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    subject = f".{provider}.{session_id}{WATCHED}"
    name = f"{system_clock():020d}-{os.getpid()}{subject}"
    os.close(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for earlier in os.listdir(directory):
        if earlier.endswith(subject) and earlier < name:
            try:
                os.unlink(f"{directory}/{earlier}")
            except FileNotFoundError:  # the session was taken in at this moment
                pass


def key_mark(key: str | None) -> str:
    """The part of a record's name that tells its key, so that a record is found without reading all of them."""
    if key is None:
        return ""
    import zlib  # only where there is a spool

    return f"-{zlib.crc32(key.encode(errors='replace')):08x}"
