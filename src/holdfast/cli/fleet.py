"""Owns the commands of a fleet: worker and serve with their log, runtimes and recover."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import click

from holdfast.cli import output
from holdfast.cli.arguments import provider_option
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Table, Tone, cell
from holdfast.clock import SECOND, Instant, age, to_iso
from holdfast.domain.redaction import redact_text
from holdfast.domain.runtimes import Capabilities, KnownRuntime, Runtime
from holdfast.engine.documents import known_runtime_document, runtime_document, turn_document
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.log_subject import log_subject
from holdfast.engine.watched import take_in_watched
from holdfast.engine.worker import Worker, WorkerOptions
from holdfast.errors import ConfigError, HoldfastError, MissingBinary
from holdfast.hooks.spool import empty_spool

_MOST_SLOTS = 256
_UI_SLOTS = 2
_UI_DRAIN = 5.0
_UI_RATE = 1000.0


@command("worker", "holdfast worker --once", "holdfast worker --provider scripted --slots 2 --once")
@provider_option(help="Run turns of this provider; by default of every installed one.", several=True)
@click.option(
    "--slots",
    type=click.IntRange(1, _MOST_SLOTS),
    default=1,
    show_default=True,
    help="Turns to run at the same time.",
)
@click.option("--once", is_flag=True, help="Exit when no turn can be run now.")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM, let running turns continue for this time before they go back to the queue.",
)
@click.option(
    "--log-json", is_flag=True, help="Log as JSON: the session, turn and attempt are fields of each line."
)
@pass_invocation
def worker(
    run: Invocation, providers: tuple[str, ...], slots: int, once: bool, drain: float, log_json: bool
) -> None:
    """Run queued turns until stopped.

    Takes over the turns of dead workers, renews its leases, and keeps working after a restart of the database.
    After SIGTERM, SIGINT or SIGHUP it takes no new turn, lets running turns end, and puts back those that take
    longer; a second signal puts them back at once.
    """
    logging.getLogger("holdfast").setLevel(logging.INFO)
    with logged_as_json(run) if log_json else nullcontext():
        settings, store = run.settings(), run.holdfast.store

        def hand_over() -> None:
            empty_spool(store, settings, os.environ)
            take_in_watched(run.holdfast)

        options = WorkerOptions(slots, once, drain, hand_over)
        _work(run.holdfast.worker(providers, options))


def _work(working: Worker) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        working.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    working.run()


# --- serve ---


@command("serve", "holdfast serve --port 8787")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; other machines can be served only once there is a token.",
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

    Without tokens it serves programs on this machine only; with tokens, every program that has one.
    Claude Code's hooks can call it instead of starting processes: holdfast hooks install --http
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
        output.json_line({"url": url})
    else:
        output.say(f"listening on {url}")
        output.flush()


# --- ui ---


@command("ui", "holdfast ui", "holdfast ui --no-browser")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port to listen on; by default any free one, which is printed.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--no-worker", is_flag=True, help="Run no turns: others do.")
@pass_invocation
def ui(run: Invocation, port: int, no_browser: bool, no_worker: bool) -> None:
    """Show your sessions in a browser, and answer your agents.

    Prints an address with a code that lets one browser in, once, and opens it. Listens on this machine only. A worker
    runs the turns that you continue on the page, until you stop the command with Ctrl-C.
    """
    try:
        from holdfast.web.page.login import Entrance
        from holdfast.web.server import Listening, serve_until_stopped
    except ImportError as exc:
        raise ConfigError("ui", "the page needs an extra: pip install 'holdfast-sessions[server]'") from exc
    code = secrets.token_urlsafe(24)

    def announce(url: str) -> None:
        address = f"{url}/login?code={code}"
        if run.json:
            output.json_line({"url": url, "login_url": address})
        else:
            output.say(f"open {address}")
            output.flush()
        if not no_browser and _has_browser():
            webbrowser.open(address)

    with nullcontext() if no_worker else _worker_beside(run):
        entrance = Entrance(secrets.token_urlsafe(32), code)
        serve_until_stopped(run.holdfast, Listening("127.0.0.1", port, _UI_RATE), announce, entrance)


def _has_browser() -> bool:
    """Whether somebody looks at this machine: a browser in a terminal would fight with what the command prints."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


@contextmanager
def _worker_beside(run: Invocation) -> Iterator[None]:
    """Runs turns in the block. Without an installed agent there is no worker; the page says so."""
    settings, store = run.settings(), run.holdfast.store

    def hand_over() -> None:
        empty_spool(store, settings, os.environ)
        take_in_watched(run.holdfast)

    try:
        working = run.holdfast.worker(
            (), WorkerOptions(_UI_SLOTS, drain_seconds=_UI_DRAIN, hand_over=hand_over)
        )
    except MissingBinary as exc:
        log.warning("no worker runs beside the page: %s", exc.message)
        yield
        return
    thread = threading.Thread(target=working.run, name="holdfast worker")
    thread.start()
    try:
        yield
    finally:
        working.stop()
        thread.join()


