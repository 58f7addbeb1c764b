"""Owns a session as people read it: the walk over its turns, a page at a time, and the words for what became of each.

``holdfast log`` and every form of ``holdfast export`` show what this walk yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

from holdfast.clock import Instant, seconds_between
from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.events import Event, EventKind
from holdfast.domain.ids import ConversationId
from holdfast.domain.records import record
from holdfast.domain.telling.tool_calls import CallOutcome, CallPairs, ToolCall
from holdfast.domain.telling.transcript import no_answer
from holdfast.domain.turns import (
    Attempt,
    AttemptCause,
    AttemptStatus,
    PastRequest,
    RecordedTurn,
    Turn,
    TurnStatus,
    WithheldCall,
)
from holdfast.domain.usage import Usage, cost_words
from holdfast.engine.past import as_of_one_revision, why_not_made
from holdfast.engine.session_log import AuditEntry, audit_trail, is_over
from holdfast.errors import NotFound
from holdfast.store.contract import Store
from holdfast.store.pages import Pace

_EVENTS = 64  #: that are read at a time; one may have 32 KiB
_OUTLINES = 1000  #: turns that are counted at a time, without their texts
_APPROVALS = 500
#: of what an agent said between its calls, for comparing it with the answer; no answer is longer
_MOST_SAID = 2 * 1024 * 1024

#: how an instant is written: in the local time of a terminal, in UTC in a file
When = Callable[[Instant], str]


# --- what the walk yields ---


@record
class ReadTurn:
    """One turn of the session's history, or one that left it."""

    turn: HistoryTurn
    conversation_id: ConversationId  #: that it was recorded in
    is_inherited: bool = False  #: from the session that this one was forked from
    is_dropped: bool = False  #: it was taken out of the history: agents are not told of it
    is_of_other: bool = False  #: another session in the same conversation made it

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader should know before reading it, in a few words each."""
        turn = self.turn
        marks = (
            (f"agent {turn.agent}", self.is_of_other),
            ("from before the fork", self.is_inherited),
            ("dropped from the history", self.is_dropped),
            ("edited", turn.is_edited),
            (f"repeats turn {turn.retry_of}", turn.retry_of is not None),
        )
        return tuple(words for words, is_true in marks if is_true)


@record
class TurnBegins:
    """Its prompt is shown here."""

    read: ReadTurn


@record
class AttemptBegins:
    attempt: Attempt
    before: Attempt | None  #: the attempt before it

    @property
    def words(self) -> str:
        how = _HOW[self.attempt.cause]
        if self.before is None or self.attempt.cause is AttemptCause.FIRST:
            return f"started fresh: {self.attempt.decision.reason}"
        return f"attempt {self.before.number} {_ended(self.before)}; attempt {self.attempt.number} {how}"


@record
class Says:
    """What the agent said between its tool calls."""

    text: str


@record
class CallEnds:
    call: ToolCall

    @property
    def mark(self) -> str:
        return _MARKS[self.call.outcome]

    @property
    def note(self) -> str:
        """How it ended, unless it ended well: for an error, the first line of it."""
        match self.call.outcome:
            case CallOutcome.OK:
                return ""
            case CallOutcome.ERROR:
                return next((line for line in self.call.output[:4000].splitlines() if line.strip()), "failed")
            case CallOutcome.NOT_RUN:
                return f"not run: {self.call.output}"
            case CallOutcome.NOT_REPORTED:
                return "its end was not reported"
            case CallOutcome.IN_FLIGHT:
                return "its end is not known"


@record
class Notes:
    """What the agent's program noted: a retry, a fallback model, a warning."""

    text: str


@record
class Answers:
    text: str


