"""Owns the clause that what is in another workspace does not exist: one test for every verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from holdfast.clock import Instant
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Fresh, Reason
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome
from holdfast.domain.events import Writing
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.observed import Sighting
from holdfast.domain.phases import Phase
from holdfast.domain.search import SearchPage, SearchRequest
from holdfast.domain.sessions import CleanupReport, Old, Session, SessionFilter, SessionPage, SessionUpdate
from holdfast.domain.statistics import Statistics
from holdfast.domain.tokens import NewToken
from holdfast.domain.turns import Launch, Lease, Orphan, PastRequest, Refusal, TurnRequest
from holdfast.domain.usage import NO_USAGE, UsageGroup
from holdfast.domain.vault import VaultBundle
from holdfast.errors import Conflict, LeaseLost, NotFound
from holdfast.store.contract import FACTS, Store
from tests.builders import (
    a_bundle,
    a_chunk,
    a_claim,
    a_codex_runtime,
    a_delegation,
    a_pointer,
    a_provider_session_id,
    a_question,
    a_runtime,
    a_session,
    a_session_id,
    a_turn,
    an_adoption,
    an_answer,
    an_approval,
    an_event,
    an_import,
    done,
)
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.contract.test_tokens import a_token
from tests.steps import begin, claim, decide, enqueue, refused, resumed_id, run, snapshot


@dataclass(frozen=True)
class Theirs:
    """What another workspace holds: a session that has run, one whose lease has just expired, delegated ones, a question."""

    session: Session
    provider_session_id: ProviderSessionId
    lease: Lease
    queued: Session
    held: Session
    free: Session
    approval: Approval
    token: NewToken
    kept: VaultBundle

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def conversation(self) -> str:
        return self.session.conversation_id


def begin_theirs(store: Store, clock: ManualClock) -> Theirs:
    session = begin(store, name="theirs")
    provider_session_id = a_provider_session_id()
    run(store, session, "one", provider_session_id=provider_session_id)
    store.fork(session.id, a_session_id())
    enqueue(store, session, "two")
    lease = claim(store, session, key="their-claim").lease
    store.record_events(lease, [an_event(1)])
    store.observe_session(Sighting(provider="claude", id=provider_session_id, at=clock()))
    queued = begin(store)
    enqueue(store, queued, "waiting")
    token = replace(a_token(), digest="f" * 64)
    store.create_token(token)
    clock.advance(3600)
    delegated = a_delegation(provider_session_id="their-orchestrator")
    store.delegate(delegated)
    free = begin(store, project=delegated.project)
    store.update_session(free.id, SessionUpdate(phase=Phase.PLANNING))
    held = store.get_session(delegated.new_session_id)
    approval = store.request_approval(begin(store).id, an_approval())
    other = replace(token, digest="e" * 64)
    store.keep_bundles([a_bundle(provider_session_id=provider_session_id)], [a_chunk()])
    kept = store.bundle("claude", provider_session_id)
    assert kept is not None
    return Theirs(session, provider_session_id, lease, queued, held, free, approval, other, kept)


FAR = Instant(2**60)
GONE = Failure(FailureClass.GONE, "no such session")

#: each verb, asked for what another workspace holds
VERBS: dict[str, Callable[[Store, Theirs], object]] = {
    "create_session": lambda s, t: s.create_session(a_session(conversation_id=t.conversation)),
    "get_session": lambda s, t: s.get_session(t.id),
    "session_state": lambda s, t: s.session_state(t.id),
    "find_session": lambda s, _: s.find_session("theirs"),
    "pulse": lambda s, t: s.pulse(Instant(0)).marks,
    "record_deed": lambda s, t: s.record_deed(t.id, "restore"),
    "trail": lambda s, t: s.trail(t.id),
    "totals": lambda s, _: s.totals().rows,
    "phase_history": lambda s, t: s.phase_history(t.id),
    "update_session": lambda s, t: s.update_session(t.id, SessionUpdate(phase=Phase.PLANNING)),
    "finalize_session": lambda s, t: s.finalize_session(t.id, Phase.COMPLETED, None),
    "list_sessions": lambda s, _: s.list_sessions(SessionFilter(), 100),
    "children": lambda s, t: s.children(t.id),
    "rename_session": lambda s, t: s.rename_session(t.id, "ours"),
    "attend": lambda s, t: s.attend(t.id, "us", 60.0),
    "remove_session": lambda s, t: s.remove_session(t.queued.id),
    "clean_up": lambda s, _: s.clean_up(Old(FAR)),
    "get_conversation": lambda s, t: s.get_conversation(t.conversation),
    "history": lambda s, t: s.history(t.conversation),
    "edit_turn": lambda s, t: s.edit_turn(t.id, 1, prompt="edited"),
    "truncate": lambda s, t: s.truncate(t.queued.id, 0),
    "retry_turn": lambda s, t: s.retry_turn(t.queued.id, 1),
    "new_generation": lambda s, t: s.new_generation(t.queued.id),
    "fork": lambda s, t: s.fork(t.id, a_session_id()),
    "enqueue_turn": lambda s, t: s.enqueue_turn(t.id, a_turn()),
    "record_turn": lambda s, t: s.record_turn(t.id, a_turn(), "done", NO_USAGE),
    "get_turn": lambda s, t: s.get_turn(t.conversation, 1),
    "turns": lambda s, t: s.turns(t.id),
    "newest_turns": lambda s, t: s.newest_turns(t.id, 10),
    "head_turn": lambda s, t: s.head_turn(t.id),
    "situation": lambda s, t: s.situation(t.id),
    "adopt_turns": lambda s, t: s.adopt_turns(an_adoption(a_pointer(t.id, runtime_id=None))),
    "import_sessions": lambda s, t: [
        answer.session_id
        for answer in s.import_sessions([an_import(provider_session_id=t.provider_session_id)])
        if answer.session_id is not None
    ],
    "sources": lambda s, _: s.sources("build-7", "claude", "/home/ada/.claude"),
    "claim_turn": lambda s, _: s.claim_turn(a_claim(key="their-claim")),
    "start_turn": lambda s, t: s.start_turn(t.queued.id, a_turn(), a_claim()),
    "heartbeat": lambda s, t: s.heartbeat(t.lease, 60),
    "launch": lambda s, t: s.launch(t.lease, Launch(Fresh(Reason.NO_POINTER, ()))),
    "record_events": lambda s, t: s.record_events(t.lease, [an_event(2)]),
    "put_partial_text": lambda s, t: s.put_partial_text(t.lease, 2, Writing("half of ")),
    "partial_text": lambda s, t: s.partial_text(t.id),
    "pin": lambda s, t: s.pin(t.lease, a_provider_session_id()),
    "fall_back": lambda s, t: s.fall_back(t.lease, GONE, "another-claim"),
    "put_back": lambda s, t: s.put_back(t.lease),
    "finish_turn": lambda s, t: s.finish_turn(t.lease, done()),
    "cancel_turn": lambda s, t: s.cancel_turn(t.queued.id, 1),
    "orphans": lambda s, _: s.orphans(),
    "holder": lambda s, t: s.holder(t.id),
    "recover": lambda s, t: s.recover(Orphan(t.lease, None, False)),
    "request_approval": lambda s, t: s.request_approval(t.approval.session_id, an_approval()),
    "get_approval": lambda s, t: s.get_approval(t.approval.id),
    "find_approval": lambda s, t: s.find_approval(t.approval.id),
    "approvals": lambda s, _: s.approvals(open_only=False),
    "answer_approval": lambda s, t: s.answer_approval(t.approval.id, an_answer(t.approval)),
    "approval_window": lambda s, t: s.approval_window(t.approval.session_id),
    "attempts": lambda s, t: s.attempts(t.conversation, 1),
    "attempts_in": lambda ours, theirs: ours.attempts_in("claude", theirs.provider_session_id),
    "owner_of": lambda ours, theirs: ours.owner_of("claude", theirs.provider_session_id),
    "newest_attempt": lambda s, t: s.newest_attempt(t.id),
    "events": lambda s, t: s.events(t.conversation, 2),
    "search": lambda s, t: s.search(SearchRequest("one")),
    "read_past": lambda s, t: s.read_past(t.conversation, 0, PastRequest(((1, 10),))),
    "newest_events": lambda s, t: s.newest_events(t.conversation, 2, 10),
    "late_reports": lambda s, t: s.late_reports(t.conversation),
    "explain": lambda s, t: s.explain(t.id, "claude", TurnRequest()),
    "pointer": lambda s, t: s.pointer(t.id, "claude"),
    "pointers": lambda s, t: s.pointers(t.id),
    "set_pointer": lambda s, t: s.set_pointer(a_pointer(t.id, runtime_id=None)),
    "clear_pointer": lambda s, t: s.clear_pointer(t.id, "claude", t.provider_session_id),
    "retire": lambda s, t: s.retire(t.id, "claude", a_provider_session_id(), "gone"),
    "provider_sessions": lambda s, t: s.provider_sessions(t.id),
    "usage": lambda s, _: s.usage(UsageGroup.SESSION),
    "runtimes": lambda s, _: s.runtimes(),
    "ask_delegation": lambda s, t: s.ask_delegation(a_question(session_id=t.free.id)).session,
    "end_delegation": lambda s, t: s.end_delegation(
        DelegationEnd(session_id=t.held.id, outcome=DelegationOutcome.COMPLETED)
    ),
    "open_delegations": lambda s, t: s.open_delegations(t.held.agent, "/srv/infra"),
    "lose_delegations": lambda s, _: s.lose_delegations("their-orchestrator"),
    "delegations": lambda s, t: s.delegations(t.held.id),
    "free_sessions": lambda s, _: s.free_sessions(),
    "delegation_counts": lambda s, _: s.delegation_counts().delegations,
    "observed_session": lambda s, t: s.observed_session("claude", t.provider_session_id),
    "observed_sessions": lambda s, _: s.observed_sessions(),
    "welcome": lambda s, t: s.welcome("claude", t.provider_session_id, "/srv/infra").render(),
    "lacking_chunks": lambda s, t: not s.lacking_chunks([t.kept.main.parts[0].digest]),
    "add_chunks": lambda s, _: s.add_chunks([a_chunk()]),
    "keep_bundles": lambda s, t: s.keep_bundles([t.kept], [a_chunk()]),
    "bundle": lambda s, t: s.bundle("claude", t.kept.provider_session_id),
    "bundles": lambda s, t: s.bundles("claude", t.kept.provider_session_id),
    "read_chunks": lambda s, t: s.read_chunks([t.kept.main.parts[0].digest]),
    "drop_bundle": lambda s, t: s.drop_bundle("claude", t.kept.provider_session_id),
    "vault_entries": lambda s, _: s.vault_entries(),
    "vault_figures": lambda s, _: s.vault_figures().chunks,
    "sweep_vault": lambda s, _: s.sweep_vault().chunks,
    "agent_token": lambda s, t: s.agent_token(t.lease),
    "create_token": lambda s, t: s.create_token(t.token),
    "tokens": lambda s, _: s.tokens(),
    "statistics": lambda s, _: s.statistics(),
    "revoke_token": lambda s, t: s.revoke_token(t.token.id),
}
#: those of them that must say NotFound, rather than answer with nothing
NAMES_AN_ID = [
    "create_session", "get_session", "find_session", "update_session", "finalize_session",
    "attend", "rename_session", "remove_session", "get_conversation", "history", "edit_turn", "truncate",
    "retry_turn", "new_generation", "fork", "enqueue_turn", "record_turn", "get_turn", "turns",
    "situation", "adopt_turns", "start_turn", "cancel_turn", "explain", "set_pointer", "retire", "request_approval", "get_approval",
    "find_approval", "answer_approval", "revoke_token",
]  # fmt: skip
#: verbs that are about no one's data in particular
WITHOUT_DATA = {"delegate", "register_runtime", "observe_session", "now", "bytes_used"}


def nothing(answer: object) -> bool:
    match answer:
        case SessionPage():
            return not answer.sessions and not answer.unreadable and answer.next_cursor is None
        case SearchPage():
            return answer == SearchPage((), more=False, all_words=True, pending=0)
        case Statistics():
            return answer == Statistics((), (), (), (), 0.0, 0, 0, 0, 0)
        case CleanupReport():
            return answer.count == 0
        case _:
            return not answer


@pytest.mark.makes_tokens
class TestWorkspaces:
    """Everything happens in the workspace that the store was opened for."""

    @pytest.fixture
    def theirs(self, store: Store, clock: ManualClock) -> Theirs:
        return begin_theirs(store, clock)

    def test_every_verb_is_tested(self) -> None:
        # a local verb gives no data, or is the server's, which looks for the tokens of all workspaces
        verbs = {name for name, facts in FACTS.items() if not facts.local}
        assert set(VERBS) == verbs - WITHOUT_DATA

    @pytest.mark.parametrize("verb", VERBS)
    def test_what_is_in_another_workspace_does_not_exist(
        self, store: Store, make_store: MakeStore, theirs: Theirs, verb: str
    ) -> None:
        before = snapshot(store)
        ours = make_store(workspace="ours")
        try:
            answer = VERBS[verb](ours, theirs)
        except (NotFound, LeaseLost, Conflict):
            answer = None
        assert nothing(answer)
        assert snapshot(store) == before
        assert store.late_reports(theirs.conversation) == ()
        assert nothing(ours.list_sessions(SessionFilter(), 10))

    def test_a_missing_id_is_said_to_be_missing(self, make_store: MakeStore, theirs: Theirs) -> None:
        ours = make_store(workspace="ours")
        for verb in NAMES_AN_ID:
            with pytest.raises(NotFound):
                VERBS[verb](ours, theirs)

    def test_workspaces_may_use_the_same_ids_names_and_keys(
        self, store: Store, make_store: MakeStore
    ) -> None:
        ours = make_store(workspace="ours")
        new, runtime = a_session(name="infra"), a_runtime()
        for each in (store, ours):
            session = each.create_session(new)
            each.register_runtime(runtime)
            each.enqueue_turn(session.id, a_turn(key="once"))
            claimed = each.claim_turn(a_claim(key="my-claim"))
            assert claimed is not None
            each.finish_turn(claimed.lease, done(provider_session_id=None))
        assert snapshot(store, random_ids=False) == snapshot(ours, random_ids=False)
        ours.remove_session(new.id)
        assert store.find_session("infra") == new.id

    def test_a_provider_session_is_held_and_retired_in_its_workspace_alone(
        self, store: Store, make_store: MakeStore, theirs: Theirs
    ) -> None:
        ours, unused = make_store(workspace="ours"), a_provider_session_id()
        store.retire(theirs.id, "claude", unused, "gone")
        ours.register_runtime(a_runtime())
        pointer = a_pointer(begin(ours).id, provider_session_id=unused)
        ours.set_pointer(pointer)
        assert ours.pointer(pointer.session_id, "claude") == pointer

    def test_nobody_gets_into_a_provider_session_of_another_workspace(
        self, make_store: MakeStore, theirs: Theirs
    ) -> None:
        ours, native = make_store(workspace="ours"), theirs.provider_session_id
        session = begin(ours)
        enqueue(ours, session, "into it")
        lease = claim(ours, session).lease
        fresh = Launch(Fresh(Reason.NO_POINTER, ()))

        with refused(ours, Conflict) as refusal:
            ours.launch(lease, replace(fresh, provider_session_id=native))
        assert theirs.id not in str(refusal.value)
        ours.launch(lease, fresh)
        with refused(ours, Conflict):
            ours.pin(lease, native)
        with refused(ours, Conflict):
            ours.set_pointer(a_pointer(session.id, provider_session_id=native))
        with refused(ours, Conflict):
            ours.set_pointer(a_pointer(session.id, provider_session_id=native, fork_seq=1))
        answered = ours.finish_turn(lease, done("all the same", provider_session_id=native))

        assert answered.response == "all the same"
        assert ours.pointer(session.id, "claude") is None
        assert not ours.attempts_in("claude", native)
        enqueue(ours, session, "and again")
        assert isinstance(claim(ours, session).decision, Fresh)

    def test_a_session_of_another_workspace_is_not_asked_for_by_its_id(
        self, make_store: MakeStore, theirs: Theirs
    ) -> None:
        ours = make_store(workspace="ours")
        asked = a_turn(request=TurnRequest(provider_session_id=theirs.provider_session_id))

        refusal = ours.start_turn(begin(ours).id, asked, a_claim())

        assert isinstance(refusal, Refusal)
        assert refusal.decision.reason is Reason.EXPLICIT_ID
        assert theirs.id not in str(refusal)

    def test_what_another_workspace_has_removed_may_be_used(
        self, store: Store, make_store: MakeStore
    ) -> None:
        gone, ours, native = begin(store), make_store(workspace="ours"), a_provider_session_id()
        run(store, gone, provider_session_id=native)
        store.remove_session(gone.id)
        session = begin(ours)

        run(ours, session, provider_session_id=native)

        assert resumed_id(decide(ours, session)) == native

    def test_what_was_watched_is_seen_in_its_workspace_alone(
        self, store: Store, make_store: MakeStore, theirs: Theirs
    ) -> None:
        ours, before = make_store(workspace="ours"), store.observed_sessions()
        ours.observe_session(Sighting(provider="claude", id=theirs.provider_session_id, at=store.now()))
        assert store.observed_sessions() == before
        assert len(ours.observed_sessions()) == 1

    def test_a_delegation_finds_nothing_in_another_workspace(
        self, make_store: MakeStore, theirs: Theirs
    ) -> None:
        assert not make_store(workspace="ours").delegate(a_delegation(agent=theirs.free.agent)).resumed
        assert make_store().delegate(a_delegation(agent=theirs.free.agent)).resumed

    def test_registering_a_runtime_is_seen_in_its_workspace_alone(
        self, store: Store, make_store: MakeStore
    ) -> None:
        store.register_runtime(a_runtime())
        make_store(workspace="ours").register_runtime(a_codex_runtime())
        assert [known.runtime for known in store.runtimes()] == [a_runtime()]
