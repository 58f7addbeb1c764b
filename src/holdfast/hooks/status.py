"""Owns whether the hooks work here: which settings call them, whether their servers answer, and the self-check."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.clock import system_clock
from holdfast.config import TOKEN_VARIABLE, Settings, load_settings, origin
from holdfast.config_files import current_directory
from holdfast.domain.ids import make_session_id
from holdfast.domain.phases import Phase
from holdfast.domain.records import field, record
from holdfast.domain.sessions import NewSession, SessionUpdate
from holdfast.errors import ConfigError, Forbidden, Unauthenticated
from holdfast.hooks.installation import (
    HOOKS,
    WrongShape,
    addresses,
    installed_events,
    local_settings,
    project_settings,
    read_settings,
    tried_programs,
    user_settings,
)
from holdfast.hooks.main import respond
from holdfast.hooks.process import HookLog, find_project
from holdfast.processes.process import find_program
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.wire_errors import why_unreachable

_PLUGIN = "holdfast@"
_SECONDS = 2.0
_MOST_BYTES = 10_000
_LONGEST_MESSAGE = 200
_CHECKED_AGENT = "self-check"


class Extent(StrEnum):
    INSTALLED = "installed"
    PARTLY = "partly"  #: Claude Code calls us for some of the events only
    NOT = "not installed"
    UNREADABLE = "unreadable"  #: the file cannot be understood


@record
class ScopeStatus:
    """What one settings file says."""

    scope: str
    path: Path
    extent: Extent
    missing: tuple[str, ...] = ()  #: events without our hook, if the file has some of our hooks
    addresses: tuple[str, ...] = ()  #: of servers, for hooks over HTTP
    broken: tuple[str, ...] = ()  #: commands that cannot be started
    problem: str | None = None
    #: whether the file disables all hooks, and enables our plugin; None: the file does not say
    disables_hooks: bool | None = None
    enables_plugin: bool | None = None

    @property
    def works(self) -> bool:
        return self.extent is Extent.INSTALLED and not self.broken


@record
class HookStatus:
    scopes: tuple[ScopeStatus, ...] = field(default=())

    @property
    def hooks_disabled(self) -> bool:
        """The last file that says something takes precedence: local, then project, then user."""
        said = [scope.disables_hooks for scope in self.scopes if scope.disables_hooks is not None]
        return bool(said and said[-1])

    @property
    def plugin_enabled(self) -> bool:
        said = [scope.enables_plugin for scope in self.scopes if scope.enables_plugin is not None]
        return bool(said and said[-1])

    @property
    def called_twice(self) -> bool:
        """Both the plugin and the settings call each hook. Nothing is recorded twice."""
        return self.plugin_enabled and any(scope.works for scope in self.scopes)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers that Claude Code sends hooks to, each once."""
        return tuple(dict.fromkeys(address for scope in self.scopes for address in scope.addresses))

    @property
    def installed(self) -> bool:
        return (self.plugin_enabled or any(scope.works for scope in self.scopes)) and not self.hooks_disabled


def hook_status(environ: Mapping[str, str], cwd: Path) -> HookStatus:
    """Reads the settings of the user, of the project, and the user's own for the project."""
    files = {
        "user": user_settings(environ),
        "project": project_settings(environ, cwd),
        "local": local_settings(environ, cwd),
    }
    return HookStatus(tuple(_scope(name, path, environ) for name, path in files.items()))


def _scope(name: str, path: Path, environ: Mapping[str, str]) -> ScopeStatus:
    try:
        settings = read_settings(path)
        hooks = settings.get("hooks", {})
        events = installed_events(hooks)
    except (ConfigError, WrongShape) as exc:
        return ScopeStatus(name, path, Extent.UNREADABLE, problem=str(exc))
    extent = Extent.NOT if not events else Extent.INSTALLED if len(events) == len(HOOKS) else Extent.PARTLY
    return ScopeStatus(
        name,
        path,
        extent,
        missing=tuple(event for event in HOOKS if event not in events) if events else (),
        addresses=addresses(hooks),
        broken=tuple(
            programs[0]
            for programs in tried_programs(hooks)
            if not any(_starts(p, environ) for p in programs)
        ),
        disables_hooks=_said(settings.get("disableAllHooks")),
        enables_plugin=_plugin(settings.get("enabledPlugins")),
    )


def _starts(program: str, environ: Mapping[str, str]) -> bool:
    """The program exists, and so does the interpreter that its first line names."""
    found = find_program(program, environ)
    if found is None:
        return False
    with Path(found).open("rb") as file:
        first = file.readline(1000)
    interpreter = first[2:].split()[:1] if first.startswith(b"#!") else []
    return all(os.access(path, os.X_OK) for path in interpreter)


