"""Owns the end of the command: its exit codes, and each error as one line or one JSON object."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import click

from holdfast.cli.group import PROGRAM, cli
from holdfast.errors import (
    Busy,
    Conflict,
    HoldfastError,
    NotFound,
    SchemaTooNew,
    StoreUnavailable,
    Unauthenticated,
)
from holdfast.escape import one_line

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
WAITING_FOR_APPROVAL: Final = 5
DENIED: Final = 6  #: with --fail-on-denied
TIMED_OUT: Final = 124
INTERRUPTED: Final = 130

#: what is not found if a directory has no session that can be continued
SESSION_HERE: Final = "open session of this directory"

#: for another Holdfast that is asked for its version
_SECONDS_TO_ANSWER: Final = 10

_COMPLETE = f"_{PROGRAM.upper()}_COMPLETE"


class Problem(NamedTuple):
    code: str
    message: str
    exit_code: int
    details: Mapping[str, object] = MappingProxyType({})
    hint: str = ""  #: what to type next, for a person


#: by what is not found: the command that shows what there is
_SHOWN_BY: Final = {
    SESSION_HERE: "holdfast chat starts one, holdfast list shows those of other directories",
    "session": "holdfast list shows the sessions",
    "turn": "holdfast log ID shows the turns",
    "approval": "holdfast approvals lists the open ones",
    "token": "holdfast token list shows the tokens",
    "runtime": "holdfast runtimes shows those of this machine",
}
_INTERRUPTED: Final = Problem("interrupted", "interrupted", INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code. No exception leaves this function."""
    _show_warnings()
    code = 0
    try:
        code = _dispatch(list(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as exc:  # noqa: BLE001 - the last resort: a person never sees a traceback
        return code_of_error(exc, code, arguments)
    return code


def code_of_error(error: BaseException, code: int, arguments: Sequence[str]) -> int:
    """Reports what ended a command. ``code`` is the exit code that it had come to."""
    if isinstance(error, BrokenPipeError):
        # the reader closed the pipe: `holdfast list | head -1`
        _discard_output()
        return code
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return _stopped(error, as_json=_wants_json(arguments))
    return _report(_problem(error), as_json=_wants_json(arguments))


def _dispatch(arguments: list[str]) -> int:
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, PROGRAM, _COMPLETE, instruction)
    try:
        with cli.make_context(PROGRAM, arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    return 0


def _problem(error: BaseException) -> Problem:
    match error:
        case Busy() if error.holder is not None:
            from holdfast.processes.machine import describe_owner  # only needed here

            described = Busy(error.what, describe_owner(error.holder), error.until)
            return Problem(error.code, described.message, error.exit_code, error.details)
        case NotFound() if error.kind == SESSION_HERE:
            told = f"{error.id} has no open session to continue"
            return Problem(error.code, told, error.exit_code, error.details, _hint(error))
        case HoldfastError():
            return Problem(error.code, error.message, error.exit_code, error.details, _hint(error))
        case click.UsageError():
            return Problem("usage", _usage(error), USAGE)
        case click.ClickException():
            return Problem("usage", error.format_message(), error.exit_code)
        case click.Abort() if not isinstance(error.__cause__ or error.__context__, EOFError):
            return _INTERRUPTED
        case click.Abort():
            return Problem("aborted", "nothing was done", FAILED)
        case OSError():
            return Problem("os_error", _os_error(error), FAILED)
        case _:
            return _internal(error)


def _hint(error: HoldfastError) -> str:
    """What a person does next, where that is the same whoever raised the error."""
    match error:
        case NotFound(kind=kind):
            return _SHOWN_BY.get(kind, "")
        case Conflict() if "free" in error.details:
            return f"to continue the one that has it: holdfast resume {error.details['session_id']}"
        case SchemaTooNew():
            others = _other_versions()
            instead = f"use the other one on PATH, {others[0]}, or " if others else ""
            return f"{instead}update this one: pipx upgrade holdfast-sessions"
        case Unauthenticated():
            return "holdfast token create, on the server's machine, makes one"
        case StoreUnavailable(where=where) if (
            where.startswith("http") and "cannot be reached" in error.problem
        ):
            return "is holdfast serve running there? Check --url and HOLDFAST_URL"
        case _:
            return ""


def _other_versions() -> list[str]:
    """The Holdfasts on PATH whose version is another one, each with its version."""
    import subprocess

    from holdfast import __version__
    from holdfast.processes.process import programs_on_path

    found = []
    for program in programs_on_path(PROGRAM, os.environ):
        try:
            asked = subprocess.run(
                [program, "--version"],
                capture_output=True,
                text=True,
                timeout=_SECONDS_TO_ANSWER,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        name, _, version = asked.stdout.strip().partition(" ")
        if name == PROGRAM and version not in ("", __version__):
            found.append(f"{program} ({version})")
    return found


def _stopped(error: KeyboardInterrupt | SystemExit, *, as_json: bool) -> int:
    """Ends after a signal. For an interrupted turn the command has already printed its result: nothing is added."""
    from holdfast.engine.result import RunInterrupted

    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else INTERRUPTED
    if isinstance(error, RunInterrupted) or isinstance(error.__cause__, RunInterrupted):
        return code
    return _report(_INTERRUPTED._replace(exit_code=code), as_json=as_json)


def _usage(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx is not None else PROGRAM
    if (
        isinstance(error, click.MissingParameter)
        and error.param is not None
        and error.param.metavar in ("ID", "[ID]")
    ):
        return f"the ID of a session is missing; holdfast list shows them (see: {where} --help)"
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument) and error.ctx:
        return f"{error.param.make_metavar(error.ctx).strip('.')} is missing (see: {where} --help)"
    return f"{error.format_message().rstrip('.')} (see: {where} --help)"


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full"
    if error.filename is None:
        if isinstance(error, FileNotFoundError) and not _has_current_directory():
            return "the current directory was deleted or moved: change to one that exists, and try again"
        return f"cannot write the output: {what}"
    return f"{os.fsdecode(error.filename)}: {what}"


def _has_current_directory() -> bool:
    try:
        return bool(Path.cwd())
    except OSError:
        return False


def _internal(error: BaseException) -> Problem:
    if os.environ.get("HOLDFAST_DEBUG"):
        import traceback

        traceback.print_exception(error)
    message = f"internal error: {type(error).__name__}: {error}, please report; HOLDFAST_DEBUG=1 shows the traceback"
    return Problem("internal_error", message, FAILED)


def _report(problem: Problem, *, as_json: bool) -> int:
    # the output is imported where it is used: `holdfast --version` passes by and loads nothing of the domain
    if not (as_json and _printed_as_json(problem)) and sys.stderr is not None:
        try:
            from holdfast.cli import output

            hint = f"; {problem.hint}" if problem.hint else ""
            output.tell(f"{problem.message}{hint}")
        except (OSError, ValueError):  # standard error is closed, too
            pass
    _discard_output()
    return problem.exit_code


def _printed_as_json(problem: Problem) -> bool:
    from holdfast.cli import output

    error = {"code": problem.code, "message": problem.message, "details": dict(problem.details)}
    try:
        output.document({"error": error})
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON, even if they cannot be parsed."""
    before_dashes = list(arguments)
    if "--" in before_dashes:
        before_dashes = before_dashes[: before_dashes.index("--")]
    return "--json" in before_dashes or "--json-stream" in before_dashes


def _discard_output() -> None:
    """Keeps Python from trying again, at its end, to write what could not be written."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{PROGRAM}: {record.levelname.lower()}: {one_line(record.getMessage())}"


def _show_warnings() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
