"""Workers that are killed, stopped and cut off."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.domain.pointers import Rights
from tests.agents.driver import Driver, only
from tests.agents.lab.laboratory import Laboratory
from tests.agents.lab.model_servers.replies import Reply, Say
from tests.agents.lab.model_servers.server import ModelRequest
from tests.agents.traits import TRAITS
from tests.chaos.campaign import Campaign, Plan
from tests.chaos.databases import Sqlite
from tests.chaos.evidence import ANSWER

FAULTS = frozenset({"worker_killed", "worker_stopped", "server_killed", "replies_lost"})
PLAN = Plan(sessions=3, turns=2, rounds=1, seconds=240.0, faults=FAULTS)
COMMAND = re.compile(r"^RUN (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Claude:
    """Its model runs the command of the newest request, and answers with what that gave out."""

    lab: Laboratory
    provider: str = "claude"
    rights: Rights | None = Rights(allowed_tools=frozenset({"Bash"}))  # noqa: RUF009 - a value

    @property
    def environ(self) -> dict[str, str]:
        home = {"HOME": str(self.lab.home)}
        return home | self.lab.environment | {"HOLDFAST_CLAUDE_BINARY": str(self.lab.program)}

    def prompt(self, name: str, command: str) -> str:
        return f"work on {name}\nRUN {command}"

    def transcripts(self) -> Iterable[Path]:
        return TRAITS[self.provider].session_files(self.lab.home)

    def think(self, request: ModelRequest) -> Reply:
        last = request.messages[-1]
        answer = ANSWER.search(last.text) if last.role == "result" else None
        if answer is not None:
            return Say(answer[0])
        return self.lab.agent.shell(COMMAND.findall("\n".join(request.texts))[-1])


@pytest.mark.timeout(300)
@only("claude")
def test_nothing_is_lost_or_done_twice_whatever_breaks(driver: Driver, tmp_path: Path) -> None:
    crew = Claude(driver.lab)
    driver.lab.server.otherwise(crew.think)
    root = tmp_path / "campaign"
    root.mkdir()

    figures = Campaign(PLAN, Sqlite(root / "holdfast.db"), crew, root).run()

    assert not figures.broken, figures.line()
    assert figures.turns == PLAN.all_turns
    assert set(figures.faults) >= FAULTS
