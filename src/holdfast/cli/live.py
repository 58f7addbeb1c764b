"""Owns the line at the bottom of the terminal while an agent works: elapsed time and tokens."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text


class StatusLine:
    """Everything printed goes above it, and it is gone when it is closed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tokens = ""
        self._unfinished = ""
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._live = Live(self, console=self._console, transient=True, refresh_per_second=4)
        self._live.start()

    def __rich__(self) -> Text:
        status = Text(f"{time.monotonic() - self._began:.0f} s{self._tokens}", style="dim")
        return Text(f"{self._unfinished}\n").append_text(status) if self._unfinished else status

    def unfinished(self, line: str) -> None:
        """What was said of a line that may still go on."""
        self._unfinished = line

    def tokens(self, taken: int, given: int) -> None:
        self._tokens = f", {taken} tokens in, {given} out"

    def print(self, line: str) -> None:
        self._console.print(Text(line))

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="dim"))

    def close(self) -> None:
        self._live.stop()
