"""Owns Claude Code's side of the tool gate: the settings that call it, and finding other hooks that may change a call."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.domain.pointers import Rights
from holdfast.domain.redaction import Json
from holdfast.providers.contract import ForeignHook, ToolGate
from holdfast.providers.loose_json import as_list, as_object, as_text

#: variables with which Claude Code runs no hooks
HOOKS_OFF: Final = ("CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE")
#: both get the call as it ran; the stream and the transcript show the call as the model made it
_AFTER_A_CALL: Final = ("PostToolUse", "PostToolUseFailure")
_FIRST_TO_DEFER: Final = (2, 1, 89)
_NO_HOOKS: Final = "with it Claude runs no hooks, and calls would not wait for approval"
#: arguments with which no call would wait for approval
NOT_WITH_A_GATE: Final = {
    "--bare": _NO_HOOKS,
    "--safe-mode": _NO_HOOKS,
    "--settings": "Claude takes it once, and the hook for approvals needs it; write yours into a settings.json",
}


def knows_defer(distribution: str, version: str | None) -> bool:
    """An older version, or another product, runs the calls that it is told to defer."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d)", version or "")
    return (
        distribution == "claude-code"
        and found is not None
        and tuple(map(int, found.groups())) >= _FIRST_TO_DEFER
    )


def hook_settings(gate: ToolGate) -> str:
    """Settings for the command line, which take precedence over those of the user and the project."""
    asked = {"type": "command", "command": gate.command, "timeout": gate.seconds}
    hooks = {
        "SessionStart": [{"hooks": [{"type": "command", "command": gate.arm}]}],
        "PreToolUse": [{"matcher": "*", "hooks": [asked]}],
    }
    if gate.done is not None:
        looks_back = {"type": "command", "command": gate.done, "timeout": gate.seconds}
        hooks |= {event: [{"matcher": "*", "hooks": [looks_back]}] for event in _AFTER_A_CALL}
    return json.dumps({"disableAllHooks": False, "hooks": hooks})


# --- hooks of others ---

#: events whose hooks may change the arguments of a call after the gate has judged it
_CHANGING: Final = ("PreToolUse", "PermissionRequest")
#: settings of the machine's administrator
MANAGED: Final = (
    Path("/Library/Application Support/ClaudeCode") if sys.platform == "darwin" else Path("/etc/claude-code")
)
_OWN_PARTS: Final = ("agents", "skills", "commands")
_NAMES: Final = re.compile(r"[\w-]+(?:\|[\w-]+)*")
_PLUGINS: Final = "--plugin-dir"
_AGENTS: Final = "--agents"
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_HEADER: Final = 16 * 1024
_MOST_FILES: Final = 2000
_END_OF_HEADER: Final = re.compile(r"^---[ \t\r]*$", re.MULTILINE)


