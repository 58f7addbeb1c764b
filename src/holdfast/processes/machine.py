"""Owns the identity of this machine, and whether a process that was recorded earlier can still be running on it."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from holdfast.clock import SECOND, system_clock
from holdfast.domain.records import record
from holdfast.domain.turns import Lease, ProcessMark
from holdfast.errors import ConfigError
from holdfast.processes.owners import Location, boot_id, is_gone, location_of_boot, make_owner, process_start

_SYSTEM_ID = Path("/etc/machine-id")
_OWN_ID = "machine-id"
_LEASES = "leases"
#: after a boot, the holder of a lease must have been silent for longer than two heartbeats
_SILENT_SECONDS = 35.0
#: a witness file that is older than this concerns no lease any more
_OLD_SECONDS = 2 * 24 * 3600.0
_ID = re.compile(r"[0-9a-f]{32}")


@record
class Machine:
    """``boot`` names one run of a kernel, the processes visible in it, and the host: ``kernel/pids/host``.

    Machines made from one image share everything on their disks, and machines made from one snapshot of a running
    machine share even the boot. So a process that does not exist here may exist in the copy. What the copies do not
    share is what happened since. Therefore each holder of a lease writes a witness file into ``folder`` that says
    until when the lease was granted: this machine was the last holder only if nobody renewed the lease after that.
    A process that asks for a lease first leaves a request file. If it is killed before it has a witness, no agent can
    have run yet, and none will.
    """

    id: str
    boot: str
    folder: Path | None = None  #: for witness files; None: none are written or required

    def location(self, machine: str, boot: str) -> Location:
        return location_of_boot(boot, self.boot) if machine == self.id else Location.ELSEWHERE

    def mark(self, pgid: int, started_at: int) -> ProcessMark:
        return ProcessMark(self.id, self.boot, pgid, started_at)

    def location_of(self, mark: ProcessMark) -> Location:
        return self.location(mark.machine, mark.boot_id)

    def this_process(self) -> str:
        """The owner of a lease: identifies the calling process, and no later one."""
        pid = os.getpid()
        return make_owner(pid, process_start(pid), self.id, self.boot)

    def claimant(self) -> str:
        """Like ``this_process``, and leaves a request file until the process holds a lease."""
        owner = self.this_process()
        if self.folder is not None:
            path = self._word_of(owner)
            with suppress(OSError):
                if not _renewed(path):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.touch()
        return owner

    def is_gone(self, owner: str) -> bool:
        """True only if the owner is a process of this machine that does not exist any more."""
        return is_gone(owner, self.id, self.boot)

    def has_lost(self, lease: Lease, *, launched: bool = True) -> bool:
        """True only if the lease was held on this very machine, by a process that provably does not exist any more.

        If nothing was ``launched`` under the lease, a request file is enough: if a copy of this machine holds the
        lease, its fencing token is stale before its agent runs.
        """
        if not self.is_gone(lease.owner):
            return False
        if self.folder is None:
            return True
        is_past = self.location_of_owner(lease.owner) is Location.PAST
        try:
            path = self._witness_of(lease)
            granted, seen_at = int(path.read_text()), path.stat().st_mtime
        except FileNotFoundError:
            return not launched and not is_past and self._word_of(lease.owner).exists()
        except (OSError, ValueError):
            return False
        if granted < lease.expires_at:
            return False
        return not is_past or abs(system_clock() / SECOND - seen_at) > _SILENT_SECONDS

    def witness(self, lease: Lease) -> None:
        """Records that this process holds the lease until it expires. Without the file, others wait until then."""
        if self.folder is None:
            return
        path = self._witness_of(lease)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_text(str(lease.expires_at))
            fresh.replace(path)
            self._word_of(lease.owner).unlink(missing_ok=True)

    def forget(self, lease: Lease) -> None:
        """Records that this process no longer holds the lease."""
        if self.folder is not None:
            with suppress(OSError):
                self._witness_of(lease).unlink()

    def forget_old(self) -> None:
        """Removes the files of processes that were killed."""
        if self.folder is None:
            return
        with suppress(OSError):
            for file in (self.folder / _LEASES).iterdir():
                if system_clock() / SECOND - file.stat().st_mtime > _OLD_SECONDS:
                    file.unlink(missing_ok=True)

    def location_of_owner(self, owner: str) -> Location:
        parts = owner.split("/", 3)
        return self.location(parts[2], parts[3]) if len(parts) == 4 else Location.ELSEWHERE

    def _witness_of(self, lease: Lease) -> Path:
        return self._file(f"{lease.owner} {lease.conversation_id} {lease.seq} {lease.attempt} {lease.fence}")

    def _word_of(self, owner: str) -> Path:
        """The request file: this owner has asked for a lease."""
        return self._file(owner)

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / _LEASES / hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]


def _renewed(path: Path) -> bool:
    """Touches the file; False if there is none. An idle worker does this once a second, so one system call has to do."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def describe_owner(owner: str) -> str:
    """The owner in words for people; unchanged if it does not have the form of this version."""
    parts = owner.split("/")
    return f"process {parts[0]} on {parts[-1]}" if len(parts) == 6 and parts[0].isdecimal() else owner


def this_machine(data_dir: Path) -> Machine:
    """ConfigError if the machine's id can be neither read nor made."""
    return Machine(machine_id(data_dir), boot_id(), data_dir)


def machine_id(data_dir: Path) -> str:
    """Stays the same as long as this system and Holdfast's data stay together.

    Neither part is enough: containers of one image share the system's id, or have none; a home directory that is
    copied, or shared over a network, takes our own id to other machines.
    """
    system_id = ""
    with suppress(OSError):
        system_id = _SYSTEM_ID.read_text(errors="replace").strip()
    return hashlib.sha256(f"{system_id}/{_own_id(data_dir)}".encode()).hexdigest()[:32]


def _own_id(data_dir: Path) -> str:
    path = data_dir / _OWN_ID
    try:
        if not path.exists():
            _make_own_id(path)
        found = path.read_text(errors="replace").strip()
    except OSError as exc:
        raise ConfigError(str(path), f"cannot be read or made: {exc.strerror}") from None
    if not _ID.fullmatch(found):
        raise ConfigError(str(path), "does not hold a machine id; remove it to get a new one")
    return found


def _make_own_id(path: Path) -> None:
    """The first process to come makes it: a link is made whole or not at all, and never replaces another."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{_OWN_ID}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{os.urandom(16).hex()}\n")
        with suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
