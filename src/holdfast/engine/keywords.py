"""Owns what every verb that runs a turn can be asked for, by keyword."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

if TYPE_CHECKING:
    from holdfast.domain.decisions import Decision
    from holdfast.domain.events import AgentEvent
    from holdfast.domain.pointers import Rights

#: told of the decision before anything runs, and of everything that happens then
Observer: TypeAlias = "Callable[[Decision | AgentEvent], None]"


class RunKeywords(TypedDict, total=False):
    cwd: str | None  #: where to work; None: where the session did, else the current directory
    model: str | None
    rights: Rights | None  #: None: those of the session's first launch
    fresh: bool  #: start a new provider session, with the whole context
    provider_session_id: str | None  #: this very one; never replaced by another
    allow_wider_rights: bool
    timeout: float | None  #: seconds; None: the configured one
    observer: Observer
