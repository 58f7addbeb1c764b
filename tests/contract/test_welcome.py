"""Owns the clauses on what an agent is told when it begins to work in a project."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionKind, SessionUpdate
from holdfast.domain.telling.welcome import Welcome
from holdfast.domain.turns import Launch
from holdfast.store.contract import Store
from tests.builders import a_provider_session_id, an_answer, an_approval, an_import, done
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, run

HERE = "/srv/infra"


def told(store: Store, project: str = HERE) -> Welcome:
    return store.welcome("claude", a_provider_session_id(), project)


def paused(store: Store, **changes: object) -> Session:
    session = begin(store, project=HERE, purpose="move it", **changes)
    return store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING))


class TestWelcome:
    def test_where_nothing_waits_there_is_nothing_to_tell(self, store: Store) -> None:
        assert told(store) == Welcome()
        assert told(store).render() == ""

    def test_sessions_of_the_project_that_may_go_on_are_told_newest_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = paused(store)
        clock.advance(1)
        second = paused(store, agent="gitops-operator")
        assert told(store).paused == (
            (second.id, "gitops-operator", "planning", "move it"),
            (first.id, "terraform-architect", "planning", "move it"),
        )

    def test_what_may_not_go_on_is_not_told(self, store: Store, clock: ManualClock) -> None:
        begin(store, project=HERE)
        store.finalize_session(paused(store).id, Phase.COMPLETED, None)
        paused(store)
        clock.advance(1800)
        assert told(store) == Welcome()

    def test_a_session_of_another_project_is_not_told(self, store: Store) -> None:
        paused(store)
        assert told(store, "/srv") == Welcome()

    def test_an_approval_is_told_until_it_is_answered_or_expires(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store, project=HERE)
        answered = store.request_approval(session.id, an_approval(what="apply it"))
        clock.advance(1)
        store.request_approval(session.id, an_approval(expires_at=after(clock.now, 1e-6)))
        newest, oldest = told(store).approvals
        assert oldest == (answered.id, session.agent, "apply it")
        store.answer_approval(answered.id, an_answer(answered))
        assert told(store).approvals == (newest,)
        clock.advance(1e-6)
        assert told(store).approvals == ()

    @pytest.mark.parametrize(
        ("project", "is_told"),
        [(HERE, True), ("/srv", True), ("/", True), ("/srv/inf", False), ("/srv/infra/deeper", False)],
    )
    def test_an_approval_of_a_conversation_is_told_where_it_works(
        self, store: Store, project: str, is_told: bool
    ) -> None:
        defer(store, begin(store, kind=SessionKind.CONVERSATION))
        assert bool(told(store, project).approvals) is is_told

    def test_the_session_is_named_that_a_provider_session_belongs_to(self, store: Store) -> None:
        session, native = begin(store), a_provider_session_id()
        run(store, session, provider_session_id=native)
        assert store.welcome("claude", native, HERE) == Welcome(session_id=session.id)
        assert store.welcome("codex", native, HERE) == Welcome()

    def test_a_session_that_is_only_imported_is_told_nothing_of_it(self, store: Store) -> None:
        one = an_import()
        store.import_sessions([one])
        assert store.welcome("claude", one.provider_session_id, HERE) == Welcome()
        session = store.get_session(one.new.id)
        enqueue(store, session, "go on")
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=one.provider_session_id))
        store.finish_turn(claimed.lease, done(provider_session_id=one.provider_session_id))
        assert store.welcome("claude", one.provider_session_id, HERE) == Welcome(session_id=session.id)

    def test_whoever_holds_it_now_is_named_to_all_but_itself(self, store: Store, clock: ManualClock) -> None:
        session, native = begin(store), a_provider_session_id()
        run(store, session, provider_session_id=native)
        enqueue(store, session, "go on")
        claim(store, session)
        assert store.welcome("claude", native, HERE).holder == session.id
        assert store.welcome("claude", native, HERE, session.id).holder is None
        clock.advance(3600)
        assert store.welcome("claude", native, HERE).holder is None
