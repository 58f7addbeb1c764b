"""Owns reading the past of a conversation a page at a time: turns with their texts, attempts and tool calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from holdfast.domain.approvals import ApprovalStatus
from holdfast.domain.conversations import HistoryTurn, SeenTurns
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.events import Event, EventKind
from holdfast.domain.records import record
from holdfast.domain.turns import AttemptStatus, AttemptSummary, PastRequest, RecordedTurn, WithheldCall
from holdfast.errors import Conflict
from holdfast.store.driver import Row
from holdfast.store.sql import attempts, codec, history
from holdfast.store.sql.history import LAST_SEQ, Segment, Texts
from holdfast.store.sql.rows import Rows, computed, cut, part, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import APPROVALS, ATTEMPTS, EVENTS, FLAG

Spans = Sequence[tuple[int, int]]

#: turns of a page
MOST_TURNS: Final = 1000
#: tool calls and results of a turn that is too long for a page
MOST_CALLS: Final = 1000
#: of a page; only the texts of a single turn may be longer
PAGE_CHARACTERS: Final = 512 * 1024
#: what an event takes on the way besides its data
_EVENT_CHARACTERS: Final = 100
#: longer than any text
_WHOLE_TEXT: Final = 2**31 - 1

#: ranges of turns that one statement reads: a session may have missed every second turn
_RANGES: Final = "abcdefgh"
_EMPTY_RANGE: Final = (1, 0)


def _within(column: str) -> str:
    ranges = " OR ".join(f"{column} >= :first_{n} AND {column} <= :last_{n}" for n in _RANGES)
    return f"{column} >= :first AND {column} <= :last AND ({ranges})"


_SUMMARIES = Rows(
    ATTEMPTS,
    AttemptSummary,
    "attempt {number}",
    status=AttemptStatus,
    kind=part(DecisionKind, "decision"),
    reason=Reason,
    failure=part(codec.decode_failure, "failure_class", "error"),
)
_ATTEMPT_SEQ = ATTEMPTS.pick("seq")
_WITHHELD = Rows(
    APPROVALS,
    WithheldCall,
    "{id}",
    alias="p",
    approval_id=part(None, "id"),
    status=ApprovalStatus,
    is_used=computed("p.used_at IS NOT NULL", FLAG, bool),
)
_WITHHELD_SEQ = APPROVALS.pick("session_id", "seq").of("p")
_EVENT_SEQ = EVENTS.pick("seq")

TURNS_OF_SPANS = f"""{history.IN_HISTORY}
    AND {_within("t.seq")}
    AND (:unsent OR {history.WAS_SENT})
ORDER BY t.seq DESC LIMIT :limit"""
TEXT_SIZES = f"""
SELECT seq, SUM(LENGTH(text)) FROM messages
WHERE workspace = :ws AND conversation_id = :id AND {_within("seq")} AND revision <= :revision
GROUP BY seq"""
TEXTS = f"""
SELECT seq, role, revision, SUBSTR(text, 1, CAST(:characters AS INTEGER)) FROM messages
WHERE workspace = :ws AND conversation_id = :id AND {_within("seq")} AND revision <= :revision
ORDER BY seq, role, revision"""
ATTEMPTS_OF_TURNS = f"""
SELECT {(_ATTEMPT_SEQ + _SUMMARIES).sql} FROM attempts
WHERE workspace = :ws AND conversation_id = :id AND {_within("seq")}
ORDER BY seq, number"""
_IS_CALL = "kind IN ('tool_call', 'tool_result')"
_BEFORE = "(attempt < :attempt OR (attempt = :attempt AND number < :number))"
CALL_SIZES = f"""
SELECT seq, COUNT(*), SUM(LENGTH(data)), SUM(CASE kind WHEN 'tool_call' THEN 1 ELSE 0 END) FROM events
WHERE workspace = :ws AND conversation_id = :id AND {_within("seq")} AND {_IS_CALL} AND {_BEFORE}
GROUP BY seq"""
NEWEST_CALL_SIZES = f"""
SELECT attempt, number, LENGTH(data) FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND {_IS_CALL} AND {_BEFORE}
ORDER BY attempt DESC, number DESC LIMIT :limit"""
CALLS = f"""
SELECT {(_EVENT_SEQ + attempts.EVENT).sql} FROM events
WHERE workspace = :ws AND conversation_id = :id AND {_within("seq")} AND {_IS_CALL} AND {_BEFORE}
    AND (attempt > :from_attempt OR (attempt = :from_attempt AND number >= :from_number))
