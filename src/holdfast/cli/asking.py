"""Owns asking a person: whether one is there to answer, and whether an agent may have more rights than before."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import output
from holdfast.cli.arguments import named_rights
from holdfast.engine.running.launching import SESSION_VARIABLE
from holdfast.errors import Refused
from holdfast.processes.table import MARKER, ancestors, programs_of

if TYPE_CHECKING:
    from holdfast.cli.command import Invocation

#: what agents set for the programs that they start, whoever started the agent
_OF_AN_AGENT = (
    SESSION_VARIABLE,
    MARKER,
    "CLAUDECODE",
    "CODEX_THREAD_ID",
    "CODEX_CI",
    "GEMINI_CLI",
    "OPENCODE",
)
#: the names of programs that are agents: a terminal below one of them is the agent's
_AGENTS = frozenset({"claude", "codex", "gemini", "opencode"})


@cache
def can_ask() -> bool:
    """Whether a person can answer: on a terminal that is not an agent's."""
    streams = (sys.stdin, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and not is_inside_agent()


def is_interactive() -> bool:
    """Whether a person reads the answer, too."""
    return can_ask() and output.is_terminal()


def is_inside_agent() -> bool:
    if any(os.environ.get(name) for name in _OF_AN_AGENT):
        return True
    return any(not _AGENTS.isdisjoint(programs_of(process.pid)) for process in ancestors())


def accept_wider(
    run: Invocation, given: dict[str, Any], arguments: tuple[str, ...], session_id: str | None = None
) -> None:
    """Asks a person once if the rights that were given are wider than the session's, and notes the answer in ``given``.

    Where nobody can be asked nothing happens: the turn is refused later. Raises Refused after a no.
    """
    rights = named_rights(given, arguments)
    if rights is None or given["allow_wider_rights"] or run.json or not can_ask():
        return
    wider = run.holdfast.wider_rights(rights, session_id, given.get("provider"))
    if wider is None:
        return
    if not click.confirm(f"This gives the agent more rights: {wider}. Continue?", err=True):
        raise Refused("rights_wider", "the agent gets no more rights: nothing was done")
    given["allow_wider_rights"] = True
