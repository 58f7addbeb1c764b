"""Owns the command restore: it puts an agent's own session files back, and says what it found of each."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.arguments import session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.exit_codes import REFUSED
from holdfast.engine.documents import restored_document
from holdfast.engine.restoring import Restoration, RestoreOutcome
from holdfast.providers.contract import Comparison

_FOUND = {
    Comparison.ABSENT: "was gone",
    Comparison.EQUAL: "is as it was kept",
    Comparison.AHEAD: "is newer than what was kept",
    Comparison.BEHIND: "was cut off",
    Comparison.DIVERGED: "differs from what was kept",
}


@command("restore", "holdfast restore deploy", "holdfast restore deploy --dry-run")
@session_argument
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@pass_invocation
@click.pass_context
def restore(ctx: click.Context, run: Invocation, session: str, dry_run: bool) -> None:
    """Put an agent's own session files back from the vault.

    Files that are gone or cut off are written as they were kept. Files that are the same or newer are left alone.
    A file that differs is never overwritten: the vault keeps it as a branch, and Claude Code resumes what was kept from
    a folder of its own; for other agents the exit code is 4, and the next turn starts fresh, with the context.

    Refused while a program has the session open. `holdfast resume` restores by itself, unless the setting
    resume.restore says otherwise.
    """
    session_id = run.find(session)
    restored = run.holdfast.restore(session_id, dry_run=dry_run)
    if run.json:
        output.document(restored_document(session_id, restored, dry_run=dry_run))
    else:
        for each in restored:
            _show(each, dry_run=dry_run)
    if any(each.outcome is RestoreOutcome.DIVERGED for each in restored):
        ctx.exit(REFUSED)


def _show(restoration: Restoration, *, dry_run: bool) -> None:
    if not dry_run or not restoration.helps:
        output.say(f"{restoration.provider} session {restoration.provider_session_id}: {restoration.words}")
    else:
        would = "; ".join(filter(None, ("would be restored", restoration.left_out_words)))
        output.say(f"{restoration.provider} session {restoration.provider_session_id} {would}")
    done = "would be written" if dry_run else "written"
    for file in restoration.files:
        where = file.path or f"{file.name} in the agent's database"
        output.say(f"  {where} {_FOUND[file.found]}{f': {done}' if file.is_written else ''}")
