"""Owns the command doctor: what is wrong, what it means and what mends it; with --fix, what was mended."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.exit_codes import FAILED
from holdfast.cli.output import Fields, Line, Tone, cell
from holdfast.config_files import current_directory
from holdfast.engine.doctor.examination import Examination, Mended, examine, mend
from holdfast.engine.doctor.findings import Finding, Severity, counted
from holdfast.engine.doctor.scene import opened_scene
from holdfast.engine.documents import finding_document

_TONES = {Severity.OK: Tone.GOOD, Severity.WARNING: Tone.WARN, Severity.PROBLEM: Tone.BAD}
_LABEL = len(Severity.WARNING)  #: no label is longer
_MOST_NAMED = 5  #: sessions or files of a finding, on a terminal
_WORST_FIRST = (Severity.PROBLEM, Severity.WARNING, Severity.OK)


@command("doctor", "holdfast doctor", "holdfast doctor --fix", "holdfast doctor --deep --json")
@click.option("--fix", is_flag=True, help="Mend what can be mended safely; the database is copied before.")
@click.option(
    "--deep",
    is_flag=True,
    help="Also compare all indexes of a SQLite database, and read back all of the vault.",
)
@pass_invocation
@click.pass_context
def doctor(ctx: click.Context, run: Invocation, fix: bool, deep: bool) -> None:
    """Say what is wrong here, and which command mends it.

    Looks at the configuration, the store and its damage, schema, size and clock, free disk, permissions, lost and
    waiting turns, unreadable sessions, records of hooks, agents, their versions and homes, hooks, files of agents
    that are gone or about to be deleted, and the vault. Without --fix nothing is changed. No agent is asked to do anything.

    With --fix: tightens permissions, takes over turns whose worker is gone, takes records of hooks to the store,
    brings the schema up to date, keeps sessions that the vault does not have, removes half copies. A SQLite database is copied first if it is changed.

    Exit code: 0 if there is no problem, also with warnings; 1 if there are problems.

    In a pipe, prints one line for each finding, separated by tabs: severity, check, what was found, command. With
    --json: an object with the lists "findings" and "fixed", and "copy", the copy of the database.
    """
    flags = {"url": run.url, "workspace": run.workspace}
    with opened_scene(os.environ, current_directory(os.environ), flags, deep=deep) as scene:
        examined = mend(scene) if fix else Examination(examine(scene))
    if run.json:
        output.document(_document(examined))
    elif output.is_terminal():
        _on_terminal(examined, fixed=fix)
    else:
        _as_lines(examined)
    if examined.count(Severity.PROBLEM):
        ctx.exit(FAILED)


def _sorted(examined: Examination) -> list[Finding]:
    return [one for severity in _WORST_FIRST for one in examined.findings if one.severity is severity]


def _document(examined: Examination) -> dict[str, object]:
    return {
        "problems": examined.count(Severity.PROBLEM),
        "warnings": examined.count(Severity.WARNING),
        "findings": [finding_document(finding) for finding in _sorted(examined)],
        "fixed": [
            {"code": one.finding.code, "check": one.finding.check, "done": one.done, "error": one.error}
            for one in examined.mended
        ],
        "copy": examined.copy,
    }


def _as_lines(examined: Examination) -> None:
    if examined.copy is not None:
        output.line("copied", "store", examined.copy, "")
    for one in examined.mended:
        output.line("fixed" if one.error is None else "not fixed", one.finding.check, _outcome(one), "")
    for finding in _sorted(examined):
        output.line(finding.severity.value, finding.check, finding.found, finding.command or "")


def _outcome(one: Mended) -> str:
    return one.done if one.done is not None else f"{one.finding.found}: {one.error}"


def _on_terminal(examined: Examination, *, fixed: bool) -> None:
    if examined.copy is not None:
        output.blocks([Fields((("copied", cell(f"the database as it was: {examined.copy}")),))])
    for one in examined.mended:
        is_done = one.error is None
        told = cell(f"{one.finding.check}: {_outcome(one)}", Tone.GOOD if is_done else Tone.BAD)
        output.blocks([Fields((("fixed" if is_done else "not fixed", told),))])
    for finding in _sorted(examined):
        _tell(finding)
    output.blocks([Line(cell(_summary(examined, fixed=fixed), Tone.STRONG))])


def _tell(finding: Finding) -> None:
    """The command is on a line of its own that nothing breaks, so that it can be copied."""
    label = f"{finding.severity.value:<{_LABEL}}"
    rows = [(label, cell(f"{finding.check}: {finding.found}", _TONES[finding.severity]))]
    if len(finding.subjects) > 1:
        rows.append(("", cell(_named(finding.subjects))))
    if finding.meaning:
        rows.append(("", cell(finding.meaning)))
    output.blocks([Fields(tuple(rows))])
    if finding.command is not None:
        output.text(f"{'':{_LABEL}}  $ {finding.command}")


def _named(subjects: Sequence[str]) -> str:
    more = len(subjects) - _MOST_NAMED
    return ", ".join(subjects[:_MOST_NAMED]) + (f" and {more:,} more: --json lists them" if more > 0 else "")


def _summary(examined: Examination, *, fixed: bool) -> str:
    problems, warnings = examined.count(Severity.PROBLEM), examined.count(Severity.WARNING)
    told = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    can_be_mended = sum(finding.mending is not None for finding in examined.findings)
    if can_be_mended and not fixed:
        return f"{told}; holdfast doctor --fix mends {can_be_mended} of them"
    return told
