"""Owns running the installed command: in a pipe, on a terminal, and with less than a healthy machine has."""

import errno
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.loaded import at_start, loaded

#: the command as it was installed beside the Python that runs the tests
HOLDFAST = Path(sys.executable).with_name("holdfast")
#: every field of the published state schema, and the status beside them
STATE_FIELDS = {
    "agent_id",
    "agent_name",
    "purpose",
    "created_at",
    "last_updated",
    "phase",
    "status",
    "metadata",
    "resume_ready",
    "history",
    "error_count",
    "last_error",
    "finalized_at",
    "duration_seconds",
    "summary",
}

#: how long a command that was answered may say nothing
PATIENCE = 3.0

Argument = str | bytes | Path


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """The one JSON object that was printed."""
        document = json.loads(self.out)
        assert document["schema_version"] == 1
        return document

    def one_line_error(self) -> str:
        """What went wrong: a single line on standard error, and nothing that looks like a traceback."""
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        assert "internal error" not in self.err, self
        assert self.err.startswith("holdfast: "), self
        return self.err.removeprefix("holdfast: ").rstrip("\n")


def holdfast(
    *arguments: Argument,
    stdin: bytes | str = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Run it to its end in a pipe. A warning about something left open would show in ``err``."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    environ = environment(env)
    if before is None and at_start(environ) == at_start(environment()):
        done = loaded(environ).run([os.fsdecode(argument) for argument in arguments], given, environ, cwd)
    else:
        done = subprocess.run(
            [HOLDFAST, *arguments],
            input=given,
            capture_output=True,
            env=environ,
            cwd=cwd,
            preexec_fn=before,
            check=False,
            timeout=60,
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The test's own, without what the person's terminal and Python say."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR") and not name.startswith("PYTHON")
    }
    return {**kept, "PYTHONWARNINGS": "always::ResourceWarning", **(changes or {})}


def ok(*arguments: Argument, **options: Any) -> Ended:
    """The same for a command that has to succeed, without a word on standard error."""
    ended = holdfast(*arguments, **options)
    assert (ended.code, ended.err) == (0, ""), ended
    return ended


def create(*arguments: str) -> str:
    """A new session's id."""
    return ok("create", "--agent", "terraform-architect", *arguments).out.strip()


def on_terminal(
    *arguments: str,
    question: bytes = b"",
    keys: bytes = b"",
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    program: Path = HOLDFAST,
) -> Ended:
    """The same on a terminal of its own, where all output is in ``out``; ``keys`` are the answer to ``question``."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [program, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment({"TERM": "xterm-256color", **(env or {})}),
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call, and no threads here
    )
    os.close(its)
    try:
        printed = _read(ours, until=question)
        if keys:
            os.write(ours, keys)
            printed += _read(ours, keys=keys)
    finally:
        os.close(ours)
    return Ended(process.wait(60), printed.decode().replace("\r\n", "\n"), "")


def _take_terminal() -> None:
    """Make it the controlling terminal, so that Ctrl-C on it is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int, *, until: bytes = b"", keys: bytes = b"") -> bytes:
    """Up to a text, or to the end. Keys that meet silence are pressed again.

    A Ctrl-C that comes in the moment before Python waits for a line is only noticed with the next key.
    """
    printed = b""
    while not until or until not in printed:
        if keys and not select.select([descriptor], [], [], PATIENCE)[0]:
            os.write(descriptor, keys)
            continue
        try:
            part = os.read(descriptor, 65536)
        except OSError as exc:  # Linux says so when the last one on the other side has gone
            if exc.errno != errno.EIO:
                raise
            part = b""
        if not part:
            break
        printed += part
    return printed


def without_privileges() -> None:
    """In a child: file modes count for root too.

    Root passes them by two capabilities. A program that is started without them in its bounding set
    does not get them back.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        return
    import ctypes

    drop, override, search = 24, 1, 2  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for capability in (override, search):
        if prctl(drop, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def default_database() -> Path:
    return Path(os.environ["HOME"]) / ".local/share/holdfast/holdfast.db"
