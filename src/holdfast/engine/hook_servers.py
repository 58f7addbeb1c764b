"""Owns whether the servers that hooks are sent to answer them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import Forbidden, Unauthenticated
from holdfast.store.unreachable import why_unreachable

_SECONDS = 2.0
_MOST_BYTES = 10_000
_LONGEST_WORDS = 200


@dataclass(frozen=True, slots=True)
class HookServer:
    address: str
    answers: bool  #: as a Holdfast server does, be it with a refusal
    problem: str | None = None  #: None: it takes the hooks


def ask_server(address: str, token: str | None) -> HookServer:
    """With the token that hooks are sent with. It answers at once or not at all, and nothing is changed there."""
    try:
        status, said = _ask(address, token)
    except (OSError, HTTPException) as exc:
        return HookServer(address, answers=False, problem=f"no answer: {why_unreachable(exc)}")
    if status == HTTPStatus.OK and "events" in said:
        return HookServer(address, answers=True)
    if status == HTTPStatus.OK or "code" not in said:
        problem = f"it answers {status}, not as a Holdfast server does"
        return HookServer(address, answers=False, problem=problem)
    return HookServer(address, answers=True, problem=_refusal(said, token))


def _refusal(problem: dict[str, Any], token: str | None) -> str:
    if problem["code"] not in (Unauthenticated.code, Forbidden.code):
        return f"refuses hooks: {str(problem.get('detail'))[:_LONGEST_WORDS]}"
    refused = "refuses the token" if token else "asks for a token"
    return f"{refused}: set HOLDFAST_TOKEN to one of the role worker"


def _ask(address: str, token: str | None) -> tuple[int, dict[str, Any]]:
    url = urlsplit(address)
    make = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=_SECONDS)
    # what cannot stand in a header would be refused there, too, and is quoted by whoever refuses it here
    sendable = token is not None and token.isascii() and token.isprintable()
    try:
        headers = {"Authorization": f"Bearer {token}"} if sendable else {}
        connection.request("GET", f"{url.path.rstrip('/')}/v1/hooks", headers=headers)
        answer = connection.getresponse()
        return answer.status, _read(answer.read(_MOST_BYTES))
    finally:
        connection.close()


def _read(said: bytes) -> dict[str, Any]:
    """Nothing, if it is not an object of JSON."""
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
