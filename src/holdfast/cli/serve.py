"""Owns the command that runs the server."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.errors import ConfigError


@command("serve", "holdfast serve --port 8787")
@click.option("--host", default="127.0.0.1", show_default=True, help="The loopback address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8787,
    show_default=True,
    help="The port to listen on; 0: any free one, which is printed.",
)
@pass_invocation
def serve(run: Invocation, host: str, port: int) -> None:
    """Answer over HTTP on this machine until stopped.

    Claude Code's hooks can ask it instead of starting a process for each: holdfast hooks install --http
    """
    try:
        from holdfast.web.server import serve_until_stopped
        from holdfast.web.serving import Workspaces
    except ImportError as exc:
        raise ConfigError("serve", "the server needs an extra: pip install 'holdfast[server]'") from exc
    workspaces = Workspaces(run.settings().workspace, run.holdfast.within)
    serve_until_stopped(workspaces, host, port, lambda url: _announce(run, url))


def _announce(run: Invocation, url: str) -> None:
    if run.json:
        output.record({"url": url})
    else:
        output.say(f"listening on {url}")
        output.flush()
