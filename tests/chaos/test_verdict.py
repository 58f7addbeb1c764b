"""The judge of a campaign sees what it is there to see: each promise, broken once."""

from dataclasses import fields, replace

import pytest

from holdfast.clock import after
from holdfast.config import DEFAULT
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decided, DecisionKind, Reason
from holdfast.domain.ids import ConversationId, SessionId
from holdfast.domain.turns import Attempt, AttemptCause, AttemptStatus, Turn, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.processes.table import marker_of
from tests.builders import a_process
from tests.chaos.evidence import Absence, Evidence, Mark, Recorded
from tests.chaos.verdict import Broken, judge
from tests.clock import NOON

SESSION, CONVERSATION = SessionId("s"), ConversationId("c")
NOTHING = Broken(*(0,) * len(fields(Broken)))
AWAY = Absence(7, NOON, NOON)


def an_attempt(
    seq: int, number: int, status: AttemptStatus = AttemptStatus.DONE, machine: str = "here"
) -> Attempt:
    decided = Decided(DecisionKind.FRESH, Reason.NO_POINTER, ())
    return Attempt(
        CONVERSATION, seq, number, SESSION, "scripted", None, "7/1/owner", 10 * seq + number, AttemptCause.FIRST,
        status, decided, None, None, None, 0, SeenTurns(), a_process(machine=machine), NOON, NOON, None, NO_USAGE, None, None, None,
        1, None,
    )  # fmt: skip


def a_turn(seq: int, status: TurnStatus = TurnStatus.DONE, *attempts: Attempt) -> Recorded:
    """Answered by the last of its attempts."""
    attempts = attempts or (an_attempt(seq, 1),)
    marker = marker_of(attempts[-1], DEFAULT)
    turn = Turn(
        CONVERSATION, seq, SESSION, "scripted", status, f"work on turn-0-{seq}", f"answered:{marker}",
        TurnRequest(), 0, None, None, False, None, len(attempts), 3, 1, None, None, False, NOON, NOON,
    )  # fmt: skip
    return Recorded(f"turn-0-{seq}", turn, attempts, ((attempts[-1].number, marker),))


def marks(*recorded: Recorded) -> tuple[Mark, ...]:
    return tuple(
        Mark(what, found.name, marker_of(attempt, DEFAULT))
        for found in recorded
        for attempt in found.attempts
        for what in ("begin", "end")
    )


TAKEN_OVER = a_turn(2, TurnStatus.DONE, an_attempt(2, 1, AttemptStatus.INTERRUPTED), an_attempt(2, 2))
TURNS = (a_turn(1), TAKEN_OVER, a_turn(3))
GOOD = Evidence(
    acknowledged=frozenset(found.name for found in TURNS),
    recorded=TURNS,
    late=(),
    held=(),
    marks={"session-0": marks(*TURNS)},
    answers=tuple(marker_of(attempt, DEFAULT) for found in TURNS for attempt in found.attempts),
    absences=(AWAY,),
)


def with_marks(*changed: Mark) -> Evidence:
    return replace(GOOD, marks={"session-0": changed})


def with_turn(changed: Recorded) -> Evidence:
    return replace(GOOD, recorded=(changed, *TURNS[1:]))


def beside(mark: Mark, other: str = "") -> Mark:
    return replace(mark, what="beside", besides=other)


M = marks(*TURNS)
LATE_ANSWER = replace(TAKEN_OVER, turn=replace(TAKEN_OVER.turn, response=f"answered:{M[2].marker}"))
LATE_EVENT = replace(TAKEN_OVER, told=((2, M[2].marker),))


def test_work_that_was_taken_over_and_answered_breaks_nothing() -> None:
    assert judge(GOOD) == NOTHING
    assert not judge(GOOD)


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        (replace(GOOD, recorded=TURNS[1:]), "lost"),
        (replace(GOOD, answers=GOOD.answers[1:]), "lost"),
        (with_turn(replace(TURNS[0], told=())), "lost"),
        (with_turn(a_turn(1, TurnStatus.FAILED)), "lost"),
        (with_turn(replace(TURNS[0], turn=replace(TURNS[0].turn, response="red"))), "lost"),
        (replace(GOOD, recorded=(*TURNS, TURNS[0])), "double"),
        (replace(GOOD, answers=(*GOOD.answers, GOOD.answers[0])), "double"),
        (with_turn(a_turn(1, TurnStatus.DONE, an_attempt(1, 1), an_attempt(1, 2))), "double"),
        (with_marks(*M[:2], *M), "double"),
        (with_marks(beside(M[0]), *M[1:]), "overlapping"),
        (replace(GOOD, recorded=(TURNS[0], LATE_ANSWER, TURNS[2])), "fenced_writes"),
        (replace(GOOD, recorded=(TURNS[0], LATE_EVENT, TURNS[2])), "fenced_writes"),
        (with_turn(replace(TURNS[0], after_the_end=(1,))), "fenced_writes"),
        (with_turn(a_turn(1, TurnStatus.RUNNING)), "stuck"),
        (replace(GOOD, held=("s",)), "stuck"),
        (with_marks(M[0], *M[2:]), "disordered"),
        (with_marks(*M[2:], *M[:2]), "disordered"),
        (replace(GOOD, left_running=(1,)), "left_running"),
        (replace(GOOD, crashed=("worker",)), "crashed"),
        (replace(GOOD, unsaid=1), "unsaid"),
    ],
)  # fmt: skip
def test_what_is_broken_is_counted(seen: Evidence, broken: str) -> None:
    assert getattr(judge(seen), broken) > 0
    assert judge(seen)


@pytest.mark.parametrize(("machine", "overlapping"), [("here", 1), ("there", 0)])
def test_only_a_machine_that_was_lost_may_have_an_agent_beside_the_next(
    machine: str, overlapping: int
) -> None:
    left = an_attempt(1, 1, AttemptStatus.INTERRUPTED, machine)
    turn = a_turn(1, TurnStatus.DONE, left, an_attempt(1, 2))
    begun, ended, _, again = marks(turn)
    besides = beside(marks(turn)[2], marker_of(left, DEFAULT))
    seen = Evidence(
        frozenset({turn.name}), (turn,), (), (), {"session-0": (begun, besides, again, ended)},
        (marker_of(turn.attempts[1], DEFAULT),), absences=(AWAY,),
    )  # fmt: skip

    assert judge(seen) == replace(NOTHING, overlapping=overlapping)


@pytest.mark.parametrize(
    "absences", [(), (replace(AWAY, pid=8),), (replace(AWAY, since=after(NOON, 1), until=after(NOON, 2)),)]
)
def test_a_worker_that_could_be_heard_was_robbed(absences: tuple[Absence, ...]) -> None:
    assert judge(replace(GOOD, absences=absences)) == replace(NOTHING, robbed=1)


def test_a_worker_that_got_no_processor_could_not_be_heard() -> None:
    starved = replace(GOOD, absences=(), starved=((NOON, after(NOON, 1)),))

    assert judge(starved) == NOTHING
    assert judge(replace(starved, starved=((after(NOON, 1), after(NOON, 2)),))) == replace(NOTHING, robbed=1)
