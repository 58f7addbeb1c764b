"""Owns tokens and money: deltas from what providers report, and how full a context window is."""

from __future__ import annotations

from enum import StrEnum

from holdfast.domain.inputs import MAX_NUMBER, check_whole, utf8_size
from holdfast.domain.records import record
from holdfast.errors import InvalidInput

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Protocol

    class ContextShares(Protocol):
        """How full a context window may be: a ``ResumePolicy``, or as much of one as a hook knows."""

        @property
        def context_warn(self) -> float: ...
        @property
        def context_refresh(self) -> float: ...
        @property
        def context_critical(self) -> float: ...


@record
class Usage:
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __post_init__(self) -> None:
        """Makes 0 the float 0.0: a database may treat the two as different."""
        if type(self.cost_usd) is int:
            object.__setattr__(self, "cost_usd", float(self.cost_usd))

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )


NO_USAGE = Usage()


class UsageGroup(StrEnum):
    SESSION = "session"
    AGENT = "agent"
    PROVIDER = "provider"
    DAY = "day"  #: of UTC


@record
class UsageTotal:
    key: str  #: the session, the agent, the provider or the day
    attempts: int
    usage: Usage


@record
class ContextUse:
    """The prompt size of a provider session's last call, and the window it must fit into."""

    tokens: int
    window: int


#: the context of a provider session of which no call has ended yet
NO_CALL_YET = ContextUse(0, 0)


@record
class UsageReport:
    """What a provider reported at the end of an attempt.

    ``cumulative`` counts since the provider session began (Claude's cost, Codex' tokens);
    otherwise the figures are this attempt's alone.
    """

    usage: Usage = NO_USAGE
    cumulative: bool = False
    context: ContextUse | None = None


NOTHING_REPORTED = UsageReport()


def usage_delta(reported: Usage, baseline: Usage) -> Usage:
    """This attempt's share of cumulative figures.

    A counter that went down was reset by the provider: then all of it is new.
    """

    return Usage(
        _delta(reported.input_tokens, baseline.input_tokens),
        _delta(reported.cached_input_tokens, baseline.cached_input_tokens),
        _delta(reported.output_tokens, baseline.output_tokens),
        reported.cost_usd - baseline.cost_usd
        if reported.cost_usd >= baseline.cost_usd
        else reported.cost_usd,
    )


def _delta(reported: int, baseline: int) -> int:
    return reported - baseline if reported >= baseline else reported


BYTES_PER_TOKEN = 3


def check_usage(usage: Usage) -> None:
    """Raises InvalidInput for impossible figures: they would stay in every sum."""
    for field in ("input_tokens", "cached_input_tokens", "output_tokens"):
        check_whole(field, getattr(usage, field))
    if type(usage.cost_usd) not in (int, float):
        raise InvalidInput("cost_usd", f"must be a number, not {type(usage.cost_usd).__name__}")
    if not 0 <= usage.cost_usd <= MAX_NUMBER:
        raise InvalidInput("cost_usd", f"must be between 0 and {MAX_NUMBER}")


def check_report(report: UsageReport) -> None:
    check_usage(report.usage)
    if report.context is not None:
        check_whole("context tokens", report.context.tokens)
        check_whole("context window", report.context.window)


class ContextState(StrEnum):
    OK = "ok"
    WARN = "warn"  #: 70 % by default
    REFRESH = "refresh"  #: 80 %: the next turn starts fresh, with the context
    CRITICAL = "critical"  #: 95 %: nothing may be sent any more


def context_state(use: ContextUse, policy: ContextShares, extra_tokens: int = 0) -> ContextState:
    """``extra_tokens`` is the size of the prompt that is about to be sent. An unknown window is never full."""
    if use.window <= 0:
        return ContextState.OK
    filled = min(max(use.tokens + extra_tokens, 0), use.window)
    share = filled / use.window
    if share >= policy.context_critical:
        return ContextState.CRITICAL
    if share >= policy.context_refresh:
        return ContextState.REFRESH
    if share >= policy.context_warn:
        return ContextState.WARN
    return ContextState.OK


def estimate_tokens(text: str) -> int:
    """A cautious guess: one token for each three bytes of UTF-8, rounded up."""
    return -(-utf8_size(text) // BYTES_PER_TOKEN)


_LEAST_SHOWN = 0.0001


def cost_words(cost_usd: float) -> str:
    """A cost that is known is never shown as nothing."""
    return f"<${_LEAST_SHOWN}" if 0 < cost_usd < _LEAST_SHOWN else f"${cost_usd:.4f}"
