"""Owns the picture: ratios to the floor, and cost over the length of a history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.results import Bar, Curve, Findings

OURS, PEER, LIMIT = "#1f5f8b", "#b0b0b0", "#c0392b"


def draw(found: Findings, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    # text stays text, and the same figures give the same file
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "holdfast", "font.size": 9})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    _draw_bars(left, found.bars)
    _draw_curves(right, found.curves)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _draw_bars(axes: Any, bars: list[Bar]) -> None:
    labels = [bar.label for bar in bars]
    axes.barh(labels, [bar.ratio for bar in bars], color=[OURS if bar.limit else PEER for bar in bars])
    for place, bar in enumerate(bars):
        axes.text(max(bar.ratio, bar.limit or 0), place, f" {bar.ratio:.2f}", va="center")
        if bar.limit is not None:
            axes.plot([bar.limit] * 2, [place - 0.4, place + 0.4], color=LIMIT, linewidth=2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_title("CPU, times the hand-written floor (red: the limit)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_curves(axes: Any, curves: list[Curve]) -> None:
    for curve in curves:
        ours = curve.label.startswith("Holdfast")
        turns, micros = zip(*curve.points, strict=True)
        axes.plot(turns, micros, marker="o", linestyle="-" if ours else "--", label=curve.label)
    axes.set(xscale="log", yscale="log", xlabel="turns behind the session", ylabel="CPU, µs")
    axes.set_title("Cost over the length of the history")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
