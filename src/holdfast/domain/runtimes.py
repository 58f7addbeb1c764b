"""Owns runtimes: where agents can run, and the fingerprint that identifies a runtime."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from holdfast.clock import Instant
from holdfast.domain.ids import RuntimeId
from holdfast.domain.records import record


@record
class Capabilities:
    """What the installed program can do, as far as it matters here."""

    can_resume: bool = True
    can_fork: bool = False
    can_fork_at_turn: bool = False  #: at an earlier turn than the last
    chooses_id: bool = False  #: the caller may choose the provider session id
    append_only_transcript: bool = False  #: so that an altered prefix proves an edit
    reports_context: bool = False  #: says how full the context window is
    can_defer: bool = False  #: ends with a tool call pending, which a later run carries out
    partial_text: bool = False  #: shows its text while it writes it, if it is asked to


@record
class Runtime:
    """Where an agent can run. The version is recorded and not part of the fingerprint."""

    machine: str
    provider: str
    distribution: str
    home: str
    capabilities: Capabilities = Capabilities()
    version: str | None = None

    @property
    def id(self) -> RuntimeId:
        """Equal exactly for runtimes that can pick up each other's sessions."""
        return _fingerprint(self.machine, self.provider, self.distribution, self.home, self.capabilities)


@record
class KnownRuntime:
    """A runtime as the store remembers it."""

    runtime: Runtime
    last_seen_at: Instant  #: when a worker last reported from this runtime

    @property
    def id(self) -> RuntimeId:
        return self.runtime.id


@lru_cache(maxsize=256)
def _fingerprint(machine: str, provider: str, distribution: str, home: str, can: Capabilities) -> RuntimeId:
    resuming = (can.can_resume, can.can_fork, can.can_fork_at_turn, can.chooses_id)
    identity = (machine, provider, distribution, home, resuming)
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return RuntimeId(f"rt-{digest[:24]}")
