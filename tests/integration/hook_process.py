"""Owns running hooks as an agent's program does: a process each, JSON on standard input; or within this one."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.hooks.main import respond
from holdfast.hooks.process import HookLog

HOLDFAST = Path(sys.executable).with_name("holdfast")
RECORDED = Path(__file__).parents[1] / "contract" / "recorded" / "hooks"
AGENT = "terraform-architect"


@dataclass(frozen=True)
class Answered:
    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer

    @property
    def prompt(self) -> str:
        return str(self.json["hookSpecificOutput"]["updatedInput"]["prompt"])

    def harmless(self) -> None:
        """What every hook that records promises, whatever it met."""
        assert (self.code, self.err) == (0, b""), self
        assert self.out == b"" or isinstance(self.json, dict)
        assert self.seconds < 30  # its own deadline is 4; the rest is a busy machine


def start_hook(
    event: str, environ: Mapping[str, str] | None = None, limit: str = ""
) -> "subprocess.Popen[bytes]":
    """``limit``: an option of the shell's ``ulimit``."""
    limited = ["sh", "-c", f'ulimit {limit}; exec "$0" "$@"'] if limit else []
    return subprocess.Popen(
        [*limited, str(HOLDFAST), "hook", event],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(environ),
    )


def run_hook(
    event: str, payload: object, environ: Mapping[str, str] | None = None, limit: str = ""
) -> Answered:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    began = time.monotonic()
    with start_hook(event, environ, limit) as process:
        out, err = process.communicate(data)
    return Answered(process.returncode, out, err, time.monotonic() - began)


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLAUDE"))}
    return {**kept, **(changes or {})}


def recorded(name: str, **changes: Any) -> dict[str, Any]:
    """What Claude Code really said, with some of it changed."""
    given: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return given | changes


def call_here(event: str, payload: Mapping[str, Any], **variables: str) -> dict[str, Any] | None:
    """The answer of a hook in this process: in its directory, and with its environment changed by ``variables``."""
    environ = {**os.environ, **variables}
    return respond(event, json.dumps(payload).encode(), environ, HookLog(environ, event))


def write_message(transcript: Path, message_id: str, tokens: int) -> None:
    """The model of an agent was sent so many tokens, and answered with five."""
    usage = {"input_tokens": tokens, "output_tokens": 5}
    message = {"id": message_id, "model": "claude-opus-5-5", "usage": usage}
    with transcript.open("a") as file:
        file.write(json.dumps({"type": "assistant", "message": message}) + "\n")


def a_tool_call(number: int | str = 1, **changes: Any) -> dict[str, Any]:
    """What Claude Code says before it starts a subagent."""
    recorded = json.loads((RECORDED / "pre_tool_use_agent_sync.json").read_text())
    given = {"description": "plan it", "prompt": "Plan the change.", "subagent_type": AGENT}
    return {
        **recorded,
        "cwd": str(Path.cwd()),
        "tool_use_id": f"toolu_{number}",
        "tool_input": given,
        **changes,
    }


def session_of(prompt: str) -> str:
    """What a subagent was told."""
    return prompt.split('<holdfast-session id="')[1].split('"')[0]


def a_stop(directory: Path, tool_use_id: str, **changes: Any) -> dict[str, Any]:
    """What it says when the subagent has stopped, with the files that it leaves."""
    recorded = json.loads((RECORDED / "subagent_stop_sync.json").read_text())
    meta = json.loads((RECORDED / "subagent_stop_sync.meta.json").read_text())
    (directory / "agent-1.meta.json").write_text(json.dumps({**meta, "toolUseId": tool_use_id}))
    return {**recorded, "agent_transcript_path": str(directory / "agent-1.jsonl"), **changes}


def log_of(home: Path) -> list[dict[str, Any]]:
    path = home / ".local/state/holdfast/hooks.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rows(home: Path, sql: str, *parameters: object) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(home / ".local/share/holdfast/holdfast.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, parameters)]
