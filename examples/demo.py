"""Shows the main job of Holdfast: work stops, and continues.

It needs no installation and no configuration: it uses the agent that comes with Holdfast, which needs no model, and
one SQLite file in a temporary directory. Every command is shown as you would type it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HOLDFAST = str(Path(sysconfig.get_path("scripts")) / "holdfast")
PATIENCE = 30.0


class Desk:
    """A temporary home directory, and a project to work on."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.moved = folder / "project-moved"
        for directory in (self.project, self.moved, folder / "home"):
            directory.mkdir()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))
        }
        self.environ = kept | {"HOME": str(folder / "home"), "HOLDFAST_RUN__PROVIDER": "scripted"}

    def holdfast(self, *arguments: str, expected: int = 0) -> str:
        """Runs a command and shows its output; stops the demo if the exit code is not the expected one."""
        print(f"  $ holdfast {_shown(arguments)}", flush=True)
        done = subprocess.run(
            [HOLDFAST, *arguments], cwd=self.project, env=self.environ, text=True, capture_output=True,
            check=False,
        )  # fmt: skip
        for line in (done.stdout + done.stderr).splitlines():
            print(f"    {line}", flush=True)
        if done.returncode != expected:
            sys.exit(f"demo: ended with {done.returncode}, not {expected}")
        return done.stdout

    def why(self, *words: str) -> None:
        """Shows the verdict of ``why``, and the guards that did not pass."""
        print("  $ holdfast why demo", flush=True)
        done = subprocess.run(
            [HOLDFAST, "why", *words], cwd=self.project, env=self.environ, text=True, capture_output=True,
            check=True,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith(("The ", "decided")) or " failed " in line or " missing " in line:
                print(f"    {line}", flush=True)

    def kill_agent(self, *arguments: str) -> None:
        """Kills the agent with kill -9 while it works; Holdfast notices, and says how to continue."""
        with self._at_work(*arguments) as run:
            (agent,) = _children(run.pid)
            print(f"  $ kill -9 {agent}  # the agent", flush=True)
            os.kill(agent, signal.SIGKILL)
            said = run.communicate(timeout=PATIENCE)[0]
        for line in said.splitlines():
            print(f"    {line}", flush=True)

    def kill_holdfast(self, *arguments: str) -> None:
        """Kills Holdfast with kill -9 while the agent works."""
        with self._at_work(*arguments) as run:
            print(f"  $ kill -9 {run.pid}  # holdfast", flush=True)
            run.send_signal(signal.SIGKILL)

    def _at_work(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command, and returns when its agent has said that it is halfway."""
        print(f"  $ holdfast {_shown(arguments)} &", flush=True)
        run = subprocess.Popen(
            [HOLDFAST, *arguments], cwd=self.project, env=self.environ, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, deadline = self._log().count("halfway"), time.monotonic() + PATIENCE
        while self._log().count("halfway") == said and time.monotonic() < deadline:
            time.sleep(0.1)
        return run

    def _log(self) -> str:
        told = subprocess.run(
            [HOLDFAST, "log", "demo", "--raw"], cwd=self.project, env=self.environ, text=True, capture_output=True,
            check=False,
        )  # fmt: skip
        return told.stdout


def _children(pid: int) -> list[int]:
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], text=True, capture_output=True, check=True
    ).stdout
    rows = (map(int, line.split()) for line in table.splitlines())
    return [child for child, parent in rows if parent == pid]


def _shown(arguments: tuple[str, ...]) -> str:
    return shlex.join(argument.replace("\n", " / ") for argument in arguments)


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        step("1. A crash in the very first turn: the agent is killed in the middle of its work, with kill -9")
        fix = json.dumps({"command": "echo fixed >> parser.py"})
        desk.kill_agent(
            "run", "--name", "demo",
            f"SAY The bug is in parser.py, it is called swordfish\nTOOL shell {fix}\nSAY halfway\nSLEEP 60",
        )  # fmt: skip

        step("2. The turn continues. It never ended, and still the agent's own session is resumed")
        desk.holdfast("resume", "demo")
        desk.holdfast("resume", "demo", "HISTORY")
        print(
            f"  parser.py was fixed {len((desk.project / 'parser.py').read_text().split())} time", flush=True
        )
        desk.why("demo")

        step(
            "3. Another crash: holdfast itself is killed. The agent that it left running is ended, then the turn continues"
        )
        desk.kill_holdfast("resume", "demo", "SAY Tests: halfway\nSLEEP 60")
        desk.holdfast("resume", "demo")

        step("4. A fork: another branch of the same history. The first session does not change")
        desk.holdfast("fork", "demo", "--name", "another-way", "RECALL swordfish")

        step("5. The project is in another directory: a fresh start, which still knows everything")
        desk.holdfast("resume", "demo", "--cwd", str(desk.moved), "RECALL swordfish")
        desk.why("demo")
        desk.holdfast("tree", "demo")
    print(
        f"\nThat took {time.monotonic() - began:.0f} seconds. Next: the README's tour, with your own agent."
    )


def step(title: str) -> None:
    print(f"\n{title}", flush=True)


if __name__ == "__main__":
    main()
