"""Owns finding the hooks of others that may change a tool call of Claude Code after the gate has judged it."""

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
from holdfast.providers.contract import ForeignHook
from holdfast.providers.loose_json import as_list, as_object, as_text

#: events whose hooks may give a call other arguments
_CHANGING: Final = ("PreToolUse", "PermissionRequest")
#: of the machine, for everybody
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
    """In the order of where they stand, each once. A file that cannot be read may hold any, and is named itself."""
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
    """Where a project's settings may lie: here, and up to the root of the repository, by any name of here."""
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
    """Plain names that no pattern is about are the only ones that do not."""
    if not isinstance(matcher, str) or not _NAMES.fullmatch(matcher):
        return True
    globs = [re.compile(".*".join(map(re.escape, tool.split("*"))), re.IGNORECASE) for tool in tools]
    return not globs or any(glob.fullmatch(name) for glob in globs for name in matcher.split("|"))


def _plugins(home: Path) -> Iterator[str]:
    """Where installed plugins lie."""
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
    """Agents, skills and commands may bring hooks of their own, in the header of their file."""
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
    """Also behind links, as the agent finds them; each folder once."""
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
    """JSON as it reads, if it is that."""
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
