"""Owns the prompt of a claimed turn: the request and, as the decision says, what of the past the agent does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice, takewhile

from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision, DecisionKind, Fork, Resume, because
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy
from holdfast.domain.records import replace
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

#: after each fresh start that was too long for the context window, the window counts as this many times smaller
_LESS = 4
_MOST_OVERFLOWS = 4
#: how many turns without an answer, one after the other, are looked at for calls that never ended
_MOST_UNFINISHED = 50
_COMMAND = 60  #: characters of a command that a notice shows


class Composer:
    def __init__(self, store: Store, agent: Agent, policy: Policy) -> None:
        self._store = store
        self._agent = agent
        self._policy = policy.context

    def compose(self, claim: Claim, decision: Decision, work_dir: str) -> Composed:
        """The prompt of the turn. All of the past in it is of one revision of the history: the claim's, or a newer one."""

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
        # an agent runs a command of its own only if there is no text before it
        command = on_one_line(prompt.split(maxsplit=1)[0], _COMMAND)
        notice = f"{command} was sent as text, after the context that the agent needed; if it is one of the agent's own commands, send it again"
        return replace(composed, notices=(*composed.notices, notice))

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
        # if the prompt says to continue, the prompt names only the requests of missed turns, not their calls
        told = set() if says_continue(turn.prompt) else {past.turn.seq for past in missed}
        composed = compose_resumed(
            self._request(claim, window),
            missed,
            self._policy,
            stopped=own if unsent is None else [*own, unsent],
            interrupted=was_sent,
            interruption=self._interruption(reader, claim, decision, told),
        )
        if was_sent or not was_launched:
            return composed
        notice = f"turn {turn.seq} was launched before, but the agent's session does not hold its request: it is sent again"
        return replace(composed, notices=(notice,))

    def _fresh(self, claim: Claim, decision: Decision, work_dir: str) -> Composed:
        turn, why = claim.turn, because(decision)
        session = claim.situation.session
        reader = PastReader(self._store, session, claim.situation.conversation)
        window = self._fresh_window(claim, reader)
        size, most = past_size(self._policy, window), most_turns(self._policy, window)
        before = reader.past(turn.seq, size, most)
        past = sorted((*before, *_begun_before(reader, claim, session)), key=lambda each: each.turn.seq)
        packet = None
        if past or turn.attempts > 1:
            packet = gather_packet(reader, self._policy, why, seq=turn.seq, work_dir=work_dir, past=before)
        request = self._request(claim, window)
        return compose_fresh(request, past, packet, why, self._policy, unsent=self._unsent_before(turn))

    def _request(self, claim: Claim, window: int | None) -> NewRequest:
        turn = claim.turn
        answers = told_answers(claim.situation)
        return NewRequest(turn.prompt, turn.seq, answers, turn.session_id, window, claim.attempt_id)

    def _window(self, claim: Claim, reader: PastReader) -> int | None:
        """The context window of this turn's model, as the provider reported it; None if it is not known.

        The pointer has the newest report. If the pointer was lost, the events of earlier attempts have one.
        """
        pointer, turn = claim.pointer, claim.turn
        known = None if pointer is None else pointer.context
        if pointer is not None and known is not None and known.window > 0:
            return known.window if turn.request.model in (None, pointer.model) else None
        has_run_before = pointer is not None or claim.cause is AttemptCause.FALLBACK
        return reader.reported_window(turn) if has_run_before else None

    def _fresh_window(self, claim: Claim, reader: PastReader) -> int | None:
        """The window to compose a fresh start for: smaller after each fresh start before it that was too long.

        While the window is not known, a resumed session that was too long counts, too.
        """
        window = self._window(claim, reader)
        too_long = _overflows(claim.situation, even_resumed=window is None)
        return (window or self._policy.window_tokens) // _LESS**too_long if too_long else window

    def _interruption(
        self, reader: PastReader, claim: Claim, decision: Resume | Fork, told: Collection[int]
    ) -> Interruption:
        """The turns since the last answer that were stopped, and their calls that only our record holds.

        The calls of turns in ``told`` are left out: the prompt already has them.
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
        """For a fork: the turns of the session whose provider session it forks, newest first."""
        pointer = claim.pointer
        if not isinstance(decision, Fork) or pointer is None or pointer.fork_seq is None:
            return
        for attempt in self._store.attempts_in(pointer.provider, decision.provider_session_id, 1):
            source = newest_first(self._store, attempt.session_id, pointer.fork_seq + 1)
            # a turn without attempts was made by hand: it is done, but it does not end an interruption before it
            for turn in source:
                if turn.attempts:
                    yield turn.session_id, _as_tried(self._store, turn)

    def _unsent_before(self, turn: Turn) -> HistoryTurn | None:
        """For a prompt that only says to continue: the turn before it, if no agent got that turn's request."""
        if not says_continue(turn.prompt):
            return None
        before = next((known for known in newest_first(self._store, turn.session_id, turn.seq)), None)
        return None if before is None or before.dropped is not None else unsent_request(self._store, before)

    def _unsaved(
        self, calls: Sequence[ToolCall], claim: Claim, decision: Resume | Fork
    ) -> tuple[ToolCall, ...]:
        """The calls that the provider's session does not hold, or holds without the result that we have.

        Some providers save a session later than they report it, or never save a call that has not ended.
        """
        native = decision.provider_session_id
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        turns = [] if path is None else list(self._agent.archive.turns(path, native))
        is_known = all(archived.calls is not None for archived in turns)
        held = dict(chain.from_iterable((turn.calls or {}).items() for turn in turns if turn.live))

        def is_untold(call: ToolCall) -> bool:
            if call.outcome is CallOutcome.NOT_RUN:
                # in a resumed session the answer to its approval tells of it; the approval is not the fork's
                return isinstance(decision, Fork)
            is_held = call.call_id in held
            ends_later = is_held and not held[call.call_id] and call.outcome is not CallOutcome.IN_FLIGHT
            return is_known and (not is_held or ends_later)

        return tuple(filter(is_untold, calls))

    def _was_launched(self, claim: Claim, decision: Resume | Fork) -> bool:
        """Whether an earlier attempt of this turn was launched in this very session, and may have sent the request."""
        if claim.cause not in (AttemptCause.RECOVERY, AttemptCause.RETRY) or isinstance(decision, Fork):
            return False
        return any(
            attempt.launched and attempt.provider_session_id == decision.provider_session_id
            for attempt in claim.situation.tries_of(claim.turn.seq)
        )

    def _holds_request(self, claim: Claim, native: ProviderSessionId) -> bool:
        """Whether the provider's session already holds the request: then it is not sent again."""
        path = self._agent.archive.find(native, claim.pointer.work_dir if claim.pointer else None)
        if path is None:
            return False
        turn = claim.turn
        held = recognise(self._store, self._agent, path, native)
        return any(is_request_of(known, turn.conversation_id, turn.seq, turn.prompt) for known in held)


def _overflows(situation: Situation, *, even_resumed: bool) -> int:
    """How many fresh starts in a row, just before this one, were too long for the context window."""
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
    """This turn with the calls of its earlier attempts, if there are some."""
    turn = claim.turn
    if turn.attempts <= 1:
        return
    known = HistoryTurn(
        turn.seq, session.agent, session.id, turn.status, 0, turn.prompt, None, turn.created_at
    )
    for begun in reader.unsettled([turn.seq]):
        if begun.calls:
            yield replace(begun, turn=known, begun_before=True)