def find_foreign_hooks(home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
    """Each hook once, in the order of the files. A file that cannot be read is named itself: it may hold any hook."""
    tools = [pattern.partition("(")[0] for pattern in sorted(rights.approve_tools)]
    found: list[ForeignHook] = []
    for file in _settings_files(home, work_dir):
        found += _hooks_in(file, tools)
    for plugin in (*_plugins(home), *_values(_PLUGINS, rights.extra_args)):
        found += _hooks_of_plugin(Path(plugin), tools)
    for folder in (home, *(root / ".claude" for root in _roots(work_dir))):
        found += _hooks_in_headers(folder)
    found += [
        ForeignHook(_AGENTS, text)
        for text in _values(_AGENTS, rights.extra_args)
        if _mentions(_without_escapes(text))
    ]
    return tuple(dict.fromkeys(found))


def _settings_files(home: Path, work_dir: Path) -> Iterator[Path]:
    yield MANAGED / "managed-settings.json"
    yield from sorted((MANAGED / "managed-settings.d").glob("*.json"))
    yield from (home / "settings.json", home / "settings.local.json", home / "remote-settings.json")
    for root in _roots(work_dir):
        yield from (root / ".claude" / "settings.json", root / ".claude" / "settings.local.json")


def _roots(work_dir: Path) -> Iterator[Path]:
    """The folders that may hold a project's settings: this one and those above it up to the root of the repository,
    by the given path and by the path without symbolic links.
    """
    for here in dict.fromkeys((work_dir, work_dir.resolve())):
        for folder in (here, *here.parents):
            yield folder
            if (folder / ".git").exists():
                break


def _hooks_in(file: Path, tools: Sequence[str]) -> Iterator[ForeignHook]:
    try:
        settings = _read_object(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        yield ForeignHook(str(file), "cannot be read")
        return
    yield from _hooks_of(as_object(settings.get("hooks")), str(file), tools)


def _hooks_of(hooks: Mapping[str, Json], where: str, tools: Sequence[str]) -> Iterator[ForeignHook]:
    for event in _CHANGING:
        for entry in map(as_object, as_list(hooks.get(event))):
            if _may_concern(entry.get("matcher"), tools):
                for hook in map(as_object, as_list(entry.get("hooks"))):
                    text = as_text(hook.get("command")) or as_text(hook.get("url")) or json.dumps(hook)
                    yield ForeignHook(where, text)


def _may_concern(matcher: Json, tools: Sequence[str]) -> bool:
    """False only for a matcher of plain names of which no pattern is about any."""
    if not isinstance(matcher, str) or not _NAMES.fullmatch(matcher):
        return True
    globs = [re.compile(".*".join(map(re.escape, tool.split("*"))), re.IGNORECASE) for tool in tools]
    return not globs or any(glob.fullmatch(name) for glob in globs for name in matcher.split("|"))


def _plugins(home: Path) -> Iterator[str]:
    """The folders of installed plugins."""
    file = home / "plugins" / "installed_plugins.json"
    try:
        rest: list[Json] = [dict(_read_object(file))]
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        yield str(file.parent)
        return
    while rest:
        match rest.pop():
            case dict(fields):
                yield from [as_text(fields["installPath"])] if as_text(fields.get("installPath")) else []
                rest += fields.values()
            case list(items):
                rest += items


def _hooks_of_plugin(folder: Path, tools: Sequence[str]) -> Iterator[ForeignHook]:
    yield from _hooks_in(folder / "hooks" / "hooks.json", tools)
    manifest = folder / ".claude-plugin" / "plugin.json"
    try:
        hooks = _read_object(manifest).get("hooks")
    except FileNotFoundError:
        hooks = None
    except (OSError, ValueError, RecursionError):
        yield ForeignHook(str(manifest), "cannot be read")
        hooks = None
    for given in hooks if isinstance(hooks, list) else [hooks]:
        if isinstance(given, str):
            yield from _hooks_in(folder / given, tools)
        else:
            inline = as_object(given)
            yield from _hooks_of(as_object(inline.get("hooks")) or inline, str(manifest), tools)
    yield from _hooks_in_headers(folder)


def _hooks_in_headers(folder: Path) -> Iterator[ForeignHook]:
    """Hooks in the headers of agents, skills and commands."""
    for part in _OWN_PARTS:
        for number, file in enumerate(_markdown_files(folder / part)):
            if number == _MOST_FILES:
                yield ForeignHook(str(folder / part), f"more than {_MOST_FILES} files: not looked at")
                return
            try:
                with file.open("rb") as opened:
                    head = opened.read(_MOST_HEADER).decode("utf-8-sig", errors="replace").lstrip()
            except OSError:
                continue
            if not head.startswith("---"):
                continue
            end = _END_OF_HEADER.search(head, len("---"))
            header = head if end is None else head[: end.start()]
            if _mentions(header):
                yield ForeignHook(str(file), "hooks in its header")
            elif end is None or "\\" in header:  # an escape may spell the name of an event in another way
                yield ForeignHook(str(file), "a header that cannot be read plainly")


def _markdown_files(folder: Path) -> Iterator[Path]:
    """Follows symbolic links, as the agent does; each folder once."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(place, name) for name in sorted(names) if name.lower().endswith(".md"))


def _mentions(text: str) -> bool:
    return any(event in text for event in _CHANGING)


def _without_escapes(text: str) -> str:
    """The text with its JSON escapes replaced, if it is JSON."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _values(option: str, arguments: Sequence[str]) -> Iterator[str]:
    for at, argument in enumerate(arguments):
        name, tied, value = argument.partition("=")
        if name == option:
            yield value if tied else "".join(arguments[at + 1 : at + 2])


def _read_object(file: Path) -> Mapping[str, Json]:
    with file.open("rb") as opened:
        text = opened.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError
    return as_object(json.loads(text)) if text.strip() else {}
