"""Whatever is done in whatever order, the store says what a tiny model says."""

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.clock import after
from holdfast.domain.decisions import Fork, Resume, decision_kind
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ConversationId, ProviderSessionId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.sessions import NewSession, Old, SessionUpdate
from holdfast.domain.turns import NewTurn, TurnEnd, TurnRequest, TurnStatus
from holdfast.errors import LeaseLost, SessionClosed
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.builders import a_codex_runtime, a_runtime
from tests.clock import ManualClock
from tests.consistency import assert_consistent, driver_of
from tests.integration.session_acts import LEASE_SECONDS, Draw, SessionActs, pick
from tests.integration.session_model import Clash, ModelSession

RUNTIMES = (a_runtime(), a_runtime(machine="build-8"), a_codex_runtime())
FAILURES = (FailureClass.TRANSIENT, FailureClass.UNKNOWN, FailureClass.GONE)
OPEN_PHASES = [phase for phase in Phase if not phase.is_final]


class SessionMachine(SessionActs):
    """Each rule does the same to the store and to the model, or nothing when there is nothing to do it to."""

    # --- sessions ---

    @initialize()
    def begin(self) -> None:
        """Two agents in one conversation."""
        first = self.create("claude")
        second = NewSession(SessionId(self.name("agent")), "codex", conversation_id=first.conversation_id)
        self.store.create_session(second)
        conversation = self.model.sessions[first.id].conversation
        self.model.sessions[second.id] = ModelSession(second.id, conversation, "codex")

    @precondition(SessionActs.has_room)
    @rule(provider=st.sampled_from(["claude", "codex"]))
    def create_another(self, provider: str) -> None:
        self.create(provider)

    @precondition(SessionActs.has_room)
    @rule(draw=st.data(), provider=st.sampled_from(["claude", "codex"]))
    def join(self, draw: Draw, provider: str) -> None:
        conversation = self.session(draw).conversation
        joined = ModelSession(self.name("agent"), conversation, provider)

        def on_model() -> None:
            if any(s.is_open and s.provider == provider for s in self.model.of(conversation)):
                raise Clash
            self.model.sessions[joined.id] = joined

        new = NewSession(SessionId(joined.id), provider, conversation_id=ConversationId(conversation.id))
        self.both(on_model, lambda: self.store.create_session(new))

    @precondition(SessionActs.has_sessions)
    @rule(draw=st.data(), phase=st.sampled_from(OPEN_PHASES))
    def update(self, draw: Draw, phase: Phase) -> None:
        session = self.session(draw)
        expected = Phase(session.phase)
        self.store.update_session(session.id, SessionUpdate(phase=phase, expected_phase=expected))
        session.phase = phase

    @precondition(SessionActs.has_many_sessions)
    @rule(draw=st.data(), outcome=st.sampled_from([Phase.COMPLETED, Phase.FAILED]))
    def finalize(self, draw: Draw, outcome: Phase) -> None:
        session = self.session(draw)
        self.model.finalize(session, outcome)
        self.store.finalize_session(session.id, outcome, None)
        with pytest.raises(SessionClosed):
            self.store.enqueue_turn(session.id, NewTurn("too late", "claude"))

    @rule(seconds=st.sampled_from([60.0, 3600.0]))
    def clean_up(self, seconds: float) -> None:
        cutoff = after(self.clock.now, -seconds)
        planned = self.store.clean_up(Old(cutoff), dry_run=True)
        report = self.store.clean_up(Old(cutoff))
        assert planned == report
        assert set(report.deleted) == self.model.deletable(cutoff)
        for session_id in report.deleted:
            del self.model.sessions[session_id]
        self.lost = [lease for lease in self.lost if lease.session_id not in report.deleted]
        for session_id in report.abandoned:
            session = self.model.sessions[session_id]
            assert session.is_open
            assert session.held is None
            assert session.head() is None
            self.model.finalize(session, Phase.ABANDONED)

    # --- the history ---

    @precondition(SessionActs.has_history)
    @rule(draw=st.data(), which=st.sampled_from(["prompt", "response"]))
    def edit(self, draw: Draw, which: str) -> None:
        session, turn = self.visible(draw)
        text = self.name("edited")

        def on_model() -> None:
            if which == "response" and turn.is_open:
                raise Clash
            setattr(turn, which, text)
            self.model.changed(session.conversation, turn.seq, turn.seq)

        self.both(on_model, lambda: self.store.edit_turn(session.id, turn.seq, **{which: text}))

    @precondition(SessionActs.has_history)
    @rule(draw=st.data())
    def truncate(self, draw: Draw) -> None:
        session, turn = self.visible(draw)
        keep = turn.seq - 1
        self.both(
            lambda: self.model.truncate(session.conversation, keep),
            lambda: self.store.truncate(session.id, keep),
        )

    @precondition(SessionActs.has_history)
    @rule(draw=st.data())
    def retry(self, draw: Draw) -> None:
        session, old = self.visible(draw)
        # an inherited turn is repeated by whoever asks, any other by the one whose turn it was
        target = session if old in session.conversation.inherited else self.model.sessions[old.session_id]

        def on_model() -> None:
            if not target.is_open:
                raise Clash
            self.model.truncate(session.conversation, old.seq - 1)
            self.model.put(target, old.prompt, old.provider, priority=old.priority)

        again = self.both(on_model, lambda: self.store.retry_turn(session.id, old.seq))
        assert again is None or (again.retry_of, again.session_id) == (old.seq, target.id)

    @precondition(SessionActs.has_history)
    @rule(draw=st.data())
    def begin_again(self, draw: Draw) -> None:
        session = self.session(draw)
        self.both(
            lambda: self.model.begin_again(session.conversation),
            lambda: self.store.new_generation(session.id),
        )

    @precondition(SessionActs.has_room)
    @rule(draw=st.data())
    def fork(self, draw: Draw) -> None:
        parent = self.session(draw, is_open=False)
        at = draw.draw(
            st.sampled_from([None, 0, *(turn.seq for turn in parent.conversation.visible())]), "at"
        )
        child = SessionId(self.name("agent"))
        self.both(
            lambda: self.model.fork(parent, child, at), lambda: self.store.fork(parent.id, child, at=at)
        )

    # --- the queue ---

    @precondition(SessionActs.has_sessions)
    @rule(draw=st.data(), priority=st.integers(0, 1), delay=st.sampled_from([None, 30.0]))
    def enqueue(self, draw: Draw, priority: int, delay: float | None) -> None:
        self.put(self.session(draw), priority, delay)

    @rule(number=st.integers(0, len(RUNTIMES) - 1))
    def claim(self, number: int) -> None:
        self.take(RUNTIMES[number])

    @precondition(SessionActs.has_sessions)
    @rule(draw=st.data(), elsewhere=st.booleans(), then=st.sampled_from(["runs", "succeeds", "fails"]))
    def run_turn(self, draw: Draw, elsewhere: bool, then: str) -> None:
        """From the queue until it runs, or to its end."""
        session = self.session(draw)
        if session.head() is None:
            self.put(session)
        usual, other = (RUNTIMES[2], RUNTIMES[2]) if session.provider == "codex" else RUNTIMES[:2]
        self.take(other if elsewhere else usual, session.id)
        held = session.held
        if held is not None and held.turn.status == "claimed":
            self.start(session, held, chooses=True, pins=True)
        if held is not None and then == "succeeds":
            self.end(session, held, tells_id=True)
        if held is not None and then == "fails":
            self.broken(session, held, FailureClass.UNKNOWN, again=False)

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data())
    def heartbeat(self, draw: Draw) -> None:
        _, held = self.held(draw)
        beat = self.store.heartbeat(held.lease, LEASE_SECONDS)
        assert beat.cancel_requested == held.turn.cancel_requested
        held.lease = beat.lease

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data(), chooses=st.booleans(), pins=st.booleans())
    def launch(self, draw: Draw, chooses: bool, pins: bool) -> None:
        session, held = self.held(draw)
        if held.turn.status == "claimed":
            self.start(session, held, chooses=chooses, pins=pins)

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data())
    def fall_back(self, draw: Draw) -> None:
        session, held = self.held(draw)
        if held.seen.resumed:
            gone = Failure(FailureClass.GONE, "no such session")
            fresh = self.store.fall_back(held.lease, gone, self.name("claim"))
            self.lost.append(held.lease)
            self.model.fall_back(session, held, fresh)

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data(), tells_id=st.booleans())
    def succeed(self, draw: Draw, tells_id: bool) -> None:
        session, held = self.held(draw)
        self.end(session, held, tells_id=tells_id)

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data(), why=st.sampled_from(FAILURES), again=st.booleans())
    def fail(self, draw: Draw, why: FailureClass, again: bool) -> None:
        session, held = self.held(draw)
        self.broken(session, held, why, again=again)

    @precondition(SessionActs.has_leases)
    @rule(draw=st.data())
    def put_back(self, draw: Draw) -> None:
        session, held = self.held(draw)
        self.store.put_back(held.lease)
        self.lost.append(held.lease)
        self.model.put_back(session, held)

    @precondition(SessionActs.has_sessions)
    @rule(draw=st.data())
    def cancel(self, draw: Draw) -> None:
        session = self.session(draw)
        own = {str(t.seq): t for t in session.conversation.turns if t.session_id == session.id}
        if own:
            turn = pick(draw, own)
            self.both(lambda: self.model.cancel(turn), lambda: self.store.cancel_turn(session.id, turn.seq))

    # --- time, and those who come too late ---

    @rule(seconds=st.sampled_from([1.0, 31.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.time_passes(seconds)

    @rule(seconds=st.sampled_from([0.0, 61.0]))
    def recover(self, seconds: float) -> None:
        self.time_passes(seconds)
        orphans = {orphan.lease.session_id: orphan for orphan in self.store.orphans()}
        for session in self.model.sessions.values():
            held = session.held
            assert (session.id in orphans) == (held is not None and held.lease.expires_at <= self.clock.now)
            if held is not None and session.id in orphans:
                self.store.recover(orphans[held.lease.session_id])
                self.lost.append(held.lease)
                self.model.recover(session, held)

    @precondition(lambda self: bool(self.lost))
    @rule(draw=st.data())
    def a_lost_lease_writes_nothing(self, draw: Draw) -> None:
        lease = pick(draw, {f"{lease.session_id}, {lease.fence}": lease for lease in self.lost})
        late = Event(99, EventKind.TEXT, {"text": "late"}, self.clock.now)
        cancelled = TurnEnd(TurnStatus.CANCELLED, "late", provider_session_id=ProviderSessionId("late"))
        for call in (
            lambda: self.store.heartbeat(lease, LEASE_SECONDS),
            lambda: self.store.record_events(lease, [late]),
            lambda: self.store.put_back(lease),
            lambda: self.store.finish_turn(lease, cancelled),
        ):
            with pytest.raises(LeaseLost):
                call()

    # --- what must be true after each step ---

    @invariant()
    def everyone_sees_the_history_of_the_model(self) -> None:
        for conversation in self.model.conversations():
            seen = [(t.seq, t.status, t.prompt, t.response) for t in self.store.history(conversation.id)]
            assert seen == [(t.seq, t.status, t.prompt, t.response) for t in conversation.visible()]
            assert self.store.get_conversation(conversation.id).next_seq == conversation.next_seq

    @invariant()
    def sessions_turns_and_pointers_are_those_of_the_model(self) -> None:
        for session in self.model.sessions.values():
            assert self.store.get_session(session.id).phase == session.phase
            turns = [(t.seq, t.status, t.dropped is not None) for t in self.store.turns(session.id)]
            own = [turn for turn in session.conversation.turns if turn.session_id == session.id]
            assert turns == [(turn.seq, turn.status, turn.dropped) for turn in own]
            pointers = {p.provider: p.provider_session_id for p in self.store.pointers(session.id)}
            assert pointers == {name: seen.provider_session for name, seen in session.pointers.items()}

    @invariant()
    def a_provider_session_goes_on_exactly_when_the_model_says_so(self) -> None:
        for session in self.model.sessions.values():
            for runtime in RUNTIMES:
                decision = self.store.explain(session.id, runtime.provider, TurnRequest(), runtime)
                expected = self.model.decide(session, runtime.provider, runtime.id)
                assert decision_kind(decision) == expected, decision.reason
                if isinstance(decision, Resume | Fork):
                    assert decision.provider_session_id not in self.model.retired

    @invariant()
    def rows_agree_with_each_other(self) -> None:
        assert_consistent(self.store)


#: the model knows of no affinity: whoever comes may run a turn
POLICY = Policy(queue=QueuePolicy(affinity_seconds=0))


def check(opened: Callable[[ManualClock], Store], stories: int, steps: int) -> None:
    machine = cast("type[RuleBasedStateMachine]", partial(SessionMachine, opened))
    run_state_machine_as_test(
        machine, settings=settings(max_examples=stories, stateful_step_count=steps, deadline=None)
    )


def test_the_store_agrees_with_the_model_on_sqlite() -> None:
    check(lambda clock: open_store("sqlite:///:memory:", clock=clock, policy=POLICY), stories=100, steps=50)


def test_the_store_agrees_with_the_model_on_postgres(postgres_url: str) -> None:
    """Fewer and shorter stories; each in a database without rows."""
    check(lambda clock: emptied(postgres_url, clock), stories=8, steps=25)


def emptied(url: str, clock: ManualClock) -> Store:
    store = open_store(url, clock=clock, policy=POLICY)
    with driver_of(store).write() as tx:
        tables = tx.all("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'", {})
        names = ", ".join(name for (name,) in tables if name != "schema_migrations")
        tx.run(f"TRUNCATE {names}", {})
    return store
