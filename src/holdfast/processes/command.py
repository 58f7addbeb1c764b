"""Owns what a process is started with, and where its program is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from holdfast.domain.records import record


@record
class Command:
    """``stdin`` None is nothing to read. A prompt goes there: an argument is limited in length and visible to all."""

    argv: tuple[str, ...]
    stdin: str | None = None
    environ: tuple[tuple[str, str], ...] = ()  #: set in addition
    without: tuple[str, ...] = ()  #: variables of ours that would mislead the agent
    #: it may end before a pipe has taken all that it said: its standard output is a file then, and loses nothing
    prints_to_file: bool = False


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The absolute path of what can be executed under that name; None if nothing can.

    Relative entries of PATH are skipped, the empty one too: they would find what lies in the directory that
    an agent works in, which may be a stranger's.
    """
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)))
    return None if found is None else str(Path(found).absolute())
