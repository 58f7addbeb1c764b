"""Owns asking git for the state of a work directory, without running any program that the directory names.

A repository's own settings can name programs: monitors, hooks, filters, diff drivers, signature checkers,
transports. All of them are switched off, so that a packet can be made in a directory that is not trusted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer

from holdfast.domain.redaction import redact_text
from holdfast.domain.telling.packet import GroundTruth
from holdfast.domain.telling.quoting import on_one_line, shortened
from holdfast.processes.process import find_program

_SECONDS = 5.0  #: for each command
_MOST_BYTES = 1_000_000
_MOST_CHARACTERS = 4_000
_ON_A_LINE = 200

_OFF = {
    "core.fsmonitor": "",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "log.showSignature": "false",
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # otherwise a partial clone would fetch missing objects
    "LC_ALL": "C",
}
_FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\.")
# Without submodules: in a submodule its own settings would count.
_STATUS = ("status", "--porcelain", "--branch", "--no-ahead-behind", "--ignore-submodules=all")
_HEAD = ("log", "-1", "--no-color", "--format=%h %s")
_DIFF = (
    "diff", "HEAD", "--stat", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--",
)  # fmt: skip


class _Unanswered(Exception):
    """Git has no answer; the text says why."""


def ground_truth(work_dir: str | None) -> GroundTruth:
    """Never raises: if git has no answer, ``problem`` says why."""
    if work_dir is None:
        return GroundTruth(None, problem="The directory of the work is not known.")
    git = find_program("git", os.environ)
    if not Path(work_dir).is_dir():
        return GroundTruth(work_dir, problem="There is no such directory on this machine.")
    if git is None:
        return GroundTruth(work_dir, problem="Git is not installed here.")
    try:
        return _Repository(git, work_dir).truth()
    except _Unanswered as exc:
        return GroundTruth(work_dir, problem=on_one_line(redact_text(str(exc)), _ON_A_LINE))


class _Repository:
    def __init__(self, git: str, work_dir: str) -> None:
        self._git = git
        self._work_dir = work_dir
        self._off = dict(_OFF)

    def truth(self) -> GroundTruth:
        self._off |= dict.fromkeys(self._filters(), "")
        lines = self._ask(*_STATUS).splitlines()
        branch = next((line.removeprefix("## ") for line in lines if line.startswith("## ")), "")
        status = "\n".join(line for line in lines if not line.startswith("## "))
        try:
            head = self._ask(*_HEAD).strip()
        except _Unanswered:
            return _told(self._work_dir, branch, "no commit yet", status, "")
        return _told(self._work_dir, branch, head, status, self._ask(*_DIFF))

    def _filters(self) -> Iterator[str]:
        """The settings of every configured filter; an empty value switches the filter off."""
        answer = self._ask(*_FILTERS, fine=(0, 1))  # 1: there is no filter
        if len(answer) > _MOST_BYTES:
            raise _Unanswered("Too many filters are configured there to switch them all off.")
        for key in answer.split("\0"):
            driver, _, name = key.rpartition(".")
            if name in ("clean", "smudge", "process", "required"):
                yield key
                yield f"{driver}.process"

    def _ask(self, *question: str, fine: tuple[int, ...] = (0,)) -> str:
        try:
            process = subprocess.Popen(
                [self._git, "--no-pager", *question],
                cwd=self._work_dir,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise _Unanswered(f"Git cannot be run there: {exc.strerror}.") from exc
        output = _output(process)
        text = output.decode("utf-8", "replace")
        if len(output) <= _MOST_BYTES and process.returncode not in fine:
            raise _Unanswered(text or f"Git failed (git {question[0]}).")
        return text

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        settings = {"GIT_CONFIG_COUNT": str(len(self._off))}
        for number, (key, value) in enumerate(self._off.items()):
            settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return inherited | _ENVIRONMENT | settings


def _output(process: subprocess.Popen[bytes]) -> bytes:
    """What git prints, up to ``_MOST_BYTES`` and one byte more. If it runs longer or prints more, it is ended."""
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        _end(process)

    timer = Timer(_SECONDS, give_up)
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            output = process.stdout.read(_MOST_BYTES + 1)
            if len(output) > _MOST_BYTES:
                _end(process)
    finally:
        timer.cancel()
    if late:
        raise _Unanswered(f"Git did not answer within {_SECONDS:g} seconds.")
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _told(work_dir: str, branch: str, head: str, status: str, diff_stat: str) -> GroundTruth:
    return GroundTruth(
        work_dir,
        on_one_line(redact_text(branch), _ON_A_LINE),
        on_one_line(redact_text(head), _ON_A_LINE),
        shortened(redact_text(status), _MOST_CHARACTERS),
        shortened(redact_text(diff_stat.rstrip()), _MOST_CHARACTERS),
    )
