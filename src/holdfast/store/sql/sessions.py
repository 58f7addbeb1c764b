"""Owns the rows of sessions and of their phases: making, finding, listing and reading them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ConversationId, ProviderSessionId, SessionId, conversation_of
from holdfast.domain.metadata import Metadata, encode_metadata, has_metadata
from holdfast.domain.phases import MayContinue, Phase, is_resumable_phase, may_continue
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import (
    NewSession,
    PhaseChange,
    Session,
    SessionChange,
    SessionError,
    SessionFilter,
    SessionKind,
    SessionPage,
    SessionState,
    SessionStatus,
)
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.errors import (
    AmbiguousId,
    Conflict,
    InvalidInput,
    NotFound,
    SessionClosed,
    UnreadableSession,
)
from holdfast.store.driver import Row
from holdfast.store.sql import codec
from holdfast.store.sql.rows import Rows, part, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import (
    PHASE_CHANGE,
    PHASES,
    approval_window,
    begin_conversation,
    record_phase,
)
from holdfast.store.sql.tables import MISREAD, PHASE_CHANGES, SESSIONS, problem_of, read_instant, unreadable


def read_metadata(text: str) -> Metadata:
    if text == "{}":
        return {}
    value = codec.load(text)
    if type(value) is not dict:
        raise ValueError("its metadata is not a JSON object")
    return value


def _read_error(message: str | None, at: int | None) -> SessionError | None:
    return None if message is None else SessionError(message, read_instant(at))


def _read_usage(taken: int, cached: int, given: int, cost: float) -> Usage:
    return Usage(taken, cached, given, cost) if taken or given or cost else NO_USAGE


ROWS = Rows(
    SESSIONS,
    Session,
    "{id}",
    kind=SessionKind,
    phase=Phase,
    metadata=part(read_metadata, "metadata"),
    last_error=part(_read_error, "last_error", "last_error_at"),
    usage=part(_read_usage, "input_tokens", "cached_input_tokens", "output_tokens", "cost_usd"),
)

GET = f"SELECT {ROWS.sql} FROM sessions WHERE workspace = :ws AND id = :id"
LOCK = f"{GET} FOR UPDATE"
IS_CLOSED = "SELECT finalized_at IS NOT NULL FROM sessions WHERE workspace = :ws AND id = :id"
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
SELECT {ROWS.sql} FROM sessions INDEXED BY sessions_by_parent
WHERE workspace = :ws AND parent_session_id = :id ORDER BY created_at, id"""
BEFORE_APPROVAL = """
SELECT from_phase FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND to_phase = 'approval' AND from_phase <> 'approval' ORDER BY number DESC LIMIT 1"""
_CHANGE = PHASE_CHANGES.pick("number", "at", "made_by", "from_phase", "to_phase", "change")
TRAIL = f"""
SELECT {_CHANGE.sql} FROM phase_changes
WHERE workspace = :ws AND session_id = :id AND number > :after ORDER BY number LIMIT :limit"""
ENTER = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, updated_at = :now
WHERE workspace = :ws AND id = :id"""

_NOT_BEGUN = ", ".join(f"'{kind}'" for kind in FailureClass if not kind.then.was_begun)
# The only place that decides a session's status. The first WHEN that is true counts.
STATUS = f"""
CASE
WHEN finalized_at IS NOT NULL THEN CASE phase WHEN 'failed' THEN 'failed' ELSE 'done' END
WHEN phase = 'approval' AND NOT EXISTS (
    SELECT 1 FROM approvals a
    WHERE a.workspace = sessions.workspace AND a.session_id = sessions.id
        AND a.status IN ('approved', 'denied') AND a.answered_at >= (
            SELECT MAX(c.at) FROM phase_changes c WHERE c.workspace = sessions.workspace
                AND c.session_id = sessions.id AND c.to_phase = 'approval'
                AND c.from_phase <> 'approval')) THEN 'waiting'
WHEN lease_expires_at > :now THEN 'running'
WHEN head_seq IS NOT NULL THEN COALESCE((
    SELECT CASE WHEN t.status = 'waiting' THEN 'waiting'
        WHEN t.status <> 'queued' AND t.foreground THEN 'failed' ELSE 'queued' END
    FROM turns t
    WHERE t.workspace = sessions.workspace AND t.conversation_id = sessions.conversation_id
        AND t.seq = head_seq), 'idle')
WHEN EXISTS (SELECT 1 FROM delegations d
    WHERE d.workspace = sessions.workspace AND d.session_id = sessions.id AND d.ended_at IS NULL)
    THEN 'running'
WHEN 'failed' = (
    SELECT t.status FROM turns t
    WHERE t.workspace = sessions.workspace AND t.conversation_id = sessions.conversation_id
        AND t.session_id = sessions.id AND t.dropped IS NULL
        AND (t.failure_class IS NULL OR t.failure_class NOT IN ({_NOT_BEGUN}))
    ORDER BY t.seq DESC LIMIT 1) THEN 'failed'
