"""Owns the processes of the crash tests: they walk the path until a chosen point, and kill themselves there."""

import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from holdfast.clock import Clock, Instant
from holdfast.domain.turns import Claim
from holdfast.store.contract import QueueWatch
from holdfast.store.driver import Driver, Transaction
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests import processes
from tests.clock import NOON, ManualClock
from tests.integration.crash_path import PATHS, Walk

POINTS_OF_A_WRITE = 3
_MOST_POINTS = 200


class MortalDriver:
    """A driver whose process kills itself at the ``fatal``-th point; without one it only counts them.

    A write has three points: after its BEGIN, before its COMMIT, and before the caller has the answer.
    """

    def __init__(self, driver: Driver, fatal: int | None = None) -> None:
        self._driver = driver
        self._fatal = fatal
        self.points = 0

    def _point(self) -> None:
        if self.points == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.points += 1

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[Transaction]:
        with self._driver.write(synced=synced) as tx:
            self._point()
            yield tx
            self._point()
        self._point()

    def read(self) -> AbstractContextManager[Transaction]:
        return self._driver.read()

    def now(self) -> Instant:
        return self._driver.now()

    @property
    def where(self) -> str:
        return self._driver.where

    @property
    def one_writer(self) -> bool:
        return self._driver.one_writer

    def watch(self, topic: str, is_news: Callable[[], bool], /) -> QueueWatch:
        return self._driver.watch(topic, is_news)

    def bytes_used(self) -> int:
        return self._driver.bytes_used()

    def find_damage(self, *, deep: bool) -> tuple[str, ...]:
        return self._driver.find_damage(deep=deep)

    def back_up(self) -> str | None:
        return self._driver.back_up()

    def close(self) -> None:
        self._driver.close()


@dataclass(frozen=True)
class Place:
    """Where one walk keeps its data: a file of its own, or a workspace of a database that all of them share."""

    url: str
    workspace: str

    def open(self, clock: Clock) -> SqlStore:
        # a killed process loses nothing that it wrote, synced or not: only a machine does
        store = open_store(self.url, workspace=self.workspace, clock=clock, durability="normal")
        assert isinstance(store, SqlStore)
        return store


def a_new_file(template: Path, path: Path) -> Place:
    """A copy of an empty store; quicker than making one."""
    shutil.copyfile(template, path)
    return Place(f"sqlite:///{path}", path.stem)


def a_new_workspace(url: str, workspace: str) -> Place:
    """Whoever works there goes by its name in PostgreSQL's list of clients."""
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, f"application_name={workspace}"]))
    return Place(parts._replace(query=query).geturl(), workspace)


@dataclass(frozen=True)
class Killed:
    """What outlived a process: how many calls were answered, its time, and the claims it had."""

    answered: int
    now: Instant
    claims: dict[str, Claim]


def kill_everywhere(path: str, places: list[Place]) -> Iterator[Killed]:
    """For each place a process that walks there; the first dies at the first point, the second at the second …"""
    process, connection = processes.start(_nursery, path, places)
    try:
        for _ in places:
            killed, exit_code = processes.receive(connection)
            assert exit_code == -signal.SIGKILL
            yield killed
    finally:
        connection.close()
        processes.finish(process)
        process.close()


def killed_everywhere(act: Callable[..., None], url: str, *args: object) -> Iterator[int]:
    """Processes that do the same on one store, one after the other, until one comes to its end.

    Each of the others dies one point later than the one before; whoever iterates looks at what it has left.
    """
    process, connection = processes.start(_act_again_and_again, act, url, args)
    try:
        for fatal in range(_MOST_POINTS):
            connection.send(fatal)
            exit_code = processes.receive(connection)
            if exit_code == 0:
                assert fatal >= POINTS_OF_A_WRITE, "it wrote nothing"
                return
            assert exit_code == -signal.SIGKILL
            yield fatal
        raise AssertionError("it never comes to its end")
    finally:
        connection.close()
        processes.finish(process)
        process.close()


def _act_again_and_again(
    connection: Connection, act: Callable[..., None], url: str, args: tuple[object, ...]
) -> None:
    """A nursery, too."""
    while True:
        try:
            fatal = connection.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            _act_until_killed(act, url, args, fatal)
        _, status = os.waitpid(child, 0)
        connection.send(os.waitstatus_to_exitcode(status))


def _act_until_killed(act: Callable[..., None], url: str, args: tuple[object, ...], fatal: int) -> NoReturn:
    try:
        store = open_store(url, durability="normal")
        assert isinstance(store, SqlStore)
        store._driver = MortalDriver(store._driver, fatal)
        act(store, *args)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as the nursery
        traceback.print_exc()
    os._exit(1)


def _nursery(connection: Connection, path: str, places: list[Place]) -> None:
    """Has no threads and no connections of its own, so it can fork; cheaper than a new process each time."""
    for fatal, place in enumerate(places):
        reader, writer = processes.context.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            _walk_until_killed(writer, path, place, fatal)
        writer.close()
        seen = Killed(0, NOON, {})
        try:
            while True:
                seen = Killed(seen.answered + 1, *reader.recv())
        except EOFError:
            reader.close()
        _, status = os.waitpid(child, 0)
        connection.send((seen, os.waitstatus_to_exitcode(status)))


def _walk_until_killed(connection: Connection, path: str, place: Place, fatal: int) -> NoReturn:
    try:
        clock = ManualClock()
        store = place.open(clock)
        store._driver = MortalDriver(store._driver, fatal)
        walk = Walk(store, clock)
        for step in PATHS[path]:
            step.act(walk)
            connection.send((clock.now, walk.claims))
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as the nursery
        traceback.print_exc()
    os._exit(1)
