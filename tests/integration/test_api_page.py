"""The page ``/docs``: everything is on it, and it needs no other host."""

import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.engine.holdfast import Holdfast
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.web.admission import Callers, Rates
from holdfast.web.server import create_app
from holdfast.web.serving import Workspaces
from tests.contract.served import NoTokens, Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


def get(url: str, path: str, token: str | None = None) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(url)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.headers.items()},
            answer.read().decode(),
        )


def described() -> dict[str, Any]:
    with Holdfast(open_store("sqlite:///:memory:")) as behind:
        app = create_app(Workspaces("default", behind.within), Callers(NoTokens()), Rates(1))
        return app.openapi()


class Page(HTMLParser):
    """What the page loads, and the elements that are open at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.loaded |= {value or "" for name, value in attrs if name in ("src", "href") and value}
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_route_is_on_the_page(served: Served) -> None:
    status, headers, text = get(served.url, "/docs")

    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path, operations in described()["paths"].items():
        assert f"<code>{path}</code>" in text
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in text


def test_it_loads_only_its_own_style_and_runs_nothing(served: Served) -> None:
    _, headers, text = get(served.url, "/docs")
    page = Page()
    page.feed(text)

    assert page.open == []
    links = {link for link in page.loaded if not link.startswith("#")}
    assert links == {"docs.css", "openapi.json"}
    assert page.elements.isdisjoint({"script", "style", "img", "iframe"})
    assert not [name for name in page.attributes if name == "style" or name.startswith("on")]
    assert not re.findall(r"https?://", text)
    assert "default-src 'none'; style-src 'self'" in headers["content-security-policy"]
    status, headers, style = get(served.url, "/docs.css")
    assert (status, headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "url(" not in style


def test_it_says_which_roles_may_call_a_route(served: Served) -> None:
    _, _, text = get(served.url, "/docs")
    (_, after) = text.split("<code>/v1/sessions/{session}/fork</code>")

    assert re.findall(r"Roles: ([^.]*)\.", after)[0] == "operator, admin"


@pytest.mark.parametrize("path", ["/docs", "/docs.css", "/openapi.json"])
def test_it_needs_a_token_where_others_do(path: str) -> None:
    with closing(open_store("sqlite:///:memory:")) as book:
        assert isinstance(book, SqlStore)
        new, text = make_token(Role.VIEWER, "a", None, bytes(ENTROPY))
        book.create_token(new)
        with serving(book) as served:
            assert get(served.url, path)[0] == 401
            assert get(served.url, path, text)[0] == 200


def test_the_frameworks_own_pages_are_gone(served: Served) -> None:
    assert get(served.url, "/redoc")[0] == 404
