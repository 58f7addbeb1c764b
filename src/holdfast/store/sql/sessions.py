"""Owns the rows of sessions: making, finding and listing them."""

from __future__ import annotations

import math
import re

from holdfast.domain.ids import ConversationId, SessionId, conversation_of
from holdfast.domain.metadata import encode_metadata
from holdfast.domain.phases import Phase, is_resumable_phase
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import (
    NewSession,
    Session,
    SessionFilter,
    SessionKind,
    SessionPage,
)
from holdfast.errors import (
    AmbiguousId,
    Conflict,
    InvalidInput,
    NotFound,
    SessionClosed,
    UnreadableSession,
)
from holdfast.store.driver import Row
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_rows import COLUMNS, SHAPE, read_metadata, read_session
from holdfast.store.sql.session_statements import INSERT_SESSION, begin_conversation
from holdfast.store.sql.shapes import readable

GET = f"SELECT {COLUMNS} FROM sessions WHERE workspace = :ws AND id = :id"
LOCK = f"{GET} FOR UPDATE"
LOCK_PHASE = """
SELECT phase, finalized_at FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"""
LOCK_CONVERSATION = "SELECT id FROM conversations WHERE workspace = :ws AND id = :id FOR UPDATE"
OPEN_SESSION_OF_AGENT = """
SELECT id FROM sessions
WHERE workspace = :ws AND conversation_id = :conversation_id AND agent = :agent AND finalized_at IS NULL"""
RENAME = "UPDATE sessions SET name = :name, updated_at = :now WHERE workspace = :ws AND id = :id"
BY_NAME = "SELECT id FROM sessions WHERE workspace = :ws AND name = :name"
BY_PREFIX = """
SELECT id FROM sessions WHERE workspace = :ws AND id >= :low AND id < :high ORDER BY id DESC LIMIT 6"""
CHILDREN = f"""
SELECT {COLUMNS} FROM sessions INDEXED BY sessions_by_parent
WHERE workspace = :ws AND parent_session_id = :id ORDER BY created_at, id"""

#: as far as the engines can count
_FAR = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
#: sorts after every character an id may hold
AFTER_ALL = "\U0010fffd"


def create(s: Scope, new: NewSession, *, phase: Phase = Phase.INITIALIZING) -> Session:
    metadata = encode_metadata(new.metadata)
    conversation_id = new.conversation_id or conversation_of(new.id)
    if new.conversation_id is None:
        begin_conversation(s, conversation_id)
    elif s.one(LOCK_CONVERSATION, id=conversation_id) is None:
        raise NotFound("conversation", conversation_id)
    refuse_taken_name(s, new.id, new.name)
    return insert(s, new, conversation_id, metadata, phase, parent=None)


def insert(
    s: Scope,
    new: NewSession,
    conversation_id: ConversationId,
    metadata: str,
    phase: Phase,
    parent: SessionId | None,
) -> Session:
    ready, purpose = is_ready(s, phase, new.kind), redact_text(new.purpose)
    written = s.changed(
        INSERT_SESSION, id=new.id, conversation_id=conversation_id, agent=new.agent, kind=new.kind.value,
        purpose=purpose, name=new.name, provider=new.provider, phase=phase.value,
        resume_ready=ready, metadata=metadata, now=s.now, parent_session_id=parent, project=new.project,
    )  # fmt: skip
    if not written:
        return _already_there(s, new, conversation_id)
    return Session(
        new.id, conversation_id, new.agent, new.kind, purpose, new.name, new.provider, phase,
        ready, read_metadata(metadata), 0, None, s.now, s.now, None, None, parent,
    )  # fmt: skip


def _already_there(s: Scope, new: NewSession, conversation_id: ConversationId) -> Session:
    """A repeated call finds what the first one made; anything else is a conflict."""
    row = s.one(GET, id=new.id)
    if row is not None:
        session = read_session(row, s.where)
        if session.agent == new.agent and session.conversation_id == conversation_id:
            return session
        raise Conflict(f"session {new.id} exists already", session_id=new.id)
    refuse_taken_name(s, new.id, new.name)
    (other,) = s.one(OPEN_SESSION_OF_AGENT, conversation_id=conversation_id, agent=new.agent) or (None,)
    raise Conflict(
        f"{new.agent} already has an open session in this conversation: {other or '?'}", session_id=other
    )


