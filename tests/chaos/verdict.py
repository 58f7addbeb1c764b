"""Owns the judgement of a campaign: what was promised, counted where it was broken."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

from holdfast.config import DEFAULT
from holdfast.domain.turns import Attempt, AttemptStatus, TurnStatus
from holdfast.processes.table import marker_of
from tests.chaos.evidence import ANSWER, Evidence, Mark, Recorded


@dataclass(frozen=True)
class Broken:
    """Each of them is zero, or the campaign has found something."""

    lost: int  #: acknowledged turns without their answer, in the store, its events or the agent's transcript
    double: int  #: turns that are there twice, or that have ended twice
    overlapping: (
        int  #: tools that ran while another one of their session did, which somebody could have ended
    )
    fenced_writes: int  #: what a worker wrote for an attempt that was not its own any more
    robbed: int  #: attempts that were taken from a worker which could be heard all the time
    stuck: int  #: turns that have not ended, and sessions that are still leased
    disordered: int  #: turns that began before the one before them had ended
    left_running: int  #: processes that nobody ended, or not when their grace was over
    crashed: int  #: workers and servers that ended by an error
    unsaid: int  #: older databases that were put back, and sessions resumed as if they were not

    def __bool__(self) -> bool:
        return any(asdict(self).values())


def judge(seen: Evidence) -> Broken:
    elsewhere = {marker for recorded in seen.recorded for marker in _left_elsewhere(recorded)}
    return Broken(
        lost=sum(not _is_answered(name, seen) for name in seen.acknowledged),
        double=_double(seen),
        overlapping=sum(_overlapping(marks, elsewhere) for marks in seen.marks.values()),
        fenced_writes=sum(_fenced_writes(recorded) for recorded in seen.recorded),
        robbed=sum(_is_robbed(attempt, seen) for found in seen.recorded for attempt in found.attempts),
        stuck=sum(recorded.turn.status.is_open for recorded in seen.recorded) + len(seen.held),
        disordered=sum(_disordered(marks, elsewhere) for marks in seen.marks.values()),
        left_running=len(seen.left_running),
        crashed=len(seen.crashed),
        unsaid=seen.unsaid,
    )


def _is_answered(name: str, seen: Evidence) -> bool:
    recorded = next((recorded for recorded in seen.recorded if recorded.name == name), None)
    if recorded is None or recorded.turn.status is not TurnStatus.DONE:
        return False
    markers = [marker_of(attempt, DEFAULT) for attempt in _done(recorded)]
    answer = ANSWER.findall(recorded.turn.response or "")
    told = {marker for _, marker in recorded.told}
    return bool(answer) and set(answer) <= set(markers) & told & set(seen.answers)


def _is_robbed(attempt: Attempt, seen: Evidence) -> bool:
    at = attempt.ended_at
    if attempt.status is not AttemptStatus.INTERRUPTED or at is None:
        return False
    if any(since <= at <= until for since, until in seen.starved):
        return False
    pid = int(attempt.owner.partition("/")[0])
    return not any(away.pid == pid and away.since <= at <= away.until for away in seen.absences)


def _left_elsewhere(recorded: Recorded) -> Iterator[str]:
    """Attempts that another machine took over: until there is a worker again where they ran, nobody can end them."""
    machine = None
    for attempt in reversed(recorded.attempts):
        if attempt.process is None:
            continue
        if attempt.status is AttemptStatus.INTERRUPTED and machine not in (None, attempt.process.machine):
            yield marker_of(attempt, DEFAULT)
        machine = attempt.process.machine


def _overlapping(marks: Sequence[Mark], elsewhere: Collection[str]) -> int:
    besides = [{mark.marker, mark.besides} for mark in marks if mark.what == "beside"]
    return sum(pair.isdisjoint(elsewhere) for pair in besides)


def _done(recorded: Recorded) -> list[Attempt]:
    return [attempt for attempt in recorded.attempts if attempt.status is AttemptStatus.DONE]


def _double(seen: Evidence) -> int:
    """The same turn twice, a turn that ended twice, or an attempt that ran or answered twice."""
    times = Counter(recorded.name for recorded in seen.recorded)
    begun = Counter(mark.marker for marks in seen.marks.values() for mark in marks if mark.what != "end")
    answered = Counter(seen.answers)
    ended_twice = sum(len(_done(recorded)) > 1 for recorded in seen.recorded)
    return ended_twice + sum(count - 1 for counted in (times, begun, answered) for count in counted.values())


def _fenced_writes(recorded: Recorded) -> int:
    """What is on record of an attempt comes from that attempt, and the answer from the one that ended the turn."""
    markers = {attempt.number: marker_of(attempt, DEFAULT) for attempt in recorded.attempts}
    foreign = sum(told != markers.get(number) for number, told in recorded.told)
    foreign += len(recorded.after_the_end)
    done = {marker_of(attempt, DEFAULT) for attempt in _done(recorded)}
    answer = set(ANSWER.findall(recorded.turn.response or ""))
    return foreign + len(answer - done)


def _disordered(marks: Sequence[Mark], elsewhere: Collection[str]) -> int:
    return sum(1 for _ in _leaps([mark for mark in marks if mark.marker not in elsewhere]))


def _leaps(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Where a turn begins that is not the next one, or whose predecessor has not ended."""
    ended = 0
    for mark in marks:
        if mark.what == "end":
            ended = max(ended, mark.seq)
        elif mark.seq not in (ended, ended + 1):
            yield mark
