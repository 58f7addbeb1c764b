"""Owns the hook behind a session: its end is written down, and what it had delegated is free again."""

from __future__ import annotations

from holdfast.hooks.subagent_stop import end_failed
from holdfast.hooks.watching import last_seen_at, sight, watch, word

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.hooks.calls import HookCall

#: the program lives on in another session, and its subagents may as well
_GOES_ON = ("clear", "resume")


def answer(call: HookCall) -> None:
    seen = sight(call, end_reason=word(call, "reason") or "other")
    watched = watch(call.store, seen, reads_files=call.reads_files)
    end_failed(call, last_seen_at(watched))
    if seen.end_reason in _GOES_ON:
        return
    call.forget_old()
    lost = call.store.lose_delegations(seen.id)
    if lost:
        call.log.say("lost", delegations=lost, provider_session=seen.id)
