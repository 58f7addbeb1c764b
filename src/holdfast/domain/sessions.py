"""Owns what a session is, its public state document, and what cleanup may take away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from holdfast.clock import Instant, seconds_between, to_iso
from holdfast.domain.ids import (
    ConversationId,
    ProviderSessionId,
    SessionId,
    check_id,
    check_provider,
    check_session_name,
)
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.metadata import Metadata
from holdfast.domain.phases import Phase, parse_phase
from holdfast.domain.records import field, record
from holdfast.domain.redaction import Json
from holdfast.domain.usage import NO_USAGE, Usage

MAX_PURPOSE = 10_000
#: a full stop ends a sentence only behind some words: neither "1. Fix it" nor "e.g. this" is cut
_FIRST_SENTENCE = re.compile(r".{9,}?(?=[.!?](?:\s|\Z)|[。！？\n]|\Z)", re.DOTALL)
_CUT = "…"


class SessionKind(StrEnum):
    DELEGATED = "delegated"  #: made by ``create`` or a hook; resumable phases and the idle limit apply
    CONVERSATION = "conversation"  #: made by ``run``; open until it is finalized
    SUBAGENT = "subagent"  #: imported: what a subagent did; it stands below the session that started it


class SessionStatus(StrEnum):
    """What is true of a session now, derived by the store. The phase is what the agent says about its work."""

    RUNNING = "running"  #: a turn has a live lease, a person uses the agent's own program, or a subagent works in it
    QUEUED = "queued"  #: its next turn waits for a worker, or for its time
    WAITING = "waiting"  #: for a person: an approval, or phase ``approval`` without an answer
    IDLE = "idle"  #: open, and nothing is under way
    INTERRUPTED = "interrupted"  #: what ran its turn is gone: the next command takes the turn over
    FAILED = "failed"  #: closed as failed, or its newest turn failed and nothing followed
    DONE = "done"  #: closed as completed or abandoned


@record
class Program:
    """The agent's own program, which a person uses on a session now."""

    owner: str  #: the process of Holdfast that started it, see ``processes.owners``
    began_at: Instant


@record
class SessionState:
    """What the store knows of a session at this moment, beside its row."""

    status: SessionStatus
    provider_session_id: ProviderSessionId | None  #: where its provider would pick up; None: nowhere yet
    directory: str | None = None  #: where its agent worked last, or else its project
    program: Program | None = None  #: None: nobody uses the agent's own program on it


@record
class SessionError:
    message: str
    at: Instant


@record
class PhaseChange:
    from_phase: str
    to_phase: str
    at: Instant


@record
class SessionChange:
    """One entry of the trail: a change of the phase, or of something else about the session, or of both."""

    number: int
    at: Instant
    by: str | None  #: the user, or the name and the id of the token; None: an older version did not record it
    from_phase: str
    to_phase: str  #: the same if the phase stayed
    metadata: tuple[str, ...] = ()  #: the keys that were set
    error: str | None = None
    cleared_errors: bool = False
    summary: bool = False  #: whether it was given one
    did: str | None = None  #: the verb that was called, if it changes neither phase nor metadata
    turn: int | None = None  #: what that was about


@record
class Session:
    id: SessionId
    conversation_id: ConversationId
    agent: str
    kind: SessionKind
    purpose: str
    name: str | None
    provider: str | None
    phase: Phase
    resume_ready: bool  #: recomputed whenever the phase changes
    metadata: Metadata
    error_count: int  #: since the last success
    last_error: SessionError | None
    created_at: Instant
    updated_at: Instant
    finalized_at: Instant | None
    summary: str | None
    parent_session_id: SessionId | None
    usage: Usage = NO_USAGE
    project: str | None = None  #: of a delegated session: the directory of the work
    imported_at: Instant | None = None  #: when it was taken over from its provider; None: it began here
    agent_title: str | None = (
        None  #: the title of its provider session; None: it has none, or it was not read
    )

    @property
    def title(self) -> str:
        """Its name, else the agent's own title, else the first sentence of its purpose; empty without all of them."""
        return self.name or title_of(self.agent_title or self.purpose)

    @property
    def is_delegated(self) -> bool:
        return self.kind is SessionKind.DELEGATED

    @property
    def uses_phases(self) -> bool:
        """Whether somebody sets its phase. The phases of a conversation that nobody sets say nothing about it."""
        return self.is_delegated or self.phase not in (Phase.INITIALIZING, Phase.INVESTIGATING)

    @property
    def phase_after_turn(self) -> Phase | None:
        """After its first turn a conversation is ``investigating``. A delegated session sets its phase itself: None."""
        begins = self.phase is Phase.INITIALIZING and not self.is_delegated
        return Phase.INVESTIGATING if begins else None

    @property
    def duration_seconds(self) -> float | None:
        if self.finalized_at is None:
            return None
        return seconds_between(self.created_at, self.finalized_at)


def title_of(purpose: str) -> str:
    """The first sentence, on one line, without its full stop. An imported session's purpose is its provider's title."""
    text = purpose.strip()
    found = _FIRST_SENTENCE.match(text)
    return " ".join((text if found is None else found[0]).split())


def is_title(given: str, text: str) -> bool:
    """Whether a person means the title of this text, in any case: the whole of it, or as a list cut it."""
    title, meant = title_of(text).casefold(), given.strip().casefold()
    if meant.endswith(_CUT) and len(meant) > 1:
        return title.startswith(meant.removesuffix(_CUT))
    return bool(meant) and title == meant


