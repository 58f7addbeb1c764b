"""Owns the scripted agent as tests use it: a process with a home and a work dir of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.domain.ids import ProviderSessionId
from holdfast.providers.scripted import ScriptedArchive

MODULE = "holdfast.providers.scripted_agent"


@dataclass(frozen=True)
class Ran:
    code: int
    events: list[dict[str, Any]]
    stderr: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def answer(self) -> str:
        return "".join(event["text"] for event in self.of("text"))


@dataclass(frozen=True)
class Agent:
    home: Path
    work_dir: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            cwd=self.work_dir, env={**os.environ, "SCRIPTED_HOME": str(self.home)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, prompt: str, *arguments: str) -> Ran:
        with self.start(*arguments) as process:
            out, err = process.communicate(prompt, timeout=60)
        return Ran(process.returncode, [json.loads(line) for line in out.splitlines()], err)

    def turns(self, session_id: str) -> list[tuple[str, str | None, bool]]:
        archive = ScriptedArchive(self.home)
        path = archive.find(ProviderSessionId(session_id), None)
        if path is None:
            return []
        found = archive.turns(path, ProviderSessionId(session_id))
        return [(turn.prompt, turn.response, turn.complete) for turn in found]
