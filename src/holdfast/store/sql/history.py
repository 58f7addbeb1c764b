"""Owns a conversation's history: texts, changes, forks, and reading through a chain of forks.

Texts and changes are only ever added, each stamped with the conversation's revision. A fork
remembers its parent's revision, so that it keeps reading the parent as it stood then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.domain.conversations import ChangeKind, Conversation, ForkPoint, HistoryChange, HistoryTurn
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ConversationId, SessionId, conversation_of
from holdfast.domain.inputs import clean_text
from holdfast.domain.phases import Phase
from holdfast.domain.records import record
from holdfast.domain.secret_tokens import redact_own_tokens
from holdfast.domain.sessions import NewSession, Session
from holdfast.domain.turns import TurnStatus
from holdfast.errors import Conflict, InvalidInput, NotFound, StoreCorrupt, UnreadableSession
from holdfast.store.driver import Row
from holdfast.store.sql import approvals, codec, provider_sessions, sessions
from holdfast.store.sql.rows import Rows, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import record_deed
from holdfast.store.sql.tables import (
    CONVERSATIONS,
    HISTORY_CHANGES,
    MESSAGES,
    MISREAD,
    SESSIONS,
    TURNS,
    Columns,
    read_instant,
    read_optional_instant,
    unreadable,
)


def _fork_point(parent_id: str | None, seq: int | None, revision: int | None) -> ForkPoint | None:
    if parent_id is None:
        return None
    if seq is None or revision is None:
        raise ValueError("it is a fork from nowhere")
    return ForkPoint(ConversationId(parent_id), seq, revision)


ROWS = Rows(
    CONVERSATIONS,
    Conversation,
    "{id}",
    fork_point=part(_fork_point, "parent_id", "fork_seq", "fork_revision"),
)
TEXT_ROW = MESSAGES.pick("seq", "role", "revision", "text")
CHANGE = HISTORY_CHANGES.pick("revision", "kind", "first_seq", "last_seq")
TURN = (
    TURNS.pick("seq").of("t")
    + SESSIONS.pick("agent").of("s")
    + TURNS.pick(
        "session_id", "status", "created_at", "retry_of", "attempts", "not_before", "failure_class", "error"
    ).of("t")
)

GET = f"""
SELECT {ROWS.sql}
FROM conversations WHERE workspace = :ws AND id = :id"""
LOCK = f"{GET} FOR UPDATE"
LOCK_OF_SESSION = f"""
SELECT {ROWS.sql}
FROM conversations WHERE workspace = :ws AND id =
    (SELECT conversation_id FROM sessions WHERE workspace = :ws AND id = :session_id) FOR UPDATE"""
SET_NEXT_SEQ = "UPDATE conversations SET next_seq = :next_seq WHERE workspace = :ws AND id = :id"
SET_REVISION = """
UPDATE conversations SET revision = :revision, generation = :generation
WHERE workspace = :ws AND id = :id"""
ADD_BOTH_TEXTS = """
INSERT INTO messages (workspace, conversation_id, seq, role, revision, text)
VALUES (:ws, :conversation_id, :seq, 'prompt', :revision, :prompt),
    (:ws, :conversation_id, :seq, 'response', :revision, :response)"""
TEXTS = f"""
SELECT {TEXT_ROW.sql} FROM messages
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first AND seq <= :last AND revision <= :revision
ORDER BY seq, role, revision"""
CHANGES_BETWEEN = f"""
SELECT {CHANGE.sql} FROM history_changes
WHERE workspace = :ws AND conversation_id = :id AND revision > :after AND revision <= :until
ORDER BY revision"""
INHERITED_CUT = """
SELECT MIN(first_seq) FROM history_changes
WHERE workspace = :ws AND conversation_id = :id AND kind = 'truncate' AND revision <= :revision"""
_MAY_BE_UNSENT = ", ".join(f"'{kind}'" for kind in FailureClass if kind.then.may_be_unsent)
#: the turns of a conversation that are in its history
IN_HISTORY = f"""
SELECT {TURN.sql}
FROM turns t JOIN sessions s ON s.workspace = t.workspace AND s.id = t.session_id
WHERE t.workspace = :ws AND t.conversation_id = :id AND t.seq >= :first AND t.seq <= :last
    AND (t.dropped IS NULL OR t.dropped > :revision)"""
#: those of them that an agent was sent
WAS_SENT = f"""(NOT (t.status IN ('queued', 'claimed')
            OR COALESCE(t.failure_class, '') IN ({_MAY_BE_UNSENT}))
        OR EXISTS (SELECT 1 FROM attempts a
            WHERE a.workspace = t.workspace AND a.conversation_id = t.conversation_id AND a.seq = t.seq
                AND (a.process IS NOT NULL OR a.transcript IS NOT NULL OR a.status IN ('done', 'deferred', 'fell_back'))))"""
VISIBLE_TURNS = f"""{IN_HISTORY}
    AND (:unsent OR {WAS_SENT})
