"""Owns the commands of a session's life: create, get, update, rename, relocate, finalize, rm and cleanup."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.cli import output
from holdfast.cli.answers import tell_changed, tell_created
from holdfast.cli.arguments import (
    metadata_option,
    outcome_argument,
    phase_option,
    provider_option,
    session_argument,
    text_option,
)
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.exit_codes import FAILED
from holdfast.domain.metadata import Metadata
from holdfast.domain.sessions import Session
from holdfast.engine.documents import session_document
from holdfast.escape import one_line


@command(
    "create",
    "holdfast create --agent terraform-architect --purpose approval_workflow",
    'holdfast create --agent gitops-operator --name crash-loop --metadata \'{"issue": "pod-crash-loop"}\'',
)
@click.option("--agent", required=True, metavar="NAME", help="The agent's role, such as terraform-architect.")
@text_option("--purpose", default="", help="What the session is for.")
@metadata_option(help="A JSON object, at most 256 KiB; - reads standard input.")
@click.option("-n", "--name", metavar="NAME", help="A name that can be used instead of the id.")
@provider_option(help="The product that runs the agent, such as claude.")
@pass_invocation
def create(
    run: Invocation,
    agent: str,
    purpose: str,
    metadata: Metadata | None,
    name: str | None,
    provider: str | None,
) -> None:
    """Create a session and print its id."""
    session = run.holdfast.create(agent, purpose, metadata, name=name, provider=provider)
    tell_created(session, run.holdfast.session_state(session.id) if run.json else None)


@command(
    "update",
    "holdfast update deploy --phase approval",
    'holdfast update deploy --expect planning --phase executing --metadata \'{"plan_file": "plan.json"}\'',
    "holdfast update deploy --error 'terraform plan failed'",
    "holdfast update deploy --clear-errors --phase planning",
    "holdfast update deploy --summary 'the plan is made, but not approved'",
)
@session_argument
@phase_option("--phase", help="Move to this phase.")
@metadata_option(help="A JSON object, merged key by key; - reads standard input.")
@text_option("--error", help="Count an error.")
@click.option("--clear-errors", is_flag=True, help="Set the error count to zero, after the cause is fixed.")
@text_option("--summary", help="The result so far; finalize may replace it.")
@phase_option("--expect", "expected", help="Change nothing unless the session is in this phase: exit code 4.")
@pass_invocation
def update(  # noqa: PLR0913 - one parameter for each option
    run: Invocation,
    session: str,
    phase: str | None,
    metadata: Metadata | None,
    error: str | None,
    clear_errors: bool,
    summary: str | None,
    expected: str | None,
) -> None:
    """Change a session: its phase, metadata, errors or summary.

    Changes everything that is given, or nothing. Every update counts as activity. While an approval of the
    session is open, the session leaves phase approval only to end: exit code 4.
    """
    changed = run.holdfast.update(
        run.find(session),
        phase=phase,
        metadata=metadata,
        error=error,
        clear_errors=clear_errors,
        summary=summary,
        expected_phase=expected,
    )
    _show_changed(run, changed)


@command("get", "holdfast get deploy")
@session_argument
@pass_invocation
def get(run: Invocation, session: str) -> None:
    """Print a session's state as JSON.

    "status" is what is true now: running, queued, waiting (for a person), idle, interrupted, failed or done. "phase" is
    what the agent reports about its work. `holdfast show` prints the session for a person.
    """
    output.document(run.holdfast.state(run.find(session)))


@command("finalize", "holdfast finalize deploy completed --summary 'Terraform applied'")
@session_argument
@outcome_argument
@text_option("--summary", help="The result; by default the summary that update set.")
@pass_invocation
def finalize(run: Invocation, session: str, outcome: str, summary: str | None) -> None:
    """Close a session as completed, failed or abandoned.

    A closed session cannot be opened again; only a fork can continue its work.
    """
    _show_changed(run, run.holdfast.finalize(run.find(session), outcome, summary))


@command(
    "cleanup",
    "holdfast cleanup --hours 24",
    "holdfast cleanup --hours 24 --dry-run",
    "holdfast cleanup --conversation-hours 2160 --dry-run",
)
@click.option(
    "--hours",
    type=float,
    help="How long delegated sessions are kept; by default the setting retention.max_age_hours, 24.",
)
@click.option(
    "--conversation-hours",
    type=float,
    help="How long conversations are kept; by default the setting retention.conversations_max_age_hours, "
    "and without it forever.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@pass_invocation
def cleanup(run: Invocation, hours: float | None, conversation_hours: float | None, dry_run: bool) -> None:
    """Abandon idle delegated sessions and delete old closed ones.

    Applies to sessions that were idle, or closed, for the given time. Conversations, which run and chat start, are
    kept unless you set a time for them. Sessions with a running or queued turn, and those that a fork needs, are
    always kept. If a project's file sets the time, only sessions of that project are cleaned up. The vault is
    tidied up, too: chunks that nothing has used for a day are deleted, and small ones are joined.
    """
    report = run.holdfast.cleanup(hours, conversation_hours=conversation_hours, dry_run=dry_run)
    tidied = None if dry_run else run.holdfast.tidy_vault()
    if run.json:
        output.document(
            {
                "dry_run": dry_run,
                "count": report.count,
                "abandoned": report.abandoned,
                "deleted": report.deleted,
                "vault": None
                if tidied is None
                else {
                    "deleted_chunks": tidied.swept.chunks,
                    "deleted_bytes": tidied.swept.stored_bytes,
                    "repacked_sessions": tidied.repacked,
                },
            }
        )
        return
    for done, ids in (("abandon", report.abandoned), ("delete", report.deleted)):
        for session_id in ids if dry_run else ():
            output.say(f"would {done} {session_id}")
    abandoned, deleted = (_count(ids, dry_run=dry_run) for ids in (report.abandoned, report.deleted))
    output.say(f"{abandoned} abandoned, {deleted} deleted")
    if tidied is not None and (tidied.swept.chunks or tidied.repacked):
        freed = f"{tidied.swept.stored_bytes / 1_000_000:.1f} MB deleted"
        sessions = "1 session" if tidied.repacked == 1 else f"{tidied.repacked} sessions"
        output.say(f"vault: {freed}, {sessions} repacked")


def _count(ids: Sequence[str], *, dry_run: bool) -> str:
    verb = "would be" if dry_run else "was" if len(ids) == 1 else "were"
    return f"{len(ids)} {verb}"


def _show_changed(run: Invocation, session: Session) -> None:
    holdfast = run.holdfast
    known = (
        (holdfast.session_state(session.id), holdfast.store.phase_history(session.id)) if run.json else None
    )
    tell_changed(session, known)


@command("rename", "holdfast rename deploy deploy-eu", "holdfast rename deploy --clear")
@session_argument
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="Remove the name.")
@pass_invocation
def rename(run: Invocation, session: str, name: str | None, clear: bool) -> None:
    """Give a session a name that can be used instead of its id."""
    if (name is None) is not clear:
        raise click.UsageError("give a NAME or --clear")
    renamed = run.holdfast.rename(run.find(session), name)
    if run.json:
        output.document(session_document(renamed, run.holdfast.session_state(renamed.id)))
    else:
        output.line(renamed.id, renamed.name or "")


@command("rm", "holdfast rm deploy --yes")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
@click.pass_context
def remove(ctx: click.Context, run: Invocation, session: str, yes: bool) -> None:
    """Delete a session and its conversation permanently.

    Refused while a turn of the session runs, and while forks or other agents need its conversation.
    """
    session_id = run.find(session)
    if not yes and not _agreed(run, session_id):
        output.say("nothing was removed")
        ctx.exit(FAILED)
    run.holdfast.remove(session_id)
    if run.json:
        output.document({"session_id": session_id, "removed": True})
    else:
        output.say(f"{session_id} was removed")


def _agreed(run: Invocation, session_id: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty() or run.json:
        raise click.UsageError("cannot ask for confirmation without a terminal: give --yes")
    found = run.holdfast.session(session_id)
    what = one_line(f"{session_id} ({found.agent}, {found.phase}, {found.purpose})", 200)
    return click.confirm(f"Permanently remove {what}?", err=True)


@command("relocate", "holdfast relocate deploy .")
@session_argument
@click.argument("directory", metavar="DIR")
@pass_invocation
def relocate(run: Invocation, session: str, directory: str) -> None:
    """Continue a session in DIR, where its project was moved.

    The agent's own session continues there, too, if the provider allows it.
    """
    session_id = run.find(session)
    work_dir = run.holdfast.relocate(session_id, directory)
    if run.json:
        output.document({"session_id": session_id, "work_dir": work_dir})
    else:
        output.say(f"{session_id} continues in {work_dir}")
