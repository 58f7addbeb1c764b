"""Owns shell completion: the scripts, and the sessions, providers and models that match the typed text."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from holdfast.cli import output
from holdfast.cli.answers import completed_sessions
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.light import MOST_COMPLETED
from holdfast.config import default_url
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.engine.default import open_with
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.escape import one_line
from holdfast.providers.registry import BUILT_IN, provider_names
from holdfast.store.open import sqlite_path

T = TypeVar("T")


@command("completion", "holdfast completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_invocation
@click.pass_context
def completion(ctx: click.Context, run: Invocation, shell: str) -> None:
    """Print the script for completion in a shell.

    Completes commands, options, sessions, providers and models that were used. Load it when your shell starts; in bash:

    \b
      eval "$(holdfast completion bash)"
    """
    root = ctx.find_root()
    program = root.info_name or ""
    found = get_completion_class(shell)
    assert found is not None, "click knows these three"
    script = found(root.command, {}, program, f"_{program.upper()}_COMPLETE").source()
    if run.json:
        output.document({"shell": shell, "script": script})
    else:
        click.echo(script)


def sessions_like(run: Invocation, incomplete: str) -> list[CompletionItem]:
    """Returns names and ids of the sessions that were active last, each with its title."""
    found = completed_sessions(_look(run, _sessions), incomplete)
    return [CompletionItem(word, help=told) for word, told in found]


def providers_like(incomplete: str) -> list[str]:
    try:
        names = provider_names()
    except ConfigError:  # two packages offer the same: the command says so, not the Tab key
        names = tuple(BUILT_IN)
    return [name for name in names if name.startswith(incomplete)]


def models_like(run: Invocation, provider: str | None, incomplete: str) -> list[str]:
    """Returns the models that were used last; with a provider, only its models."""

    def models(holdfast: Holdfast) -> list[str]:
        return [
            pointer.model
            for session in _sessions(holdfast)
            for pointer in holdfast.store.pointers(session.id)
            if pointer.model is not None and provider in (None, pointer.provider)
        ]

    found = dict.fromkeys(_look(run, models))
    return [model for model in found if model.startswith(incomplete) and model == one_line(model)]


def _sessions(holdfast: Holdfast) -> list[Session]:
    return list(holdfast.page(SessionFilter(by_activity=True), MOST_COMPLETED).sessions)


def _look(run: Invocation, read: Callable[[Holdfast], list[T]]) -> list[T]:
    """Reads from the store; nothing if that would be slow, fail or create a file."""
    try:
        settings = run.settings()
        url = settings.url or default_url(os.environ)
        path = sqlite_path(url) if url.startswith("sqlite:") else None
        if path is None or not path.is_file():
            return []
        with open_with(settings) as holdfast:
            return read(holdfast)
    except Exception:  # noqa: BLE001 - a person who presses Tab must not be answered with an error
        return []
