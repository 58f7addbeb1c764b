"""Owns ringing and listening on PostgreSQL: NOTIFY, and a connection of its own for whoever waits."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import psycopg

from holdfast.store.contract import QueueWatch

if TYPE_CHECKING:
    from holdfast.store.postgres import Connection

_LISTEN = "LISTEN holdfast_queue"
_RING = b"SELECT pg_notify('holdfast_queue', %s)"
#: whoever is not there any more is found out in about half a minute; nothing is sent on this connection otherwise
KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}


def ring(cursor: psycopg.Cursor[tuple[object, ...]], topics: Iterable[str]) -> None:
    """After the commit, in a transaction of its own that writes nothing.

    A NOTIFY holds a lock of the whole cluster from before its commit is synced until after it: inside the
    transaction it would make all those that ring wait for each other's disk. And what is committed must
    not be said to have failed, so a bell that cannot be rung stays silent: workers look now and then.
    """
    with suppress(psycopg.Error):
        for topic in topics:
            cursor.execute(_RING, (topic,))


class Bell(QueueWatch):
    """``errors`` turns those of the engine into Holdfast's."""

    def __init__(
        self, connection: Connection, topic: str, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._errors = errors
        self._closed = False
        self._get_ready()
        _bells.add(self)
        with errors():
            connection.sql.execute(_LISTEN)

    def _get_ready(self) -> None:
        self._waiting = threading.Lock()
        self._stop, self._stopped = socket.socketpair()
        self._news = select.poll()
        self._news.register(self._stopped, select.POLLIN)
        self._news.register(self._connection.sql, select.POLLIN)

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
            self._connection.abandon()
            self._stop.close()
            self._stopped.close()
            self._get_ready()

    def _has_rung(self) -> bool:
        server = self._connection.sql.pgconn
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
