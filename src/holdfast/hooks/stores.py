"""Owns which store a hook works on: the SQLite file itself, or the spool of a store that is elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.hooks.light_store import LightStore
    from holdfast.hooks.settings import HookSettings
    from holdfast.hooks.spool import SpoolStore


def open_hook_store(settings: HookSettings, directory: str) -> LightStore | SpoolStore:
    """``directory``: where the settings were looked for."""
    if settings.path is not None:
        from holdfast.hooks.light_store import LightStore

        return LightStore(settings)
    from holdfast.hooks.spool import SpoolStore

    return SpoolStore(settings, directory)
