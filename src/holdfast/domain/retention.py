"""Owns what cleanup may take away, and what it did or would do."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.records import record


@record
class Old:
    """What cleanup looks for: sessions that were last used before an instant."""

    cutoff: Instant  #: for delegated sessions
    conversations: Instant | None = None  #: for conversations; None: they are kept, however old they are
    project: str | None = None  #: a directory: only the sessions of that project and of directories below it
    #: with a project: only the sessions of these directories; None: of any that is in it
    places: tuple[str, ...] | None = None


@record
class CleanupReport:
    abandoned: tuple[str, ...]  #: idle for too long: closed, still readable
    deleted: tuple[str, ...]  #: final for too long: gone with their events
    places: tuple[str, ...] = ()  #: with a project: the directories in it that old sessions belong to

    @property
    def count(self) -> int:
        return len(self.abandoned) + len(self.deleted)
