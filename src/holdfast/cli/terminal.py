"""Owns the terminal: coloured tables and the status line of a running turn. Only this module and ``terminal_sheet`` import rich."""

from __future__ import annotations

import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from holdfast.cli.output import Block, Cell, Column, Fields, Line, Paragraph, Table, Tone

STYLES: Final = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.DIM: "dim",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "red",
}
_GAP = 2
_NARROWEST = 6


@contextmanager
def as_it_was() -> Iterator[None]:
    """Gives the terminal back as it was: a signal may end a library that has changed it at any point."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def show(blocks: Sequence[Block]) -> None:
    console = make_console()
    for number, block in enumerate(blocks):
        if number:
            console.print()
        _print(console, block)


def _print(console: Console, block: Block) -> None:
    match block:
        case Line(content):
            console.print(_text(content))
        case Fields(rows):
            console.print(_fields(rows))
        case Paragraph(lines, command):
            for indent, line in enumerate(lines):
                text = Text.assemble(*map(_text, line), overflow="fold")
                console.print(Padding(text, (0, 0, 0, _GAP if indent else 0)))
            # the terminal breaks this line itself, so that the command can be copied as a whole
            console.print(Text.assemble(" " * _GAP, _text(command)), soft_wrap=True)
        case Table():
            _print_table(console, block)


def draw(block: Block) -> str:
    """A block as text for this terminal, for a pager."""
    console = make_console()
    with console.capture() as captured:
        _print(console, block)
    return captured.get()


def draw_rows(
    columns: tuple[Column, ...],
    rows: Sequence[tuple[Cell, ...]],
    like: Sequence[tuple[Cell, ...]] | None = None,
    *,
    width: int | None = None,
) -> Iterator[str]:
    """Each row as one line, below a line of titles; ``like``: rows that have the titles, whose widths are used.

    ``width`` is that of the lines; by default the terminal's.
    """
    console = make_console(width)
    widths = _fitting_widths(Table(columns, tuple(rows if like is None else like)), console.width)
    titles = (tuple(Cell(column.title, Tone.DIM) for column in columns),)
    for row in (*(titles if like is None else ()), *rows):
        line = Text(no_wrap=True)
        for column, cell, width in zip(columns, row, widths, strict=True):
            text = _text(cell)
            if not column.whole:
                text.truncate(width, overflow="ellipsis")
            line.append_text(text).append(" " * (width - text.cell_len + _GAP))
        line.rstrip()
        with console.capture() as captured:
            console.print(line, soft_wrap=True)
        yield captured.get()


def live(text: Callable[[], str], every_seconds: float) -> None:
    """Shows a text again and again in the same place, until a signal ends the command."""
    with Live(console=make_console(), auto_refresh=False, vertical_overflow="crop") as shown:
        while True:
            shown.update(Text.from_ansi(text()), refresh=True)
            time.sleep(every_seconds)


def make_console(width: int | None = None) -> Console:
    # cells are Text, never markup; rich itself honours NO_COLOR and TERM=dumb
    return Console(markup=False, emoji=False, highlight=False, width=width)


def _fields(rows: tuple[tuple[str, Cell], ...]) -> Grid:
    grid = Grid.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, _text(value))
    return grid


def _print_table(console: Console, table: Table) -> None:
    """Prints each row on one line; a column that wraps gets the width that the others leave."""
    widths = _fitting_widths(table, console.width)
    grid = Grid(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for column, width in zip(table.columns, widths, strict=True):
        if column.wraps:
            grid.add_column(column.title, overflow="fold")
        else:
            grid.add_column(column.title, no_wrap=True, overflow="ellipsis", width=width)
    for row in table.rows:
        grid.add_row(*map(_text, row))
    needed = sum(widths) + _GAP * (len(widths) - 1)
    if needed > console.width and not any(column.wraps for column in table.columns):
        # the terminal is narrower than the whole columns: it breaks the lines itself, and nothing is lost
        console = make_console(width=needed)
    console.print(grid)


def _fitting_widths(table: Table, available: int) -> list[int]:
    """Returns the widths of the content; if they do not fit, narrows the widest columns, but never a whole one."""
    widths = [cell_len(column.title) for column in table.columns]
    for row in table.rows:
        widths = [max(width, cell_len(cell.text)) for width, cell in zip(widths, row, strict=True)]
    gives = [n for n, column in enumerate(table.columns) if not column.whole and not column.wraps]
    while sum(widths) + _GAP * (len(widths) - 1) > available:
        widest = max(gives, key=lambda n: widths[n], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return widths


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES[cell.tone])


def _end_of(text: str, console: Console, options: ConsoleOptions, indent: int = 0) -> RenderResult:
    """As many of the last lines as the screen has room for."""
    room, width = max(1, options.size.height - 2), max(1, options.max_width - indent)
    for line in Text(text[-room * width :]).wrap(console, width)[-room:]:
        yield Text(" " * indent).append_text(line)


class Below:
    """A text below the output, in the same place again and again; removed before the next output."""

    def __init__(self, indent: int) -> None:
        self._indent = indent
        self._text = ""
        self._live: Live | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _end_of(self._text, console, options, self._indent)

    def show(self, text: str) -> None:
        """An empty text removes the one before."""
        self._text = text
        if not text:
            self.close()
        elif self._live is None:
            self._live = Live(self, console=make_console(), transient=True, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.refresh()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class StatusLine:
    """The lines below the output of a running turn; removed by ``close``. They are the beginning of a line whose end has
    not arrived yet, and the elapsed time, the tokens and the running tool.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tokens = ""
        self._tool = ""
        self._unfinished = ""
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._live = Live(self, console=self._console, transient=True, refresh_per_second=4)
        self._live.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._unfinished:
            yield from _end_of(self._unfinished, console, options)
        tool = f", {self._tool}" if self._tool else ""
        status = f"{time.monotonic() - self._began:.0f} s{self._tokens}{tool}"
        yield Text(status, style="dim", no_wrap=True, overflow="ellipsis")

    def say(self, lines: Sequence[str], unfinished: str) -> None:
        """Prints lines, and below them the beginning of the next one, in one step: nothing disappears in between."""
        self._unfinished = unfinished
        if lines:
            self._console.print(*map(Text, lines), sep="\n")
        else:
            self._live.refresh()

    def tokens(self, taken: int, given: int) -> None:
        self._tokens = f", {taken} tokens in, {given} out"

    def running(self, tool: str) -> None:
        """Names the tool that runs; an empty name: none."""
        self._tool = tool

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="dim"))

    def close(self) -> None:
        self._live.stop()