def get(s: Scope, session_id: str) -> Session:
    row = s.one(GET, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    return read_session(row, s.where)


def lock(s: Scope, session_id: str) -> Session:
    """The session, with nobody else changing it until the transaction ends."""
    row = s.one(LOCK, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    return read_session(row, s.where)


def is_ready(s: Scope, phase: Phase, kind: SessionKind) -> bool:
    return is_resumable_phase(phase, s.policy.continue_, delegated=kind is SessionKind.DELEGATED)


def require_open(s: Scope, session_id: str) -> None:
    """Locks the session, without reading all of it."""
    row = s.one(LOCK_PHASE, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    phase, finalized_at = row
    if finalized_at is not None:
        raise SessionClosed(session_id, phase)


def rename(s: Scope, session_id: str, name: str | None) -> Session:
    lock(s, session_id)
    refuse_taken_name(s, session_id, name)
    s.run(RENAME, id=session_id, name=name, now=s.now)
    return get(s, session_id)


def refuse_taken_name(s: Scope, session_id: str, name: str | None) -> None:
    if name is None:
        return
    (holder,) = s.one(BY_NAME, name=name) or (session_id,)
    if holder != session_id:
        raise Conflict(f"the name {name!r} is taken by {holder}", session_id=holder)


def resolve(s: Scope, given: str) -> SessionId:
    """An id, a name, or the unique beginning of an id, in that order."""
    if s.one(GET, id=given) is not None:
        return SessionId(given)
    (named,) = s.one(BY_NAME, name=given) or (None,)
    if named is not None:
        return SessionId(named)
    fits = [SessionId(found) for (found,) in s.all(BY_PREFIX, low=given, high=given + AFTER_ALL)]
    if len(fits) > 1:
        raise AmbiguousId(given, tuple(fits[:5]))
    if not fits:
        raise NotFound("session", given)
    return fits[0]


def children(s: Scope, session_id: str) -> tuple[Session, ...]:
    return tuple(readable(lambda row: read_session(row, s.where), s.all(CHILDREN, id=session_id)))


def list_page(s: Scope, wanted: SessionFilter, limit: int, cursor: str | None) -> SessionPage:
    """Newest first; the cursor is the place of the last row that was returned."""
    conditions, params = _conditions(wanted)
    if cursor is not None:
        params["at"], params["after"] = _parse_cursor(cursor)
        conditions.append("(created_at < :at OR (created_at = :at AND id < :after))")
        conditions.append("created_at <= :at")
    sql = (
        f"SELECT {COLUMNS} FROM sessions WHERE {' AND '.join(conditions)} "
        "ORDER BY created_at DESC, id DESC LIMIT :limit"
    )
    rows = s.all(sql, limit=limit + 1, **params)
    more = rows[limit:]
    found: list[Session] = []
    unreadable: dict[str, str] = {}
    for row in rows[:limit]:
        try:
            found.append(read_session(row, s.where))
        except UnreadableSession as exc:
            unreadable[str(SHAPE.column(row, "id"))] = exc.problem
    return SessionPage(tuple(found), unreadable, _cursor_at(rows[limit - 1]) if more else None)


def _conditions(wanted: SessionFilter) -> tuple[list[str], dict[str, object]]:
    conditions = ["workspace = :ws"]
    params: dict[str, object] = {}
    if wanted.active_only:
        conditions.append("finalized_at IS NULL")
    if wanted.agent is not None:
        conditions.append("agent = :agent")
        params["agent"] = wanted.agent
    if wanted.since is not None:
        conditions.append("created_at >= :since")
        params["since"] = wanted.since
    if wanted.until is not None:
        conditions.append("created_at < :until")
        params["until"] = wanted.until
    return conditions, params


def _cursor_at(row: Row) -> str:
    """Where the list goes on, also after a row that is no instant: what is no number sorts before all others."""
    at = SHAPE.column(row, "created_at")
    place = math.floor(max(-_FAR, min(at, _FAR))) if isinstance(at, int | float) else _FAR
    return f"{place}~{SHAPE.column(row, 'id')}"


def _parse_cursor(cursor: str) -> tuple[int, str]:
    at, separator, after = cursor.partition("~")
    if not separator or not _WHOLE.match(at) or abs(int(at)) > _FAR:
        raise InvalidInput("cursor", f"{cursor[:40]!r} is not a cursor that list returned")
    return int(at), after
