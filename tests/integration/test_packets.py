"""A packet gathered from a store: what of the record reaches it."""

import json
from collections.abc import Iterator

import pytest

from holdfast import Holdfast, Session
from holdfast.domain.decisions import Because, Reason
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.redaction import Json
from holdfast.domain.telling.packet import packet_document
from holdfast.domain.telling.tool_calls import CallOutcome
from holdfast.domain.turns import Lease
from holdfast.engine.packets import gather_packet
from holdfast.engine.past import PastReader
from holdfast.store.open import open_store
from tests import steps
from tests.builders import an_event, done, failed
from tests.clock import NOON, ManualClock

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def library(clock: ManualClock) -> Iterator[Holdfast]:
    with Holdfast(open_store("sqlite:///:memory:", clock=clock)) as opened:
        yield opened


@pytest.fixture
def session(library: Holdfast) -> Session:
    return library.create("terraform-architect", "Move the cluster")


def a_call(number: int, call_id: str, tool: str = "Bash", **arguments: Json) -> Event:
    data: dict[str, Json] = {"call_id": call_id, "tool": tool, "arguments": dict(arguments)}
    return Event(number, EventKind.TOOL_CALL, data, NOON)


def a_result(number: int, call_id: str, output: str = "fine") -> Event:
    return Event(
        number, EventKind.TOOL_RESULT, {"call_id": call_id, "output": output, "is_error": False}, NOON
    )


def begin_turn(library: Holdfast, session: Session, prompt: str, *events: Event) -> Lease:
    steps.enqueue(library.store, session, prompt)
    lease = steps.claim(library.store, session).lease
    library.store.record_events(lease, events)
    return lease


def recover(library: Holdfast, clock: ManualClock) -> None:
    clock.advance(3600)
    (orphan,) = library.store.orphans()
    library.store.recover(orphan)


def test_a_session_that_never_ran_has_an_empty_packet(library: Holdfast, session: Session) -> None:
    packet = library.packet(session.id)
    assert (packet.goal, packet.next_turn, packet.why_fresh.reason) == (
        "Move the cluster",
        1,
        Reason.NO_POINTER,
    )
    assert (packet.turns, packet.tool_calls, packet.starts, packet.failures) == ((), (), (), ())
    assert not packet.is_unfinished


def test_turns_calls_files_and_starts_are_told(library: Holdfast, session: Session) -> None:
    events = (a_call(1, "a", "Write", file_path="/srv/main.tf"), a_result(2, "a", "written"))
    lease = begin_turn(library, session, "Write it.", *events)
    library.store.finish_turn(lease, done("Written."))

    packet = library.packet(session.id)

    assert [(turn.prompt, turn.response) for turn in packet.turns] == [("Write it.", "Written.")]
    assert [(call.tool, call.outcome, call.output) for call in packet.tool_calls] == [
        ("Write", CallOutcome.OK, "written")
    ]
    assert packet.artifacts == ("/srv/main.tf",)
    assert [(s.turn, s.decision, s.reason, s.status) for s in packet.starts] == [
        (1, "fresh", "no_pointer", "done")
    ]
    assert packet.next_turn == 2


def test_a_call_that_never_returned_is_in_flight_after_a_crash(
    library: Holdfast, session: Session, clock: ManualClock
) -> None:
    steps.run(library.store, session, "Plan it.")
    begin_turn(
        library, session, "Apply it.", a_call(1, "a"), a_result(2, "a"), a_call(3, "b", command="apply")
    )
    recover(library, clock)

    packet = library.packet(session.id)

    assert packet.next_turn == 2
    assert packet.interrupted
    assert [call.arguments for call in packet.in_flight] == ['{"command": "apply"}']
    assert [turn.seq for turn in packet.turns] == [1]


def test_a_later_answer_settles_what_was_in_flight(library: Holdfast, session: Session) -> None:
    lease = begin_turn(library, session, "Apply it.", a_call(1, "a"))
    library.store.finish_turn(lease, failed(FailureClass.TRANSIENT, f"529 {SECRET}"))
    assert library.packet(session.id).in_flight
    steps.run(library.store, session, "Look what happened.")

    packet = library.packet(session.id)

    assert not packet.in_flight
    assert [call.outcome for call in packet.tool_calls] == [CallOutcome.NOT_REPORTED]
    assert [failure.failure_class for failure in packet.failures] == ["transient"]


def test_the_turn_that_is_about_to_start_is_not_part_of_its_own_past(
    library: Holdfast, session: Session
) -> None:
    steps.run(library.store, session, "Plan it.")
    begin_turn(library, session, "Apply it.")
    conversation = library.store.get_conversation(session.conversation_id)
    reader = PastReader(library.store, session, conversation)
    packet = gather_packet(reader, ContextPolicy(), Because(Reason.FORCE_FRESH), seq=2)
    assert [turn.seq for turn in packet.turns] == [1]
    assert [start.turn for start in packet.starts] == [1]
    assert not packet.interrupted


def test_a_fork_knows_the_calls_of_the_turns_it_inherited(library: Holdfast, session: Session) -> None:
    lease = begin_turn(library, session, "Write it.", a_call(1, "a", "Write", path="/srv/main.tf"))
    library.store.finish_turn(lease, done())
    fork = library.fork(session.id)
    assert library.packet(fork.id).artifacts == ("/srv/main.tf",)


def test_without_a_purpose_the_goal_is_the_last_real_request(library: Holdfast) -> None:
    session = library.create("claude")
    for prompt in ("Port the parser.", "continue"):
        steps.run(library.store, session, prompt)
    assert library.packet(session.id).goal == "Port the parser."


def test_no_secret_reaches_a_packet(library: Holdfast) -> None:
    session = library.create("claude")
    lease = begin_turn(library, session, f"Use {SECRET}.", a_call(1, "a", command=f"curl {SECRET}"))
    library.store.finish_turn(lease, failed(message=f"bad token {SECRET}"))
    document = json.dumps(packet_document(library.packet(session.id)))
    assert "bad token" in document
    assert SECRET not in document


def test_a_long_record_is_read_from_its_end(library: Holdfast, session: Session) -> None:
    for number in range(30):
        steps.run(library.store, session, f"step {number} " + "x" * 50_000)
    lease = begin_turn(library, session, "Go.", *(an_event(n) for n in range(1, 900)), a_call(900, "z"))
    library.store.finish_turn(lease, failed())

    packet = library.packet(session.id)

    assert [turn.seq for turn in packet.turns] == list(range(22, 32))
    assert [call.turn for call in packet.in_flight] == [31]
    assert len(json.dumps(packet_document(packet))) < 400_000


def test_the_directory_that_is_given_wins_over_the_recorded_one(
    library: Holdfast, session: Session, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = str(tmp_path_factory.mktemp("project"))
    assert library.packet(session.id, work_dir=here).ground_truth.work_dir == here
