"""Telling what the agent is writing: four times a second, the newest text, and never in the way of the turn."""

from collections.abc import Iterator

import pytest

from holdfast.domain.events import Noted, PartialText, Said, Writing
from holdfast.engine.running import launching
from holdfast.engine.running.launching import LiveText, Recorder
from holdfast.errors import LeaseLost, StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests import steps
from tests.clock import ManualClock, give_time


class Desk:
    """The text of one attempt, on a store in memory; ``time`` is what the clock of the process says."""

    def __init__(self) -> None:
        store = open_store("sqlite:///:memory:")
        assert isinstance(store, SqlStore)
        self.store = store
        session = steps.begin(store)
        steps.enqueue(store, session, "do it")
        self.lease = steps.claim(store, session).lease
        self.time = 100.0
        self.told: list[object] = []
        self.writes = 0
        self.slow = 0.0  #: seconds that each write takes
        self.error: Exception | None = None  #: of each write
        self._put = store.put_partial_text
        store.put_partial_text = self._count  # type: ignore[method-assign, assignment]
        self.recorder = Recorder(store, self.lease, ManualClock(), lambda _: None)
        self.live = LiveText(store, self.lease, self.recorder, self.told.append)

    def _count(self, *args: object) -> None:
        self.writes += 1
        self.time += self.slow
        if self.error is not None:
            raise self.error
        self._put(*args)  # type: ignore[arg-type]

    def write(self, text: str, *, after: float = 0.0) -> None:
        self.time += after
        self.live.add(Writing(text))
        self.live.tick()

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.live.tick()

    @property
    def shown(self) -> PartialText | None:
        return self.store.partial_text(self.lease.session_id)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk()
    give_time(launching, monkeypatch, monotonic=lambda: made.time)
    yield made
    made.store.close()


def test_a_text_is_told_after_a_quarter_of_a_second(desk: Desk) -> None:
    desk.write("It ")
    desk.wait(0.2)
    assert (desk.told, desk.writes) == ([], 0)
    desk.write("It is ")
    desk.wait(0.1)
    assert desk.told == [Writing("It is ")]
    assert desk.shown == PartialText(1, 1, 1, "It is ", 0)


def test_it_is_told_four_times_a_second_however_fast_it_is_written(desk: Desk) -> None:
    for number in range(1000):
        desk.write(f"{number} ", after=0.01)
    assert 30 <= desk.writes <= 40
    assert len(desk.told) == desk.writes


def test_a_text_that_is_whole_is_not_told_any_more(desk: Desk) -> None:
    desk.write("It ")
    desk.live.drop()
    desk.wait(1)
    assert (desk.told, desk.writes) == ([], 0)


def test_nothing_is_written_again_while_nothing_is_new(desk: Desk) -> None:
    desk.write("It ")
    for _ in range(10):
        desk.wait(1)
    assert desk.writes == 1


def test_text_that_waits_becomes_an_event_before_it(desk: Desk) -> None:
    desk.recorder.add(Noted("first"))
    desk.recorder.add(Said("second"))
    desk.write("third ")
    desk.wait(0.3)
    assert desk.shown is not None
    assert desk.shown.number == 3

    desk.recorder.add(Said("third and all"))
    desk.recorder.close(0)

    found = desk.store.events(desk.lease.conversation_id, 1)
    assert [event.data["text"] for _, event in found] == ["first", "second", "third and all"]
    assert desk.shown is None


def test_a_slow_store_is_written_to_a_fifth_of_the_time(desk: Desk) -> None:
    desk.slow = 1.0
    began = desk.time
    for number in range(400):
        desk.write(f"{number} ", after=0.05)
    assert desk.writes <= (desk.time - began) / 5 + 1


def test_a_store_that_is_away_is_left_alone_and_the_observer_is_told_all_the_same(desk: Desk) -> None:
    desk.error = StoreUnavailable("here", "not now")
    desk.write("It ")
    desk.wait(0.3)
    assert (desk.told, desk.writes) == ([Writing("It ")], 1)

    desk.recorder.is_unreachable = True
    desk.write("It is ")
    desk.wait(0.3)
    assert (len(desk.told), desk.writes) == (2, 1)
    assert not desk.recorder.is_fenced


def test_a_lost_lease_ends_the_attempt(desk: Desk) -> None:
    desk.error = LeaseLost(desk.lease.session_id, 1, 1)
    desk.write("It ")
    desk.wait(0.3)
    assert desk.recorder.is_fenced
    desk.write("It is ")
    desk.wait(0.3)
    assert desk.writes == 1


def test_characters_that_no_store_can_hold_do_no_harm(desk: Desk) -> None:
    desk.write("nul\0 and \ud800 half ")
    desk.wait(0.3)
    assert desk.shown is not None
    assert "half" in desk.shown.text
