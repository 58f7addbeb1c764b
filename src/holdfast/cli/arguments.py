"""Owns the arguments that commands share: sessions, turns, phases, texts, metadata, rights and moments."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast.cli.command import Invocation
from holdfast.clock import Instant, after, from_datetime
from holdfast.domain.metadata import Metadata, parse_metadata
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

#: no larger than every store can hold exactly
TURN = click.IntRange(1, 2**53)
TURN_OR_NONE = click.IntRange(0, 2**53)


def session_argument(function: F) -> F:
    """A session's id, a unique beginning of it, or its name; ``Invocation.find`` resolves it."""
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
    """The arguments that an approval is for."""
    words = "The exact arguments to approve, as a JSON object; - reads standard input."
    return click.option("--arguments", metavar="JSON", callback=_read_metadata, help=words)(function)


def phase_option(flag: str, *names: str, help: str) -> Callable[[F], F]:
    """The engine checks the phase and names the allowed ones; the shell completes it here."""
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


# --- what an agent may do ---


def rights_options(function: F) -> F:
    options = (
        click.option("--permission-mode", metavar="MODE", help="What the agent may do without asking."),
        click.option("--allow-tool", "allowed_tools", multiple=True, metavar="TOOL",
                     help="Let the agent use this tool; may be given several times."),
        click.option("--add-dir", "extra_dirs", multiple=True, metavar="DIR",
                     help="Let the agent work in this directory, too; may be given several times."),
        click.option("--approve-tools", multiple=True, metavar="PATTERN",
                     help="Wait for a person's approval before matching tool calls, such as 'Bash(terraform apply*)'; may be given several times. Edit does not cover Write."),
        click.option("--allow-wider-rights", is_flag=True,
                     help="Accept more rights than the session started with, and provider arguments that may widen them."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def named_rights(given: dict[str, Any], arguments: tuple[str, ...] = ()) -> Rights | None:
    """Returns the rights that were given as options; None without any."""
    rights = Rights(
        given["permission_mode"],
        frozenset(given["allowed_tools"]),
        frozenset(given["extra_dirs"]),
        arguments,
        frozenset(given["approve_tools"]),
    )
    return None if rights == NO_RIGHTS else rights


# --- moments ---

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RELATIVE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")
_LONGEST = 100 * 365 * 86400.0


def parse_moment(field: str, text: str, now: Instant) -> Instant:
    """An ISO date or datetime (without a zone: UTC), or a time ago."""
    relative = _RELATIVE.fullmatch(text.strip())
    if relative is not None:
        seconds = float(relative[1]) * _UNITS[relative[2]]
        if seconds > _LONGEST:
            raise InvalidInput(field, f"{text[:40]!r} is more than 100 years ago")
        return after(now, -seconds)
    try:
        return from_datetime(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        problem = "is not a moment; write 2h, 3d, 30m, 2026-01-08 or 2026-01-08T18:05:30Z"
        raise InvalidInput(field, f"{text[:40]!r} {problem}") from None
