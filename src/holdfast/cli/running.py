"""Owns the commands that run an agent here: run, resume, fork, chat and open."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN_OR_NONE, named_rights, rights_options, session_argument, text_argument
from holdfast.cli.command import Command, Invocation, command, pass_invocation
from holdfast.cli.exit_codes import FAILED, INTERRUPTED
from holdfast.cli.progress import Show, Shown, shown, stoppable, tell
from holdfast.domain.decisions import Decision
from holdfast.domain.events import AgentEvent, Noted
from holdfast.engine.documents import conversation_document, session_document
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.engine.turn_requests import RunKeywords
from holdfast.errors import HoldfastError, InvalidInput, SessionClosed

F = TypeVar("F", bound=Callable[..., Any])

_AFTER_DASHES = "holdfast.after_dashes"


class RunCommand(Command):
    """A command that passes the arguments after ``--`` to the provider."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_AFTER_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def invoke(self, ctx: click.Context) -> Any:
        """Ends with the exit code of a stopped turn, whose result was shown already."""
        try:
            return super().invoke(ctx)
        except RunInterrupted:
            ctx.exit(INTERRUPTED)
        except SystemExit as exc:
            ctx.exit(exc.code if isinstance(exc.code, int) else FAILED)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROVIDER ARGUMENTS]"]


def run_command(name: str, *examples: str) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=RunCommand, examples=examples)


