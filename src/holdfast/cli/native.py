"""Owns the commands that begin a session in an agent's own program, one for each agent."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.command import Command, Invocation, pass_invocation
from holdfast.cli.output import tell
from holdfast.cli.progress import stoppable
from holdfast.engine.running.programs import Opened

_ARGUMENTS = "holdfast.program_arguments"


class ProgramCommand(Command):
    """A command whose arguments all belong to the agent's program, but for a first ``--help``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_ours = args[:1] in (["-h"], ["--help"])
        ctx.meta[_ARGUMENTS] = () if is_ours else tuple(args)
        return super().parse_args(ctx, args if is_ours else [])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return ["[ARGUMENTS OF THE PROGRAM]"]


def begin_session(run: Invocation, provider: str | None, arguments: tuple[str, ...], **about: Any) -> None:
    """Starts the program on a new session, says what became of it, and exits as the program did."""
    with stoppable():
        session_id, opened = run.holdfast.start_native(provider, arguments, **about)
    if run.json:
        output.document(
            {
                "session_id": session_id if opened.is_kept else None,
                "turns": opened.adopted,
                "other_sessions": opened.others,
                "exit_code": opened.exit_code,
            }
        )
    else:
        _tell(run, session_id, opened)
    click.get_current_context().exit(opened.exit_code)


def _tell(run: Invocation, session_id: str, opened: Opened) -> None:
    if opened.others:
        sessions = "1 more session was" if opened.others == 1 else f"{opened.others} more sessions were"
        tell(f"{sessions} used in the program: holdfast list shows what is new")
    if not opened.is_kept:
        tell("nothing was said: no session was kept")
        return
    turns = "1 turn is" if opened.adopted == 1 else f"{opened.adopted} turns are"
    name = run.holdfast.session(session_id).name
    called = session_id if name is None else name
    tell(f"{turns} in the history; continue with: holdfast resume {called}, or holdfast open {called}")


def _command(provider: str, product: str) -> Command:
    @click.command(provider, cls=ProgramCommand, examples=(f"holdfast {provider}",))
    @pass_invocation
    def begin(run: Invocation) -> None:
        begin_session(run, provider, click.get_current_context().meta[_ARGUMENTS])

    begin.help = (
        f"Begin a session in {product}'s own program.\n\n"
        "The program gets all arguments, except those that would continue another session: holdfast open ID does that. "
        "The session is locked while the program runs; afterwards everything that was said is in the history, also "
        "after commands of the program such as /clear and /resume, which lead to sessions of their own. Options of "
        f"Holdfast come before the command: holdfast --json {provider}. A name, a directory or an agent's role: "
        "holdfast open --new."
    )
    assert isinstance(begin, Command)
    return begin


claude = _command("claude", "Claude Code")
codex = _command("codex", "Codex")
opencode = _command("opencode", "opencode")
gemini = _command("gemini", "Gemini CLI")
