"""Owns ringing and listening on PostgreSQL: NOTIFY, and a connection of its own for whoever waits."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from weakref import WeakSet

import psycopg

from holdfast.store.contract import QueueWatch
from holdfast.store.driver import Row

_LISTEN = "LISTEN holdfast_queue"
RING = "SELECT pg_notify('holdfast_queue', :topic)"


def cut_off(connection: psycopg.Connection[Row]) -> None:
    """In the child of a fork: nothing that is said here may reach the parent's server process."""
    with Path(os.devnull).open("rb+", buffering=0) as nowhere:
        os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)


class Bell(QueueWatch):
    """``errors`` turns those of the engine into Holdfast's."""

    def __init__(
        self,
        connection: psycopg.Connection[Row],
        topic: str,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._errors = errors
        self._closed = False
        self._get_ready()
        _bells.add(self)
        try:
            with errors():
                connection.execute(_LISTEN)
        except BaseException:
            self.close()
            raise

    def _get_ready(self) -> None:
        self._waiting = threading.Lock()
        self._stop, self._stopped = socket.socketpair()
        self._news = select.poll()
        self._news.register(self._stopped, select.POLLIN)
        self._news.register(self._connection, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        with self._waiting, self._errors():
            while not self._closed:
                if self._has_rung():
                    return True
                left = give_up - time.monotonic()
                if left <= 0:
                    break
                self._news.poll(left * 1000)
        return False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop.send(b"\0")
        with self._waiting:
            self._stop.close()
            self._stopped.close()
            self._connection.close()

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's, and so is whoever waits for it."""
        if not self._closed:
            cut_off(self._connection)
            self._stop.close()
            self._stopped.close()
            self._get_ready()

    def _has_rung(self) -> bool:
        server = self._connection.pgconn
        server.consume_input()
        rung = False
        while (heard := server.notifies()) is not None:
            rung = rung or heard.extra.decode() == self._topic
        return rung


_bells: WeakSet[Bell] = WeakSet()


def _abandon_all() -> None:
    for bell in list(_bells):
        bell.abandon()


os.register_at_fork(after_in_child=_abandon_all)
