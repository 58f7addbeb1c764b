"""Owns the command import: its progress on a terminal, and a report whose figures add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.arguments import parse_moment
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.engine.doctor.findings import counted
from holdfast.engine.importing import ImportReport, ImportRequest
from holdfast.escape import one_line

#: of the files that were passed over, shown on a terminal for each reason
_MOST_SHOWN = 5


@command(
    "import",
    "holdfast import",
    "holdfast import claude --since 30d",
    "holdfast import codex --project . --dry-run",
    "holdfast import all --json",
)
@click.argument("agent", required=False, default="all")
@click.option("--project", metavar="DIR", type=click.Path(file_okay=False, resolve_path=True),
              help="Only sessions of this directory and of those below it.")  # fmt: skip
@click.option("--home", metavar="DIR", type=click.Path(exists=True, file_okay=False, resolve_path=True),
              help="The agent's home, instead of its usual one; name the agent, too.")  # fmt: skip
@click.option(
    "--since", metavar="WHEN", help="Only sessions that were used then or later: 2h, 3d, 2026-01-08, …"
)
@click.option("--dry-run", is_flag=True, help="Only say what would be imported.")
@pass_invocation
def import_sessions(
    run: Invocation, agent: str, project: str | None, home: str | None, since: str | None, dry_run: bool
) -> None:
    """Take over the sessions that the agents' own programs keep.

    AGENT is claude, codex, opencode, gemini or all. Each session gets its turns, tool calls, usage and times, and
    can be continued, forked, shown and searched like any other. The agents' files do not change. Later runs take
    only what is new; a session that was removed here stays removed until its own id is named.
    """
    moment = None if since is None else parse_moment("since", since, run.holdfast.store.now())
    wanted = ImportRequest(
        () if agent == "all" else (agent,),
        project,
        home,
        moment,
        dry_run,
    )
    with _bar(show=not run.json and output.is_terminal()) as progress:
        report = run.holdfast.import_sessions(wanted, progress)
    if run.json:
        output.document(_document(report, dry_run=dry_run))
    else:
        _show(report, dry_run=dry_run)
        if not report.found:
            _hint(report, project, since)


@contextmanager
def _bar(*, show: bool) -> Iterator[Callable[[int, int], None] | None]:
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading sessions", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _document(report: ImportReport, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "homes": [{"provider": provider, "home": home} for provider, home in report.homes],
        "found": report.found,
        "imported": report.imported,
        "updated": report.updated,
        "unchanged": report.unchanged,
        "skipped": [
            {"provider": one.provider, "file": one.place, "reason": one.reason, "problem": one.problem}
            for one in report.skipped
        ],
        "turns": report.turns,
        "images": report.images,
        "damaged_lines": report.damaged_lines,
        "long_lines": report.long_lines,
        "unknown_lines": report.unknown_lines,
        "vault": {
            "sessions": report.vault.sessions,
            "bytes": report.vault.added,
            "failed": report.vault.failed,
            "problem": report.vault.problem,
        },
    }


def _show(report: ImportReport, *, dry_run: bool) -> None:
    new, grown = ("to import", "to update") if dry_run else ("imported", "updated")
    output.say(
        f"{counted(report.found, 'session')} found: {report.imported} {new}, {report.updated} {grown}, "
        f"{report.unchanged} unchanged, {len(report.skipped)} skipped"
    )
    if report.turns:
        added = "to add" if dry_run else "was added" if report.turns == 1 else "were added"
        output.say(f"{counted(report.turns, 'turn')} {added}")
    if report.vault.sessions:
        output.say(
            f"the vault got {report.vault.added:,} bytes of {counted(report.vault.sessions, 'session')}"
        )
    if report.vault.failed:
        lacking = counted(report.vault.failed, "session")
        output.say(f"the vault has no copy of what is new in {lacking}: {report.vault.problem}")
    by_problem: dict[str, list[str]] = {}
    for one in report.skipped:
        by_problem.setdefault(one.problem, []).append(one.place)
    for problem, places in by_problem.items():
        output.say(f"skipped, because {problem}:")
        for place in places[:_MOST_SHOWN]:
            output.text(f"  {one_line(_short(place))}")
        if len(places) > _MOST_SHOWN:
            output.text(f"  and {len(places) - _MOST_SHOWN:,} more: --json lists them")
    left_out = {
        "damaged lines": report.damaged_lines,
        "lines above 16 MiB": report.long_lines,
        "lines of unknown types": report.unknown_lines,
    }
    said = ", ".join(f"{number:,} {what}" for what, number in left_out.items() if number)
    if said:
        output.say(f"not read: {said}")


def _hint(report: ImportReport, project: str | None, since: str | None) -> None:
    """Where there was nothing, and what was asked for."""
    if project is not None:
        gone = "" if Path(project).is_dir() else ", which is no directory here"
        output.say(f"no agent has a session of {_short(project)}{gone}, or of a directory below it")
    if since is not None:
        output.say(f"only sessions that were used since {since} were asked for")
    output.say("looked for sessions in:")
    for provider, home in report.homes:
        gone = "" if Path(home).is_dir() else " (not there)"
        output.text(f"  {one_line(_short(home))}{gone}: {provider}")


def _short(place: str) -> str:
    home = f"{Path.home()}/"
    return f"~/{place.removeprefix(home)}" if place.startswith(home) else place
