"""Owns the way in for people: the cookie, the one-time code of ``holdfast ui``, and the proof that a form is ours."""

from __future__ import annotations

import hmac
import os
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qs, quote

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from holdfast.errors import Forbidden, InvalidInput

#: what a person may open without a token
_OPEN: Final = ("/login", "/static/")
_PAGES: Final = ("/s/", "/a/", "/inbox", "/badge", "/fleet", "/numbers", "/logout", *_OPEN)
#: what the page reads besides
_READ: Final = ("/docs", "/docs.css", "/openapi.json", "/v1/changes")
_BEARER: Final = "Bearer "
_MONTH: Final = 30 * 24 * 3600
_MOST_FIELDS: Final = 50


class Entrance:
    """What is known of the people who come in: for ``holdfast ui`` a code that opens the door once, and the key behind it."""

    def __init__(self, key: str | None = None, code: str | None = None) -> None:
        self.key = key
        self._code = code
        #: for people who need no cookie
        self.secret = os.urandom(32).hex()

    def exchange(self, code: str) -> str | None:
        """The key for the code; None if the code is wrong, or was used."""
        if (
            self._code is None
            or self.key is None
            or not hmac.compare_digest(self._code.encode(), code.encode())
        ):
            return None
        self._code = None
        return self.key


def path_of(scope: Scope) -> str:
    """Without the base path, which some proxies leave in it."""
    path, base = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(base) if base and path.startswith(f"{base}/") else path


def is_page(scope: Scope) -> bool:
    path = path_of(scope)
    return path == "/" or path.startswith(_PAGES)


def is_open(scope: Scope) -> bool:
    return path_of(scope).startswith(_OPEN)


def cookie_name(scope: Scope) -> str:
    """With the port: browsers give the cookies of one server to all servers of the same host."""
    server = scope.get("server")
    return f"holdfast_{server[1] if server else 0}"


def credentials(scope: Scope) -> list[str]:
    """What the caller is known by: its Authorization headers, or the cookie, which opens the page and what it reads."""
    headers = Headers(scope=scope)
    given = headers.getlist("authorization")
    if given or not (is_page(scope) or path_of(scope) in _READ):
        return given
    value = cookie_parser(headers.get("cookie", "")).get(cookie_name(scope))
    return [_BEARER + value] if value else []


def to_login(scope: Scope) -> Response:
    """Leads a person to the login page, and from there back to where they wanted to go."""
    base, headers = scope.get("root_path", ""), Headers(scope=scope)
    wanted = path_of(scope)
    if scope.get("query_string"):
        wanted += "?" + scope["query_string"].decode("latin-1")
    if "hx-request" in headers:
        return Response(status_code=401, headers={"hx-redirect": f"{base}/login"})
    back = f"?next={quote(wanted)}" if scope["method"] == "GET" and wanted != "/" else ""
    return RedirectResponse(f"{base}/login{back}", status_code=303)


def own_path(wanted: str) -> str:
    """A path of this page; anything else is the list of sessions."""
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_own else "/"


def log_in(answer: Response, request: Request, value: str, *, lasts: bool) -> Response:
    """``lasts``: the cookie is kept when the browser is closed."""
    is_tls = any(origin.startswith("https://") for origin in request.app.state.public_origins)
    answer.set_cookie(
        cookie_name(request.scope),
        value,
        max_age=_MONTH if lasts else None,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="lax",
        secure=is_tls or request.url.scheme == "https",
    )
    return answer


def form_token(request: Request) -> str:
    """The proof that a form came from a page that this person got: no other site can know it."""
    entrance: Entrance = request.app.state.entrance
    known = credentials(request.scope) or [entrance.secret]
    return hmac.new(known[0].encode(), b"holdfast form", sha256).hexdigest()


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of a form of this page. Raises Forbidden for a form of anybody else.

    Admission has compared the origin with the host; here, a browser must have said it.
    """
    if len(request.headers.getlist("origin")) != 1:
        raise Forbidden("send forms from this page only: the request names no origin")
    try:
        found = parse_qs(
            (await request.body()).decode(),
            keep_blank_values=True,
            strict_parsing=True,
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise InvalidInput("form", "cannot be read") from None
    fields = {name: values[-1].replace("\r\n", "\n") for name, values in found.items()}
    if not hmac.compare_digest(fields.pop("csrf", "").encode(), form_token(request).encode()):
        raise Forbidden("the form is out of date: load the page again, and send it once more")
    return fields
