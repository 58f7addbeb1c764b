"""Owns the commands that manage sessions: cancel, rename, relocate and rm."""

from __future__ import annotations

import sys

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.escape import one_line
from holdfast.domain.turns import Turn
from holdfast.engine.documents import session_document, turn_document
from holdfast.errors import Conflict


@command("rename", "holdfast rename deploy deploy-eu", "holdfast rename deploy --clear")
@session_argument
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="Take the name away.")
@pass_invocation
def rename(run: Invocation, session: str, name: str | None, clear: bool) -> None:
    """Give a session a name that can be used in place of its id."""
    if (name is None) is not clear:
        raise click.UsageError("give a NAME or --clear")
    renamed = run.holdfast.rename(run.find(session), name)
    if run.json:
        output.document(session_document(renamed, run.holdfast.store.session_state(renamed.id)))
    else:
        output.line(renamed.id, renamed.name or "")


@command("rm", "holdfast rm deploy --yes")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
@click.pass_context
def remove(ctx: click.Context, run: Invocation, session: str, yes: bool) -> None:
    """Delete a session and its conversation, for good.

    Refused while it runs, and while forks or other agents need its conversation.
    """
    session_id = run.find(session)
    if not yes and not _agreed(run, session_id):
        output.say("nothing was removed")
        ctx.exit(1)
    run.holdfast.remove(session_id)
    if run.json:
        output.document({"session_id": session_id, "removed": True})
    else:
        output.say(f"{session_id} was removed")


def _agreed(run: Invocation, session_id: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty() or run.json:
        raise click.UsageError("there is nobody to ask: give --yes")
    found = run.holdfast.session(session_id)
    what = one_line(f"{session_id} ({found.agent}, {found.phase}, {found.purpose})", 200)
    return click.confirm(f"Remove {what} for good?", err=True)


@command("relocate", "holdfast relocate deploy .")
@session_argument
@click.argument("directory", metavar="DIR")
@pass_invocation
def relocate(run: Invocation, session: str, directory: str) -> None:
    """Go on in DIR: the project of a session was moved there.

    The agent's own session goes on, too.
    """
    session_id = run.find(session)
    work_dir = run.holdfast.relocate(session_id, directory)
    if run.json:
        output.document({"session_id": session_id, "work_dir": work_dir})
    else:
        output.say(f"{session_id} goes on in {work_dir}")


@command("cancel", "holdfast retry deploy 2 && holdfast cancel deploy")
@session_argument
@click.option(
    "--turn", type=TURN, metavar="TURN", help="This one; by default the session's newest open turn."
)
@click.option(
    "--force",
    is_flag=True,
    help="Do not wait for its worker: take the turn away from it. For a worker that is gone for good.",
)
@pass_invocation
def cancel(run: Invocation, session: str, turn: int | None, force: bool) -> None:
    """Stop a turn that waits or runs.

    One that waits is cancelled at once, one that runs when its worker next looks. The agent is ended with
    everything it started; the session is kept and can go on. With --force nobody is asked: what a worker
    still reports of the turn afterwards does not count, and an agent on another machine may run on.
    """
    session_id = run.find(session)
    chosen = turn
    if force and turn is None:
        chosen = _open_turn(run, session_id)
    taken = run.holdfast.take_over(session_id, by_force=force)
    if taken is not None and taken.seq == chosen and not taken.status.is_open:
        _tell_cancelled(run, taken)
        return
    chosen = chosen if chosen is not None else _open_turn(run, session_id)
    _tell_cancelled(run, run.holdfast.cancel(session_id, chosen))


def _tell_cancelled(run: Invocation, turn: Turn) -> None:
    if run.json:
        output.document(turn_document(turn))
    elif turn.status.is_open:
        output.say(f"turn {turn.seq} was asked to stop")
    else:
        output.say(f"turn {turn.seq} is {turn.status}")


def _open_turn(run: Invocation, session_id: str) -> int:
    stopped = run.holdfast.stopped_turn(session_id)
    if stopped is None or not stopped.status.is_open:
        raise Conflict(f"no turn of {session_id} is open")
    return stopped.seq