ORDER BY t.seq DESC LIMIT :limit"""
LEASED_FROM = """
SELECT seq FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first
    AND status IN ('queued', 'claimed', 'running', 'waiting') AND status IN ('claimed', 'running')
LIMIT 1"""
# the turns of these sessions are about to change: no other transaction may claim or end one of them meanwhile
LOCK_SESSIONS_FROM = """
SELECT id FROM sessions WHERE workspace = :ws AND id IN (
    SELECT session_id FROM turns INDEXED BY open_turns
    WHERE workspace = :ws AND conversation_id = :id AND seq >= :first
        AND status IN ('queued', 'claimed', 'running', 'waiting'))
ORDER BY id FOR UPDATE"""
WAITING_SESSIONS_FROM = """
SELECT DISTINCT session_id FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first
    AND status IN ('queued', 'claimed', 'running', 'waiting') AND status IN ('queued', 'waiting')"""
DROP_FROM = """
UPDATE turns SET dropped = :revision,
    failure_class = CASE WHEN status IN ('queued', 'waiting') THEN 'cancelled' ELSE failure_class END,
    error = CASE WHEN status IN ('queued', 'waiting') THEN 'cancelled' ELSE error END,
    status = CASE WHEN status IN ('queued', 'waiting') THEN 'cancelled' ELSE status END,
    ended_at = COALESCE(ended_at, :now), search_id = NULL
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first AND dropped IS NULL"""
# its words are added to the full-text index again when somebody searches
NOT_INDEXED = (
    """UPDATE turns SET search_id = NULL
    WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND search_id IS NOT NULL""",
    """UPDATE conversations SET indexed_next = :seq
    WHERE workspace = :ws AND id = :id AND indexed_next > :seq""",
)

FIRST_OPEN = """
SELECT MIN(seq) FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND status IN ('queued', 'claimed', 'running', 'waiting')"""
NEWEST_UP_TO = """
SELECT seq FROM turns
WHERE workspace = :ws AND conversation_id = :id AND seq <= :last
    AND (dropped IS NULL OR dropped > :revision)
