"""Owns gathering a packet from the store and the work directory, bounded and without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Because
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import Session
from holdfast.domain.telling.context import request_to_continue
from holdfast.domain.telling.packet import Packet, Start, TurnFailure
from holdfast.domain.telling.quoting import shortened
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
from holdfast.domain.turns import AttemptStatus, AttemptSummary
from holdfast.engine.ground_truth import ground_truth
from holdfast.engine.past import PastReader, told_answers
from holdfast.store.contract import Store

_LONGEST_MESSAGE = 2000

_Attempt = tuple[int, AttemptSummary]  #: and its turn


def gather_packet(
    reader: PastReader,
    policy: ContextPolicy,
    why: Because,
    *,
    seq: int | None = None,
    work_dir: str | None = None,
) -> Packet:
    """What a fresh start of turn ``seq`` must know; by default of the turn that is next.

    Raises Conflict, as the ``reader`` does. Without ``work_dir`` it is the
    one that the session's newest attempt ran in.
    """
    store, session = reader.store, reader.session
    next_turn = _next_turn(reader) if seq is None else seq
    past = reader.newest(next_turn, policy.packet_turns)
    turns = [each.turn for each in past]
    ran = [*past, *reader.unsettled([next_turn])]
    calls = [call for each in ran for call in each.calls]
    attempts = [(each.turn.seq, attempt) for each in ran for attempt in each.attempts]
    if not work_dir:
        newest = store.newest_attempt(session.id)
        work_dir = None if newest is None else newest.work_dir
    goal = session.purpose or _asked(turns)
    return Packet(
        session_id=session.id,
        agent=session.agent,
        goal=_told(goal, policy.message_characters),
        phase=session.phase.value,
        next_turn=next_turn,
        interrupted=_interrupted(next_turn, attempts, calls),
        why_fresh=why,
        ground_truth=ground_truth(work_dir),
        turns=tuple(_shown(turn, policy.message_characters) for turn in turns),
        tool_calls=_newest(calls, policy, in_flight=False),
        in_flight=_newest(calls, policy, in_flight=True),
        artifacts=tuple(dict.fromkeys(path for call in calls for path in call.written)),
        starts=tuple(
            _start(turn, attempt) for turn, attempt in attempts if attempt.status is not AttemptStatus.OPEN
        ),
        failures=tuple(_failures(attempts)),
        open_approval=_asked_of_people(store, session),
        answers=told_answers(store.situation(session.id)),
    )


def _asked_of_people(store: Store, session: Session) -> str | None:
    asked = store.approvals(session_id=session.id, limit=1)
    return f"{asked[0].what} ({asked[0].id})" if asked else None


def _next_turn(reader: PastReader) -> int:
    """The one that is open, else a new one."""
    head = reader.store.head_turn(reader.session.id)
    return reader.conversation.next_seq if head is None else head.seq


def _interrupted(next_turn: int, attempts: Iterable[_Attempt], calls: Iterable[ToolCall]) -> bool:
    cut_off = any(
        turn == next_turn and attempt.status is AttemptStatus.INTERRUPTED for turn, attempt in attempts
    )
    return cut_off or any(call.turn == next_turn for call in calls)


def _asked(turns: Sequence[HistoryTurn]) -> str:
    turn = request_to_continue(turns)
    return "" if turn is None else turn.prompt


def _told(text: str, limit: int) -> str:
    return shortened(redact_text(text), limit)


def _shown(turn: HistoryTurn, limit: int) -> HistoryTurn:
    response = None if turn.response is None else _told(turn.response, limit)
    return replace(turn, prompt=_told(turn.prompt, limit), response=response)


def _newest(calls: Iterable[ToolCall], policy: ContextPolicy, *, in_flight: bool) -> tuple[ToolCall, ...]:
    wanted = [call for call in calls if (call.outcome is CallOutcome.IN_FLIGHT) is in_flight]
    return tuple(call.within(_LONGEST_MESSAGE) for call in wanted[-policy.packet_tool_calls :])


def _start(turn: int, attempt: AttemptSummary) -> Start:
    return Start(turn, attempt.number, attempt.kind.value, attempt.reason.value, attempt.status.value)


def _failures(attempts: Iterable[_Attempt]) -> Iterable[TurnFailure]:
    for turn, attempt in attempts:
        if attempt.failure is not None:
            message = _told(attempt.failure.message, _LONGEST_MESSAGE)
            yield TurnFailure(turn, attempt.failure.failure_class.value, message)
