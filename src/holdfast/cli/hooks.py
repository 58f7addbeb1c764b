"""Owns the commands about hooks: hooks installs them, hook answers one, observed lists the sessions that they saw.

An agent's program calls ``holdfast hook EVENT`` without options; ``main`` answers that before it imports this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Block, Cell, Column, Fields, Line, Table, Tone, cell
from holdfast.clock import Instant, age, system_clock, to_iso
from holdfast.config import Settings, state_dir
from holdfast.config_files import current_directory
from holdfast.domain.observed import ObservedSession
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.hooks.installation import (
    Changed,
    change_hooks,
    command_entries,
    http_entries,
    project_settings,
    user_settings,
    with_entries,
    without_entries,
)
from holdfast.hooks.main import EVENTS, main
from holdfast.hooks.status import (
    Extent,
    HookServer,
    HookStatus,
    ScopeStatus,
    ask_server,
    check_hooks,
    hook_status,
    token_for,
)

_PROGRAM = "holdfast"
_SETTINGS_COLUMNS = (
    Column("SETTINGS", whole=True),
    Column("HOOKS", whole=True),
    Column("FILE"),
    Column("NOTE", wraps=True),
)
_SESSION_COLUMNS = (
    Column("PROVIDER SESSION", whole=True),
    Column("STATE", whole=True),
    Column("SEEN", whole=True),
    Column("TOKENS IN", whole=True),
    Column("TOKENS OUT", whole=True),
    Column("CONTEXT", whole=True),
    Column("DIRECTORY"),
)
_TONES = {
    Extent.INSTALLED: Tone.GOOD,
    Extent.NOT: Tone.DIM,
    Extent.PARTLY: Tone.WARN,
    Extent.UNREADABLE: Tone.BAD,
}


@command(
    "hooks",
    "holdfast hooks install && holdfast hooks status",
    "holdfast hooks install --project",
    "holdfast hooks install --http http://127.0.0.1:8787",
    "holdfast hooks uninstall",
)
@click.argument("action", type=click.Choice(["install", "status", "uninstall"]))
@click.option("--user", is_flag=True, help="In your own settings, for every project; the default.")
@click.option("--project", is_flag=True, help="In this project's settings, for everyone who works on it.")
@click.option(
    "--http",
    metavar="URL",
    help="Let Claude Code call a running `holdfast serve`, with the token in HOLDFAST_TOKEN.",
)
@pass_invocation
@click.pass_context
def hooks(
    ctx: click.Context, run: Invocation, action: str, user: bool, project: bool, http: str | None
) -> None:
    """Make Claude Code call Holdfast: install, status, uninstall.

    Subagents then get durable sessions, and Holdfast knows the sessions that you begin by hand. Only
    Holdfast's own entries of the settings file are written or removed; the text from before is kept beside the
    file. The exit code of `status` is 0 if the hooks are called, and if the server that they are sent to accepts
    them with the token in HOLDFAST_TOKEN; else 1. The plugin of the same name does the same as `install`.
    """
    if http is not None and action != "install":
        raise click.UsageError("--http is for install")
    if user and project:
        raise click.UsageError("--user or --project, not both")
    if action == "status":
        if user or project:
            raise click.UsageError("status looks at all settings")
        ctx.exit(_status(run))
    path = (
        project_settings(os.environ, current_directory(os.environ)) if project else user_settings(os.environ)
    )
    if action == "uninstall":
        _tell(
            run,
            change_hooks(path, without_entries),
            "the hooks were removed",
            "there were no hooks of Holdfast",
        )
        return
    programs = _programs()
    wanted = command_entries(*programs) if http is None else http_entries(_address(http), *programs)
    _tell(
        run,
        change_hooks(path, lambda found: with_entries(found, wanted)),
        "the hooks were installed",
        "the hooks are installed",
    )


def _programs() -> tuple[str, ...]:
    """The program that runs now, then the one on the PATH, for a colleague's machine."""
    called = Path(sys.argv[0])
    installed = called if called.name == _PROGRAM else Path(sys.executable).with_name(_PROGRAM)
    return (str(installed.absolute()), _PROGRAM)


