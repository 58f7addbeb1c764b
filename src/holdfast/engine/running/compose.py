"""Owns what a claimed turn is sent: the decision alone says whether the past goes with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Decision, Fork, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.policy import Policy
from holdfast.domain.telling.context import (
    Interruption,
    NewRequest,
    compose_fresh,
    compose_resumed,
    current_request,
    most_turns,
    says_interrupted,
)
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall, tool_calls
from holdfast.domain.turns import AttemptCause, Claim, Event, Turn, TurnStatus
from holdfast.engine.own_turns import newest_first
from holdfast.engine.packets import MOST_EVENTS, gather_packet
from holdfast.engine.running.agents import Agent
from holdfast.engine.told_answers import untold_answers
from holdfast.store.contract import Store

#: turns without an answer, one after the other, beyond which nobody looks back for what they did
_MOST_UNFINISHED = 50


class Composer:
    def __init__(self, store: Store, agent: Agent, policy: Policy) -> None:
        self._store = store
        self._agent = agent
        self._policy = policy.context

    def compose(self, claim: Claim, decision: Decision, work_dir: str) -> str:
        if isinstance(decision, Resume | Fork):
            return self._resumed(claim, decision)
        return self._fresh(claim, decision, work_dir)

    def _resumed(self, claim: Claim, decision: Resume | Fork) -> str:
        turn = claim.turn
        missed = [
            known
            for first, last in decision.catch_up
            for known in self._store.history(turn.conversation_id, first=first, last=last)
            if not self._was_refused(known)
        ]
        answers = untold_answers(self._store, self._store.get_session(turn.session_id), turn.seq)
        own = [known for known in missed if known.session_id == turn.session_id and known.response is None]
        return compose_resumed(
            NewRequest(turn.prompt, turn.seq, answers),
            missed,
            self._policy,
            stopped=own,
            interrupted=self._was_sent(claim, decision),
            interruption=self._interruption(claim, decision),
        )

    def _fresh(self, claim: Claim, decision: Decision, work_dir: str) -> str:
        turn = claim.turn
        limit = most_turns(self._policy)
        history = [
            known
            for known in self._store.history(turn.conversation_id, last=turn.seq - 1, limit=limit)
            if not self._was_refused(known)
        ]
        session = self._store.get_session(turn.session_id)
        answers = untold_answers(self._store, session, turn.seq)
        packet = None
        if history or turn.attempts > 1:
            packet = gather_packet(
                self._store, session, self._policy, decision.reason, seq=turn.seq, work_dir=work_dir
            )
            packet = replace(packet, answers=())  # they are told with the request
        request = NewRequest(turn.prompt, turn.seq, answers)
        return compose_fresh(request, history, packet, decision.reason, self._policy)

    def _interruption(self, claim: Claim, decision: Resume | Fork) -> Interruption:
        """What was begun since the last answer and never ended, and what of it only our record knows."""
        turn = claim.turn
        earlier = islice(newest_first(self._store, turn.session_id, turn.seq), _MOST_UNFINISHED)
        before = takewhile(lambda known: known.status is not TurnStatus.DONE, earlier)
        unfinished = [known for known in before if known.attempts and known.dropped is None][::-1]
        if turn.attempts > 1:
            unfinished.append(turn)
        calls = [
            call for known in unfinished for call in tool_calls(known.seq, self._events(known), settled=False)
        ]
        stopped = tuple(known.seq for known in unfinished if known is not turn and _was_stopped(known))
        return Interruption(stopped, self._unsaved(calls, claim, decision) if calls else ())

    def _events(self, turn: Turn) -> Sequence[tuple[int, Event]]:
        return self._store.newest_events(turn.conversation_id, turn.seq, MOST_EVENTS)

    def _unsaved(
        self, calls: Sequence[ToolCall], claim: Claim, decision: Resume | Fork
    ) -> tuple[ToolCall, ...]:
        """A session may be saved later than it is reported, and some never hold a call that has not ended."""
        native = decision.provider_session_id
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        held: dict[str, bool] = {}
        for archived in () if path is None else self._agent.archive.turns(path, native):
            if archived.calls is None:
                return ()
            held |= archived.calls
        return tuple(
            call
            for call in calls
            if call.call_id not in held
            or (not held[call.call_id] and call.outcome is not CallOutcome.IN_FLIGHT)
        )

    def _was_refused(self, known: HistoryTurn) -> bool:
        """What a guard refused was asked by someone who then thought better of it; no agent is told."""
        if known.status is not TurnStatus.FAILED or known.response is not None:
            return False
        conversation = self._store.get_session(known.session_id).conversation_id
        failure = self._store.get_turn(conversation, known.seq).failure
        return failure is not None and failure.failure_class is FailureClass.REFUSED

    def _was_sent(self, claim: Claim, decision: Resume | Fork) -> bool:
        """A turn that runs again, and whose request the provider's session holds already, is not sent twice."""
        if claim.cause not in (AttemptCause.RECOVERY, AttemptCause.RETRY) or isinstance(decision, Fork):
            return False
        native = decision.provider_session_id
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        if path is None:
            return False
        sent = (turn.prompt for turn in self._agent.archive.turns(path, native))
        newest = deque((prompt for prompt in sent if not says_interrupted(prompt)), maxlen=1)
        return any(current_request(prompt).strip() == claim.turn.prompt.strip() for prompt in newest)


def _was_stopped(turn: Turn) -> bool:
    """Somebody or something ended it, and not the agent itself."""
    failure = turn.failure
    return failure is not None and failure.failure_class in (FailureClass.INTERRUPTED, FailureClass.CANCELLED)
