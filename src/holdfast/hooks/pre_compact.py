"""Owns the hook before a session forgets all but a summary."""

from __future__ import annotations

from holdfast.hooks.subagent_stop import end_failed
from holdfast.hooks.watching import last_seen_at, sight, watch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.hooks.calls import HookCall


def answer(call: HookCall) -> None:
    watched = watch(call.store, sight(call, compacts=True), reads_files=call.reads_files)
    end_failed(call, last_seen_at(watched))
