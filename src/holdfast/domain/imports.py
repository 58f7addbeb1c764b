"""Owns imports: sessions that providers kept alone and that become ours, and the sources that they were read from."""

from __future__ import annotations

from enum import StrEnum

from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.pointers import Pointer
from holdfast.domain.records import record
from holdfast.domain.sessions import NewSession
from holdfast.domain.turns import OutsideTurn
from holdfast.domain.usage import NO_USAGE, Usage


class NotTaken(StrEnum):
    """Why a store does not take a session in."""

    REMOVED = "removed"  #: somebody has removed it from here
    OWNED = "owned"  #: it belongs to another session
    ELSEWHERE = "elsewhere"  #: it belongs to another workspace
    RETIRED = "retired"  #: it must never be used again
    INVALID = "invalid"  #: it holds what no store can keep; an importer says so, when a store has raised InvalidInput


@record
class KnownSource:
    """Where a session was read from, and in which state. It is read again when size or time are others."""

    machine: str
    provider: str
    home: str
    place: str  #: unique in the provider's home: the path of its file, or that of a database with ``#`` and an id
    size: int
    mtime_ns: int
    provider_session_id: ProviderSessionId | None = None  #: None: it could not be told
    session_id: SessionId | None = None  #: that has what the source holds; None: none has
    work_dir: str | None = None
    first_key: str | None = None  #: of its first turn, by which forks are recognised
    reason: str | None = None  #: why nothing of it, or nothing new, was taken in


@record
class SessionImport:
    """A session of a provider, or the next part of one, as it enters the store."""

    new: NewSession
    provider_session_id: ProviderSessionId
    turns: tuple[OutsideTurn, ...] = ()
    pointer: Pointer | None = (
        None  #: without the turns that it has seen; None: it cannot be resumed by itself
    )
    dead: frozenset[str] = frozenset()  #: keys of its turns that the provider's session has left
    usage: Usage = NO_USAGE  #: of these turns
    counted: Usage | None = None  #: as in ``Store.set_pointer``
    #: the provider session that it was forked from, or whose agent started it
    comes_from: ProviderSessionId | None = None
    takes_back: bool = False  #: it is taken in even if somebody has removed it


@record
class Imported:
    """What became of a session that was to be imported."""

    session_id: SessionId | None  #: its own, or that of the session that it belongs to already
    turns: int = 0  #: how many turns this call has added
    reason: NotTaken | None = None  #: set: nothing of it was taken in
