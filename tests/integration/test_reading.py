"""A session as people read it: every turn, in order, with what became of it in words."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.clock import Instant, to_iso
from holdfast.domain.approvals import NewApproval
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import Session, SessionKind
from holdfast.domain.turns import Launch, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.reading import (
    Answers,
    AttemptBegins,
    CallEnds,
    Notes,
    Piece,
    Reader,
    Says,
    TurnBegins,
    TurnEnds,
)
from holdfast.engine.session_log import AuditEntry
from holdfast.errors import NotFound
from holdfast.store.contract import Store
from tests import steps
from tests.builders import a_session_id, a_turn, an_answer, an_approval, deferred, done, failed
from tests.clock import NOON
from tests.counted_store import CountedStore


def a_conversation(store: Store, **changes: Any) -> Session:
    return steps.begin(store, kind=SessionKind.CONVERSATION, **changes)


def read(store: Store, session: Session, first: int = 1, last: int | None = None) -> list[str]:
    return [line for piece in Reader(store, session.id).walk(first, last) if (line := told(piece))]


def told(piece: Piece) -> str:
    match piece:
        case TurnBegins(turn):
            return " · ".join((f"turn {turn.turn.seq}", turn.turn.prompt, *turn.marks))
        case Says(text):
            return f"says {text}"
        case Answers(text):
            return f"answers {text}"
        case CallEnds(call):
            return f"{piece.mark} {call.words}{f' | {piece.note}' if piece.note else ''}"
        case Notes(text):
            return f"notes {text}"
        case AttemptBegins():
            return piece.words
        case TurnEnds():
            return piece.words(to_iso)
        case AuditEntry():
            return f"{piece.kind}: {piece.words}"


def text(number: int, said: str) -> Event:
    return Event(number, EventKind.TEXT, {"text": said}, NOON)


def call(number: int, call_id: str, command: str) -> Event:
    data: dict[str, Json] = {"call_id": call_id, "tool": "Bash", "arguments": {"command": command}}
    return Event(number, EventKind.TOOL_CALL, data, NOON)


def result(number: int, call_id: str, output: str = "", *, is_error: bool = False) -> Event:
    data: dict[str, Json] = {"call_id": call_id, "output": output, "is_error": is_error}
    return Event(number, EventKind.TOOL_RESULT, data, NOON)


def notice(number: int, words: str, **data: Any) -> Event:
    return Event(number, EventKind.NOTICE, {"text": words, **data}, NOON)


def run(store: Store, session: Session, *events: Event, prompt: str = "go on", **end: Any) -> None:
    steps.enqueue(store, session, prompt)
    claimed = steps.claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    store.record_events(claimed.lease, events)
    store.finish_turn(claimed.lease, done(**end))


def test_prompts_calls_and_answers_are_read_in_order(store: Store) -> None:
    session = a_conversation(store)
    run(
        store, session, text(1, "I look."), call(2, "a", "ls"), call(3, "b", "false\nfalse"), result(4, "a", "x"),
        result(5, "b", "\nexit code 1\nmore", is_error=True), text(6, "It is "), text(7, "broken."),
        notice(8, "the model was overloaded"), notice(9, "the agent ended its turn", ok=True),
        prompt="what is it?", response="It is broken.",
    )  # fmt: skip

    assert read(store, session) == [
        "turn 1 · what is it?",
        "says I look.",
        "✓ Bash: ls",
        "✗ Bash: false false | exit code 1",
        "notes the model was overloaded",
        "answers It is broken.",
    ]


def test_an_answer_that_is_all_that_was_said_is_not_told_twice(store: Store) -> None:
    session = a_conversation(store)
    run(store, session, text(1, "First\n"), call(2, "a", "ls"), result(3, "a"), text(4, "\nlast"),
        response="First\nlast")  # fmt: skip

    assert read(store, session)[1:] == ["says First", "✓ Bash: ls", "answers last"]


def test_turns_without_events_show_prompt_and_answer(store: Store) -> None:
    session = a_conversation(store)
    store.record_turn(session.id, a_turn("by hand"), "an answer", NO_USAGE)
    store.record_turn(session.id, a_turn("nothing came"), None, NO_USAGE)

    assert read(store, session) == [
        "turn 1 · by hand", "answers an answer", "turn 2 · nothing came", "no answer",
    ]  # fmt: skip


def test_an_edited_turn_shows_its_newest_texts(store: Store) -> None:
    session = a_conversation(store)
    run(store, session, text(1, "The wrong answer"), response="The wrong answer")
    steps.run(store, session, "next")
    store.edit_turn(session.id, 1, response="The right answer")

    assert read(store, session) == [
        "turn 1 · go on · edited", "answers The right answer", "turn 2 · next", "answers re: next",
    ]  # fmt: skip


def test_a_turn_after_a_truncation_does_not_count_as_edited(store: Store) -> None:
    session = a_conversation(store)
    for prompt in ("one", "two"):
        steps.run(store, session, prompt)
    store.truncate(session.id, 1)
    steps.run(store, session, "three")

    assert read(store, session) == [
        "turn 1 · one",
        "answers re: one",
        "turn 2 · two · dropped from the history",
        "answers re: two",
        "turn 3 · three",
        "started fresh: history_changed",
        "answers re: three",
    ]


def test_a_repeated_turn_names_the_one_that_it_repeats(store: Store) -> None:
    session = a_conversation(store)
    steps.run(store, session, "once more")
    store.retry_turn(session.id, 1)

    assert read(store, session)[2:] == ["turn 2 · once more · repeats turn 1", "in the queue, not begun yet"]


def test_a_fork_shows_what_it_inherited_and_whose_it_is(store: Store) -> None:
    session = a_conversation(store)
    run(store, session, call(1, "a", "ls"), result(2, "a"), prompt="before", response="yes")
    steps.run(store, session, "only there")
    fork = store.fork(session.id, a_session_id(), at=1)
    steps.run(store, fork, "after")

    found = read(store, fork)
    assert found[:3] == ["turn 1 · before · from before the fork", "✓ Bash: ls", "answers yes"]
    assert [line for line in found if line.startswith("turn")][1:] == ["turn 2 · after"]
    assert ("forked from", f"{session.id} at turn 1") in Reader(store, fork.id).facts(to_iso)


def test_turns_of_other_agents_in_the_conversation_name_their_agent(store: Store) -> None:
    session = a_conversation(store)
    other = steps.join(store, session, "reviewer", kind=SessionKind.CONVERSATION)
    steps.run(store, session, "mine")
    steps.run(store, other, "theirs")

    assert [line for line in read(store, session) if line.startswith("turn")] == [
        "turn 1 · mine", "turn 2 · theirs · agent reviewer",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (FailureClass.AUTH, "failed, auth: no luck"),
        (FailureClass.INTERRUPTED, "interrupted: no luck"),
        (FailureClass.REFUSED, "not begun, refused: no luck"),
    ],
)
def test_a_failed_turn_says_how_it_failed(store: Store, failure: FailureClass, words: str) -> None:
    session = a_conversation(store)
    steps.enqueue(store, session, "try")
    end = failed(failure)
    assert end.failure is not None
    ended = replace(end, failure=replace(end.failure, message="no luck"))
    store.finish_turn(steps.claim(store, session).lease, ended)

    assert read(store, session) == ["turn 1 · try", words]


def test_a_cancelled_and_a_waiting_turn_say_so(store: Store) -> None:
    session = a_conversation(store)
    steps.enqueue(store, session, "never mind")
    store.cancel_turn(session.id, 1)
    later = Instant(NOON + 10**15)
    steps.enqueue(store, session, "later", not_before=later)

    assert read(store, session) == [
        "turn 1 · never mind", "cancelled", "turn 2 · later", f"in the queue, not begun yet; not before {to_iso(later)}",
    ]  # fmt: skip


def a_waiting_turn(store: Store, session: Session) -> NewApproval:
    steps.enqueue(store, session, "apply it")
    claimed = steps.claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    store.record_events(
        claimed.lease, [call(1, "c1", "terraform apply"), notice(2, "Bash waits for approval", call_id="c1")]
    )
    asked = an_approval(call_id="c1", what="Bash: terraform apply")
    store.finish_turn(claimed.lease, deferred(approval=asked))
    return asked


def test_a_turn_that_waits_for_an_approval_names_it(store: Store) -> None:
    session = a_conversation(store)
    asked = a_waiting_turn(store, session)

    assert read(store, session) == [
        "turn 1 · apply it",
        f"– Bash: terraform apply | not run: it waits for approval {asked.id}, which is open",
        f"waits for approval {asked.id}: Bash: terraform apply",
    ]


def test_a_call_that_was_approved_is_told_once(store: Store) -> None:
    session = a_conversation(store)
    asked = a_waiting_turn(store, session)
    store.answer_approval(asked.id, an_answer(store.get_approval(asked.id)))
    claimed = steps.claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    store.record_events(claimed.lease, [call(1, "c1", "terraform apply"), result(2, "c1", "applied")])
    store.finish_turn(claimed.lease, done("It is applied"))

    assert read(store, session) == [
        "turn 1 · apply it",
        "attempt 1 waited for an approval; attempt 2 continued after the answer",
        "✓ Bash: terraform apply",
        "answers It is applied",
    ]


def test_calls_without_a_result_say_so(store: Store) -> None:
    session = a_conversation(store)
    run(store, session, call(1, "a", "sleep 1"), response="done")
    steps.enqueue(store, session, "stopped")
    claimed = steps.claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    store.record_events(claimed.lease, [call(1, "a", "sleep 2")])
    store.finish_turn(claimed.lease, failed(FailureClass.INTERRUPTED))

    marked = [line for line in read(store, session) if line.startswith("?")]
    assert marked == ["? Bash: sleep 1 | its end was not reported", "? Bash: sleep 2 | its end is not known"]


def test_a_delegated_session_tells_its_changes_between_the_turns(store: Store) -> None:
    session = steps.begin(store, purpose="apply the plan")
    steps.run(store, session, "plan")
    store.finalize_session(session.id, session.phase.COMPLETED, None)

    found = read(store, session)
    assert found[0] == "created: apply the plan"
    assert found[-1] == "finalized: initializing → completed"
    assert "turn 1 · plan" in found
    assert read(store, session, 1, 1)[-1] == "answers re: plan"


def test_a_turn_that_does_not_exist_is_not_found(store: Store) -> None:
    session = a_conversation(store)
    with pytest.raises(NotFound):
        Reader(store, session.id).turn(1)


def test_the_newest_turns_are_found_without_reading_the_others(store: Store) -> None:
    session = a_conversation(store)
    for number in range(30):
        store.record_turn(session.id, a_turn(f"prompt {number}"), "a long answer " * 1000, NO_USAGE)
    store.truncate(session.id, 28)
    counted = CountedStore(store)
    reader = Reader(counted.as_store, session.id)

    assert reader.first_of_newest(2) == 27
    assert counted.bytes_read < 10_000
    assert reader.first_of_newest(100) == 1


def test_a_long_session_is_read_as_far_as_somebody_looks(store: Store) -> None:
    session = a_conversation(store)
    for number in range(300):
        store.record_turn(session.id, a_turn(f"prompt {number}"), "x" * 10_000, NO_USAGE)
    counted = CountedStore(store)
    walk = Reader(counted.as_store, session.id).walk()

    assert told(next(walk)) == "turn 1 · prompt 0"
    assert counted.bytes_read < 100_000
    largest, before, turns = 0, counted.bytes_read, 1
    for piece in walk:
        largest, before = max(largest, counted.bytes_read - before), counted.bytes_read
        turns += isinstance(piece, TurnBegins)
    assert turns == 300
    assert largest < 1_000_000


def test_what_happens_while_a_turn_is_followed_is_told_as_it_comes(store: Store) -> None:
    session = a_conversation(store)
    steps.enqueue(store, session, "go")
    claimed = steps.claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    following = Reader(store, session.id).follow()

    def until_nothing_is_new() -> list[str]:
        found = []
        while (piece := next(following)) is not None:
            found.append(told(piece))
        return found

    assert until_nothing_is_new() == ["turn 1 · go"]
    store.record_events(claimed.lease, [call(1, "a", "ls"), result(2, "a")])
    assert until_nothing_is_new() == ["✓ Bash: ls"]
    store.finish_turn(claimed.lease, done("ready"))
    assert until_nothing_is_new() == ["answers ready", ""]
    steps.run(store, session, "more")
    assert until_nothing_is_new()[0] == "turn 2 · more"
    store.finalize_session(session.id, session.phase.COMPLETED, None)
    assert list(following) == []


def test_a_followed_turn_says_what_it_waits_for(store: Store) -> None:
    session = a_conversation(store)
    asked = a_waiting_turn(store, session)
    following = Reader(store, session.id).follow(1, 1)
    found = []
    while (piece := next(following)) is not None:
        found.append(told(piece))

    assert found[-1] == f"notes waits for approval {asked.id}: Bash: terraform apply"
    store.cancel_turn(session.id, 1)
    assert store.get_turn(session.conversation_id, 1).status is TurnStatus.CANCELLED
    assert "cancelled" in [told(piece) for piece in following if piece is not None]
