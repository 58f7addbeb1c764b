"""Owns the hook behind a turn of the main agent: what it has used, how full its context is, which subagents failed."""

from __future__ import annotations

from holdfast.hooks.subagent_stop import end_failed
from holdfast.hooks.watching import last_seen_at, sight, watch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.domain.observed import ObservedSession
    from holdfast.hooks.calls import HookCall

#: what comes of each state that is worth a word, the fullest last
_NEXT = {
    "warn": "",
    "refresh": " The next turn that Holdfast runs in it will start fresh, with a summary of the work.",
    "critical": " Nothing more should be sent to it: compact it, or begin a new one.",
}


def answer(call: HookCall) -> dict[str, Any] | None:
    watched = watch(call.store, sight(call), reads_files=call.reads_files)
    end_failed(call, last_seen_at(watched))
    if watched is None or not watched.is_current:
        return None
    before = watched.before.context_state if watched.before is not None else None
    warning = _warning(before, watched.after)
    return None if warning is None else {"systemMessage": warning}


def _warning(before: str | None, after: ObservedSession) -> str | None:
    """Only in the turn in which the context becomes that full."""
    state, tokens, window = after.context_state, after.context_tokens, after.context_window
    if state not in _NEXT or tokens is None or window is None:
        return None
    ranks = list(_NEXT)
    if before in _NEXT and ranks.index(before) >= ranks.index(state):
        return None
    share = f"{tokens * 100 // window} % full ({tokens:,} of {window:,} tokens)"
    return f"Holdfast: the context of this session is {share}.{_NEXT[state]}"
