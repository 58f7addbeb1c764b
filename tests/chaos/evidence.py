"""Owns what is left to see when a campaign is over: the store, the tools' marks, the agents' transcripts."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Instant
from holdfast.domain.turns import Attempt, LateReport, Turn
from holdfast.store.contract import Store

ANSWER = re.compile(r"answered:([^\s\"\\]+)")
#: of an attempt: conversation, turn, number, fence, and whose it is
MARKER = re.compile(r".+\.(\d+)\.\d+\.\d+\.[0-9a-f]{16}")


@dataclass(frozen=True)
class Mark:
    """``begin``, ``end``, or ``beside``: it began while another tool of the session was at work."""

    what: str
    turn: str
    marker: str
    besides: str = ""  #: the marker of that other tool

    @property
    def seq(self) -> int:
        return turn_of(self.marker)


@dataclass(frozen=True)
class Recorded:
    """A turn as the store has it; ``name`` says which one of its session it is, whatever its prompt says."""

    name: str
    turn: Turn
    attempts: tuple[Attempt, ...]
    #: attempt number and marker of every answer of a tool among its events
    told: tuple[tuple[int, str], ...]
    #: attempt numbers of the events that were noticed when their attempt was over
    after_the_end: tuple[int, ...] = ()


@dataclass(frozen=True)
class Absence:
    """A worker that could not be heard for a while, or ever again."""

    pid: int
    since: Instant
    until: Instant


@dataclass(frozen=True)
class Evidence:
    acknowledged: frozenset[str]  #: the turns that somebody was told are in the queue
    recorded: tuple[Recorded, ...]  #: in the order of each session
    late: tuple[LateReport, ...]
    held: tuple[str, ...]  #: sessions that are still leased
    marks: dict[str, tuple[Mark, ...]]  #: by session, in the order in which they were made
    answers: tuple[str, ...]  #: the markers of what the agents' own transcripts say was answered
    left_running: tuple[int, ...] = ()
    crashed: tuple[str, ...] = ()  #: workers and servers that ended by an error
    absences: tuple[Absence, ...] = ()
    #: in which nobody could be heard in time, as the machine had no processor to spare
    starved: tuple[tuple[Instant, Instant], ...] = ()
    unsaid: int = 0  #: older databases that were put back, and sessions resumed as if they were not


def turn_of(marker: str) -> int:
    found = MARKER.fullmatch(marker)
    assert found is not None, marker
    return int(found[1])


def session_of(marker: str) -> str:
    return marker.removeprefix("conversation-").partition(".")[0]


def read_marks(folder: Path) -> dict[str, tuple[Mark, ...]]:
    return {file.stem: read_mark_file(file) for file in sorted(folder.glob("*.marks"))}


def read_mark_file(file: Path) -> tuple[Mark, ...]:
    return tuple(Mark(*line.split()) for line in file.read_text().splitlines())


def read_answers(transcripts: Iterable[Path]) -> Iterator[str]:
    """Read as lines of JSON, without any code of the product."""
    for transcript in transcripts:
        for line in transcript.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("type") == "assistant":
                yield from ANSWER.findall(json.dumps(entry))


def read_recorded(store: Store, session_id: str, number: int) -> Iterator[Recorded]:
    """Of the session with this number, whose turns were asked for in this order."""
    for place, turn in enumerate(store.turns(session_id), start=1):
        attempts = store.attempts(turn.conversation_id, turn.seq)
        events = store.events(turn.conversation_id, turn.seq, limit=10_000)
        told = tuple(
            (attempt, told)
            for attempt, event in events
            for told in ANSWER.findall(json.dumps(dict(event.data)))
        )
        ended_at = {attempt.number: attempt.ended_at for attempt in attempts}
        late = tuple(attempt for attempt, event in events if event.at > (ended_at[attempt] or event.at))
        yield Recorded(f"turn-{number}-{place}", turn, attempts, told, late)
