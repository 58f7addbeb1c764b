"""Owns the commands about turns: enqueue, cancel, retry, edit, truncate and new."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.arguments import (
    TURN,
    TURN_OR_NONE,
    complete_session,
    model_option,
    named_rights,
    provider_option,
    rights_options,
    session_argument,
    text_argument,
    text_option,
)
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.domain.conversations import Conversation
from holdfast.domain.sessions import Session
from holdfast.domain.turns import NewTurn, Turn, TurnRequest
from holdfast.engine.documents import (
    conversation_document,
    history_turn_document,
    turn_document,
)
from holdfast.engine.turn_requests import LONGEST_DELAY, MOST_PRIORITY


@command(
    "enqueue",
    "holdfast enqueue --agent terraform-architect 'plan the change'",
    "holdfast enqueue deploy 'and now apply it' --priority 5",
)
@click.argument("session", metavar="[ID]", shell_complete=complete_session)
@text_argument("prompt", required=False)
@click.option("--agent", metavar="NAME", help="Start a session of this agent; without ID.")
@provider_option(help="The provider; by default the session's, else the configured one.")
@click.option("-n", "--name", metavar="NAME", help="A name for the new session.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="The directory to work in, as a path on the worker's machine; by default the session's, else the "
    "worker's current one.",
)
@model_option
@click.option("--fresh", is_flag=True, help="Start a new provider session, with the whole context.")
@rights_options
@click.option(
    "--priority",
    type=click.IntRange(-MOST_PRIORITY, MOST_PRIORITY),
    default=0,
    help="Turns of sessions with a higher number run first.",
)
@click.option(
    "--delay",
    type=click.FloatRange(0, LONGEST_DELAY),
    metavar="SECONDS",
    help="Do not start the turn before this time has passed.",
)
@click.option(
    "--runtime", metavar="ID", help="Only this runtime may run the turn; see holdfast runtimes --all."
)
@click.option("--key", metavar="KEY", help="A second call with the same key adds nothing; with ID.")
@pass_invocation
def enqueue(run: Invocation, /, session: str, prompt: str | None, **given: Any) -> None:
    """Put a turn into the queue, for a worker to run.

    With --agent it starts a new session and takes only a PROMPT; otherwise it adds a turn to session ID.
    """
    turn = (
        _add_turn(run, session, prompt, given)
        if given["agent"] is None
        else _begin(run, session, prompt, given)
    )
    if run.json:
        output.document(turn_document(turn))
    else:
        output.line(turn.session_id, turn.seq, turn.status)


def _add_turn(run: Invocation, session: str, prompt: str | None, given: dict[str, Any]) -> Turn:
    if prompt is None:
        raise click.UsageError("give ID and PROMPT; or --agent and PROMPT for a new session")
    if given["name"] is not None:
        raise click.UsageError("--name is for a new session: give --agent")
    found = run.holdfast.session(run.find(session))
    return run.holdfast.enqueue(found.id, prompt, _new_turn(run, found, given))


def _begin(run: Invocation, prompt: str, second: str | None, given: dict[str, Any]) -> Turn:
    """Starts a session; its only argument is the prompt."""
    if second is not None:
        raise click.UsageError("a new session has no ID yet: give either ID or --agent")
    if given["key"] is not None:
        raise click.UsageError("--key is for an existing session: give ID")
    if prompt == "-":
        prompt = run.read_input("prompt")
    return run.holdfast.begin_queued(
        prompt, _new_turn(run, None, given), agent=given["agent"], name=given["name"]
    )


def _new_turn(run: Invocation, session: Session | None, given: dict[str, Any]) -> NewTurn:
    request = TurnRequest(
        given["cwd"],
        given["model"],
        named_rights(given),
        given["fresh"],
        allow_wider_rights=given["allow_wider_rights"],
    )
    return run.holdfast.new_turn(
        session,
        request,
        provider=given["provider"],
        priority=given["priority"],
        delay=given["delay"] or 0.0,
        runtime_id=given["runtime"],
        key=given["key"],
    )


@command("cancel", "holdfast retry deploy 2 && holdfast cancel deploy")
@session_argument
@click.option("--turn", type=TURN, metavar="TURN", help="The turn; by default the session's newest open one.")
@click.option(
    "--force",
    is_flag=True,
    help="Take the turn from its worker without waiting; for a worker that never comes back.",
)
@pass_invocation
def cancel(run: Invocation, session: str, turn: int | None, force: bool) -> None:
    """Stop a turn that is queued or running.

    A queued turn is cancelled at once, a running one when its worker next checks. The agent is ended with
    everything it started; the session is kept and can be continued. With --force the worker is not asked: its
    later reports of the turn are not applied, and an agent on another machine may keep running.
    """
    cancelled = run.holdfast.cancel(run.find(session), turn, by_force=force)
    if run.json:
        output.document(turn_document(cancelled))
    elif cancelled.status.is_open:
        output.say(f"turn {cancelled.seq} was asked to stop")
    else:
        output.say(f"turn {cancelled.seq} is {cancelled.status}")


@command(
    "edit",
    "holdfast edit deploy 1 --prompt 'plan the change for staging'",
    "echo 'the plan is in plan.json' | holdfast edit deploy 1 --response -",
)
@session_argument
@click.argument("turn", type=TURN)
@text_option("--prompt", help="The new prompt.")
@text_option("--response", help="The new response.")
@pass_invocation
def edit(run: Invocation, session: str, turn: int, prompt: str | None, response: str | None) -> None:
    """Change the text of a turn; later turns stay.

    An agent that has seen the old text starts a new provider session with the new history.
    """
    if prompt is None and response is None:
        raise click.UsageError("give --prompt, --response or both")
    session_id = run.find(session)
    edited = run.holdfast.edit(session_id, turn, prompt=prompt, response=response)
    if run.json:
        output.document({"session_id": session_id, **history_turn_document(edited)})
    else:
        output.say(f"turn {edited.seq} was edited (revision {edited.revision})")


@command("truncate", "holdfast truncate deploy 1")
@session_argument
@click.argument("turn", type=TURN_OR_NONE)
@pass_invocation
def truncate(run: Invocation, session: str, turn: int) -> None:
    """Remove every turn after TURN from the history; 0 removes all.

    Queued turns are cancelled. Turn numbers are never reused.
    """
    session_id = run.find(session)
    before = _conversation(run, session_id)
    changed = run.holdfast.truncate(session_id, turn)
    if run.json:
        output.document({"session_id": session_id, "kept": turn, **conversation_document(changed)})
    elif changed.revision == before.revision:
        output.say(f"there is no turn after {turn}: nothing was removed")
    else:
        output.say(f"the turns after {turn} were removed (revision {changed.revision})")


@command(
    "retry", "holdfast retry deploy 2", "holdfast retry deploy 2 --prompt 'apply it, but only to staging'"
)
@session_argument
@click.argument("turn", type=TURN)
@text_option("--prompt", help="Send this prompt instead of the old one.")
@pass_invocation
def retry(run: Invocation, session: str, turn: int, prompt: str | None) -> None:
    """Put a turn into the queue again.

    Removes the turn and every later one from the history; the new turn replaces them.
    """
    again = run.holdfast.retry(run.find(session), turn, prompt)
    if run.json:
        output.document(turn_document(again))
    else:
        how = f"a worker runs it, or: holdfast resume {session}"
        output.say(f"turn {turn} is queued again as turn {again.seq}; {how}")


@command("new", "holdfast new deploy")
@session_argument
@pass_invocation
def new(run: Invocation, session: str) -> None:
    """Start again with an empty history in the same session."""
    session_id = run.find(session)
    changed = run.holdfast.new(session_id)
    if run.json:
        output.document({"session_id": session_id, **conversation_document(changed)})
    else:
        output.say(f"{session_id} starts again with turn {changed.next_seq}")


def _conversation(run: Invocation, session_id: str) -> Conversation:
    return run.holdfast.store.get_conversation(run.holdfast.session(session_id).conversation_id)
