"""Owns the screen of the picker: the typed words, the sessions that fit, and the keys. Imports prompt_toolkit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, VSplit, Window
from prompt_toolkit.styles import Style

from holdfast.cli.listing import project_words
from holdfast.cli.picker import Action, Choice, Chosen
from holdfast.cli.progress import stoppable
from holdfast.cli.terminal import as_it_was, draw_rows
from holdfast.escape import one_line

_KEYS: Final = {
    "enter": Action.CONTINUE,
    "c-o": Action.OPEN,
    "c-f": Action.FORK,
    "c-l": Action.LOG,
    "c-y": Action.WHY,
}
_HELP: Final = "Enter continue  Ctrl-O open  Ctrl-F fork  Ctrl-L log  Ctrl-Y why  Esc leave"
#: lines that hold no session: the directory, the typed words, the titles and the keys
_OTHER_LINES: Final = 4
_MARK: Final = "❯ "


def choose(choice: Choice) -> Chosen | None:
    """Returns what the person chose; None if they left. KeyboardInterrupt after Ctrl-C."""
    screen = _Screen(choice)
    application = screen.application
    try:
        with as_it_was(), stoppable():
            return application.run(pre_run=screen.load)
    except SystemExit:  # a signal ended the run in the middle: the screen is still there
        application.renderer.reset()
        # what the renderer does not know to have changed, if it was ended while it drew
        application.output.disable_bracketed_paste()
        application.output.quit_alternate_screen()
        application.output.show_cursor()
        application.output.flush()
        raise


class _Screen:
    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._fitting = choice.sessions
        self._at = 0  #: of the marked one, among those that fit
        self._top = 0  #: of the first one that is shown
        self._height = 1  #: how many are shown
        self._is_loaded = False
        self._typed = Buffer(multiline=False, on_text_changed=lambda _: self._filter())
        self.application: Application[Chosen | None] = Application(
            layout=Layout(self._layout()),
            key_bindings=self._keys(),
            style=Style([("dim", "dim"), ("strong", "bold")]),
            full_screen=True,
            erase_when_done=True,
        )
        self.application.ttimeoutlen = 0.05  # so that Esc alone is noticed at once
        self.application.timeoutlen = 0.05

    def load(self) -> None:
        """Reads the sessions that are not there yet, while the person looks at the first ones."""
        self.application.create_background_task(self._load())

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        while (page := await loop.run_in_executor(None, self._choice.read)) is not None:
            self._choice.add(page)
            self._fitting = self._choice.fitting(self._typed.text)  # more at the end: the mark stays
            self.application.invalidate()
        self._is_loaded = True
        self.application.invalidate()

    # --- what is shown ---

    def _layout(self) -> HSplit:
        return HSplit(
            [
                Window(FormattedTextControl(self._head), height=1, wrap_lines=False),
                VSplit(
                    [
                        Window(FormattedTextControl([("class:strong", "> ")]), width=2, height=1),
                        Window(BufferControl(self._typed), height=1),
                    ]
                ),
                Window(FormattedTextControl(self._list), wrap_lines=False, always_hide_cursor=True),
                Window(FormattedTextControl([("class:dim", _HELP)]), height=1, wrap_lines=False),
            ]
        )

    def _head(self) -> StyleAndTextTuples:
        every, fitting = len(self._choice.sessions), len(self._fitting)
        count = f"{fitting:,} of {every:,}" if self._typed.text.strip() else f"{every:,}"
        words = "session" if every == 1 else "sessions"
        older = (
            "" if self._choice.is_all else " (holdfast list has older ones)" if self._is_loaded else " so far"
        )
        head = f"{count} {words}{older} in "
        left = self.application.output.get_size().columns - len(head)
        where = one_line(project_words(self._choice.directory, whole=True))
        # the end of a path tells it from others
        return [("", head), ("class:strong", where if len(where) <= left else f"…{where[1 - left :]}")]

    def _list(self) -> StyleAndTextTuples:
        if not self._fitting:
            return [("class:dim", "\n  nothing fits; Backspace or Esc widens the search")]
        size = self.application.output.get_size()
        self._scroll(max(1, size.rows - _OTHER_LINES))
        width = size.columns - len(_MARK)
        columns, rows = self._choice.rows(self._fitting[self._top : self._top + self._height], width)
        # as wide as the first ones need, too: so the columns stay where they are while the list moves
        like = [*self._choice.rows(self._fitting[: self._height], width)[1], *rows]
        titles = next(draw_rows(columns, like, width=width))
        shown: StyleAndTextTuples = [("", "  "), *to_formatted_text(ANSI(titles.rstrip("\n")))]
        for number, line in enumerate(draw_rows(columns, rows, like=like, width=width), self._top):
            is_marked = number == self._at
            shown.append(("class:strong", f"\n{_MARK if is_marked else '  '}"))
            shown += to_formatted_text(ANSI(line.rstrip("\n")), style="reverse" if is_marked else "")
        return shown

    def _scroll(self, height: int) -> None:
        """Moves the window over the list as little as the marked line needs."""
        self._height = height
        lowest = max(0, len(self._fitting) - height)
        self._top = min(max(self._top, self._at - height + 1), self._at, lowest)

    # --- what the keys do ---

    def _filter(self) -> None:
        self._fitting = self._choice.fitting(self._typed.text)
        self._at = self._top = 0

    def _move(self, lines: int) -> None:
        self._at = max(0, min(self._at + lines, len(self._fitting) - 1))

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        for key, action in _KEYS.items():
            keys.add(key)(self._choosing(action))
        for key in ("up", "c-p"):
            keys.add(key)(lambda _: self._move(-1))
        for key in ("down", "c-n", "tab"):
            keys.add(key)(lambda _: self._move(1))
        keys.add("pageup")(lambda _: self._move(-self._height))
        keys.add("pagedown")(lambda _: self._move(self._height))
        keys.add("home")(lambda _: self._move(-len(self._fitting)))
        keys.add("end")(lambda _: self._move(len(self._fitting)))

        @keys.add("escape")
        def _widen_or_leave(event: KeyPressEvent) -> None:
            if self._typed.text:
                self._typed.text = ""  # reset() would not filter anew
            else:
                event.app.exit(result=None)

        @keys.add("c-d")
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        @keys.add("c-c")
        def _interrupt(event: KeyPressEvent) -> None:
            event.app.exit(exception=KeyboardInterrupt)

        return keys

    def _choosing(self, action: Action) -> Callable[[KeyPressEvent], None]:
        def chosen(event: KeyPressEvent) -> None:
            if self._fitting:
                event.app.exit(result=(action, self._fitting[self._at]))

        return chosen
