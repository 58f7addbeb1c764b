"""The record of a running attempt: small batches, bounded events, and patience with the store."""

from collections.abc import Iterator, Sequence

import pytest

from holdfast.domain.events import (
    Called,
    Ended,
    Event,
    EventKind,
    Named,
    Noted,
    Recorded,
    Returned,
    Said,
    Spent,
)
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.turns import Lease
from holdfast.domain.usage import Usage, UsageReport
from holdfast.engine.running import launching as recording
from holdfast.engine.running.launching import MAX_EVENT, Recorder, late_events
from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.store.wire import check_json
from tests import steps
from tests.clock import NOON, ManualClock, give_time

NATIVE = ProviderSessionId("native-1")
MARK = TranscriptMark("/file", 10, "digest")


class Desk:
    """A recorder on a store in memory, whose outages are counted down."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        store = open_store("sqlite:///:memory:", clock=self.clock)
        assert isinstance(store, SqlStore)
        self.store = store
        self.session = steps.begin(store)
        steps.enqueue(store, self.session, "do it")
        self.lease: Lease = steps.claim(store, self.session).lease
        self.outages = 0
        self.tries = 0
        self.written: list[int] = []  #: how many characters each call carried
        self.looks = 0
        self.saved: TranscriptMark | None = MARK
        self._write = store.record_events
        store.record_events = self._record  # type: ignore[method-assign]
        self.recorder = Recorder(store, self.lease, self.clock, self._look)

    def _look(self, _: ProviderSessionId) -> TranscriptMark | None:
        self.looks += 1
        return self.saved

    def _record(self, lease: Lease, events: Sequence[Event]) -> None:
        self.tries += 1
        if self.outages:
            self.outages -= 1
            raise StoreUnavailable("here", "not now")
        self._write(lease, events)
        self.written.append(sum(len(str(event.data)) for event in events))

    def add(self, *events: Named | Recorded) -> None:
        for event in events:
            self.recorder.add(event)

    def events(self) -> list[tuple[EventKind, dict[str, object]]]:
        found = self.store.events(self.lease.conversation_id, self.lease.seq, limit=10_000)
        return [(event.kind, dict(event.data)) for _, event in found]

    def pointed_to(self) -> str | None:
        pointer = self.store.pointer(self.session.id, "claude")
        return None if pointer is None else pointer.provider_session_id


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.store.close()


def test_pieces_of_text_become_one_event_and_everything_keeps_its_order(desk: Desk) -> None:
    desk.add(Said("a"), Said("b"), Called("1", "shell", {"command": "ls"}), Returned("1", "out", False))
    desk.add(Said("c"), Noted("retried"), Spent(UsageReport(Usage(1, 2, 3, 0.5))), Ended(True))
    assert desk.events() == []
    desk.recorder.close(0)
    kinds = [kind.value for kind, _ in desk.events()]
    assert kinds == ["text", "tool_call", "tool_result", "text", "notice", "usage", "notice"]
    assert desk.events()[0] == (EventKind.TEXT, {"text": "ab"})


def test_a_call_that_has_begun_is_on_record_before_it_ends(desk: Desk) -> None:
    desk.add(Said("let me see"), Called("1", "shell", {"command": "make"}))
    desk.recorder.tick(more_to_come=True)
    assert desk.events() == []  # its result may be there already

    desk.recorder.tick()

    assert [kind.value for kind, _ in desk.events()] == ["text", "tool_call"]
    desk.add(Returned("1", "made", False), Called("2", "shell", {}), Returned("2", "", False))
    desk.recorder.tick()
    assert len(desk.written) == 1  # whose end is known as well waits with it


def test_what_has_piled_up_is_written_in_pieces_that_a_server_takes(desk: Desk) -> None:
    desk.outages = 1
    for _ in range(40):
        desk.add(Said("x" * MAX_EVENT))
    assert desk.written == []

    desk.recorder.close(0)

    assert sum(len(str(data["text"])) for _, data in desk.events()) == 40 * MAX_EVENT
    assert max(desk.written) < 300 * 1024
    assert len(desk.written) == 5


def test_no_event_is_larger_than_it_may_be(desk: Desk) -> None:
    desk.add(Said("x" * (2 * MAX_EVENT + 1)), Returned("1", "y" * (2 * MAX_EVENT), False))
    desk.add(Called("2", "write", {"text": "z" * (2 * MAX_EVENT), "deep": {"text": "z" * (2 * MAX_EVENT)}}))
    desk.recorder.close(0)
    texts = [data["text"] for kind, data in desk.events() if kind is EventKind.TEXT]
    assert "".join(map(str, texts)) == "x" * (2 * MAX_EVENT + 1)
    assert max(len(str(data)) for _, data in desk.events()) < 3 * MAX_EVENT


def test_a_batch_is_written_when_it_is_large_and_when_it_is_old(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add(*[Noted(str(n)) for n in range(256)], Noted("young"))
    assert len(desk.events()) == 256
    desk.recorder.tick()
    assert len(desk.events()) == 256
    monkeypatch.setattr(recording, "_BATCH_SECONDS", 0.0)
    desk.recorder.tick()
    assert len(desk.events()) == 257


def test_an_outage_is_sat_out_and_nothing_is_lost_or_written_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_BATCH_SECONDS", 0.01)
    desk.outages = 3
    desk.add(*[Noted(str(n)) for n in range(300)])
    desk.recorder.close(30)
    assert [data["text"] for _, data in desk.events()] == [str(n) for n in range(300)]


def test_an_outage_without_an_end_is_not_waited_for_for_ever(desk: Desk) -> None:
    desk.outages = 1_000_000
    desk.add(*[Noted(str(n)) for n in range(10_000)])
    desk.recorder.close(0)
    assert desk.events() == []


def test_a_store_that_is_away_is_not_tried_again_for_each_event(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_BATCH_SECONDS", 60.0)
    desk.outages = 1_000_000
    for n in range(1000):
        desk.add(Noted(str(n)))
        desk.recorder.tick()
    assert desk.tries == 1
    desk.outages = 0
    monkeypatch.setattr(recording, "_BATCH_SECONDS", 0.0)
    desk.recorder.tick()
    assert len(desk.events()) == 1000


def test_what_waits_too_long_for_the_store_makes_room_from_its_beginning_and_that_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MOST_CHARACTERS_WAITING", 1000)
    monkeypatch.setattr(recording, "_BATCH_EVENTS", 1)
    desk.outages = 1
    desk.add(*[Called(str(n), "shell", {"command": "x" * 390}) for n in range(4)])
    desk.add(Noted("next"))
    desk.recorder.close(0)
    notice, *kept = [data for _, data in desk.events()]
    assert notice == {"text": "2 events were dropped: the store could not be reached"}
    assert [data.get("call_id", data.get("text")) for data in kept] == ["2", "3", "next"]
    desk.add(Noted("later"))
    assert desk.events()[-1] == (EventKind.NOTICE, {"text": "later"})
    assert len(desk.events()) == 5


def test_much_text_at_once_is_kept_whole_by_a_store_that_can_be_reached(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MOST_CHARACTERS_WAITING", MAX_EVENT)
    desk.add(Said("x" * (10 * MAX_EVENT)))
    desk.recorder.close(0)
    assert [kind for kind, _ in desk.events()] == [EventKind.TEXT] * 10


def test_whoever_lost_the_lease_records_nothing_more(desk: Desk) -> None:
    desk.add(Noted("before"))
    steps.lose(desk.store, desk.clock, desk.lease)
    desk.recorder.close(30)
    assert desk.recorder.is_fenced
    assert desk.events() == []


def test_a_session_is_pointed_to_once_its_provider_has_saved_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_LOOK_SECONDS", 0.0)
    desk.saved = None
    desk.add(Named(NATIVE))
    desk.recorder.tick()
    assert desk.pointed_to() is None
    desk.saved = MARK
    desk.recorder.tick()
    assert desk.pointed_to() == NATIVE


def test_the_providers_own_store_is_not_looked_at_for_every_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_LOOK_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(recording, name, 60.0)
    desk.saved = None
    desk.add(Named(NATIVE))
    for _ in range(100):
        desk.recorder.tick()
    assert desk.looks == 1
    desk.saved = MARK
    desk.recorder.close(0)
    assert desk.pointed_to() == NATIVE


def test_a_session_is_looked_for_more_and_more_rarely_but_at_once_when_a_call_begins(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    give_time(recording, monkeypatch, monotonic=lambda: now)
    desk.saved = None
    desk.add(Named(NATIVE))
    for _ in range(400):
        desk.recorder.tick()
        now += 0.01
    assert desk.looks == 7, "after 0.1, 0.2, 0.4, 0.8, 1 and 1 s"
    desk.saved = MARK
    desk.add(Called("c1", "shell", {}))
    desk.recorder.tick()
    assert desk.pointed_to() == NATIVE


def test_of_more_late_events_than_a_server_takes_the_newest_are_kept() -> None:
    found = [Called(str(number), "shell", {"command": "x" * 2 * MAX_EVENT}) for number in range(20)]

    late = late_events(found, 7, NOON)

    assert 1 < len(late) < len(found)
    assert [event.number for event in late] == list(range(8, 8 + len(late)))
    assert late[-1].data["call_id"] == "19"
    assert all(len(str(event.data)) < 2 * MAX_EVENT for event in late)
    assert len(late_events([Called(str(number), "shell", {}) for number in range(1000)], 0, NOON)) == 256


@pytest.mark.parametrize("odd", ["a\x00b", "a\ud800b"])
def test_what_an_agent_says_is_recorded_as_a_server_takes_it(desk: Desk, odd: str) -> None:
    nested: Json = {"deep": [odd, {odd: float("inf")}]}
    desk.add(Said(odd), Called(odd, odd, {odd: odd, "nested": nested, "plain": {"x": [1]}}))
    desk.add(Returned(odd, odd, is_error=False), Noted(odd), Ended(ok=False, error=odd, code=odd))

    events = list(desk.recorder._batch)

    assert len(events) == 5
    for event in events:
        check_json(dict(event.data), event.kind)
    assert events[1].data["call_id"] == events[2].data["call_id"]
    assert events[1].data["arguments"]["plain"] == {"x": [1]}  # type: ignore[index, call-overload]
