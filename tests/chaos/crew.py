"""Owns who does the work of a campaign: which agent, what it is told, and where it writes down what it said."""

import json
import random
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.domain.pointers import Rights
from tests.chaos import work
from tests.chaos.evidence import read_answers

OUTLASTS_A_LEASE = 4.5
SHARE_OF_LONG_ONES = 1 / 6


class Crew(Protocol):
    @property
    def provider(self) -> str: ...

    @property
    def rights(self) -> Rights | None:
        """What a turn needs to run its command without asking."""
        ...

    @property
    def environ(self) -> dict[str, str]:
        """What the agent needs; the first of them tells its processes from all others."""
        ...

    def prompt(self, name: str, command: str) -> str:
        """Has the agent run a command and answer with what that gives out."""
        ...

    def answers(self) -> Iterable[str]:
        """The markers of what was answered, once for each time, without asking Holdfast."""
        ...


@dataclass(frozen=True)
class Scripted:
    home: Path
    provider: str = "scripted"
    rights: Rights | None = None

    @property
    def environ(self) -> dict[str, str]:
        return {"SCRIPTED_HOME": str(self.home)}

    def prompt(self, name: str, command: str) -> str:
        return f"work on {name}\nTOOL shell {json.dumps({'command': command})}\nOUTPUT\nAGAIN"

    def answers(self) -> Iterable[str]:
        return read_answers(self.home.glob("sessions/*.jsonl"))


def work_command(folder: Path, session: str, name: str) -> str:
    seconds = f"{work_seconds(name):.2f}"
    program = [sys.executable, "-I", "-S", work.__file__, str(folder), session, name, seconds]
    return shlex.join(program)


def work_seconds(name: str) -> float:
    """Always the same for the same turn: long enough for something to happen meanwhile, and some of it very long."""
    chance = random.Random(name)
    return OUTLASTS_A_LEASE if chance.random() < SHARE_OF_LONG_ONES else chance.uniform(1.2, 6.0)
