"""Owns the clauses on the past: what agents are told of, read in pages as of one revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.decisions import DecisionKind, Reason, Resume
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.sessions import Session
from holdfast.domain.turns import (
    AttemptStatus,
    AttemptSummary,
    Launch,
    PastRequest,
    RecordedTurn,
    WithheldCall,
)
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.store.contract import Store
from holdfast.store.sql import past
from tests.builders import a_session_id, a_turn, an_answer, an_approval, an_event, deferred, done, failed
from tests.steps import begin, claim, enqueue, join, resumed_id, run

pytestmark = pytest.mark.usefixtures("watched")

EVERYTHING = ((1, 1_000_000),)


def read(store: Store, session: Session, *spans: tuple[int, int], **wanted: Any) -> tuple[RecordedTurn, ...]:
    revision = store.get_conversation(session.conversation_id).revision
    request = PastRequest(spans or EVERYTHING, **wanted)
    return store.read_past(session.conversation_id, revision, request)


def pages(store: Store, session: Session, **wanted: Any) -> list[tuple[RecordedTurn, ...]]:
    """All of them, each below the one before."""
    found, last = [], 1_000_000
    while last and (page := read(store, session, (1, last), **wanted)):
        found.append(page)
        last = page[-1].turn.seq - 1
    return found


def called(number: int, call_id: str = "call", **data: Any) -> Event:
    return an_event(number, kind=EventKind.TOOL_CALL, data={"call_id": call_id, "tool": "shell", **data})


def returned(number: int, call_id: str = "call", output: str = "") -> Event:
    return an_event(number, kind=EventKind.TOOL_RESULT, data={"call_id": call_id, "output": output})


def worked(store: Store, session: Session, *events: Event, prompt: str = "work") -> int:
    """A turn in which these things happened."""
    enqueue(store, session, prompt)
    claimed = claim(store, session)
    store.record_events(claimed.lease, events)
    store.finish_turn(claimed.lease, done("worked"))
    return claimed.turn.seq


def waited(store: Store, session: Session, call_id: str) -> Approval:
    """A turn that made a call which waits for a person."""
    enqueue(store, session, "apply it")
    claimed = claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    store.record_events(claimed.lease, [called(1, call_id)])
    used = claimed.decision.provider_session_id if isinstance(claimed.decision, Resume) else None
    end = deferred(approval=an_approval(call_id=call_id))
    store.finish_turn(claimed.lease, end if used is None else replace(end, provider_session_id=used))
    (approval,) = store.approvals(session_id=session.id)
    return approval


def seqs(page: tuple[RecordedTurn, ...]) -> list[int]:
    return [recorded.turn.seq for recorded in page]


def numbers(recorded: RecordedTurn) -> list[tuple[int, int]]:
    return [(attempt, event.number) for attempt, event in recorded.calls]


class TestTurns:
    """Which turns are read, and what of them."""

    def test_the_newest_come_first_with_their_texts(self, store: Store) -> None:
        session = begin(store)
        for prompt in ("one", "two", "three"):
            run(store, session, prompt)
        store.edit_turn(session.id, 2, response="edited")

        found = read(store, session)

        assert tuple(each.turn for each in reversed(found)) == store.history(session.conversation_id)
        assert {each.conversation_id for each in found} == {session.conversation_id}
        assert seqs(read(store, session, (1, 2))) == [2, 1]
        assert seqs(read(store, session, limit=2)) == [3, 2]
        assert read(store, session, limit=0) == read(store, session, (7, 9)) == ()

    def test_what_no_agent_was_sent_is_left_out(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "answered")
        store.cancel_turn(session.id, enqueue(store, session, "never begun").seq)
        run(store, session, "on")
        store.truncate(session.id, 2)
        enqueue(store, session, "waits")
        assert [each.turn.prompt for each in read(store, session)] == ["answered"]
        assert [each.turn.prompt for each in read(store, session, unsent=True)] == [
            "waits",
            "never begun",
            "answered",
        ]

    def test_turns_between_the_spans_are_left_out(self, store: Store) -> None:
        session, other = (first := begin(store)), join(store, first, "reviewer")
        for n in range(1, 51):
            new = a_turn(f"turn {n}")
            store.record_turn((session if n % 2 else other).id, new, "noted", NO_USAGE)
        theirs = [(n, n) for n in range(2, 51, 2)]

        found = read(store, session, *reversed(theirs))

        assert [each.turn.prompt for each in found] == [f"turn {n}" for n in range(50, 0, -2)]
        assert seqs(read(store, session, *theirs, limit=3)) == [50, 48, 46]
        assert seqs(read(store, session, (3, 5), (4, 7))) == [7, 6, 5, 4, 3]

    def test_a_fork_has_the_turns_that_it_inherits_as_they_were(self, store: Store) -> None:
        parent = begin(store)
        first = worked(store, parent, called(1), prompt="asked")
        run(store, parent, "kept")
        child = store.fork(parent.id, a_session_id(), at=2)
        store.edit_turn(parent.id, 1, prompt="changed later")
        run(store, parent, "after the fork")
        store.edit_turn(child.id, 2, response="changed in the fork")
        third = worked(store, child, called(1), called(2))

        found = read(store, child)

        assert tuple(each.turn for each in reversed(found)) == store.history(child.conversation_id)
        assert [each.turn.prompt for each in found] == ["work", "kept", "asked"]
        assert found[1].turn.response == "changed in the fork"
        assert [each.conversation_id for each in found] == [
            child.conversation_id,
            parent.conversation_id,
            parent.conversation_id,
        ]
        assert {each.turn.seq: numbers(each) for each in found} == {
            third: [(1, 1), (1, 2)],
            2: [],
            first: [(1, 1)],
        }
        store.truncate(child.id, 1)
        assert [each.turn.prompt for each in read(store, child)] == ["asked"]

    def test_texts_can_be_read_by_their_beginning(self, store: Store) -> None:
        session = begin(store)
        worked(store, session, called(1), prompt="äöü and more")
        store.record_turn(session.id, a_turn("unanswered"), None, NO_USAGE)

        second, first = read(store, session, calls=False, characters=3)
        assert (first.turn.prompt, first.turn.response) == ("äöü", "wor")
        assert (second.turn.prompt, second.turn.response) == ("una", None)
        assert (first.attempts, first.calls, first.older_calls) == ((), (), 0)

        _, first = read(store, session, characters=0)
        assert (first.turn.prompt, first.turn.response, numbers(first)) == ("", "", [(1, 1)])


class TestRecord:
    """The attempts of a turn, its calls, and those that waited for a person."""

    def test_only_calls_and_results_are_read_of_all_attempts(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "go")
        lease = claim(store, session).lease
        store.record_events(lease, [called(1), an_event(2), returned(3, output="x")])
        store.put_back(lease)
        lease = claim(store, session).lease
        store.record_events(lease, [called(1), an_event(2, kind=EventKind.USAGE)])
        store.finish_turn(lease, failed(FailureClass.AUTH, "401"))

        (recorded,) = read(store, session)

        assert recorded.calls == ((1, called(1)), (1, returned(3, output="x")), (2, called(1)))
        assert recorded.older_calls == 0
        fresh = DecisionKind.FRESH, Reason.NO_POINTER
        assert recorded.attempts == (
            AttemptSummary(1, AttemptStatus.PUT_BACK, *fresh, None),
            AttemptSummary(2, AttemptStatus.FAILED, *fresh, Failure(FailureClass.AUTH, "401")),
        )

    def test_a_call_that_waited_for_a_person_says_what_became_of_its_approval(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        used = waited(store, session, "made")
        store.answer_approval(used.id, an_answer(used))
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.finish_turn(claimed.lease, done(provider_session_id=resumed_id(claimed.decision)))
        theirs = waited(store, other, "theirs")
        store.cancel_turn(other.id, theirs.seq or 0)
        run(store, session, "nothing waited here")
        mine = waited(store, session, "mine")

        found = [each.withheld for each in read(store, session)]

        assert found == [
            (WithheldCall("mine", mine.id, ApprovalStatus.OPEN, False, None),),
            (),
            (WithheldCall("theirs", theirs.id, ApprovalStatus.VOIDED, False, "turn_cancelled"),),
            (WithheldCall("made", used.id, ApprovalStatus.APPROVED, True, None),),
        ]

    def test_the_revision_must_be_the_current_one(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        run(store, session, "two")
        before = store.get_conversation(session.conversation_id).revision
        request = PastRequest(EVERYTHING, limit=1)
        assert seqs(store.read_past(session.conversation_id, before, request)) == [2]

        store.edit_turn(session.id, 1, prompt="changed")

        with pytest.raises(Conflict) as refused:
            store.read_past(session.conversation_id, before, PastRequest(((1, 1),)))
        assert refused.value.details["actual"] == before + 1
        run(store, session, "a new turn is no change of the past")
        assert seqs(store.read_past(session.conversation_id, before + 1, request)) == [3]

    def test_what_is_not_there_cannot_be_read(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.read_past("nobody", 0, PastRequest(EVERYTHING))
        session = begin(store)
        for wrong in (-1, 2**63):
            with pytest.raises(InvalidInput):
                read(store, session, limit=wrong)
            with pytest.raises(InvalidInput):
                read(store, session, (1, wrong))


class TestPages:
    """A page is bounded, whatever was recorded."""

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(past, "PAGE_CHARACTERS", 1000)

    def test_long_texts_make_short_pages(self, store: Store) -> None:
        session = begin(store)
        for n in range(12):
            new = a_turn("x" * (10 if n < 5 else 400 if n < 11 else 5000))
            store.record_turn(session.id, new, "noted", NO_USAGE)

        found = pages(store, session)

        assert [seqs(page) for page in found] == [[12], [11, 10], [9, 8], [7, 6, 5, 4, 3, 2, 1]]
        assert [len(page) for page in pages(store, session, characters=100)] == [5, 5, 2]
        assert [len(page) for page in pages(store, session, limit=5, characters=0)] == [5, 5, 2]

    def test_calls_count_like_texts(self, store: Store) -> None:
        session = begin(store)
        for _ in range(3):
            worked(store, session, called(1), returned(2, output="y" * 400))
        assert [seqs(page) for page in pages(store, session)] == [[3], [2], [1]]
        assert [seqs(page) for page in pages(store, session, calls=False)] == [[3, 2, 1]]

    def test_a_turn_with_too_many_calls_is_alone_and_read_in_pieces(self, store: Store) -> None:
        session = begin(store)
        worked(store, session, called(1))
        events = [event for n in range(1, 21, 2) for event in (called(n), returned(n + 1, output="z" * 50))]
        long = worked(store, session, *events)
        worked(store, session, called(1))
        assert [seqs(page) for page in pages(store, session)] == [[3], [2], [1]]

        (recorded,) = read(store, session, (long, long))
        pieces = [recorded]
        while pieces[-1].older_calls:
            attempt, event = pieces[-1].calls[0]
            at = attempt, event.number
            pieces += read(store, session, (long, long), characters=0, before=at)

        assert len(pieces) > 2
        assert all(0 < len(piece.calls) < 10 for piece in pieces)
        assert [event for piece in reversed(pieces) for _, event in piece.calls] == events
        assert [piece.older_calls for piece in pieces] == sorted(
            (piece.older_calls for piece in pieces), reverse=True
        )
        assert read(store, session, (long, long), characters=0, before=(1, 1))[0].calls == ()
