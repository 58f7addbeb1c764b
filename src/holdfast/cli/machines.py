"""Owns the commands about where agents run: runtimes and recover."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Table, Tone, age, cell
from holdfast.clock import Instant
from holdfast.domain.runtimes import Capabilities, KnownRuntime, Runtime
from holdfast.engine.documents import known_runtime_document, runtime_document, turn_document
from holdfast.engine.running.agents import Agent
from holdfast.errors import HoldfastError

_SHORT = 12  #: of a machine's id

_COLUMNS = (
    Column("PROVIDER", whole=True),
    Column("VERSION", whole=True),
    Column("BINARY"),
    Column("CAN", wraps=True),
)


_KNOWN_COLUMNS = (
    Column("RUNTIME", whole=True),
    Column("PROVIDER", whole=True),
    Column("VERSION", whole=True),
    Column("SEEN", whole=True),
    Column("MACHINE", whole=True),
    Column("HOME"),
)


@command("runtimes", "holdfast runtimes", "holdfast runtimes --all")
@click.option("--all", "everywhere", is_flag=True, help="Those that workers have used, on any machine.")
@pass_invocation
def runtimes(run: Invocation, everywhere: bool) -> None:
    """Show which agents this machine has, and what they can do.

    A binary is found by HOLDFAST_CLAUDE_BINARY and the like, else on PATH, and asked once as long as it
    does not change. A session is resumed only on the runtime that it ran on.
    """
    if everywhere:
        _show_known(run)
        return
    found = run.holdfast.agents.all()
    if run.json:
        output.document({"runtimes": [_document(name, agent) for name, agent in found.items()]})
    else:
        output.blocks([Table(_COLUMNS, tuple(_row(name, agent) for name, agent in found.items()))])


def _show_known(run: Invocation) -> None:
    store = run.holdfast.store
    known, now = store.runtimes(), store.now()
    if run.json:
        output.document({"runtimes": [known_runtime_document(one) for one in known]})
    else:
        output.blocks([Table(_KNOWN_COLUMNS, tuple(_known_row(one, now) for one in known))])


def _known_row(known: KnownRuntime, now: Instant) -> tuple[Cell, ...]:
    runtime = known.runtime
    seen = f"{age(known.last_seen_at, now)} ago"
    words = (known.id, runtime.provider, _version(runtime), seen, runtime.machine[:_SHORT], runtime.home)
    return tuple(map(cell, words))


def _document(name: str, agent: Agent | HoldfastError) -> dict[str, object]:
    if isinstance(agent, HoldfastError):
        return {"provider": name, "available": False, "problem": agent.message}
    return {"available": True, "binary": agent.binary, **runtime_document(agent.runtime)}


def _row(name: str, agent: Agent | HoldfastError) -> tuple[Cell, ...]:
    if isinstance(agent, HoldfastError):
        return (cell(name, Tone.DIM), cell("-"), cell("-"), cell(agent.message, Tone.DIM))
    runtime = agent.runtime
    abilities = cell(_abilities(runtime.capabilities))
    return (cell(name, Tone.STRONG), cell(_version(runtime)), cell(agent.binary), abilities)


def _version(runtime: Runtime) -> str:
    return f"{runtime.distribution} {runtime.version or '?'}"


def _abilities(can: Capabilities) -> str:
    words = {
        "resume": can.can_resume,
        "fork": can.can_fork,
        "choose its id": can.chooses_id,
        "prove its record": can.append_only_transcript,
        "tell its context": can.reports_context,
        "wait for approval": can.can_defer,
    }
    return ", ".join(word for word, able in words.items() if able) or "only start"


@command("recover", "holdfast recover")
@pass_invocation
def recover(run: Invocation) -> None:
    """Take over from workers that went away.

    What they left running is ended, and their turns are freed. `resume` does this by itself for its own session.
    What runs here of turns that another machine took over is ended, too. Sessions of subagents whose
    orchestrator was killed on this machine are free again.
    """
    turns = run.holdfast.recover()
    if run.json:
        output.document({"recovered": [turn_document(turn) for turn in turns]})
    else:
        for turn in turns:
            output.line(turn.session_id, turn.seq, turn.status.value)
        if not turns and output.is_terminal():
            output.say("nothing to recover: every turn that runs has a living owner")
