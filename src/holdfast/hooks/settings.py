"""Owns the settings of a hook process: from a cache that knows when it is old, else from the real configuration."""

from __future__ import annotations

import json
import os

from holdfast.domain.records import PlainRecord
from holdfast.hooks.places import cache_dir, stale_files

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "hook-settings.json"
_MOST_ENTRIES = 32
_DIRECTORIES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
#: they change from run to run, and nothing is read from them
_NOT_SETTINGS = ("HOLDFAST_ATTEMPT", "HOLDFAST_LOG", "HOLDFAST_SESSION", "HOLDFAST_TEST_")
_MIGRATIONS = f"{os.path.dirname(os.path.dirname(__file__))}/store/migrations/sqlite"
_SYSTEM_ID = "/etc/machine-id"


class HookSettings(PlainRecord):
    """What a hook needs to know. A URL that may hold a password is not among it."""

    path: str | None  #: the SQLite file; None: the store is elsewhere
    spool: str | None  #: what is to be written goes there if the store is elsewhere, or has no time
    workspace: str
    synchronous: str
    schema: int  #: the version that this Holdfast writes
    machine: str
    resumable_phases: list[str]
    max_idle_seconds: float | None
    max_errors: int
    context_warn: float
    context_refresh: float
    context_critical: float
    notices: list[str]  #: what in the configuration counts for nothing, for the log
    tells_when_done: bool  #: somebody wants to be told of finalized sessions


def load_hook_settings(environ: Mapping[str, str], cwd: str) -> HookSettings:
    """ConfigError, as for any command."""
    key = _signature(environ, cwd)
    directory = cache_dir(environ)
    path = None if directory is None else f"{directory}/{NAME}"
    entries = {} if path is None else _read(path)
    try:
        return HookSettings(**entries[key])
    except (KeyError, TypeError):
        pass
    from holdfast.hooks.configuration import (
        read_configuration,  # brings everything that reads files of others
    )

    fresh = read_configuration(environ, cwd)
    if path is not None:
        kept = dict(list(entries.items())[-_MOST_ENTRIES + 1 :])
        _write(path, {**kept, key: fresh})
    return HookSettings(**fresh)


def _signature(environ: Mapping[str, str], cwd: str) -> str:
    """Whatever the settings may depend on, and which version of each file that was."""
    given = {name: environ.get(name) for name in _DIRECTORIES}
    for name, value in environ.items():
        if name.startswith("HOLDFAST_") and not name.startswith(_NOT_SETTINGS):
            import zlib  # seldom: most people have a file, or neither

            # not the value itself: a URL may hold a password
            given[name] = f"{zlib.crc32(value.encode(errors='replace'))}/{len(value)}"
    here = os.path.realpath(cwd)
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME')}/.config"
    user_file = os.path.join(here, environ.get("HOLDFAST_CONFIG") or f"{config}/holdfast/config.toml")
    data = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME')}/.local/share"
    trusted = (
        f"{data}/holdfast/trusted"  # a folder: it changes with each file that is trusted, or not any more
    )
    seen = [_version_of(file) for file in (user_file, trusted, __file__, _MIGRATIONS, _SYSTEM_ID)]
    at = here
    while True:
        seen += [_version_of(f"{at}/.holdfast.toml"), os.path.lexists(f"{at}/.git")]
        above = os.path.dirname(at)
        if above == at:
            break
        at = above
    return json.dumps([os.uname().nodename, here, given, seen])


def _version_of(path: str) -> object:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def _read(path: str) -> dict[str, Any]:
    """Empty if there is none that can be understood: it is made again."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: str, entries: Mapping[str, object]) -> None:
    """Whole or not at all; without it the next hook takes longer, that is all."""
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        for left in stale_files(os.path.dirname(path), lambda name: name.startswith(f"{NAME}.")):
            os.unlink(left)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps(entries).encode())
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except OSError:
        pass
