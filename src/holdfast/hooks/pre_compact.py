"""Owns the hook before a session forgets all but a summary."""

from __future__ import annotations

from holdfast.hooks.watching import sight, watch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.hooks.calls import HookCall


def answer(call: HookCall) -> None:
    watch(call.store, sight(call, compacts=True), reads_files=call.reads_files)
