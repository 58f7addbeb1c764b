"""Owns the workers of a crew that claim turns and finish them: by hand, and with Holdfast."""

from __future__ import annotations

from bench.crews import Shift
from bench.ours import Ours
from bench.postgres_stage import open_floor
from holdfast.store.open import open_store

#: no two workers use the same key for a claim
_KEYS = 1_000_000


class ByHand:
    def __init__(self, url: str, number: int) -> None:
        self._floor = open_floor(url, claims=(number + 1) * _KEYS)
        self.close = self._floor.close

    def work(self, shift: Shift) -> None:
        while not shift.is_over:
            claimed = self._floor.claim()
            if claimed is not None:
                self._floor.finish(*claimed)
                shift.done()


class WithHoldfast:
    def __init__(self, url: str, number: int) -> None:
        self._ours = Ours(open_store(url), claims=(number + 1) * _KEYS)
        self.close = self._ours.close

    def work(self, shift: Shift) -> None:
        while not shift.is_over:
            claim = self._ours.claim()
            if claim is not None:
                self._ours.finish(claim)
                shift.done()
