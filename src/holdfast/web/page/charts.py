"""Owns the drawings of the page: SVG that is made on the server, without styles of its own; the CSS has the colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from holdfast.domain.records import record
from holdfast.domain.usage import Usage
from holdfast.escape import one_line

Number = float | int
_WIDTH: Final = 640
_HEIGHT: Final = 160
_LEFT: Final = 48
_BOTTOM: Final = 22
_BAR: Final = 26
_ROW: Final = 40
_STEP: Final = 28
_TITLE: Final = 60


def count(value: Number) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def dollars(value: Number) -> str:
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"


def columns(
    title: str, points: Sequence[tuple[str, Number]], words: Callable[[Number], str] = count
) -> Markup | None:
    """A column for each day; None without any."""
    if not points:
        return None
    most = max(value for _, value in points) or 1
    inner, high = _WIDTH - _LEFT, _HEIGHT - _BOTTOM - 10
    step = inner / len(points)
    parts = [_grid(most, high, words)]
    for number, (name, value) in enumerate(points):
        size = high * value / most
        width = min(40.0, step * 0.7)
        x = _LEFT + step * number + (step - width) / 2
        parts.append(
            Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>')
            .format(x, 10 + high - size, width, size, name, words(value))
        )  # fmt: skip
    for number in sorted({0, len(points) // 2, len(points) - 1}):
        x = _LEFT + step * (number + 0.5)
        anchor = "middle"
        if len(points) > 2:
            anchor = {0: "start", len(points) - 1: "end"}.get(number, "middle")
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x, _HEIGHT - 6, anchor, points[number][0]
            )
        )
    return _svg(title, _WIDTH, _HEIGHT, parts)


def _grid(most: Number, high: int, words: Callable[[Number], str]) -> Markup:
    lines = [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
        .format(_LEFT, _WIDTH, 10 + high * (1 - share), 10 + high * (1 - share), _LEFT - 6, 14 + high * (1 - share),
                words(most * share))
        for share in (0, 0.5, 1)
    ]  # fmt: skip
    return Markup("").join(lines)


def bars(
    title: str, points: Sequence[tuple[str, Number]], words: Callable[[Number], str] = count
) -> Markup | None:
    """A bar for each name, the largest first."""
    if not points:
        return None
    most = max(value for _, value in points) or 1
    parts = []
    for number, (name, value) in enumerate(points[:20]):
        y = number * _BAR
        parts.append(
            Markup('<text x="190" y="{}" text-anchor="end">{}</text>'
                   '<rect class="bar" x="200" y="{}" width="{:.1f}" height="16"/><text x="{:.1f}" y="{}">{}</text>')
            .format(y + 17, one_line(name, 28).replace("_", " "), y + 5, 360 * value / most, 206 + 360 * value / most,
                    y + 17, words(value))
        )  # fmt: skip
    return _svg(title, _WIDTH, max(1, len(parts)) * _BAR + 4, parts)


@record
class Node:
    href: str
    title: str
    kind: str
    status: str
    depth: int
    parent: int | None  #: its number in the list
    own: Usage
    whole: Usage  #: with everything below it
    is_here: bool


def family(nodes: Sequence[Node]) -> Markup:
    """A tree: a line for each session, below the one that it comes from."""
    parts = []
    width = max(_WIDTH, max((node.depth for node in nodes), default=0) * _STEP + 520)
    for number, node in enumerate(nodes):
        x, y = 14 + node.depth * _STEP, number * _ROW + 20
        if node.parent is not None:
            above = nodes[node.parent]
            left = 14 + above.depth * _STEP
            parts.append(
                Markup('<path class="edge" d="M{} {} V{} H{}"/>').format(
                    left, node.parent * _ROW + 27, y, x - 7
                )
            )
        spent = f" · {dollars(node.whole.cost_usd)} with all below" if node.whole.cost_usd else ""
        words = f"{node.kind} · {node.status} · {count(node.own.input_tokens + node.own.output_tokens)} tokens{spent}"
        parts.append(
            Markup('<a href="{}" class="node {}{}"><circle cx="{}" cy="{}" r="6"/><text x="{}" y="{}">{}</text>'
                   '<text class="dim" x="{}" y="{}">{}</text></a>')
            .format(node.href, node.status, " here" if node.is_here else "", x, y, x + 14, y + 1,
                    one_line(node.title, _TITLE), x + 14, y + 16, words)
        )  # fmt: skip
    # in its own size: text that grows with the window is hard to read
    return _svg("The family of this session", width, len(nodes) * _ROW + 6, parts, is_fixed=True)


def _svg(title: str, width: int, height: int, parts: Sequence[Markup], *, is_fixed: bool = False) -> Markup:
    # a drawing with links is a group, not one image, to a screen reader
    role = "group" if any("<a " in part for part in parts) else "img"
    size = Markup(' width="{}" height="{}"').format(width, height) if is_fixed else ""
    return Markup('<svg class="chart" role="{}" aria-label="{}"{} viewBox="0 0 {} {}">{}</svg>').format(
        role, title, size, width, height, Markup("").join(parts)
    )
