"""Owns recognising a request that only says to go on, and finding what it means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.domain.conversations import HistoryTurn

_LONGEST = 80
_WORD = re.compile(r"\w+")
_GO_ON = frozenset({
    "continue", "go", "go on", "go ahead", "keep going", "keep on", "keep working", "carry on", "proceed",
    "resume", "move on", "pick up", "finish",
    "weiter", "mach weiter", "weitermachen", "fahr fort", "fortfahren", "fortsetzen",
    "continuez", "continua", "continuar", "sigue", "seguir",
})  # fmt: skip
#: words that change nothing: ``ok, please continue where you left off``
_FILLERS = frozenset({
    "please", "bitte", "ok", "okay", "yes", "ja", "and", "now", "just", "then", "so", "again", "with", "the",
    "your", "this", "that", "it", "work", "task", "job", "from", "where", "you", "we", "left", "off", "stopped",
})  # fmt: skip


def says_continue(prompt: str) -> bool:
    if len(prompt) > _LONGEST:
        return False
    words = _WORD.findall(prompt.casefold())
    return " ".join(word for word in words if word not in _FILLERS) in _GO_ON


def request_to_continue(history: Sequence[HistoryTurn]) -> HistoryTurn | None:
    """The newest turn that asked for something; ``history`` is oldest first."""
    asked = (turn for turn in reversed(history) if turn.prompt.strip() and not says_continue(turn.prompt))
    return next(asked, None)