ORDER BY seq, attempt, number"""
WITHHELD = f"""
SELECT {(_WITHHELD_SEQ + _WITHHELD).sql}
FROM sessions s INDEXED BY sessions_by_conversation
JOIN approvals p INDEXED BY approvals_of_sessions ON p.workspace = s.workspace AND p.session_id = s.id
WHERE s.workspace = :ws AND s.conversation_id = :id AND {_within("p.seq")} AND p.call_id IS NOT NULL
ORDER BY p.requested_at, p.id"""

#: behind every event
_NEWEST: Final = (LAST_SEQ, LAST_SEQ)


@record
class _CallSize:
    """The calls and results of one turn."""

    events: int = 0
    characters: int = 0
    calls: int = 0

    @property
    def size(self) -> int:
        return self.characters + self.events * _EVENT_CHARACTERS

    @property
    def is_too_long(self) -> bool:
        """For a page of its own."""
        return self.size > PAGE_CHARACTERS or self.events > MOST_CALLS


_NO_CALLS: Final = _CallSize()


def read(s: Scope, conversation_id: str, revision: int, wanted: PastRequest) -> tuple[RecordedTurn, ...]:
    """See ``Store.read_past``."""
    conversation = history.get(s, conversation_id)
    if conversation.revision != revision:
        raise Conflict(
            f"the history of {conversation_id} has changed: it is at revision {conversation.revision}, not {revision}",
            conversation_id=conversation_id, expected=revision, actual=conversation.revision,
        )  # fmt: skip
    chain = list(history.segments(s, conversation))
    spans = SeenTurns().union(SeenTurns(wanted.spans)).ranges  # sorted, and without overlaps
    characters = wanted.characters
    fit = PAGE_CHARACTERS // (2 * characters) or 1 if characters else MOST_TURNS
    rows = _turns(s, chain, spans, min(wanted.limit, MOST_TURNS, fit), unsent=wanted.unsent)
    page = _Page(s, chain, rows, wanted.before or _NEWEST)
    page.cut_to_fit(with_texts=characters is None, with_calls=wanted.calls)
    texts = page.texts(_WHOLE_TEXT if characters is None else min(characters, _WHOLE_TEXT))
    if wanted.calls:
        page.read_record()
    return tuple(
        page.turn(segment, history.read_turn(s, conversation, row, texts)) for segment, row in page.rows
    )


def _turns(
    s: Scope, chain: Sequence[Segment], spans: Spans, limit: int, *, unsent: bool
) -> list[tuple[Segment, Row]]:
    """Newest first."""
    rows: list[tuple[Segment, Row]] = []
    for segment, first, last in history.windows(chain, 1, LAST_SEQ):
        for batch in reversed([*_batches(_clipped(spans, first, last))]):
            left = limit - len(rows)
            if left:
                found = s.all(
                    TURNS_OF_SPANS,
                    id=segment.id,
                    revision=segment.revision,
                    limit=left,
                    unsent=unsent,
                    **batch,
                )
                rows += [(segment, row) for row in found]
    return rows


class _Page:
    """The turns of one page, newest first, and statements that read something of all of them."""

    def __init__(
        self, s: Scope, chain: Sequence[Segment], rows: list[tuple[Segment, Row]], before: tuple[int, int]
    ) -> None:
        self._s = s
        self._chain = chain
        self._before = {"attempt": before[0], "number": before[1]}
        self.rows = rows
        self._attempts: dict[int, tuple[AttemptSummary, ...]] = {}
        self._call_sizes: dict[int, _CallSize] = {}
        self._calls: dict[int, tuple[tuple[int, Event], ...]] = {}
        self._withheld: dict[int, list[WithheldCall]] = defaultdict(list)

    def cut_to_fit(self, *, with_texts: bool, with_calls: bool) -> None:
        """Drop the oldest turns until the rest fits. One turn stays, and stays alone if it has too many calls."""
        texts = self._text_sizes() if with_texts else Counter()
        self._call_sizes = self._sizes_of_calls() if with_calls else {}
        size = 0
        for place, (_, row) in enumerate(self.rows):
            calls = self._call_sizes.get(row[0], _NO_CALLS)
            size += texts[row[0]] + calls.size
            if place and (size > PAGE_CHARACTERS or calls.is_too_long):
                del self.rows[place:]
                return

    def texts(self, characters: int) -> Texts:
        """The beginning of the newest text of each part; the edits in a fork take precedence over its source."""
        texts: Texts = {}
        for segment, batch in self._over_all():
            rows = self._s.all(
                TEXTS, id=segment.id, revision=segment.revision, characters=characters, **batch
            )
            history.lay_over(self._s, segment, rows, texts)
        return texts

    def _text_sizes(self) -> Counter[int]:
        sizes: Counter[int] = Counter()
        for segment, batch in self._over_all():
            sizes.update(dict(self._s.all(TEXT_SIZES, id=segment.id, revision=segment.revision, **batch)))
        return sizes

    def _sizes_of_calls(self) -> dict[int, _CallSize]:
        return {
            seq: _CallSize(*size)
            for segment_id, batch in self._where_they_ran()
            for seq, *size in self._s.all(CALL_SIZES, id=segment_id, **batch, **self._before)
        }

    def read_record(self) -> None:
        """The attempts and calls of the turns, and why a call was not made."""
        s = self._s
        for segment_id, batch in self._where_they_ran():
            for seq, summaries in groupby(s.all(ATTEMPTS_OF_TURNS, id=segment_id, **batch), itemgetter(0)):
                self._attempts[seq] = tuple(_SUMMARIES.read(s.where, row[1:]) for row in summaries)
            if not self._call_sizes:
                continue
            called = s.all(CALLS, id=segment_id, **batch, **self._before, **self._begin(segment_id))
            for seq, events in groupby(called, itemgetter(0)):
                self._calls[seq] = tuple(attempts.read_event(s, seq, row[1:]) for row in events)
            if called:
                self._read_withheld(segment_id, batch)

    def turn(self, segment: Segment, turn: HistoryTurn) -> RecordedTurn:
        seq = turn.seq
        calls = self._calls.get(seq, ())
        in_all = self._call_sizes.get(seq, _NO_CALLS).calls
        older = in_all - sum(event.kind is EventKind.TOOL_CALL for _, event in calls)
        withheld = tuple(self._withheld[seq]) if seq in self._withheld else ()
        return RecordedTurn(turn, segment.id, self._attempts.get(seq, ()), calls, older, withheld)

    def _begin(self, segment_id: str) -> dict[str, int]:
        """The first event of the page: only a turn that is alone on it can have too many."""
        (_, row), from_ = self.rows[0], (0, 0)
        if self._call_sizes.get(row[0], _NO_CALLS).is_too_long:
            room = PAGE_CHARACTERS
            newest = self._s.all(
                NEWEST_CALL_SIZES, id=segment_id, seq=row[0], limit=MOST_CALLS, **self._before
            )
            for attempt, number, size in newest:
                room -= size + _EVENT_CHARACTERS
                if room < 0 and from_ != (0, 0):
                    break
                from_ = attempt, number
        return {"from_attempt": from_[0], "from_number": from_[1]}

    def _read_withheld(self, segment_id: str, batch: dict[str, int]) -> None:
        sessions = {row[0]: history.TURN.column(row, "session_id") for _, row in self.rows}
        for row in self._s.all(WITHHELD, id=segment_id, **batch):
            (session_id, seq), own, _ = cut(row, _WITHHELD_SEQ, _WITHHELD)
            if sessions.get(seq) == session_id:
                self._withheld[seq] += readable(partial(_WITHHELD.read, self._s.where), [own])

    def _over_all(self) -> Iterator[tuple[Segment, dict[str, int]]]:
        """For what a fork may have of turns that it inherits: the oldest conversation first."""
        spans = _ranges(row[0] for _, row in self.rows)
        for segment in reversed(self._chain):
            for batch in _batches(_clipped(spans, 1, segment.last)):
                yield segment, batch

    def _where_they_ran(self) -> Iterator[tuple[str, dict[str, int]]]:
        """For what lies in the conversation of a turn only."""
        for segment_id, rows in groupby(self.rows, lambda each: each[0].id):
            spans = _ranges(row[0] for _, row in rows)
            for batch in _batches(spans):
                yield segment_id, batch


def _ranges(newest_first: Iterable[int]) -> Spans:
    return SeenTurns().union(SeenTurns(tuple((seq, seq) for seq in newest_first))).ranges


def _clipped(spans: Spans, first: int, last: int) -> Spans:
    return [(max(a, first), min(b, last)) for a, b in spans if a <= last and b >= first]


def _batches(spans: Spans) -> Iterator[dict[str, int]]:
    """The parameters of ``_within``, for as many statements as the spans need."""
    for start in range(0, len(spans), len(_RANGES)):
        batch = spans[start : start + len(_RANGES)]
        given = {"first": batch[0][0], "last": batch[-1][1]}
        for name, (first, last) in zip(_RANGES, [*batch, *[_EMPTY_RANGE] * len(_RANGES)], strict=False):
            given |= {f"first_{name}": first, f"last_{name}": last}
        yield given
