"""Owns observed sessions: what hooks see of a provider's session, and what is known of it. Light: hook processes read it."""

from __future__ import annotations

from holdfast.domain.records import PlainRecord

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.clock import Instant


class Reading(PlainRecord):
    """What a transcript holds between two offsets.

    ``start`` is where the previous reading ended: the figures may be added only to a record that ends there. If the
    file was ``replaced`` by another one, it was read from its beginning, and everything counted before is void.
    """

    start: int
    end: int
    replaced: bool = False
    is_complete: bool = True  #: at most a line that is still being written follows
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int | None = None  #: of the last call to the model
    last_message: str | None = None  #: id of the last one that was counted


class Sighting(PlainRecord):
    """One event of a provider's session; only the fields that the event has are set."""

    provider: str
    id: str
    at: Instant
    cwd: str | None = None
    transcript_path: str | None = None
    source: str | None = None  #: how it began: startup, resume, fork, clear, compact
    end_reason: str | None = None  #: set: it has ended
    compacts: bool = False  #: it is about to be compacted to a summary
    reading: Reading | None = None


class ObservedSession(PlainRecord):
    """A session of a provider, started by Holdfast or not, as far as hooks have seen it."""

    provider: str
    id: str
    started_at: Instant  #: or first seen
    last_seen_at: Instant
    cwd: str | None = None
    transcript_path: str | None = None
    source: str | None = None  #: how it began
    ended_at: Instant | None = None
    end_reason: str | None = None
    compactions: int = 0
    input_tokens: int = 0  #: of its main agent, as the following two
    cached_input_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int | None = None  #: of its last call
    context_window: int | None = None  #: known if a run of Holdfast in the same session reported it
    context_state: str | None = None  #: as ``usage.ContextState``; None while the window is not known
    transcript_offset: int = 0  #: how far its transcript has been read
    last_message: str | None = None  #: the last one that was counted
