"""Owns the arguments that commands share: sessions, turns, phases, texts, metadata, rights and moments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast.cli.command import Invocation
from holdfast.clock import Instant, after, from_datetime
from holdfast.domain.inputs import check_text
from holdfast.domain.metadata import Metadata, parse_metadata
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

#: no larger than every store can hold exactly
TURN = click.IntRange(1, 2**53)
TURN_OR_NONE = click.IntRange(0, 2**53)
_LONGEST_PROJECT = 4096


def session_argument(function: F) -> F:
    """Whatever names a session; ``Invocation.find`` resolves it."""
    return click.argument("session", metavar="ID", shell_complete=complete_session)(function)


def provider_option(*, help: str, several: bool = False) -> Callable[[F], F]:
    names = ("-p", "--provider", "providers" if several else "provider")
    return click.option(
        *names, metavar="NAME", multiple=several, shell_complete=_complete_provider, help=help
    )


def model_option(function: F) -> F:
    words = "The model; by default the session's, else the provider's."
    return click.option("-m", "--model", metavar="MODEL", shell_complete=_complete_model, help=words)(
        function
    )


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


def complete_session(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from holdfast.cli.completion import sessions_like

    return sessions_like(ctx.ensure_object(Invocation), incomplete)


def _complete_provider(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from holdfast.cli.completion import providers_like

    return providers_like(incomplete)


def _complete_model(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from holdfast.cli.completion import models_like

    return models_like(ctx.ensure_object(Invocation), ctx.params.get("provider"), incomplete)


def _complete_phase(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [phase.value for phase in Phase if phase.startswith(incomplete)]


def _complete_outcome(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [phase.value for phase in Phase if phase.is_final and phase.startswith(incomplete)]


# --- what an agent may do ---


class _ModeOption(click.Option):
    """Its help lists the modes of each provider."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from holdfast.providers.registry import get_provider, provider_names  # imports the providers

        known = ((name, get_provider(name).modes) for name in provider_names())
        modes = "; ".join(f"{name}: {', '.join(modes)}" for name, modes in known if modes)
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], f"{record[1]} {modes}.")


def rights_options(function: F) -> F:
    options = (
        click.option("--permission-mode", metavar="MODE", cls=_ModeOption, help="What the agent may do without asking."),
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


# --- providers and directories that a person types, and mistypes ---


def project_directory(given: str | None) -> str | None:
    """A directory as it is recorded; it need not be on this machine."""
    return None if given is None else os.path.abspath(check_text("project", given, limit=_LONGEST_PROJECT))  # noqa: PTH100 - of any machine


def hint_at_mistyped(provider: str | None, project: str | None) -> None:
    """Says what may be wrong with a filter that fits nothing."""
    from holdfast.cli.output import tell

    if provider is not None and (known := _unknown_provider(provider)):
        tell(known)
    if project is not None and not os.path.isdir(project):  # noqa: PTH112 - as it was typed
        tell(f"there is no directory {project} on this machine{_beside(project)}")


def _unknown_provider(name: str) -> str:
    import difflib  # only needed here

    from holdfast.providers.registry import provider_names

    known = provider_names()
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=1)
    return f"no provider is called {name}; " + (
        f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    )


def _beside(project: str) -> str:
    """The directory beside a missing one whose name is close to it."""
    import difflib  # only needed here

    parent, name = os.path.split(project)
    try:
        close = difflib.get_close_matches(name, os.listdir(parent), n=1)  # noqa: PTH208 - as it was typed
    except OSError:
        return ""
    return f"; did you mean {os.path.join(parent, close[0])}?" if close else ""  # noqa: PTH118 - as it was typed


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
