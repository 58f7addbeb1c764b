"""Owns what a claimed turn is sent: the decision alone says whether the past goes with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, takewhile

from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision, DecisionKind, Fork, Resume, because
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy
from holdfast.domain.sessions import Session
from holdfast.domain.telling.context import (
    Composed,
    Interruption,
    NewRequest,
    compose_fresh,
    compose_resumed,
    most_turns,
    past_size,
    says_continue,
)
from holdfast.domain.telling.quoting import on_one_line
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
from holdfast.domain.telling.transcript import PastTurn
from holdfast.domain.turns import AttemptCause, Claim, Situation, TriedTurn, Turn, TurnStatus
from holdfast.engine.packets import gather_packet
from holdfast.engine.past import (
    PastReader,
    as_of_one_revision,
    newest_first,
    told_answers,
    unsent_request,
)
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.provider_sessions import is_request_of, recognise
from holdfast.store.contract import Store

#: of the window, after a fresh start that was too long for it
_LESS = 4
_MOST_OVERFLOWS = 4
#: turns without an answer, one after the other, beyond which nobody looks back for what they did
_MOST_UNFINISHED = 50
_COMMAND = 60  #: characters of one, in a notice


class Composer:
    def __init__(self, store: Store, agent: Agent, policy: Policy) -> None:
        self._store = store
        self._agent = agent
        self._policy = policy.context

    def compose(self, claim: Claim, decision: Decision, work_dir: str) -> Composed:
        """What the agent is told is of one revision of the history: that of the claim, or of a newer one."""

        def tell(conversation: Conversation) -> Composed:
            situation = replace(claim.situation, conversation=conversation)
            return self._composed(replace(claim, situation=situation), decision, work_dir)

        return as_of_one_revision(self._store, claim.situation.conversation, tell)

    def _composed(self, claim: Claim, decision: Decision, work_dir: str) -> Composed:
        if isinstance(decision, Resume | Fork):
            composed = self._resumed(claim, decision)
        else:
            composed = self._fresh(claim, decision, work_dir)
        prompt = claim.turn.prompt
        if not prompt.startswith("/") or not composed.text.endswith(f"\n{prompt}"):
            return composed
        return replace(composed, notices=(*composed.notices, _no_command(prompt)))

    def _resumed(self, claim: Claim, decision: Resume | Fork) -> Composed:
        turn = claim.turn
        reader = PastReader(self._store, claim.situation.session, claim.situation.conversation)
        window = self._window(claim, reader)
        size, most = past_size(self._policy, window), most_turns(self._policy, window)
        missed = reader.missed(decision.catch_up, size, most)
        own = [
            past.turn
            for past in missed
            if past.turn.session_id == turn.session_id and past.turn.response is None
        ]
        unsent = self._unsent_before(turn)
        was_launched = self._was_launched(claim, decision)
        was_sent = was_launched and self._holds_request(claim, decision.provider_session_id)
        # what is to be continued is told by its request alone
        told = set() if says_continue(turn.prompt) else {past.turn.seq for past in missed}
        composed = compose_resumed(
            self._request(claim, window),
            missed,
            self._policy,
            stopped=own if unsent is None else [*own, unsent],
            interrupted=was_sent,
            interruption=self._interruption(reader, claim, decision, told),
        )
        return replace(composed, notices=(_sent_again(turn),)) if was_launched and not was_sent else composed

    def _fresh(self, claim: Claim, decision: Decision, work_dir: str) -> Composed:
        turn, why = claim.turn, because(decision)
        session = claim.situation.session
        reader = PastReader(self._store, session, claim.situation.conversation)
        window = self._fresh_window(claim, reader)
        size, most = past_size(self._policy, window), most_turns(self._policy, window)
        past = (*reader.past(turn.seq, size, most), *_begun_before(reader, claim, session))
        past = tuple(sorted(past, key=lambda each: each.turn.seq))
        packet = None
        if past or turn.attempts > 1:
            packet = gather_packet(reader, self._policy, why, seq=turn.seq, work_dir=work_dir)
        request = self._request(claim, window)
        return compose_fresh(request, past, packet, why, self._policy, unsent=self._unsent_before(turn))

    def _request(self, claim: Claim, window: int | None) -> NewRequest:
        turn = claim.turn
        answers = told_answers(claim.situation)
        return NewRequest(turn.prompt, turn.seq, answers, turn.session_id, window, claim.attempt_id)

    def _window(self, claim: Claim, reader: PastReader) -> int | None:
        """The context window that the provider has told of for this turn's model.

        The pointer knows the newest, and goes with its provider session; the record of earlier attempts stays.
        """
        pointer, turn = claim.pointer, claim.turn
        known = None if pointer is None else pointer.context
        if pointer is not None and known is not None and known.window > 0:
            return known.window if turn.request.model in (None, pointer.model) else None
        has_run_before = pointer is not None or claim.cause is AttemptCause.FALLBACK
        return reader.reported_window(turn) if has_run_before else None

    def _fresh_window(self, claim: Claim, reader: PastReader) -> int | None:
        """The window of the model; less of it for each fresh start, just before, that was too long for it.

        While no window is known, a resumed session that was too long counts, too.
        """
        window = self._window(claim, reader)
        too_long = _overflows(claim.situation, even_resumed=window is None)
        return (window or self._policy.window_tokens) // _LESS**too_long if too_long else window

    def _interruption(
        self, reader: PastReader, claim: Claim, decision: Resume | Fork, told: Collection[int]
    ) -> Interruption:
        """What was begun since the last answer and never ended, and what of it only our record knows.

        Turns that are ``told`` anyway are told with their calls.
        """
        turn = claim.turn
        begun = ((turn.session_id, tried) for tried in claim.situation.earlier(turn.seq))
        earlier = islice(chain(begun, self._of_source(claim, decision)), _MOST_UNFINISHED)
        before = takewhile(lambda known: known[1].status is not TurnStatus.DONE, earlier)
        unfinished = [known for known in before if not known[1].is_dropped][::-1]
        ran = {tried.seq for _, tried in unfinished}
        if turn.attempts > 1:
            ran.add(turn.seq)
        calls = reader.calls_of(ran.difference(told))
        stopped = tuple(tried.seq for _, tried in unfinished if tried.was_stopped)
        return Interruption(stopped, self._unsaved(calls, claim, decision) if calls else ())

    def _of_source(self, claim: Claim, decision: Resume | Fork) -> Iterator[tuple[str, TriedTurn]]:
        """The turns that a fork takes along, of the session whose provider session it leaves, the newest first."""
        pointer = claim.pointer
        if not isinstance(decision, Fork) or pointer is None or pointer.fork_seq is None:
            return
        for attempt in self._store.attempts_in(pointer.provider, decision.provider_session_id, 1):
            source = newest_first(self._store, attempt.session_id, pointer.fork_seq + 1)
            # a turn without attempts was made by hand: it is done, but did not end a turn that was interrupted
            for turn in source:
                if turn.attempts:
                    yield turn.session_id, _as_tried(self._store, turn)

    def _unsent_before(self, turn: Turn) -> HistoryTurn | None:
        """What a bare "continue" means, if the turn before it never reached an agent."""
        if not says_continue(turn.prompt):
            return None
        before = next((known for known in newest_first(self._store, turn.session_id, turn.seq)), None)
        return None if before is None or before.dropped is not None else unsent_request(self._store, before)

    def _unsaved(
        self, calls: Sequence[ToolCall], claim: Claim, decision: Resume | Fork
    ) -> tuple[ToolCall, ...]:
        """A session may be saved later than it is reported, and some never hold a call that has not ended."""
        native = decision.provider_session_id
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        turns = [] if path is None else list(self._agent.archive.turns(path, native))
        is_known = all(archived.calls is not None for archived in turns)
        held = dict(chain.from_iterable((turn.calls or {}).items() for turn in turns if turn.live))

        def is_untold(call: ToolCall) -> bool:
            if call.outcome is CallOutcome.NOT_RUN:
                # else told with its approval, which is the source's
                return isinstance(decision, Fork)
            is_held = call.call_id in held
            ends_later = is_held and not held[call.call_id] and call.outcome is not CallOutcome.IN_FLIGHT
            return is_known and (not is_held or ends_later)

        return tuple(filter(is_untold, calls))

    def _was_launched(self, claim: Claim, decision: Resume | Fork) -> bool:
        """An earlier attempt of the same turn may have sent its request to this very session."""
        if claim.cause not in (AttemptCause.RECOVERY, AttemptCause.RETRY) or isinstance(decision, Fork):
            return False
        return any(
            attempt.launched and attempt.provider_session_id == decision.provider_session_id
            for attempt in claim.situation.tries_of(claim.turn.seq)
        )

    def _holds_request(self, claim: Claim, native: ProviderSessionId) -> bool:
        """A request that the provider's session holds already is not sent twice."""
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        if path is None:
            return False
        turn = claim.turn
        held = recognise(self._store, self._agent, path, native)
        return any(is_request_of(known, turn.conversation_id, turn.seq, turn.prompt) for known in held)


