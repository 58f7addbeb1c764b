"""Owns the clauses on listing sessions, and on rows that cannot be understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import Instant
from holdfast.domain.phases import MayContinue, Phase
from holdfast.domain.sessions import Old, Session, SessionFilter, SessionUpdate
from holdfast.domain.turns import TurnRequest
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput, UnreadableSession
from holdfast.store.contract import Store
from tests.builders import a_claim, a_session_id, a_turn, done
from tests.clock import ManualClock
from tests.contract.conftest import Damage, driver_of
from tests.steps import begin, claim, enqueue, join, run

ALL = SessionFilter()


def begin_some(store: Store, clock: ManualClock, count: int, agent: str = "terraform-architect") -> list[str]:
    """Their ids, newest first; a second lies between two."""
    ids = []
    for _ in range(count):
        ids.append(str(begin(store, agent=agent).id))
        clock.advance(1)
    return ids[::-1]


def listed(store: Store, wanted: SessionFilter = ALL, limit: int = 1000) -> list[str]:
    """Every id, page by page."""
    found: list[str] = []
    cursor = None
    while True:
        page = store.list_sessions(wanted, limit, cursor)
        assert len(page.sessions) + len(page.unreadable) <= limit
        found += [session.id for session in page.sessions]
        cursor = page.next_cursor
        if cursor is None:
            return found


class TestList:
    """``list_sessions`` and ``children``."""

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        page = store.list_sessions(ALL, 10)
        assert (page.sessions, page.unreadable, page.next_cursor) == ((), {}, None)

    def test_a_page_of_long_records_ends_early(self, store: Store, clock: ManualClock) -> None:
        ids = []
        for _ in range(24):
            ids.append(str(begin(store, metadata={"found": "x" * 250_000}).id))
            clock.advance(1)

        first = store.list_sessions(ALL, 1000)

        assert 10 < len(first.sessions) < 20
        assert listed(store) == ids[::-1]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_pages_hold_every_session_once_and_the_newest_first(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        ids = begin_some(store, clock, 7)
        assert listed(store, limit=limit) == ids

    def test_a_session_is_listed_as_get_gives_it(self, store: Store) -> None:
        session = begin(store, metadata={"a": 1}, name="infra")
        store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING, error="broken"))
        assert store.list_sessions(ALL, 10).sessions == (store.get_session(session.id),)

    def test_a_last_page_that_is_full_has_no_cursor(self, store: Store, clock: ManualClock) -> None:
        begin_some(store, clock, 4)
        second = store.list_sessions(ALL, 2, store.list_sessions(ALL, 2).next_cursor)
        assert len(second.sessions) == 2
        assert second.next_cursor is None

    def test_sessions_of_one_instant_are_listed_once_each(self, store: Store) -> None:
        ids = {begin(store).id for _ in range(7)}
        found = listed(store, limit=2)
        assert len(found) == 7
        assert set(found) == ids

    def test_a_cursor_keeps_its_place_while_sessions_come(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 6)
        first = store.list_sessions(ALL, 3)
        begin_some(store, clock, 4)
        second = store.list_sessions(ALL, 3, first.next_cursor)
        assert [session.id for session in first.sessions + second.sessions] == ids

    def test_a_cursor_keeps_its_place_while_sessions_go(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 6)
        first = store.list_sessions(ALL, 3)
        store.remove_session(ids[2])
        store.remove_session(ids[3])
        second = store.list_sessions(ALL, 3, first.next_cursor)
        assert [session.id for session in second.sessions] == ids[4:]

    def test_activity_does_not_move_a_session(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 3)
        store.update_session(ids[-1], SessionUpdate(phase=Phase.PLANNING))
        assert listed(store) == ids

    @pytest.mark.parametrize(
        "cursor", ["", "x", "12", "~", "x~agent-1", "1.5~agent-1", "9" * 19 + "~a", "1" * 30 + "~a"]
    )
    def test_what_is_no_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            store.list_sessions(ALL, 10, cursor)
        assert caught.value.field == "cursor"

    def test_only_active_sessions(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 4)
        store.finalize_session(ids[1], Phase.COMPLETED, None)
        assert listed(store, SessionFilter(active_only=True), limit=2) == [ids[0], *ids[2:]]

    def test_only_one_agent(self, store: Store, clock: ManualClock) -> None:
        begin_some(store, clock, 2, "gitops-operator")
        mine = begin_some(store, clock, 3, "terraform-architect")
        begin_some(store, clock, 2, "terraform")
        assert listed(store, SessionFilter(agent="terraform-architect"), limit=2) == mine

    def test_since_is_inclusive_and_until_is_not(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 5)
        created = [store.get_session(session_id).created_at for session_id in ids]
        assert listed(store, SessionFilter(since=created[2]), limit=2) == ids[:3]
        assert listed(store, SessionFilter(until=created[2]), limit=1) == ids[3:]
        assert listed(store, SessionFilter(since=created[3], until=created[1])) == ids[2:4]
        assert listed(store, SessionFilter(since=Instant(created[0] + 1))) == []

    def test_filters_hold_together(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 4)
        begin_some(store, clock, 2, "gitops-operator")
        store.finalize_session(ids[2], Phase.FAILED, None)
        since = store.get_session(ids[2]).created_at
        wanted = SessionFilter(active_only=True, agent="terraform-architect", since=since)
        assert listed(store, wanted, limit=1) == ids[:2]

    def test_by_activity_the_last_active_one_is_first(self, store: Store, clock: ManualClock) -> None:
        ids = begin_some(store, clock, 5)
        store.update_session(ids[-1], SessionUpdate(phase=Phase.PLANNING))
        clock.advance(1)
        store.update_session(ids[2], SessionUpdate(phase=Phase.PLANNING))
        for limit in (1, 2, 10):
            found = listed(store, SessionFilter(by_activity=True), limit)
            assert found == [ids[2], ids[4], ids[0], ids[1], ids[3]]

    def test_only_one_provider(self, store: Store) -> None:
        mine = begin(store, provider="codex").id
        begin(store, provider="claude")
        begin(store)
        assert listed(store, SessionFilter(provider="codex")) == [mine]

    def test_a_project_is_its_directory_and_those_below(self, store: Store, clock: ManualClock) -> None:
        there = []
        for project in ("/srv/app", "/srv/app/web", "/srv/apple", "/srv", None, "/srv/app%"):
            there.append(begin(store, project=project).id)
            clock.advance(1)
        assert listed(store, SessionFilter(project="/srv/app")) == [there[1], there[0]]
        assert listed(store, SessionFilter(project="/srv/app/")) == [there[1], there[0]]
        assert listed(store, SessionFilter(project="/")) == [there[5], *there[3::-1]]

    def test_the_directory_of_a_session_is_where_its_agent_worked_last(self, store: Store) -> None:
        session = begin(store, project="/srv")
        assert store.session_state(session.id).directory == "/srv"
        enqueue(store, session, "begin", request=TurnRequest(work_dir="/srv/app"))
        claim(store, session)
        (state,) = store.list_sessions(SessionFilter(project="/srv/app"), 10).states.values()
        assert state == store.session_state(session.id)
        assert state.directory == "/srv/app"

    @pytest.mark.parametrize(
        ("grep", "fits"),
        [
            ("PARSER", True),
            ("the Pars", True),
            ("straße", True),
            ("ÜBER", True),
            ("100%", True),
            ("100_", False),
            ("terraform", True),
            ("none of it", False),
        ],
    )
    def test_grep_finds_a_text_in_any_case_and_gives_no_character_a_meaning(
        self, store: Store, grep: str, fits: bool
    ) -> None:
        begin(store, agent="reviewer", purpose="another")
        session = begin(store, agent="terraform", purpose="Fix the parser, 100% über die Straße")
        assert listed(store, SessionFilter(grep=grep)) == ([session.id] if fits else [])

    def test_children_are_the_forks_of_a_session_oldest_first(self, store: Store, clock: ManualClock) -> None:
        parent = begin(store)
        forks = []
        for _ in range(3):
            clock.advance(1)
            forks.append(store.fork(parent.id, a_session_id()))
        store.fork(forks[0].id, a_session_id())
        assert store.children(parent.id) == tuple(forks)
        assert store.children(forks[2].id) == ()


#: what every engine can be made to hold
GARBAGE = [
    {"metadata": "{not json"},
    {"metadata": "[1, 2]"},
    {"metadata": "null"},
    {"metadata": ""},
    {"metadata": '{"deep": ' + "[" * 200_000},
    {"phase": "dancing"},
    {"phase": ""},
    {"kind": "martian"},
]


every_garbage = pytest.mark.parametrize(
    "garbage", GARBAGE, ids=lambda garbage: " ".join(f"{key}={value[:10]}" for key, value in garbage.items())
)
some_garbage = pytest.mark.parametrize(
    "garbage", [GARBAGE[0], {"phase": "dancing"}], ids=["metadata", "phase"]
)


class TestUnreadable:
    """A row that cannot be understood is named, never resumed, and affects no other session."""

    @every_garbage
    def test_reading_it_says_which_one_and_why(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        session = begin(store)
        damage(session.id, **garbage)
        with pytest.raises(UnreadableSession) as caught:
            store.get_session(session.id)
        assert caught.value.session_id == session.id
        assert caught.value.problem

    @every_garbage
    def test_a_list_names_it_and_goes_on(
        self, store: Store, clock: ManualClock, damage: Damage, garbage: dict[str, str]
    ) -> None:
        ids = begin_some(store, clock, 5)
        damage(ids[1], **garbage)
        page = store.list_sessions(ALL, 10)
        assert [session.id for session in page.sessions] == [ids[0], *ids[2:]]
        assert list(page.unreadable) == [ids[1]]
        assert page.unreadable[ids[1]]

    @some_garbage
    def test_it_takes_its_place_on_a_page(
        self, store: Store, clock: ManualClock, damage: Damage, garbage: dict[str, str]
    ) -> None:
        ids = begin_some(store, clock, 3)
        damage(ids[1], **garbage)
        second = store.list_sessions(ALL, 1, store.list_sessions(ALL, 1).next_cursor)
        assert (second.sessions, list(second.unreadable)) == ((), [ids[1]])
        third = store.list_sessions(ALL, 1, second.next_cursor)
        assert [session.id for session in third.sessions] == ids[2:]

    @pytest.mark.parametrize("at", [-5, 2**62], ids=["before time", "after time"])
    def test_a_place_that_makes_no_sense_does_not_end_the_list(
        self, store: Store, clock: ManualClock, damage: Damage, at: int
    ) -> None:
        ids = begin_some(store, clock, 3)
        damage(ids[1], created_at=at)
        assert listed(store, limit=1) == [ids[0], ids[2]]

    @some_garbage
    def test_it_never_runs_and_does_not_hold_up_the_queue(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        broken, fine = begin(store), begin(store)
        enqueue(store, broken, "never", priority=9)
        enqueue(store, fine, "run me")
        damage(broken.id, **garbage)
        claimed = store.claim_turn(a_claim())
        assert claimed is not None
        assert claimed.turn.session_id == fine.id
        assert store.claim_turn(a_claim()) is None

    @some_garbage
    def test_nothing_can_be_decided_about_it(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        session = begin(store)
        run(store, session)
        damage(session.id, **garbage)
        with pytest.raises(UnreadableSession):
            store.explain(session.id, "claude", TurnRequest())

    @some_garbage
    def test_what_would_change_it_is_refused(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        session = begin(store)
        damage(session.id, **garbage)
        before = store.list_sessions(ALL, 10)
        for change in _changes(store, session):
            with pytest.raises(UnreadableSession):
                change()
        assert store.list_sessions(ALL, 10) == before
        assert store.phase_history(session.id) == ()

    @some_garbage
    def test_the_answer_of_its_running_turn_is_kept(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        damage(session.id, **garbage)

        store.finish_turn(lease, done("kept"))

        (turn,) = store.history(session.conversation_id)
        assert (turn.response, turn.status) == ("kept", "done")

    @some_garbage
    def test_it_can_be_removed(self, store: Store, damage: Damage, garbage: dict[str, str]) -> None:
        session = begin(store)
        damage(session.id, **garbage)
        store.remove_session(session.id)
        assert store.list_sessions(ALL, 10).unreadable == {}

    @some_garbage
    def test_its_family_and_its_neighbours_are_not_affected(
        self, store: Store, damage: Damage, garbage: dict[str, str]
    ) -> None:
        parent = begin(store)
        run(store, parent, "one")
        neighbour = join(store, parent, "reviewer")
        broken, fine = store.fork(parent.id, a_session_id()), store.fork(parent.id, a_session_id())
        damage(broken.id, **garbage)
        assert store.children(parent.id) == (fine,)
        damage(parent.id, **garbage)
        run(store, neighbour, "two")
        assert [turn.prompt for turn in store.history(parent.conversation_id)] == ["one", "two"]
        assert [turn.prompt for turn in store.history(fine.conversation_id)] == ["one"]

    @some_garbage
    def test_cleaning_up_goes_on(
        self, store: Store, clock: ManualClock, damage: Damage, garbage: dict[str, str]
    ) -> None:
        broken, fine = begin(store), begin(store)
        damage(broken.id, **garbage)
        assert fine.id in store.clean_up(Old(clock.advance(10))).abandoned


def _changes(store: Store, session: Session) -> list[Callable[[], object]]:
    return [
        lambda: store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING)),
        lambda: store.finalize_session(session.id, Phase.COMPLETED, None),
        lambda: store.fork(session.id, a_session_id()),
    ]


def test_what_cannot_be_understood_may_not_go_on(store: Store, damage: Damage) -> None:
    session = begin(store)
    run(store, session)
    damage(session.id, phase="dancing")
    assert Holdfast(store).may_continue(session.id) is MayContinue.UNREADABLE
    assert Holdfast(store).should_resume(session.id) is False


#: SQLite keeps any value in any column
WRONG_TYPES = {
    "error_count": "many",
    "created_at": "yesterday",
    "updated_at": b"\xff",
    "resume_ready": "perhaps",
    "finalized_at": "never",
    "agent": b"\xff\xfe",
    "metadata": b"{}",
    "purpose": b"",
    "input_tokens": "lots",
    "cost_usd": "a fortune",
}


@pytest.mark.parametrize("url", ["sqlite-file"], indirect=True)
@pytest.mark.parametrize("field", WRONG_TYPES)
class TestWrongTypes:
    def test_a_list_names_the_session_and_goes_on_page_by_page(
        self, store: Store, clock: ManualClock, damage: Damage, field: str
    ) -> None:
        ids = begin_some(store, clock, 3)
        damage(ids[1], **{field: WRONG_TYPES[field]})
        page = store.list_sessions(SessionFilter(), 10)
        assert {session.id for session in page.sessions} == {ids[0], ids[2]}
        assert list(page.unreadable) == [ids[1]]
        assert set(listed(store, limit=1)) == {ids[0], ids[2]}

    def test_the_session_never_runs(self, store: Store, damage: Damage, field: str) -> None:
        session = begin(store)
        run(store, session)
        damage(session.id, **{field: WRONG_TYPES[field]})
        assert Holdfast(store).may_continue(session.id) is MayContinue.UNREADABLE


@pytest.mark.parametrize("url", ["sqlite-file"], indirect=True)
@pytest.mark.parametrize("field", ["purpose", "metadata", "agent"])
def test_text_that_is_not_text_affects_no_other_session(store: Store, clock: ManualClock, field: str) -> None:
    ids = begin_some(store, clock, 3)
    for session_id in ids[1:]:
        store.enqueue_turn(session_id, a_turn())
    with driver_of(store).write() as tx:
        sql = f"UPDATE sessions SET {field} = CAST(:bytes AS TEXT) WHERE id = :id"
        tx.run(sql, {"id": ids[1], "bytes": b"{\xff\xfe}"})
    page = store.list_sessions(SessionFilter(), 10)
    assert [session.id for session in page.sessions] == [ids[0], ids[2]]
    assert list(page.unreadable) == [ids[1]]
    with pytest.raises(UnreadableSession):
        store.get_session(ids[1])
    claims = [store.claim_turn(a_claim()) for _ in range(2)]
    assert [claim and claim.turn.session_id for claim in claims] == [ids[2], None]