def _address(given: str) -> str:
    url = urlsplit(given)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise InvalidInput("--http", "must be the address of a server, such as http://127.0.0.1:8787")
    if url.username is not None:
        raise InvalidInput("--http", "must not hold a password; the token is taken from HOLDFAST_TOKEN")
    return given


def _tell(run: Invocation, done: Changed, changed: str, unchanged: str) -> None:
    if run.json:
        backup = None if done.backup is None else str(done.backup)
        output.document({"path": str(done.path), "changed": done.is_changed, "backup": backup})
        return
    kept = "" if done.backup is None else f" (before: {done.backup.name})"
    output.say(f"{changed if done.is_changed else unchanged}: {done.path}{kept}")


# --- status ---


def _status(run: Invocation) -> int:
    found = hook_status(os.environ, current_directory(os.environ))
    settings = _settings(run)
    servers = [
        ask_server(address, token_for(found, address, os.environ, settings)) for address in found.addresses
    ]
    problem, last = _store_problem(run), _last_call()
    if run.json:
        output.document(
            {**_document(found, problem, last), "servers": [asdict(server) for server in servers]}
        )
    else:
        output.blocks(_blocks(found, servers, problem, last))
    return 0 if found.installed and not any(server.problem for server in servers) else 1


def _settings(run: Invocation) -> Settings | None:
    """None if they cannot be read."""
    try:
        return run.settings()
    except HoldfastError:
        return None


def _store_problem(run: Invocation) -> str | None:
    """None if the hooks can write into the store."""
    try:
        run.holdfast.store.now()
    except HoldfastError as exc:
        return exc.message
    return None


def _last_call() -> Instant | None:
    """When a hook last wrote into the log."""
    try:
        return Instant((state_dir(os.environ) / "hooks.log").stat().st_mtime_ns // 1000)
    except (OSError, HoldfastError):
        return None


def _document(found: HookStatus, problem: str | None, last: Instant | None) -> dict[str, object]:
    return {
        "installed": found.installed,
        "hooks_disabled": found.hooks_disabled,
        "plugin_enabled": found.plugin_enabled,
        "called_twice": found.called_twice,
        "store_problem": problem,
        "last_call_at": None if last is None else to_iso(last),
        "settings": [_scope_document(scope) for scope in found.scopes],
    }


def _scope_document(scope: ScopeStatus) -> dict[str, object]:
    return {
        "scope": scope.scope,
        "path": str(scope.path),
        "hooks": scope.extent.value,
        "missing": list(scope.missing),
        "broken": list(scope.broken),
        "http": list(scope.addresses),
        "problem": scope.problem,
    }


def _blocks(
    found: HookStatus, servers: Sequence[HookServer], problem: str | None, last: Instant | None
) -> list[Block]:
    plugin = "installed" if found.plugin_enabled else "not installed"
    if found.called_twice:
        plugin += ": every hook is called twice and recorded once; `holdfast hooks uninstall` ends that"
    fields = [
        ("hooks", _calls(found, servers)),
        ("plugin", cell(plugin)),
        ("store", cell(problem or "can be opened", _tone(problem is None))),
        (
            "last call",
            cell("never, as far as the log goes" if last is None else f"{age(last, system_clock())} ago"),
        ),
    ]
    for server in servers:
        told = f"{server.address}: {server.problem or 'answers'}"
        fields.append(("server", cell(told, _tone(server.problem is None))))
    if found.hooks_disabled:
        fields.append(("disabled", cell("disableAllHooks is set in Claude Code's settings", Tone.BAD)))
    return [Fields(tuple(fields)), Table(_SETTINGS_COLUMNS, tuple(map(_row, found.scopes)))]


def _calls(found: HookStatus, servers: Sequence[HookServer]) -> Cell:
    if not found.installed:
        return cell("are not called", Tone.BAD)
    if not all(server.answers for server in servers):
        return cell("are sent to a server that does not answer", Tone.BAD)
    if any(server.problem for server in servers):
        return cell("are refused by the server", Tone.BAD)
    return cell("are called", Tone.GOOD)


def _tone(is_good: bool) -> Tone:
    return Tone.GOOD if is_good else Tone.BAD


def _row(scope: ScopeStatus) -> tuple[Cell, ...]:
    notes = [scope.problem] if scope.problem else []
    notes += [f"cannot be started: {program}" for program in scope.broken]
    notes += [f"not called for {', '.join(scope.missing)}"] if scope.missing else []
    notes += [f"over {address}" for address in scope.addresses]
    extent = cell(scope.extent.value, Tone.WARN if scope.broken else _TONES[scope.extent])
    return (cell(scope.scope, Tone.STRONG), extent, cell(scope.path), cell("; ".join(notes)))


# --- hook ---


@command(
    "hook",
    """echo '{"agent_name": "terraform-architect", "task_id": "T001"}' | holdfast hook pre-delegate""",
    """echo '{"agent_id": "agent-20260108-180530-abc12345", "exit_code": 0}' | holdfast hook subagent-stop""",
    "holdfast hook pre-delegate --test",
)
@click.argument("event", type=click.Choice(list(EVENTS)))
@click.option("--test", is_flag=True, help="Check that hooks work here, on a temporary store.")
@pass_invocation
def hook(run: Invocation, event: str, test: bool) -> None:
    """Answer an event of an agent's program.

    Reads JSON from standard input, and prints JSON or nothing. The exit code is always 0, so that a hook never
    stops an agent; problems are in ~/.local/state/holdfast/hooks.log.
    """
    if test:
        click.get_current_context().exit(_self_check())
    for variable, given in (("HOLDFAST_URL", run.url), ("HOLDFAST_WORKSPACE", run.workspace)):
        if given is not None:
            os.environ[variable] = given
    click.get_current_context().exit(main(event))


def _self_check() -> int:
    code = 0
    for check in check_hooks():
        if check.passed:
            output.say(f"ok      {check.what}: {check.found}")
        else:
            output.say(f"FAILED  {check.what}: {check.found}, expected {check.expected}")
            code = 1
    return code


# --- observed ---


@command("observed", "holdfast observed", "holdfast observed --json --limit 10")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N",
              help="At most so many.")  # fmt: skip
