"""Owns making a hook's settings out of the real configuration; only a hook whose cache is old imports this."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config import Settings, data_dir, default_url, load_settings
from holdfast.domain.notices import Occasion
from holdfast.errors import ConfigError
from holdfast.hooks.places import state_dir
from holdfast.processes.machine import machine_id
from holdfast.store.migrate import migrations
from holdfast.store.open import sqlite_path


def read_configuration(environ: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """The fields of ``HookSettings``, fit for JSON."""
    settings = load_settings(environ=environ, cwd=Path(cwd))
    url = settings.url or default_url(environ)
    path = sqlite_path(url) if url.startswith("sqlite:") else None
    if url.startswith("sqlite:") and path is None:
        raise ConfigError("url", "a hook cannot share a store that is in memory")
    rules, shares = settings.policy.continue_, settings.policy.resume
    return {
        "path": None if path is None else str(path),
        "spool": spool_dir(environ, url, settings.workspace),
        "workspace": settings.workspace,
        "synchronous": synchronous(settings),
        "schema": migrations("sqlite")[-1].version,
        "machine": machine_id(data_dir(environ)),
        "resumable_phases": sorted(rules.resumable_phases),
        "max_idle_seconds": rules.max_idle_seconds,
        "max_errors": rules.max_errors,
        "context_warn": shares.context_warn,
        "context_refresh": shares.context_refresh,
        "context_critical": shares.context_critical,
        "notices": list(settings.notices),
        "tells_when_done": settings.policy.notify.wants(Occasion.SESSION_DONE),
    }


def synchronous(settings: Settings) -> str:
    return "NORMAL" if settings.durability == "normal" else "FULL"


def spool_dir(environ: Mapping[str, str], url: str, workspace: str) -> str | None:
    """One for each store and workspace; its name tells neither. None for a store in memory."""
    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        if path is None:
            return None
        url = f"sqlite:///{path}"
    state = state_dir(environ)
    digest = hashlib.sha256(f"{url}\n{workspace}".encode()).hexdigest()[:32]
    return None if state is None else f"{state}/spool/{digest}"
