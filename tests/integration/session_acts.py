"""Owns the acts of the state machine: each is done to the store and to the model, and both must agree."""

from collections.abc import Callable
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from holdfast.clock import after
from holdfast.domain.decisions import decision_kind
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import NewSession, Session
from holdfast.domain.turns import ClaimRequest, Launch, Lease, NewTurn, TurnEnd, TurnRequest, TurnStatus
from holdfast.errors import Conflict
from holdfast.store.contract import Store
from tests.builders import a_process
from tests.clock import ManualClock
from tests.integration.session_model import (
    Clash,
    Model,
    ModelConversation,
    ModelLease,
    ModelSession,
    ModelTurn,
)

LEASE_SECONDS = 60.0
HERE = TurnRequest(work_dir="/srv")

T = TypeVar("T")
Draw = st.DataObject


def pick(draw: Draw, found: dict[str, T]) -> T:
    return found[draw.draw(st.sampled_from(list(found)))]


class SessionActs(RuleBasedStateMachine):
    """What the rules of the machine choose from, and what several of them do: to the store and to the model."""

    def __init__(self, opened: Callable[[ManualClock], Store]) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = opened(self.clock)
        self.model = Model(self.clock.now)
        self.numbers = count(1)
        self.lost: list[Lease] = []  #: leases that somebody else has taken, or that were given back

    def teardown(self) -> None:
        self.store.close()

    # --- choosing ---

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self.numbers)}"

    def session(self, draw: Draw, *, is_open: bool = True) -> ModelSession:
        return pick(draw, {s.id: s for s in self.model.sessions.values() if s.is_open or not is_open})

    def held(self, draw: Draw) -> tuple[ModelSession, ModelLease]:
        return pick(draw, {s.id: (s, s.held) for s in self.model.sessions.values() if s.held})

    def visible(self, draw: Draw) -> tuple[ModelSession, ModelTurn]:
        """An open session, and a turn in the history of its conversation."""
        found = [(s, turn) for s in self.model.sessions.values() for turn in s.conversation.visible()]
        return pick(draw, {f"{s.id}, turn {turn.seq}": (s, turn) for s, turn in found if s.is_open})

    def has_sessions(self) -> bool:
        return any(session.is_open for session in self.model.sessions.values())

    def has_many_sessions(self) -> bool:
        return sum(session.is_open for session in self.model.sessions.values()) > 3

    def has_room(self) -> bool:
        """A story of few sessions goes deeper."""
        return self.has_sessions() and len(self.model.sessions) < 6

    def has_leases(self) -> bool:
        return any(session.held for session in self.model.sessions.values())

    def has_history(self) -> bool:
        return any(s.is_open and s.conversation.visible() for s in self.model.sessions.values())

    def both(self, on_model: Callable[[], object], on_store: Callable[[], T]) -> T | None:
        """The store refuses exactly what the model refuses."""
        try:
            on_model()
        except Clash:
            with pytest.raises(Conflict):
                on_store()
            return None
        return on_store()

    # --- acting ---

    def create(self, provider: str) -> Session:
        made = self.store.create_session(
            NewSession(SessionId(self.name("agent")), provider, provider=provider)
        )
        conversation = ModelConversation(made.conversation_id)
        self.model.sessions[made.id] = ModelSession(made.id, conversation, provider)
        return made

    def put(self, session: ModelSession, priority: int = 0, delay: float | None = None) -> None:
        prompt = self.name("prompt")
        not_before = None if delay is None else after(self.clock.now, delay)
        new = NewTurn(
            prompt,
            session.provider,
            HERE,
            priority=priority,
            not_before=not_before,
            max_attempts=2,
            key=prompt,
        )
        turn = self.model.put(session, prompt, session.provider, priority=priority, not_before=not_before)
        assert self.store.enqueue_turn(session.id, new).seq == turn.seq
        assert self.store.enqueue_turn(session.id, new).seq == turn.seq

    def take(self, runtime: Runtime, session_id: str | None = None) -> None:
        """The oldest turn of the session, or of the one that comes first."""
        only = None if session_id is None else SessionId(session_id)
        request = ClaimRequest(runtime, "worker", self.name("claim"), LEASE_SECONDS, only)
        claimable = self.model.claimable(runtime.provider, session_id)
        claimed = self.store.claim_turn(request)
        if claimed is None:
            assert claimable == []
            return
        session = self.model.sessions[claimed.lease.session_id]
        head = session.head()
        assert head in claimable
        assert (claimed.turn.seq, claimed.turn.prompt) == (head.seq, head.prompt)
        assert head.priority == max(turn.priority for turn in claimable)
        assert decision_kind(claimed.decision) == self.model.decide(session, runtime.provider, runtime.id)
        again = self.store.claim_turn(request)
        assert again is not None
        assert (again.lease, again.turn, again.covers) == (claimed.lease, claimed.turn, claimed.covers)
        assert decision_kind(again.decision) == decision_kind(claimed.decision)
        self.model.claim(session, claimed, runtime.id)

    def start(self, session: ModelSession, held: ModelLease, *, chooses: bool, pins: bool) -> None:
        chosen = None
        if chooses and not held.seen.resumed:
            chosen = held.seen.provider_session = ProviderSessionId(self.name("ps"))
        self.store.launch(held.lease, Launch(held.decision, a_process(), provider_session_id=chosen))
        held.turn.status = "running"
        session.newest[held.turn.provider] = held.seen
        if pins:
            held.seen.provider_session = held.seen.provider_session or self.name("ps")
            self.store.pin(held.lease, ProviderSessionId(held.seen.provider_session))
            self.model.point(session, held)

    def end(self, session: ModelSession, held: ModelLease, *, tells_id: bool) -> None:
        if tells_id and held.seen.provider_session is None:
            held.seen.provider_session = self.name("ps")
        told = held.seen.provider_session if tells_id else None
        response = self.name("response")
        end = TurnEnd(
            TurnStatus.DONE, response, provider_session_id=None if told is None else ProviderSessionId(told)
        )
        self.store.finish_turn(held.lease, end)
        assert self.store.finish_turn(held.lease, end).response == response
        self.lost.append(held.lease)
        self.model.succeed(session, held, response)

    def broken(self, session: ModelSession, held: ModelLease, why: FailureClass, *, again: bool) -> None:
        end = TurnEnd(
            TurnStatus.FAILED, failure=Failure(why, "it broke"), retry_at=self.clock.now if again else None
        )
        self.store.finish_turn(held.lease, end)
        self.lost.append(held.lease)
        self.model.fail(session, held, why, again=again)

    def time_passes(self, seconds: float) -> None:
        self.model.now = self.clock.advance(seconds)
