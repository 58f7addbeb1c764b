"""Owns the options for what an agent may do; those that nobody gives stay as they were recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.domain.pointers import NO_RIGHTS, Rights

F = TypeVar("F", bound=Callable[..., Any])


def rights_options(function: F) -> F:
    options = (
        click.option("--permission-mode", metavar="MODE", help="What the agent may do without asking."),
        click.option("--allow-tool", "allowed_tools", multiple=True, metavar="TOOL",
                     help="Let the agent use this tool; may be given several times."),
        click.option("--add-dir", "extra_dirs", multiple=True, metavar="DIR",
                     help="Let the agent work here too; may be given several times."),
        click.option("--approve-tools", multiple=True, metavar="PATTERN",
                     help="Wait for a person before such calls, as in 'Bash(terraform apply*)'; may be given several times, as Edit does not cover Write."),
        click.option("--allow-wider-rights", is_flag=True,
                     help="Accept more rights than the session was begun with, and arguments that may widen them."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def named_rights(given: dict[str, Any], arguments: tuple[str, ...] = ()) -> Rights | None:
    """None: nobody named any."""
    rights = Rights(
        given["permission_mode"],
        frozenset(given["allowed_tools"]),
        frozenset(given["extra_dirs"]),
        arguments,
        frozenset(given["approve_tools"]),
    )
    return None if rights == NO_RIGHTS else rights
