"""Owns whether Claude Code calls Holdfast's hooks here: which settings say so, and what stands in the way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from holdfast.engine.hook_entries import (
    HOOKS,
    WrongShape,
    addresses,
    installed_events,
    tried_programs,
)
from holdfast.engine.hook_settings import local_settings, project_settings, read_settings, user_settings
from holdfast.errors import ConfigError
from holdfast.processes.command import find_program

_PLUGIN = "holdfast@"


class Extent(StrEnum):
    INSTALLED = "installed"
    PARTLY = "partly"  #: for some of the events
    NOT = "not installed"
    UNREADABLE = "unreadable"  #: the file cannot be understood


@dataclass(frozen=True, slots=True)
class ScopeStatus:
    """What one settings file says."""

    scope: str
    path: Path
    extent: Extent
    missing: tuple[str, ...] = ()  #: events without our hook, of a file that has some
    addresses: tuple[str, ...] = ()  #: of servers, for hooks over HTTP
    broken: tuple[str, ...] = ()  #: commands that cannot be started
    problem: str | None = None
    #: what the file says about hooks as a whole, and about our plugin; None: nothing
    disables_hooks: bool | None = None
    enables_plugin: bool | None = None

    @property
    def works(self) -> bool:
        return self.extent is Extent.INSTALLED and not self.broken


@dataclass(frozen=True, slots=True)
class HookStatus:
    scopes: tuple[ScopeStatus, ...] = field(default=())

    @property
    def hooks_disabled(self) -> bool:
        """The file that is nearest to the work decides."""
        said = [scope.disables_hooks for scope in self.scopes if scope.disables_hooks is not None]
        return bool(said and said[-1])

    @property
    def plugin_enabled(self) -> bool:
        said = [scope.enables_plugin for scope in self.scopes if scope.enables_plugin is not None]
        return bool(said and said[-1])

    @property
    def called_twice(self) -> bool:
        """By the plugin and by settings; what is recorded is the same."""
        return self.plugin_enabled and any(scope.works for scope in self.scopes)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers that hooks are sent to, each once."""
        return tuple(dict.fromkeys(address for scope in self.scopes for address in scope.addresses))

    @property
    def installed(self) -> bool:
        return (self.plugin_enabled or any(scope.works for scope in self.scopes)) and not self.hooks_disabled


def hook_status(environ: Mapping[str, str], cwd: Path) -> HookStatus:
    """The settings from the user's own to those that are nearest to the work."""
    files = {
        "user": user_settings(environ),
        "project": project_settings(environ, cwd),
        "local": local_settings(environ, cwd),
    }
    return HookStatus(tuple(_scope(name, path, environ) for name, path in files.items()))


def _scope(name: str, path: Path, environ: Mapping[str, str]) -> ScopeStatus:
    try:
        settings = read_settings(path)
        hooks = settings.get("hooks", {})
        events = installed_events(hooks)
    except (ConfigError, WrongShape) as exc:
        return ScopeStatus(name, path, Extent.UNREADABLE, problem=str(exc))
    extent = Extent.NOT if not events else Extent.INSTALLED if len(events) == len(HOOKS) else Extent.PARTLY
    return ScopeStatus(
        name,
        path,
        extent,
        missing=tuple(event for event in HOOKS if event not in events) if events else (),
        addresses=addresses(hooks),
        broken=tuple(
            programs[0]
            for programs in tried_programs(hooks)
            if not any(_starts(p, environ) for p in programs)
        ),
        disables_hooks=_said(settings.get("disableAllHooks")),
        enables_plugin=_plugin(settings.get("enabledPlugins")),
    )


def _starts(program: str, environ: Mapping[str, str]) -> bool:
    """It is there, and so is the interpreter that its first line names."""
    found = find_program(program, environ)
    if found is None:
        return False
    with Path(found).open("rb") as file:
        first = file.readline(1000)
    interpreter = first[2:].split()[:1] if first.startswith(b"#!") else []
    return all(os.access(path, os.X_OK) for path in interpreter)


def _said(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _plugin(enabled: Any) -> bool | None:
    """Whatever the marketplace is called that it came from."""
    said = (
        [on for name, on in enabled.items() if name.startswith(_PLUGIN)] if isinstance(enabled, dict) else []
    )
    return any(said) if said else None