def _said(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _plugin(enabled: Any) -> bool | None:
    """The marketplace behind the ``@`` may have any name."""
    said = (
        [on for name, on in enabled.items() if name.startswith(_PLUGIN)] if isinstance(enabled, dict) else []
    )
    return any(said) if said else None


# --- servers ---


@record
class HookServer:
    address: str
    answers: bool  #: as a Holdfast server does, even if it refuses
    problem: str | None = None  #: None: the server accepts hooks


def token_for(
    found: HookStatus, address: str, environ: Mapping[str, str], settings: Settings | None
) -> str | None:
    """The token of the environment, but only for a server that the user has named: project settings may be a stranger's."""
    own = {one for scope in found.scopes if scope.scope == "user" for one in scope.addresses}
    is_configured = (
        settings is not None and settings.token is not None and origin(settings.url or "") == origin(address)
    )
    return environ.get(TOKEN_VARIABLE) if address in own or is_configured else None


def ask_server(address: str, token: str | None) -> HookServer:
    """Asks with the token that hooks are sent with. Waits two seconds at most, and changes nothing there."""
    try:
        status, document = _ask_server(address, token)
    except (OSError, HTTPException) as exc:
        return HookServer(address, answers=False, problem=f"no answer: {why_unreachable(exc)}")
    if status == HTTPStatus.OK and "events" in document:
        return HookServer(address, answers=True)
    if status == HTTPStatus.OK or "code" not in document:
        problem = f"it answers {status}, not as a Holdfast server does"
        return HookServer(address, answers=False, problem=problem)
    return HookServer(address, answers=True, problem=_refusal(document, token))


def _refusal(problem: dict[str, Any], token: str | None) -> str:
    if problem["code"] not in (Unauthenticated.code, Forbidden.code):
        return f"refuses hooks: {str(problem.get('detail'))[:_LONGEST_MESSAGE]}"
    refused = "refuses the token" if token else "asks for a token"
    return f"{refused}: set HOLDFAST_TOKEN to one of the role worker"


def _ask_server(address: str, token: str | None) -> tuple[int, dict[str, Any]]:
    """The status, and the document of the answer; an empty one if the answer is no JSON object."""
    url = urlsplit(address)
    make = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=_SECONDS)
    # http.client quotes a token that cannot stand in a header in its error: such a token is not sent at all
    sendable = token is not None and token.isascii() and token.isprintable()
    try:
        headers = {"Authorization": f"Bearer {token}"} if sendable else {}
        connection.request("GET", f"{url.path.rstrip('/')}/v1/hooks", headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    finally:
        connection.close()
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    return answer.status, document if isinstance(document, dict) else {}


# --- the self-check ---


@record
class Check:
    what: str
    expected: object
    found: object

    @property
    def passed(self) -> bool:
        return self.expected == self.found


def check_hooks() -> Iterator[Check]:
    """Runs the hooks around a subagent on a temporary store, with this machine's configuration otherwise."""
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        url = f"sqlite:///{Path(folder) / 'holdfast.db'}"
        own = {"HOLDFAST_URL": url, "XDG_STATE_HOME": folder, "XDG_CACHE_HOME": folder}
        settings = load_settings(environ=os.environ, cwd=current_directory(os.environ))
        store = open_store(url, workspace=settings.workspace, policy=settings.policy)
        try:
            yield from _checks(store, {**os.environ, **own})
        finally:
            store.close()


def _checks(store: Store, environ: Mapping[str, str]) -> Iterator[Check]:
    asked = {"agent_name": _CHECKED_AGENT, "task_id": "T001"}
    yield Check("a first delegation", "no_existing_session", _ask_hook(asked, environ)["reason"])
    session = store.create_session(
        NewSession(
            id=make_session_id(system_clock(), os.urandom(4)),
            agent=_CHECKED_AGENT,
            metadata={"task_id": "T001", "plan_file": "plan.json"},
            project=find_project(environ, os.getcwd()),
        )
    ).id
    store.update_session(session, SessionUpdate(phase=Phase.APPROVAL))
    found = _ask_hook(asked, environ)
    yield Check("a session that waits for an approval", session, found["agent_id"])
    kept = (found["resume_metadata"] or {}).get("session_metadata", {}).get("plan_file")
    yield Check("what it kept", "plan.json", kept)
    stopped = _respond("subagent-stop", {"agent_id": session, "exit_code": 0}, environ)
    yield Check("a subagent that stops for an approval", "paused", stopped["outcome"])
    store.update_session(session, SessionUpdate(phase=Phase.EXECUTING))
    stopped = _respond("subagent-stop", {"agent_id": session, "exit_code": 0}, environ)
    yield Check("a subagent that is done", "completed", stopped["outcome"])
    again = _ask_hook({**asked, "agent_id": session}, environ)
    yield Check("a session that is over", "session_not_resumable", again["reason"])
    garbage = respond("pre-delegate", b"{", environ, HookLog(environ, "pre-delegate")) or {}
    yield Check("input that is no JSON", "invalid_json", garbage.get("reason"))


def _ask_hook(context: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    return _respond("pre-delegate", context, environ)


def _respond(event: str, payload: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    return respond(event, json.dumps(payload).encode(), environ, HookLog(environ, event)) or {}
