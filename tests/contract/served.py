"""Owns a server in this process, behind which each test puts a store of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import uvicorn

from holdfast.engine.holdfast import Holdfast
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.web.app import create_app
from holdfast.web.server import listen
from holdfast.web.serving import Workspaces

_BEHIND: dict[str, Store] = {}
_ROOMS = count(1)


class Served:
    def __init__(self, url: str) -> None:
        self.url = url

    def room_of(self, behind: Store) -> str:
        """A workspace by whose name the server finds the given store."""
        room = f"room-{next(_ROOMS)}"
        _BEHIND[room] = behind
        return room

    def store_for(self, behind: Store) -> Store:
        """The given store, over HTTP."""
        return open_http(self.url, self.room_of(behind), None)


def behind_http(store: Store) -> Store:
    room = getattr(store, "_workspace", None)
    return _BEHIND.get(str(room), store)


@contextmanager
def serving() -> Iterator[Served]:
    workspaces = Workspaces("default", lambda room: Holdfast(_BEHIND[room]))
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(workspaces), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()
