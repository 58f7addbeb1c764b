"""Owns taking sessions of providers in, many at a time, and the rows of the sources that they were read from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

from holdfast.clock import Instant
from holdfast.domain.conversations import Conversation, SeenTurns
from holdfast.domain.ids import SessionId, conversation_of
from holdfast.domain.imports import Imported, KnownSource, NotTaken, SessionImport
from holdfast.domain.metadata import encode_metadata
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Pointer
from holdfast.domain.records import replace
from holdfast.domain.turns import NewTurn, OutsideTurn, TurnStatus
from holdfast.domain.usage import NO_USAGE, check_usage
from holdfast.errors import InvalidInput
from holdfast.store.sql import attempts, history, provider_sessions, runtimes, search, sessions, turns
from holdfast.store.sql.rows import Rows, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import begin_conversation
from holdfast.store.sql.tables import EVENTS, MESSAGES, SOURCES, TURNS, is_instant

ROWS = Rows(SOURCES, KnownSource, "{place}")

KEEP_SOURCE = SOURCES.upsert("machine", "provider", "place")
SOURCES_OF_HOME = f"""
SELECT {ROWS.sql} FROM sources
WHERE workspace = :ws AND machine = :machine AND provider = :provider AND home = :home AND place > :after
ORDER BY place LIMIT :limit"""
TOMBSTONE = """
SELECT 1 FROM tombstones WHERE workspace = :ws AND provider = :provider AND provider_session_id = :id"""
TAKE_BACK = """
DELETE FROM tombstones WHERE workspace = :ws AND provider = :provider AND provider_session_id = :id"""
PARENT = """
SELECT k.session_id FROM provider_sessions k
JOIN sessions o ON o.workspace = k.workspace AND o.id = k.session_id
WHERE k.workspace = :ws AND k.provider = :provider AND k.id = :id"""
CLAIM_CHILDREN = """
UPDATE sessions SET parent_session_id = :session_id
WHERE workspace = :ws AND parent_session_id IS NULL AND imported_at IS NOT NULL AND id <> :session_id
    AND id IN (SELECT session_id FROM provider_sessions INDEXED BY provider_sessions_by_source
        WHERE workspace = :ws AND provider = :provider AND forked_from = :id)"""
LEAVE_BRANCH = """
UPDATE turns SET dropped = 0
WHERE workspace = :ws AND session_id = :session_id AND enqueue_key = :key
RETURNING seq"""
ENDED = """
UPDATE turns SET ended_at = :ended_at
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND ended_at < :ended_at"""


def import_sessions(
    s: Scope, batch: Sequence[SessionImport], sources: Sequence[KnownSource]
) -> tuple[Imported, ...]:
    """Asks the same question about all sessions at once: a network would make one after the other wait."""
    for one in batch:
        _check(one)
    # a long session comes in several calls, and its source with the last one: from then on its turns are complete
    whole = frozenset(source.session_id for source in sources if source.session_id is not None)
    answers = [answer for part in _distinct(batch) for answer in _import(s, part, whole)]
    refused = {one.new.id for one, answer in zip(batch, answers, strict=True) if answer.reason is not None}
    s.run_many(KEEP_SOURCE, [ROWS.values(source) for source in sources if source.session_id not in refused])
    return tuple(answers)


def _distinct(batch: Sequence[SessionImport]) -> Iterator[list[SessionImport]]:
    """Split the batch so that no part names a session twice: each part sees what the one before it has written."""
    part: list[SessionImport] = []
    seen: set[object] = set()
    for one in batch:
        names = {one.new.id, (_provider(one), one.provider_session_id)}
        if names & seen:
            yield part
            part, seen = [], set()
        part.append(one)
        seen |= names
    yield part


def _provider(one: SessionImport) -> str:
    return one.new.provider or one.new.agent


def _key(one: SessionImport) -> dict[str, object]:
    return {"provider": _provider(one), "id": one.provider_session_id}


def sources(
    s: Scope, machine: str, provider: str, home: str, after: str, limit: int
) -> tuple[KnownSource, ...]:
    rows = s.all(SOURCES_OF_HOME, machine=machine, provider=provider, home=home, after=after, limit=limit)
    return tuple(readable(lambda row: ROWS.read(s.where, row), rows))


def _import(s: Scope, batch: Sequence[SessionImport], whole: Container[SessionId]) -> list[Imported]:
    refusals = _refusals(s, batch)
    taken = [one for one, refusal in zip(batch, refusals, strict=True) if refusal is None]
    added = iter(_take(s, taken, whole))
    return [Imported(one.new.id, next(added)) if refusal is None else refusal
            for one, refusal in zip(batch, refusals, strict=True)]  # fmt: skip


def _take(s: Scope, batch: Sequence[SessionImport], whole: Container[SessionId]) -> list[int]:
    """How many turns each of them has got."""
    added, new, written = [], [], []
    for runtime_id in {one.pointer.runtime_id for one in batch if one.pointer is not None}:
        if runtime_id is not None:
            runtimes.get(s, runtime_id)
    for one, (conversation, is_new) in zip(batch, _conversations(s, batch), strict=True):
        writer = _Turns(s, one, conversation, is_new=is_new)
        writer.write()
        added.append(writer.added)
        if one.pointer is not None:
            _point(s, one.pointer, conversation, writer, is_new=is_new)
        if one.usage != NO_USAGE:
            provider_sessions.add_usage(s, _provider(one), one.provider_session_id, one.usage)
        if one.counted is not None:
            provider_sessions.count_from(s, _provider(one), one.provider_session_id, one.counted)
        if is_new:
            new.append(one)
        if one.new.id in whole:
            written.append(writer)
    search.add_written(
        s,
        [(one.conversation_id, one.next_seq, one.documents()) for one in written if one.is_new],
        [one.conversation_id for one in written if not one.is_new],
    )
    # a parent may come before its children, or after them
    s.run_many(CLAIM_CHILDREN, [{"session_id": one.new.id, **_key(one)} for one in new])
    return added


def _point(s: Scope, pointer: Pointer, conversation: Conversation, writer: _Turns, *, is_new: bool) -> None:
    before = None if is_new else provider_sessions.pointer(s, pointer.session_id, pointer.provider)
    seen = writer.seen(before.seen if before is not None else None)
    provider_sessions.write_pointer(
        s, replace(pointer, seen=seen, epoch=conversation.revision, generation=conversation.generation)
    )


def _check(one: SessionImport) -> None:
    if not one.provider_session_id:
        raise InvalidInput("provider_session_id", "must not be empty")
    if one.new.began_at is None:
        raise InvalidInput("began_at", "an imported session has begun at some time")
    check_usage(one.usage)
    if one.counted is not None:
        check_usage(one.counted)
    instants = [one.new.began_at, *(at for turn in one.turns for at in (turn.began_at, turn.ended_at))]
    if any(at is not None and not is_instant(at) for at in instants):
        raise InvalidInput("began_at", "is not an instant")


def _refusals(s: Scope, batch: Sequence[SessionImport]) -> list[Imported | None]:
    """Locks the provider sessions that nothing speaks against: two imports at once make one session of each."""
    refused = _owned(s, batch)
    free = [one for one in batch if one.new.id not in refused]
    s.run_many(TAKE_BACK, [_key(one) for one in free if one.takes_back])
    asked = [one for one in free if not one.takes_back]
    for one, found in zip(asked, s.all_many(TOMBSTONE, [_key(one) for one in asked]), strict=True):
        if found:
            refused[one.new.id] = Imported(None, reason=NotTaken.REMOVED)
    # sorted: whoever locks them waits for nobody in a circle
    free = sorted(
        (one for one in free if one.new.id not in refused),
        key=lambda one: (_provider(one), one.provider_session_id),
    )
    for one in free:
        provider_sessions.know(s, _provider(one), one.provider_session_id, one.new.id, one.comes_from)
    names = [(_provider(one), one.provider_session_id) for one in free]
    for one, is_retired in zip(free, provider_sessions.are_retired(s, names), strict=True):
        if is_retired:
            refused[one.new.id] = Imported(None, reason=NotTaken.RETIRED)
    refused |= _owned(s, [one for one in free if one.new.id not in refused])
    return [refused.get(one.new.id) for one in batch]


def _owned(s: Scope, batch: Sequence[SessionImport]) -> dict[SessionId, Imported]:
    wanted = [(_provider(one), one.provider_session_id, one.new.id) for one in batch]
    refused = {}
    for one, owner in zip(batch, provider_sessions.find_owners(s, wanted), strict=True):
        if owner is not None and owner.is_elsewhere:
            refused[one.new.id] = Imported(None, reason=NotTaken.ELSEWHERE)
        elif owner is not None:
            refused[one.new.id] = Imported(SessionId(owner.session_id), reason=NotTaken.OWNED)
    return refused


def _conversations(s: Scope, batch: Sequence[SessionImport]) -> list[tuple[Conversation, bool]]:
    """Return each session's conversation, and whether the session is new. New sessions are created here."""
    known = s.all_many(sessions.GET, [{"id": one.new.id} for one in batch])
    new = [one for one, found in zip(batch, known, strict=True) if not found]
    made = iter(_begin(s, new))
    conversations = []
    for one, found in zip(batch, known, strict=True):
        if found:
            sessions.require_open(s, one.new.id)
            conversations.append((history.lock_of_session(s, one.new.id), False))
        else:
            conversations.append((next(made), True))
    return conversations


