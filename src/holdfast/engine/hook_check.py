"""Owns the self-check of the hooks: each of them, on a store of its own, as this machine would run it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.domain.records import record
from holdfast.engine.default import open as open_holdfast
from holdfast.engine.holdfast import Holdfast
from holdfast.hooks.log import HookLog
from holdfast.hooks.main import respond

_AGENT = "self-check"


@record
class Check:
    what: str
    expected: object
    found: object

    @property
    def passed(self) -> bool:
        return self.expected == self.found


def check_pre_delegate() -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as place:
        environ = {**os.environ, "HOLDFAST_URL": f"sqlite:///{Path(place) / 'holdfast.db'}"}
        for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
            environ[variable] = place
        with open_holdfast(environ["HOLDFAST_URL"]) as holdfast:
            yield from _answers(holdfast, environ)


def _answers(holdfast: Holdfast, environ: Mapping[str, str]) -> Iterator[Check]:
    asked = {"agent_name": _AGENT, "task_id": "T001"}
    yield Check("a first delegation", "no_existing_session", _ask(asked, environ)["reason"])
    session = holdfast.create_session(_AGENT, metadata={"task_id": "T001", "plan_file": "plan.json"})
    holdfast.update_state(session, phase="approval")
    found = _ask(asked, environ)
    yield Check("a session that waits for an approval", session, found["agent_id"])
    kept = (found["resume_metadata"] or {}).get("session_metadata", {}).get("plan_file")
    yield Check("what it kept", "plan.json", kept)
    stopped = _respond("subagent-stop", {"agent_id": session, "exit_code": 0}, environ)
    yield Check("a subagent that stops for an approval", "paused", stopped["outcome"])
    holdfast.update_state(session, phase="executing")
    stopped = _respond("subagent-stop", {"agent_id": session, "exit_code": 0}, environ)
    yield Check("a subagent that is done", "completed", stopped["outcome"])
    again = _ask({**asked, "agent_id": session}, environ)
    yield Check("a session that is over", "session_not_resumable", again["reason"])
    garbage = respond("pre-delegate", b"{", environ, HookLog(environ, "pre-delegate")) or {}
    yield Check("input that is no JSON", "invalid_json", garbage.get("reason"))


def _ask(context: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    return _respond("pre-delegate", context, environ)


def _respond(event: str, payload: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    return respond(event, json.dumps(payload).encode(), environ, HookLog(environ, event)) or {}
