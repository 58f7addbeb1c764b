"""Owns the commands that run an agent here: run, resume, fork and open."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli import output
from holdfast.cli.arguments import (
    TURN_OR_NONE,
    complete_session,
    model_option,
    named_rights,
    provider_option,
    rights_options,
    session_argument,
    text_argument,
)
from holdfast.cli.asking import accept_wider, is_interactive
from holdfast.cli.command import Command, Invocation, pass_invocation
from holdfast.cli.exit_codes import DENIED, FAILED, INTERRUPTED, NOT_FOUND
from holdfast.cli.native import begin_session
from holdfast.cli.output import tell
from holdfast.cli.progress import Show, Shown, shown, stoppable
from holdfast.domain.events import Noted
from holdfast.domain.ids import SessionId
from holdfast.engine.documents import conversation_document, session_document
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.engine.turn_requests import RunKeywords
from holdfast.errors import InvalidInput

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
        model_option,
        click.option("--fresh", is_flag=True, help="Start a new provider session, with the whole context."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     help="Stop the turn after this time."),
        click.option("--provider-session-id", metavar="ID",
                     help="Use exactly this provider session, never another one."),
        rights_options,
        click.option("--fail-on-denied", is_flag=True,
                     help="Exit with 6 if the agent was not allowed to use a tool."),
        click.option("--json-stream", is_flag=True, help="Print every event as a JSON object on its own line."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


stdin_option = click.option(
    "--stdin",
    is_flag=True,
    help="Send standard input to its end, also in a script or a loop, whose input it may be.",
)


def after_dashes() -> tuple[str, ...]:
    """The arguments for the provider."""
    found: tuple[str, ...] = click.get_current_context().meta.get(_AFTER_DASHES, ())
    return found


def keywords(given: dict[str, Any], show: Shown) -> RunKeywords:
    """Returns the options of ``run_options`` as keywords of the library."""
    return RunKeywords(
        cwd=given["cwd"],
        model=given["model"],
        rights=named_rights(given, after_dashes()),
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
    "git diff | holdfast run --provider scripted 'review this'",
)
@text_argument("prompt", required=False)
@click.option("--agent", metavar="NAME", help="The agent's role; by default the provider's name.")
@provider_option(
    help="The provider: claude, codex, opencode, gemini, scripted or a plugin's; by default the configured one."
)
@click.option("-n", "--name", metavar="NAME", help="A name for the session.")
@click.option(
    "--job", metavar="FILE", help="Read prompt and options from a JSON file; flags take precedence."
)
@stdin_option
@run_options
@pass_invocation
def run(run: Invocation, /, prompt: str | None, job: str | None, json_stream: bool, **given: Any) -> None:
    """Start a session: give an agent its first prompt.

    Prints the answer, and the command that continues the session, which stays open. What is piped in is sent after
    the PROMPT.
    """
    stdin = given.pop("stdin")
    if job is not None:
        prompt, given = read_job(job, prompt, given)
    prompt = run.with_piped(prompt, job, stdin=stdin)
    if prompt is None:
        raise click.UsageError("give a PROMPT, or a --job with one, or pipe one in")
    accept_wider(run, given, after_dashes())
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
    "holdfast resume --last 'and now the tests'",
)
@click.argument("session", metavar="[ID]", required=False, shell_complete=complete_session)
@text_argument("prompt", required=False)
@click.option("-c", "--last", is_flag=True, help="The open session of this directory that was active last.")
@provider_option(help="Continue with this provider; it gets the turns that it has not seen.")
@stdin_option
@run_options
@pass_invocation
def resume(
    run: Invocation, /, session: str | None, prompt: str | None, last: bool, json_stream: bool, **given: Any
) -> None:
    """Continue a session where it stopped.

    Resumes the agent's own session if that is safe; otherwise starts a new one with the whole context.
    What is piped in is sent after the PROMPT. Without either, continues the turn that was stopped; if none was, a
    terminal becomes a chat.

    Without an ID, a terminal shows the sessions of this directory to choose from. --last takes the one that was
    active last, and then the first argument is the PROMPT. Exit code 3 if there is none.
    """
    if last:
        session, prompt = _last(run, session, prompt)
    style = show_style(run, json_stream)
    talks = prompt is None and style is Show.PEOPLE and is_interactive() and not given["stdin"]
    if session is None:
        if not talks:
            raise click.MissingParameter(param=_parameter("session"))
        session = _picked(run)
    session_id = run.find(session)
    if talks and _nothing_was_stopped(run, session_id):
        from holdfast.cli.chat import talk

        talk(run, session_id, forks=False, json_stream=json_stream, given=given)
        return
    prompt = run.with_piped(prompt, stdin=given.pop("stdin"))
    accept_wider(run, given, after_dashes(), session_id)
    with shown(style) as show:
        result = run.holdfast.resume(session_id, prompt, provider=given["provider"], **keywords(given, show))
        show.end(result)
    finish(result)


def _parameter(name: str) -> click.Parameter:
    return next(param for param in click.get_current_context().command.params if param.name == name)


def _last(run: Invocation, first: str | None, second: str | None) -> tuple[str, str | None]:
    """The session, and the prompt: with --last, the first argument is the prompt."""
    from holdfast.cli.picker import newest_here

    if second is not None:
        raise click.UsageError("--last takes no ID: give only the PROMPT")
    prompt = run.read_input("prompt") if first == "-" else first
    session_id = newest_here(run)
    return session_id, prompt


def _picked(run: Invocation) -> str:
    """The session that the person chose to continue; ends the command after anything else."""
    from holdfast.cli.picker import Action, perform, pick

    picked = pick(run, if_none=NOT_FOUND)
    if picked.action is not Action.CONTINUE:
        perform(picked)
        click.get_current_context().exit(0)
    return picked.called


def _nothing_was_stopped(run: Invocation, session_id: SessionId) -> bool:
    run.holdfast.take_over(session_id)
    return run.holdfast.stopped_turn(session_id) is None


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
@click.option("-n", "--name", metavar="NAME", help="A name for the new session.")
@stdin_option
@run_options
@pass_invocation
def fork(
    run: Invocation, /, session: str, prompt: str | None, at: int | None, name: str | None, json_stream: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Start a new session with the history of another.

    What is piped in is sent after the PROMPT; without either it only forks, and prints the new id. The other session
    does not change. The agent's own session is forked by the first turn, if that is safe.
    """
    parent = run.find(session)
    prompt = run.with_piped(prompt, stdin=given.pop("stdin"))
    if prompt is not None:
        accept_wider(run, given, after_dashes(), parent)
        with shown(show_style(run, json_stream)) as show:
            result = run.holdfast.fork(parent, prompt, at=at, name=name, **keywords(given, show))
            show.end(result)
        finish(result)
        return
    child, notices = run.holdfast.branch(parent, at=at, name=name)
    if run.json:
        conversation = run.holdfast.store.get_conversation(child.conversation_id)
        state = run.holdfast.session_state(child.id)
        told = session_document(child, state, ()) | conversation_document(conversation)
        output.document(told | {"notices": list(notices)})
    else:
        output.say(child.id)
        for notice in notices:
            tell(notice)


