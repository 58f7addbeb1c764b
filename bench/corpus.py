"""Owns a generated corpus: homes of Claude Code and Codex with sessions of realistic shape, the same ones for each seed.

``python -m bench.corpus FOLDER --sessions 2000`` writes ``FOLDER/claude`` and ``FOLDER/codex``. The sizes follow what
the real programs write: two thirds of a Claude transcript are what it sends along with each request, and the results of
tools take most of the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

WORDS = [
    "the",
    "parser",
    "reads",
    "every",
    "line",
    "and",
    "keeps",
    "the",
    "offset",
    "of",
    "each",
    "one",
    "so",
    "that",
    "a",
    "later",
    "run",
    "can",
    "continue",
    "from",
    "there",
    "function",
    "returns",
    "value",
    "error",
    "test",
    "module",
    "class",
    "import",
    "config",
    "server",
    "request",
    "response",
    "session",
    "history",
    "turn",
    "branch",
    "commit",
    "merge",
    "deploy",
    "build",
    "cache",
    "index",
    "query",
    "table",
    "column",
    "update",
    "insert",
    "delete",
    "select",
    "where",
    "order",
    "retry",
    "timeout",
    "connection",
    "pool",
    "thread",
    "process",
    "signal",
    "file",
    "path",
    "folder",
    "read",
    "write",
    "open",
    "close",
    "token",
    "key",
    "user",
]
TOOLS = ("Bash", "Read", "Edit", "Grep", "Glob", "Write")
RARE = "quokka"  #: none of the words above
COMMON = "parser"
BEGAN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@dataclass
class Shape:
    """How much of everything one session has, on average."""

    turns: int = 10
    calls: int = 3  #: of each turn
    result: int = 3500  #: characters of the result of a call
    answer: int = 900
    overhead: int = 5500  #: characters that a program writes along with a turn
    rare_every: int = 0  #: the request of one turn in so many has the word ``RARE``; 0: none has


class Writer:
    def __init__(self, seed: int, shape: Shape) -> None:
        self._random = random.Random(seed)
        self._shape = shape
        self._text = " ".join(self._random.choices(WORDS, k=400_000))
        self.turns = self.calls = 0

    def text(self, length: int) -> str:
        wanted = max(20, int(self._random.gauss(length, length / 3)))
        start = self._random.randrange(max(1, len(self._text) - wanted))
        return self._text[start : start + wanted]

    def code(self, length: int) -> str:
        """Lines with numbers, paths and quotes, as tools print them."""
        lines = []
        left = max(40, int(self._random.gauss(length, length / 3)))
        while left > 0:
            number = self._random.randrange(100_000)
            line = f'{number:>6}\\tdef f_{number}(self, path="/srv/app/src/part_{number % 97}.py"): # {self.text(40)}'
            lines.append(line)
            left -= len(line)
        return "\n".join(lines)

    def prompt(self) -> str:
        self.turns += 1
        rare = self._shape.rare_every and self.turns % self._shape.rare_every == 0
        return self.text(220) + (f" {RARE}" if rare else "")

    def id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def session_size(self) -> int:
        return max(1, round(self._random.expovariate(1 / self._shape.turns)))

    def claude(self, folder: Path, number: int) -> None:
        project = f"/srv/project-{number % 40}"
        session_id, now = self.id(), BEGAN + timedelta(minutes=7 * number)
        lines: list[dict[str, Any]] = []
        parent: str | None = None
        common = {
            "isSidechain": False, "userType": "external", "cwd": project, "sessionId": session_id,
            "version": "2.1.325", "gitBranch": "main",
        }  # fmt: skip

        def add(kind: str, **more: Any) -> None:
            nonlocal parent, now
            now += timedelta(seconds=2)
            own = self.id()
            stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = {"parentUuid": parent, **common, "type": kind, **more, "uuid": own, "timestamp": stamp}
            lines.append(line)
            parent = own

        for _ in range(self.session_size()):
            add("user", message={"role": "user", "content": self.prompt()})
            add(
                "attachment",
                attachment={"type": "skill_listing", "content": self.text(self._shape.overhead // 3)},
            )
            lines.append({"type": "api-request-shape", "sessionId": session_id, "body": self.text(self._shape.overhead * 2 // 3)})  # fmt: skip
            for _ in range(self._random.randrange(2 * self._shape.calls + 1)):
                self.calls += 1
                call = f"toolu_{self.id()[:24]}"
                tool = self._random.choice(TOOLS)
                add("assistant", message=self._message([{"type": "tool_use", "id": call, "name": tool, "input": {"command": self.text(90), "description": self.text(40)}}], "tool_use"))  # fmt: skip
                result = self.code(self._shape.result)
                add("user", message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": result}]}, toolUseResult={"stdout": result[:200]})  # fmt: skip
            add("assistant", message=self._message([{"type": "text", "text": self.text(self._shape.answer)}], "end_turn"))  # fmt: skip
        lines.append({"type": "last-prompt", "lastPrompt": "x", "leafUuid": parent, "sessionId": session_id})
        name = project.replace("/", "-")
        _write(folder / "projects" / name / f"{session_id}.jsonl", lines)

    def _message(self, content: list[dict[str, Any]], reason: str) -> dict[str, Any]:
        usage = {"input_tokens": 900, "cache_read_input_tokens": 20_000, "output_tokens": 300}
        return {
            "id": f"msg_{self.id()[:20]}", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
            "content": content, "stop_reason": reason, "usage": usage,
        }  # fmt: skip

    def codex(self, folder: Path, number: int) -> None:
        project = f"/srv/project-{number % 40}"
        session_id, now = self.id(), BEGAN + timedelta(minutes=7 * number)
        lines: list[dict[str, Any]] = []
        spent = 0

        def add(kind: str, **payload: Any) -> None:
            nonlocal now
            now += timedelta(seconds=2)
            stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            lines.append({"timestamp": stamp, "ordinal": len(lines), "type": kind, "payload": payload})

        add("session_meta", id=session_id, session_id=session_id, cwd=project, cli_version="0.166.0",
            source="exec", history_mode="paginated", git={"branch": "main"},
            base_instructions={"text": self.text(self._shape.overhead)})  # fmt: skip
        for _ in range(self.session_size()):
            turn = self.id()
            add("event_msg", type="task_started", turn_id=turn)
            add("turn_context", turn_id=turn, cwd=project, model="gpt-5.5-codex")
            prompt = self.prompt()
            add("response_item", type="message", role="developer", content=[{"type": "input_text", "text": self.text(self._shape.overhead // 2)}])  # fmt: skip
            add("event_msg", type="item_completed", turn_id=turn, item={"type": "UserMessage", "id": self.id(), "content": [{"type": "text", "text": prompt}]})  # fmt: skip
            for _ in range(self._random.randrange(2 * self._shape.calls + 1)):
                self.calls += 1
                call, result = f"call_{self.id()[:16]}", self.code(self._shape.result // 2)
                command = self.text(90)
                add("response_item", type="function_call", name="exec_command", call_id=call, arguments=json.dumps({"cmd": command}))  # fmt: skip
                add("event_msg", type="item_completed", turn_id=turn, item={"type": "CommandExecution", "id": call, "command": ["/bin/bash", "-lc", command], "aggregated_output": result, "exit_code": 0, "status": "completed"})  # fmt: skip
                add("response_item", type="function_call_output", call_id=call, output=f"Process exited with code 0\nOutput:\n{result}")  # fmt: skip
            add("event_msg", type="item_completed", turn_id=turn, item={"type": "AgentMessage", "id": self.id(), "content": [{"type": "Text", "text": self.text(self._shape.answer)}]})  # fmt: skip
            spent += 21_000
            add("event_msg", type="token_count", info={"total_token_usage": {"input_tokens": spent, "cached_input_tokens": spent // 2, "output_tokens": spent // 70}})  # fmt: skip
            add("event_msg", type="task_complete", turn_id=turn)
        day = (BEGAN + timedelta(minutes=7 * number)).strftime("%Y/%m/%d")
        _write(
            folder / "sessions" / day / f"rollout-{day.replace('/', '-')}T08-00-00-{session_id}.jsonl", lines
        )


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def write_long_session(folder: Path, size: int) -> dict[str, int]:
    """One transcript of Claude Code with at least so many bytes: turns of a session, each copied under ids of its own."""
    writer = Writer(1, Shape())
    writer.claude(folder / "parts", 0)
    (part,) = _files(folder / "parts")
    lines = [json.loads(line) for line in part.read_text("utf-8").splitlines()[:-1]]
    path = folder / "claude" / "projects" / part.parent.name / part.name
    path.parent.mkdir(parents=True)
    written, copies = 0, 0
    last: str | None = None
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                own: dict[str, str | None] = {}
                for name in ("uuid", "parentUuid"):
                    if line.get(name):
                        own[name] = f"{copies:08x}{line[name][8:]}"
                if "uuid" in line and line["parentUuid"] is None:
                    own["parentUuid"] = last
                written += file.write(json.dumps(line | own, separators=(",", ":")) + "\n")
                last = own.get("uuid", last)
            copies += 1
    part.unlink()
    return {"sessions": 1, "turns": copies * writer.turns, "calls": copies * writer.calls, "bytes": written}


def write_corpus(folder: Path, sessions: int, seed: int = 1, shape: Shape | None = None) -> dict[str, int]:
    """Half of the sessions for each program; returns what there is to find in them."""
    writer = Writer(seed, shape or Shape())
    for number in range(sessions):
        if number % 2:
            writer.codex(folder / "codex", number)
        else:
            writer.claude(folder / "claude", number)
    size = sum(file.stat().st_size for file in _files(folder))
    return {"sessions": sessions, "turns": writer.turns, "calls": writer.calls, "bytes": size}


def _files(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=Shape().turns)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = write_corpus(given.folder, given.sessions, given.seed, Shape(turns=given.turns))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
