"""Owns the prompt of a chat: editing lines, and the history of what was typed. Imports prompt_toolkit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from holdfast.cli.output import tell
from holdfast.cli.progress import stoppable
from holdfast.cli.terminal import as_it_was
from holdfast.config import data_dir
from holdfast.domain.redaction import redact_text

#: a history file that is longer is cut to its newest half megabyte
_MOST_BYTES: Final = 1024 * 1024
_LONGEST: Final = 32 * 1024  #: a longer text is not kept


class ChatPrompt:
    def __init__(self, commands: Sequence[str]) -> None:
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            history=TypedLines(data_dir(os.environ) / "chat_history"),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
            enable_suspend=True,
        )

    def read(self) -> str:
        """Returns one text, of one or several lines. EOFError after Ctrl-D, KeyboardInterrupt after Ctrl-C."""
        with as_it_was(), stoppable():  # a signal must not leave the terminal as the prompt needs it
            return self._session.prompt()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    # not Ctrl-J: an Enter that was typed while a turn ran arrives as one
    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _drop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


class TypedLines(History):
    """What was typed in all chats, in a file that only its owner can read, one JSON string on each line.

    A text that holds something that looks like a secret is remembered until the chat ends, and not written. A chat
    whose file cannot be read or written tells so once, and goes on without it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_kept = True
        self._before = (
            self._read()
        )  # now: what it has to tell would be lost on a prompt that is drawn already

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self._before)

    def _read(self) -> list[str]:
        try:
            self._shorten()
            with self._path.open(encoding="utf-8", errors="replace") as file:
                return [text for line in file if (text := _read_line(line))]
        except FileNotFoundError:
            return []
        except OSError as exc:
            self._give_up(exc)
            return []

    def store_string(self, string: str) -> None:
        if not self._is_kept or len(string) > _LONGEST or redact_text(string) != string:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(os.O_APPEND, json.dumps(string).encode() + b"\n")
        except OSError as exc:
            self._give_up(exc)

    def _shorten(self) -> None:
        """A line that another chat adds at the same moment may be lost."""
        data = self._path.read_bytes()
        if len(data) > _MOST_BYTES:
            _, _, newest = data[-_MOST_BYTES // 2 :].partition(b"\n")
            self._write(os.O_TRUNC, newest)

    def _write(self, how: int, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
            file.write(data)

    def _give_up(self, problem: OSError) -> None:
        self._is_kept = False
        tell(f"what you type is not kept for the next chat: {self._path}: {problem.strerror}")


def _read_line(line: str) -> str:
    """A damaged line is empty."""
    try:
        text = json.loads(line)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""
