"""Owns the list of commands; the module of a command is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from holdfast.cli.command import GLOBAL_OPTIONS

PROGRAM: Final = "holdfast"

#: section of the help -> command -> module and function
SECTIONS: Final = {
    "Work with agents": {
        "run": "running:run",
        "resume": "running:resume",
        "fork": "running:fork",
        "chat": "running:chat",
        "open": "running:open_session",
    },
    "Lifecycle": {
        "create": "lifecycle:create",
        "update": "lifecycle:update",
        "should-resume": "why:should_resume",
        "get": "lifecycle:get",
        "list": "listing:list_sessions",
        "finalize": "lifecycle:finalize",
        "cleanup": "lifecycle:cleanup",
    },
    "Understand": {
        "show": "show:show",
        "why": "why:why",
        "tree": "show:tree",
        "log": "logs:log",
        "usage": "usage:usage",
        "stats": "usage:stats",
        "observed": "hooks:observed",
        "runtimes": "fleet:runtimes",
        "packet": "show:packet",
    },
    "Ask people": {
        "approvals": "approvals:approvals",
        "approve": "approvals:approve",
        "deny": "approvals:deny",
        "request-approval": "approvals:request_approval",
        "wait": "approvals:wait",
    },
    "Change the history": {
        "edit": "turns:edit",
        "truncate": "turns:truncate",
        "retry": "turns:retry",
        "new": "turns:new",
    },
    "Fleet": {
        "enqueue": "turns:enqueue",
        "worker": "fleet:worker",
        "serve": "fleet:serve",
        "token": "tokens:token",
    },
    "Manage": {
        "cancel": "turns:cancel",
        "rename": "lifecycle:rename",
        "relocate": "lifecycle:relocate",
        "recover": "fleet:recover",
        "rm": "lifecycle:remove",
        "trust": "trust:trust",
        "hooks": "hooks:hooks",
        "hook": "hooks:hook",
        "completion": "completion:completion",
    },
}
ALIASES: Final = {"ls": "list"}

_COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        place = _COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"holdfast.cli.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"command not found: {name}{_guess(name)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, _COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                rows = []
                for name in section:
                    command = self.get_command(ctx, name)
                    help_text = command.get_short_help_str(formatter.width - widest - 6) if command else ""
                    rows.append((name.ljust(widest), help_text))
                formatter.write_dl(rows)


def _guess(name: str) -> str:
    import difflib  # only needed here

    close = difflib.get_close_matches(name, [*_COMMANDS, *ALIASES], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _version(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        from holdfast import __version__

        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    params=[
        *GLOBAL_OPTIONS,
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version and exit.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable sessions for coding agents: continue work where it stopped, and know why.

    ID is a session's id, a unique beginning of it, or its name. If TEXT is a dash, it is read from standard
    input. The global options may come before or after the command.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)
