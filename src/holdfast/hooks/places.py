"""Owns where hooks keep their own files, and which project a directory belongs to."""

from __future__ import annotations

import os

from holdfast.clock import SECOND, system_clock
from holdfast.errors import InvalidInput

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

RECORD = ".record"  #: how the names end of what waits in a spool
#: no hook lives that long
STALE_SECONDS = 300


def state_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def cache_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def record_names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(RECORD))
    except OSError:
        return []


def key_mark(key: str | None) -> str:
    """Part of a record's name, so that one that is looked for is found without reading them all."""
    if key is None:
        return ""
    import zlib  # only where there is a spool

    return f"-{zlib.crc32(key.encode(errors='replace')):08x}"


def stale_files(
    directory: str, is_partial: Callable[[str], bool], seconds: float = STALE_SECONDS
) -> Iterator[str]:
    """What was left half written by processes that were killed: of files that nobody writes any more."""
    now = system_clock()
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        try:
            if is_partial(name) and now - os.stat(path).st_mtime_ns // 1000 > seconds * SECOND:
                yield path
        except OSError:  # another one was faster
            continue


def find_project(environ: Mapping[str, str], directory: str) -> str:
    """What the agent's program calls the project; else the repository around the directory, else the directory.

    InvalidInput for what no directory can be called.
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


def _xdg(environ: Mapping[str, str], variable: str, under_home: str) -> str | None:
    """As ``config_files.xdg``: the specification says to ignore a relative value."""
    base, home = environ.get(variable, ""), environ.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/{under_home}" if home.startswith("/") else ""
    return f"{base}/holdfast" if base else None
