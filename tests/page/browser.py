"""Owns the browser that looks at the page: Debian's Chromium, and axe-core, each installed where a run may skip nothing.

``python -m tests.page.browser`` installs what is missing.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.agents.lab.install import CACHE, ENVIRONMENT, InstallFailed, Program, install
from tests.require import everything_is_required

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
APT_SECONDS = 600.0


@dataclass(frozen=True)
class Script(Program):
    """A package of npm that is a file for browsers."""

    file: str = ""

    @property
    def path(self) -> Path:
        return self.folder / "node_modules" / self.package / self.file


AXE = Script("axe-core", "axe-core", "axe-core", "4.14.0", "axe.min.js")


def chromium() -> str | None:
    """Where it is; installs it if this run may skip nothing."""
    if shutil.which("chromium") is None and everything_is_required():
        _install_chromium()
    return shutil.which("chromium")


def axe() -> Path | None:
    if AXE.path.exists() or everything_is_required():
        return install(AXE)
    return None


def _install_chromium() -> None:
    """Any number of processes may ask at once: one installs, the others wait for it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (Path(tempfile.gettempdir()) / "holdfast-chromium.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which("chromium") is not None:
            return
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
        ):
            run = subprocess.run(
                command, env={**ENVIRONMENT, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=APT_SECONDS, check=False,
            )  # fmt: skip
            if run.returncode != 0:
                raise InstallFailed(f"chromium: {' '.join(command)}: {run.stderr.strip()[-300:]}")


def main() -> int:
    try:
        if chromium() is None:
            _install_chromium()
        print(f"chromium: {chromium()}")
        print(f"axe-core: {install(AXE)}")
    except InstallFailed as exc:
        print(f"install: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