@pass_invocation
def observed(run: Invocation, limit: int) -> None:
    """List the sessions that hooks have seen, the latest first.

    Sessions of the agent's own program, started by Holdfast or by hand, also those in which nothing was said yet.
    `holdfast list` has all others. Tokens and context are those of the main agent.
    """
    store = run.holdfast.store
    seen = store.observed_sessions(limit)
    if run.json:
        output.document({"observed": [_session_document(session) for session in seen]})
    elif not output.is_terminal():
        for session in seen:
            output.line(
                session.id,
                _state(session),
                to_iso(session.last_seen_at),
                *_figures(session),
                session.cwd or "",
            )
    elif seen:
        output.blocks(
            [Table(_SESSION_COLUMNS, tuple(_session_row(session, store.now()) for session in seen))]
        )
    else:
        output.blocks([Line(cell("no session was seen by a hook", Tone.DIM))])


def _state(session: ObservedSession) -> str:
    return "open" if session.ended_at is None else "ended"


def _figures(session: ObservedSession) -> tuple[int, int, int | str]:
    return session.input_tokens, session.output_tokens, session.context_tokens or ""


def _session_row(session: ObservedSession, now: Instant) -> tuple[Cell, ...]:
    return (
        cell(session.id, Tone.STRONG),
        cell(_state(session), Tone.PLAIN if session.ended_at is None else Tone.DIM),
        cell(age(session.last_seen_at, now)),
        *(cell(figure) for figure in _figures(session)),
        cell(session.cwd or "", Tone.DIM),
    )


def _session_document(session: ObservedSession) -> dict[str, object]:
    return {
        "provider": session.provider,
        "provider_session_id": session.id,
        "source": session.source,
        "work_dir": session.cwd,
        "transcript_path": session.transcript_path,
        "started_at": to_iso(session.started_at),
        "last_seen_at": to_iso(session.last_seen_at),
        "ended_at": None if session.ended_at is None else to_iso(session.ended_at),
        "end_reason": session.end_reason,
        "compactions": session.compactions,
        "input_tokens": session.input_tokens,
        "cached_input_tokens": session.cached_input_tokens,
        "output_tokens": session.output_tokens,
        "context_tokens": session.context_tokens,
        "context_window": session.context_window,
        "context_state": session.context_state,
    }
