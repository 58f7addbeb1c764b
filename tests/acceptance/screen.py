"""Owns a terminal in memory: the installed command on a pty, what a person sees of it, and the keys that they press."""

import errno
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

from tests.acceptance.command import HOLDFAST, environment

#: how long a person would wait for something to show, on a machine that is busy with other tests
LIMIT_SECONDS = 30.0
CTRL_C, CTRL_D, ENTER, ESCAPE, TAB = "\x03", "\x04", "\r", "\x1b", "\t"
UP, DOWN = "\x1b[A", "\x1b[B"


def ctrl(letter: str) -> str:
    return chr(ord(letter.upper()) - 64)


class _Answering(pyte.HistoryScreen):
    """Answers a program that asks where the cursor is, as terminals do."""

    def __init__(self, columns: int, lines: int, answer: Callable[[str], None]) -> None:
        super().__init__(columns, lines, history=1000)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data)


class Terminal:
    """One run of the command. ``shown`` is the screen, without the empty end of each line."""

    def __init__(
        self, process: subprocess.Popen[bytes], ours: int, its: int, columns: int, lines: int
    ) -> None:
        self.process = process
        self.printed = b""
        self._ours, self._its = ours, its
        self._before = termios.tcgetattr(its)
        self._screen = _Answering(columns, lines, self.press)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n") + "\n"

    @property
    def row(self) -> str:
        """The line that the cursor is on."""
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self._ours, key.encode())

    def wait_for(self, wanted: str | Callable[[str], bool]) -> str:
        """Returns the screen as soon as it has the text, or fits."""
        fits = (lambda shown: wanted in shown) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + LIMIT_SECONDS
        while not fits(self.shown):
            assert self._read(deadline), f"{wanted} did not show before the end, or in time:\n{self.shown}"
        return self.shown

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        _set_size(self._its, columns, lines)  # the kernel tells the program

    def end(self) -> int:
        """Returns the exit code. The terminal must be as it was: it echoes, and lines can be typed."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.process.poll() is None or select.select([self._ours], [], [], 0)[0]:
            self._read(min(deadline, time.monotonic() + 0.05))
            assert time.monotonic() < deadline, f"it does not end:\n{self.shown}"
        after = termios.tcgetattr(self._its)
        assert after == self._before, "the terminal is not as it was"
        for on, off in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?2004h", b"\x1b[?2004l")):
            assert self.printed.rfind(off) >= self.printed.rfind(on), f"{on!r} is still on"
        assert self.printed.rfind(b"\x1b[?25h") >= self.printed.rfind(b"\x1b[?25l"), "the cursor is hidden"
        return self.process.returncode

    def _read(self, deadline: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            part = os.read(self._ours, 65536)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            return False
        self.printed += part
        self._stream.feed(part)
        return True


@contextmanager
def terminal(
    *arguments: str,
    program: str | Path = HOLDFAST,
    columns: int = 80,
    lines: int = 24,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Terminal]:
    """The command, or another program, on a terminal of its own; killed if the test ends before it."""
    ours, its = pty.openpty()
    _set_size(its, columns, lines)
    process = subprocess.Popen(
        [program, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment({"TERM": "xterm-256color", **(env or {})}),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call, and no threads here
        **options,
    )
    try:
        yield Terminal(process, ours, its, columns, lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(its)
        os.close(ours)


def _set_size(descriptor: int, columns: int, lines: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


# --- golden text: what a screen looked like when somebody looked at it ---

SCREENS = Path(__file__).with_name("screens")
#: set it to write the screens anew; look at what changed
WRITE = "HOLDFAST_TEST_WRITE_SCREENS"
#: what differs from run to run, and what stands for it
_VARIES = (
    (re.compile(r"agent-\d{8}-\d{6}-[0-9a-f]{8}"), "agent-20260108-180530-6a13a176"),
    (re.compile(r"^(. )?[0-9a-f]{8}(?=  )", re.MULTILINE), r"\g<1>6a13a176"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "6a13a176-0000-4000-8000-000000000000"),
    (re.compile(r"conv-\d{8}-\d{6}-[0-9a-f]{8}"), "conv-20260108-180530-6a13a176"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-01-08 18:05:30"),
    (re.compile(r"\b\d+\.\d s\b"), "0.1 s"),
    (re.compile(r"\b\d+s( ago)?\b"), r"0s\1"),
)  # fmt: skip


def without_what_varies(shown: str) -> str:
    for varies, instead in _VARIES:
        shown = varies.sub(instead, shown)
    return shown


def wait_for_screen(terminal: Terminal, name: str, wanted: str) -> None:
    """Waits until the screen has the text, and then until it is drawn as ``screens/NAME.txt`` keeps it."""
    shown = terminal.wait_for(wanted)
    kept = SCREENS / f"{name}.txt"
    if os.environ.get(WRITE):
        SCREENS.mkdir(exist_ok=True)
        kept.write_text(without_what_varies(shown), encoding="utf-8")
    expected = kept.read_text("utf-8")
    terminal.wait_for(lambda shown: without_what_varies(shown) == expected)