ORDER BY seq DESC LIMIT 1"""
FIRST_AFTER = """
SELECT MIN(seq) FROM turns
WHERE workspace = :ws AND conversation_id = :id AND seq > :keep AND seq <= :last
    AND (dropped IS NULL OR dropped > :revision)"""

_REVISION = CONVERSATIONS.pick("revision")
_CUT = Columns(
    HISTORY_CHANGES.name, [("first_seq", "first_seq", HISTORY_CHANGES.columns["first_seq"].or_null)]
)

#: past any turn there will ever be
LAST_SEQ = 2**62


@record
class Segment:
    """One conversation of a chain of forks, as far as the youngest one can see it."""

    id: ConversationId
    last: int
    revision: int
    fork_seq: int  #: 0 for the oldest
    inherits: int  #: up to here its turns lie in older ones; less than ``fork_seq`` after a truncation


def get(s: Scope, conversation_id: str, *, lock: bool = False) -> Conversation:
    row = s.one(LOCK if lock else GET, id=conversation_id)
    if row is None:
        raise NotFound("conversation", conversation_id)
    return read_conversation(s, row)


def get_many(s: Scope, conversation_ids: Sequence[str]) -> list[Conversation]:
    rows = s.all_many(GET, [{"id": conversation_id} for conversation_id in conversation_ids])
    return [read_conversation(s, row) for (row,) in rows]


def read_conversation(s: Scope, row: Row) -> Conversation:
    return ROWS.read(s.where, row)


def read_revision(s: Scope, revision: object, conversation_id: str) -> int:
    (number,) = _REVISION.checked(s.where, (revision,), conversation_id)
    return int(number)


def lock_of_session(s: Scope, session_id: str) -> Conversation:
    row = s.one(LOCK_OF_SESSION, session_id=session_id)
    if row is None:
        raise without_conversation(s, session_id)
    return read_conversation(s, row)


def without_conversation(s: Scope, session_id: str) -> UnreadableSession:
    """Raises NotFound if there is no such session either."""
    found = sessions.get(s, session_id)
    return UnreadableSession(s.where, session_id, f"its conversation {found.conversation_id} is not there")


def ancestry(s: Scope, conversation: Conversation) -> Iterator[Conversation]:
    """The conversation, the one it was forked from, and so on. StoreCorrupt if that never ends, or nowhere."""
    seen = {conversation.id}
    yield conversation
    while conversation.fork_point is not None:
        parent_id = conversation.fork_point.conversation_id
        if parent_id in seen:
            raise StoreCorrupt(
                s.where, f"conversations: {parent_id} is its own ancestor", table="conversations"
            )
        seen.add(parent_id)
        try:
            conversation = get(s, parent_id)
        except NotFound as exc:
            problem = f"conversations: {conversation.id} was forked from {parent_id}, which is not there"
            raise StoreCorrupt(s.where, problem, table="conversations") from exc
        yield conversation


def segments(s: Scope, conversation: Conversation) -> Iterator[Segment]:
    """Youngest first, each read when it is asked for."""
    last, revision = LAST_SEQ, conversation.revision
    for current in ancestry(s, conversation):
        inherits = _inherited_last(s, current, revision)
        point = current.fork_point
        yield Segment(current.id, last, revision, 0 if point is None else point.seq, inherits)
        if point is not None:
            last, revision = min(last, inherits), point.revision


def _inherited_last(s: Scope, conversation: Conversation, revision: int) -> int:
    """The last turn of its parent that a fork has; a truncation in it may cut what it inherits."""
    point = conversation.fork_point
    if point is None:
        return 0
    if revision == point.revision:
        return point.seq
    row = s.one(INHERITED_CUT, id=conversation.id, revision=revision) or (None,)
    (first,) = _CUT.checked(s.where, row, conversation.id)
    return point.seq if first is None else min(point.seq, first - 1)


def read(
    s: Scope,
    conversation: Conversation,
    *,
    first: int = 1,
    last: int = LAST_SEQ,
    limit: int = LAST_SEQ,
    unsent: bool = True,
) -> list[HistoryTurn]:
    """The newest ``limit`` turns of the current history between two sequence numbers, oldest first."""
    chain = list(segments(s, conversation))
    rows = _rows(s, chain, first, last, limit, unsent=unsent)
    if not rows:
        return []
    (newest, *_), (oldest, *_) = rows[0], rows[-1]
    texts = _texts(s, chain, oldest, newest)
    return [read_turn(s, conversation, row, texts) for row in reversed(rows)]


def seqs(
    s: Scope, conversation: Conversation, *, first: int, last: int, limit: int, unsent: bool
) -> list[int]:
    """The numbers of the turns that ``read`` finds, without their texts."""
    chain = list(segments(s, conversation))
    return [row[0] for row in reversed(_rows(s, chain, first, last, limit, unsent=unsent))]


def _rows(s: Scope, chain: list[Segment], first: int, last: int, limit: int, *, unsent: bool) -> list[Row]:
    """Newest first."""
    rows: list[Row] = []
    for segment, own_first, top in windows(chain, first, last):
        if len(rows) < limit:
            rows += s.all(
                VISIBLE_TURNS, id=segment.id, first=own_first, last=top, revision=segment.revision,
                limit=limit - len(rows), unsent=unsent,
            )  # fmt: skip
    return rows


def windows(chain: Iterable[Segment], first: int, last: int) -> Iterator[tuple[Segment, int, int]]:
    """The turns from ``first`` to ``last``, by the conversation that each lies in; the youngest conversation first."""
    for segment in chain:
        own_first = max(first, min(segment.last, segment.inherits) + 1)
        top = min(last, segment.last)
        if own_first <= top:
            yield segment, own_first, top
        last = min(last, own_first - 1)


class Text(NamedTuple):
    """The newest text of one part of a turn."""

    revision: int
    text: str
    is_edited: bool  #: there was another one before


#: by the number of the turn, and the part
Texts = dict[tuple[int, str], Text]


def _texts(s: Scope, chain: list[Segment], first: int, last: int) -> Texts:
    """The newest text of each part; a fork's own edits lie over what it inherits."""
    texts: Texts = {}
    for segment in reversed(chain):
        top = min(last, segment.last)
        rows = s.all(TEXTS, id=segment.id, first=first, last=top, revision=segment.revision)
        lay_over(s, segment, rows, texts)
    return texts


