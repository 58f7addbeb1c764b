"""Owns the commands that run an agent once: run, resume and fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN_OR_NONE, named_rights, rights_options, session_argument, text_argument
from holdfast.cli.command import Command, Invocation, pass_invocation
from holdfast.cli.exit_codes import INTERRUPTED
from holdfast.cli.jobs import read_job
from holdfast.cli.progress import Show, Shown, shown, tell
from holdfast.engine.documents import conversation_document, session_document
from holdfast.engine.keywords import RunKeywords
from holdfast.engine.result import RunInterrupted, RunResult

F = TypeVar("F", bound=Callable[..., Any])

_BEHIND_DASHES = "holdfast.behind_dashes"


class RunCommand(Command):
    """A command behind whose ``--`` stand arguments for the provider."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_BEHIND_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def invoke(self, ctx: click.Context) -> Any:
        """Whoever stopped it was shown by then what it came to."""
        try:
            return super().invoke(ctx)
        except RunInterrupted:
            ctx.exit(INTERRUPTED)
        except SystemExit as exc:
            ctx.exit(exc.code if isinstance(exc.code, int) else 1)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROVIDER ARGUMENTS]"]


def run_command(name: str, *examples: str) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=RunCommand, examples=examples)


def run_options(function: F) -> F:
    """How a turn is run; the same for every command that runs one."""
    options = (
        click.option("--cwd", metavar="DIR", help="Work here; by default where the session did, else here."),
        click.option("--model", metavar="MODEL", help="The model; by default the session's, else the provider's."),
        click.option("--fresh", is_flag=True, help="Start a new provider session, with the whole context."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     help="End the turn after this long."),
        click.option("--provider-session-id", metavar="ID",
                     help="Use this very session of the provider; it is never replaced by another."),
        rights_options,
        click.option("--json-stream", is_flag=True, help="Print every event as a JSON object of its own."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def keywords(given: dict[str, Any], show: Shown) -> RunKeywords:
    """The options of ``run_options`` as the library takes them."""
    arguments = click.get_current_context().meta.get(_BEHIND_DASHES, ())
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
@click.option("--agent", metavar="NAME", help="Who works: a role; by default the provider's name.")
@click.option("--provider", metavar="NAME", help="claude, codex, opencode, gemini or scripted.")
@click.option("--name", metavar="NAME", help="A name for the session.")
@click.option("--job", metavar="FILE", help="Take prompt and options from a JSON file; flags win over it.")
@run_options
@pass_invocation
def run(run: Invocation, /, prompt: str | None, job: str | None, json_stream: bool, **given: Any) -> None:
    """Begin a session: give an agent its first prompt.

    Prints its answer, and how to go on. The session stays open.
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
@click.option("--provider", metavar="NAME", help="Go on with this provider; it is told what it has not seen.")
@run_options
@pass_invocation
def resume(run: Invocation, /, session: str, prompt: str | None, json_stream: bool, **given: Any) -> None:
    """Go on with a session.

    The agent's own session is resumed when that is safe; otherwise it starts fresh with the whole context.
    Without a PROMPT the turn that was stopped goes on.
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
    help="The last turn to take along; by default all that have ended.",
)
@click.option("--name", metavar="NAME", help="A name for the new session.")
@run_options
@pass_invocation
def fork(
    run: Invocation, /, session: str, prompt: str | None, at: int | None, name: str | None, json_stream: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Begin a new session with the history of another.

    Without a PROMPT it only forks, and prints the new id. The other session stays as it is. Its agent's own
    session is forked at the first run, where that is safe.
    """
    parent = run.find(session)
    if prompt is not None:
        with shown(show_style(run, json_stream)) as show:
            result = run.holdfast.fork(parent, prompt, at=at, name=name, **keywords(given, show))
            show.end(result)
        finish(result)
        return
    notices = run.holdfast.adopt(parent)
    child = run.holdfast.fork(parent, at=at, name=name)
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
    """The exit code of a command says how its turn ended."""
    if not result.ok:
        click.get_current_context().exit(result.exit_code)
