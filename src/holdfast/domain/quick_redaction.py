"""Owns redacting one text in a process that lives for a moment: what is costly is loaded only if there is cause.

Compiling the patterns that find secrets takes longer than all else that a hook does.
"""

from __future__ import annotations

#: names of secrets, the ends of such names, and programs that take one on their command line
_NAMES = ("pass", "pwd", "secret", "token", "key", "authorization", "cookie", "curl")
_SHORTEST_TOKEN = 12


def redact_seldom(text: str) -> str:
    """The same as ``redact_text``."""
    if not may_hold_secret(text):
        return text
    from holdfast.domain.redaction import redact_text

    return redact_text(text)


def may_hold_secret(text: str) -> bool:
    """Wrong in one direction only: what it clears, holds none."""
    lower = text.lower()
    if any(name in lower for name in _NAMES) or ("@" in text and "://" in text):
        return True
    if not any(len(word) >= _SHORTEST_TOKEN and not word.isalpha() for word in text.split()):
        return False
    from holdfast.domain.secret_tokens import has_marker  # a table of tokens, still without patterns

    return has_marker(text)
