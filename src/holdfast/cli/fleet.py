"""Owns the commands of a fleet: enqueue and worker."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext
from types import FrameType
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.arguments import named_rights, rights_options, text_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.json_logs import logged_as_json
from holdfast.clock import after
from holdfast.domain.turns import NewTurn, Turn, TurnRequest
from holdfast.engine.documents import turn_document
from holdfast.engine.spooling import empty_spool
from holdfast.engine.worker import Worker, WorkerOptions

_MOST_SLOTS = 256
_LONGEST_DELAY = 366 * 24 * 3600.0


@command(
    "enqueue",
    "holdfast enqueue --agent terraform-architect 'plan the change'",
    "holdfast enqueue deploy 'and now apply it' --priority 5",
)
@click.argument("session", metavar="[ID]")
@text_argument("prompt", required=False)
@click.option("--agent", metavar="NAME", help="Begin a session of this agent; without ID.")
@click.option(
    "--provider", metavar="NAME", help="Who runs it; by default the session's, else the configured one."
)
@click.option("--name", metavar="NAME", help="A name for the new session.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="The directory to work in, as it is called on the worker's machine; by default where the session "
    "did, else where the worker was started.",
)
@click.option("--model", metavar="MODEL", help="The model; by default the session's, else the provider's.")
@click.option("--fresh", is_flag=True, help="Start a new provider session, with the whole context.")
@rights_options
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, help="Sessions with more go first.")
@click.option(
    "--delay",
    type=click.FloatRange(0, _LONGEST_DELAY),
    metavar="SECONDS",
    help="Not before this long from now.",
)
@click.option("--runtime", metavar="ID", help="Only this runtime may run it; see holdfast runtimes --all.")
@click.option("--key", metavar="KEY", help="Enqueueing again with the same key does nothing more; with ID.")
@pass_invocation
def enqueue(run: Invocation, /, session: str, prompt: str | None, **given: Any) -> None:
    """Put a turn into the queue, for a worker to run.

    With --agent a new session is begun, and only the PROMPT is given; otherwise ID says which one goes on.
    """
    turn = (
        _go_on(run, session, prompt, given) if given["agent"] is None else _begin(run, session, prompt, given)
    )
    if run.json:
        output.document(turn_document(turn))
    else:
        output.line(turn.session_id, turn.seq, turn.status)


def _go_on(run: Invocation, session: str, prompt: str | None, given: dict[str, Any]) -> Turn:
    if prompt is None:
        raise click.UsageError("say which session, and what to do; or begin one with --agent")
    if given["name"] is not None:
        raise click.UsageError("--name is for a session that begins: with --agent")
    found = run.holdfast.session(run.find(session))
    new = _new_turn(run, run.holdfast.provider_of(found, given["provider"]), given)
    return run.holdfast.enqueue(found.id, prompt, new)


def _begin(run: Invocation, prompt: str, behind: str | None, given: dict[str, Any]) -> Turn:
    """The one argument is the prompt; a dash is standard input there, too."""
    if behind is not None:
        raise click.UsageError("a session that begins has no ID yet")
    if given["key"] is not None:
        raise click.UsageError("--key is for a session that is there: with ID")
    if prompt == "-":
        prompt = run.read_input("prompt")
    new = _new_turn(run, given["provider"] or run.holdfast.policy.run.provider, given)
    return run.holdfast.begin_queued(prompt, new, agent=given["agent"], name=given["name"])


def _new_turn(run: Invocation, provider: str, given: dict[str, Any]) -> NewTurn:
    request = TurnRequest(
        given["cwd"],
        given["model"],
        named_rights(given),
        given["fresh"],
        allow_wider_rights=given["allow_wider_rights"],
    )
    delay = given["delay"]
    return NewTurn(
        "",
        provider,
        request,
        priority=given["priority"],
        not_before=after(run.holdfast.store.now(), delay) if delay else None,
        runtime_id=given["runtime"],
        key=given["key"],
    )


@command("worker", "holdfast worker --once", "holdfast worker --provider scripted --slots 2 --once")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Run turns of this provider; by default of every one that is installed here.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, _MOST_SLOTS),
    default=1,
    show_default=True,
    help="Turns to run at the same time.",
)
@click.option("--once", is_flag=True, help="End when nothing can be run now.")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM, let turns go on for so long before they are handed back.",
)
@click.option(
    "--log-json", is_flag=True, help="Log as JSON: the session, turn and attempt are fields of each line."
)
@pass_invocation
def worker(
    run: Invocation, providers: tuple[str, ...], slots: int, once: bool, drain: float, log_json: bool
) -> None:
    """Run the turns that wait, until stopped.

    It takes over what dead workers left behind, renews its leases, and sits out a restart of the database.
    After SIGTERM, SIGINT or SIGHUP it takes no new turn, lets those that run end, and hands back what takes
    longer; a second signal hands back at once.
    """
    logging.getLogger("holdfast").setLevel(logging.INFO)
    with logged_as_json(run) if log_json else nullcontext():
        settings, store = run.settings(), run.holdfast.store
        options = WorkerOptions(slots, once, drain, lambda: empty_spool(store, settings, os.environ))
        _work(run.holdfast.worker(providers, options))


def _work(working: Worker) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        working.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    working.run()
