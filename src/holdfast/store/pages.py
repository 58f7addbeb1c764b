"""Owns how many turns are read at a time: fewer of those that have long texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.turns import Turn

_FIRST: Final = 2
_LARGEST: Final = 256
#: of the texts that are read at a time, unless one turn alone has more
CHARACTERS: Final = 256 * 1024


class Pace:
    """``size`` is how many to read next."""

    def __init__(self) -> None:
        self.size = _FIRST

    def adapt(self, found: Sequence[HistoryTurn | Turn]) -> None:
        is_much = characters(found) > CHARACTERS
        self.size = max(1, self.size // 2) if is_much else min(2 * self.size, _LARGEST)


def characters(found: Sequence[HistoryTurn | Turn]) -> int:
    return sum(len(turn.prompt) + len(turn.response or "") for turn in found)
