"""Owns pointers: where a provider can resume a session, with all facts that are only valid together."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.ids import ProviderSessionId, RuntimeId, SessionId
from holdfast.domain.records import record
from holdfast.domain.usage import ContextUse, Usage


@record
class Rights:
    """The launch profile that decides what an agent may do."""

    permission_mode: str | None = None
    allowed_tools: frozenset[str] = frozenset()
    extra_dirs: frozenset[str] = frozenset()
    extra_args: tuple[str, ...] = ()
    approve_tools: frozenset[str] = frozenset()  #: patterns of calls that wait for a person

    def within(self, recorded: Rights) -> bool:
        """Whether these rights are the recorded ones or a subset, and every call that waited for a person still does."""
        return (
            self.permission_mode == recorded.permission_mode
            and self.allowed_tools <= recorded.allowed_tools
            and self.extra_dirs <= recorded.extra_dirs
            # an argument may restrict as well as widen: only the same ones are known to be safe
            and self.extra_args == recorded.extra_args
            and self.approve_tools >= recorded.approve_tools
        )

    def beyond(self, recorded: Rights) -> str:
        """In words: what is different from the recorded rights, and may be wider."""
        parts = (
            []
            if self.permission_mode == recorded.permission_mode
            else [f"permission mode {self.permission_mode or 'of its settings'}"]
        )
        for name, asked, had in (
            ("tool", self.allowed_tools, recorded.allowed_tools),
            ("directory", self.extra_dirs, recorded.extra_dirs),
            ("no approval of", recorded.approve_tools, self.approve_tools),
        ):
            parts += [f"{name} {one}" for one in sorted(asked - had)]
        if self.extra_args != recorded.extra_args:
            parts.append(" ".join(self.extra_args) or "without its arguments")
        return ", ".join(parts)


NO_RIGHTS = Rights()


@record
class TranscriptMark:
    """The provider's session file as it was: size and digest of everything up to there."""

    path: str
    size: int
    digest: str
    turns: int | None = None  #: how many requests the session holds; None: not counted

    def has_more_turns_than(self, recorded: TranscriptMark | None) -> bool:
        """Whether the session got more requests since the recorded mark; False if there is none to compare with."""
        if recorded is None:
            return False
        if self.turns is None or recorded.turns is None:
            return self.size > recorded.size
        return self.turns > recorded.turns


#: the mark of a session that was begun and not read since: everything it holds came later
NOTHING_YET = TranscriptMark("", 0, "", 0)


@record
class Pointer:
    """Per (session, provider), always written whole. A field that is None was never recorded."""

    session_id: SessionId
    provider: str
    provider_session_id: ProviderSessionId
    runtime_id: RuntimeId | None
    work_dir: str | None
    model: str | None
    epoch: int | None  #: the history revision that was current at its claim
    generation: int | None
    seen: SeenTurns | None
    rights: Rights | None
    transcript: TranscriptMark | None
    context: ContextUse | None
    version: str | None
    updated_at: Instant
    #: set: the provider session belongs to the session that this one was forked from, and the first launch forks it
    #: natively; both histories are the same up to this turn, the earliest fork point between the two
    fork_seq: int | None = None

    @property
    def is_fork_source(self) -> bool:
        return self.fork_seq is not None

    @property
    def seen_here(self) -> SeenTurns | None:
        """The turns of this session's history that it has seen, without those of the branch that it comes from."""
        return (
            self.seen if self.seen is None or self.fork_seq is None else self.seen.before_fork(self.fork_seq)
        )

    def catch_up(self, seq: int) -> tuple[tuple[int, int], ...]:
        """The ranges before turn ``seq`` that it has not seen."""
        seen = self.seen_here
        return () if seen is None else seen.missing_up_to(seq - 1)


@record
class ProviderSession:
    """What is known about a provider's own session across all its turns."""

    errors: int = 0  #: since its last success
    failed_resumes: int = 0  #: in a row
    retired: str | None = None  #: why it must never be used again
    held_by: str | None = None  #: the session that writes to it under a live lease
    owner: str | None = None  #: another session that has run in it; only looked up if an id was asked for
    owner_is_closed: bool = False
    is_elsewhere: bool = False  #: it belongs to another workspace; looked up together with ``owner``


@record
class ProviderSessionTotals:
    """One provider session that a session used, with everything it cost there."""

    provider: str
    id: ProviderSessionId
    forked_from: str | None
    retired: str | None
    last_seen_at: Instant
    usage: Usage


def choose_pointer(
    stored: Pointer | None, newest_attempt: Pointer | None, claiming: RuntimeId
) -> Pointer | None:
    """The pointer to judge for a claiming runtime.

    A stored pointer of this runtime is used. One of no runtime or of another runtime may be stale: then the pointer
    of the newest attempt is used, with its own runtime, under all guards. It is also used when no pointer is stored,
    because its work dir outlives the provider session.
    """
    if stored is not None and stored.runtime_id == claiming:
        return stored
    if newest_attempt is not None and newest_attempt.runtime_id == claiming:
        return newest_attempt
    return newest_attempt if stored is None else stored
