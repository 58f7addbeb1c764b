"""Owns what callers may do: each verb's roles are in the contract; what the contract does not know is for admins alone.

Routes are named after the verb that they carry out, so that no route has rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from holdfast.domain.approvals import Answer
from holdfast.domain.delegations import DelegationEnd
from holdfast.domain.pointers import Pointer
from holdfast.domain.sessions import SessionUpdate
from holdfast.domain.tokens import Role
from holdfast.domain.turns import NewTurn
from holdfast.errors import Forbidden
from holdfast.store.contract import FACTS, Store

#: routes that carry out no verb of the store, and the verb whose roles are theirs
_LIKE: Final = {"hook": "delegate", "hooks": "delegate", "readyz": "statistics"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made a request, by the token's id and name. Without a workspace: any."""

    id: str
    role: Role
    workspace: str | None
    name: str
    session_id: str | None = None  #: of an agent's: nothing but this, and what is below it

    @property
    def signature(self) -> str:
        """As it is put down for what was changed."""
        return f"{self.name} ({self.id})"

    def sign(self, answer: Answer) -> Answer:
        """An answer is by whoever holds the token, whatever name it was given."""
        return replace(answer, by=self.name, token=self.id) if self.id else answer


#: on a server that no token was ever made for: whoever can reach it from this machine
ANYONE: Final = Caller("", Role.ADMIN, None, "")
#: whoever reads the database makes the first token; a program that merely runs here does not
_TOKENS: Final = frozenset({"create_token", "revoke_token", "tokens"})


def may(role: Role, verb: str) -> bool:
    facts = FACTS.get(_LIKE.get(verb, verb))
    return role is Role.ADMIN or (facts is not None and role in facts.roles)


def check_caller(request: Request, verb: str) -> None:
    caller = caller_of(request)
    if caller is ANYONE and verb in _TOKENS:
        raise Forbidden("the first token is made on the database: holdfast token create --url DATABASE")
    if not may(caller.role, verb):
        raise Forbidden(f"a token of the role {caller.role} does not do {verb[:40]}", role=caller.role.value)


#: what a worker may do, but not with any arguments
CHECKED: Final = frozenset(
    {"adopt_turns", "end_delegation", "record_turn", "request_approval", "set_pointer", "update_session"}
)


def check_work(store: Store, verb: str, arguments: Mapping[str, Any]) -> None:
    """What a worker calls a verb with may amount to another verb, which workers do not have."""
    match verb:
        case "record_turn":
            asked: NewTurn = arguments["new"]
            # how a turn was run is for those who put turns in; what was said belongs to a turn that is being run
            if asked != NewTurn(asked.prompt, asked.provider, key=asked.key):
                raise _not_a_workers("say how a turn is to be run")
            _require_at_work(store, arguments["session_id"])
        case "adopt_turns":
            _require_lease(arguments)
        case "set_pointer":
            _check_moved(store, arguments["pointer"])
        case "update_session":
            change: SessionUpdate = arguments["change"]
            if change.phase is not None and change.phase.is_final:
                raise _not_a_workers("close a session")
            _require_at_work(store, arguments["session_id"], delegated=True)
        case "request_approval":
            _require_at_work(store, arguments["session_id"], delegated=True)
        case "end_delegation":
            end: DelegationEnd = arguments["end"]
            # by its own id even a session is closed that was never delegated
            if end.id is None and end.session_id is not None:
                _require_at_work(store, end.session_id, delegated=True)


def _require_lease(arguments: Mapping[str, Any]) -> None:
    """The store refuses a lease of another session."""
    if arguments.get("lease") is None:
        raise _not_a_workers("adopt turns of a session that it is not at work on")


def _check_moved(store: Store, moved: Pointer) -> None:
    known = store.pointer(moved.session_id, moved.provider)
    onward = known and replace(
        known, seen=moved.seen, transcript=moved.transcript, updated_at=moved.updated_at
    )
    if moved != onward:
        raise _not_a_workers("point to another session, directory or right")
    _require_at_work(store, moved.session_id)


def _require_at_work(store: Store, session_id: str, *, delegated: bool = False) -> None:
    """``delegated``: or someone has delegated to it, and not heard of its end."""
    if store.holder(session_id) is not None:
        return
    if not delegated or all(held.ended_at is not None for held in store.delegations(session_id)):
        raise _not_a_workers(f"change {session_id}, which no worker is at work on")


def _not_a_workers(what: str) -> Forbidden:
    return Forbidden(f"a token of the role {Role.WORKER} does not {what}", role=Role.WORKER.value)


class Guarded(APIRoute):
    """A route that only callers who may carry out the verb of its name get to, before anything is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            request.state.verb = self.name
            check_caller(request, self.name)
            return await answer(request)

        return guarded


def verb_of(request: Request) -> str:
    return str(request.state.verb)


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller
