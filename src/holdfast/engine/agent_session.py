"""Owns ``AgentSession``: the class that gaia-ops had for its sessions, on a store of Holdfast."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from holdfast.config import data_dir
from holdfast.engine.default import open as open_default
from holdfast.engine.sessions import Sessions

_FILE = "holdfast.db"


class AgentSession(Sessions):
    """The plain lifecycle as it was there, ``active_only`` included. What differs on purpose is in decision 0003.

    ``base_path`` is a directory that has its own sessions, in one SQLite file; without it they are in the
    default store. The store is closed with the object, or before by ``close``.
    """

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        opened = open_default(None if base_path is None else f"sqlite:///{Path(base_path).resolve()}/{_FILE}")
        super().__init__(opened.store, opened.policy)
        self._base_path = None if base_path is None else Path(base_path)
        self.project = opened.project
        self._closes = weakref.finalize(self, opened.close)

    @property
    def base_path(self) -> Path:
        """The directory that it was given, else that of Holdfast's data."""
        return data_dir(os.environ) if self._base_path is None else self._base_path

    def close(self) -> None:
        self._closes()

    def list_sessions(
        self, active_only: bool = False, agent_name: str | None = None
    ) -> list[dict[str, object]]:
        """Every session as ``get_session`` gives it, newest first; ``active_only``: those that are resume-ready."""
        found = super().list_sessions(agent_name=agent_name)
        return [state for state in found if state["resume_ready"] or not active_only]
