"""Owns a workshop for turns: a store in a file, a work dir, and the scripted agent with a home of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy
from holdfast.engine.result import RunResult
from holdfast.processes.table import processes
from holdfast.providers.scripted import ScriptedArchive
from holdfast.store.open import open_store
from tests.integration.scripted import MODULE

HOLDFAST = Path(sys.executable).with_name("holdfast")
#: no condition takes longer, however busy the machine is
PATIENCE = 30.0
SECRET = "swordfish"
OPENING = f"the password is {SECRET}"
RECALL = f"RECALL {SECRET}"
FROM_SESSION = f"{RECALL}: from the session: {OPENING}"
FROM_PROMPT = f"{RECALL}: from the prompt: > {OPENING}"
#: an agent that is asked to wait for something waits no longer than a test does
QUICK = {
    "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0.1",
    "HOLDFAST_QUEUE__LOCK_TRIES": "2",
    "HOLDFAST_QUEUE__HEARTBEAT_SECONDS": "0.2",
    "HOLDFAST_DURABILITY": "normal",
    "HOLDFAST_RUN__PROVIDER": "scripted",
}


@dataclass
class Workshop:
    root: Path
    cache: Path  #: what the agent's binary says about itself is asked once for all tests
    policy: Policy = field(default_factory=Policy)
    changes: dict[str, str] = field(default_factory=dict)  #: of the environment that agents get
    database: str | None = None  #: its URL; a SQLite file if there is none
    _open: list[Holdfast] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return Path(self.environ["SCRIPTED_HOME"])

    @property
    def work_dir(self) -> Path:
        return self.folder("work")

    @property
    def url(self) -> str:
        return self.database or f"sqlite:///{self.root / 'holdfast.db'}"

    @property
    def environ(self) -> dict[str, str]:
        scripted = {"SCRIPTED_HOME": str(self.root / "agent")}
        shared = {"XDG_CACHE_HOME": str(self.cache), "HOLDFAST_URL": self.url}
        return {**os.environ, **scripted, **shared, **QUICK, **self.changes}

    def folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return folder

    def open(self, policy: Policy | None = None, **changes: str) -> Holdfast:
        """The library, on the same store each time."""
        self.changes.update(changes)
        chosen = policy or self.policy
        store = open_store(self.url, durability="normal", policy=chosen)
        self._open.append(Holdfast(store, chosen, environ=self.environ))
        return self._open[-1]

    def close(self) -> None:
        for holdfast in self._open:
            holdfast.close()

    def begin(self, prompt: str = OPENING, **keywords: Any) -> RunResult:
        """A first turn in the work dir, by a library of its own."""
        keywords = {"cwd": str(self.work_dir), **keywords}
        return self.open().run(prompt, provider="scripted", **keywords)

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """The command, in the work dir, while it runs."""
        return subprocess.Popen(
            [HOLDFAST, *arguments], cwd=self.work_dir, env={**self.environ, **(environ or {})}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def by_hand(self, prompt: str, *arguments: str) -> None:
        """A turn in the provider's own program, without Holdfast."""
        subprocess.run(
            [sys.executable, "-m", MODULE, *arguments], input=prompt, cwd=self.work_dir, env=self.environ,
            text=True, capture_output=True, timeout=PATIENCE, check=True,
        )  # fmt: skip

    def transcript(self, session_id: str | None) -> Path:
        assert session_id is not None
        return self.home / "sessions" / f"{session_id}.jsonl"

    def prompts(self, session_id: str | None) -> list[str]:
        """Everything that a provider session was sent, as it was sent."""
        path = self.transcript(session_id)
        found = ScriptedArchive(self.home).turns(str(path), ProviderSessionId(session_id or ""))
        return [turn.prompt for turn in found]

    def left_running(self) -> set[int]:
        """Every process that was given this agent's home, whatever became of its group (Linux tells)."""
        wanted = f"SCRIPTED_HOME={self.home}".encode()
        return {process.pid for process in processes() if wanted in _environ(process.pid)}

    def kill_agent(self, besides: int | None = None) -> None:
        """The agent and its calls, all at once: an agent whose call alone is killed goes on with its turn."""
        found = self.left_running() - {besides}
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, sent)

    def stand_in(self, name: str, before: str) -> str:
        """A program that is the agent, but runs ``before``, in Python, first; ``argv`` is its command line."""
        path = self.root / name
        path.write_text(
            f"#!{sys.executable}\nimport os, sys\nargv = sys.argv[1:]\n{before}\n"
            f"os.execv(sys.executable, [sys.executable, '-m', {MODULE!r}, *argv])\n"
        )
        path.chmod(0o755)
        return str(path)


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What the condition gives once it holds; it has to, in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
    return found


def _environ(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def kill(process: subprocess.Popen[str]) -> None:
    """The machine's own way to end Holdfast: without a last word."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
