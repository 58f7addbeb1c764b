"""Owns the Holdfast that a route gets: of the workspace of the request, and limited to what its caller may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Request

from holdfast.domain.ids import MAX_ID, check_workspace
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import Forbidden, InvalidInput
from holdfast.store.verbs import WORKSPACE_HEADER
from holdfast.web.access import caller_of, confined

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


def served(request: Request) -> Holdfast:
    """Of the token's workspace and no other. Opening a workspace does not read the store."""
    given = request.headers.getlist(WORKSPACE_HEADER)
    if len(given) > 1:
        raise InvalidInput(WORKSPACE_HEADER, "is given more than once")
    wanted = given[0] if given else None
    own = caller_of(request).workspace
    if own is not None and wanted not in (None, own):
        raise Forbidden(f"the token is for another workspace: set HOLDFAST_WORKSPACE={own}")
    workspaces = request.app.state.workspaces
    assert isinstance(workspaces, Workspaces)
    return workspaces.get(own or wanted)


def signed(request: Request, holdfast: Holdfast) -> Holdfast:
    """The token's name is recorded as the author of changes; without tokens, the user who runs the server."""
    caller, store = caller_of(request), holdfast.store
    if not caller.id:
        return holdfast
    return Holdfast(store.signed(caller.signature), holdfast.policy)


async def _served(
    request: Request,
    _documented: Annotated[str | None, Header(alias=WORKSPACE_HEADER, max_length=MAX_ID)] = None,
) -> Holdfast:
    return confined(caller_of(request), served(request))


Served = Annotated[Holdfast, Depends(_served)]
