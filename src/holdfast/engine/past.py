"""Owns reading the past of a session: its newest turns, and what an agent is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, TypeVar

from holdfast.domain.approvals import ApprovalStatus
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.events import EventKind
from holdfast.domain.records import replace
from holdfast.domain.sessions import Session
from holdfast.domain.telling.answers import ToldAnswer, settled_at, told_answer
from holdfast.domain.telling.tool_calls import ToolCall, tool_calls
from holdfast.domain.telling.transcript import FIRST_LINE_CHARACTERS, PastTurn, ranges
from holdfast.domain.turns import (
    Attempt,
    PastRequest,
    RecordedTurn,
    Situation,
    Turn,
    TurnStatus,
    WithheldCall,
)
from holdfast.errors import Conflict
from holdfast.store.contract import Store

_PAGE = 100  #: turns that are read at a time
_OUTLINES = 1000  #: turns that are read at a time, if only the beginnings of their texts are
_OUTLINE = (
    2 * FIRST_LINE_CHARACTERS + 1
)  #: one character more than is shown, so that a cut can be told from an end
_CALL_EVENTS = 4000  #: the newest calls and results that are read of each turn; older calls are only counted
_TURNS_WITH_CALLS = 300  #: the newest turns; of older ones the texts are read without the calls
_NO_LIMIT = 2**62
_MOST_CHANGES = 10  #: how often the past is read again because the history has changed
_PROVIDER_SESSIONS, _ATTEMPTS = 4, 8  #: how many are searched for the size of the context window
_EVENTS_TO_THE_WINDOW = 100  #: agents report the size of the window among their last events

Spans = Sequence[tuple[int, int]]
T = TypeVar("T")


def as_of_one_revision(store: Store, conversation: Conversation, tell: Callable[[Conversation], T]) -> T:
    """The result of ``tell``. If the history changes while ``tell`` reads it, ``tell`` is called again with the new one."""
    for _ in range(_MOST_CHANGES):
        try:
            return tell(conversation)
        except Conflict:
            conversation = store.get_conversation(conversation.id)
    return tell(conversation)


class PastReader:
    """Reads the past of one session: the turns of its conversation, as of one revision, and what ran in them.

    Raises Conflict if the history has changed since: see ``as_of_one_revision``.
    """

    def __init__(self, store: Store, session: Session, conversation: Conversation) -> None:
        self.store = store
        self.session = session
        self.conversation = conversation

    def past(self, before: int, size: int, most: int) -> tuple[PastTurn, ...]:
        """The turns that existed before turn ``before`` began, as ``missed`` returns them."""
        return self.missed(self._spans_before(before), size, most)

    def newest(self, before: int, most: int) -> tuple[PastTurn, ...]:
        """The ``most`` newest turns that existed before turn ``before`` began, oldest first, whole and with their calls."""
        found, _ = self._read(self._spans_before(before), _NO_LIMIT, most)
        return tuple(reversed(found))

    def missed(self, spans: Spans, size: int, most: int) -> tuple[PastTurn, ...]:
        """The turns of these spans, oldest first, with their calls.

        Of turns that are older than the newest ``size`` characters only the first lines are read. Turns before the
        ``most`` newest ones are only listed.
        """
        found, rest = self._read(spans, size, most)
        while page := self._page(rest, limit=_OUTLINES, calls=False, characters=0):
            found += [PastTurn(recorded.turn, is_unread=True) for recorded in page]
            rest = _below(rest, page)
        return tuple(reversed(found))

    def _read(self, spans: Spans, size: int, most: int) -> tuple[list[PastTurn], Spans]:
        """The ``most`` newest turns, newest first, and the spans of the turns that were not read."""
        found: list[PastTurn] = []
        answered: set[str] = set()  #: sessions that have answered since
        while len(found) < most and (page := self._page_of(spans, size, len(found), most)):
            for recorded in page:
                turn = recorded.turn
                if turn.status is TurnStatus.DONE:
                    answered.add(turn.session_id)
                if size < 0:
                    found.append(_outline(turn))
                    continue
                # an agent that made a call, or was told of it, has answered since: the call is in flight no more
                settled = not answered.isdisjoint((turn.session_id, self.session.id))
                if len(found) >= _TURNS_WITH_CALLS:
                    found.append(PastTurn(turn, calls_unread=True))
                else:
                    found.append(self._told(recorded, settled=settled))
                size -= _characters(found[-1])
            spans = _below(spans, page)
        return found, spans

    def _page_of(self, spans: Spans, size: int, count: int, most: int) -> tuple[RecordedTurn, ...]:
        """The next page, after ``count`` turns were read: whole texts while there is ``size`` left, else their beginnings."""
        if size < 0:
            return self._page(spans, limit=min(_OUTLINES, most - count), calls=False, characters=_OUTLINE)
        return self._page(spans, limit=min(_PAGE, most - count), calls=count < _TURNS_WITH_CALLS)

    def _page(self, spans: Spans, **how: Any) -> tuple[RecordedTurn, ...]:
        spans = tuple(span for span in spans if span[0] <= span[1])
        if not spans:
            return ()
        wanted = PastRequest(spans, **how)
        return self.store.read_past(self.conversation.id, self.conversation.revision, wanted)

    def _told(self, recorded: RecordedTurn, *, settled: bool) -> PastTurn:
        """The turn with its newest calls, and the number of calls before those."""
        turn, events, older = recorded.turn, recorded.calls, recorded.older_calls
        while older and len(events) < _CALL_EVENTS:
            attempt, event = events[0]
            behind = attempt, event.number
            (piece,) = self._page([(turn.seq, turn.seq)], characters=0, before=behind, unsent=True)
            events, older = (*piece.calls, *events), piece.older_calls
        dropped, events = events[:-_CALL_EVENTS], events[-_CALL_EVENTS:]
        older += sum(event.kind is EventKind.TOOL_CALL for _, event in dropped)
        waited = {call.call_id: why_not_made(call) for call in recorded.withheld}
        calls = tool_calls(turn.seq, events, settled=settled, waited=waited)
        return PastTurn(turn, tuple(calls), older_calls=older, attempts=recorded.attempts)

    def unsettled(self, seqs: Iterable[int]) -> list[PastTurn]:
        """These turns with their calls, oldest first. A call without a result may be in flight."""
        spans: Spans = ranges(sorted(set(seqs)))
        found: list[PastTurn] = []
        while page := self._page(spans, characters=0, unsent=True):
            found += [self._told(recorded, settled=False) for recorded in page]
            spans = _below(spans, page)
        return found[::-1]

    def calls_of(self, seqs: Iterable[int]) -> list[ToolCall]:
        """The newest calls of these turns, oldest first. A call without a result may be in flight."""
        return [call for past in self.unsettled(seqs) for call in past.calls]

    def reported_window(self, turn: Turn) -> int | None:
        """The context window that the newest attempt with the turn's model reported, in the session's provider sessions.

        A turn that names no model has the model of the newest attempt.
        """
        model = turn.request.model
        for attempt in self._newest_attempts(turn):
            model = attempt.model if model is None else model
            window = self._window_of(attempt) if attempt.model == model else None
            if window is not None:
                return window
        return None

    def _newest_attempts(self, turn: Turn) -> Iterator[Attempt]:
        """Attempts in the provider session that the turn was to resume or to fork, then in those before it; a few of each."""
        tried = reversed(self.store.attempts(turn.conversation_id, turn.seq))
        natives = [attempt.forked_from or attempt.provider_session_id for attempt in tried]
        known = self.store.provider_sessions(self.session.id)
        natives += [each.id for each in reversed(known) if each.provider == turn.provider]
        for native in islice(filter(None, dict.fromkeys(natives)), _PROVIDER_SESSIONS):
            yield from self.store.attempts_in(turn.provider, native, _ATTEMPTS)

    def _window_of(self, attempt: Attempt) -> int | None:
        events = self.store.newest_events(attempt.conversation_id, attempt.seq, _EVENTS_TO_THE_WINDOW)
        for number, event in reversed(events):
            window = event.data.get("context_window") if event.kind is EventKind.USAGE else None
            if number == attempt.number and isinstance(window, int) and window > 0:
                return window
        return None

    def _spans_before(self, seq: int) -> list[tuple[int, int]]:
        """The spans of turns before ``seq``, and of turns made by hand while turn ``seq`` was in the queue: their numbers
        are larger."""
        if self.conversation.next_seq == seq + 1:
            return [(1, seq - 1)]
        later = takewhile(lambda turn: turn.seq > seq, newest_first(self.store, self.session.id))
        recorded = [turn.seq for turn in later if turn.status is TurnStatus.DONE and not turn.attempts]
        return [(1, seq - 1), *ranges(reversed(recorded))]


def _below(spans: Spans, page: Sequence[RecordedTurn]) -> Spans:
    """What is left of the spans after a page of their newest turns was read."""
    last = page[-1].turn.seq
    return [(first, min(end, last - 1)) for first, end in spans if first < last]


def why_not_made(call: WithheldCall) -> str | None:
    """Why a call that waited for a person was not made; None if its answer was used."""
    if call.is_used:
        return None
    if call.status is ApprovalStatus.VOIDED:
        return f"it waited for approval {call.approval_id}, which became void ({call.void_reason})"
    return f"it waits for approval {call.approval_id}, which is {call.status}"


def _outline(turn: HistoryTurn) -> PastTurn:
    response = None if turn.response is None else turn.response[:_OUTLINE]
    return PastTurn(replace(turn, prompt=turn.prompt[:_OUTLINE], response=response), is_outline=True)


def _characters(past: PastTurn) -> int:
    texts = len(past.turn.prompt) + len(past.turn.response or "")
    return texts + sum(len(call.arguments) + len(call.output) for call in past.calls)


_FIRST_PAGE, _LARGEST_PAGE = 4, 64  #: mostly the newest few are enough


def newest_turn(store: Store, session_id: str) -> Turn | None:
    """The newest turn of a session that is still in the history."""
    return next(iter(store.newest_turns(session_id, 1, dropped=False)), None)


def newest_first(store: Store, session_id: str, before: int | None = None) -> Iterator[Turn]:
    """All turns of a session, also dropped ones; with ``before``, those with a smaller number."""
    size = _FIRST_PAGE
    while page := store.newest_turns(session_id, size, before=before):
        yield from reversed(page)
        before, size = page[0].seq, min(2 * size, _LARGEST_PAGE)


def was_stopped(turn: Turn) -> bool:
    """Whether the turn did not come to its end. A turn that a guard refused was never begun, so it was not stopped."""
    was_begun = turn.failure is None or turn.failure.then.was_begun
    return turn.status is not TurnStatus.DONE and was_begun


def unsent_request(store: Store, turn: Turn) -> HistoryTurn | None:
    """The turn as it is in the history, if it failed before an agent was launched for it: agents are not told of it."""
    if turn.status is not TurnStatus.FAILED or not was_stopped(turn):
        return None
    known = store.history(turn.conversation_id, first=turn.seq, last=turn.seq)
    was_sent = store.history(turn.conversation_id, first=turn.seq, last=turn.seq, unsent=False)
    return known[0] if known and not was_sent else None


def told_answers(situation: Situation) -> tuple[ToldAnswer, ...]:
    """The answers of people that the agent was not told of yet, oldest first."""
    now = situation.now
    found = [(at, approval) for approval in situation.untold if (at := settled_at(approval, now)) is not None]
    return tuple(told_answer(approval, now) for _, approval in sorted(found, key=lambda pair: pair[0]))
