"""Owns the command trust: whether all settings of a project's file apply, or only the safe ones."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Fields, cell
from holdfast.cli.settings import shown_value
from holdfast.config import Given, ProjectFile, is_harmless, read_project, trust_project
from holdfast.config_files import PROJECT_FILE, current_directory, revoke_trust
from holdfast.engine.running.launching import SESSION_VARIABLE
from holdfast.errors import ConfigError, Refused


@command(
    "trust",
    "printf 'workspace = \"payments\"\\n' > .holdfast.toml && holdfast trust --show && holdfast trust",
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--show", is_flag=True, help="Only print the settings, and whether the file is trusted.")
@click.option("--revoke", is_flag=True, help="Stop trusting the file.")
@pass_invocation
def trust(run: Invocation, directory: Path | None, show: bool, revoke: bool) -> None:
    """Apply all settings of a project's file.

    A .holdfast.toml comes with a checkout, so somebody else may have written it: until you trust it, only safe
    settings apply. The store, tokens, commands, addresses, retention and rights are ignored. Trust is valid for
    this path until the file's content changes.
    """
    if show and revoke:
        raise click.UsageError("--show or --revoke, not both")
    here = current_directory(os.environ) / (directory or "")
    found = read_project(os.environ, here)
    if found is None:
        raise ConfigError(
            str(here), f"no {PROJECT_FILE} in this directory, nor above it in the same repository"
        )
    if revoke:
        was_trusted = revoke_trust(os.environ, found.path)
        _tell(
            run,
            read_project(os.environ, here) or found,
            "no longer trusted" if was_trusted else "was not trusted",
        )
        return
    if show:
        _tell(run, found, "trusted" if found.is_trusted else "not trusted")
        return
    if os.environ.get(SESSION_VARIABLE):
        raise Refused("person_needed", "an agent cannot trust a project's settings: only a person can")
    _tell(run, trust_project(os.environ, found), "trusted")


def _tell(run: Invocation, project: ProjectFile, state: str) -> None:
    given = sorted(project.given, key=lambda given: given.key.name)
    if run.json:
        output.document(
            {
                "path": str(project.path),
                "trusted": project.is_trusted,
                "settings": {one.key.name: shown_value(one.key.name, one.value) for one in given},
                "needs_trust": [one.key.name for one in given if not is_harmless(one.key.name)],
            }
        )
        return
    output.say(f"{state}: {project.path}")
    rows = [
        (one.key.name, cell(shown_value(one.key.name, one.value) + _effect(one, project))) for one in given
    ]
    if rows:
        output.blocks([Fields(tuple(rows))])


def _effect(given: Given, project: ProjectFile) -> str:
    return "" if project.takes_effect(given.key.name) else " (ignored)"
