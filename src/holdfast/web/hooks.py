"""Owns Claude Code's hooks over HTTP: the same answers as the command ``hook`` gives, without a process for each."""

from __future__ import annotations

import json
import os
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from holdfast.engine.documents import Document
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.hooks.main import EVENTS
from holdfast.hooks.process import HookLog
from holdfast.hooks.serving import answer_hook
from holdfast.hooks.sessions import PROVIDER
from holdfast.web.access import ANYONE, Guarded, caller_of
from holdfast.web.serving import Served

#: events after which there may be something new in the files of a session
_MAY_HAVE_GROWN = ("stop", "session-end")

router = APIRouter(tags=["hooks"], route_class=Guarded)


@router.get("/hooks")
def hooks(_: Served) -> Document:
    """The events that are answered. Changes nothing, so `holdfast hooks status` checks a token with it."""
    return {"events": sorted(EVENTS)}


@router.post("/hooks/{event}")
async def hook(event: str, request: Request, holdfast: Served) -> JSONResponse:
    """The answer to a hook; `{}` if it cannot be recorded, so that the agent continues. The hooks' log says why."""
    body = await request.body()
    # a caller with a token may be on another machine, where the files that the payload names are
    here = caller_of(request) is ANYONE
    answer = await run_in_threadpool(_answer, holdfast, event, body, reads_files=here)
    # after the answer, so that the agent does not wait for it
    news = BackgroundTask(_take_in, holdfast, event, body) if here and event in _MAY_HAVE_GROWN else None
    return JSONResponse(answer, background=news)


def _take_in(holdfast: Holdfast, event: str, body: bytes) -> None:
    """The session is ours, as after a hook that is a command: see ``engine.watched``."""
    try:
        holdfast.take_in(PROVIDER, json.loads(body)["session_id"])
    except (HoldfastError, ValueError, LookupError, TypeError) as exc:
        HookLog(os.environ, event).problem(exc)


def _answer(holdfast: Holdfast, event: str, body: bytes, *, reads_files: bool) -> dict[str, Any]:
    log = HookLog(os.environ, event[:40])
    if event not in EVENTS:
        log.say("unknown event")
        return {}
    try:
        payload = json.loads(body)
        if not isinstance(payload, dict):
            raise ValueError("not an object")
        policy = holdfast.policy.notify
        return answer_hook(holdfast.store, policy, event, payload, reads_files=reads_files) or {}
    except Exception as exc:  # noqa: BLE001 - whatever it is, the agent continues
        log.problem(exc)
        return {}
