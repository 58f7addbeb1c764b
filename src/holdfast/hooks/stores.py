"""Owns which store a hook works on: the SQLite file itself, or the spool of a store that is elsewhere or busy."""

from __future__ import annotations

from holdfast.errors import StoreUnavailable
from holdfast.hooks.places import RECORD, key_mark, record_names

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.hooks.light_store import LightStore
    from holdfast.hooks.settings import HookSettings
    from holdfast.hooks.spool import SpoolStore


class StoreLocked(StoreUnavailable):
    """Nothing is wrong with it, but others have it now."""


def open_hook_store(
    settings: HookSettings, directory: str, *, begins: str | None = None, is_late: bool = False
) -> LightStore | SpoolStore:
    """``directory``: where the settings were looked for. ``is_late``: there is no time to wait for others.

    What may follow on something that waits in the spool goes there, too: what happened later is recorded later.
    ``begins``: it is a delegation with this id, and follows on nothing but its own first call.
    """
    if settings.path is None or is_late or _is_awaited(settings.spool, begins):
        from holdfast.hooks.spool import SpoolStore

        return SpoolStore(settings, directory)
    from holdfast.hooks.light_store import LightStore

    return LightStore(settings)


def _is_awaited(spool: str | None, key: str | None) -> bool:
    """Something waits there to be taken to the store; with a key, a record with this key."""
    waiting = record_names(spool) if spool is not None else []
    return any(name.endswith(f"{key_mark(key)}{RECORD}") for name in waiting)
