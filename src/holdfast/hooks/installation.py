"""Owns installing the hooks: Holdfast's entries in Claude Code's settings files, and editing those files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.config import TOKEN_VARIABLE
from holdfast.config_files import read_file
from holdfast.domain.records import record
from holdfast.errors import ConfigError, Conflict

#: event of Claude Code -> the hook that Claude Code calls for it
HOOKS: Mapping[str, str] = {
    "SessionStart": "session-start",
    "PreToolUse": "pre-delegate",
    "SubagentStop": "subagent-stop",
    "Stop": "stop",
    "SessionEnd": "session-end",
    "PreCompact": "pre-compact",
}
_MATCHERS = {"PreToolUse": "Task|Agent"}
#: a hook ends by itself long before this
_TIMEOUT_SECONDS = 10
#: Claude Code does not send these events to a server
_COMMAND_ONLY = frozenset({"SessionStart"})

_names = "|".join(HOOKS.values())
_OUR_COMMAND = re.compile(rf"(?:^|[\s/'\"])holdfast(?=['\"\s)]).* hook ({_names})\b")
_OUR_PATH = re.compile(rf"/v1/hooks/({_names})$")
_TRIED = re.compile(r"command -v ((?:'[^']*'|\"'\"|[^\s'|)])+)")

_BACKUP_SUFFIX = ".before-holdfast"
_NEW_FILE_MODE = 0o644
#: a project's settings come with its checkout, and may be anything
_MOST_BYTES = 16_000_000
_BYTE_ORDER_MARK = "\ufeff"
_INDENT = re.compile(r"\n([ \t]+)\S")
_USUAL_INDENT = "  "

Entry: TypeAlias = dict[str, Any]
Hooks: TypeAlias = dict[str, Any]


class WrongShape(ValueError):
    """The hooks do not have the shape that Claude Code documents; ``path`` names the member that is wrong."""

    def __init__(self, expected: str, *path: str) -> None:
        super().__init__(f"{'.'.join(path)} is not {expected}")
        self.path = path


def shell_command(hook: str, *programs: str) -> str:
    """Calls the first of the programs that exists. Exit code 0 if none exists, or if the program fails.

    The agent's directory may be a stranger's checkout. The command changes to ``/`` and empties Python's variables
    before it looks for the program, so that no file of that checkout is run.
    """
    tries = " || ".join(f"command -v {shlex.quote(program)}" for program in programs)
    return f'cd / && PYTHONPATH= PYTHONHOME= "$({tries} || echo true)" hook {hook} || true'


def command_entries(*programs: str) -> dict[str, Entry]:
    """An entry for each event."""
    return {event: _entry(event, _command(shell_command(hook, *programs))) for event, hook in HOOKS.items()}


def http_entries(url: str, *programs: str) -> dict[str, Entry]:
    """The same over HTTP, with a bearer token from the environment; commands for events that need one."""
    addresses = {
        event: _entry(event, _address(f"{url.rstrip('/')}/v1/hooks/{hook}"))
        for event, hook in HOOKS.items()
        if event not in _COMMAND_ONLY
    }
    return command_entries(*programs) | addresses


def with_entries(hooks: Hooks, wanted: Mapping[str, Entry]) -> Hooks:
    """Each wanted entry once, behind the entries of others, which keep their order. The same object if nothing changes."""
    _check(hooks)
    changed = {
        event: [*_without_ours(hooks.get(event, [])), entry]
        for event, entry in wanted.items()
        if _ours_in(hooks.get(event, [])) != [entry]
    }
    return {**hooks, **changed} if changed else hooks


def without_entries(hooks: Hooks) -> Hooks:
    """Without our entries, and without lists that held nothing else. The same object if there were none."""
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
    """The servers that Claude Code sends our hooks to, each once."""
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
    """WrongShape if a change would have to guess. Events that we do not use may hold anything."""
    if not isinstance(hooks, dict):
        raise WrongShape("an object", "hooks")
    for event in HOOKS:
        entries = hooks.get(event, [])
        if not isinstance(entries, list):
            raise WrongShape("a list", "hooks", event)
        if not all(isinstance(entry, dict) and isinstance(entry.get("hooks"), list) for entry in entries):
            raise WrongShape('a list of objects that have a list "hooks"', "hooks", event)


def _hook_of(handler: object) -> str | None:
    """The hook of ours that this handler calls; None for a handler of others."""
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
    """The entries that hold at least one handler of ours."""
    listed = entries if isinstance(entries, list) else []
    held = [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("hooks"), list)]
    return [entry for entry in held if any(map(_hook_of, entry["hooks"]))]


def _without_ours(entries: list[Entry]) -> list[Entry]:
    return [others for entry in entries if (others := _others(entry)) is not None]


def _others(entry: Entry) -> Entry | None:
    """The entry without our handlers; None if it held nothing else."""
    if not _ours_in([entry]):
        return entry
    others = [handler for handler in entry["hooks"] if not _hook_of(handler)]
    return {**entry, "hooks": others} if others else None


# --- settings files ---


@record
class Changed:
    """The result of a change; ``backup`` is the file's text before Holdfast was installed, if there was a file."""

    path: Path
    is_changed: bool
    backup: Path | None = None


def user_settings(environ: Mapping[str, str]) -> Path:
    configured = environ.get("CLAUDE_CONFIG_DIR")
    home = environ.get("HOME")
    if not configured and not home:
        raise ConfigError("HOME", "is not set; set it or CLAUDE_CONFIG_DIR")
    folder = Path(configured) if configured else Path(home or "") / ".claude"
    return folder.absolute() / "settings.json"


