"""Owns Holdfast's entries among Claude Code's hooks: what they are, putting them in and taking them out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from holdfast.config import TOKEN_VARIABLE

#: event of Claude Code -> the hook that is called for it
HOOKS: Mapping[str, str] = {
    "SessionStart": "session-start",
    "PreToolUse": "pre-delegate",
    "SubagentStop": "subagent-stop",
    "Stop": "stop",
    "SessionEnd": "session-end",
    "PreCompact": "pre-compact",
}
_MATCHERS = {"PreToolUse": "Task|Agent"}
#: a hook ends by itself long before
_TIMEOUT_SECONDS = 10
#: Claude Code calls no address for these events
_COMMAND_ONLY = frozenset({"SessionStart"})

_names = "|".join(HOOKS.values())
_OUR_COMMAND = re.compile(rf"(?:^|[\s/'\"])holdfast(?=['\"\s)]).* hook ({_names})\b")
_OUR_PATH = re.compile(rf"/v1/hooks/({_names})$")
_TRIED = re.compile(r"command -v ((?:'[^']*'|\"'\"|[^\s'|)])+)")

Entry: TypeAlias = dict[str, Any]
Hooks: TypeAlias = dict[str, Any]


class WrongShape(ValueError):
    """The hooks are not as Claude Code describes them; ``path`` leads to what is not."""

    def __init__(self, expected: str, *path: str) -> None:
        super().__init__(f"{'.'.join(path)} is not {expected}")
        self.path = path


def shell_command(hook: str, *programs: str) -> str:
    """The first of the programs that is there; without any of them, and whatever it does, the agent goes on.

    The agent works in a directory that may be a stranger's. The program is looked for and started in another
    one, so that neither a relative entry of PATH nor Python's variables make it run what lies there.
    """
    tries = " || ".join(f"command -v {shlex.quote(program)}" for program in programs)
    return f'cd / && PYTHONPATH= PYTHONHOME= "$({tries} || echo true)" hook {hook} || true'


def command_entries(*programs: str) -> dict[str, Entry]:
    """An entry for each event."""
    return {event: _entry(event, _command(shell_command(hook, *programs))) for event, hook in HOOKS.items()}


def http_entries(url: str, *programs: str) -> dict[str, Entry]:
    """The same over HTTP, with a bearer token from the environment; where that is not possible, commands."""
    addresses = {
        event: _entry(event, _address(f"{url.rstrip('/')}/v1/hooks/{hook}"))
        for event, hook in HOOKS.items()
        if event not in _COMMAND_ONLY
    }
    return command_entries(*programs) | addresses


def with_entries(hooks: Hooks, wanted: Mapping[str, Entry]) -> Hooks:
    """Ours are as wanted, once each; what is not ours keeps its place. The same object if nothing changes."""
    _check(hooks)
    changed = {
        event: [*_without_ours(hooks.get(event, [])), entry]
        for event, entry in wanted.items()
        if _ours_in(hooks.get(event, [])) != [entry]
    }
    return {**hooks, **changed} if changed else hooks


def without_entries(hooks: Hooks) -> Hooks:
    """None of ours are left, and no list that held only ours. The same object if there were none."""
    _check(hooks)
    ours = [event for event in hooks if _ours_in(hooks[event])]
    left = {event: _without_ours(entries) if event in ours else entries for event, entries in hooks.items()}
    return (
        {event: entries for event, entries in left.items() if entries or event not in ours} if ours else hooks
    )


def installed_events(hooks: Hooks) -> frozenset[str]:
    """The events for which the right hook of ours is called."""
    _check(hooks)
    return frozenset(
        event
        for event, hook in HOOKS.items()
        if any(_hook_of(handler) == hook for entry in hooks.get(event, []) for handler in entry["hooks"])
    )


def tried_programs(hooks: Hooks) -> tuple[tuple[str, ...], ...]:
    """For each command of ours the programs that it tries, in order; each such list once."""
    commands = [handler["command"] for handler in _own_handlers(hooks) if "command" in handler]
    found = (tuple(shlex.split(name)[0] for name in _TRIED.findall(command)) for command in commands)
    return tuple(dict.fromkeys(filter(None, found)))


def addresses(hooks: Hooks) -> tuple[str, ...]:
    """The servers that hooks of ours are sent to, each once."""
    urls = [handler["url"] for handler in _own_handlers(hooks) if "url" in handler]
    return tuple(dict.fromkeys(_OUR_PATH.sub("", url) for url in urls))


def _entry(event: str, handler: Entry) -> Entry:
    matcher = {"matcher": _MATCHERS[event]} if event in _MATCHERS else {}
    return {**matcher, "hooks": [handler]}


def _command(command: str) -> Entry:
    return {"type": "command", "command": command, "timeout": _TIMEOUT_SECONDS}


def _address(url: str) -> Entry:
    return {
        "type": "http",
        "url": url,
        "headers": {"Authorization": f"Bearer ${TOKEN_VARIABLE}"},
        "allowedEnvVars": [TOKEN_VARIABLE],
        "timeout": _TIMEOUT_SECONDS,
    }


def _check(hooks: object) -> None:
    """WrongShape for what could not be changed without guessing; events that are not ours may hold anything."""
    if not isinstance(hooks, dict):
        raise WrongShape("an object", "hooks")
    for event in HOOKS:
        entries = hooks.get(event, [])
        if not isinstance(entries, list):
            raise WrongShape("a list", "hooks", event)
        if not all(isinstance(entry, dict) and isinstance(entry.get("hooks"), list) for entry in entries):
            raise WrongShape('a list of objects that have a list "hooks"', "hooks", event)


def _hook_of(handler: object) -> str | None:
    """Which of our hooks this calls; None for what is not ours."""
    if not isinstance(handler, dict):
        return None
    if TOKEN_VARIABLE in (handler.get("allowedEnvVars") or ()):
        found = _OUR_PATH.search(str(handler.get("url")))
    else:
        found = _OUR_COMMAND.search(str(handler.get("command")))
    return found[1] if found else None


def _own_handlers(hooks: Hooks) -> Iterator[Entry]:
    entries = (entry for event in HOOKS for entry in hooks.get(event, []))
    return (handler for entry in entries for handler in entry["hooks"] if _hook_of(handler))


def _ours_in(entries: object) -> list[Entry]:
    """The entries that hold something of ours, whatever else they hold."""
    listed = entries if isinstance(entries, list) else []
    held = [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("hooks"), list)]
    return [entry for entry in held if any(map(_hook_of, entry["hooks"]))]


def _without_ours(entries: list[Entry]) -> list[Entry]:
    return [others for entry in entries if (others := _others(entry)) is not None]


def _others(entry: Entry) -> Entry | None:
    """The entry without what is ours; None if that was all it held."""
    if not _ours_in([entry]):
        return entry
    others = [handler for handler in entry["hooks"] if not _hook_of(handler)]
    return {**entry, "hooks": others} if others else None
