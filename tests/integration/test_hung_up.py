"""A caller that hangs up in the middle of a request: nothing happens, and nothing is said about it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.sessions import SessionFilter
from holdfast.store.contract import Store
from holdfast.web.admission import Callers, Rates
from holdfast.web.server import create_app
from holdfast.web.serving import Workspaces
from tests.contract.served import NoTokens

HEADERS = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"100")]


@pytest.mark.parametrize("path", ["/v1/store/create_session", "/v1/hooks/Stop"])
def test_half_a_request_is_no_error_of_the_server(store: Store, path: str) -> None:
    workspaces = Workspaces("default", lambda _: Holdfast(store))
    app = create_app(workspaces, Callers(NoTokens()), Rates(1e9))
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": HEADERS, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    heard: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> dict[str, Any]:
        return next(heard)

    async def send(_: object) -> None:
        pass

    asyncio.run(app(scope, receive, send))

    assert store.list_sessions(SessionFilter(), 10).sessions == ()