def lay_over(s: Scope, segment: Segment, rows: Iterable[Row], texts: Texts) -> None:
    """Put the texts of a conversation, in the order of their revisions, in the place of older ones."""
    for row in rows:
        seq, role, revision, text = TEXT_ROW.checked(s.where, row, "turn", row[0], "of", segment.id)
        texts[seq, role] = Text(revision, text, (seq, role) in texts)


def read_turn(s: Scope, conversation: Conversation, row: Row, texts: Texts) -> HistoryTurn:
    try:
        TURN.check(row)
        seq, agent, session_id, status, at, retry_of, attempts, not_before, failure_class, error = row
        asked, answered = texts.get((seq, "prompt")), texts.get((seq, "response"))
        given = [text for text in (asked, answered) if text is not None]
        return HistoryTurn(
            seq=seq,
            agent=agent,
            session_id=session_id,
            status=TurnStatus(status),
            revision=max((text.revision for text in given), default=0),
            prompt="" if asked is None else asked.text,
            response=None if answered is None else answered.text,
            at=read_instant(at),
            retry_of=retry_of,
            attempts=attempts,
            not_before=read_optional_instant(not_before),
            failure=codec.decode_failure(failure_class, error),
            is_edited=any(text.is_edited for text in given),
        )
    except MISREAD as exc:
        raise unreadable(s.where, TURNS.name, f"turn {row[0]} of {conversation.id}", exc) from exc


def changes_since(s: Scope, conversation: Conversation, epoch: int) -> tuple[HistoryChange, ...]:
    """Every change that this conversation's history saw after ``epoch``, its parents' included."""
    found: list[HistoryChange] = []
    until = conversation.revision
    for current in ancestry(s, conversation):
        # the usual case costs nothing: no change since
        if until > epoch:
            rows = s.all(CHANGES_BETWEEN, id=current.id, after=epoch, until=until)
            found += [_change(s, current, row) for row in rows]
        point = current.fork_point
        if point is None or point.revision <= epoch:
            break
        until = point.revision
    return tuple(found)


def _change(s: Scope, conversation: Conversation, row: Row) -> HistoryChange:
    try:
        CHANGE.check(row)
        revision, kind, first, last = row
        return HistoryChange(revision, ChangeKind(kind), first, last)
    except MISREAD as exc:
        key = f"{conversation.id} {CHANGE.column(row, 'revision')}"
        raise unreadable(s.where, HISTORY_CHANGES.name, key, exc) from exc


def take_seq(s: Scope, conversation: Conversation) -> int:
    """The conversation must be locked."""
    s.run(SET_NEXT_SEQ, id=conversation.id, next_seq=conversation.next_seq + 1)
    return conversation.next_seq


def kept_response(text: str) -> str:
    """The response as it is stored: unchanged, except for characters that no store can keep, and tokens of Holdfast."""
    return redact_own_tokens(clean_text(text))


def add_text(
    s: Scope, conversation_id: str, seq: int, revision: int, *, prompt: str | None, response: str | None
) -> None:
    if prompt is not None and response is not None:
        s.run(
            ADD_BOTH_TEXTS, conversation_id=conversation_id, seq=seq, revision=revision, prompt=prompt,
            response=response,
        )  # fmt: skip
        return
    for role, text in (("prompt", prompt), ("response", response)):
        if text is not None:
            s.run(
                MESSAGES.insert,
                conversation_id=conversation_id,
                seq=seq,
                role=role,
                revision=revision,
                text=text,
            )


def edit(
    s: Scope, conversation: Conversation, seq: int, prompt: str | None, response: str | None
) -> HistoryTurn:
    if prompt is None and response is None:
        raise InvalidInput("edit", "give a new prompt, a new response, or both")
    current = visible_turn(s, conversation, seq)
    if response is not None and current.status.is_open:
        raise Conflict(f"turn {seq} is still {current.status}: it has no response to edit", seq=seq)
    changed = _record(s, conversation, ChangeKind.EDIT, seq, seq)
    said = None if response is None else kept_response(response)
    add_text(s, conversation.id, seq, changed.revision, prompt=prompt, response=said)
    for statement in NOT_INDEXED:
        s.run(statement, id=conversation.id, seq=seq)
    s.words.forget(s, conversation.id, seq, seq)
    return visible_turn(s, changed, seq)


