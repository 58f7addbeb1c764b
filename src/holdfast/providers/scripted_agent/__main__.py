"""Owns the scripted agent's command line: which session, which rights, one prompt or many."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.providers.scripted_agent.directives import explain_directives, pending_steps, read_steps
from holdfast.providers.scripted_agent.memory import (
    Session,
    agent_home,
    read_content,
    session_path,
    take_lock,
)
from holdfast.providers.scripted_agent.turn import (
    PERMISSION_MODES,
    Event,
    Profile,
    Stop,
    Turn,
    failure,
    pending_call,
)

PROGRAM = "holdfast-scripted-agent"
VERSION = "1.0"
_EPILOG = f"""\
A line of the prompt that is one of these is done, in order; a prompt without any is answered with what
was understood. Only the current request counts: what follows the first line "[holdfast] turn N: ...",
or the whole prompt when there is none.

{explain_directives()}

Sessions are kept in $SCRIPTED_HOME, or ~/.scripted-agent.
"""


def main() -> int:
    # the parent may ignore these signals, as shells do for background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    args = _parser().parse_args()
    emit = _tell if args.interactive else _write
    try:
        _work(args, emit)
    except KeyboardInterrupt:
        return 0
    except Stop as stop:
        return _stopped(stop, emit)
    except OSError as problem:
        return _stopped(failure(str(problem), "io", f"Error: {problem}"), emit)
    return 0


def _work(args: argparse.Namespace, emit: Callable[[Event], None]) -> None:
    folders = tuple(Path(folder).resolve() for folder in (".", *args.add_dir))
    profile = Profile(args.model, args.permission_mode, tuple(args.allow_tool), folders, args.gate)
    session = _open(args, agent_home(os.environ))
    for prompt in _prompts(args):
        pending = None if prompt else pending_call(session)
        if pending is not None:
            asked = next(entry["text"] for entry in session.entries if entry.get("id") == pending.key)
            Turn(session, asked, profile, emit).go_on(pending, pending_steps(pending))
        elif prompt:
            Turn(session, prompt, profile, emit).run(read_steps(prompt, session.prompts))
        else:
            raise Stop(1, "Error: a prompt must be given, unless the session ended with a call that waits")


def _open(args: argparse.Namespace, home: Path) -> Session:
    if args.session_id and args.resume and not args.fork:
        raise Stop(1, "Error: --session-id can only be used with --resume if --fork is also specified.")
    if args.fork and not args.resume:
        raise Stop(1, "Error: --fork needs --resume.")
    known = _find(home, args.resume) if args.resume else b""
    session_id = args.session_id or (args.resume if not args.fork else None) or str(uuid.uuid4())
    path = session_path(home, session_id)
    if path is None:
        raise Stop(1, "Error: Invalid session ID.")
    is_new = args.fork or not args.resume
    if is_new and path.exists():
        raise Stop(1, f"Error: Session ID {session_id} is already in use.")
    if not args.no_lock and not take_lock(path):
        raise Stop(1, f"Error: session {session_id} already has an active writer")
    return Session(session_id, path, known if args.fork else b"")


def _find(home: Path, session_id: str) -> bytes:
    path = session_path(home, session_id)
    if path is None or not Session(session_id, path).prompts:
        words = f"No conversation found with session ID: {session_id}"
        raise failure(words, "session_not_found", words)
    return read_content(path)


def _prompts(args: argparse.Namespace) -> Iterator[str]:
    if not args.interactive:
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace") if args.prompt is None else args.prompt
        if not prompt.strip() and not args.resume:
            raise Stop(1, "Error: a prompt must be given, as an argument or on standard input")
        yield prompt.strip() and prompt
        return
    if args.prompt is not None:
        yield args.prompt
    while (line := _ask()) not in ("", "quit\n", "exit\n"):
        if line.strip():
            yield line.rstrip("\n")


def _ask() -> str:
    if sys.stdin.isatty():
        sys.stdout.write("> ")
        sys.stdout.flush()
    return sys.stdin.readline()


def _write(event: Event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _tell(event: Event) -> None:
    """For a person: prints the answer alone."""
    match event["type"]:
        case "text":
            sys.stdout.write(event["text"])
        case "end":
            sys.stdout.write("\n" if event["ok"] else f"error: {event['error']}\n")
    sys.stdout.flush()


def _stopped(stop: Stop, emit: Callable[[Event], None]) -> int:
    if stop.end is not None:
        emit(stop.end)
    if stop.words:
        sys.stderr.write(stop.words + "\n")
    return stop.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="A coding agent without a model: it does what its prompt says.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"{PROGRAM} {VERSION}")
    add("--session-id", metavar="ID", help="the id of the new session; refused if it is in use")
    add("--resume", metavar="ID", help="continue this session")
    add("--fork", action="store_true", help="continue in a copy of it")
    add("--model", metavar="M", help="is told, and nothing else")
    add("--permission-mode", choices=PERMISSION_MODES, default="default", help="plan lets no tool run")
    add("--allow-tool", metavar="T", action="append", default=[], help="only such tools run (repeatable)")
    add("--add-dir", metavar="D", action="append", default=[], help="files may be written there (repeatable)")
    add("--gate", metavar="COMMAND", help="a hook that is asked before each tool call, and may defer it")
    add("--no-lock", action="store_true", help="let others write to the session at the same time")
    add("--interactive", action="store_true", help="one prompt a line, answered in plain text, until quit")
    add("prompt", nargs="?", help="standard input if it is not given")
    return parser


if __name__ == "__main__":
    sys.exit(main())