def finish(result: RunResult) -> None:
    """Exits with a code that says how the turn ended."""
    context = click.get_current_context()
    if not result.ok:
        context.exit(result.exit_code)
    if result.denied and context.params.get("fail_on_denied"):
        context.exit(DENIED)


# --- open: the agent's own program ---


@run_command(
    "open",
    "holdfast open deploy </dev/null",
    "holdfast open --new --provider scripted --name talk </dev/null",
)
@click.argument("session", metavar="[ID]", required=False, shell_complete=complete_session)
@click.option(
    "--new", "is_new", is_flag=True, help="Begin a new session; the arguments after -- go to the program."
)
@click.option(
    "-p", "--provider", metavar="NAME", help="The provider of a new session; by default the configured one."
)
@click.option("--agent", metavar="NAME", help="The agent's role in a new session.")
@click.option("-n", "--name", metavar="NAME", help="A name for a new session.")
@click.option("--cwd", metavar="DIR", help="The directory of a new session; by default the current one.")
@pass_invocation
def open_session(run: Invocation, /, session: str | None, is_new: bool, **given: Any) -> None:
    """Open the agent's own program on a session, in its directory.

    The session is locked while the program runs. The turns made there are added to the history afterwards.
    With --json, an object with the number of these turns follows what the program printed. `holdfast claude`,
    `codex`, `opencode` and `gemini` are short for --new with that provider.
    """
    if is_new:
        if session is not None:
            raise click.UsageError("a new session has no ID yet: give either ID or --new")
        begin_session(run, arguments=after_dashes(), **given)
        return
    if session is None:
        raise click.UsageError("give the ID of a session, or --new for a new one")
    if after_dashes() or any(value is not None for value in given.values()):
        raise click.UsageError("--provider, --agent, --name, --cwd and arguments after -- are for --new")
    session_id = run.find(session)

    def show(seen: object) -> None:
        if isinstance(seen, Noted):
            tell(seen.text)

    with stoppable():
        opened = run.holdfast.open_native(session_id, show)
    if run.json:
        output.document({"session_id": session_id, "turns": opened.adopted, "exit_code": opened.exit_code})
    else:
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
