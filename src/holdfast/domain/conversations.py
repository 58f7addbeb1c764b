"""Owns a conversation's history: which turns are in it, what changed, and which turns a provider session has seen."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.turns import TurnStatus

from holdfast.clock import Instant
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ConversationId
from holdfast.domain.records import record


class ChangeKind(StrEnum):
    EDIT = "edit"  #: one turn got a new revision
    TRUNCATE = "truncate"  #: these turns left the current history


@record
class HistoryChange:
    """One entry of a conversation's change log; ``revision`` numbers them without gaps."""

    revision: int
    kind: ChangeKind
    first: int
    last: int


@record
class ForkPoint:
    """A conversation as it stood: turns up to ``seq``, as of ``revision``."""

    conversation_id: ConversationId
    seq: int
    revision: int


@record
class Conversation:
    id: ConversationId
    fork_point: ForkPoint | None
    revision: int  #: of the newest history change; a pointer remembers it as its epoch
    generation: int  #: bumped by ``new``
    next_seq: int
    created_at: Instant


@record
class SeenTurns:
    """The turns that a provider session was sent or produced, as sorted, separate ranges.

    Kept as ranges so that ten thousand turns cost as much as ten.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def up_to(cls, last: int, without: Iterable[int] = ()) -> SeenTurns:
        """Turns 1 to ``last`` except those in ``without``."""
        ranges: list[tuple[int, int]] = []
        first = 1
        for hole in sorted(without):
            if hole > last:
                break
            if hole > first:
                ranges.append((first, hole - 1))
            first = max(first, hole + 1)
        if first <= last:
            ranges.append((first, last))
        return cls(tuple(ranges))

    @classmethod
    def parse(cls, text: str) -> SeenTurns:
        """``1-4,6`` as written by ``str()``; ValueError for anything else."""
        ranges: list[tuple[int, int]] = []
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if low > high or low < 1 or (ranges and low <= ranges[-1][1]):
                raise ValueError(f"not a list of ranges: {text[:80]!r}")
            ranges.append((low, high))
        seen = cls(tuple(ranges))
        if str(seen) != text:  # int() takes spaces, signs and underscores too
            raise ValueError(f"not a list of ranges: {text[:80]!r}")
        return seen

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges)

    def __contains__(self, seq: int) -> bool:
        return any(a <= seq <= b for a, b in self.ranges)

    @property
    def last(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def with_turn(self, seq: int) -> SeenTurns:
        return self.union(SeenTurns(((seq, seq),)))

    def union(self, other: SeenTurns) -> SeenTurns:
        ranges: list[tuple[int, int]] = []
        for first, last in sorted((*self.ranges, *other.ranges)):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return SeenTurns(tuple(ranges))

    def without(self, other: SeenTurns) -> SeenTurns:
        unseen = SeenTurns(other.missing_up_to(max(self.last, other.last)))
        return SeenTurns(
            tuple(
                (max(a, c), min(b, d))
                for a, b in self.ranges
                for c, d in unseen.ranges
                if max(a, c) <= min(b, d)
            )
        )

    def before_fork(self, seq: int) -> SeenTurns:
        """The seen turns that a fork at turn ``seq`` shares with its source."""
        return SeenTurns(tuple([(a, min(b, seq)) for a, b in self.ranges if a <= seq]))

    def touched_by(self, change: HistoryChange) -> bool:
        return any(a <= change.last and change.first <= b for a, b in self.ranges)

    def missing_up_to(self, last: int) -> tuple[tuple[int, int], ...]:
        """The ranges within 1 to ``last`` that were not seen."""
        gaps: list[tuple[int, int]] = []
        first = 1
        for a, b in self.ranges:
            if a > last:
                break
            if a > first:
                gaps.append((first, a - 1))
            first = b + 1
        if first <= last:
            gaps.append((first, last))
        return tuple(gaps)


@record
class HistoryTurn:
    """One turn of the current history as a reader sees it."""

    seq: int
    agent: str
    session_id: str
    status: TurnStatus
    revision: int  #: of the newest text of this turn
    prompt: str
    response: str | None
    at: Instant
    retry_of: int | None = None  #: the turn that this one repeats
    attempts: int = 0  #: how many attempts it had
    not_before: Instant | None = None
    failure: Failure | None = None
    is_edited: bool = False  #: a text of it has replaced an earlier one
