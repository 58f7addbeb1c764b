"""Owns the pager: shows text that is longer than the screen in the user's own pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import IO

from holdfast.cli import output
from holdfast.processes.process import find_program

_PLAIN = ("", "cat")  #: a PAGER that says: no pager


def page(texts: Iterable[str]) -> None:
    """Shows the texts on the terminal, in a pager as soon as they are longer than the screen.

    Reads ``texts`` only as far as the pager reads, and stops when the pager has ended.
    """
    command = _command()
    screen = shutil.get_terminal_size()
    shown: list[str] = []
    rest = iter(texts)
    height = 0
    for text in rest:
        shown.append(text)
        height += sum(1 + len(line) // screen.columns for line in text.split("\n")[:-1])
        if command and height >= screen.lines:
            _run(command, shown, rest)
            return
        if not command:
            output.write(shown.pop())
    output.write("".join(shown))


def _command() -> list[str]:
    """The pager's command line; empty if the user wants no pager, or has none."""
    wanted = os.environ.get("PAGER", "less").strip()
    if wanted in _PLAIN or os.environ.get("TERM", "dumb") == "dumb":
        return []
    try:
        command = shlex.split(wanted)
    except ValueError:  # a quotation mark is missing
        return []
    program = find_program(command[0], os.environ) if command else None
    return [] if program is None else [program, *command[1:]]


def _run(command: list[str], shown: list[str], rest: Iterable[str]) -> None:
    # R: colours pass, and no other command. F and X: a short text stays on the screen
    environ = {"LESS": "FRX", "LV": "-c"} | dict(os.environ)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.flush()
    before = signal.getsignal(signal.SIGINT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env=environ, text=True, encoding=encoding, errors="backslashreplace"
    ) as pager:
        # Ctrl-C is a command of the pager: it ends a search, not the pager
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            assert pager.stdin is not None
            _feed(pager.stdin, shown, rest)
        finally:
            pager.wait()
            signal.signal(signal.SIGINT, before)


def _feed(stream: IO[str], shown: list[str], rest: Iterable[str]) -> None:
    try:
        stream.write("".join(shown))
        for text in rest:
            stream.write(text)
        stream.close()
    except BrokenPipeError:
        pass  # the reader has seen enough
