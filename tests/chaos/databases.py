"""Owns the two databases of a campaign, and how each of them goes away for a while."""

import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.faulty_proxy import FaultyProxy, faulty_proxy
from tests.postgres_server import OwnServer

#: files of this size have no more room on the disk; agents' own are smaller, the store's are larger
FULL_AT_BYTES = 128 * 1024


@dataclass(frozen=True)
class Sqlite:
    file: Path
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
    yield Sqlite(root / "holdfast.db")


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


def fill_disk(pid: int) -> None:
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_AT_BYTES, most))


def empty_disk(pid: int) -> None:
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