def _overflows(situation: Situation, *, even_resumed: bool) -> int:
    """How many fresh starts, one after the other and just before, were too long for the context window."""
    count = 0
    for turn in reversed(situation.tried[-_MOST_OVERFLOWS:]):
        for attempt in reversed(turn.tries):
            failed = attempt.failure is not None and attempt.failure.then.tells_less
            is_fresh = attempt.kind is DecisionKind.FRESH
            count += failed and (is_fresh or even_resumed)
            if not failed or not is_fresh:
                return count
    return count


def _as_tried(store: Store, turn: Turn) -> TriedTurn:
    tries = tuple(attempt.as_try() for attempt in store.attempts(turn.conversation_id, turn.seq))
    return TriedTurn(
        turn.seq, turn.status, turn.dropped is not None, turn.failure, turn.request.work_dir, tries
    )


def _begun_before(reader: PastReader, claim: Claim, session: Session) -> Iterator[PastTurn]:
    """What earlier attempts of this very turn have called."""
    turn = claim.turn
    if turn.attempts <= 1:
        return
    known = HistoryTurn(
        turn.seq, session.agent, session.id, turn.status, 0, turn.prompt, None, turn.created_at
    )
    for begun in reader.unsettled([turn.seq]):
        if begun.calls:
            yield replace(begun, turn=known, begun_before=True)


def _no_command(prompt: str) -> str:
    """An agent runs a command of its own only if nothing stands before it."""
    command = on_one_line(prompt.split(maxsplit=1)[0], _COMMAND)
    return f"{command} was sent as text, after the context that the agent needed; if it is one of the agent's own commands, send it again"


def _sent_again(turn: Turn) -> str:
    return f"turn {turn.seq} was launched before, but the agent's session does not hold its request: it is sent again"