@record
class TurnEnds:
    read: ReadTurn  #: as it is at its end
    attempts: tuple[Attempt, ...]
    approval: Approval | None = None  #: that it waits for
    is_cut_off: bool = False  #: what ran it is gone

    def words(self, when: When) -> str:
        """What became of the turn; "" if it was simply answered."""
        turn = self.read.turn
        match turn.status:
            case TurnStatus.DONE:
                return "" if turn.response is not None else _lowered(no_answer(turn))
            case TurnStatus.FAILED:
                return _failed(turn)
            case TurnStatus.CANCELLED:
                return "cancelled"
            case TurnStatus.CLAIMED | TurnStatus.RUNNING:
                return "interrupted: what ran it is gone" if self.is_cut_off else "running"
            case TurnStatus.QUEUED:
                what = "in the queue again" if turn.attempts else "in the queue, not begun yet"
                return what if turn.not_before is None else f"{what}; not before {when(turn.not_before)}"
            case TurnStatus.WAITING:
                return _waits(self.approval)

    @property
    def spent(self) -> str:
        """How long it ran and what it used; "" if that is not on record."""
        ended = [attempt for attempt in self.attempts if attempt.ended_at is not None]
        if not ended:
            return ""
        seconds = sum(seconds_between(each.started_at, each.ended_at or each.started_at) for each in ended)
        return f"{seconds:,.0f} s{_used(self.usage)}"

    @property
    def usage(self) -> Usage:
        return sum((attempt.usage for attempt in self.attempts), Usage())


#: something that happened to a delegated session between its turns
Piece = TurnBegins | AttemptBegins | Says | CallEnds | Notes | Answers | TurnEnds | AuditEntry

_MARKS = {
    CallOutcome.OK: "✓",
    CallOutcome.ERROR: "✗",
    CallOutcome.NOT_RUN: "–",
    CallOutcome.NOT_REPORTED: "?",
    CallOutcome.IN_FLIGHT: "?",
}
_HOW = {
    AttemptCause.FIRST: "began",
    AttemptCause.RETRY: "tried again",
    AttemptCause.RECOVERY: "took over",
    AttemptCause.FALLBACK: "started fresh",
    AttemptCause.APPROVAL: "continued after the answer",
}


def _ended(attempt: Attempt) -> str:
    match attempt.status:
        case AttemptStatus.INTERRUPTED:
            return "was interrupted"
        case AttemptStatus.PUT_BACK:
            return "went back into the queue"
        case AttemptStatus.DEFERRED:
            return "waited for an approval"
        case AttemptStatus.FELL_BACK:
            return f"could not continue the agent's session{_why(attempt)}"
        case _:
            return f"ended as {attempt.status}{_why(attempt)}"


def _why(attempt: Attempt) -> str:
    failure = attempt.failure
    return "" if failure is None else f" ({failure.failure_class}: {failure.message})"


def _failed(turn: HistoryTurn) -> str:
    failure = turn.failure
    if failure is None:
        return "failed"
    if failure.then.is_cut_off:
        return f"interrupted: {failure.message}"
    if not failure.then.was_begun:
        return f"not begun, {failure.failure_class}: {failure.message}"
    return f"failed, {failure.failure_class}: {failure.message}"


def _waits(asked: Approval | None) -> str:
    return "waits for an approval" if asked is None else f"waits for approval {asked.id}: {asked.what}"


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def _used(usage: Usage) -> str:
    tokens = f", {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return tokens + (f", {cost_words(usage.cost_usd)}" if usage.cost_usd else "")


# --- the walk ---


