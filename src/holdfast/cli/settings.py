"""Owns the command config: every setting with its value and where it comes from, and editing the user's file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.listing import project_words
from holdfast.cli.output import Cell, Column, Line, Tone, cell, tell
from holdfast.config import (
    DEFAULT,
    ProjectFile,
    Settings,
    default_url,
    load_settings,
    origin,
    read_project,
    setting_keys,
)
from holdfast.config_files import current_directory, new_user_file, user_file
from holdfast.domain.redaction import redact_text
from holdfast.engine.running.launching import SESSION_VARIABLE
from holdfast.errors import ConfigError, Refused

_ADDRESSES = ("url", "notify.webhook")
_COMMANDS = ("notify.command", "vault.key_command")  #: their arguments may be secret


@command("config", "holdfast config show", "holdfast config show --json")
@click.argument("action", type=click.Choice(["show", "edit"]))
@click.option("--no-pager", is_flag=True, help="Do not open a pager on a terminal.")
@pass_invocation
def config(run: Invocation, action: str, no_pager: bool) -> None:
    """Show every setting and its source, or edit your file.

    show: the value of every setting, and where it comes from: a flag, a variable, the project's file, your own
    file, or the default. Secrets are not shown. In a pipe, prints one line for each, separated by tabs: key,
    value, source.

    edit: opens your own file in $VISUAL or $EDITOR, and then checks it.
    """
    if action == "edit":
        _edit(run)
        return
    settings = run.settings()
    for notice in settings.notices:
        tell(notice)
    rows = list(_rows(settings))
    if run.json:
        _as_json(rows)
    elif output.is_terminal():
        _on_terminal(rows, in_pager=not no_pager)
    else:
        for row in rows:
            output.line(*row)


def _rows(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Key, value in words, source; the entries of a table one by one."""
    for name in setting_keys():
        value = _value(settings, name)
        if isinstance(value, Mapping) and value:
            for entry, one in sorted(value.items()):
                key = f"{name}.{entry}"
                yield key, shown_value(key, one), settings.sources.get(key, DEFAULT)
        else:
            yield name, shown_value(name, value), settings.sources.get(name, DEFAULT)


def _value(settings: Settings, name: str) -> Any:
    if name == "url" and settings.url is None:
        return default_url(os.environ)
    table, _, field = name.rpartition(".")
    if not table:
        return getattr(settings, field)
    policy = settings.policy
    # ``continue`` is a keyword, so its field is ``continue_``
    return getattr(getattr(policy, table, None) or getattr(policy, f"{table}_"), field)


def _as_json(rows: list[tuple[str, str, str]]) -> None:
    mine, project = _files()
    output.document(
        {
            "user_file": mine,
            "project_file": None if project is None else str(project.path),
            "project_trusted": None if project is None else project.is_trusted,
            "settings": {key: {"value": value, "source": source} for key, value, source in rows},
        }
    )


def _on_terminal(rows: list[tuple[str, str, str]], *, in_pager: bool) -> None:
    from holdfast.cli.pager import page  # for people only
    from holdfast.cli.terminal import draw, draw_rows

    columns = (Column("SETTING", whole=True), Column("VALUE"), Column("FROM", whole=True))
    mine, project = _files()
    names = {mine: "your file", None if project is None else str(project.path): "project file"}
    texts = [*draw_rows(columns, [_cells(key, value, names.get(at, at)) for key, value, at in rows])]
    if mine is not None:
        texts.append("\n" + draw(Line(cell(f"your file: {project_words(mine, whole=True)}", Tone.DIM))))
    if project is not None:
        trusted = "" if project.is_trusted else " (not trusted: see holdfast trust --show)"
        where = f"project file: {project_words(str(project.path), whole=True)}{trusted}"
        texts.append(draw(Line(cell(where, Tone.DIM))))
    if in_pager:
        page(texts)
    else:
        output.write("".join(texts))


def _files() -> tuple[str | None, ProjectFile | None]:
    here = current_directory(os.environ)
    mine = user_file(os.environ, here)
    return None if mine is None else str(mine), read_project(os.environ, here)


def _cells(key: str, value: str, source: str) -> tuple[Cell, ...]:
    is_default = source == DEFAULT
    return (
        cell(key, Tone.PLAIN if is_default else Tone.STRONG),
        cell(value, Tone.DIM if is_default else Tone.PLAIN),
        cell(source, Tone.DIM if is_default else Tone.GOOD),
    )


def shown_value(key: str, value: object) -> str:
    """A setting's value for a person, without tokens, and without passwords in addresses."""
    if value is None:
        known = setting_keys().get(key)
        return "off" if known is not None and '"off"' in known.expected else "–"
    if key == "token":
        return "hft_…"
    if key in _COMMANDS:
        return f"{str(value).split()[0]} …"
    if key in _ADDRESSES and "://" in str(value) and not str(value).startswith("sqlite:"):
        return origin(str(value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{entry} = {_plain(on)}" for entry, on in sorted(value.items())) or "–"
    return redact_text(_plain(value))


def _plain(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- editing ---

_TEMPLATE = """\
# Settings of Holdfast for you, on this machine. `holdfast config show` lists every setting and its value;
# docs/reference/configuration.md says what each means. For example:
#
# [run]
# provider = "claude"
"""


def _edit(run: Invocation) -> None:
    if os.environ.get(SESSION_VARIABLE):
        raise Refused("person_needed", "an agent cannot edit a person's settings: only a person can")
    if run.json or not output.is_terminal() or sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("config edit needs a terminal; to see the settings: holdfast config show")
    here = current_directory(os.environ)
    path = new_user_file(os.environ, here, _TEMPLATE)
    click.edit(filename=str(path))
    try:
        load_settings(environ=os.environ, cwd=here)
    except ConfigError as exc:
        raise ConfigError(exc.where, f"{exc.problem}; to mend it: holdfast config edit") from exc
    output.say(f"saved: {project_words(str(path), whole=True)}")
