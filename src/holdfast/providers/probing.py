"""Owns reading what a binary prints about itself: which product, which version, which options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+[\w.+-]*)")
_NOT_A_NAME = re.compile(r"[^a-z0-9]+")


def read_version(printed: str) -> tuple[str, str | None]:
    """Product and version from the line that has one, such as ``2.1.325 (Claude Code)`` or ``codex-cli 0.166.0``."""
    for line in printed.splitlines():
        found = _VERSION.search(line)
        if found and not line.startswith("WARNING"):
            name = line[: found.start()] + " " + line[found.end() :]
            return _NOT_A_NAME.sub("-", name.lower()).strip("-")[:40] or "unnamed", found[1]
    return "unnamed", None


def offers(help_text: str, word: str) -> bool:
    """Does the help text list this option or command?"""
    return re.search(rf"^\s*(?:-\w, )?{re.escape(word)}(?![\w-])", help_text, re.MULTILINE) is not None


def home_folder(environ: Mapping[str, str], variable: str, name: str) -> Path:
    """What the provider's own variable says, else ``name`` in the user's home."""
    own = environ.get(variable)
    return Path(own) if own else Path(environ.get("HOME") or "~").expanduser() / name
