"""Owns shell completion: the scripts, and the sessions that match the typed text."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.escape import one_line
from holdfast.config import default_url
from holdfast.domain.sessions import SessionFilter
from holdfast.engine.default import open_with
from holdfast.store.open import sqlite_path

_MOST = 200


@command("completion", "holdfast completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_invocation
@click.pass_context
def completion(ctx: click.Context, run: Invocation, shell: str) -> None:
    """Print the script for completion in a shell.

    Completes commands, options and sessions. Load it when your shell starts, in bash with: eval "$(holdfast completion bash)"
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


def complete_session(run: Invocation, incomplete: str) -> list[CompletionItem]:
    """Returns names and ids of the newest sessions; none if reading them would be slow, fail or create a file."""
    try:
        settings = run.settings()
        url = settings.url or default_url(os.environ)
        path = sqlite_path(url) if url.startswith("sqlite:") else None
        if path is None or not path.is_file():
            return []
        with open_with(settings) as holdfast:
            sessions = holdfast.page(SessionFilter(), _MOST).sessions
    except Exception:  # noqa: BLE001 - a person who presses Tab must not be answered with an error
        return []
    return [
        CompletionItem(word, help=one_line(f"{session.phase} {session.agent}"))
        for session in sessions
        for word in (session.name, session.id)
        if word is not None and word.startswith(incomplete) and word == one_line(word)
    ]
