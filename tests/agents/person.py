"""Owns a person at a terminal of 80 columns, in front of an agent's own program."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.agents.driver import Driver, await_that
from tests.agents.lab.laboratory import LIMIT_SECONDS, Laboratory
from tests.agents.lab.model_servers.replies import Say

_CONTROLS = re.compile(
    rb"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>()][0-9A-B]?|\r", re.DOTALL
)
#: what a terminal is asked, and answers
_ANSWERS = {
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[c": b"\x1b[?62;c",
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
    b"\x1b[?u": b"\x1b[?0u",
}
#: what a program shows when it waits for a person, and the command that ends it
_READY = {"claude": "❯", "codex": "Ask Codex", "opencode": "lab-model", "gemini": "Type your message"}
_QUIT = {"claude": "/exit", "codex": "/quit", "opencode": "/exit"}
_CLEAR = {"claude": "/clear", "codex": "/new", "opencode": "/new"}
_COLUMNS, _LINES = 80, 40
_EMPTY_LINE = b"\x15"  #: Ctrl-U
_PATIENCE_SECONDS = 8.0


class Person:
    def __init__(self, driver: Driver, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._driver = driver
        self._terminal = terminal
        self._printed = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def screen(self) -> str:
        """Everything that was printed so far, without controls and spaces: some programs move the cursor instead."""
        return "".join(_CONTROLS.sub(b"", self._printed).decode(errors="replace").split())

    def sees(self, text: str) -> None:
        wanted = "".join(text.split())
        await_that(lambda: wanted in self.screen, lambda: f"{text!r} is not in: {self.screen[-2000:]}")

    def asks(self, prompt: str) -> None:
        """Types a prompt, and waits until the program shows the answer."""
        answer = f"{prompt}-answered"
        self._driver.lab.server.otherwise(Say(answer))
        self.types(prompt)
        self.sees(answer)

    def types(self, text: str) -> None:
        """Types a line, and presses Enter when the program shows it: some take keys that come together for a paste.

        A program that draws its screen anew may lose keys: what is not shown is typed again, on an empty line.
        """
        shown = "".join(text.split())
        before = self.screen.count(shown)
        deadline = time.monotonic() + LIMIT_SECONDS
        os.write(self._terminal, text.encode())
        while not self._comes(lambda: self.screen.count(shown) > before):
            assert time.monotonic() < deadline, f"not shown: {self.screen[-2000:]}"
            os.write(self._terminal, _EMPTY_LINE + text.encode())
        os.write(self._terminal, b"\r")

    def clears(self) -> None:
        """Begins a new conversation, as the program calls it."""
        self.types(_CLEAR[self._driver.provider])

    def quits(self) -> int:
        """Returns the exit code. A busy Gemini would send its own command to the model, so it gets Ctrl-C, twice."""
        self._leaves()
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self._comes(lambda: self.process.poll() is not None):
            assert time.monotonic() < deadline, f"still running: {self.screen[-2000:]}"
            self._leaves()
        self._reader.join(10)
        return self.process.wait()

    def _leaves(self) -> None:
        command = _QUIT.get(self._driver.provider)
        if command is not None:
            self.types(command)
            return
        os.write(self._terminal, b"\x03")
        self.sees("Press Ctrl+C again to exit")
        os.write(self._terminal, b"\x03")

    @staticmethod
    def _comes(condition: Callable[[], bool]) -> bool:
        """Whether it holds within the time that a busy program takes to draw its screen."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._terminal, 65536)
            except OSError:  # the program has ended
                return
            if not part:
                return
            self._printed += part
            for question, answer in _ANSWERS.items():
                if question in part:
                    os.write(self._terminal, answer)


@contextmanager
def at_terminal(driver: Driver, arguments: Sequence[str | Path]) -> Iterator[Person]:
    """A person who has started this, and sees the agent's program wait."""
    _know(driver.lab)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        arguments, cwd=driver.lab.workdir, stdin=its, stdout=its, stderr=its, env=driver.environment,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
    )  # fmt: skip
    os.close(its)
    try:
        person = Person(driver, process, ours)
        person.sees(_READY[driver.provider])
        yield person
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def _know(lab: Laboratory) -> None:
    """The agent knows the person and the directory already: it asks nothing at its start."""
    if lab.program.name.startswith("claude"):
        key = lab.environment["ANTHROPIC_API_KEY"]
        known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        settings = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []},
            "projects": {str(lab.workdir): known},
        }
        (lab.home / ".claude.json").write_text(json.dumps(settings))
    elif lab.program.name.startswith("codex"):
        config = lab.home / ".codex" / "config.toml"
        config.write_text(
            f'{config.read_text()}\n[projects."{lab.workdir}"]\ntrust_level = "trusted"\n'
            if "trust_level" not in config.read_text()
            else config.read_text()
        )
