"""Owns what is piped into a command that sends a prompt: whose input it is, how long it is waited for, and its text."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios

from holdfast.cli.output import tell
from holdfast.domain.inputs import MAX_TEXT, clean_text
from holdfast.errors import InvalidInput
from holdfast.processes.table import ancestors, has_same_stdin, name_of, program_that_writes

#: an open pipe that nothing is written to is given up after this time, as `claude -p` does
WAIT_SECONDS = 3.0
#: programs that start another one and leave their standard input to it
_WRAPPERS = frozenset({"nice", "nohup", "pipx", "setsid", "stdbuf", "strace", "time", "timeout", "uv", "uvx"})
#: a character takes at most four bytes
_MOST_BYTES = 4 * MAX_TEXT


def read_piped() -> str:
    """Returns what was piped in, or an empty text. Raises InvalidInput if it is longer than a prompt may be.

    Input that the program which started this one has, too, is left alone: a loop such as ``while read`` reads it.
    """
    if not _is_stream():
        return ""
    descriptor = sys.stdin.fileno()
    if _is_inherited():
        if _bytes_in(descriptor):
            tell(
                "standard input was not read: it belongs to the program that runs this command; "
                "to send it, too: --stdin"
            )
        return ""
    if not _has_input(descriptor):
        return ""
    data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidInput("standard input", f"is longer than {MAX_TEXT} characters")
    # a diff may hold text of any encoding
    text = clean_text(data.decode(errors="replace")).removesuffix("\n")
    return text if text.strip() else ""


def is_standard_input(path: str) -> bool:
    """Whether a file that is named is the standard input."""
    try:
        return sys.stdin is not None and os.path.samestat(os.stat(path), os.fstat(sys.stdin.fileno()))  # noqa: PTH116 - samestat takes the results
    except (OSError, ValueError):
        return False


def _is_stream() -> bool:
    """A pipe, a socket or a file; not a terminal, and not /dev/null."""
    try:
        if sys.stdin is None:
            return False
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _is_inherited() -> bool:
    """Whether a program that runs this one has the same standard input. Only Linux tells."""
    for process in ancestors():
        if not has_same_stdin(process.pid):
            return False
        if name_of(process.pid) not in _WRAPPERS:
            return True
    return False


def _bytes_in(descriptor: int) -> int:
    """How much could be read now, without reading it."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _has_input(descriptor: int) -> bool:
    if select.select([descriptor], [], [], WAIT_SECONDS)[0]:
        return True
    writer = _program_before(descriptor)
    if writer is not None:
        tell(f"waiting for standard input from {writer}")
        return True
    tell(
        f"standard input is open, and nothing came in {WAIT_SECONDS:.0f} s: continuing without it; "
        "</dev/null saves the time"
    )
    return False


def _program_before(descriptor: int) -> str | None:
    """The program before this one in a pipeline; it may take its time."""
    try:
        pipe = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - the name of a pipe is no path
    except OSError:
        return None
    return program_that_writes(pipe, os.getpgrp())
