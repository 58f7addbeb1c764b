"""Owns one run of the command: its global options, the store it works on, and its standard input."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.domain.ids import SessionId
    from holdfast.engine.holdfast import Holdfast

_MOST_INPUT = 64 * 1024 * 1024  #: more than any text that a store takes


@dataclass
class Invocation:
    url: str | None = None
    workspace: str | None = None
    json: bool = False
    _input_taken_by: str | None = field(default=None, init=False)
    _holdfast: Holdfast | None = field(default=None, init=False)

    @property
    def holdfast(self) -> Holdfast:
        """The store, opened when it is first needed and closed when the command ends."""
        if self._holdfast is None:
            from holdfast.engine.default import open_with

            opened = open_with(self.settings())
            self._holdfast = click.get_current_context().find_root().with_resource(opened)
        return self._holdfast

    def settings(self) -> Settings:
        from holdfast.config import load_settings
        from holdfast.config_files import current_directory

        flags = {"url": self.url, "workspace": self.workspace}
        return load_settings(overrides=flags, environ=os.environ, cwd=current_directory(os.environ))

    def find(self, given: str) -> SessionId:
        return self.holdfast.find(given)

    def read_input(self, wanted_by: str) -> str:
        """All of standard input, without one newline at its end; it can be had once."""
        if self._input_taken_by is not None:
            raise InvalidInput(wanted_by, f"standard input is already used for {self._input_taken_by}")
        self._input_taken_by = wanted_by
        if sys.stdin is None:
            raise InvalidInput(wanted_by, "standard input is closed")
        data = sys.stdin.buffer.read(_MOST_INPUT + 1)
        if len(data) > _MOST_INPUT:
            raise InvalidInput(wanted_by, f"is larger than {_MOST_INPUT} bytes")
        try:
            return data.decode().removesuffix("\n")
        except UnicodeDecodeError as exc:
            raise InvalidInput(wanted_by, f"contains invalid UTF-8 at position {exc.start}") from None
