"""Owns the proof of the units: a real systemd runs them, in namespaces of its own, as the documentation says.

Needs root, Linux, systemd, and a Python of this version that other users can read. What systemd and the services
write goes into a layer over this system, which is gone with them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.acceptance.installation import ROOT, build_wheel, install_whole

HERE = Path(__file__).parent
SECONDS = 180
HELD = "everything held"
#: the documentation's database; here it is a file, in the only place where the server may write
DATABASE = "postgresql://holdfast@/holdfast"
FILE = "sqlite:////var/lib/holdfast/holdfast.db"
SERVER_STARTS = "systemctl enable --now holdfast-server\n"
UNIT = """[Service]
Type=oneshot
ExecStart=/bin/bash /checkout/tests/services/scenario.sh /checkout/documented.sh
StandardOutput=append:/said/scenario
StandardError=inherit
ExecStopPost=-/bin/sh -c 'journalctl --no-pager --unit holdfast-server --unit holdfast-worker > /said/journal'
ExecStopPost=/bin/systemctl exit
"""


def documented() -> str:
    """What a person types; the server needs a moment before the first token can be made."""
    page = (ROOT / "docs" / "how-to" / "server.md").read_text("utf-8")
    (typed,) = re.findall(r"^```sh systemd\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert DATABASE in typed
    assert SERVER_STARTS in typed
    return str(typed.replace(DATABASE, FILE).replace(SERVER_STARTS, f"{SERVER_STARTS}sleep 3\n"))


def prepare(folder: Path) -> None:
    checkout = folder / "checkout"
    for part in ("examples", "tests/services"):
        shutil.copytree(ROOT / part, checkout / part)
    (checkout / "documented.sh").write_text(documented(), "utf-8")
    (folder / "scenario.service").write_text(UNIT)
    (folder / "said").mkdir()
    (folder / "dist").mkdir()
    wheel = build_wheel(folder / "dist")
    environment = install_whole(wheel, folder / "holdfast", "server", python=readable_python())
    for script in ("holdfast", "holdfast-scripted-agent"):
        program = environment.program(script)
        program.write_text(program.read_text().replace(str(environment.folder), "/opt/holdfast"))


def readable_python() -> str:
    """The units see nothing of the homes, and nothing of /tmp."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (
        Path(sys.executable).resolve(),
        Path("/usr/local/bin", version),
        Path("/usr/bin", version),
    ):
        if candidate.exists() and candidate.parts[1] not in ("root", "home", "tmp"):
            return str(candidate)
    sys.exit(f"it needs a {version} outside of /root, /home and /tmp")


def hierarchy() -> Path:
    """Where the processes of a machine are kept apart: the second version, alone or beside the first."""
    mounted = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return Path(next(fields[1] for fields in mounted if fields[2] == "cgroup2"))


def boot(folder: Path) -> None:
    group = hierarchy() / f"holdfast-{os.getpid()}"
    group.mkdir()
    unshare = "unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup"
    inside = f'echo $$ > {group}/cgroup.procs; exec {unshare} bash "$0" "$1"'
    try:
        subprocess.run(["bash", "-c", inside, HERE / "boot.sh", folder], check=False, timeout=SECONDS)
    finally:
        for path, _, _ in os.walk(group, topdown=False):
            Path(path).rmdir()


def main() -> int:
    if os.geteuid() != 0:
        sys.exit("it needs root, for namespaces; nothing outside of them is changed")
    with tempfile.TemporaryDirectory(prefix="holdfast-services-") as name:
        folder = Path(name)
        prepare(folder)
        boot(folder)
        said = (folder / "said" / "scenario").read_text()
        held = said.endswith(f"{HELD}\n")
        print(said if held else f"{said}{(folder / 'said' / 'journal').read_text()}", end="")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
