"""Owns one agent under test: its program, its home, the directory it works in and the model it talks to."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.lab.agents import AGENTS, Agent
from tests.agents.lab.install import Program
from tests.agents.lab.model_servers.server import ModelServer

#: no run of an agent may need longer than this, however busy the machine is
LIMIT_SECONDS = 90.0


@dataclass(frozen=True)
class Run:
    """What an agent left behind when it ended."""

    arguments: list[str]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of its stream that are objects; some agents print other words between them."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


@dataclass(frozen=True)
class Laboratory:
    agent: Agent
    program: Path
    home: Path
    workdir: Path
    environment: dict[str, str]
    server: ModelServer

    def turn(
        self, prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
    ) -> Run:
        """One headless turn with the agent's own command line."""
        return self.run(self.agent.command(prompt, resume=resume, fork=fork, tools=tools))

    def session_of(self, run: Run) -> str:
        """The id by which the agent calls the session of this run."""
        named = (event.get(self.agent.session_field) for event in run.events)
        session = next(filter(None, named), None)
        assert session, f"no session in {run}"
        return str(session)

    def run(self, arguments: list[str], cwd: Path | None = None) -> Run:
        with self.started(arguments, cwd) as process:
            return finish(process, arguments)

    @contextmanager
    def started(self, arguments: list[str], cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """The agent as the leader of a process group, of which nothing is left afterwards."""
        process = subprocess.Popen(
            [self.program, *arguments],
            cwd=cwd or self.workdir,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                _kill_group(process.pid)


def finish(process: subprocess.Popen[str], arguments: list[str], seconds: float = LIMIT_SECONDS) -> Run:
    """What it did, once it has ended. Raises ``TimeoutExpired``; it still runs then."""
    stdout, stderr = process.communicate(timeout=seconds)
    return Run(arguments, process.returncode, stdout, stderr)


@contextmanager
def laboratory(program: Program, root: Path) -> Iterator[Laboratory]:
    """A laboratory in an empty directory; its model server ends with it."""
    agent = AGENTS[program.name]
    home, workdir = root / "home", root / "work"
    home.mkdir()
    workdir.mkdir()
    with ModelServer(agent.protocol()) as server:
        environment = agent.settle(home, server.url)
        yield Laboratory(agent, program.path, home, workdir, environment, server)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself, and so did its children
