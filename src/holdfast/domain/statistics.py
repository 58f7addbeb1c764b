"""Owns the figures of a workspace: counts of what there is now, totals of what ever happened, and measures with targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from holdfast.clock import DAY, Instant
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.delegations import DelegationOutcome, DelegationReason
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.records import record
from holdfast.domain.sessions import SessionKind
from holdfast.domain.turns import AttemptStatus, TurnStatus


@record
class SessionCount:
    phase: Phase
    kind: SessionKind
    count: int
    errors: int  #: since each one's last success
    closed: int
    closed_seconds: float  #: from begin to end, of those that are closed


@record
class TurnCount:
    status: TurnStatus
    failure: FailureClass | None
    count: int


@record
class AttemptCount:
    decision: DecisionKind
    reason: Reason
    status: AttemptStatus
    count: int


@record
class DelegationCount:
    reason: DelegationReason
    outcome: DelegationOutcome | None  #: None: still under way
    count: int


@record
class Statistics:
    sessions: tuple[SessionCount, ...]
    turns: tuple[TurnCount, ...]
    attempts: tuple[AttemptCount, ...]
    delegations: tuple[DelegationCount, ...]
    oldest_queued_seconds: float  #: for how long the oldest claimable turn has been waiting
    leases: int
    orphans: int  #: leases that have expired
    open_approvals: int  #: that can still be answered, from agents and from tool calls
    late_reports: int  #: of workers that had lost their lease


class DelegationStart(StrEnum):
    """Which session a delegation began in; ``ASKED_…``: what a script that only asked was answered."""

    NEW = "new"
    RESUMED = "resumed"
    ASKED_NEW = "asked_new"
    ASKED_RESUMED = "asked_resumed"


class TotalKind(StrEnum):
    """What is added up; ``detail`` of a total says which sort, as words separated by spaces."""

    SESSION = "session"  #: begun; detail: its kind
    SESSION_WITH_ERROR = "session_with_error"  #: sessions that ever had an error, or failed; detail: the kind
    CLOSED = "closed"  #: sessions that were closed; detail: phase and kind; the amount is seconds
    DURATION = (
        "duration"  #: of a delegated session that was completed or failed; detail: the number of its bucket
    )
    TURN_DURATION = "turn_duration"  #: of an attempt that answered; detail: the number of its bucket
    ATTEMPT = "attempt"  #: ended: decision, reason, status, and ``first``, ``next`` or ``same`` for its place
    TURN = "turn"  #: ended: status and class of failure
    LOCK_WAIT = (
        "lock_wait"  #: for a provider session that another process writes to: at ``claim`` or ``launch``
    )
    LATE_REPORT = "late_report"
    DELEGATION = "delegation"  #: see ``DelegationStart``
    DELEGATION_END = "delegation_end"  #: its outcome
    CLEANUP = "cleanup"  #: sessions that cleanup ``abandoned`` or ``deleted``, or a person ``removed``
    INPUT_TOKENS = "input_tokens"
    CACHED_INPUT_TOKENS = "cached_input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    COST_USD = "cost_usd"


@record
class Total:
    what: TotalKind
    agent: str  #: empty: it belongs to no agent
    provider: str  #: empty: it belongs to no provider
    detail: str
    number: int
    amount: float  #: a sum, where there is something to add up


@record
class Totals:
    """Totals of whole days of UTC; they include rows that were deleted since."""

    first_day: Instant | None  #: the beginning of the first day with anything in it
    rows: tuple[Total, ...]


# --- measures: computed from totals, each with its target ---

#: bounds of durations in seconds, ten to each factor of six, so that the targets of 5 and 30 minutes are bounds:
#: a duration is known to within 10 %, and never on the wrong side of a target
BOUNDS = tuple(300 * 6 ** (step / 10) for step in range(-40, 51))
_MEGABYTE = 1_000_000


class Unit(StrEnum):
    SHARE = "share"
    SECONDS = "seconds"
    BYTES = "bytes"
    PER_DAY = "per_day"


@record
class Measure:
    name: str
    unit: Unit
    value: float | None  #: None: there is nothing to measure
    target: str | None  #: in words
    met: bool | None  #: None: no target, or nothing to measure
    of: Mapping[str, float]  #: what it was computed from


@record
class Figures:
    """Everything that ``stats`` shows."""

    measures: tuple[Measure, ...]
    agents: Mapping[str, int]  #: number of sessions begun, by agent
    fresh_starts: Mapping[str, int]  #: by reason, of turns that had something to continue
    fallbacks: int
    lock_waits: int  #: turns that stayed in the queue, or failed, because of another writer
    cleanups: Mapping[str, int]
    tokens: Mapping[str, int]
    cost_usd: float


@record
class Stats:
    """Figures, and what they are about."""

    since: Instant | None  #: the beginning of the first day that counts; None: all days
    until: Instant
    agent: str | None
    figures: Figures


class _Counted:
    """Sums over totals, by kind and by what their detail says."""

    def __init__(self, rows: Iterable[Total]) -> None:
        self._rows = tuple(rows)

    def of(self, kind: TotalKind) -> list[Total]:
        return [row for row in self._rows if row.what is kind]

    def number(self, kind: TotalKind, fits: Callable[[list[str]], bool] = bool) -> int:
        return sum(row.number for row in self.of(kind) if fits([*row.detail.split(" "), ""]))

    def amount(self, kind: TotalKind) -> float:
        return sum(row.amount for row in self.of(kind))

    def by(self, kind: TotalKind, key: Callable[[Total], str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.of(kind):
            found[key(row)] = found.get(key(row), 0) + row.number
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def figures(
    totals: Totals, until: Instant, store_bytes: int, since: Instant | None = None, *, vault: int = 0
) -> Figures:
    counted = _Counted(totals.rows)
    fresh = [
        row
        for row in counted.of(TotalKind.ATTEMPT)
        if row.detail.split(" ")[0] == DecisionKind.FRESH and row.detail.split(" ")[-1] == "next"
    ]
    return Figures(
        (*_measures(counted, totals, until, since), *_sizes(store_bytes, vault)),
        counted.by(TotalKind.SESSION, lambda row: row.agent),
        _Counted(fresh).by(TotalKind.ATTEMPT, lambda row: row.detail.split(" ")[1]),
        counted.number(TotalKind.ATTEMPT, lambda words: words[2] == AttemptStatus.FELL_BACK),
        counted.number(TotalKind.LOCK_WAIT),
        counted.by(TotalKind.CLEANUP, lambda row: row.detail),
        {
            "input": int(counted.amount(TotalKind.INPUT_TOKENS)),
            "cached_input": int(counted.amount(TotalKind.CACHED_INPUT_TOKENS)),
            "output": int(counted.amount(TotalKind.OUTPUT_TOKENS)),
        },
        counted.amount(TotalKind.COST_USD),
    )


def _sizes(store_bytes: int, vault: int) -> Iterable[Measure]:
    """The target is about what Holdfast records by itself: the vault has a limit of its own."""
    own = max(0, store_bytes - vault)
    yield Measure("storage", Unit.BYTES, own, "< 100 MB", own < 100 * _MEGABYTE, {"bytes": own})
    yield Measure("vault", Unit.BYTES, vault, None, None, {"bytes": vault})


def _measures(counted: _Counted, totals: Totals, until: Instant, since: Instant | None) -> Iterable[Measure]:
    def attempts(fits: Callable[[list[str]], bool]) -> int:
        return counted.number(TotalKind.ATTEMPT, fits)

    could = attempts(lambda words: words[3] == "next")
    resumed = attempts(lambda words: words[3] == "next" and _resumes(words))
    answered = attempts(
        lambda words: words[3] == "next" and _resumes(words) and AttemptStatus(words[2]).has_spoken
    )
    taken_up = counted.number(
        TotalKind.DELEGATION,
        lambda words: words[0] in (DelegationStart.RESUMED, DelegationStart.ASKED_RESUMED),
    )
    delegated = counted.number(TotalKind.DELEGATION)
    sessions = counted.number(TotalKind.SESSION)
    with_errors = counted.number(TotalKind.SESSION_WITH_ERROR)
    yield _share("resume_rate", resumed, could, ("resumed", "could_resume"), above=0.6)
    yield _share("delegations_resumed", taken_up, delegated, ("resumed", "delegations"), above=0.6)
    yield _share("resume_success", answered, resumed, ("answered", "resumed"), above=0.8)
    took = counted.of(TotalKind.DURATION)
    yield _duration("duration_median", took, 0.5, "sessions", 300)
    yield _duration("duration_p95", took, 0.95, "sessions", 1800)
    turns = counted.of(TotalKind.TURN_DURATION)
    yield _duration("turn_duration_median", turns, 0.5, "turns")
    yield _duration("turn_duration_p95", turns, 0.95, "turns")
    yield _share("error_rate", with_errors, sessions, ("with_errors", "sessions"), below=0.1)
    begin = since if since is not None else totals.first_day
    days = 0.0 if begin is None else max(1.0, (until - begin) / DAY)
    rate = sessions / days if days else None
    yield Measure("creation_rate", Unit.PER_DAY, rate, None, None, {"sessions": sessions, "days": days})


def _resumes(words: list[str]) -> bool:
    return words[0] in (DecisionKind.RESUME, DecisionKind.FORK)


def _share(
    name: str,
    part: int,
    whole: int,
    names: tuple[str, str],
    *,
    above: float | None = None,
    below: float | None = None,
) -> Measure:
    value = part / whole if whole else None
    target = f"> {above:.0%}" if above is not None else f"< {below:.0%}"
    met = None
    if value is not None:
        met = value > above if above is not None else below is not None and value < below
    return Measure(name, Unit.SHARE, value, target, met, {names[0]: part, names[1]: whole})


def _duration(name: str, rows: list[Total], share: float, of: str, limit: int | None = None) -> Measure:
    buckets: dict[int, int] = {}
    for row in rows:
        buckets[int(row.detail)] = buckets.get(int(row.detail), 0) + row.number
    value = quantile(buckets, share)
    met = None if value is None or limit is None else value < limit
    target = None if limit is None else f"< {limit // 60} min"
    return Measure(name, Unit.SECONDS, value, target, met, {of: sum(buckets.values())})


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """The quantile of durations by bucket, to within 10 %; None if there are none."""
    whole = sum(buckets.values())
    passed = 0
    for bucket in sorted(buckets):
        passed += buckets[bucket]
        if passed >= share * whole:
            low, high = BOUNDS[max(0, bucket - 1)], BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return float((low * high) ** 0.5)
    return None