class Reader:
    """Reads one session. Holds one page of turns and one page of events at a time, however long the session is.

    ``is_cut_off``: nobody works on its open turn any more, as only the machine that ran it can tell.
    """

    def __init__(self, store: Store, session_id: str, *, is_cut_off: bool = False) -> None:
        self.store = store
        self.is_cut_off = is_cut_off
        self.session = store.get_session(session_id)
        self._telling: _Telling | None = None  #: of the turn that is followed, while nothing is new

    def conversation(self) -> Conversation:
        return self.store.get_conversation(self.session.conversation_id)

    def facts(self, when: When) -> list[tuple[str, str]]:
        """What the session is, for the head of a page."""
        session, point = self.session, self.conversation().fork_point
        facts = [("session", session.id), ("name", session.name), ("agent", session.agent)]
        facts += [("provider", session.provider), ("purpose", session.purpose)]
        facts.append(("began", when(session.created_at)))
        if session.finalized_at is not None:
            facts.append(("closed", f"{when(session.finalized_at)}, {session.phase}"))
        if point is not None:
            source = session.parent_session_id or point.conversation_id
            facts.append(("forked from", f"{source} at turn {point.seq}"))
        facts.append(("summary", session.summary))
        return [(name, value) for name, value in facts if value]

    def turns(self, first: int = 1, last: int | None = None) -> Iterator[ReadTurn]:
        """The turns from ``first`` to ``last``, oldest first: the history, and the session's own turns that left it."""
        pace = Pace()
        while True:
            newest = self.conversation().next_seq - 1
            newest = newest if last is None else min(newest, last)
            if first > newest:
                return
            until = min(newest, first + pace.size - 1)
            page = self._page(first, until)
            yield from page
            pace.adapt([read.turn for read in page])
            first = until + 1

    def turn(self, seq: int) -> ReadTurn:
        """Raises NotFound if the session has no such turn."""
        found = self._page(seq, seq)
        if not found:
            raise NotFound("turn", str(seq), session_id=self.session.id)
        return found[0]

    def first_of_newest(self, count: int) -> int:
        """The number of the turn with which the newest ``count`` turns of the history begin."""
        conversation = self.conversation()
        return as_of_one_revision(self.store, conversation, lambda now: self._first_of_newest(now, count))

    def _first_of_newest(self, conversation: Conversation, count: int) -> int:
        first = conversation.next_seq
        while count > 0 and first > 1:
            wanted = PastRequest(
                ((1, first - 1),), limit=min(count, _OUTLINES), calls=False, characters=0, unsent=True
            )
            page = self.store.read_past(conversation.id, conversation.revision, wanted)
            if not page:
                break
            first = page[-1].turn.seq
            count -= len(page)
        return first

    def _page(self, first: int, last: int) -> list[ReadTurn]:
        conversation = self.conversation()
        found = as_of_one_revision(self.store, conversation, lambda now: self._history(now, first, last))
        read = [self._read(recorded) for recorded in reversed(found)]
        left = set(range(first, last + 1)) - {recorded.turn.seq for recorded in found}
        if left:
            read += self._dropped(left)
            read.sort(key=lambda each: each.turn.seq)
        return read

    def _history(self, conversation: Conversation, first: int, last: int) -> list[RecordedTurn]:
        """Newest first."""
        found: list[RecordedTurn] = []
        while first <= last:
            wanted = PastRequest(((first, last),), limit=last - first + 1, calls=False, unsent=True)
            page = self.store.read_past(conversation.id, conversation.revision, wanted)
            if not page:
                break
            found += page
            last = page[-1].turn.seq - 1
        return found

    def _read(self, recorded: RecordedTurn) -> ReadTurn:
        turn, place = recorded.turn, recorded.conversation_id
        is_inherited = place != self.session.conversation_id
        is_of_other = not is_inherited and turn.session_id != self.session.id
        return ReadTurn(turn, place, is_inherited=is_inherited, is_of_other=is_of_other)

    def _dropped(self, seqs: set[int]) -> Iterator[ReadTurn]:
        """The session's own turns among these that left the history."""
        size = max(seqs) - min(seqs) + 1
        for turn in self.store.turns(self.session.id, after=min(seqs) - 1, limit=size):
            if turn.seq in seqs and turn.dropped is not None:
                history_turn = _as_history(turn, self.session.agent)
                yield ReadTurn(history_turn, turn.conversation_id, is_dropped=True)

    def events(self, read: ReadTurn, after: tuple[int, int] = (0, 0)) -> Iterator[tuple[int, Event]]:
        """All events of a turn that come after this pair of attempt and number, with their attempts."""
        seq = read.turn.seq
        while True:
            found = self.store.events(read.conversation_id, seq, after=after, limit=_EVENTS)
            yield from found
            if len(found) < _EVENTS:
                return
            after = (found[-1][0], found[-1][1].number)

    def attempts(self, read: ReadTurn) -> tuple[Attempt, ...]:
        return self.store.attempts(read.conversation_id, read.turn.seq) if read.turn.attempts else ()

    def walk(self, first: int = 1, last: int | None = None) -> Iterator[Piece]:
        """Everything that there is to read of the turns from ``first`` to ``last``, in order."""
        return (piece for piece in self._walk(first, last, follows=False) if piece is not None)

    def follow(self, first: int = 1, last: int | None = None) -> Iterator[Piece | None]:
        """The same, and then what is new, until the session is closed or turn ``last`` has ended.

        None: nothing is new at the moment. The caller waits before it goes on.
        """
        return self._walk(first, last, follows=True)

    def unfinished(self) -> str:
        """Of the turn that is followed: what was said since its last call, and what the agent is writing."""
        if self._telling is None:
            return ""
        partial = self.store.partial_text(self.session.id)
        is_its_own = partial is not None and partial.turn == self._telling.seq
        return self._telling.held + (partial.text if partial is not None and is_its_own else "")

    def _walk(self, first: int, last: int | None, *, follows: bool) -> Iterator[Piece | None]:
        told: set[tuple[object, ...]] = set()
        while True:
            is_end = not follows or is_over(self.store, self.session.id, last)
            for read in self.turns(first, last):
                yield from self._happened(told, read.turn.at)
                yield from self._pieces(read, follows=follows)
                first = read.turn.seq + 1
            if last is None:
                yield from self._happened(told, None)
            if is_end:
                return
            yield None

    def _happened(self, told: set[tuple[object, ...]], until: Instant | None) -> Iterator[AuditEntry]:
        """Changes of a delegated session up to this moment that were not told yet; those of its turns are told there."""
        if not self.session.is_delegated:
            return
        for entry in audit_trail(self.store, self.session.id):
            if entry.turn is None and entry.key not in told and (until is None or entry.at <= until):
                told.add(entry.key)
                yield entry

    def _pieces(self, read: ReadTurn, *, follows: bool) -> Iterator[Piece | None]:
        yield TurnBegins(read)
        telling = _Telling(self, read)
        place = (0, 0)
        # the open turns of other sessions are told as they are: this session goes on without them
        follows = follows and read.turn.session_id == self.session.id
        asked: Approval | None = None
        while True:
            status = self.store.get_turn(read.conversation_id, read.turn.seq).status if follows else None
            for attempt, event in self.events(read, place):
                place = attempt, event.number
                yield from telling.take(attempt, event)
            if status is None or not status.is_open:
                break
            if status is TurnStatus.WAITING and asked is None:
                asked = self.open_approval_of(read)
                yield Notes(_waits(asked))
            self._telling = telling
            yield None
            self._telling = None
        yield from telling.end(self.turn(read.turn.seq) if follows else read)

    def open_approval_of(self, read: ReadTurn) -> Approval | None:
        """What a turn waits for."""
        found = reversed(self.approvals_of(read))
        return next((one for one in found if one.status is ApprovalStatus.OPEN), None)

    def approvals_of(self, read: ReadTurn) -> list[Approval]:
        """The approvals that this turn has waited for, oldest first."""
        found: list[Approval] = []
        last: str | None = None
        while page := self.store.approvals(
            session_id=read.turn.session_id, open_only=False, after=last, limit=_APPROVALS
        ):
            found += [approval for approval in page if approval.seq == read.turn.seq]
            last = page[-1].id
        return found


