"""Owns what a reader must know about the machine, and nothing that names it."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PEERS = (
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "openai-agents",
    "google-adk",
    "procrastinate",
    "psycopg",
)


def facts(directory: Path) -> list[str]:
    return [
        f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        f"files on {filesystem(directory)}; load average {load()} when it began",
        "peers: " + ", ".join(f"{name} {_version(name)}" for name in PEERS),
    ]


def filesystem(directory: Path) -> str:
    """The type of the filesystem, as the system itself calls it."""
    command = ["stat", "-f", "-c", "%T", str(directory)]
    if platform.system() == "Darwin":
        return "apfs"
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "an unknown filesystem"
    return "ext4" if told == "ext2/ext3" else told  # one magic number for all three


def load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
