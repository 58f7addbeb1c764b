"""Owns the rows of sessions and of their phases: making, finding, listing and reading them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import count

from holdfast.clock import after
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ConversationId, ProviderSessionId, SessionId, conversation_of
from holdfast.domain.inputs import MAX_NAME, clean_text
from holdfast.domain.metadata import Metadata, encode_metadata, has_metadata
from holdfast.domain.phases import MayContinue, Phase, is_resumable_phase, may_continue
from holdfast.domain.records import record
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import (
    NewSession,
    PhaseChange,
    Program,
    Session,
    SessionChange,
    SessionError,
    SessionFilter,
    SessionKind,
    SessionPage,
    SessionState,
    SessionStatus,
    is_title,
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
from holdfast.store.sql.json_text import decode_object, load
from holdfast.store.sql.rows import Rows, part, readable
from holdfast.store.sql.session_statements import (
    PHASE_CHANGE,
    PHASES,
    approval_window,
    begin_conversation,
    record_deed,
    record_phase,
)
from holdfast.store.sql.tables import MISREAD, PHASE_CHANGES, SESSIONS, problem_of, read_instant, unreadable

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.store.driver import Row
    from holdfast.store.sql.scope import Scope


def read_metadata(text: str) -> Metadata:
    if text == "{}":
        return {}
    value = load(text)
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
#: a row if it was inserted
INSERT = f"{SESSIONS.insert_once}\nRETURNING id"
IS_CLOSED = "SELECT finalized_at IS NOT NULL FROM sessions WHERE workspace = :ws AND id = :id"
LOCK_PHASE = """
SELECT phase, finalized_at FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"""
LOCK_CONVERSATION = "SELECT id FROM conversations WHERE workspace = :ws AND id = :id FOR UPDATE"
OPEN_SESSION_OF_AGENT = """
SELECT id FROM sessions
WHERE workspace = :ws AND conversation_id = :conversation_id AND agent = :agent AND finalized_at IS NULL"""
PROGRAM = """
SELECT program_owner, program_began_at, updated_at FROM sessions WHERE workspace = :ws AND id = :id"""
ATTEND = """
UPDATE sessions SET program_owner = :owner, program_until = :until, program_began_at = :began_at, updated_at = :now
WHERE workspace = :ws AND id = :id"""
ENTITLE = "UPDATE sessions SET agent_title = :title WHERE workspace = :ws AND id = :id"
RENAME = "UPDATE sessions SET name = :name, updated_at = :now WHERE workspace = :ws AND id = :id"
BY_NAME = "SELECT id FROM sessions WHERE workspace = :ws AND name = :name"
BY_PREFIX = """
SELECT id FROM sessions WHERE workspace = :ws AND id >= :low AND id < :high ORDER BY id DESC LIMIT 6"""
# as the indexes have it: the last characters of every id, and the beginning of every title
_END, _TITLE = 4, 40
_TITLED = f"LOWER(SUBSTR(COALESCE(agent_title, purpose), 1, {_TITLE}))"
BY_END = f"""
SELECT id FROM sessions INDEXED BY sessions_by_end
WHERE workspace = :ws AND SUBSTR(id, LENGTH(id) - {_END - 1}) = :last
    AND SUBSTR(id, LENGTH(id) - LENGTH(CAST(:given AS TEXT)) + 1) = :given
