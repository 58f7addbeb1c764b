"""Owns agentsview as a subject: installed from PyPI in an environment of its own, on a home and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.46.1"
_ENVIRONMENT = Path(__file__).resolve().parents[1] / ".cache" / f"agentsview-{VERSION}"
_START_SECONDS = 120.0


def why_not() -> str:
    """Installs it if it is not there; empty: it is."""
    if _command().exists():
        return ""
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"agentsview=={VERSION}"]
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(_ENVIRONMENT)], check=True, capture_output=True
        )
        subprocess.run([str(_ENVIRONMENT / "bin" / "python"), *install], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        return f"agentsview {VERSION} cannot be installed ({exc})"
    return ""


def _command() -> Path:
    """The program itself, without the Python around it."""
    found = _ENVIRONMENT.glob("lib/python*/site-packages/agentsview/bin/agentsview")
    return next(found, _ENVIRONMENT / "missing")


@dataclass(frozen=True, slots=True)
class AgentsView:
    home: Path
    data: Path

    @property
    def environ(self) -> dict[str, str]:
        """Empty but for this: it asks nobody for updates, and tells nobody that it runs."""
        return {
            "PATH": os.defpath,
            "HOME": str(self.home),
            "AGENTSVIEW_DATA_DIR": str(self.data),
            "AGENTSVIEW_NO_DAEMON": "1",  # no process of it stays behind
            "AGENTSVIEW_DISABLE_UPDATE_CHECK": "1",
            "AGENTSVIEW_TELEMETRY_ENABLED": "0",
            "DO_NOT_TRACK": "1",
        }

    @property
    def sync(self) -> list[str]:
        return [str(_command()), "sync"]

    def search(self, word: str) -> bytes:
        """Asks the server that runs."""
        command = [str(_command()), "session", "search", "--fts", "--json", "--limit", "20", word]
        return subprocess.run(command, env=self.environ, check=True, capture_output=True).stdout

    @contextmanager
    def serving(self, word: str) -> Iterator[int]:
        """Its server, which alone can search, as a child of this process that has answered once; gives the process id."""
        command = [str(_command()), "serve", "--no-browser", "--no-sync", "--port", "0"]
        with subprocess.Popen(
            command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            try:
                until = time.monotonic() + _START_SECONDS
                while True:
                    try:
                        self.search(word)
                        break
                    except subprocess.CalledProcessError:
                        if server.poll() is not None or time.monotonic() > until:
                            raise
                        time.sleep(0.2)
                yield server.pid
            finally:
                server.terminate()
                server.wait()
