import pytest

from holdfast.domain.phases import MayContinue, Phase
from holdfast.domain.sessions import SessionChange, SessionFilter, SessionStatus, SessionUpdate
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import UnreadableSession
from holdfast.processes.owners import this_user
from holdfast.store.contract import Store
from holdfast.testing import (
    cleanup_contract,
    listing_contract,
    session_contract,
    statistics_contract,
    status_contract,
    threads_contract,
    token_contract,
    totals_contract,
    workspace_contract,
)
from holdfast.testing.builders import a_claim, a_turn, an_answer, an_approval
from holdfast.testing.clock import ManualClock
from holdfast.testing.steps import begin, defer, run
from tests.contract.conftest import Damage, driver_of


class TestCreate(session_contract.CreateContract):
    pass


class TestFind(session_contract.FindContract):
    pass


class TestUpdate(session_contract.UpdateContract):
    pass


class TestFinalize(session_contract.FinalizeContract):
    pass


class TestRename(session_contract.RenameContract):
    pass


class TestList(listing_contract.ListContract):
    pass


class TestStatus(status_contract.StatusContract):
    pass


class TestFilters(status_contract.FilterContract):
    pass


class TestTotals(totals_contract.TotalsContract):
    pass


class TestUnreadable(listing_contract.UnreadableContract):
    pass


class TestRemove(cleanup_contract.RemoveContract):
    pass


class TestCleanup(cleanup_contract.CleanupContract):
    pass


@pytest.mark.makes_tokens
class TestWorkspaces(workspace_contract.WorkspaceContract):
    pass


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
        ids = listing_contract.begin_some(store, clock, 3)
        damage(ids[1], **{field: WRONG_TYPES[field]})
        page = store.list_sessions(SessionFilter(), 10)
        assert {session.id for session in page.sessions} == {ids[0], ids[2]}
        assert list(page.unreadable) == [ids[1]]
        assert set(listing_contract.listed(store, limit=1)) == {ids[0], ids[2]}

    def test_the_session_never_runs(self, store: Store, damage: Damage, field: str) -> None:
        session = begin(store)
        run(store, session)
        damage(session.id, **{field: WRONG_TYPES[field]})
        assert Holdfast(store).may_continue(session.id) is MayContinue.UNREADABLE


@pytest.mark.parametrize("url", ["sqlite-file"], indirect=True)
@pytest.mark.parametrize("field", ["purpose", "metadata", "agent"])
def test_text_that_is_not_text_affects_no_other_session(store: Store, clock: ManualClock, field: str) -> None:
    ids = listing_contract.begin_some(store, clock, 3)
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


@pytest.mark.makes_tokens
class TestTokens(token_contract.TokenContract):
    pass


class TestStatistics(statistics_contract.StatisticsContract):
    pass


class TestThreads(threads_contract.ThreadsContract):
    pass


def test_a_summary_may_come_before_the_end_and_stays_unless_the_end_has_its_own(store: Store) -> None:
    kept, replaced = begin(store), begin(store)
    for session in (replaced, kept):
        changed = store.update_session(session.id, SessionUpdate(summary="half of it; token=ghp_" + "a" * 36))
        assert changed == store.get_session(session.id)
        assert changed.summary is not None
        assert changed.summary.startswith("half of it")
        assert "ghp_a" not in changed.summary
        assert store.update_session(session.id, SessionUpdate(error="x")).summary == changed.summary

    store.finalize_session(kept.id, Phase.COMPLETED, None)
    store.finalize_session(replaced.id, Phase.COMPLETED, "all of it")

    assert str(store.get_session(kept.id).summary).startswith("half of it")
    assert store.get_session(replaced.id).summary == "all of it"


def test_the_trail_tells_what_was_changed_and_by_whom(store: Store, clock: ManualClock) -> None:
    session = begin(store)
    first = clock.advance(1)
    store.update_session(session.id, SessionUpdate(metadata={"b": 1, "a": 2}, error="no"))
    second = clock.advance(1)
    store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING, clear_errors=True, summary="half"))
    store.update_session(session.id, SessionUpdate())
    store.request_approval(session.id, an_approval(call_id=None))
    store.finalize_session(session.id, Phase.FAILED, "all")

    changes = store.trail(session.id)

    me = this_user()
    assert changes[:2] == (
        SessionChange(1, first, me, "initializing", "initializing", ("a", "b"), "no"),
        SessionChange(2, second, me, "initializing", "planning", cleared_errors=True, summary=True),
    )
    assert [(one.from_phase, one.to_phase, one.by) for one in changes[2:]] == [
        ("planning", "approval", me),
        ("approval", "failed", me),
    ]
    assert store.trail(session.id, after=2, limit=1) == changes[2:3]
    assert [change.to_phase for change in store.phase_history(session.id)] == [
        "planning",
        "approval",
        "failed",
    ]
    (void,) = store.approvals(session_id=session.id, open_only=False)
    assert void.voided_at == second


def test_a_change_that_leaves_the_phase_is_not_on_the_way_back_from_an_approval(
    store: Store, clock: ManualClock
) -> None:
    session = begin(store)
    store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING))
    approval = defer(store, session)
    clock.advance(1)
    store.update_session(session.id, SessionUpdate(metadata={"while": "it waits"}))
    assert store.session_state(session.id).status is SessionStatus.WAITING
    store.answer_approval(approval.id, an_answer(approval))
    assert store.get_session(session.id).phase is Phase.PLANNING
