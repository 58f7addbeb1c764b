"""Owns reading the past of a session: its own newest turns, and what an agent is told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.events import Event, EventKind
from holdfast.domain.sessions import Session
from holdfast.domain.telling.answers import ToldAnswer, settled_at, told_answer
from holdfast.domain.telling.tool_calls import ToolCall, tool_calls
from holdfast.domain.telling.transcript import FIRST_LINE_CHARACTERS, PastTurn, ranges
from holdfast.domain.turns import Attempt, Situation, Turn, TurnStatus
from holdfast.errors import NotFound, UnreadableSession
from holdfast.store.contract import Store

_PAGE = 100  #: turns that are read at a time
_EVENTS = 1000  #: that are read at a time
_CALL_EVENTS = 4000  #: of each turn, the newest calls and results; older calls are counted
_TURNS_WITH_CALLS = 300  #: of older ones the texts are read, and not what they called
_APPROVALS = 10_000
_NO_LIMIT = 2**62
_PROVIDER_SESSIONS, _ATTEMPTS = 4, 8  #: in which a context window is looked for
_EVENTS_TO_THE_WINDOW = 100  #: how full it is is among the last things that an agent says


class PastReader:
    """Reads the past of one session: the turns of its conversation, and what ran in them."""

    def __init__(self, store: Store, session: Session, conversation: Conversation | None = None) -> None:
        """``conversation``: as it is by now, if that is known."""
        self._store = store
        self._next_seq = None if conversation is None else conversation.next_seq
        self._session = session
        self._conversations: dict[str, str | None] = {session.id: session.conversation_id}
        self._approvals: dict[str, tuple[Approval, ...]] = {}

    def history(
        self, *, first: int = 1, last: int | None = None, limit: int | None = None
    ) -> tuple[HistoryTurn, ...]:
        """The turns that an agent was sent; every text for an agent about the past begins here."""
        return self._store.history(
            self._session.conversation_id, first=first, last=last, limit=limit, unsent=False
        )

    def past(self, before: int, size: int, most: int) -> tuple[PastTurn, ...]:
        """The turns that were there before one began, as ``missed`` has them."""
        return self.missed(self._spans_before(before), size, most)

    def newest(self, before: int, most: int) -> tuple[PastTurn, ...]:
        """The ``most`` newest turns that were there before one began, oldest first, whole and with their calls."""
        turns = islice(self._newest_first(self._spans_before(before)), most)
        return tuple(reversed(self._read(turns, _NO_LIMIT)))

    def missed(self, spans: Sequence[tuple[int, int]], size: int, most: int) -> tuple[PastTurn, ...]:
        """The turns of these spans, oldest first, with their calls.

        Once ``size`` bytes are read, nothing older can be told whole: of that, only the first lines are kept. Of
        those before the ``most`` newest nothing is kept but that they are there.
        """
        turns = self._newest_first(spans)
        found = self._read(islice(turns, most), size)
        found += [PastTurn(_emptied(turn), is_unread=True) for turn in turns]
        return tuple(reversed(found))

    def _read(self, turns: Iterable[HistoryTurn], size: int) -> list[PastTurn]:
        """``turns`` is newest first, and so is what is found."""
        found: list[PastTurn] = []
        answered: set[str] = set()  #: sessions that have answered since
        for turn in turns:
            if turn.status is TurnStatus.DONE:
                answered.add(turn.session_id)
            if size < 0:
                found.append(_outline(turn))
                continue
            # whoever made a call, or has been told of it, has answered since: it is in flight no more
            settled = not answered.isdisjoint((turn.session_id, self._session.id))
            if len(found) >= _TURNS_WITH_CALLS and turn.attempts > 0:
                found.append(PastTurn(turn, calls_unread=True))
            else:
                found.append(self.with_calls(turn, settled=settled) if turn.attempts else PastTurn(turn))
            size -= _characters(found[-1])
        return found

    def with_calls(self, turn: HistoryTurn, *, settled: bool) -> PastTurn:
        calls, older = self._counted_calls(turn.session_id, turn.seq, settled=settled)
        return PastTurn(turn, tuple(calls), older_calls=older)

    def calls_of(self, session_id: str, seq: int, *, settled: bool) -> list[ToolCall]:
        """The newest calls of a turn, oldest first."""
        return self._counted_calls(session_id, seq, settled=settled)[0]

    def _counted_calls(self, session_id: str, seq: int, *, settled: bool) -> tuple[list[ToolCall], int]:
        """And how many calls came before them."""
        conversation = self._conversation(session_id)
        if conversation is None:
            return [], 0
        events, older = self._newest_call_events(conversation, seq)
        if not any(event.kind is EventKind.TOOL_CALL for _, event in events):
            return [], older
        return tool_calls(seq, events, settled=settled, waited=self._waited(session_id, seq)), older

    def _newest_call_events(self, conversation: str, seq: int) -> tuple[Sequence[tuple[int, Event]], int]:
        """Those of tool calls; and how many calls came before them."""
        newest = self._store.newest_events(conversation, seq, _EVENTS)
        if len(newest) < _EVENTS:
            return newest, 0
        kept: deque[tuple[int, Event]] = deque()
        older, after = 0, (0, 0)
        while page := self._store.events(conversation, seq, after=after, limit=_EVENTS):
            kept.extend(pair for pair in page if pair[1].kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT))
            while len(kept) > _CALL_EVENTS:
                older += kept.popleft()[1].kind is EventKind.TOOL_CALL
            after = (page[-1][0], page[-1][1].number)
        return kept, older

    def attempts(self, session_id: str, seq: int) -> tuple[Attempt, ...]:
        conversation = self._conversation(session_id)
        return () if conversation is None else self._store.attempts(conversation, seq)

    def reported_window(self, turn: Turn) -> int | None:
        """The context window that the newest attempt with a turn's model, in the session's provider sessions, told of.

        A turn that names no model has the one that the newest attempt had.
        """
        model = turn.request.model
        for attempt in self._newest_attempts(turn):
            model = attempt.model if model is None else model
            window = self._window_of(attempt) if attempt.model == model else None
            if window is not None:
                return window
        return None

    def _newest_attempts(self, turn: Turn) -> Iterator[Attempt]:
        """In what the turn was to resume or to fork first, then in the provider sessions before it; a few of each."""
        tried = reversed(self._store.attempts(turn.conversation_id, turn.seq))
        natives = [attempt.forked_from or attempt.provider_session_id for attempt in tried]
        known = self._store.provider_sessions(self._session.id)
        natives += [each.id for each in reversed(known) if each.provider == turn.provider]
        for native in islice(filter(None, dict.fromkeys(natives)), _PROVIDER_SESSIONS):
            yield from self._store.attempts_in(turn.provider, native, _ATTEMPTS)

    def _window_of(self, attempt: Attempt) -> int | None:
        events = self._store.newest_events(attempt.conversation_id, attempt.seq, _EVENTS_TO_THE_WINDOW)
        for number, event in reversed(events):
            window = event.data.get("context_window") if event.kind is EventKind.USAGE else None
            if number == attempt.number and isinstance(window, int) and window > 0:
                return window
        return None

    def _spans_before(self, seq: int) -> list[tuple[int, int]]:
        """What a person did in the agent's own program while a turn was in the queue has a larger number than it."""
        if self._next_seq == seq + 1:
            return [(1, seq - 1)]
        later = takewhile(lambda turn: turn.seq > seq, newest_first(self._store, self._session.id))
        recorded = [turn.seq for turn in later if turn.status is TurnStatus.DONE and not turn.attempts]
        return [(1, seq - 1), *ranges(reversed(recorded))]

    def _newest_first(self, spans: Sequence[tuple[int, int]]) -> Iterator[HistoryTurn]:
        for first, last in reversed(spans):
            while first <= last and (page := self.history(first=first, last=last, limit=_PAGE)):
                yield from reversed(page)
                last = page[0].seq - 1

    def _conversation(self, session_id: str) -> str | None:
        """A turn that a fork inherited has its record where it ran."""
        if session_id not in self._conversations:
            try:
                found: str | None = self._store.get_session(session_id).conversation_id
            except (NotFound, UnreadableSession):
                found = None
            self._conversations[session_id] = found
        return self._conversations[session_id]

    def _waited(self, session_id: str, seq: int) -> dict[str, str | None]:
        """The calls of a turn that waited for a person: why one was never made, or None."""
        if session_id not in self._approvals:
            self._approvals[session_id] = self._store.approvals(
                session_id=session_id, open_only=False, limit=_APPROVALS
            )
        mine = (approval for approval in self._approvals[session_id] if approval.seq == seq)
        return {approval.call_id: _why_not_made(approval) for approval in mine if approval.call_id}


