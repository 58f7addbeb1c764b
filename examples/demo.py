"""Shows the main job: work that stops, for whatever reason, and goes on.

Nothing is installed or configured: the agent that comes with Holdfast, which needs no model, and one
SQLite file in a temporary directory. Everything here is the command as you would type it.
"""

from __future__ import annotations

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
    """A home of its own, and a project to work on."""

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
        """Run a command, show it with everything it says, and stop the demo if it ends in another way."""
        print(f"  $ holdfast {shlex.join(arguments)}", flush=True)
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
        """Of all that ``why`` says, the guards that did not simply pass, and the verdict."""
        print("  $ holdfast why demo", flush=True)
        done = subprocess.run(
            [HOLDFAST, "why", *words], cwd=self.project, env=self.environ, text=True, capture_output=True,
            check=True,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith(("The ", "decided")) or " failed " in line or " missing " in line:
                print(f"    {line}", flush=True)

    def kill_in_the_middle(self, *arguments: str) -> None:
        """kill -9, once the agent is at work."""
        print(f"  $ holdfast {shlex.join(arguments)} &", flush=True)
        with subprocess.Popen(
            [HOLDFAST, *arguments], cwd=self.project, env=self.environ, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as run:  # fmt: skip
            deadline = time.monotonic() + PATIENCE
            while "halfway" not in self._log() and time.monotonic() < deadline:
                time.sleep(0.1)
            run.send_signal(signal.SIGKILL)
        print(f"  $ kill -9 {run.pid}", flush=True)

    def _log(self) -> str:
        told = subprocess.run(
            [HOLDFAST, "log", "demo"], cwd=self.project, env=self.environ, text=True, capture_output=True,
            check=False,
        )  # fmt: skip
        return told.stdout


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        step("1. A turn. The agent's own session and ours are recorded together")
        desk.holdfast("run", "--name", "demo", "SAY The bug is in parser.py, it is called swordfish")

        step("2. A crash: holdfast is killed in the middle of the next turn, with kill -9")
        desk.kill_in_the_middle("resume", "demo", "SAY Tests: halfway\nSLEEP 60")

        step("3. Going on. What was left running is ended, and the agent's own session is resumed")
        desk.holdfast("resume", "demo")
        desk.holdfast("resume", "demo", "HISTORY")
        desk.why("demo")

        step("4. A fork: another way, from the same past. The first session is not touched")
        desk.holdfast("fork", "demo", "--name", "another-way", "RECALL swordfish")

        step("5. The project is somewhere else: a fresh start, which still knows everything")
        desk.holdfast("resume", "demo", "--cwd", str(desk.moved), "RECALL swordfish")
        desk.why("demo")
        desk.holdfast("tree", "demo")
    print(
        f"\nThat took {time.monotonic() - began:.0f} seconds. Next: the README's tour, with an agent of yours."
    )


def step(title: str) -> None:
    print(f"\n{title}", flush=True)


if __name__ == "__main__":
    main()