# --- runtimes and recover ---

_SHORT = 12  #: characters of a machine's id

_HERE_COLUMNS = (
    Column("PROVIDER", whole=True),
    Column("VERSION", whole=True),
    Column("BINARY"),
    Column("CAN", wraps=True),
)


_KNOWN_COLUMNS = (
    Column("RUNTIME", whole=True),
    Column("PROVIDER", whole=True),
    Column("VERSION", whole=True),
    Column("SEEN", whole=True),
    Column("MACHINE", whole=True),
    Column("HOME"),
)


@command("runtimes", "holdfast runtimes", "holdfast runtimes --all")
@click.option(
    "--all", "everywhere", is_flag=True, help="Show the runtimes that workers have used, on any machine."
)
@pass_invocation
def runtimes(run: Invocation, everywhere: bool) -> None:
    """Show which agents this machine has, and what they can do.

    The binary is set by HOLDFAST_CLAUDE_BINARY and the like, else found on PATH; its abilities are asked for
    again when it changes. A session is resumed only on the runtime that it used before.
    """
    if everywhere:
        _show_known(run)
        return
    found = run.holdfast.agents.all()
    if run.json:
        output.document({"runtimes": [_document(name, agent) for name, agent in found.items()]})
    else:
        output.blocks([Table(_HERE_COLUMNS, tuple(_row(name, agent) for name, agent in found.items()))])


def _show_known(run: Invocation) -> None:
    store = run.holdfast.store
    known, now = store.runtimes(), store.now()
    if run.json:
        output.document({"runtimes": [known_runtime_document(one) for one in known]})
    else:
        output.blocks([Table(_KNOWN_COLUMNS, tuple(_known_row(one, now) for one in known))])


def _known_row(known: KnownRuntime, now: Instant) -> tuple[Cell, ...]:
    runtime = known.runtime
    seen = f"{age(known.last_seen_at, now)} ago"
    words = (known.id, runtime.provider, _version(runtime), seen, runtime.machine[:_SHORT], runtime.home)
    return tuple(map(cell, words))


def _document(name: str, agent: Agent | HoldfastError) -> dict[str, object]:
    if isinstance(agent, HoldfastError):
        return {"provider": name, "available": False, "problem": agent.message}
    return {"available": True, "binary": agent.binary, **runtime_document(agent.runtime)}


def _row(name: str, agent: Agent | HoldfastError) -> tuple[Cell, ...]:
    if isinstance(agent, HoldfastError):
        return (cell(name, Tone.DIM), cell("-"), cell("-"), cell(agent.message, Tone.DIM))
    runtime = agent.runtime
    abilities = cell(_abilities(runtime.capabilities))
    return (cell(name, Tone.STRONG), cell(_version(runtime)), cell(agent.binary), abilities)


def _version(runtime: Runtime) -> str:
    return f"{runtime.distribution} {runtime.version or '?'}"


def _abilities(can: Capabilities) -> str:
    words = {
        "resume": can.can_resume,
        "fork": can.can_fork,
        "choose its id": can.chooses_id,
        "prove its record": can.append_only_transcript,
        "tell its context": can.reports_context,
        "wait for approval": can.can_defer,
    }
    return ", ".join(word for word, able in words.items() if able) or "only start"


@command("recover", "holdfast recover")
@pass_invocation
def recover(run: Invocation) -> None:
    """Take over the turns of workers that died.

    Ends what they left running, and frees their turns. Also ends agents here whose turns another machine took
    over, and frees sessions of subagents whose orchestrator was killed on this machine. `resume` does the same
    for its own session.
    """
    turns = run.holdfast.recover()
    if run.json:
        output.document({"recovered": [turn_document(turn) for turn in turns]})
    else:
        for turn in turns:
            output.line(turn.session_id, turn.seq, turn.status.value)
        if not turns and output.is_terminal():
            output.say("nothing to recover: the worker of every running turn is alive")


# --- the log as JSON ---

log = logging.getLogger("holdfast")


class JsonLines(logging.Formatter):
    """Formats a line as a JSON object; session, turn and attempt of its thread are fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": to_iso(Instant(int(record.created * SECOND))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **log_subject(),
        }
        about = getattr(record, "about", None)
        if isinstance(about, dict):
            line |= about
        if record.exc_info is not None:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


@contextmanager
def logged_as_json(run: Invocation) -> Iterator[None]:
    """Logs as JSON in the block; the error that ends the block is the last line."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    log.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_failed_thread
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as exc:
        _log_failure(exc)
        if run.json:
            raise
        raise click.exceptions.Exit(getattr(exc, "exit_code", 1)) from exc


def _log_failure(error: Exception) -> None:
    if isinstance(error, HoldfastError):
        log.error("%s", error.message, extra={"about": {"code": error.code}})
    else:
        log.error("internal error: %r", error, exc_info=error, extra={"about": {"code": "internal_error"}})


def _log_failed_thread(lost: threading.ExceptHookArgs) -> None:
    log.error("a thread failed: %r", lost.exc_value, exc_info=lost.exc_value)
