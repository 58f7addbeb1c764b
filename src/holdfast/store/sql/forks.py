"""Owns forking: a new conversation that reads through to its parent, in constant time."""

from __future__ import annotations

from holdfast.domain.conversations import Conversation
from holdfast.domain.ids import SessionId, conversation_of
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import NewSession, Session
from holdfast.errors import Conflict, NotFound
from holdfast.store.sql import gates, history, pointers, sessions
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import CONVERSATIONS

FIRST_OPEN = """
SELECT MIN(seq) FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND status IN ('queued', 'claimed', 'running', 'waiting')"""


def fork(s: Scope, parent_id: str, child_id: SessionId, at: int | None, name: str | None) -> Session:
    """The parent may be open or final, and is not changed. Idempotent by the child's id."""
    row = s.one(sessions.GET, id=parent_id)
    if row is None:
        raise NotFound("session", parent_id)
    parent = sessions.read_session(row, s.where)
    conversation = history.get(s, parent.conversation_id, lock=True)
    known = s.one(sessions.GET, id=child_id)
    if known is not None:
        child = sessions.read_session(known, s.where)
        if child.parent_session_id != parent.id:
            raise Conflict(f"session {child_id} exists already", session_id=child_id)
        return child
    seq = _fork_seq(s, conversation, at)
    child_conversation = conversation_of(child_id)
    s.run(
        CONVERSATIONS.insert_once, id=child_conversation, parent_id=conversation.id, fork_seq=seq,
        fork_revision=conversation.revision, revision=conversation.revision,
        generation=conversation.generation, next_seq=seq + 1, created_at=s.now,
    )  # fmt: skip
    new = NewSession(
        id=child_id, agent=parent.agent, purpose=parent.purpose, kind=parent.kind,
        metadata=parent.metadata, name=name, provider=parent.provider,
        conversation_id=child_conversation, project=parent.project,
    )  # fmt: skip
    sessions.refuse_taken_name(s, child_id, name)
    metadata = sessions.ROWS.column(row, "metadata")
    child = sessions.insert(s, new, child_conversation, metadata, Phase.INITIALIZING, parent.id)
    pointers.copy_as_fork_source(s, parent.id, child.id, seq)
    gates.copy(s, parent.id, child.id)
    return child


def _fork_seq(s: Scope, conversation: Conversation, at: int | None) -> int:
    """What is forked must stand still: no open turn at or below the fork point."""
    (first_open,) = s.one(FIRST_OPEN, id=conversation.id) or (None,)
    if at is not None:
        if at != history.newest_up_to(s, conversation, at):
            raise NotFound("turn", str(at), conversation_id=conversation.id)
        if first_open is not None and at >= first_open:
            raise Conflict(f"turn {first_open} is still open: fork at an earlier one", seq=first_open)
        return at
    below = history.LAST_SEQ if first_open is None else first_open - 1
    return history.newest_up_to(s, conversation, below)
