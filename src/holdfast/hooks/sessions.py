"""Owns the hooks of Claude Code's own sessions: each event is recorded, with the usage in the transcript since the last."""

from __future__ import annotations

import os

from holdfast.clock import Instant, system_clock, to_iso
from holdfast.domain.ids import check_id
from holdfast.domain.inputs import clean_text
from holdfast.domain.observed import Sighting
from holdfast.domain.records import PlainRecord
from holdfast.errors import StoreUnavailable
from holdfast.hooks.process import mark_watched
from holdfast.providers.claude.transcript import read_usage

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.domain.observed import ObservedSession, Reading
    from holdfast.hooks.calls import HookCall, HookStore

PROVIDER = "claude"
_LONGEST_PATH = 4096
_LONGEST_WORD = 64
#: reasons after which Claude Code runs on in another session, and its subagents may run on too
_RUNS_ON = ("clear", "resume")
#: states of the context that people are warned of, the fullest last, with what follows from each
_WARNINGS = {
    "warn": "",
    "refresh": " The next turn that Holdfast runs in it will start fresh, with a summary of the work.",
    "critical": " Nothing more should be sent to it: compact it, or begin a new one.",
}


def session_start(call: HookCall) -> dict[str, Any] | None:
    """The answer tells the agent which approvals and paused sessions there are in its project."""
    seen = _sighting(call, source=_word(call, "source"))
    call.store.observe_session(seen)
    inside = call.environ.get("HOLDFAST_SESSION")
    welcome = call.store.welcome(seen.provider, seen.id, call.project, inside)
    _announce(call, seen)
    text = welcome.render()
    if not text:
        return None
    told: dict[str, Any] = {"hookEventName": "SessionStart", "additionalContext": text}
    if welcome.warning is None:
        return {"hookSpecificOutput": told}
    return {"hookSpecificOutput": told, "systemMessage": welcome.warning}


def stop(call: HookCall) -> dict[str, Any] | None:
    """After a turn of the main agent. Warns in the turn in which the context has become so full."""
    seen = _sighting(call)
    watched = _watch(call, seen)
    _announce(call, seen, has_grown=True)
    if watched is None or not watched.is_current:
        return None
    before = watched.before.context_state if watched.before is not None else None
    warning = _warning(before, watched.after)
    return None if warning is None else {"systemMessage": warning}


def pre_compact(call: HookCall) -> None:
    """Before Claude Code replaces the context by a summary."""
    _watch(call, _sighting(call, compacts=True))


def session_end(call: HookCall) -> None:
    """The delegations of a program that has ended are free again."""
    seen = _sighting(call, end_reason=_word(call, "reason") or "other")
    _watch(call, seen)
    _announce(call, seen, has_grown=True)
    if seen.end_reason in _RUNS_ON:
        return
    call.forget_old()
    lost = call.store.lose_delegations(seen.id)
    if lost:
        call.log.say("lost", delegations=lost, provider_session=seen.id)


class Watched(PlainRecord):
    before: ObservedSession | None
    after: ObservedSession
    is_current: bool  #: its transcript was read to the end


def watch(store: HookStore, seen: Sighting, *, reads_files: bool = True) -> Watched | None:
    """Record the event, with the usage that the transcript holds since the event before.

    None on a spool: emptying the spool calls this function again, with the real store, and reads the transcript.
    """
    try:
        before = store.observed_session(seen.provider, seen.id)
    except StoreUnavailable:
        store.observe_session(seen)
        return None
    reading = _read_on(seen.transcript_path, before) if reads_files else None
    after = store.observe_session(Sighting(**{**vars(seen), "reading": reading}))
    return Watched(before=before, after=after, is_current=reading is not None and reading.is_complete)


def _watch(call: HookCall, seen: Sighting) -> Watched | None:
    """Also ends the delegations of subagents that failed since the event before."""
    from holdfast.hooks.delegations import end_failed

    watched = watch(call.store, seen, reads_files=call.reads_files)
    before = None if watched is None else watched.before
    end_failed(call, Instant(0) if before is None else before.last_seen_at)
    return watched


def _announce(call: HookCall, seen: Sighting, *, has_grown: bool = False) -> None:
    """Leave a mark for whoever takes the session in; its file is not read here.

    Not for a session in which Holdfast runs a turn: that is taken in when the turn ends.
    """
    path = seen.transcript_path
    if call.spool is None or path is None or "HOLDFAST_SESSION" in call.environ:
        return
    try:
        mark_watched(call.spool, seen.provider, seen.id)
        call.has_news = has_grown and os.path.exists(path)
    except (OSError, ValueError) as exc:  # the hook has recorded its event: the next one leaves the mark
        call.log.problem(exc)


def _sighting(call: HookCall, **told: Any) -> Sighting:
    """The event, with the fields that only this event has. InvalidInput without a session id."""
    return Sighting(
        provider=PROVIDER,
        id=check_id("session_id", call.payload.get("session_id")),
        at=system_clock(),
        cwd=_storable(call.text("cwd"), _LONGEST_PATH),
        transcript_path=_storable(call.text("transcript_path"), _LONGEST_PATH),
        **told,
    )


def _word(call: HookCall, name: str) -> str | None:
    """A short field, such as a reason."""
    return _storable(call.text(name), _LONGEST_WORD)


def _storable(text: str | None, limit: int) -> str | None:
    return None if text is None or len(text) > limit else clean_text(text)


def _read_on(path: str | None, known: ObservedSession | None) -> Reading | None:
    if path is None:
        return None
    if known is None:
        return read_usage(path)
    since = to_iso(known.started_at).removesuffix("Z") if known.source == "fork" else ""
    return read_usage(path, known.transcript_offset, known.last_message, since)


def _warning(before: str | None, after: ObservedSession) -> str | None:
    """None unless the state is fuller than that of the event before."""
    state, tokens, window = after.context_state, after.context_tokens, after.context_window
    if state not in _WARNINGS or tokens is None or window is None:
        return None
    ranks = list(_WARNINGS)
    if before in _WARNINGS and ranks.index(before) >= ranks.index(state):
        return None
    share = f"{tokens * 100 // window} % full ({tokens:,} of {window:,} tokens)"
    return f"Holdfast: the context of this session is {share}.{_WARNINGS[state]}"


HANDLERS = {
    "session-start": session_start,
    "stop": stop,
    "pre-compact": pre_compact,
    "session-end": session_end,
}
