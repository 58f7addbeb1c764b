"""Owns what every command has: the global options, before and behind it, and examples in its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.invocation import Invocation

pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """What stands behind the command wins over what stands before it."""
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Invocation), param.name, value)


GLOBAL_OPTIONS = (
    click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The store: sqlite:///PATH, postgresql://… or a server, https://….",
    ),
    click.Option(
        ["--workspace"],
        metavar="NAME",
        expose_value=False,
        callback=_remember,
        help="The workspace to work in.",
    ),
    click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print one JSON object, errors too.",
    ),
)


class Command(click.Command):
    """A command that takes the global options as well, and shows examples in its help."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [p.get_help_record(ctx) for p in super().get_params(ctx) if isinstance(p, click.Option)]
        everywhere = [p.get_help_record(ctx) for p in GLOBAL_OPTIONS]
        for title, records in (("Options", own), ("Global options", everywhere)):
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}$ {example}\n")


def command(name: str, *examples: str) -> Callable[[Callable[..., Any]], Command]:
    """A function as a command; each example is run by a test."""
    return click.command(name, cls=Command, examples=examples)
