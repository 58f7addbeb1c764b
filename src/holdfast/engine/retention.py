"""Owns which sessions a clean-up may touch: by age, and by the project whose settings ask for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.clock import Instant, after
from holdfast.config_files import project_file
from holdfast.domain.policy import RetentionPolicy
from holdfast.domain.sessions import CleanupReport, Old
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store

_HOUR = 3600.0
_MOST_HOURS = 10_000_000


def clean_up(
    store: Store,
    retention: RetentionPolicy,
    project_retention: Mapping[str, str],
    given: Mapping[str, float | None],
    *,
    dry_run: bool,
) -> CleanupReport:
    """``given`` are the hours by the names of the settings; what is None is the setting of that name.

    ``project_retention``: the settings that a project's file has made, and its directory.
    """
    now = store.now()
    hours, conversation_hours = given["max_age_hours"], given["conversations_max_age_hours"]
    from_project = (project_retention.get(key) for key, value in given.items() if value is None)
    old = Old(
        _hours_before(now, "hours", retention.max_age_hours if hours is None else hours),
        project=next(filter(None, from_project), None),
    )
    if conversation_hours is None:
        conversation_hours = retention.conversations_max_age_hours
    if conversation_hours is not None:
        old = replace(old, conversations=_hours_before(now, "conversation_hours", conversation_hours))
    if old.project is not None:
        # a repository inside the project does not read the project's file
        found = store.clean_up(old, dry_run=True).places
        old = replace(old, places=tuple(place for place in found if _is_of(old.project, place)))
    return store.clean_up(old, dry_run=dry_run)


def _is_of(project: str, place: str) -> bool:
    """Whether the settings that count in ``place`` are those of the file in ``project``; no if it is not there."""
    directory = Path(place)
    file = project_file(os.environ, directory) if directory.is_dir() else None
    return file is not None and str(file.parent) == project


def _hours_before(now: Instant, field: str, hours: float) -> Instant:
    if type(hours) not in (int, float) or not 0 <= hours <= _MOST_HOURS:
        raise InvalidInput(field, f"must be a number between 0 and {_MOST_HOURS}, not {str(hours)[:40]}")
    return after(now, -hours * _HOUR)
