"""Owns a server in this process, behind which each test puts a store of its own."""

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast

import pytest
import uvicorn

from holdfast.domain.ids import TokenId, Workspace
from holdfast.domain.tokens import ENTROPY, Role, Token, make_token
from holdfast.engine.holdfast import Holdfast
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.sql_store import SqlStore
from holdfast.web.admission import Callers, Rates, TokenBook
from holdfast.web.server import create_app, listen
from holdfast.web.serving import Workspaces
from tests.clock import NOON

#: several times what the server itself gives open connections
END_SECONDS = 60.0

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

    def room_in(self, database: SqlStore) -> tuple[str, SqlStore]:
        """A workspace of its own in a database, by whose name the server finds it."""
        room = f"room-{next(_ROOMS)}"
        behind = database.within(Workspace(room))
        _BEHIND[room] = behind
        return room, behind

    def store_for(self, behind: Store) -> Store:
        """The given store, over HTTP; where tokens are asked for, with one that may do everything."""
        return open_http(self.url, self.room_of(behind), ANY_TOKEN)


def behind_http(store: Store) -> Store:
    room = getattr(store, "workspace", None)
    return _BEHIND.get(str(room), store)


#: good where ``AnyToken`` is asked
ANY_TOKEN = make_token(Role.ADMIN, "any", None, bytes(ENTROPY))[1]


class AnyToken:
    """Each one is an admin's, in every workspace."""

    def asks_for_tokens(self) -> bool:
        return True

    def check_token(self, token_id: str, secret: str) -> Token:
        everywhere = cast(Workspace, None)
        return Token(TokenId(token_id), everywhere, Role.ADMIN, "any", NOON, None, None, None)


class NoTokens:
    def asks_for_tokens(self) -> bool:
        return False

    def check_token(self, token_id: str, secret: str) -> None:
        return None


@contextmanager
def serving(book: TokenBook | None = None) -> Iterator[Served]:
    workspaces = Workspaces("default", lambda room: Holdfast(_BEHIND[room]))
    app = create_app(workspaces, Callers(book or NoTokens()), Rates(1e9))
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(
            uvicorn.Config(
                # a connection that a test has left open must not keep the server from ending
                app,
                log_level="warning",
                lifespan="off",
                timeout_graceful_shutdown=5,
            )
        )
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            app.state.queues.close()
            app.state.changes.close()
            server.should_exit = True
            thread.join(END_SECONDS)
            if thread.is_alive():
                faulthandler.dump_traceback()
                pytest.fail(
                    f"the server has not ended after {END_SECONDS:.0f} s; what its threads do is above"
                )