def _begin(s: Scope, batch: Sequence[SessionImport]) -> list[Conversation]:
    asked = [{"provider": _provider(one), "id": one.comes_from} for one in batch]
    parents = s.all_many(PARENT, asked) if any(one.comes_from for one in batch) else [[]] * len(batch)
    ids = [conversation_of(one.new.id) for one in batch]
    for conversation_id in ids:
        begin_conversation(s, conversation_id)
    sessions.insert_many(
        s,
        [
            sessions.Insertion(
                one.new, conversation_id, encode_metadata(one.new.metadata),
                Phase.INVESTIGATING if one.turns else Phase.INITIALIZING,  # as after a first turn that was run here
                parent[0][0] if parent else None,
            )
            for one, conversation_id, parent in zip(batch, ids, parents, strict=True)
        ],
    )  # fmt: skip
    return history.get_many(s, ids)


class _Turns:
    """Writes the turns of one session, with a statement for each table."""

    def __init__(self, s: Scope, one: SessionImport, conversation: Conversation, *, is_new: bool) -> None:
        self._s = s
        self._one = one
        self._conversation = conversation
        self.is_new = is_new
        self._left: set[int] = set()  #: numbers of dead turns
        self._first = self._next = conversation.next_seq
        self._rows: list[dict[str, object]] = []
        self._messages: list[dict[str, object]] = []
        self._events: list[dict[str, object]] = []

    @property
    def conversation_id(self) -> str:
        return self._conversation.id

    @property
    def next_seq(self) -> int:
        return self._next

    @property
    def added(self) -> int:
        return self._next - self._first

    def documents(self) -> Iterator[search.Document]:
        """The words of the turns that were added and belong to the history."""
        texts = {
            (row["seq"], row["role"]): row["text"] for row in reversed(self._messages)
        }  # the first counts
        events = defaultdict(list)
        for event in self._events:
            events[event["seq"]].append((str(event["kind"]), str(event["data"])))
        for row in self._rows:
            seq = row["seq"]
            if seq not in self._left:
                yield search.document_of(
                    (self.conversation_id, seq, row["session_id"], row["provider"], row["ended_at"], row["status"],
                     texts.get((seq, "prompt")), texts.get((seq, "response"))),
                    events[seq],
                )  # fmt: skip

    def seen(self, before: SeenTurns | None) -> SeenTurns:
        new = SeenTurns(((self._first, self._next - 1),)) if self.added else SeenTurns()
        seen = new if before is None else before.union(new)
        return (
            seen.without(SeenTurns(tuple((seq, seq) for seq in sorted(self._left)))) if self._left else seen
        )

    def write(self) -> None:
        s, one, conversation = self._s, self._one, self._conversation
        numbers = self._known_numbers()
        for turn in one.turns:
            known = numbers.get(turn.key)
            if known is None:
                numbers[turn.key] = self._next
                self._add(turn)
            else:
                self._add_to(known, turn)
        if self.added:
            s.run(history.SET_NEXT_SEQ, id=conversation.id, next_seq=self._next)
        s.run_many(TURNS.insert, self._rows)
        s.run_many(MESSAGES.insert_once, self._messages)
        s.run_many(EVENTS.insert_once, self._events)
        dead = [{"session_id": one.new.id, "key": key} for key in sorted(one.dead)]
        self._left = {seq for rows in s.all_many(LEAVE_BRANCH, dead) for (seq,) in rows}
        used, last = one.usage, max(_ends(one.turns), default=None)
        if last is not None:
            s.run(
                turns.TOUCH, session_id=one.new.id, now=last, input=used.input_tokens,
                cached=used.cached_input_tokens, output=used.output_tokens, cost=used.cost_usd,
            )  # fmt: skip

    def _known_numbers(self) -> dict[str, int]:
        """Of turns that the session has already, by their keys."""
        keys = [] if self.is_new else list(dict.fromkeys(turn.key for turn in self._one.turns))
        asked = [{"session_id": self._one.new.id, "key": key} for key in keys]
        found = zip(keys, self._s.all_many(turns.BY_KEY, asked), strict=True)
        return {key: int(rows[0][0]) for key, rows in found if rows}

    def _add(self, given: OutsideTurn) -> None:
        s, one, seq = self._s, self._one, self._next
        self._next += 1
        began_at = given.began_at or one.new.began_at or s.now
        new = NewTurn(given.prompt, one.new.provider or one.new.agent, key=given.key)
        turn = turns.make(
            self._conversation, seq, one.new.id, new, now=began_at, status=TurnStatus.DONE,
        )  # fmt: skip
        turn = replace(turn, ended_at=max(began_at, given.ended_at or began_at))
        self._rows.append({**turns.ROWS.values(turn), "enqueue_key": given.key})
        self._say(seq, "prompt", given.prompt)
        self._add_to(seq, given, is_new=True)

    def _add_to(self, seq: int, given: OutsideTurn, *, is_new: bool = False) -> None:
        if given.response is not None:
            self._say(seq, "response", history.kept_response(given.response))
        if not is_new and given.ended_at is not None:
            self._s.run(ENDED, id=self._conversation.id, seq=seq, ended_at=given.ended_at)
        self._events += attempts.event_rows(self._conversation.id, seq, attempts.OUTSIDE, given.events)

    def _say(self, seq: int, role: str, text: str) -> None:
        conversation = self._conversation
        self._messages.append(
            {"conversation_id": conversation.id, "seq": seq, "role": role, "revision": conversation.revision,
             "text": text}
        )  # fmt: skip


def _ends(turns: Iterable[OutsideTurn]) -> Iterable[Instant]:
    return (at for turn in turns if (at := turn.ended_at or turn.began_at) is not None)