ELSE 'idle' END"""
# of the session's own provider, or else the one that was used last; never the one that a fork has from its parent
PROVIDER_SESSION = """
COALESCE((SELECT p.provider_session_id FROM pointers p
    WHERE p.workspace = sessions.workspace AND p.session_id = sessions.id AND p.provider = sessions.provider
        AND p.fork_seq IS NULL),
(SELECT p.provider_session_id FROM pointers p
    WHERE p.workspace = sessions.workspace AND p.session_id = sessions.id AND p.fork_seq IS NULL
    ORDER BY p.updated_at DESC LIMIT 1))"""
STATE = f"SELECT {STATUS}, {PROVIDER_SESSION} FROM sessions WHERE workspace = :ws AND id = :id"

_OPEN = {phase.value: phase for phase in Phase if not phase.is_final}
#: as far as the engines can count
_FAR = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
#: rows that one page reads at once, and looks at, if few of them fit
_STEP = 200
_FIRST_STEP = 51
_MOST_LOOKED_AT = 10_000
#: of metadata, purposes and summaries on one page; the page ends with the session that goes beyond it
PAGE_CHARACTERS = 4 * 1024 * 1024
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
    session = Session(
        id=new.id,
        conversation_id=conversation_id,
        agent=new.agent,
        kind=new.kind,
        purpose=redact_text(new.purpose),
        name=new.name,
        provider=new.provider,
        phase=phase,
        resume_ready=is_ready(s, phase, new.kind),
        metadata=read_metadata(metadata),
        error_count=0,
        last_error=None,
        created_at=new.began_at or s.now,
        updated_at=new.began_at or s.now,
        finalized_at=None,
        summary=None,
        parent_session_id=parent,
        project=new.project,
        imported_at=None if new.began_at is None else s.now,
    )
    # the metadata is encoded already: redacting it once is enough
    row = ROWS.values(session) | {"metadata": metadata}
    if not s.changed(SESSIONS.insert_once, **row):
        return _already_there(s, new, conversation_id)
    return session


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


def read_session(row: Row, where: str) -> Session:
    """Raises UnreadableSession."""
    try:
        return ROWS.build(row)
    except MISREAD as exc:
        raise UnreadableSession(where, str(ROWS.column(row, "id")), problem_of(exc)) from exc


def get(s: Scope, session_id: str) -> Session:
    row = s.one(GET, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    return read_session(row, s.where)


def lock(s: Scope, session_id: str) -> Session:
    """The session; no other transaction changes it until this one ends."""
    row = s.one(LOCK, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    return read_session(row, s.where)


def is_ready(s: Scope, phase: Phase, kind: SessionKind) -> bool:
    return is_resumable_phase(phase, s.policy.continue_, delegated=kind is SessionKind.DELEGATED)


def is_closed(s: Scope, session_id: str) -> bool:
    """Without reading all of it; one that is gone is not open, either."""
    (closed,) = s.one(IS_CLOSED, id=session_id) or (True,)
    return bool(closed)


def require_open(s: Scope, session_id: str) -> None:
    """Locks the session, without reading all of it."""
    row = s.one(LOCK_PHASE, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    phase, finalized_at = row
    if finalized_at is not None:
        raise SessionClosed(session_id, phase)


def enter(s: Scope, session: Session, phase: Phase) -> None:
    """An open phase; the session must be locked, and counts as active now."""
    ready = is_ready(s, phase, session.kind)
    s.run(ENTER, id=session.id, phase=phase.value, resume_ready=ready, now=s.now)
    if phase is not session.phase:
        record_phase(s, session.id, session.phase.value, phase)


def before_approval(s: Scope, session: Session) -> Phase:
    (phase,) = s.one(BEFORE_APPROVAL, id=session.id) or (None,)
    return _OPEN.get(phase, Phase.EXECUTING)


def phase_history(s: Scope, session_id: str) -> tuple[PhaseChange, ...]:
    try:
        return tuple(map(_read_phase, s.all(PHASES, id=session_id)))
    except MISREAD as exc:
        raise UnreadableSession(s.where, session_id, f"phase_changes: {problem_of(exc)}") from exc


def _read_phase(row: Row) -> PhaseChange:
    PHASE_CHANGE.check(row)
    from_phase, to_phase, at = row
    return PhaseChange(from_phase, to_phase, read_instant(at))


def trail(s: Scope, session_id: str, after: int, limit: int) -> tuple[SessionChange, ...]:
    rows = s.all(TRAIL, id=session_id, after=after, limit=limit)
    try:
        return tuple(map(_read_change, rows))
    except MISREAD as exc:
        raise unreadable(s.where, PHASE_CHANGES.name, f"the trail of {session_id}", exc) from exc


def _read_change(row: Row) -> SessionChange:
    _CHANGE.check(row)
    number, at, by, from_phase, to_phase, change = row
    more = {} if change is None else codec.decode_object(change)
    return SessionChange(
        number, read_instant(at), by, from_phase, to_phase, tuple(more.get("metadata", ())),
        more.get("error"), bool(more.get("cleared_errors")), bool(more.get("summary")),
    )  # fmt: skip


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


def state(s: Scope, session_id: str) -> SessionState:
    row = s.one(STATE, id=session_id, now=s.now)
    if row is None:
        raise NotFound("session", session_id)
    return _read_state(*row)


def _read_state(status: str, provider_session_id: ProviderSessionId | None) -> SessionState:
    return SessionState(SessionStatus(status), provider_session_id)


def list_page(s: Scope, wanted: SessionFilter, limit: int, cursor: str | None) -> SessionPage:
    """Newest first; the cursor is the place of the last row that was looked at."""
    found: list[Session] = []
    states: dict[str, SessionState] = {}
    unreadable: dict[str, str] = {}
    place, size = None, 0
    for looked_at, row in enumerate(_rows(s, wanted, limit, cursor)):
        is_full = len(found) + len(unreadable) == limit or size > PAGE_CHARACTERS
        if is_full or looked_at == _MOST_LOOKED_AT:
            return SessionPage(tuple(found), states, unreadable, place)
        place = _cursor_at(row)
        try:
            session = read_session(row[:-2], s.where)
            if _fits(s, session, wanted):
                found.append(session)
                size += len(ROWS.column(row, "metadata")) + len(session.purpose) + len(session.summary or "")
                states[session.id] = _read_state(*row[-2:])
        except UnreadableSession as exc:
            unreadable[str(ROWS.column(row, "id"))] = exc.problem
    return SessionPage(tuple(found), states, unreadable, None)


def _rows(s: Scope, wanted: SessionFilter, limit: int, cursor: str | None) -> Iterator[Row]:
    """All that SQL can tell to fit, read as far as they are looked at; at first one more than a small page holds."""
    step = min(limit + 1, _FIRST_STEP)
    while True:
        conditions, params = _conditions(wanted)
        if cursor is not None:
            params["at"], params["after"] = _parse_cursor(cursor)
            conditions.append("(created_at < :at OR (created_at = :at AND id < :after))")
            conditions.append("created_at <= :at")
        sql = (
            f"SELECT {ROWS.sql}, {STATUS}, {PROVIDER_SESSION} FROM sessions WHERE {' AND '.join(conditions)} "
            "ORDER BY created_at DESC, id DESC LIMIT :limit"
        )
        rows = s.all(sql, limit=step, now=s.now, **params)
        yield from rows
        if len(rows) < step:
            return
        cursor = _cursor_at(rows[-1])
        step = _STEP


def _fits(s: Scope, session: Session, wanted: SessionFilter) -> bool:
    """What SQL does not ask for."""
    if not has_metadata(session.metadata, wanted.metadata):
        return False
    if not wanted.resumable:
        return True
    window = approval_window(s, session.id)
    return may_continue(session, s.policy.continue_, s.now, window) is MayContinue.YES


def _conditions(wanted: SessionFilter) -> tuple[list[str], dict[str, object]]:
    conditions = ["workspace = :ws"]
    params: dict[str, object] = {}
    if wanted.active_only:
        conditions.append("finalized_at IS NULL")
    if wanted.agent is not None:
        conditions.append("agent = :agent")
        params["agent"] = wanted.agent
    if wanted.status is not None:
        conditions.append(f"{STATUS} = :status")
        params["status"] = wanted.status.value
    if wanted.resumable:
        conditions.append("resume_ready = TRUE AND finalized_at IS NULL")
    if wanted.metadata:
        conditions.append("metadata <> '{}'")
    if wanted.since is not None:
        conditions.append("created_at >= :since")
        params["since"] = wanted.since
    if wanted.until is not None:
        conditions.append("created_at < :until")
        params["until"] = wanted.until
    return conditions, params


def _cursor_at(row: Row) -> str:
    """Where the list continues, also after a row whose instant is damaged: a value that is no number sorts first."""
    at = ROWS.column(row, "created_at")
    place = math.floor(max(-_FAR, min(at, _FAR))) if isinstance(at, int | float) else _FAR
    return f"{place}~{ROWS.column(row, 'id')}"


def _parse_cursor(cursor: str) -> tuple[int, str]:
    at, separator, after = cursor.partition("~")
    if not separator or not _WHOLE.match(at) or abs(int(at)) > _FAR:
        raise InvalidInput("cursor", f"{cursor[:40]!r} is not a cursor that list returned")
    return int(at), after
