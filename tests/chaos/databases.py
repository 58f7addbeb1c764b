"""Owns the two databases of a campaign, and how each of them goes away for a while."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.integration.faulty_proxy import FaultyProxy, faulty_proxy
from tests.postgres_server import OwnServer

#: agents' own files are smaller than this, the store's are larger
LIMIT_BYTES = 128 * 1024
DISK = "size=192m"


@dataclass(frozen=True)
class Sqlite:
    file: Path
    has_own_disk: bool = False  #: a small one, which nothing else is on
    name: str = "sqlite"
    #: there is one clock for all who use a file
    near_shift: float = 0.0

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    @property
    def near_url(self) -> str:
        """As a worker beside it calls it."""
        return self.url

    @contextmanager
    def full(self) -> Iterator[None]:
        """No byte is free on its disk meanwhile."""
        filler = self.file.with_name("filler")
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (1024 * 1024, 4096):
                    with suppress(OSError):
                        while file.write(bytes(size)) == size:
                            pass
            yield
        finally:
            filler.unlink()


@dataclass(frozen=True)
class Postgres:
    server: OwnServer
    proxy: FaultyProxy
    name: str = "postgres"
    #: the server's own clock counts: a worker may be wrong by minutes
    near_shift: float = 300.0

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def near_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres"

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def crash(self) -> None:
        self.server.crash()
        self.server.start()


Database = Sqlite | Postgres


@contextmanager
def sqlite(root: Path) -> Iterator[Sqlite]:
    with _own_disk(root / "disk") as is_mounted:
        database = Sqlite(root / "disk" / "holdfast.db", is_mounted)
        yield database
        shutil.copy(database.file, root)  # to be looked at when the disk is gone


@contextmanager
def _own_disk(folder: Path) -> Iterator[bool]:
    """False: we may not mount one, and it is a folder like any other."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", DISK, "none", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def postgres(root: Path) -> Iterator[Postgres]:
    """One of its own: nobody else's is restarted."""
    # the path of a unix socket may have about 100 characters
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    try:
        server = OwnServer(directory)
        try:
            with faulty_proxy(directory / ".s.PGSQL.5432") as proxy:
                yield Postgres(server, proxy)
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def limited_files(pid: int) -> Iterator[None]:
    """No file of the store may grow meanwhile, which a write notices almost as on a full disk."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, most))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
