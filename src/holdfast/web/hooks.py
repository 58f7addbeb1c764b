"""Owns Claude Code's http hooks: the same answers as the hook command gives, without a process for each."""

from __future__ import annotations

import json
import os
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from holdfast.domain.policy import NotifyPolicy
from holdfast.engine.hooking import answer_hook
from holdfast.hooks.log import HookLog
from holdfast.hooks.main import EVENTS
from holdfast.store.contract import Store
from holdfast.web.serving import Served

router = APIRouter(tags=["hooks"])


@router.post("/hooks/{event}")
async def hook(event: str, request: Request, holdfast: Served) -> JSONResponse:
    """Whatever happens, the agent goes on: what cannot be recorded is a line in the hooks' log."""
    body = await request.body()
    return JSONResponse(await run_in_threadpool(_answer, holdfast.store, holdfast.policy.notify, event, body))


def _answer(store: Store, policy: NotifyPolicy, event: str, body: bytes) -> dict[str, Any]:
    log = HookLog(os.environ, event[:40])
    if event not in EVENTS:
        log.say("unknown event")
        return {}
    try:
        payload = json.loads(body)
        if not isinstance(payload, dict):
            raise ValueError("not an object")
        return answer_hook(store, policy, event, payload) or {}
    except Exception as exc:  # noqa: BLE001 - whatever it is, the agent goes on
        log.problem(exc)
        return {}
