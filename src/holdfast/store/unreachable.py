"""Owns the words for a server that cannot be reached."""

from __future__ import annotations

import ssl
from http.client import HTTPException


def why_unreachable(exc: OSError | HTTPException) -> str:
    if isinstance(exc, ssl.SSLError) and exc.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS there; write http://, or name the proxy that does"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
