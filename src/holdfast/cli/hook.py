"""Owns the command hook for people: its help, its self-check, and global options.

An agent's program calls ``holdfast hook EVENT`` without options; ``main`` answers that before it imports this module.
"""

from __future__ import annotations

import os

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.hooks.main import EVENTS

FAILED = 1


@command(
    "hook",
    """echo '{"agent_name": "terraform-architect", "task_id": "T001"}' | holdfast hook pre-delegate""",
    """echo '{"agent_id": "agent-20260108-180530-abc12345", "exit_code": 0}' | holdfast hook subagent-stop""",
    "holdfast hook pre-delegate --test",
)
@click.argument("event", type=click.Choice(list(EVENTS)))
@click.option("--test", is_flag=True, help="Check that hooks work here, on a temporary store.")
@pass_invocation
def hook(run: Invocation, event: str, test: bool) -> None:
    """Answer an event of an agent's program.

    Reads JSON from standard input, and prints JSON or nothing. The exit code is always 0, so that a hook never
    stops an agent; problems are in ~/.local/state/holdfast/hooks.log.
    """
    if test:
        click.get_current_context().exit(_self_check())
    from holdfast.hooks.main import main

    for variable, given in (("HOLDFAST_URL", run.url), ("HOLDFAST_WORKSPACE", run.workspace)):
        if given is not None:
            os.environ[variable] = given
    click.get_current_context().exit(main(event))


def _self_check() -> int:
    from holdfast.hooks.status import check_hooks

    code = 0
    for check in check_hooks():
        if check.passed:
            output.say(f"ok      {check.what}: {check.found}")
        else:
            output.say(f"FAILED  {check.what}: {check.found}, expected {check.expected}")
            code = FAILED
    return code
