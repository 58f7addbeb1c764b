"""Owns finding the answers that a session's agent was not told yet."""

from __future__ import annotations

from holdfast.domain.telling.answers import ToldAnswer, settled_at, told_answer
from holdfast.domain.turns import Situation


def told_answers(situation: Situation) -> tuple[ToldAnswer, ...]:
    """Oldest first."""
    now = situation.now
    found = [(at, approval) for approval in situation.untold if (at := settled_at(approval, now)) is not None]
    return tuple(told_answer(approval, now) for _, approval in sorted(found, key=lambda pair: pair[0]))
