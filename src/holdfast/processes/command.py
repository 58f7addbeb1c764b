"""Owns what a process is started with."""

from __future__ import annotations

from holdfast.domain.records import record


@record
class Command:
    """``stdin`` None is nothing to read. A prompt goes there: an argument is limited in length and visible to all."""

    argv: tuple[str, ...]
    stdin: str | None = None
    environ: tuple[tuple[str, str], ...] = ()  #: set in addition
    without: tuple[str, ...] = ()  #: variables of ours that would mislead the agent
