"""Owns what a run finds out: tables for readers, targets with a verdict, and curves for the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """``measured`` None: this machine cannot measure it, and ``why_not`` says why."""

    what: str
    limit: float
    measured: float | None
    unit: str = "×"
    at_least: bool = False
    why_not: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**missed**", None: f"not measured: {self.why_not}"}[self.met]

    @property
    def limit_text(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {quantity(self.limit, self.unit)}"

    @property
    def measured_text(self) -> str:
        return "–" if self.measured is None else quantity(self.measured, self.unit)


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """CPU microseconds over the number of turns behind a session."""

    label: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio to the floor, and the limit it is held to, if any."""

    label: str
    ratio: float
    limit: float | None


@dataclass(slots=True)
class Findings:
    targets: list[Target] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[Target]:
        return [target for target in self.targets if target.met is False]


def quantity(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.2f} ×"
    if unit == "µs":
        return f"{micros(value)} µs"
    if unit == "%":
        return f"{value:.0f} %"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{text} {unit}".strip()


def micros(value: float) -> str:
    """Three significant digits, never in exponents."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def beside(value: float, ratio: float) -> str:
    return f"{micros(value)} ({ratio:.2f} ×)"