ORDER BY id DESC LIMIT 6"""
BY_TITLE = f"""
SELECT id, COALESCE(agent_title, purpose) FROM sessions INDEXED BY sessions_by_title
WHERE workspace = :ws AND {_TITLED} >= :low AND {_TITLED} < :high
ORDER BY id DESC LIMIT 1000"""
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
TOUCH = "UPDATE sessions SET updated_at = :now WHERE workspace = :ws AND id = :id"
ENTER = """
UPDATE sessions SET phase = :phase, resume_ready = :resume_ready, updated_at = :now
WHERE workspace = :ws AND id = :id"""

_NOT_BEGUN = ", ".join(f"'{kind}'" for kind in FailureClass if not kind.then.was_begun)
# The only place that decides a session's status. The first WHEN that is true counts.
STATUS = f"""
CASE
WHEN finalized_at IS NOT NULL THEN CASE phase WHEN 'failed' THEN 'failed' ELSE 'done' END
WHEN phase = 'approval' AND (EXISTS (
    SELECT 1 FROM approvals o
    WHERE o.workspace = sessions.workspace AND o.session_id = sessions.id AND o.status = 'open')
OR NOT EXISTS (
    SELECT 1 FROM approvals a
    WHERE a.workspace = sessions.workspace AND a.session_id = sessions.id
        AND a.status IN ('approved', 'denied') AND a.answered_at >= (
            SELECT MAX(c.at) FROM phase_changes c WHERE c.workspace = sessions.workspace
                AND c.session_id = sessions.id AND c.to_phase = 'approval'
                AND c.from_phase <> 'approval'))) THEN 'waiting'