def truncate(s: Scope, conversation: Conversation, keep: int) -> tuple[Conversation, tuple[str, ...]]:
    """Drop what comes after turn ``keep``; also the sessions whose queue that changed."""
    first = first_visible_after(s, conversation, keep)
    if first is None:
        return conversation, ()
    s.all(LOCK_SESSIONS_FROM, id=conversation.id, first=first)
    (leased,) = s.one(LEASED_FROM, id=conversation.id, first=first) or (None,)
    if leased is not None:
        raise Conflict(f"turn {leased} is running: cancel it first", seq=leased)
    waiting = tuple(session for (session,) in s.all(WAITING_SESSIONS_FROM, id=conversation.id, first=first))
    changed = _record(s, conversation, ChangeKind.TRUNCATE, first, conversation.next_seq - 1)
    s.run(DROP_FROM, id=conversation.id, first=first, revision=changed.revision, now=s.now)
    s.words.forget(s, conversation.id, first, LAST_SEQ)
    return changed, waiting


def new_generation(s: Scope, conversation: Conversation) -> tuple[Conversation, tuple[str, ...]]:
    """An empty history from here on; the old turns stay as rows."""
    emptied, waiting = truncate(s, conversation, 0)
    generation = conversation.generation + 1
    s.run(SET_REVISION, id=emptied.id, revision=emptied.revision, generation=generation)
    return get(s, conversation.id), waiting


def visible_turn(s: Scope, conversation: Conversation, seq: int) -> HistoryTurn:
    found = read(s, conversation, first=seq, last=seq, limit=1)
    if not found:
        raise NotFound("turn", str(seq), conversation_id=conversation.id)
    return found[0]


def newest_up_to(s: Scope, conversation: Conversation, last: int) -> int:
    """The highest sequence number of the current history, up to ``last``; 0 if it is empty."""
    for segment in segments(s, conversation):
        top = min(last, segment.last)
        (newest,) = s.one(NEWEST_UP_TO, id=segment.id, last=top, revision=segment.revision) or (None,)
        if newest is not None:
            return int(newest)
        # a fork is always made at a turn that exists, so there is no need to look further back
        if segment.inherits == segment.fork_seq <= top:
            return segment.fork_seq
    return 0


def first_visible_after(s: Scope, conversation: Conversation, keep: int) -> int | None:
    """The lowest sequence number above ``keep`` in the current history."""
    lowest: int | None = None
    for segment in segments(s, conversation):
        found = s.one(FIRST_AFTER, id=segment.id, keep=keep, last=segment.last, revision=segment.revision)
        (first,) = found or (None,)
        if first is not None:
            lowest = first if lowest is None else min(lowest, first)
    return lowest


def _record(s: Scope, conversation: Conversation, kind: ChangeKind, first: int, last: int) -> Conversation:
    """Append to the change log; the conversation as it is afterwards."""
    revision = conversation.revision + 1
    s.run(SET_REVISION, id=conversation.id, revision=revision, generation=conversation.generation)
    s.run(
        HISTORY_CHANGES.insert, conversation_id=conversation.id, revision=revision, kind=kind.value,
        first_seq=first, last_seq=last, at=s.now,
    )  # fmt: skip
    return get(s, conversation.id)


def fork(s: Scope, parent_id: str, child_id: SessionId, at: int | None, name: str | None) -> Session:
    """The parent may be open or final, and is not changed. Idempotent by the child's id."""
    row = s.one(sessions.GET, id=parent_id)
    if row is None:
        raise NotFound("session", parent_id)
    parent = sessions.read_session(row, s.where)
    conversation = get(s, parent.conversation_id, lock=True)
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
    insertion = sessions.Insertion(new, child_conversation, metadata, Phase.INITIALIZING, parent.id)
    child = sessions.insert(s, insertion)
    provider_sessions.copy_pointers(s, parent.id, child.id, seq)
    approvals.copy_tools(s, parent.id, child.id)
    record_deed(s, child.id, "fork", seq)
    return child


def _fork_seq(s: Scope, conversation: Conversation, at: int | None) -> int:
    """What is forked must stand still: no open turn at or below the fork point."""
    (first_open,) = s.one(FIRST_OPEN, id=conversation.id) or (None,)
    if at is not None:
        if at != newest_up_to(s, conversation, at):
            raise NotFound("turn", str(at), conversation_id=conversation.id)
        if first_open is not None and at >= first_open:
            raise Conflict(f"turn {first_open} is still open: fork at an earlier one", seq=first_open)
        return at
    below = LAST_SEQ if first_open is None else first_open - 1
    return newest_up_to(s, conversation, below)
