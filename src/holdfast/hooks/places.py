"""Owns where hooks keep their own files, and which project a directory belongs to."""

from __future__ import annotations

import os

from holdfast.errors import InvalidInput

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping


def state_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def cache_dir(environ: Mapping[str, str]) -> str | None:
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


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