WHEN lease_expires_at > :now OR program_until > :now THEN 'running'
WHEN head_seq IS NOT NULL THEN COALESCE((
    SELECT CASE WHEN t.status = 'waiting' THEN 'waiting'
        WHEN t.status <> 'queued' AND t.foreground THEN 'interrupted' ELSE 'queued' END
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
# an agent that has not saved anything yet has no pointer, but an attempt
DIRECTORY = """
COALESCE((SELECT p.work_dir FROM pointers p
    WHERE p.workspace = sessions.workspace AND p.session_id = sessions.id AND p.work_dir IS NOT NULL
    ORDER BY p.updated_at DESC LIMIT 1),
(SELECT a.work_dir FROM attempts a WHERE a.workspace = sessions.workspace AND a.session_id = sessions.id
    ORDER BY a.fence DESC LIMIT 1),
project)"""
_PROGRAM = "CASE WHEN program_until > :now THEN program_owner END, program_began_at"
_STATE = f"{STATUS}, {PROVIDER_SESSION}, {DIRECTORY}, {_PROGRAM}"
_STATE_COLUMNS = 5
STATE = f"SELECT {_STATE} FROM sessions WHERE workspace = :ws AND id = :id"
#: few among many, and an index knows them
_MAY_RUN = """id IN (
    SELECT r.id FROM sessions r WHERE r.workspace = :ws AND r.lease_expires_at > :now
    UNION SELECT u.id FROM sessions u WHERE u.workspace = :ws AND u.program_until > :now
    UNION SELECT d.session_id FROM delegations d
    WHERE d.workspace = :ws AND d.session_id IS NOT NULL AND d.ended_at IS NULL)"""

#: of sessions that have worked in this directory, below it or in one whose name begins with its name, at most so many
_NEAR = """
    SELECT p.session_id FROM pointers p WHERE p.workspace = :ws AND p.work_dir >= :low AND p.work_dir < :high
    UNION ALL SELECT a.session_id FROM attempts a WHERE a.workspace = :ws AND a.work_dir >= :low AND a.work_dir < :high
    UNION ALL SELECT o.id FROM sessions o WHERE o.workspace = :ws AND o.project >= :low AND o.project < :high"""
COUNT_NEAR = f"SELECT COUNT(*) FROM ({_NEAR} LIMIT :most) AS near"
_MOST_NEAR = 1000

_OPEN = {phase.value: phase for phase in Phase if not phase.is_final}
#: as far as the engines can count
_FAR = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_PATTERN = re.compile(r"[%_!]")  #: what LIKE gives a meaning
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
    return insert(s, Insertion(new, conversation_id, metadata, phase, parent=None))


@record
class Insertion:
    new: NewSession
    conversation_id: ConversationId
    metadata: str
    phase: Phase
    parent: SessionId | None


def insert(s: Scope, one: Insertion) -> Session:
    (session,) = insert_many(s, [one])
    return session


def insert_many(s: Scope, wanted: Sequence[Insertion]) -> list[Session]:
    made = [_made(s, one) for one in wanted]
    # the metadata is encoded already: redacting it once is enough
    rows = [
        ROWS.values(session) | {"metadata": one.metadata} for one, session in zip(wanted, made, strict=True)
    ]
    inserted = s.all_many(INSERT, rows)
    return [
        session if is_new else _already_there(s, one.new, one.conversation_id)
        for one, session, is_new in zip(wanted, made, inserted, strict=True)
    ]


def _made(s: Scope, one: Insertion) -> Session:
    new = one.new
    return Session(
        id=new.id,
        conversation_id=one.conversation_id,
        agent=new.agent,
        kind=new.kind,
        purpose=redact_text(new.purpose),
        name=new.name,
        provider=new.provider,
        phase=one.phase,
        resume_ready=is_ready(s, one.phase, new.kind),
        metadata=read_metadata(one.metadata),
        error_count=0,
        last_error=None,
        created_at=new.began_at or s.now,
        updated_at=new.began_at or s.now,
        finalized_at=None,
        summary=None,
        parent_session_id=one.parent,
        project=new.project,
        imported_at=None if new.began_at is None else s.now,
    )


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
    more = {} if change is None else decode_object(change)
    return SessionChange(
        number, read_instant(at), by, from_phase, to_phase, tuple(more.get("metadata", ())),
        more.get("error"), bool(more.get("cleared_errors")), bool(more.get("summary")), more.get("did"),
        more.get("turn"),
    )  # fmt: skip


def note_deed(s: Scope, session_id: str, did: str) -> None:
    lock(s, session_id)
    record_deed(s, session_id, did)


def rename(s: Scope, session_id: str, name: str | None) -> Session:
    lock(s, session_id)
    refuse_taken_name(s, session_id, name)
    s.run(RENAME, id=session_id, name=name, now=s.now)
    record_deed(s, session_id, "rename_session")
    return get(s, session_id)


def refuse_taken_name(s: Scope, session_id: str, name: str | None) -> None:
    if name is None:
        return
    (holder,) = s.one(BY_NAME, name=name) or (session_id,)
    if holder != session_id:
        free = _free_name(s, name)
        raise Conflict(
            f"the name {name!r} is taken by {holder}; {free!r} is free", session_id=holder, free=free
        )


def _free_name(s: Scope, name: str) -> str:
    """The name with the next number at its end."""
    words, _, number = name.rpartition("-")
    base, first = (words, int(number) + 1) if words and number.isdecimal() else (name[: MAX_NAME - 8], 2)
    return next(free for n in count(first) if s.one(BY_NAME, name=(free := f"{base}-{n}")) is None)


def resolve(s: Scope, given: str) -> SessionId:
    """An id, a name, the beginning of an id, its end, or a title, in that order."""
    if s.one(GET, id=given) is not None:
        return SessionId(given)
    (named,) = s.one(BY_NAME, name=given) or (None,)
    if named is not None:
        return SessionId(named)
    fits = [SessionId(found) for (found,) in s.all(BY_PREFIX, low=given, high=given + AFTER_ALL)]
    fits = fits or _by_end(s, given) or _by_title(s, given)
    if len(fits) > 1:
        raise AmbiguousId(given, tuple(fits[:5]))
    if not fits:
        raise NotFound("session", given)
    return fits[0]


def _by_end(s: Scope, given: str) -> list[SessionId]:
    if len(given) < _END:
        return []
    return [SessionId(found) for (found,) in s.all(BY_END, last=given[-_END:], given=given)]


def _by_title(s: Scope, given: str) -> list[SessionId]:
    # the engines fold only the letters of ASCII
    low = "".join(c.lower() if c.isascii() else c for c in given.strip()[:_TITLE]).removesuffix("…")
    if not low:
        return []
    rows = s.all(BY_TITLE, low=low, high=low + AFTER_ALL)
    return [SessionId(found) for found, text in rows if is_title(given, text)]


def children(s: Scope, session_id: str) -> tuple[Session, ...]:
    return tuple(readable(lambda row: read_session(row, s.where), s.all(CHILDREN, id=session_id)))


def state(s: Scope, session_id: str) -> SessionState:
    row = s.one(STATE, id=session_id, now=s.now)
    if row is None:
        raise NotFound("session", session_id)
    return _read_state(*row)


def _read_state(
    status: str,
    provider_session_id: ProviderSessionId | None,
    directory: str | None,
    owner: str | None,
    began_at: int | None,
) -> SessionState:
    program = None if owner is None else Program(owner, read_instant(began_at))
    return SessionState(SessionStatus(status), provider_session_id, directory, program)


def attend(s: Scope, session_id: str, owner: str, seconds: float, title: str | None) -> None:
    session = lock(s, session_id)
    held_by, began_at, active_at = s.one(PROGRAM, id=session_id) or (None, None, s.now)
    if seconds > 0:
        is_new = held_by != owner
        s.run(
            ATTEND, id=session_id, owner=owner, until=after(s.now, seconds),
            began_at=s.now if is_new else began_at, now=max(s.now, active_at) if is_new else active_at,
        )  # fmt: skip
    elif held_by == owner:
        s.run(ATTEND, id=session_id, owner=None, until=None, began_at=None, now=max(s.now, active_at))
    entitle(s, session, title)


def entitle(s: Scope, session: Session, title: str | None) -> None:
    """The session must be locked. None, and a title that it has already, change nothing."""
    kept = kept_title(title)
    if kept is not None and kept != session.agent_title:
        s.run(ENTITLE, id=session.id, title=kept)


def kept_title(title: str | None) -> str | None:
    """As it is kept: on one line, without secrets; None if nothing is left of it."""
    return redact_text(" ".join(clean_text(title).split())[:MAX_NAME]) or None if title else None


def list_page(s: Scope, wanted: SessionFilter, limit: int, cursor: str | None) -> SessionPage:
    """The cursor is the place of the last row that was looked at."""
    found: list[Session] = []
    states: dict[str, SessionState] = {}
    unreadable: dict[str, str] = {}
    place, size = None, 0
    for looked_at, row in enumerate(_rows(s, wanted, limit, cursor)):
        is_full = len(found) + len(unreadable) == limit or size > PAGE_CHARACTERS
        if is_full or looked_at == _MOST_LOOKED_AT:
            return SessionPage(tuple(found), states, unreadable, place)
        place = _cursor_at(row, wanted)
        try:
            session = read_session(row[:-_STATE_COLUMNS], s.where)
            if _fits(s, session, wanted):
                found.append(session)
                size += len(ROWS.column(row, "metadata")) + len(session.purpose) + len(session.summary or "")
                states[session.id] = _read_state(*row[-_STATE_COLUMNS:])
        except UnreadableSession as exc:
            unreadable[str(ROWS.column(row, "id"))] = exc.problem
    return SessionPage(tuple(found), states, unreadable, None)


def _rows(s: Scope, wanted: SessionFilter, limit: int, cursor: str | None) -> Iterator[Row]:
    """All that SQL can tell to fit, read as far as they are looked at; at first one more than a small page holds."""
    step = min(limit + 1, _FIRST_STEP)
    order = _order(wanted)
    near = _near(s, wanted)
    while True:
        conditions, params = _conditions(wanted)
        if near:
            conditions.append(f"id IN ({_NEAR})")
            params |= near
            order = (
                f"+{_order(wanted)}"  # otherwise SQLite walks the index of this order, through all sessions
            )
        if cursor is not None:
            params["at"], params["after"] = _parse_cursor(cursor)
            conditions.append(f"({order} < :at OR ({order} = :at AND id < :after))")
            conditions.append(f"{order} <= :at")
        sql = (
            f"SELECT {ROWS.sql}, {_STATE} FROM sessions WHERE {' AND '.join(conditions)} "
            f"ORDER BY {order} DESC, id DESC LIMIT :limit"
        )
        rows = s.all(sql, limit=step, now=s.now, **params)
        yield from rows
        if len(rows) < step:
            return
        cursor = _cursor_at(rows[-1], wanted)
        step = _STEP


def _near(s: Scope, wanted: SessionFilter) -> dict[str, str] | None:
    """The range of directories by which an index finds the sessions of a project.

    None: no project is asked for, or so many sessions belong to it that the list itself soon comes to the next one.
    """
    if not wanted.project:
        return None
    low = wanted.project.rstrip("/")
    near = {"low": low, "high": f"{low}0"}  # the character after the slash
    (found,) = s.one(COUNT_NEAR, most=_MOST_NEAR, **near) or (0,)
    return near if found < _MOST_NEAR else None


def _fits(s: Scope, session: Session, wanted: SessionFilter) -> bool:
    """What SQL does not ask for."""
    if not has_metadata(session.metadata, wanted.metadata) or not _has_text(session, wanted.grep):
        return False
    if not wanted.resumable:
        return True
    window = approval_window(s, session.id)
    return may_continue(session, s.policy.continue_, s.now, window) is MayContinue.YES


def _has_text(session: Session, wanted: str | None) -> bool:
    if not wanted:
        return True
    texts = (
        session.id, session.name, session.agent_title, session.purpose, session.agent, session.summary,
    )  # fmt: skip
    return any(wanted.lower() in text.lower() for text in texts if text)


def _order(wanted: SessionFilter) -> str:
    return "updated_at" if wanted.by_activity else "created_at"


#: by the field of the filter: what SQL asks for if the field is set
_CONDITIONS = {
    "active_only": "finalized_at IS NULL",
    "agent": "agent = :agent",
    "status": f"{STATUS} = :status",
    "resumable": "resume_ready = TRUE AND finalized_at IS NULL",
    "metadata": "metadata <> '{}'",
    "since": "created_at >= :since",
    "until": "created_at < :until",
    "provider": "provider = :provider",
    "project": f"SUBSTR({DIRECTORY} || '/', 1, LENGTH(CAST(:project AS TEXT))) = :project",
    "grep": "LOWER(id || ' ' || COALESCE(name, '') || ' ' || COALESCE(agent_title, '') || ' ' || purpose || ' '"
    " || agent || ' ' || COALESCE(summary, '')) LIKE :grep ESCAPE '!'",
}


def _conditions(wanted: SessionFilter) -> tuple[list[str], dict[str, object]]:
    given = {name: getattr(wanted, name) for name in _CONDITIONS}
    # zero is an instant, and an empty text a wish that nothing meets
    values = {name: value for name, value in given.items() if value not in (None, {}) and value is not False}
    conditions = ["workspace = :ws", *(_CONDITIONS[name] for name in values)]
    if not wanted.subagents:
        conditions.append("(kind <> 'subagent' OR parent_session_id IS NULL)")
    if wanted.status is not None:
        values["status"] = wanted.status.value
    if wanted.status is SessionStatus.RUNNING:
        conditions.append(_MAY_RUN)
    if wanted.status is not None and wanted.or_running:
        conditions[conditions.index(_CONDITIONS["status"])] = f"{STATUS} IN (:status, 'running')"
    if wanted.project:
        values["project"] = wanted.project.rstrip("/") + "/"
    if wanted.grep:
        # the engines fold only the letters of ASCII: the longest run of these leaves few rows to look at
        longest = max(_NOT_ASCII.split(wanted.grep.lower()), key=len)
        values["grep"] = "%" + _PATTERN.sub(r"!\g<0>", longest) + "%"
    return conditions, {name: value for name, value in values.items() if f":{name}" in _CONDITIONS[name]}


def _cursor_at(row: Row, wanted: SessionFilter) -> str:
    """Where the list continues, also after a row whose instant is damaged: a value that is no number sorts first."""
    at = ROWS.column(row, _order(wanted))
    place = math.floor(max(-_FAR, min(at, _FAR))) if isinstance(at, int | float) else _FAR
    return f"{place}~{ROWS.column(row, 'id')}"


def _parse_cursor(cursor: str) -> tuple[int, str]:
    at, separator, after = cursor.partition("~")
    if not separator or not _WHOLE.match(at) or abs(int(at)) > _FAR:
        raise InvalidInput("cursor", f"{cursor[:40]!r} is not a cursor that list returned")
    return int(at), after
