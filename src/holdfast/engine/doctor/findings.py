"""Owns findings: what a check says, how bad it is, what it means and which command mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from holdfast.domain.records import field, record

_MOST_NAMED = 1000


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  #: works now, and may fail or lose something later
    PROBLEM = "problem"  #: something does not work


@record
class Mending:
    """A safe way to mend a finding; ``act`` returns what was done, in words."""

    act: Callable[[], str]
    changes_store: bool = False  #: it writes to the database, so a copy is made first


@record
class Finding:
    code: str  #: stable, for programs
    severity: Severity
    found: str  #: what was found, as a sentence
    meaning: str = ""  #: what follows from it, and what to do
    command: str | None = None  #: mends it, or shows what is wrong
    subjects: tuple[str, ...] = ()  #: the sessions, files or programs that it is about, at most 1000
    mending: Mending | None = field(default=None, repr=False, compare=False)
    check: str = ""  #: the name of the check that found it


def ok(code: str, found: str, meaning: str = "", command: str | None = None) -> Finding:
    return Finding(code, Severity.OK, found, meaning, command)


def warning(
    code: str,
    found: str,
    meaning: str,
    command: str | None,
    subjects: Sequence[str] = (),
    mending: Mending | None = None,
) -> Finding:
    return Finding(code, Severity.WARNING, found, meaning, command, tuple(subjects[:_MOST_NAMED]), mending)


def problem(
    code: str,
    found: str,
    meaning: str,
    command: str | None,
    subjects: Sequence[str] = (),
    mending: Mending | None = None,
) -> Finding:
    return Finding(code, Severity.PROBLEM, found, meaning, command, tuple(subjects[:_MOST_NAMED]), mending)


def counted(number: int, what: str, whats: str | None = None) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{number:,} {what if number == 1 else whats or what + 's'}"


def sized(number: int) -> str:
    """``1.5 MB``, ``2 bytes``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
