"""Owns the commands that change a conversation's history: edit, truncate, retry, new."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, TURN_OR_NONE, session_argument, text_option
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.domain.conversations import Conversation
from holdfast.engine.documents import (
    conversation_document,
    history_turn_document,
    turn_document,
)


@command(
    "edit",
    "holdfast edit deploy 1 --prompt 'plan the change for staging'",
    "echo 'the plan is in plan.json' | holdfast edit deploy 1 --response -",
)
@session_argument
@click.argument("turn", type=TURN)
@text_option("--prompt", help="What was asked.")
@text_option("--response", help="What was answered.")
@pass_invocation
def edit(run: Invocation, session: str, turn: int, prompt: str | None, response: str | None) -> None:
    """Change what a turn says; the turns after it stay.

    An agent that has seen the old text starts fresh with the new history.
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
    """Drop every turn after TURN from the history; 0 drops all.

    Turns that wait are cancelled. Turn numbers are never used again.
    """
    session_id = run.find(session)
    before = _conversation(run, session_id)
    changed = run.holdfast.truncate(session_id, turn)
    if run.json:
        output.document({"session_id": session_id, "kept": turn, **conversation_document(changed)})
    elif changed.revision == before.revision:
        output.say(f"there is no turn after {turn}: nothing was dropped")
    else:
        output.say(f"the turns after {turn} were dropped (revision {changed.revision})")


@command(
    "retry", "holdfast retry deploy 2", "holdfast retry deploy 2 --prompt 'apply it, but only to staging'"
)
@session_argument
@click.argument("turn", type=TURN)
@text_option("--prompt", help="Ask this in place of what was asked.")
@pass_invocation
def retry(run: Invocation, session: str, turn: int, prompt: str | None) -> None:
    """Put a turn into the queue again.

    It and every turn after it leave the history; the new turn takes their place.
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
    """Begin again with an empty history, in the same session."""
    session_id = run.find(session)
    changed = run.holdfast.new(session_id)
    if run.json:
        output.document({"session_id": session_id, **conversation_document(changed)})
    else:
        output.say(f"{session_id} begins again with turn {changed.next_seq}")


def _conversation(run: Invocation, session_id: str) -> Conversation:
    return run.holdfast.store.get_conversation(run.holdfast.session(session_id).conversation_id)
