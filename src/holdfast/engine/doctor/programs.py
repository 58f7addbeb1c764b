"""Owns the checks of programs: the agents and their versions, the hooks, the homes of agents, Holdfast itself on PATH."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.engine.doctor.findings import Finding, counted, ok, problem, warning
from holdfast.engine.doctor.scene import Scene
from holdfast.engine.running.agents import Agent
from holdfast.errors import HoldfastError
from holdfast.hooks.status import (
    Extent,
    HookStatus,
    ScopeStatus,
    ask_server,
    check_hooks,
    hook_status,
    token_for,
)
from holdfast.processes.process import find_program, programs_on_path
from holdfast.providers.contract import Provider
from holdfast.providers.registry import get_provider, provider_names

_PROGRAM = "holdfast"
_UPGRADE = "pip install --upgrade holdfast-sessions"
_NUMBER = re.compile(r"\d+")


# --- agents ---


def check_agents(scene: Scene) -> Iterator[Finding]:
    for name, agent in scene.agents.all().items():
        if isinstance(agent, HoldfastError):
            yield _absent(scene, name, agent)
        else:
            yield _version(agent)


def _absent(scene: Scene, name: str, why: HoldfastError) -> Finding:
    provider = get_provider(name)
    chosen = f"HOLDFAST_{name.upper().replace('-', '_')}_BINARY" in scene.environ
    if chosen or any(find_program(binary, scene.environ) for binary in provider.binaries):
        meaning = "Turns of this agent fail here. Install it again, or name another binary."
        return problem("agent_broken", why.message, meaning, "holdfast runtimes", [name])
    waiting = () if scene.store is None else [one.id for one in scene.survey.open if one.provider == name]
    if waiting:
        return warning(
            "agent_missing",
            f"{name} is not installed here, and {counted(len(waiting), 'open session')} used it",
            "They cannot continue on this machine until it is on PATH.",
            "holdfast runtimes",
            waiting,
        )
    return ok("agent_absent", f"{name} is not installed")


def _version(agent: Agent) -> Finding:
    name, version, tested = agent.provider.name, agent.runtime.version, agent.provider.tested
    if tested is None or version == tested:
        return ok("agent_tested", f"{name} {version or ''}".strip() + (" (tested)" if tested else ""))
    is_newer = version is None or _numbers(version) > _numbers(tested)
    meaning = (
        "It will most likely work. A newer Holdfast may have been tested with it."
        if is_newer
        else "It may lack what Holdfast needs to resume and fork. Update it, or name another binary."
    )
    return warning(
        "agent_untested",
        f"{name} {version or 'of an unknown version'} was not tested with this Holdfast; {tested} was",
        meaning,
        _UPGRADE if is_newer else "holdfast runtimes",
        [agent.binary],
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(version))


# --- Holdfast itself ---


def check_path(scene: Scene) -> Iterator[Finding]:
    """Hooks and agents call whichever comes first on their PATH."""
    places = programs_on_path(_PROGRAM, scene.environ)
    if len(places) > 1:
        yield warning(
            "holdfast_twice",
            f"{len(places)} different holdfasts are on PATH: {', '.join(places)}",
            "Programs with another PATH may use another version on the same store. Uninstall those that you do not use.",
            f"which -a {_PROGRAM}",
            places,
        )
    elif places:
        yield ok("holdfast_once", places[0])
    else:
        yield warning(
            "holdfast_not_on_path",
            "holdfast is not on PATH",
            "Agents that report their phases or ask for approval do not find it.",
            'export PATH="$HOME/.local/bin:$PATH"',
        )


# --- hooks ---


def check_the_hooks(scene: Scene) -> Iterator[Finding]:
    status = hook_status(scene.environ, scene.cwd)
    wrong = [*_wrong_scopes(status), *_wrong_servers(scene, status)]
    yield from wrong
    if wrong:
        return
    if not status.installed:
        yield ok(
            "hooks_none",
            "hooks are not installed: sessions begun in Claude Code itself are not watched",
            command="holdfast hooks install",
        )
        return
    failed = [check.what for check in check_hooks() if not check.passed]
    if failed:
        meaning = "Subagents get no durable sessions. The log of hooks says more."
        command = "holdfast hook pre-delegate --test"
        yield problem("hooks_fail", f"hooks do not work: {', '.join(failed)}", meaning, command)
    else:
        yield ok("hooks_work", "hooks are installed and work")


def _wrong_scopes(status: HookStatus) -> Iterator[Finding]:
    for scope in status.scopes:
        again = "holdfast hooks install" + (" --project" if scope.scope == "project" else "")
        if scope.extent is Extent.UNREADABLE:
            meaning = "Claude Code ignores settings that it cannot read. Correct the file."
            yield problem(
                "hooks_unreadable", str(scope.problem), meaning, "holdfast hooks status", [str(scope.path)]
            )
        elif scope.extent is Extent.PARTLY:
            yield _half(scope, again)
        elif scope.broken:
            found = f"{scope.path} calls {scope.broken[0]}, which cannot be started"
            meaning = "Claude Code calls hooks that do nothing. The command writes them again."
            yield problem("hooks_broken", found, meaning, again, [str(scope.path)])
    is_called = status.plugin_enabled or any(scope.works for scope in status.scopes)
    if status.hooks_disabled and is_called:
        meaning = "Claude Code calls no hook at all. Remove disableAllHooks from its settings."
        yield problem(
            "hooks_disabled",
            "hooks are installed, and disableAllHooks is set",
            meaning,
            "holdfast hooks status",
        )
    if status.called_twice:
        meaning = "Nothing is recorded twice, but each hook costs twice the time."
        yield warning(
            "hooks_twice",
            "the plugin and the settings both call Holdfast",
            meaning,
            "holdfast hooks uninstall",
        )


def _half(scope: ScopeStatus, command: str) -> Finding:
    found = f"{scope.path} has no hook for {', '.join(scope.missing)}"
    meaning = "An older Holdfast installed them. The command adds what is missing."
    return problem("hooks_partly", found, meaning, command, [str(scope.path)])


def _wrong_servers(scene: Scene, status: HookStatus) -> Iterator[Finding]:
    for address in status.addresses:
        answer = ask_server(address, token_for(status, address, scene.environ, scene.settings))
        if answer.problem is not None:
            meaning = "Claude Code sends its hooks there, and nothing is recorded."
            yield problem(
                "hooks_server", f"{address}: {answer.problem}", meaning, "holdfast hooks status", [address]
            )


# --- the homes of agents ---


def check_homes(scene: Scene) -> Iterator[Finding]:
    """A home is where an agent keeps its sessions. A session is continued only in the home that it was begun in."""
    found = False
    for name in provider_names():
        provider = get_provider(name)
        here = Path(os.path.realpath(provider.home(scene.environ)))
        for finding in (*_other_homes(scene, provider, here), *_usual_home(scene, provider, here)):
            found = True
            yield finding
    if not found:
        yield ok("homes_one", "every agent has one home")


def _other_homes(scene: Scene, provider: Provider, here: Path) -> Iterator[Finding]:
    """Homes that sessions of this machine were begun in."""
    homes: dict[str, list[str]] = {}
    for pointer in () if scene.store is None else scene.pointers:
        runtime = scene.runtimes.get(pointer.runtime_id) if pointer.runtime_id is not None else None
        if runtime is not None and runtime.provider == provider.name and runtime.home != str(here):
            homes.setdefault(runtime.home, []).append(pointer.session_id)
    for home, sessions in homes.items():
        yield warning(
            "home_other",
            f"{counted(len(sessions), 'open session')} of {provider.name} belong to the home {home}, and here it is "
            f"{here}",
            "From here they start fresh, with what Holdfast has recorded. Where the variable is set as it was, they "
            "are resumed.",
            _lead_to(provider, Path(home)),
            sessions,
        )


def _usual_home(scene: Scene, provider: Provider, here: Path) -> Iterator[Finding]:
    """The home without the provider's own variable, if that has sessions, too."""
    home = scene.environ.get("HOME")
    usual = None if not home else Path(os.path.realpath(provider.home({"HOME": home})))
    if usual is None or usual == here or not usual.is_dir():
        return
    if all(next(provider.archive(folder).sessions(), None) is not None for folder in (usual, here)):
        variables = " and ".join(provider.home_variables(here)) or "the environment"
        yield warning(
            "home_twice",
            f"{provider.name} has sessions in {usual} and in {here}",
            f"{variables} is set here. Programs that are started without it use the other home, and find other sessions.",
            _lead_to(provider, usual),
            [str(usual), str(here)],
        )


def _lead_to(provider: Provider, home: Path) -> str | None:
    variables = provider.home_variables(home)
    return (
        f"export {shlex.join(f'{name}={value}' for name, value in variables.items())}" if variables else None
    )
