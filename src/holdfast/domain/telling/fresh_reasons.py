"""Owns what a fresh start is put down to, in words for the agent and for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from holdfast.domain.decisions import Reason

FRESH_REASONS: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.FORCE_FRESH: "a fresh start was asked for",
        Reason.RESUME_DISABLED: "resuming is switched off in the settings",
        Reason.NO_POINTER: "there is no earlier session that could be resumed",
        Reason.CAPABILITY_MISSING: "the installed program cannot do what it would take",
        Reason.GENERATION_CHANGED: "the conversation was begun again",
        Reason.RUNTIME_CHANGED: "it ran on another machine or installation before",
        Reason.WORKDIR_CHANGED: "it worked in another directory before",
        Reason.HISTORY_CHANGED: "the history was edited since",
        Reason.FORK_POINT_MOVED: "the session to fork has gone on past the fork point",
        Reason.MODEL_CHANGED: "another model was chosen",
        Reason.RETIRED: "the earlier session is no longer usable",
        Reason.ERRORS: "the earlier session failed too often",
        Reason.CONTEXT_FULL: "the earlier session's context window is nearly full",
        Reason.TRANSCRIPT_MISSING: "the earlier session is gone from this machine",
        Reason.TRANSCRIPT_ALTERED: "the earlier session's record was changed from outside",
        Reason.TRANSCRIPT_AHEAD: "someone went on in the earlier session by hand",
        Reason.RIGHTS_WIDER: "the earlier session ran with other rights",
        Reason.BUSY: "the earlier session is in use elsewhere",
        Reason.EXPLICIT_ID: "the session that was asked for cannot be used",
        Reason.RESUMABLE: "nothing stands against resuming; this is what a fresh start would be told",
    }
)
