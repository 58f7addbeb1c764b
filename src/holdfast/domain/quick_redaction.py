"""Owns redaction for hook processes: the patterns are loaded only for a text that may hold a secret.

Compiling the patterns takes longer than everything else that a hook does.
"""

from __future__ import annotations

#: names of secrets, the ends of such names, and programs that take one on their command line
_NAMES = ("pass", "pwd", "secret", "token", "key", "authorization", "cookie", "curl")
_SHORTEST_TOKEN = 12


def redact_seldom(text: str) -> str:
    """The same as ``redact_text``, and cheap for a text without secrets."""
    if not may_hold_secret(text):
        return text
    from holdfast.domain.redaction import redact_text

    return redact_text(text)


def may_hold_secret(text: str) -> bool:
    """False only if the text holds no secret; True may be wrong."""
    lower = text.lower()
    if any(name in lower for name in _NAMES) or ("@" in text and "://" in text):
        return True
    if not any(len(word) >= _SHORTEST_TOKEN and not word.isalpha() for word in text.split()):
        return False
    from holdfast.domain.secret_tokens import (
        has_marker,
    )  # this imports the table of tokens, and compiles no pattern

    return has_marker(text)
