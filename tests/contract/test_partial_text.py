"""Owns the clauses on partial text: one for each session, replaced while the agent writes, and gone with its attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.domain.events import MAX_WRITING, PartialText, Writing
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.turns import Lease
from holdfast.errors import InvalidInput, LeaseLost, NotFound
from holdfast.store.contract import Store
from tests.builders import a_claim, an_event, done, failed
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.steps import begin, claim, enqueue, lose, refused, run

GONE = Failure(FailureClass.GONE, "no conversation found")


def writing(store: Store, text: str = "half of ") -> Lease:
    """A second turn, so that there is something to fall back from."""
    session = begin(store)
    run(store, session)
    enqueue(store, session, "go", max_attempts=9)
    lease = claim(store, session).lease
    store.put_partial_text(lease, 1, Writing(text))
    return lease


def shown(store: Store, lease: Lease) -> str | None:
    found = store.partial_text(lease.session_id)
    return None if found is None else found.text


class TestPartialText:
    def test_a_session_has_none_until_an_agent_writes(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "go")
        assert store.partial_text(session.id) is None
        claim(store, session)
        assert store.partial_text(session.id) is None

    def test_it_says_which_turn_and_attempt_it_is_of_and_which_event_it_becomes(self, store: Store) -> None:
        lease = writing(store)
        store.put_partial_text(lease, 4, Writing("the end of it ", skipped=70))

        assert store.partial_text(lease.session_id) == PartialText(2, 1, 4, " end of it ", 73)

    def test_the_newest_replaces_the_one_before(self, store: Store) -> None:
        lease = writing(store, "half of ")
        store.put_partial_text(lease, 1, Writing("half of the answer "))
        assert shown(store, lease) == "half of the answer "
        store.put_partial_text(lease, 1, Writing("again "))
        assert shown(store, lease) == "again "

    def test_it_is_no_event_and_no_activity_of_the_session(self, store: Store, clock: ManualClock) -> None:
        lease = writing(store)
        before = store.get_session(lease.session_id)
        clock.advance(5)
        store.put_partial_text(lease, 1, Writing("more of "))

        assert store.get_session(lease.session_id) == before
        assert store.events(lease.conversation_id, lease.seq) == ()

    def test_it_is_gone_as_soon_as_its_event_is_recorded(self, store: Store) -> None:
        lease = writing(store)
        store.put_partial_text(lease, 2, Writing("half of "))
        store.record_events(lease, [an_event(1)])
        assert shown(store, lease) == "half of ", "that was an event before it"

        store.record_events(lease, [an_event(2)])
        assert shown(store, lease) is None

        store.put_partial_text(lease, 3, Writing("the next "))
        assert shown(store, lease) == "the next "

    @pytest.mark.parametrize(
        "end",
        [
            lambda store, clock, lease: store.finish_turn(lease, done("all of it")),
            lambda store, clock, lease: store.finish_turn(
                lease, failed(FailureClass.TRANSIENT, retry_at=clock())
            ),
            lambda store, clock, lease: store.put_back(lease),
            lambda store, clock, lease: store.fall_back(lease, GONE, "fallback"),
            lose,
        ],
        ids=["finished", "failed", "put back", "fallen back", "recovered"],
    )
    def test_it_is_gone_when_its_attempt_ends(
        self, store: Store, clock: ManualClock, end: Callable[[Store, ManualClock, Lease], object]
    ) -> None:
        lease = writing(store)
        end(store, clock, lease)
        assert shown(store, lease) is None

        store.claim_turn(a_claim(owner="worker-2"))
        assert shown(store, lease) is None, "the next attempt has written nothing"

    def test_what_a_killed_worker_left_is_shown_until_the_turn_is_recovered(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = writing(store)
        clock.advance(3600)
        assert shown(store, lease) == "half of ", "nobody knows yet that the worker is gone"

        (orphan,) = store.orphans()
        store.recover(orphan)
        assert shown(store, lease) is None

    def test_a_worker_that_lost_its_lease_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        lease = writing(store)
        lose(store, clock, lease)
        taken = store.claim_turn(a_claim(owner="worker-2"))
        assert taken is not None
        store.put_partial_text(taken.lease, 1, Writing("by the second "))

        with refused(store, LeaseLost):
            store.put_partial_text(lease, 1, Writing("by the first "))
        assert shown(store, lease) == "by the second "

    def test_a_lease_must_be_the_one_of_the_attempt(self, store: Store) -> None:
        lease = writing(store)
        for wrong in (
            replace(lease, attempt=7),
            replace(lease, seq=1),
            replace(lease, fence=lease.fence + 1),
        ):
            with pytest.raises(LeaseLost):
                store.put_partial_text(wrong, 1, Writing("by nobody "))
        assert shown(store, lease) == "half of "

    def test_of_a_long_text_the_end_is_kept_from_a_whole_word_on(self, store: Store) -> None:
        lease = writing(store, "word " * 10_000)

        found = store.partial_text(lease.session_id)

        assert found is not None
        assert len(found.text) <= MAX_WRITING
        assert found.text.endswith(" word word ")
        assert found.text.startswith(" word ")
        assert found.skipped + len(found.text) == 50_000

    def test_secrets_are_redacted_and_the_unfinished_word_is_not_shown(self, store: Store) -> None:
        key = "sk-ant-api03-" + "Ab3d" * 24
        lease = writing(store, f"the key is {key[:30]}")
        assert shown(store, lease) == "the key is "

        store.put_partial_text(lease, 1, Writing(f"the key is {key} and"))
        text = shown(store, lease)
        assert text is not None
        assert "sk-ant" not in text
        assert text.startswith("the key is [redacted:")

    @pytest.mark.parametrize("filler", [0, 100, 15_500, 16_000])
    def test_no_part_of_a_private_key_is_shown_when_its_beginning_is_cut_off(
        self, store: Store, filler: int
    ) -> None:
        line = "MIIEpAIBAAKCAQEA7bq3" * 3
        key = "\n".join(
            ["-----BEGIN RSA PRIVATE KEY-----", *[line] * 20, "Zm9v=", "-----END RSA PRIVATE KEY-----"]
        )
        whole = f"This is it:\n{key}\n{'and so on ' * (filler // 10)}"
        lease = writing(store)

        for cut in (
            0,
            30,
            50,
            700,
            1_270,
        ):  # in the words before it, in its first line, in the middle, at its end
            store.put_partial_text(lease, 1, Writing(whole[cut:], skipped=cut))
            text = shown(store, lease) or ""
            assert "MIIE" not in text
            assert "Zm9v" not in text

    def test_a_text_without_spaces_is_shown_where_its_letters_are_no_secrets(self, store: Store) -> None:
        lease = writing(store, "答えは四十二です")
        assert shown(store, lease) == "答えは四十二です"

    def test_impossible_numbers_and_unknown_sessions_are_refused(self, store: Store) -> None:
        lease = writing(store)
        for number, skipped in ((-1, 0), (1, -1), (2**54, 0)):
            with pytest.raises(InvalidInput):
                store.put_partial_text(lease, number, Writing("x ", skipped))
        with pytest.raises(NotFound):
            store.partial_text("nobody")

    def test_another_workspace_does_not_see_it(self, store: Store, make_store: MakeStore) -> None:
        lease = writing(store)
        with pytest.raises(NotFound):
            make_store("other").partial_text(lease.session_id)
