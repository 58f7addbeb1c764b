"""Owns what the laboratory knows of each agent: its protocol, its home, and its command line used by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.agents.lab import homes
from tests.agents.lab.model_servers import protocol
from tests.agents.lab.model_servers.anthropic import AnthropicMessages
from tests.agents.lab.model_servers.chat import ChatCompletions
from tests.agents.lab.model_servers.gemini import Gemini
from tests.agents.lab.model_servers.replies import CallTool
from tests.agents.lab.model_servers.responses import OpenAIResponses


class Command(Protocol):
    def __call__(
        self, prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
    ) -> list[str]:
        """The arguments of one headless turn; with ``tools`` the agent may run commands without asking."""


@dataclass(frozen=True)
class Agent:
    protocol: type[protocol.Protocol]
    settle: Callable[[Path, str], dict[str, str]]
    command: Command
    #: where the events of its stream carry the session's id
    session_field: str
    #: the tool call by which its model runs a shell command
    shell: Callable[[str], CallTool]


def _claude(
    prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
) -> list[str]:
    arguments = ["-p", prompt, "--output-format", "stream-json", "--verbose"]
    if resume:
        arguments += ["--resume", resume]
    if fork:
        arguments += ["--resume", fork, "--fork-session"]
    if tools:
        arguments += ["--allowedTools", "Bash"]
    return arguments


def _codex(
    prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
) -> list[str]:
    verb = ["resume"] if resume else ["fork"] if fork else []
    rights = ["--dangerously-bypass-approvals-and-sandbox"] if tools else []
    session = [resume or fork] if resume or fork else []
    return ["exec", *verb, "--json", "--skip-git-repo-check", *rights, *filter(None, session), prompt]


def _opencode(
    prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
) -> list[str]:
    arguments = ["run", "--format", "json"]
    if resume:
        arguments += ["--session", resume]
    if fork:
        arguments += ["--session", fork, "--fork"]
    if tools:
        arguments += ["--auto"]
    return [*arguments, prompt]


def _gemini(
    prompt: str, *, resume: str | None = None, fork: str | None = None, tools: bool = False
) -> list[str]:
    """It has no fork by id: ``fork`` is the path of the session's file."""
    arguments = ["-p", prompt, "--output-format", "stream-json"]
    if resume:
        arguments += ["--resume", resume]
    if fork:
        arguments += ["--session-file", fork]
    if tools:
        arguments += ["--yolo"]
    return arguments


AGENTS = {
    "claude": Agent(
        protocol=AnthropicMessages,
        settle=homes.claude,
        command=_claude,
        session_field="session_id",
        shell=lambda command: CallTool("Bash", {"command": command, "description": "Run it"}),
    ),
    "codex": Agent(
        protocol=OpenAIResponses,
        settle=homes.codex,
        command=_codex,
        session_field="thread_id",
        shell=lambda command: CallTool("exec_command", {"cmd": command}),
    ),
    "opencode": Agent(
        protocol=ChatCompletions,
        settle=homes.opencode,
        command=_opencode,
        session_field="sessionID",
        shell=lambda command: CallTool("bash", {"command": command, "description": "Run it"}),
    ),
    "gemini": Agent(
        protocol=Gemini,
        settle=homes.gemini,
        command=_gemini,
        session_field="session_id",
        shell=lambda command: CallTool("run_shell_command", {"command": command}),
    ),
}
