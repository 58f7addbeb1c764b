"""Owns what a route is given: the Holdfast of the workspace that a request is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Request

from holdfast.domain.ids import check_workspace
from holdfast.engine.holdfast import Holdfast

#: names the workspace of a request; without it, the one that the server was started for
WORKSPACE_HEADER = "Holdfast-Workspace"
_MOST_WORKSPACES = 1000


class Workspaces:
    """One Holdfast for each workspace that was asked for, all on the same store."""

    def __init__(self, default: str, open_one: Callable[[str], Holdfast]) -> None:
        self._default = default
        self._open_one = open_one
        self._opened: dict[str, Holdfast] = {}

    def get(self, name: str | None) -> Holdfast:
        wanted = check_workspace(name or self._default)
        found = self._opened.get(wanted)
        if found is None:
            if len(self._opened) >= _MOST_WORKSPACES:
                self._opened.clear()
            found = self._opened.setdefault(wanted, self._open_one(wanted))
        return found


def _served(
    request: Request, holdfast_workspace: Annotated[str | None, Header(alias=WORKSPACE_HEADER)] = None
) -> Holdfast:
    workspaces = request.app.state.workspaces
    assert isinstance(workspaces, Workspaces)
    return workspaces.get(holdfast_workspace)


Served = Annotated[Holdfast, Depends(_served)]
