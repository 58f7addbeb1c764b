"""Owns the stage of an agent: the scripted agent in a home of its own, a directory to work in, and its words."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import workload as w
from bench.ours import open_sqlite
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.result import RunResult

_PROGRAM = "holdfast-scripted-agent"
PROVIDER = "scripted"
#: one thing said, one file read, one file written
_EVENTS_OF_STEP = 5
_STEP = """\
SAY I look at what the test does, and at the function that it calls.
TOOL shell {{"command": "cat {file}"}}
TOOL write {{"path": "plan.md", "text": "1. find where the file is closed, 2. sync it before, 3. test again"}}
"""
#: in real source, every third kilobyte holds a word that a secret could follow
_FILES = {
    "lock.txt": w.RESPONSE,
    "task.txt": w.PROMPT,
    "sort.txt": w.RESPONSE[:960] + "\nfor one in sorted(found, key=lambda one: one.number):\n",
}
_LINE = 100_000


def conversation(events: int) -> str:
    """A request that is answered with so many events."""
    files = itertools.cycle(_FILES)
    return "".join(_STEP.format(file=next(files)) for _ in range(events // _EVENTS_OF_STEP))


def many_lines(size: int) -> str:
    """A request that is answered with lines of 100 KB, and so many bytes in all."""
    return f"REPEAT {size // _LINE} {'x' * _LINE}"


def one_line(size: int) -> str:
    return f"BIG {size}"


@dataclass(frozen=True, slots=True)
class Stage:
    folder: Path

    def prepare(self) -> None:
        self.work_dir.mkdir(parents=True)
        for name, text in _FILES.items():
            (self.work_dir / name).write_text(text)

    @property
    def work_dir(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        """The agent's sessions are below it, and all that Holdfast keeps besides the store."""
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.home)}

    @property
    def command(self) -> list[str]:
        return [str(Path(sys.executable).with_name(_PROGRAM))]

    def open(self, *, synchronous: str = "FULL", checkpoints: bool = True, vault: bool = True) -> Holdfast:
        store, driver = open_sqlite(self.folder / "holdfast.db", synchronous=synchronous)
        if not checkpoints:
            with driver.raw() as connection:
                connection.execute("PRAGMA wal_autocheckpoint = 0")
        policy = Policy(vault=VaultPolicy(mode="all" if vault else "off"))
        return Holdfast(store, policy, environ=self.environ)

    def run(self, holdfast: Holdfast, prompt: str) -> RunResult:
        """A session and its first turn."""
        ran = holdfast.run(prompt, provider=PROVIDER, cwd=str(self.work_dir))
        assert ran.ok, ran.failure
        return ran
