"""Owns the commands about where agents run: runtimes and recover."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.cli import output
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.cli.report import Cell, Column, Table, Tone, cell
from holdfast.domain.runtimes import Capabilities
from holdfast.engine.documents import turn_document
from holdfast.engine.running.agents import Agent
from holdfast.errors import HoldfastError

_COLUMNS = (
    Column("PROVIDER", whole=True),
    Column("VERSION", whole=True),
    Column("BINARY"),
    Column("CAN", wraps=True),
)


@command("runtimes", "holdfast runtimes", "holdfast runtimes --json")
@pass_invocation
def runtimes(run: Invocation) -> None:
    """Show which agents this machine has, and what they can do.

    A binary is found by HOLDFAST_CLAUDE_BINARY and the like, else on PATH, and asked once as long as it
    does not change. A session is resumed only on the runtime that it ran on.
    """
    found = run.holdfast.agents.all()
    if run.json:
        output.document({"runtimes": [_document(name, agent) for name, agent in found.items()]})
    else:
        output.blocks([Table(_COLUMNS, tuple(_row(name, agent) for name, agent in found.items()))])


def _document(name: str, agent: Agent | HoldfastError) -> dict[str, object]:
    if isinstance(agent, HoldfastError):
        return {"provider": name, "available": False, "problem": agent.message}
    runtime = agent.runtime
    return {
        "provider": name,
        "available": True,
        "binary": agent.binary,
        "runtime_id": runtime.id,
        "machine": runtime.machine,
        "distribution": runtime.distribution,
        "version": runtime.version,
        "home": runtime.home,
        "capabilities": asdict(runtime.capabilities),
    }


def _row(name: str, agent: Agent | HoldfastError) -> tuple[Cell, ...]:
    if isinstance(agent, HoldfastError):
        return (cell(name, Tone.DIM), cell("-"), cell("-"), cell(agent.message, Tone.DIM))
    runtime = agent.runtime
    version = f"{runtime.distribution} {runtime.version or '?'}"
    abilities = cell(_abilities(runtime.capabilities))
    return (cell(name, Tone.STRONG), cell(version), cell(agent.binary), abilities)


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
    """
    turns = run.holdfast.recover()
    if run.json:
        output.document({"recovered": [turn_document(turn) for turn in turns]})
    else:
        for turn in turns:
            output.line(turn.session_id, turn.seq, turn.status.value)
        if not turns and output.is_terminal():
            output.say("nothing to recover: every turn that runs has a living owner")