def run_options(function: F) -> F:
    """The options of every command that runs a turn."""
    options = (
        click.option("--cwd", metavar="DIR", help="The directory to work in; by default the session's, else the current one."),
        click.option("--model", metavar="MODEL", help="The model; by default the session's, else the provider's."),
        click.option("--fresh", is_flag=True, help="Start a new provider session, with the whole context."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     help="Stop the turn after this time."),
        click.option("--provider-session-id", metavar="ID",
                     help="Use exactly this provider session, never another one."),
        rights_options,
        click.option("--json-stream", is_flag=True, help="Print every event as a JSON object on its own line."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def keywords(given: dict[str, Any], show: Shown) -> RunKeywords:
    """Returns the options of ``run_options`` as keywords of the library."""
    arguments = click.get_current_context().meta.get(_AFTER_DASHES, ())
    return RunKeywords(
        cwd=given["cwd"],
        model=given["model"],
        rights=named_rights(given, arguments),
        fresh=given["fresh"],
        provider_session_id=given["provider_session_id"],
        allow_wider_rights=given["allow_wider_rights"],
        timeout=given["timeout"],
        observer=show.observe,
    )


def show_style(run: Invocation, json_stream: bool) -> Show:
    if json_stream:
        return Show.STREAM
    return Show.DOCUMENT if run.json else Show.PEOPLE


@run_command(
    "run",
    "holdfast run --provider scripted --name plan 'plan the change'",
    "holdfast run --provider scripted --json 'say hello'",
)
@text_argument("prompt", required=False)
@click.option("--agent", metavar="NAME", help="The agent's role; by default the provider's name.")
@click.option(
    "--provider",
    metavar="NAME",
    help="The provider: claude, codex, opencode, gemini, scripted or a plugin's; by default the configured one.",
)
@click.option("--name", metavar="NAME", help="A name for the session.")
@click.option(
    "--job", metavar="FILE", help="Read prompt and options from a JSON file; flags take precedence."
)
@run_options
@pass_invocation
def run(run: Invocation, /, prompt: str | None, job: str | None, json_stream: bool, **given: Any) -> None:
    """Start a session: give an agent its first prompt.

    Prints the answer, and the command that continues the session, which stays open.
    """
    if job is not None:
        prompt, given = read_job(job, prompt, given)
    if prompt is None:
        raise click.UsageError("give a PROMPT, or a --job with one")
    with shown(show_style(run, json_stream)) as show:
        result = run.holdfast.run(
            prompt,
            agent=given["agent"],
            provider=given["provider"],
            name=given["name"],
            **keywords(given, show),
        )
        show.end(result)
    finish(result)


@run_command(
    "resume",
    "holdfast resume deploy 'apply it to staging'",
    "holdfast resume deploy --fresh 'what have we done so far?'",
)
@session_argument
@text_argument("prompt", required=False)
@click.option(
    "--provider", metavar="NAME", help="Continue with this provider; it gets the turns that it has not seen."
)
@run_options
@pass_invocation
def resume(run: Invocation, /, session: str, prompt: str | None, json_stream: bool, **given: Any) -> None:
    """Continue a session where it stopped.

    Resumes the agent's own session if that is safe; otherwise starts a new one with the whole context.
    Without a PROMPT, continues the turn that was stopped.
    """
    session_id = run.find(session)
    with shown(show_style(run, json_stream)) as show:
        result = run.holdfast.resume(session_id, prompt, provider=given["provider"], **keywords(given, show))
        show.end(result)
    finish(result)


@run_command(
    "fork",
    "holdfast fork deploy",
    "holdfast fork deploy --at 1 --name another-way",
    "holdfast fork deploy 'try it the other way'",
)
@session_argument
@text_argument("prompt", required=False)
@click.option(
    "--at",
    type=TURN_OR_NONE,
    metavar="TURN",
    help="The last turn to include; by default the last one that has ended.",
)
@click.option("--name", metavar="NAME", help="A name for the new session.")
@run_options
@pass_invocation
def fork(
    run: Invocation, /, session: str, prompt: str | None, at: int | None, name: str | None, json_stream: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Start a new session with the history of another.

    Without a PROMPT it only forks, and prints the new id. The other session does not change. The agent's own
    session is forked by the first turn, if that is safe.
    """
    parent = run.find(session)
    if prompt is not None:
        with shown(show_style(run, json_stream)) as show:
            result = run.holdfast.fork(parent, prompt, at=at, name=name, **keywords(given, show))
            show.end(result)
        finish(result)
        return
    child, notices = run.holdfast.branch(parent, at=at, name=name)
    if run.json:
        conversation = run.holdfast.store.get_conversation(child.conversation_id)
        state = run.holdfast.store.session_state(child.id)
        told = session_document(child, state, ()) | conversation_document(conversation)
        output.document(told | {"notices": list(notices)})
    else:
        output.say(child.id)
        for notice in notices:
            tell(notice)


def finish(result: RunResult) -> None:
    """Exits with a code that says how the turn ended."""
    if not result.ok:
        click.get_current_context().exit(result.exit_code)


# --- chat and open: a person's own conversation with an agent ---

#: words that end a chat, in upper or lower case
_LEAVE = ("quit", "exit")


@run_command(
    "chat",
    "printf 'plan the change\\nquit\\n' | holdfast chat --provider scripted",
    "printf 'try it the other way\\nquit\\n' | holdfast chat --fork deploy",
)
@click.argument("session", metavar="[ID]", required=False)
@click.option("--fork", "forks", is_flag=True, help="Fork the session, and talk to the fork.")
@click.option("--agent", metavar="NAME", help="The agent's role in a new session.")
@click.option(
    "--provider",
    metavar="NAME",
    help="The provider: claude, codex, opencode, gemini, scripted or a plugin's; by default the configured one.",
)
@run_options
@pass_invocation
def chat(run: Invocation, /, session: str | None, forks: bool, json_stream: bool, **given: Any) -> None:
    """Talk to an agent: each line is a turn.

    Ends at `quit`, `exit` or the end of the input. With an ID it continues that session; without one, the first
    line starts a new session. Leaving the chat pauses the session: nothing of it runs, and it can be continued
    at any time.
    """
    if forks and session is None:
        raise click.UsageError("--fork needs the ID of a session")
    talk = _Talk(run, None if session is None else str(run.find(session)), forks, json_stream, given)
    if talk.session_id is not None and not forks:
        _require_open(run, talk.session_id)
    result = None
    try:
        for line in _lines():
            result = talk.turn(line)
            if result.approval is not None:
                break  # no other turn of the session runs before the approval is answered
    finally:
        if talk.called is not None:
            tell(f"paused; continue with: holdfast chat {talk.called}")
    if result is not None:
        finish(result)


class _Talk:
    """The session of a chat; a new one is made with the first line."""

    def __init__(
        self, run: Invocation, session_id: str | None, forks: bool, json_stream: bool, given: dict[str, Any]
    ) -> None:
        self.session_id = session_id
        self.called: str | None = None  #: the name or id for the person, after the first turn
        self._run = run
        self._forks = forks
        self._style = show_style(run, json_stream)
        self._given = given

    def turn(self, line: str) -> RunResult:
        try:
            result = self._answered(line)
        except RunInterrupted as exc:
            result = exc.result
            self._settle(result)
            if not sys.stdin.isatty():
                raise
        except HoldfastError as exc:
            made = exc.details.get("session_id")
            if isinstance(made, str) and made != self.session_id and (self._forks or self.session_id is None):
                self.called = made
            raise
        self._settle(result)
        return result

    def _settle(self, result: RunResult) -> None:
        self.session_id, self.called, self._forks = result.session_id, result.called, False
        self._given["fresh"] = False  # --fresh is for the first turn only

    def _answered(self, line: str) -> RunResult:
        holdfast, given = self._run.holdfast, self._given
        with shown(Show.CHAT if self._style is Show.PEOPLE else self._style) as show:
            asked, provider = keywords(given, show), given["provider"]
            if self.session_id is None:
                result = holdfast.run(line, agent=given["agent"], provider=provider, **asked)
            elif self._forks:
                result = holdfast.fork(self.session_id, line, provider=provider, **asked)
            else:
                result = holdfast.resume(self.session_id, line, provider=provider, **asked)
            show.end(result)
        return result


def _require_open(run: Invocation, session_id: str) -> None:
    session = run.holdfast.session(session_id)
    if session.phase.is_final:
        raise SessionClosed(session.id, session.phase.value)


def _lines() -> Iterator[str]:
    if sys.stdin is None:
        raise InvalidInput("input", "standard input is closed")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() and output.is_terminal() else "")
        except EOFError:
            return
        except UnicodeDecodeError as exc:
            raise InvalidInput("input", f"contains invalid UTF-8 at position {exc.start}") from None
        if line.strip().lower() in _LEAVE:
            return
        if line.strip():
            yield line


@command("open", "holdfast open deploy </dev/null")
@session_argument
@pass_invocation
def open_session(run: Invocation, session: str) -> None:
    """Open the agent's own program on a session, in its directory.

    The session is locked while the program runs. The turns made there are added to the history afterwards.
    """
    session_id = run.find(session)

    def show(seen: Decision | AgentEvent) -> None:
        if isinstance(seen, Noted):
            tell(seen.text)

    with stoppable():
        opened = run.holdfast.open_native(session_id, show)
    turns = "1 turn" if opened.adopted == 1 else f"{opened.adopted} turns"
    tell(f"{turns} joined the history; continue with: holdfast resume {session}")
    click.get_current_context().exit(opened.exit_code)


# --- job files: the prompt and the options of a run as JSON ---

_LARGEST_JOB = 64 * 1024 * 1024
#: key of the file -> option; other tools use several names for the directory
_KEYS = {
    "agent": "agent",
    "provider": "provider",
    "name": "name",
    "model": "model",
    "work_dir": "cwd",
    "workspace_dir": "cwd",
    "cwd": "cwd",
    "timeout": "timeout",
    "permission_mode": "permission_mode",
    "allowed_tools": "allowed_tools",
    "extra_dirs": "extra_dirs",
    "approve_tools": "approve_tools",
    "fresh": "fresh",
    "provider_session_id": "provider_session_id",
}
#: the prompt, under either name
_PROMPTS = ("prompt", "objective")
#: JSON of any form, appended to the prompt
_APPENDED = ("inputs", "constraints")
_LISTS = ("allowed_tools", "extra_dirs", "approve_tools")
_NUMBERS = ("timeout",)
_FLAGS = ("fresh",)


def read_job(path: str, prompt: str | None, given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Returns the prompt and the options; what is given on the command line takes precedence. InvalidInput names a wrong key."""
    document = _job_document(path)
    merged = dict(given)
    for key, value in document.items():
        if key in _PROMPTS or key in _APPENDED:
            continue
        option = _KEYS.get(key)
        if option is None:
            known = ", ".join((*_PROMPTS, *_APPENDED, *_KEYS))
            raise InvalidInput("job", f"{path}: unknown key {key[:40]!r}; known keys: {known}")
        checked = _value(path, key, option, value)
        if not merged.get(option):
            merged[option] = _placed(path, option, checked)
    return _prompt(path, document, prompt), merged


def _prompt(path: str, document: dict[str, Any], given: str | None) -> str | None:
    """Returns the prompt with the inputs and constraints of the file appended."""
    asked = {key: _text(path, key, document[key]) for key in _PROMPTS if key in document}
    if len(asked) > 1:
        raise InvalidInput("job", f"{path}: prompt and objective mean the same: give one of them")
    prompt = given if given is not None else next(iter(asked.values()), None)
    if prompt is None:
        return None
    appended = [
        _appended(key, document[key]) for key in _APPENDED if document.get(key) not in (None, "", {}, [])
    ]
    return "\n\n".join([prompt, *appended])


def _appended(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"{key.capitalize()}:\n{text}"


def _job_document(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_JOB + 1)
    except OSError as exc:
        raise InvalidInput("job", f"{path}: {exc.strerror}") from exc
    if len(data) > _LARGEST_JOB:
        raise InvalidInput("job", f"{path} is larger than {_LARGEST_JOB} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("job", f"{path} is not JSON: {exc}") from None
    if not isinstance(document, dict):
        raise InvalidInput("job", f"{path} must hold a JSON object")
    return document


def _value(path: str, key: str, option: str, value: Any) -> Any:
    if option in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidInput("job", f"{path}: {key} must be a list of strings")
        return tuple(value)
    if option in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise InvalidInput("job", f"{path}: {key} must be a number above 0")
        return value
    if option in _FLAGS:
        if not isinstance(value, bool):
            raise InvalidInput("job", f"{path}: {key} must be true or false")
        return value
    return _text(path, key, value)


def _text(path: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput("job", f"{path}: {key} must be a string")
    return value


def _placed(path: str, option: str, value: Any) -> Any:
    if option == "cwd":
        return _relative_to_file(path, value)
    return tuple(_relative_to_file(path, one) for one in value) if option == "extra_dirs" else value


def _relative_to_file(path: str, directory: str) -> str:
    """Returns a directory named in a file, relative to the directory of the file."""
    return str(Path(path).resolve().parent / os.path.expanduser(directory))  # noqa: PTH111 - an unknown ~user stays as it is
