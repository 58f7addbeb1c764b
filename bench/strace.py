"""Owns counting syncs: a program is run under strace, which tells what it makes the disk write.

The program marks its sections itself. A mark is a sync of a file with a telling name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_MARK = "mark-"
_CALLS = "fsync,fdatasync,msync,sync_file_range"
_SYNC = re.compile(rf"(?:{_CALLS.replace(',', '|')})\(\d+<([^>]+)>")


def why_not() -> str:
    """Why syncs cannot be counted here; empty if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


def syncs(folder: Path, module: str, *arguments: str) -> Iterator[tuple[str, str]]:
    """Runs the module and all that it starts: the last mark before each sync, and the file."""
    log = folder / "strace.log"
    subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-y", "-e", f"trace={_CALLS}", "-o", str(log)]
        + [sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        check=True,
    )
    section = ""
    for line in log.read_text().splitlines():
        synced = _SYNC.search(line)
        if synced is None:
            continue
        path = synced.group(1)
        name = Path(path).name
        if name.startswith(_MARK):
            section = name.removeprefix(_MARK)
        else:
            yield section, path


def mark(folder: Path, name: str) -> None:
    with (folder / f"{_MARK}{name}").open("w") as file:
        os.fsync(file.fileno())
