"""Owns opening Holdfast from settings, the plain verbs on the default store, and ``AgentSession``."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings, data_dir, default_url, load_settings
from holdfast.config_files import current_directory, project_file
from holdfast.domain.redaction import Json
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.hooks.process import find_project
from holdfast.hooks.spool import empty_spool
from holdfast.store.open import open_store

log = logging.getLogger("holdfast")

_told: set[str] = set()
_open: dict[tuple[str, str, Settings], Holdfast] = {}


def open(url: str | None = None, clock: Clock | None = None, *, workspace: str | None = None) -> Holdfast:  # noqa: A001 - read as holdfast.open
    """Open a store: the one that ``url`` names, else that of the settings, else the user's own SQLite file."""
    overrides = {"url": url, "workspace": workspace}
    return open_with(
        load_settings(overrides=overrides, environ=os.environ, cwd=current_directory(os.environ)), clock
    )


def open_with(settings: Settings, clock: Clock | None = None) -> Holdfast:
    if clock is not None and type(clock()) is not int:
        raise InvalidInput("clock", "must return whole microseconds since 1970, UTC")
    _tell(settings.notices)
    url = settings.url or default_url(os.environ)
    store = open_store(
        url,
        workspace=settings.workspace,
        clock=clock,
        durability=settings.durability,
        policy=settings.policy,
        token=settings.token,
    )
    try:
        empty_spool(store, settings, os.environ)
        opened = Holdfast(store, settings.policy, clock or system_clock)
        opened.settings = settings
        opened.project = _project()
        opened.project_retention = _project_retention(settings)
    except BaseException:
        store.close()
        raise
    return opened


def _tell(notices: tuple[str, ...]) -> None:
    """Logs each notice once in a process: every call of a plain verb reads the settings."""
    for notice in notices:
        if notice not in _told:
            _told.add(notice)
            log.warning("%s", notice)


def default() -> Holdfast:
    """The default store of this process and these settings; opened once, closed when the process ends."""
    settings = load_settings(environ=os.environ, cwd=current_directory(os.environ))
    key = (settings.url or default_url(os.environ), _project(), settings)
    if key not in _open:
        opened = open_with(settings)
        # no lock, because a process fork could leave it locked: if two threads come first, one store is closed again
        if _open.setdefault(key, opened) is not opened:
            opened.close()
    return _open[key]


@atexit.register
def _close_all() -> None:
    while _open:
        _open.popitem()[1].close()


def _project() -> str:
    return find_project(os.environ, str(current_directory(os.environ)))


def _project_retention(settings: Settings) -> dict[str, str]:
    file = project_file(os.environ, current_directory(os.environ))
    keys = (key for key, source in settings.sources.items() if file is not None and source == str(file))
    return {
        key.removeprefix("retention."): str(file.parent)
        for key in keys
        if file and key.startswith("retention.")
    }


def create_session(agent_name: str, purpose: str = "", metadata: Mapping[str, Json] | None = None) -> str:
    """See ``Holdfast.create_session``."""
    return default().create_session(agent_name, purpose, metadata)


def update_state(
    agent_id: str,
    phase: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    error: str | None = None,
) -> bool:
    """See ``Holdfast.update_state``."""
    return default().update_state(agent_id, phase, metadata, error)


def should_resume(agent_id: str) -> bool:
    """See ``Holdfast.should_resume``."""
    return default().should_resume(agent_id)


def get_session(agent_id: str) -> dict[str, object] | None:
    """See ``Holdfast.get_session``."""
    return default().get_session(agent_id)


def finalize_session(agent_id: str, outcome: str, summary: str | None = None) -> bool:
    """See ``Holdfast.finalize_session``."""
    return default().finalize_session(agent_id, outcome, summary)


def cleanup_old_sessions(hours: float | None = None) -> int:
    """See ``Holdfast.cleanup_old_sessions``."""
    return default().cleanup_old_sessions(hours)


def list_sessions(active_only: bool = False, agent_name: str | None = None) -> list[dict[str, object]]:
    """See ``Holdfast.list_sessions``."""
    return default().list_sessions(active_only, agent_name)


def pre_delegate_hook(context: Mapping[str, Json]) -> dict[str, Any]:
    """See ``Holdfast.pre_delegate_hook``."""
    return default().pre_delegate_hook(context)


_FILE = "holdfast.db"


class AgentSession(Holdfast):
    """The plain verbs, for programs that have used a class of this name; decision 0003 lists what is different.

    The sessions are in one SQLite file in the directory ``base_path``; without it, in the default store. ``close``, or
    the end of the object, closes the store.
    """

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        opened = open(None if base_path is None else f"sqlite:///{Path(base_path).resolve()}/{_FILE}")
        super().__init__(opened.store, opened.policy)
        self._base_path = None if base_path is None else Path(base_path)
        self.project = opened.project
        self._closes = weakref.finalize(self, opened.close)

    @property
    def base_path(self) -> Path:
        """The given directory, else the directory of Holdfast's data."""
        return data_dir(os.environ) if self._base_path is None else self._base_path

    def close(self) -> None:
        self._closes()

    def list_sessions(
        self, active_only: bool = False, agent_name: str | None = None
    ) -> list[dict[str, object]]:
        """Every session as ``get_session`` gives it, newest first; ``active_only``: those that are resume-ready."""
        found = super().list_sessions(agent_name=agent_name)
        return [state for state in found if state["resume_ready"] or not active_only]