def project_settings(environ: Mapping[str, str], cwd: Path) -> Path:
    """The shared settings of the repository around ``cwd``, which Claude Code reads when it is started there."""
    return _project(environ, cwd) / ".claude" / "settings.json"


def local_settings(environ: Mapping[str, str], cwd: Path) -> Path:
    """A person's own settings for a project, which are not shared with it."""
    return _project(environ, cwd) / ".claude" / "settings.local.json"


def read_settings(path: Path) -> dict[str, Any]:
    """Empty for a file that does not exist. ConfigError, with the line, for one that cannot be understood."""
    return _parsed(path, _read(path) or "{}")


def change_hooks(path: Path, change: Callable[[Hooks], Hooks]) -> Changed:
    """Replaces the hooks of a settings file. Writes nothing if ``change`` returns the object that it was given.

    Atomic: the file has its old or its new text at any moment. The other members keep their values and their
    order, and the file its indentation, its line ends, its mode and a symbolic link that leads to it. If the
    new settings equal those before Holdfast was installed, the file gets that very text back. ConfigError for
    a file that cannot be understood, Conflict if somebody else changes it at the same time; nothing is written
    then.
    """
    before = _read(path)
    settings = _parsed(path, before or "{}")
    hooks = settings.get("hooks", {})
    try:
        new = change(hooks)
        was_ours = without_entries(hooks) is not hooks
    except WrongShape as exc:
        raise _problem(path, str(exc), _line_of(before or "", exc.path)) from None
    if new is hooks:
        return Changed(path, is_changed=False)
    after = {**settings, "hooks": new}
    if not new:
        del after["hooks"]
    backup = path.with_name(path.name + _BACKUP_SUFFIX)
    try:
        text = (_text_before(backup, after) if was_ours else None) or _written(path, after, before or "{}\n")
        real = path.resolve()
        real.parent.mkdir(parents=True, exist_ok=True)
        if before is not None and not was_ours:
            _write(backup, before, real)
        if _read(path) != before:
            raise Conflict(f"{path} was changed by somebody else just now; nothing was changed")
        _write(real, text, real)
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be written: {exc.strerror}") from exc
    return Changed(path, is_changed=True, backup=backup if before is not None and backup.exists() else None)


def _text_before(backup: Path, settings: dict[str, Any]) -> str | None:
    """The text of the backup, if it says the same as these settings."""
    try:
        text = _read(backup)
        # as texts, because True equals 1 in Python
        is_same = text is not None and json.dumps(_parsed(backup, text)) == json.dumps(settings)
    except ConfigError:
        return None
    return text if is_same else None


def _project(environ: Mapping[str, str], cwd: Path) -> Path:
    named = environ.get("CLAUDE_PROJECT_DIR")
    if named:
        return Path(named).absolute()
    return next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), cwd)


def _read(path: Path) -> str | None:
    """None for a file that does not exist or is empty."""
    try:
        if not path.exists():
            return None
        text = read_file(path, _MOST_BYTES).decode()
    except UnicodeDecodeError as exc:
        raise _problem(path, "is not valid UTF-8", exc.object.count(b"\n", 0, exc.start) + 1) from None
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be read: {exc.strerror}") from exc
    return text if text.strip() else None


class _NamedTwice(ValueError):
    """``json`` alone would keep the last of both members and lose the other."""


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text.removeprefix(_BYTE_ORDER_MARK), object_pairs_hook=_unique)
    except json.JSONDecodeError as exc:
        raise _problem(path, f"is not valid JSON: {exc.msg}", exc.lineno) from None
    except _NamedTwice as exc:
        name = exc.args[0]
        line = text.count("\n", 0, text.rfind(json.dumps(name))) + 1
        raise _problem(path, f"names {name!r} twice", line) from None
    except RecursionError:
        raise _problem(path, "is nested too deeply", 1) from None
    except ValueError as exc:  # a number of thousands of digits
        raise _problem(path, f"cannot be read: {exc}", 1) from None
    if not isinstance(found, dict):
        raise _problem(path, "is not a JSON object", 1)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NamedTwice(next(name for name in names if names.count(name) > 1))
    return found


def _problem(path: Path, problem: str, line: int) -> ConfigError:
    return ConfigError(str(path), f"line {line}: {problem}", line=line)


def _line_of(text: str, names: tuple[str, ...]) -> int:
    """The line where the last of these members begins, each looked for behind the one before."""
    at = 0
    for name in names:
        at = max(at, text.find(json.dumps(name), at))
    return text.count("\n", 0, at) + 1


def _written(path: Path, settings: Mapping[str, Any], before: str) -> str:
    """JSON in the style of the text before. ConfigError for a number that JSON cannot hold."""
    found = _INDENT.search(before)
    indent = found[1] if found else _USUAL_INDENT
    # a file may spell half of a surrogate pair as an escape; UTF-8 cannot encode that half otherwise
    keeps_escapes = "\\u" in before
    try:
        text = json.dumps(settings, indent=indent, ensure_ascii=keeps_escapes, allow_nan=False)
    except ValueError:
        raise ConfigError(str(path), "holds a number that is too large to be written again") from None
    start = _BYTE_ORDER_MARK if before.startswith(_BYTE_ORDER_MARK) else ""
    end = before[len(before.rstrip()) :]
    newline = "\r\n" if "\r\n" in before else "\n"
    return start + text.replace("\n", newline) + end


def _write(path: Path, text: str, like: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            os.fchmod(descriptor, like.stat().st_mode & 0o7777 if like.exists() else _NEW_FILE_MODE)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
