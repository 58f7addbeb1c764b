"""Owns the command trust: whether all of a project's settings count, or only the harmless ones."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Fields, cell
from holdfast.config import Given, ProjectFile, is_harmless, origin, read_project, trust_project
from holdfast.config_files import PROJECT_FILE, current_directory, revoke_trust
from holdfast.engine.running.setting import SESSION_VARIABLE
from holdfast.errors import ConfigError, Refused

_ADDRESSES = ("url", "notify.webhook")


@command(
    "trust",
    "printf 'workspace = \"payments\"\\n' > .holdfast.toml && holdfast trust --show && holdfast trust",
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--show", is_flag=True, help="Only say what it sets, and whether it is trusted.")
@click.option("--revoke", is_flag=True, help="Trust it no more.")
@pass_invocation
def trust(run: Invocation, directory: Path | None, show: bool, revoke: bool) -> None:
    """Let all settings of a project's file count.

    A .holdfast.toml comes with a checkout, so it may be a stranger's: until you have trusted it, only settings
    count that can do no harm. Where the store is, tokens, commands, addresses, retention and rights do not.
    Trust holds for this file in this place, until its content changes.
    """
    if show and revoke:
        raise click.UsageError("--show or --revoke, not both")
    here = current_directory(os.environ) / (directory or "")
    found = read_project(os.environ, here)
    if found is None:
        raise ConfigError(str(here), f"there is no {PROJECT_FILE} here, nor above in the same repository")
    if revoke:
        was_trusted = revoke_trust(os.environ, found.path)
        _tell(
            run,
            read_project(os.environ, here) or found,
            "trusted no more" if was_trusted else "was not trusted",
        )
        return
    if show:
        _tell(run, found, "trusted" if found.is_trusted else "not trusted")
        return
    if os.environ.get(SESSION_VARIABLE):
        raise Refused("person_needed", "an agent cannot trust a project's settings: a person has to do it")
    _tell(run, trust_project(os.environ, found), "trusted")


def _tell(run: Invocation, project: ProjectFile, state: str) -> None:
    given = sorted(project.given, key=lambda given: given.key.name)
    if run.json:
        output.document(
            {
                "path": str(project.path),
                "trusted": project.is_trusted,
                "settings": {one.key.name: _shown(one) for one in given},
                "needs_trust": [one.key.name for one in given if not is_harmless(one.key.name)],
            }
        )
        return
    output.say(f"{state}: {project.path}")
    rows = [(one.key.name, cell(_shown(one) + _effect(one, project))) for one in given]
    if rows:
        output.blocks([Fields(tuple(rows))])


def _effect(given: Given, project: ProjectFile) -> str:
    ignored = not project.is_trusted and not is_harmless(given.key.name)
    return " (ignored)" if ignored else ""


def _shown(given: Given) -> str:
    """Enough to judge it; neither a token nor a password in an address."""
    name, value = given.key.name, given.value
    if name == "token":
        return "hft_…"
    if name in _ADDRESSES and "://" in str(value) and not str(value).startswith("sqlite:"):
        return origin(str(value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    if isinstance(value, dict):
        return ", ".join(f"{entry} = {_plain(on)}" for entry, on in sorted(value.items()))
    return _plain(value)


def _plain(value: object) -> str:
    if value is None:
        return "off"
    return str(value).lower() if isinstance(value, bool) else str(value)
