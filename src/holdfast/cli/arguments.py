"""Owns the arguments that commands share: sessions, turns, phases, texts and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast.cli.invocation import Invocation
from holdfast.domain.metadata import Metadata, parse_metadata
from holdfast.domain.phases import Phase

F = TypeVar("F", bound=Callable[..., Any])

#: bounded by what every store can count to
TURN = click.IntRange(1, 2**53)
TURN_OR_NONE = click.IntRange(0, 2**53)


def session_argument(function: F) -> F:
    """An id, the beginning of one, or a name; ``Invocation.find`` resolves it."""
    return click.argument("session", metavar="ID", shell_complete=_complete_session)(function)


def text_option(
    flag: str, *, help: str, default: str | None = None, required: bool = False
) -> Callable[[F], F]:
    """Text as given; a single dash stands for standard input."""
    return click.option(
        flag, metavar="TEXT", default=default, required=required, callback=_read_text, help=help
    )


def text_argument(name: str, *, required: bool = True) -> Callable[[F], F]:
    """Text as given; a single dash stands for standard input."""
    return click.argument(name, required=required, callback=_read_text)


def metadata_option(*, help: str) -> Callable[[F], F]:
    return click.option("--metadata", metavar="JSON", callback=_read_metadata, help=help)


def arguments_option(function: F) -> F:
    """What an approval is about, exactly."""
    words = "What exactly is asked for, as a JSON object; - reads standard input."
    return click.option("--arguments", metavar="JSON", callback=_read_metadata, help=words)(function)


def phase_option(flag: str, *names: str, help: str) -> Callable[[F], F]:
    """Checked by the engine, which says what is allowed; completed here."""
    return click.option(flag, *names, metavar="PHASE", shell_complete=_complete_phase, help=help)


def outcome_argument(function: F) -> F:
    return click.argument("outcome", shell_complete=_complete_outcome)(function)


def _read_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value != "-" or ctx.resilient_parsing:
        return value
    return ctx.ensure_object(Invocation).read_input(param.name or "")


def _read_metadata(ctx: click.Context, param: click.Parameter, value: str | None) -> Metadata | None:
    text = _read_text(ctx, param, value)
    return None if text is None else parse_metadata(text, param.name or "")


def _complete_session(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from holdfast.cli.completion import complete_session

    return complete_session(ctx.ensure_object(Invocation), incomplete)


def _complete_phase(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [phase.value for phase in Phase if phase.startswith(incomplete)]


def _complete_outcome(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [phase.value for phase in Phase if phase.is_final and phase.startswith(incomplete)]
