"""Owns what cleanup did, or would do."""

from __future__ import annotations

from holdfast.domain.records import record


@record
class CleanupReport:
    abandoned: tuple[str, ...]  #: idle for too long: closed, still readable
    deleted: tuple[str, ...]  #: final for too long: gone with their events

    @property
    def count(self) -> int:
        return len(self.abandoned) + len(self.deleted)
