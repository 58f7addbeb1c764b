"""Owns the work that is measured: its ids, its texts, and the verbs that a subject must offer."""

from __future__ import annotations

import itertools
from typing import Protocol

from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities, Runtime

WORKSPACE = "default"
AGENT = "claude"
PROVIDER = "claude"
PURPOSE = "Make the failing integration tests pass again"
METADATA: dict[str, Json] = {"branch": "main", "ticket": 4217, "step": "collect the facts"}
PATCH: dict[str, Json] = {"step": "write the plan"}
SUMMARY = "All tests pass; two of them were wrong."
OWNER = "bench-1"
LEASE_SECONDS = 60.0
WORK_DIR = "/home/bench/project"
MODEL = "opus"
#: the provider's own session file after a turn: path, size, digest
TRANSCRIPT = ("/home/bench/.claude/projects/project/session.jsonl", 48_213, "5f" * 32, 1)

#: one kilobyte each, as a turn commits two of them
PROMPT = ("Please look at the failing test, find out why it fails, and fix the cause. " * 14)[:1024]
RESPONSE = ("The test fails because the lock is released before the file is synced. " * 15)[:1024]

RUNTIME = Runtime(
    machine="bench",
    provider=PROVIDER,
    distribution="npm",
    home="/home/bench/.claude",
    capabilities=Capabilities(can_fork=True, chooses_id=True, append_only_transcript=True),
    version="2.0.0",
)

_numbers = itertools.count(1)


def new_session_id() -> str:
    """In the form that Holdfast makes itself, and never the same twice in a run."""
    return f"agent-20260108-180530-{next(_numbers):08x}"


def conversation_of(session_id: str) -> str:
    return "conv-" + session_id.removeprefix("agent-")


def provider_session_of(session_id: str) -> str:
    """What the provider would call its own session: a UUID."""
    digits = session_id[-8:]
    return f"{digits}-0000-4000-8000-0000{digits}"


class Subject(Protocol):
    """Something that can do the work of a session store. Each verb leaves the same rows behind."""

    def create(self, session_id: str) -> object: ...

    def update(self, session_id: str) -> object:
        """A new phase and one changed key of the metadata."""
        ...

    def get(self, session_id: str) -> object: ...

    def finalize(self, session_id: str) -> object: ...

    def record_turn(self, session_id: str) -> object:
        """One finished turn: two messages of 1 KB and the session's state."""
        ...

    def queue_turn(self, session_id: str) -> object:
        """The same turn the long way: enqueue, claim with its decision, finish. Three transactions."""
        ...

    def should_resume(self, session_id: str) -> bool: ...

    def explain(self, session_id: str) -> object:
        """The resume read and the decision, without changing anything."""
        ...

    def read_history(self, session_id: str) -> object:
        """Every turn of the current history with its texts."""
        ...

    def list_newest(self, limit: int) -> object: ...

    def fork(self, session_id: str, child_id: str) -> object: ...

    def clean_up(self, cutoff: int) -> object: ...

    def close(self) -> None: ...
