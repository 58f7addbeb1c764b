"""Owns configuration files: where they lie, which ones are trusted, and reading them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

PROJECT_FILE = ".holdfast.toml"
TRUSTED = "trusted"  #: folder of the records of trust, in the user's own data
_MAX_FILE_BYTES = 1_000_000


def current_directory(environ: Mapping[str, str]) -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        # the directory was deleted; the shell still knows its name, and directories above it may exist
        return Path(environ.get("PWD") or "/")


def user_file(environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that ``HOLDFAST_CONFIG`` names, which must exist; otherwise the usual one, if it exists."""
    if explicit := environ.get("HOLDFAST_CONFIG"):
        path = cwd / explicit
        if not os.path.lexists(path):
            shown = "a file" if "://" in explicit else str(path)
            raise ConfigError("HOLDFAST_CONFIG", f"names {shown} that does not exist")
        return path
    usual = _usual_user_file(environ)
    return usual if usual and os.path.lexists(usual) else None


def new_user_file(environ: Mapping[str, str], cwd: Path, content: str) -> Path:
    """The user file; made with this content, for its owner alone, if there is none."""
    path = user_file(environ, cwd) or _usual_user_file(environ)
    if path is None:
        raise ConfigError("HOME", "is not set; set it or XDG_CONFIG_HOME")
    if os.path.lexists(path):
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return path


def _usual_user_file(environ: Mapping[str, str]) -> Path | None:
    base = xdg(environ, "XDG_CONFIG_HOME", ".config")
    return base / "holdfast" / "config.toml" if base else None


def project_file(environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The nearest one, in ``cwd`` or above; not above a repository, the home or a shared directory."""
    home = _home(environ)
    last = home.resolve() if home else None
    here = cwd.resolve()
    for directory in (here, *here.parents):
        if _is_shared(directory):  # anyone could have put a file into /tmp
            return None
        candidate = directory / PROJECT_FILE
        if os.path.lexists(candidate):
            return candidate
        if directory == last or os.path.lexists(directory / ".git"):
            return None
    return None


def _is_shared(directory: Path) -> bool:
    try:
        mode = directory.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)


def _home(environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HOME", ""))
    return home if home.is_absolute() else None


def xdg(environ: Mapping[str, str], variable: str, under_home: str) -> Path | None:
    """The XDG base directory; the specification says to ignore a relative value."""
    path = Path(environ.get(variable, ""))
    if path.is_absolute():
        return path
    home = _home(environ)
    return home / under_home if home else None


# --- trust: a project file comes with a checkout, and takes full effect only after this person has trusted it ---


def is_trusted(environ: Mapping[str, str], path: Path, content: bytes) -> bool:
    """Whether this person has trusted this content at this path."""
    record = _trust_record(environ, path)
    try:
        if record is None or record.stat().st_uid != os.geteuid():
            return False
        return record.read_bytes() == _trust_line(path, content)
    except OSError:
        return False


def trust(environ: Mapping[str, str], path: Path, content: bytes) -> None:
    """Atomic. Replaces the content that was trusted at this path before."""
    record = _trust_record(environ, path)
    if record is None:
        raise ConfigError("HOME", "is not set; set it or XDG_DATA_HOME")
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = record.with_name(f"{record.name}.{os.getpid()}.new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_trust_line(path, content))
    partial.replace(record)


def revoke_trust(environ: Mapping[str, str], path: Path) -> bool:
    """False if no content of this file was trusted."""
    record = _trust_record(environ, path)
    if record is None or not record.exists():
        return False
    record.unlink()
    return True


def _trust_record(environ: Mapping[str, str], path: Path) -> Path | None:
    """One file for each path, so that two processes never write to the same file about different paths."""
    base = xdg(environ, "XDG_DATA_HOME", ".local/share")
    name = sha256(os.fsencode(path)).hexdigest()[:32]
    return base / "holdfast" / TRUSTED / name if base else None


def _trust_line(path: Path, content: bytes) -> bytes:
    return b"%s  %s\n" % (sha256(content).hexdigest().encode(), os.fsencode(path))


# --- reading ---


def parse_toml(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib  # imported only if there is a file

    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # a byte order mark is no error
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(str(path), f"is not valid UTF-8 (at line {line})") from None
    except (ValueError, RecursionError) as exc:  # besides its own, tomllib lets those of int() through
        raise ConfigError(str(path), f"is not valid TOML: {exc}") from None


def read_file(path: Path, most: int = _MAX_FILE_BYTES) -> bytes:
    """Reads at most ``most`` bytes of a regular file: a project file comes with a checkout, and may link to anything."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(str(path), "is a directory, not a file")
        if not stat.S_ISREG(mode) and str(path) != os.devnull:
            raise ConfigError(str(path), "is not a regular file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be read: {exc.strerror}") from exc
    if len(data) > most:
        raise ConfigError(str(path), f"is larger than {most} bytes")
    return data
