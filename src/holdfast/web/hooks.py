"""Owns Claude Code's hooks over HTTP: the same answers as the command ``hook`` gives, without a process for each."""

from __future__ import annotations

import json
import os
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from holdfast.engine.documents import Document
from holdfast.engine.holdfast import Holdfast
from holdfast.hooks.main import EVENTS
from holdfast.hooks.process import HookLog
from holdfast.hooks.serving import answer_hook
from holdfast.web.access import ANYONE, Guarded, caller_of
from holdfast.web.serving import Served

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
    return JSONResponse(await run_in_threadpool(_answer, holdfast, event, body, reads_files=here))


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
