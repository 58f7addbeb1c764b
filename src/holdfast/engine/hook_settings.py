"""Owns Claude Code's settings files: where they are, reading one, and changing its hooks and nothing else in it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config_files import read_file
from holdfast.engine.hook_entries import Hooks, WrongShape, without_entries
from holdfast.engine.json_text import JsonProblem, line_of, read_object, remove_member, set_member
from holdfast.errors import ConfigError, Conflict

_HOOKS = "hooks"
_BACKUP_SUFFIX = ".before-holdfast"
_NEW_FILE_MODE = 0o644
#: a project's settings come with its checkout, and may be anything
_MOST_BYTES = 16_000_000
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a file; ``backup`` is what it was before, if it was there and changed."""

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
    """Of the repository around ``cwd``; Claude Code reads it when it is started in that directory."""
    return _project(environ, cwd) / ".claude" / "settings.json"


def local_settings(environ: Mapping[str, str], cwd: Path) -> Path:
    """A person's own settings for a project, which are not shared with it."""
    return _project(environ, cwd) / ".claude" / "settings.local.json"


def read_settings(path: Path) -> dict[str, Any]:
    """Empty for a file that is not there. ConfigError, with the line, for one that cannot be understood."""
    return _parsed(path, _read(path) or "{}")


def change_hooks(path: Path, change: Callable[[Hooks], Hooks]) -> Changed:
    """All or nothing, and nothing if ``change`` answers with what it was given.

    Every other byte of the file, its mode and a link that leads to it are kept. ConfigError for a file that
    cannot be understood, Conflict for one that somebody else changes at the same time; nothing is written then.
    """
    found = _read(path)
    text = found or "{}\n"
    hooks = _parsed(path, text).get(_HOOKS, {})
    try:
        new = change(hooks)
    except WrongShape as exc:
        raise _problem(path, str(exc), line_of(text, *exc.path)) from None
    if new is hooks:
        return Changed(path, is_changed=False)
    after = set_member(text, _HOOKS, new) if new else remove_member(text, _HOOKS)
    try:
        was_ours = without_entries(hooks) is not hooks
        return Changed(path, is_changed=True, backup=_replace(path, found, after, was_ours=was_ours))
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be written: {exc.strerror}") from exc


def _project(environ: Mapping[str, str], cwd: Path) -> Path:
    named = environ.get("CLAUDE_PROJECT_DIR")
    if named:
        return Path(named).absolute()
    return next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), cwd)


def _read(path: Path) -> str | None:
    """None for a file that is not there, or that holds nothing."""
    try:
        if not path.exists():
            return None
        text = read_file(path, _MOST_BYTES).decode()
    except UnicodeDecodeError as exc:
        raise _problem(path, "is not valid UTF-8", exc.object.count(b"\n", 0, exc.start) + 1) from None
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be read: {exc.strerror}") from exc
    return text if text.strip() else None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return read_object(text.removeprefix(_BYTE_ORDER_MARK))
    except JsonProblem as exc:
        raise _problem(path, exc.problem, exc.line) from None


def _problem(path: Path, problem: str, line: int) -> ConfigError:
    return ConfigError(str(path), f"line {line}: {problem}", line=line)


def _replace(path: Path, before: str | None, after: str, *, was_ours: bool) -> Path | None:
    """The file is the old one or the new one at any moment.

    What is kept beside it is the file before Holdfast came: what it is renewed or removed from is not kept.
    """
    real = path.resolve()
    real.parent.mkdir(parents=True, exist_ok=True)
    kept = path.with_name(path.name + _BACKUP_SUFFIX)
    if before is not None and not was_ours:
        _write(kept, before, real)
    if _read(path) != before:
        raise Conflict(f"{path} was changed by somebody else just now; nothing was changed")
    _write(real, after, real)
    return kept if before is not None and kept.exists() else None


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