class _Telling:
    """Turns the events of one turn into pieces.

    The text behind the last call of an attempt is held back: mostly it is the answer, which the turn has, too.
    """

    def __init__(self, reader: Reader, read: ReadTurn) -> None:
        self._reader = reader
        self._read = read
        self._attempts: tuple[Attempt, ...] | None = None
        self._attempt = 0  #: the newest one that was told of
        self._pairs = CallPairs(read.turn.seq)
        self._said: list[str] = []  #: in this attempt, before its last call
        self._said_size = 0
        self._held: list[str] = []  #: in this attempt, since its last call

    @property
    def seq(self) -> int:
        return self._read.turn.seq

    @property
    def held(self) -> str:
        return "".join(self._held)

    def take(self, attempt: int, event: Event) -> Iterator[Piece]:
        if attempt > self._attempt:
            yield from self._begin(attempt)
        match event.kind:
            case EventKind.TEXT:
                self._held.append(str(event.data.get("text", "")))
                if sum(map(len, self._held)) > _MOST_SAID:
                    yield from self._release()
            case EventKind.TOOL_CALL:
                yield from self._release()
                self._pairs.take(event)
            case EventKind.TOOL_RESULT:
                ended = self._pairs.take(event)
                if ended is not None:
                    yield CallEnds(ended)
            case EventKind.NOTICE:
                yield from self._note(event)
            case EventKind.USAGE:
                pass  # the attempts have the sum
            case _:
                assert_never(event.kind)

    def end(self, read: ReadTurn) -> Iterator[Piece]:
        """``read`` is the turn as it is at its end."""
        self._read, self._attempts = read, None
        attempts = self._known()
        if attempts and attempts[-1].number > self._attempt:
            yield from self._begin(attempts[-1].number)
        turn = read.turn
        asked = self._reader.approvals_of(read) if self._pairs.has_withheld else []
        waited = {call.call_id: why_not_made(call) for call in map(_withheld, asked) if call.call_id}
        for call in self._pairs.end_turn(waited, settled=turn.status is TurnStatus.DONE):
            yield CallEnds(call)
        yield from self._answer(turn)
        is_waiting = turn.status is TurnStatus.WAITING
        asked_now = self._reader.open_approval_of(read) if is_waiting else None
        yield TurnEnds(read, attempts, asked_now, self._reader.is_cut_off)

    def _known(self) -> tuple[Attempt, ...]:
        if self._attempts is None:
            self._attempts = self._reader.attempts(self._read)
        return self._attempts

    def _begin(self, number: int) -> Iterator[Piece]:
        """Tells of the attempts up to this one: all but a first one that is as one expects."""
        if self._attempt:
            yield from self._release()
            yield from map(CallEnds, self._pairs.end_attempt())
            self._attempts = None  # of a turn that is followed, there may be more by now
        self._said, self._said_size = [], 0
        before = None
        for attempt in self._known():
            if self._attempt < attempt.number <= number and (attempt.number > 1 or _is_unexpected(attempt)):
                yield AttemptBegins(attempt, before)
            before = attempt
        self._attempt = number

    def _release(self) -> Iterator[Piece]:
        text, self._held = "".join(self._held), []
        if text.strip():
            yield Says(text.strip("\n"))
            self._said_size += len(text)
            if self._said_size <= _MOST_SAID:
                self._said.append(text)

    def _note(self, event: Event) -> Iterator[Piece]:
        if "call_id" in event.data:
            self._pairs.withhold(str(event.data["call_id"]))
        elif "ok" not in event.data:  # the end of the agent is told as the end of the turn
            yield Notes(str(event.data.get("text", "")))

    def _answer(self, turn: HistoryTurn) -> Iterator[Piece]:
        if turn.response is None:
            yield from self._release()
            return
        rest = "".join(self._held)
        if self._said and _same("".join(self._said) + rest, turn.response):
            # some agents have no answer besides what they said: its beginning was told between the calls
            if rest.strip():
                yield Answers(rest.strip("\n"))
        else:
            yield Answers(turn.response)


def _is_unexpected(attempt: Attempt) -> bool:
    decided = attempt.decision
    return decided.kind is DecisionKind.FRESH and decided.reason is not Reason.NO_POINTER


def _same(text: str, other: str) -> bool:
    return "".join(text.split()) == "".join(other.split())


def _withheld(asked: Approval) -> WithheldCall:
    is_used = asked.used_at is not None
    return WithheldCall(asked.call_id or "", asked.id, asked.status, is_used, asked.void_reason)


def _as_history(turn: Turn, agent: str) -> HistoryTurn:
    return HistoryTurn(
        seq=turn.seq,
        agent=agent,
        session_id=turn.session_id,
        status=turn.status,
        revision=turn.dropped or 0,
        prompt=turn.prompt,
        response=turn.response,
        at=turn.created_at,
        retry_of=turn.retry_of,
        attempts=turn.attempts,
        not_before=turn.not_before,
        failure=turn.failure,
    )
