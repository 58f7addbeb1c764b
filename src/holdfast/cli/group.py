"""Owns the list of commands; the module of a command is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from holdfast.cli.command import GLOBAL_OPTIONS, Invocation

PROGRAM: Final = "holdfast"

#: section of the help -> command -> module and function
SECTIONS: Final = {
    "Work with agents": {
        "run": "running:run",
        "resume": "running:resume",
        "fork": "running:fork",
        "chat": "chat:chat",
        "open": "running:open_session",
        "claude": "native:claude",
        "codex": "native:codex",
        "opencode": "native:opencode",
        "gemini": "native:gemini",
        "import": "importing:import_sessions",
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
        "ui": "fleet:ui",
        "ps": "ps:ps",
        "search": "searching:search",
        "show": "show:show",
        "why": "why:why",
        "tree": "show:tree",
        "log": "logs:log",
        "export": "exporting:export",
        "usage": "usage:usage",
        "stats": "usage:stats",
        "observed": "hooks:observed",
        "runtimes": "fleet:runtimes",
        "packet": "show:packet",
        "doctor": "doctor:doctor",
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
        "restore": "restoring:restore",
        "recover": "fleet:recover",
        "rm": "lifecycle:remove",
        "config": "settings:config",
        "trust": "trust:trust",
        "hooks": "hooks:hooks",
        "hook": "hooks:hook",
        "completion": "completion:completion",
    },
}
ALIASES: Final = {"ls": "list"}

#: The help describes these and only names the others, so that it fits on a screen.
EVERYDAY: Final = ("run", "resume", "fork", "chat", "claude", "list", "search", "log", "show", "why", "ps", "ui", "import", "doctor")  # fmt: skip

#: what other programs call a command, and people try first
_CALLED_ELSEWHERE: Final = {
    "continue": "resume",
    "delete": "rm",
    "history": "log",
    "remove": "rm",
    "sessions": "list",
    "start": "run",
    "status": "show",
    "stop": "cancel",
}

_COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}


#: what may stand in the place of a command, as other agents' programs have it
_CONTINUE: Final = "-c"


class LazyGroup(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == [_CONTINUE]:
            args = ["resume", "--last", *args[1:]]
        return super().parse_args(ctx, args)

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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Everyday"):
            widest = max(map(len, EVERYDAY))
            rows = []
            for name in EVERYDAY:
                command = self.get_command(ctx, name)
                rows.append(
                    (name, command.get_short_help_str(formatter.width - widest - 6) if command else "")
                )
            formatter.write_dl(rows)
        with formatter.section("All others"):
            others = {
                title: [name for name in section if name not in EVERYDAY]
                for title, section in SECTIONS.items()
            }
            formatter.write_dl([(title, ", ".join(names)) for title, names in others.items()])


def _guess(name: str) -> str:
    import difflib  # only needed here

    close = difflib.get_close_matches(name, [*_COMMANDS, *ALIASES], n=1)
    meant = _CALLED_ELSEWHERE.get(name, close[0] if close else None)
    return f"; did you mean {meant}?" if meant else ""


def _is_interactive() -> bool:
    from holdfast.cli.asking import is_interactive  # a pipe, which gets the help, does without

    return is_interactive()


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

    Without a command, a terminal shows the sessions of this directory to choose from; -c in place of a command
    continues the one that was active last. holdfast COMMAND --help explains a command.

    ID is a session's id, the beginning or the end of it, its name, its title, or the id that the agent itself
    gave it. If TEXT is a dash, it is read from standard input. The options may come before or after the command.
    """
    if ctx.invoked_subcommand is not None:
        return
    from holdfast.cli import output  # `holdfast --version` loads nothing of the domain

    if output.is_terminal() and not ctx.ensure_object(Invocation).json and _is_interactive():
        from holdfast.cli.picker import perform, pick

        perform(pick(ctx.ensure_object(Invocation), if_none=0))
        return
    click.echo(ctx.get_help())
    ctx.exit(2)
