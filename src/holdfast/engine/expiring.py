"""Owns which sessions their providers are about to delete: people are warned while the files are still there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.clock import DAY, SECOND, Instant, seconds_between, system_clock
from holdfast.domain.sessions import Session
from holdfast.providers.contract import Archive
from holdfast.providers.registry import get_provider, is_provider
from holdfast.store.contract import Store

SOON_DAYS: Final = 5
_SOON: Final = SOON_DAYS * DAY
#: of one provider; each costs a call of the store and a look at a file
_MOST_LOOKED_AT: Final = 200


def expires_soon(archive: Archive, path: str) -> Instant | None:
    """When the provider deletes the session, if that is within the next days or already due; else None."""
    at = archive.expires_at(path)
    return at if at is not None and at < system_clock() + _SOON else None


def count_expiring(
    store: Store, environ: Mapping[str, str], sessions: Iterable[Session]
) -> Mapping[str, int]:
    """By provider, how many of these open sessions it is about to delete on this machine.

    Looks only at those that were not used for nearly as long as the provider keeps a session.
    """
    by_provider: dict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        if session.provider is not None and session.finalized_at is None and is_provider(session.provider):
            by_provider[session.provider].append(session)
    found = {name: _count(store, environ, name, listed) for name, listed in by_provider.items()}
    return {name: number for name, number in found.items() if number}


def _count(store: Store, environ: Mapping[str, str], name: str, sessions: list[Session]) -> int:
    provider, now = get_provider(name), system_clock()
    archive = provider.archive(Path(os.path.realpath(provider.home(environ))))
    keeps = archive.keeps_seconds
    if keeps is None:
        return 0
    # an imported session was changed here by its import, and in its provider's home long before
    old = [
        session
        for session in sessions
        if session.imported_at is not None
        or seconds_between(session.updated_at, now) > keeps - _SOON / SECOND
    ]
    pointers = (store.pointer(session.id, name) for session in old[:_MOST_LOOKED_AT])
    paths = (one.transcript.path for one in pointers if one is not None and one.transcript is not None)
    return sum(expires_soon(archive, path) is not None for path in paths)
