"""Owns the settings of a hook process: from a cache that notices changes, else from the real configuration."""

from __future__ import annotations

import json
import os

from holdfast.domain.records import PlainRecord
from holdfast.hooks.process import cache_dir, stale_files, state_dir

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

NAME = "hook-settings.json"
_MOST_ENTRIES = 32
_DIRECTORIES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
#: these variables change from run to run, and no setting is read from them
_NOT_SETTINGS = ("HOLDFAST_ATTEMPT", "HOLDFAST_LOG", "HOLDFAST_SESSION", "HOLDFAST_TEST_")
_MIGRATIONS = f"{os.path.dirname(os.path.dirname(__file__))}/store/migrations/sqlite"
_SYSTEM_ID = "/etc/machine-id"


class HookPolicy(PlainRecord):
    """The rules that hooks need, under the names that they have in ``domain.policy``."""

    resumable_phases: list[str]
    max_idle_seconds: float | None
    max_errors: int
    context_warn: float
    context_refresh: float
    context_critical: float

    @property
    def continue_(self) -> Self:
        return self

    @property
    def resume(self) -> Self:
        return self


class HookSettings(PlainRecord):
    """What a hook needs to know. The store's URL is left out, because it may hold a password."""

    path: str | None  #: the SQLite file; None: the store is elsewhere
    spool: str | None  #: the directory for records if the store is elsewhere or locked
    workspace: str
    synchronous: str
    schema: int  #: the version that this Holdfast writes
    machine: str
    policy: HookPolicy
    notices: list[str]  #: parts of the configuration that are ignored, for the log
    tells_when_done: bool  #: people want notices of finalized sessions


def load_hook_settings(environ: Mapping[str, str], cwd: str) -> HookSettings:
    """ConfigError, as for any command."""
    key = _signature(environ, cwd)
    directory = cache_dir(environ)
    path = None if directory is None else f"{directory}/{NAME}"
    entries = {} if path is None else _read_cache(path)
    try:
        return _settings(entries[key])
    except (KeyError, TypeError):
        pass
    fresh = _read_configuration(environ, cwd)
    if path is not None:
        kept = dict(list(entries.items())[-_MOST_ENTRIES + 1 :])
        _write_cache(path, {**kept, key: fresh})
    return _settings(fresh)


def spool_dir(environ: Mapping[str, str], url: str, workspace: str) -> str | None:
    """The directory for one store and workspace; its name tells neither. None for a store in memory."""
    import hashlib

    from holdfast.store.open import sqlite_path

    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        if path is None:
            return None
        url = f"sqlite:///{path}"
    state = state_dir(environ)
    digest = hashlib.sha256(f"{url}\n{workspace}".encode()).hexdigest()[:32]
    return None if state is None else f"{state}/spool/{digest}"


def _settings(fields: dict[str, Any]) -> HookSettings:
    return HookSettings(**{**fields, "policy": HookPolicy(**fields["policy"])})


def _read_configuration(environ: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """The fields of ``HookSettings`` as JSON. Its imports read configuration files: a cached hook does without."""
    from pathlib import Path

    from holdfast.config import data_dir, default_url, load_settings
    from holdfast.domain.notices import Occasion
    from holdfast.errors import ConfigError
    from holdfast.processes.machine import machine_id
    from holdfast.store.migrate import migrations
    from holdfast.store.open import sqlite_path

    settings = load_settings(environ=environ, cwd=Path(cwd))
    url = settings.url or default_url(environ)
    path = sqlite_path(url) if url.startswith("sqlite:") else None
    if url.startswith("sqlite:") and path is None:
        raise ConfigError("url", "a hook cannot share a store that is in memory")
    rules, shares = settings.policy.continue_, settings.policy.resume
    return {
        "path": None if path is None else str(path),
        "spool": spool_dir(environ, url, settings.workspace),
        "workspace": settings.workspace,
        "synchronous": "NORMAL" if settings.durability == "normal" else "FULL",
        "schema": migrations("sqlite")[-1].version,
        "machine": machine_id(data_dir(environ)),
        "policy": {
            name: _plain(getattr(rules if hasattr(rules, name) else shares, name))
            for name in HookPolicy.__annotations__
        },
        "notices": list(settings.notices),
        "tells_when_done": settings.policy.notify.wants(Occasion.SESSION_DONE),
    }


def _plain(value: object) -> object:
    """The value as JSON can keep it."""
    return sorted(value) if isinstance(value, frozenset) else value


# --- the cache ---


def _signature(environ: Mapping[str, str], cwd: str) -> str:
    """Everything that the settings may depend on, with the version of each file."""
    given = {name: environ.get(name) for name in _DIRECTORIES}
    for name, value in environ.items():
        if name.startswith("HOLDFAST_") and not name.startswith(_NOT_SETTINGS):
            import zlib  # most people have a configuration file, or none at all

            # not the value itself: a URL may hold a password
            given[name] = f"{zlib.crc32(value.encode(errors='replace'))}/{len(value)}"
    here = os.path.realpath(cwd)
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME')}/.config"
    user_file = os.path.join(here, environ.get("HOLDFAST_CONFIG") or f"{config}/holdfast/config.toml")
    data = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME')}/.local/share"
    trusted = f"{data}/holdfast/trusted"  # a folder, which changes when the trust in a file changes
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


def _read_cache(path: str) -> dict[str, Any]:
    """Empty if there is no cache, or none that can be understood."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_cache(path: str, entries: Mapping[str, object]) -> None:
    """Atomic. Without a cache the next hook only takes longer, so errors are ignored."""
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
