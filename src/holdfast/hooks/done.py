"""Owns telling people of a session that a hook has finalized; only where somebody wants to be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.config import default_url, load_settings
from holdfast.notifying import done_notice, notify
from holdfast.store.open import open_store


def tell_done(environ: Mapping[str, str], cwd: str, session_id: str) -> None:
    settings = load_settings(environ=environ, cwd=Path(cwd))
    store = open_store(settings.url or default_url(environ), workspace=settings.workspace)
    try:
        session = store.get_session(session_id)
    finally:
        store.close()
    notify(settings.policy.notify, done_notice(session))
