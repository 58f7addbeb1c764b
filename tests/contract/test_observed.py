"""Owns the clauses on sessions that were only watched: events that come late, twice, out of order or at once."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from holdfast.clock import after
from holdfast.domain.observed import ObservedSession, Reading, Sighting
from holdfast.domain.sessions import Old
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from tests.builders import a_provider_session_id
from tests.clock import NOON
from tests.contract.test_threads import THREADS, at_once, errors_of

ID = "5b1c2d3e-0000-4000-8000-00000000beef"


def a_sighting(minute: float = 0, **changes: Any) -> Sighting:
    """Of the same session, so many minutes after noon."""
    return Sighting(**{"provider": "claude", "id": ID, "at": after(NOON, minute * 60), **changes})


def a_reading(start: int, end: int, *, tokens: int = 0, replaced: bool = False) -> Reading:
    """So many tokens went in, half of them out of a cache, and a tenth came out."""
    return Reading(
        start=start,
        end=end,
        replaced=replaced,
        input_tokens=tokens,
        cached_input_tokens=tokens // 2,
        output_tokens=tokens // 10,
        context_tokens=tokens or None,
        last_message=f"msg-{end}",
    )


def used(session: ObservedSession) -> tuple[int, int, int]:
    return session.input_tokens, session.cached_input_tokens, session.output_tokens


class TestObserved:
    def seen(self, store: Store) -> ObservedSession:
        found = store.observed_session("claude", ID)
        assert found is not None
        return found

    def test_what_is_seen_first_begins_it(self, store: Store) -> None:
        seen = a_sighting(cwd="/srv/infra", transcript_path="/home/ada/t.jsonl", source="startup")
        expected = ObservedSession(
            provider="claude",
            id=ID,
            started_at=NOON,
            last_seen_at=NOON,
            cwd="/srv/infra",
            transcript_path="/home/ada/t.jsonl",
            source="startup",
        )
        assert store.observe_session(seen) == expected
        assert store.observed_session("claude", ID) == expected

    def test_nobody_has_seen_what_was_never_seen(self, store: Store) -> None:
        store.observe_session(a_sighting())
        assert store.observed_session("codex", ID) is None
        assert store.observed_session("claude", "another") is None

    def test_the_same_event_again_changes_nothing(self, store: Store) -> None:
        events = [
            a_sighting(0, source="startup", cwd="/srv"),
            a_sighting(1, reading=a_reading(0, 500, tokens=100)),
            a_sighting(2, compacts=True),
            a_sighting(3, end_reason="other"),
        ]
        for event in events:
            store.observe_session(event)
        before = self.seen(store)
        for event in events:
            assert store.observe_session(event) == before

    def test_the_order_in_which_events_arrive_does_not_matter(self, store: Store) -> None:
        events: list[dict[str, Any]] = [
            {"minute": 0, "source": "startup", "cwd": "/old", "transcript_path": "/old.jsonl"},
            {"minute": 1, "end_reason": "logout", "cwd": "/old"},
            {"minute": 2, "source": "resume", "cwd": "/new"},
            {"minute": 3, "end_reason": "other", "cwd": "/newest"},
        ]
        for number, order in enumerate(permutations(events)):
            provider_session_id = f"order-{number}"
            for event in order:
                store.observe_session(a_sighting(id=provider_session_id, **event))
            found = store.observed_session("claude", provider_session_id)
            assert found == ObservedSession(
                provider="claude",
                id=provider_session_id,
                started_at=NOON,
                last_seen_at=after(NOON, 180),
                cwd="/newest",
                transcript_path="/old.jsonl",
                source="startup",
                ended_at=after(NOON, 180),
                end_reason="other",
            )

    def test_a_session_that_goes_on_has_not_ended(self, store: Store) -> None:
        store.observe_session(a_sighting(1, end_reason="other"))
        store.observe_session(a_sighting(2, source="resume"))
        assert (self.seen(store).ended_at, self.seen(store).end_reason) == (None, None)

    def test_an_end_that_arrives_late_does_not_end_what_goes_on(self, store: Store) -> None:
        store.observe_session(a_sighting(2, source="resume"))
        store.observe_session(a_sighting(1, end_reason="other"))
        assert self.seen(store).ended_at is None

    def test_what_happens_in_the_moment_of_the_end_does_not_undo_it(self, store: Store) -> None:
        store.observe_session(a_sighting(1, end_reason="other"))
        store.observe_session(a_sighting(1))
        assert self.seen(store).ended_at == after(NOON, 60)

    def test_every_compaction_counts_once(self, store: Store) -> None:
        for minute in (1, 2, 2, 1, 3):
            store.observe_session(a_sighting(minute, compacts=True))
        assert self.seen(store).compactions == 3

    def test_readings_add_up(self, store: Store) -> None:
        store.observe_session(a_sighting(1, reading=a_reading(0, 500, tokens=100)))
        store.observe_session(a_sighting(2, reading=a_reading(500, 900, tokens=40)))
        found = self.seen(store)
        assert used(found) == (140, 70, 14)
        assert (found.context_tokens, found.transcript_offset, found.last_message) == (40, 900, "msg-900")

    def test_a_reading_that_says_nothing_keeps_what_was_known(self, store: Store) -> None:
        store.observe_session(a_sighting(1, reading=a_reading(0, 500, tokens=100)))
        silent = Reading(start=500, end=700)
        found = store.observe_session(a_sighting(2, reading=silent))
        assert (used(found), found.context_tokens, found.last_message) == ((100, 50, 10), 100, "msg-500")
        assert found.transcript_offset == 700

    @pytest.mark.parametrize("start", [0, 499, 501])
    def test_a_reading_that_begins_elsewhere_does_not_count(self, store: Store, start: int) -> None:
        store.observe_session(a_sighting(1, reading=a_reading(0, 500, tokens=100)))
        found = store.observe_session(a_sighting(2, reading=a_reading(start, 900, tokens=40)))
        assert (used(found), found.transcript_offset) == ((100, 50, 10), 500)
        assert found.last_seen_at == after(NOON, 120)

    def test_a_file_that_took_the_place_of_another_is_counted_anew(self, store: Store) -> None:
        store.observe_session(a_sighting(1, reading=a_reading(0, 500, tokens=100)))
        replaced = a_reading(500, 200, tokens=30, replaced=True)
        found = store.observe_session(a_sighting(2, reading=replaced))
        assert (used(found), found.transcript_offset) == ((30, 15, 3), 200)

    def test_the_one_seen_last_comes_first(self, store: Store) -> None:
        ids = [a_provider_session_id() for _ in range(3)]
        for minute, provider_session_id in zip((2, 3, 1), ids, strict=True):
            store.observe_session(a_sighting(minute, id=provider_session_id))
        newest = [ids[1], ids[0], ids[2]]
        assert [found.id for found in store.observed_sessions()] == newest
        assert [found.id for found in store.observed_sessions(limit=2)] == newest[:2]
        assert store.observed_sessions(limit=0) == ()
        with pytest.raises(InvalidInput):
            store.observed_sessions(limit=-1)

    def test_cleaning_up_forgets_what_was_not_seen_since(self, store: Store) -> None:
        old, new = a_provider_session_id(), a_provider_session_id()
        store.observe_session(a_sighting(0, id=old))
        store.observe_session(a_sighting(1, id=new))
        cutoff = after(NOON, 60)
        store.clean_up(Old(cutoff), dry_run=True)
        assert len(store.observed_sessions()) == 2
        store.clean_up(Old(cutoff))
        assert [found.id for found in store.observed_sessions()] == [new]

    @pytest.mark.parametrize("again", range(3))
    def test_whoever_reads_at_once_is_counted_once(self, store: Store, again: int) -> None:
        reading = a_reading(0, 500 + again, tokens=100)
        answers = at_once(lambda number: store.observe_session(a_sighting(number, reading=reading)))
        assert errors_of(answers) == []
        found = self.seen(store)
        assert (used(found), found.transcript_offset) == ((100, 50, 10), 500 + again)
        assert found.last_seen_at == after(NOON, 60 * (THREADS - 1))
