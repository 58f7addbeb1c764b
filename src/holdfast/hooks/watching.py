"""Owns watching a session of Claude Code: each event is written down, with what its transcript has said since."""

from __future__ import annotations

from holdfast.clock import Instant, system_clock, to_iso
from holdfast.domain.ids import check_id
from holdfast.domain.inputs import clean_text
from holdfast.domain.observed import Sighting
from holdfast.domain.records import PlainRecord
from holdfast.errors import StoreUnavailable
from holdfast.providers.claude.transcript import read_usage

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.domain.observed import ObservedSession, Reading
    from holdfast.hooks.calls import HookCall, HookStore

PROVIDER = "claude"
_LONGEST_PATH = 4096
_LONGEST_WORD = 64


class Watched(PlainRecord):
    before: ObservedSession | None
    after: ObservedSession
    is_current: bool  #: its transcript was read to the end


def sight(call: HookCall, **told: Any) -> Sighting:
    """The event, with what all of them tell and this one besides. InvalidInput if it is of no session."""
    return Sighting(
        provider=PROVIDER,
        id=check_id("session_id", call.payload.get("session_id")),
        at=system_clock(),
        cwd=_storable(call.text("cwd"), _LONGEST_PATH),
        transcript_path=_storable(call.text("transcript_path"), _LONGEST_PATH),
        **told,
    )


def word(call: HookCall, name: str) -> str | None:
    """A short field, such as a reason."""
    return _storable(call.text(name), _LONGEST_WORD)


def watch(store: HookStore, seen: Sighting, *, reads_files: bool = True) -> Watched | None:
    """Write the event down with what the transcript has said since the last one.

    None if the store is elsewhere: the transcript is read by whoever takes the event there, by this function.
    """
    try:
        before = store.observed_session(seen.provider, seen.id)
    except StoreUnavailable:
        store.observe_session(seen)
        return None
    reading = _read_on(seen.transcript_path, before) if reads_files else None
    after = store.observe_session(Sighting(**{**vars(seen), "reading": reading}))
    return Watched(before=before, after=after, is_current=reading is not None and reading.is_complete)


def last_seen_at(watched: Watched | None) -> Instant:
    """When the event before this one was; the beginning of time if that is not known here."""
    before = None if watched is None else watched.before
    return Instant(0) if before is None else before.last_seen_at


def _read_on(path: str | None, known: ObservedSession | None) -> Reading | None:
    if path is None:
        return None
    if known is None:
        return read_usage(path)
    since = to_iso(known.started_at).removesuffix("Z") if known.source == "fork" else ""
    return read_usage(path, known.transcript_offset, known.last_message, since)


def _storable(text: str | None, limit: int) -> str | None:
    return None if text is None or len(text) > limit else clean_text(text)