def _why_not_made(approval: Approval) -> str | None:
    if approval.used_at is not None:
        return None
    if approval.status is ApprovalStatus.VOIDED:
        return f"it waited for approval {approval.id}, which became void ({approval.void_reason})"
    return f"it waits for approval {approval.id}, which is {approval.status}"


def _outline(turn: HistoryTurn) -> PastTurn:
    limit = 2 * FIRST_LINE_CHARACTERS + 1  # one more than is shown: that there is more shows
    response = None if turn.response is None else turn.response[:limit]
    return PastTurn(replace(turn, prompt=turn.prompt[:limit], response=response), is_outline=True)


def _emptied(turn: HistoryTurn) -> HistoryTurn:
    return replace(turn, prompt="", response=None if turn.response is None else "")


def _characters(past: PastTurn) -> int:
    texts = len(past.turn.prompt) + len(past.turn.response or "")
    return texts + sum(len(call.arguments) + len(call.output) for call in past.calls)


_FIRST_PAGE, _LARGEST_PAGE = 4, 64  #: mostly the newest few are enough


def newest_turn(store: Store, session_id: str) -> Turn | None:
    """The newest that is still in the history."""
    return next(iter(store.newest_turns(session_id, 1, dropped=False)), None)


def newest_first(store: Store, session_id: str, before: int | None = None) -> Iterator[Turn]:
    """All of them, dropped ones included; with ``before``, those of a smaller number."""
    size = _FIRST_PAGE
    while page := store.newest_turns(session_id, size, before=before):
        yield from reversed(page)
        before, size = page[0].seq, min(2 * size, _LARGEST_PAGE)


def was_stopped(turn: Turn) -> bool:
    """It did not come to its end; one that a guard refused was never begun."""
    was_begun = turn.failure is None or turn.failure.then.was_begun
    return turn.status is not TurnStatus.DONE and was_begun


def unsent_request(store: Store, turn: Turn) -> HistoryTurn | None:
    """A turn that failed before any agent was started for it, as the history has it: agents are not told of it."""
    if turn.status is not TurnStatus.FAILED or not was_stopped(turn):
        return None
    known = store.history(turn.conversation_id, first=turn.seq, last=turn.seq)
    return known[0] if known and not was_sent(store, turn) else None


def was_sent(store: Store, turn: Turn) -> bool:
    """An agent was launched for it, so that agents are told of it."""
    return bool(store.history(turn.conversation_id, first=turn.seq, last=turn.seq, unsent=False))


def told_answers(situation: Situation) -> tuple[ToldAnswer, ...]:
    """Oldest first."""
    now = situation.now
    found = [(at, approval) for approval in situation.untold if (at := settled_at(approval, now)) is not None]
    return tuple(told_answer(approval, now) for _, approval in sorted(found, key=lambda pair: pair[0]))
