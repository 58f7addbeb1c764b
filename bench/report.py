"""Owns how a run is told: on the terminal, and between the markers of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

from bench.results import Findings, Table, Target

BEGIN = "<!-- results: written by `make bench`, do not edit -->"
END = "<!-- end of results -->"


def targets_table(targets: list[Target]) -> Table:
    rows = [[t.what, t.limit_text, t.measured_text, t.verdict] for t in targets]
    return Table("Targets", ("target", "limit", "measured", "verdict"), rows)


def as_markdown(found: Findings, facts: list[str]) -> str:
    parts = ["Measured on:", "", *(f"- {fact}" for fact in facts), ""]
    for table in (targets_table(found.targets), *found.tables):
        parts += [f"### {table.title}", "", *_markdown_table(table), ""]
        if table.note:
            parts += [table.note, ""]
    parts += [f"{note}\n" for note in found.notes]
    return "\n".join(parts)


def _markdown_table(table: Table) -> list[str]:
    numbers = ["---"] + ["---:"] * (len(table.header) - 1)
    return [_line(table.header), _line(numbers), *(_line(row) for row in table.rows)]


def _line(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    return "| " + " | ".join(cells) + " |"


def write(page: Path, results: str) -> None:
    """Replace what is between the markers, and nothing else."""
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for results: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{results.strip()}\n\n{END}{after}", "utf-8")


def as_text(found: Findings, facts: list[str]) -> str:
    parts = [*facts, ""]
    for table in (*found.tables, targets_table(found.targets)):
        parts += [table.title, *_columns(table), ""]
    parts += found.notes
    return "\n".join(parts)


def _columns(table: Table) -> list[str]:
    lines = [list(table.header), *(list(row) for row in table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
