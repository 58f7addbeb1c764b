"""Owns the command packet: the hand-over sheet of a session."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.arguments import session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.domain.telling.packet import packet_document, packet_markdown


@command("packet", "holdfast packet deploy", "holdfast packet deploy --cwd . --json")
@session_argument
@click.option("--cwd", metavar="DIR", type=click.Path(exists=True, file_okay=False, resolve_path=True),
              help="Where it would work; by default where it worked last.")  # fmt: skip
@click.option("--provider", metavar="NAME", help="For this provider; by default the session's own.")
@pass_invocation
def packet(run: Invocation, session: str, cwd: str | None, provider: str | None) -> None:
    """Print where the work of a session stands, to hand it over.

    The goal, what git says about the directory, the last turns, tool calls and those still in flight, what
    failed, and the next step, in a few pages of Markdown. A fresh start gets it beside the turns when
    something was cut or left unfinished. Nothing is changed.
    """
    gathered = run.holdfast.packet(run.find(session), provider, cwd)
    if run.json:
        output.document(packet_document(gathered))
    else:
        output.text(packet_markdown(gathered, run.holdfast.policy.context))
