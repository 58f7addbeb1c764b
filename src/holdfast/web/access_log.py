"""Owns the access log: one line for each request, and its part in the figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.domain.turns import Claim, Lease, Orphan
from holdfast.engine.running.log_subject import lease_fields
from holdfast.web.access import Caller
from holdfast.web.metrics import Meters
from holdfast.web.problems import unexpected

log = logging.getLogger("holdfast.web")

#: of a request that reached no verb: it was refused, or asked for a path that does not exist
NO_VERB: Final = "none"
#: any other method is a caller's own text, and is not logged
_METHODS: Final = frozenset(HTTPMethod)
#: idle workers ask these all day: an answer without a turn is logged at DEBUG
_IDLING: Final = frozenset({"claim_turn", "watch_queue"})


class AccessLog:
    def __init__(self, app: ASGIApp, meters: Meters, stir: Callable[[], None]) -> None:
        """``stir`` is called after each request that may have changed something."""
        self._app = app
        self._meters = meters
        self._stir = stir

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        began, status, is_begun = time.monotonic(), 500, False

        async def noticed(message: Message) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
            await send(message)

        try:
            await self._app(scope, receive, noticed)
        except Exception as error:  # noqa: BLE001 - uvicorn would log its message
            answer = unexpected(state.get("verb", NO_VERB), error)
            if not is_begun:
                await answer(scope, receive, noticed)
        finally:
            seconds = time.monotonic() - began
            if scope["method"] != HTTPMethod.GET:
                self._stir()
            verb = state.get("verb", NO_VERB)
            self._meters.answered(verb, status, seconds, state.get("code"))
            is_idle = verb in _IDLING and status == HTTPStatus.OK and not state.get("about")
            level = logging.DEBUG if is_idle else logging.INFO
            if log.isEnabledFor(level):
                method = scope["method"] if scope["method"] in _METHODS else "other"
                log.log(level, "%s %s", method, verb, extra={"about": _fields(state, status, seconds)})


def _fields(state: Mapping[str, object], status: int, seconds: float) -> dict[str, object]:
    caller = state.get("caller")
    fields: dict[str, object] = {"status": status, "seconds": round(seconds, 6)}
    if isinstance(caller, Caller) and caller.id:
        fields["token"] = caller.id
    if "code" in state:
        fields["code"] = state["code"]
    about = state.get("about")
    return fields | about if isinstance(about, dict) else fields


def about(arguments: Mapping[str, object], answer: object) -> dict[str, object]:
    """The session, turn and attempt that a call is about, as far as its arguments or its answer name them."""
    lease = arguments.get("lease")
    if isinstance(answer, Claim):
        lease = answer.lease
    orphan = arguments.get("orphan")
    if isinstance(orphan, Orphan):
        lease = orphan.lease
    if isinstance(lease, Lease):
        return lease_fields(lease)
    named = {"session": arguments.get("session_id"), "turn": arguments.get("seq")}
    return {name: value for name, value in named.items() if value is not None}