@record
class NewSession:
    """What a caller decides about a session; everything else starts at its default."""

    id: SessionId
    agent: str
    purpose: str = ""
    kind: SessionKind = SessionKind.DELEGATED
    metadata: Metadata = field(default_factory=dict)
    name: str | None = None
    provider: str | None = None
    conversation_id: ConversationId | None = None  #: join this conversation instead of beginning one
    project: str | None = None  #: the directory of the work, where a hook looks for it
    began_at: Instant | None = None  #: of a session that is imported; None: now


def check_new_session(new: NewSession) -> None:
    """Checks what a person, or another program, says about a new session, apart from its metadata. Raises InvalidInput."""
    check_id("id", new.id)
    check_name("agent", new.agent)
    check_text("purpose", new.purpose, limit=MAX_PURPOSE)
    if new.name is not None:
        check_session_name(new.name)
    if new.provider is not None:
        check_provider(new.provider)
    if new.conversation_id is not None:
        check_id("conversation", new.conversation_id)


@record
class SessionUpdate:
    """One change; only what is given changes. ``expected_phase`` makes it compare-and-set."""

    phase: Phase | None = None
    metadata: Metadata | None = None  #: merged
    error: str | None = None
    clear_errors: bool = False  #: the cause was fixed: count from zero
    summary: str | None = None  #: the result so far
    expected_phase: Phase | None = None

    @property
    def has_more_than_phase(self) -> bool:
        return self.metadata is not None or self.error is not None or self.clear_errors


def parse_update(
    *,
    phase: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    error: str | None = None,
    clear_errors: bool = False,
    summary: str | None = None,
    expected_phase: str | None = None,
) -> SessionUpdate:
    """Checks what a person, or another program, wants to change, apart from its metadata. Raises InvalidInput."""
    return SessionUpdate(
        phase=None if phase is None else parse_phase(phase),
        metadata=None if metadata is None else dict(metadata),
        error=None if error is None else check_text("error", error),
        clear_errors=clear_errors,
        summary=None if summary is None else check_text("summary", summary),
        expected_phase=None if expected_phase is None else parse_phase(expected_phase),
    )


@record
class SessionFilter:
    active_only: bool = False
    agent: str | None = None
    since: Instant | None = None  #: created at or after
    until: Instant | None = None  #: created before
    status: SessionStatus | None = None
    or_running: bool = (
        False  #: with a status, also those that run: the caller looks whether their processes are gone
    )
    resumable: bool = False  #: only those whose work may continue, by the store's rules
    metadata: Mapping[str, str] = field(default_factory=dict)  #: key -> value; see ``has_metadata``
    subagents: bool = False  #: also those that stand below another session
    provider: str | None = None
    project: str | None = None  #: a directory: only sessions whose directory it is, or lies below it
    grep: str | None = None  #: a text in the id, name, title, purpose, agent or summary, in any case
    by_activity: bool = False  #: the last active one first, instead of the newest


@record
class SessionPage:
    sessions: tuple[Session, ...]
    states: Mapping[str, SessionState]  #: by the id of each of them
    unreadable: Mapping[str, str]  #: id -> why its row cannot be understood
    next_cursor: str | None


@record
class SessionMark:
    """Where a session stands. If two marks of a session are equal, nothing has changed that a list shows."""

    id: SessionId
    status: SessionStatus
    created_at: Instant
    updated_at: Instant
    fence: int  #: counts its attempts
    head_seq: int | None  #: its oldest open turn
    next_seq: int  #: of its conversation: the number of the next turn
    revision: int  #: of its conversation: counts changes of the history
    open_approvals: int


@record
class Pulse:
    """What can change soon in a workspace, at one moment."""

    now: Instant
    sessions: int  #: how many there are in the workspace
    marks: tuple[SessionMark, ...]
    is_whole: bool  #: False: more sessions are active than the limit allows


def state_document(
    session: Session, history: tuple[PhaseChange, ...], state: SessionState
) -> dict[str, object]:
    """The session as a plain JSON object: every field of the published state schema, and its status."""
    error = session.last_error
    return {
        "agent_id": session.id,
        "agent_name": session.agent,
        "purpose": session.purpose,
        "created_at": to_iso(session.created_at),
        "last_updated": to_iso(session.updated_at),
        "phase": session.phase.value,
        "status": state.status.value,
        "metadata": session.metadata,
        "resume_ready": session.resume_ready,
        "history": [
            {"from_phase": c.from_phase, "to_phase": c.to_phase, "timestamp": to_iso(c.at)} for c in history
        ],
        "error_count": session.error_count,
        "last_error": None if error is None else {"message": error.message, "timestamp": to_iso(error.at)},
        "finalized_at": None if session.finalized_at is None else to_iso(session.finalized_at),
        "duration_seconds": session.duration_seconds,
        "summary": session.summary,
    }


@record
class Old:
    """What cleanup looks for: sessions that were last used before an instant."""

    cutoff: Instant  #: for delegated sessions
    conversations: Instant | None = None  #: for conversations; None: they are kept, however old they are
    project: str | None = None  #: a directory: only the sessions of that project and of directories below it
    #: with a project: only the sessions of these directories; None: of any that is in it
    places: tuple[str, ...] | None = None


@record
class CleanupReport:
    abandoned: tuple[str, ...]  #: idle for too long: closed, still readable
    deleted: tuple[str, ...]  #: final for too long: gone with their events
    places: tuple[str, ...] = ()  #: with a project: the directories in it that old sessions belong to

    @property
    def count(self) -> int:
        return len(self.abandoned) + len(self.deleted)
