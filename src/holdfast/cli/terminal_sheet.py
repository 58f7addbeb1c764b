"""Owns a conversation on a terminal: Markdown laid out, each tool call on one line, nothing wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt  # rich itself reads Markdown with it
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from holdfast.cli.conversation import INDENT, LONGEST_MARKDOWN, QUOTE, plain_prompt, plain_prose
from holdfast.cli.output import Cell, Tone
from holdfast.cli.terminal import STYLES, make_console
from holdfast.escape import lines, one_line

_WIDEST = 100  #: longer lines of prose are hard to read
_NARROWEST = 6
#: without a background: the terminal may be light or dark
_THEME = Theme({"markdown.code": "cyan", "markdown.block_quote": "dim"})


class TerminalSheet:
    """The parts of a conversation as text for this terminal."""

    def __init__(self) -> None:
        self._console = make_console()
        self._console.push_theme(_THEME)
        self._console.width = min(self._console.width, _WIDEST)
        self.width = self._console.width

    def heading(self, cell: Cell) -> str:
        return self._drawn(Text(cell.text, style=STYLES[cell.tone]))

    def line(self, cell: Cell) -> str:
        return self._drawn(Padding(Text(cell.text, style=STYLES[cell.tone]), (0, 0, 0, INDENT)))

    def folded(self, mark: Cell, words: str, note: str) -> str:
        """All on one line: what does not fit is cut; the note keeps at least half of the room."""
        room = self.width - INDENT - cell_len(mark.text) - 1
        shown = Text(f"{' ' * INDENT}{mark.text} ", style=STYLES[mark.tone])
        about = Text(words)
        if note:
            about.truncate(max(room // 2, room - cell_len(note) - 2), overflow="ellipsis")
            about.append("  ").append(note, style=STYLES[Tone.DIM])
        about.truncate(room, overflow="ellipsis")
        return self._drawn(Text("", no_wrap=True).append_text(shown).append_text(about))

    def prompt(self, text: str) -> str:
        if len(text) > LONGEST_MARKDOWN:
            return plain_prompt(text)
        room = max(self.width - INDENT - len(QUOTE), _NARROWEST)
        folded = [piece for line in lines(text) for piece in Text(line).wrap(self._console, room)]
        return self._drawn(
            Padding(Text("\n").join(Text(QUOTE + piece.plain, "bold") for piece in folded), (0, 0, 0, INDENT))
        )

    def markdown(self, text: str) -> str:
        if len(text) > LONGEST_MARKDOWN:
            return plain_prose(text)
        return self._drawn(Padding(_Markdown(text), (0, 0, 0, INDENT)))

    def _drawn(self, what: RenderableType) -> str:
        with self._console.capture() as drawn:
            self._console.print(what)
        return "\n".join(line.rstrip() for line in drawn.get().split("\n"))


class _Markdown(Markdown):
    """Markdown of an agent: HTML in it is text, links and images show their address, and no character is a command."""

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False, code_theme="ansi_dark")
        parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
        self.parsed = parser.parse("\n".join(lines(text)))
        for token in _with_children(self.parsed):
            # an entity of the text may be a character that reorders the others: it is one only now
            token.content = "\n".join(lines(token.content))
            token.info = one_line(token.info)
            token.attrs = {name: one_line(value) for name, value in token.attrs.items()}


def _with_children(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())
