"""Owns the command that runs the server."""

from __future__ import annotations

from contextlib import nullcontext

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.json_logs import logged_as_json
from holdfast.errors import ConfigError


@command("serve", "holdfast serve --port 8787")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; one that others can reach only if there are tokens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8787,
    show_default=True,
    help="The port to listen on; 0: any free one, which is printed.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Requests a second that one token, or one address, may make.",
)
@click.option("--log-json", is_flag=True, help="Every line as JSON, and one for each request.")
@pass_invocation
def serve(run: Invocation, host: str, port: int, rate: float, log_json: bool) -> None:
    """Answer over HTTP until stopped.

    Before the first token is made, to programs on this machine; from then on, to whoever has one.
    Claude Code's hooks can ask it instead of starting a process for each: holdfast hooks install --http
    """
    try:
        from holdfast.web.server import Listening, serve_until_stopped
    except ImportError as exc:
        raise ConfigError(
            "serve", "the server needs an extra: pip install 'holdfast-sessions[server]'"
        ) from exc
    as_json = run.json or log_json
    with logged_as_json(run) if log_json else nullcontext():
        serve_until_stopped(
            run.holdfast, Listening(host, port, rate), lambda url: _announce(url, as_json=as_json)
        )


def _announce(url: str, *, as_json: bool) -> None:
    if as_json:
        output.record({"url": url})
    else:
        output.say(f"listening on {url}")
        output.flush()
