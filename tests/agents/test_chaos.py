"""Workers that are killed, stopped and cut off."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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
from tests.chaos.evidence import ANSWER, read_answers

FAULTS = frozenset(
    {
        "worker_killed",
        "first_turn_killed",
        "repeated_prompt_killed",
        "worker_stopped",
        "server_killed",
        "replies_lost",
    }
)
#: at a time; each turn of opencode and of Gemini takes seconds of CPU
SESSIONS = {"claude": 3, "codex": 3, "opencode": 2, "gemini": 2}
COMMAND = re.compile(r"^RUN (.+)$", re.MULTILINE)
#: what each of them needs to run a command without asking
RIGHTS = {
    "claude": Rights(allowed_tools=frozenset({"Bash"})),
    "codex": Rights(permission_mode="danger-full-access"),
    "gemini": Rights(permission_mode="yolo"),
    "opencode": None,
}


@dataclass(frozen=True)
class RealAgent:
    """Its model runs the command of the newest request, and answers with what that gave out."""

    provider: str
    lab: Laboratory
    said: set[str] = field(
        default_factory=set
    )  #: by the model, where nobody else reads the agent's own files

    @property
    def rights(self) -> Rights | None:
        return RIGHTS[self.provider]

    @property
    def environ(self) -> dict[str, str]:
        home = {"HOME": str(self.lab.home)}
        binary = {f"HOLDFAST_{self.provider.upper()}_BINARY": str(self.lab.program)}
        return home | self.lab.environment | binary

    def prompt(self, name: str, command: str) -> str:
        return f"work on {name}\nRUN {command}"

    def answers(self) -> Iterable[str]:
        if self.provider == "claude":
            return read_answers(TRAITS["claude"].session_files(self.lab.home))
        return tuple(self.said)

    def think(self, request: ModelRequest) -> Reply:
        last = request.messages[-1]
        answer = ANSWER.search(last.text) if last.role == "result" else None
        if answer is not None:
            self.said.add(answer[1])
            return Say(answer[0])
        return self.lab.agent.shell(COMMAND.findall("\n".join(request.texts))[-1])


@pytest.mark.timeout(660)
@only("claude", "codex", "opencode", "gemini")
def test_nothing_is_lost_or_done_twice_whatever_breaks(driver: Driver, tmp_path: Path) -> None:
    crew = RealAgent(driver.provider, driver.lab)
    driver.lab.server.otherwise(crew.think)
    root = tmp_path / "campaign"
    root.mkdir()
    plan = Plan(SESSIONS[driver.provider], turns=4, rounds=1, seconds=600.0, faults=FAULTS)

    figures = Campaign(plan, Sqlite(root / "holdfast.db"), crew, root).run()

    assert not figures.broken, figures.line()
    assert figures.turns >= plan.sessions * plan.turns
    assert set(figures.faults) >= FAULTS
