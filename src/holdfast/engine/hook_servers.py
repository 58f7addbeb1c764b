"""Owns whether the servers that hooks are sent to answer."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

_SECONDS = 2.0
_MOST_BYTES = 1000


def why_silent(address: str) -> str | None:
    """None if a Holdfast server answers there, which it does at once or not at all."""
    try:
        status, said = _ask(address)
    except (OSError, HTTPException, ValueError) as exc:
        return f"no answer: {exc}" if str(exc) else f"no answer ({type(exc).__name__})"
    if status == 200 and b'"ok"' in said:
        return None
    return f"it answers {status}, not as a Holdfast server does"


def _ask(address: str) -> tuple[int, bytes]:
    url = urlsplit(address)
    make = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=_SECONDS)
    try:
        connection.request("GET", f"{url.path}/healthz")
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    finally:
        connection.close()
