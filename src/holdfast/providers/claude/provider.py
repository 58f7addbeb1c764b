"""Owns how Claude Code is started: its command line, its options, what its binary can do."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.processes.process import Command
from holdfast.providers.arguments import (
    FLAG,
    MAYBE,
    VALUE,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUE,
    WIDER_VALUES,
    ArgumentRules,
    Instead,
    Option,
)
from holdfast.providers.claude.archive import ClaudeArchive
from holdfast.providers.claude.stream import ClaudeStream
from holdfast.providers.claude.tool_gate import (
    HOOKS_OFF,
    NOT_WITH_A_GATE,
    find_foreign_hooks,
    hook_settings,
    knows_defer,
)
from holdfast.providers.contract import (
    Archive,
    BaseProvider,
    ForeignHook,
    LaunchSpec,
    Probe,
    Stream,
    home_folder,
    offers,
    read_version,
)
from holdfast.providers.failure_rules import RULES

_OWNED: Final = {
    "--resume": Instead.RESUME,
    "-r": Instead.RESUME,
    "--continue": Instead.RESUME,
    "-c": Instead.RESUME,
    "--from-pr": Instead.RESUME,
    "--teleport": Instead.RESUME,
    "--resume-session-at": Instead.FORK_AT,
    "--fork-session": Instead.FORK,
    "--session-id": Instead.SESSION_ID,
    "--no-session-persistence": Instead.SAVED,
    "--print": Instead.PROMPT,
    "-p": Instead.PROMPT,
    "--output-format": Instead.OUTPUT,
    "--input-format": Instead.OUTPUT,
    "--replay-user-messages": Instead.OUTPUT,
    "--include-hook-events": Instead.OUTPUT,
    "--include-partial-messages": Instead.OUTPUT,
    "--forward-subagent-text": Instead.OUTPUT,
    "--prompt-suggestions": Instead.OUTPUT,
    "--verbose": Instead.OUTPUT,
    "--model": Instead.MODEL,
    "--permission-mode": Instead.MODE,
    "--allowedTools": Instead.TOOLS,
    "--allowed-tools": Instead.TOOLS,
    "--add-dir": Instead.FOLDERS,
    "--worktree": Instead.WORK_DIR,
    "-w": Instead.WORK_DIR,
    "--tmux": Instead.FOREGROUND,
    "--bg": Instead.FOREGROUND,
    "--background": Instead.FOREGROUND,
    "--cloud": Instead.FOREGROUND,
    "--desktop": Instead.FOREGROUND,
    "--environment": Instead.FOREGROUND,
    "--remote-control": Instead.FOREGROUND,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
}
#: as ``claude --help`` has them; an agent, a plugin, a settings file or a server of tools brings rights of its own
_KNOWN: Final[Mapping[str, Option]] = {
    "--agent": WIDER_VALUE,
    "--agents": WIDER_VALUE,
    "--allow-dangerously-skip-permissions": WIDER_FLAG,
    "--append-system-prompt": VALUE,
    "--append-system-prompt-file": WIDER_VALUE,
    "--autocompact": VALUE,
    "--ax-screen-reader": FLAG,
    "--bare": WIDER_FLAG,
    "--betas": WIDER_VALUES,
    "--brief": WIDER_FLAG,
    "--chrome": WIDER_FLAG,
    "--dangerously-skip-permissions": WIDER_FLAG,
    "--debug": MAYBE,
    "-d": MAYBE,
    "--debug-file": WIDER_VALUE,
    "--disable-slash-commands": FLAG,
    "--disallowedTools": VALUES,
    "--disallowed-tools": VALUES,
    "--effort": VALUE,
    "--exclude-dynamic-system-prompt-sections": FLAG,
    "--fallback-model": VALUE,
    "--file": WIDER_VALUES,
    "--ide": WIDER_FLAG,
    "--json-schema": VALUE,
    "--max-budget-usd": VALUE,
    "--max-thinking-tokens": VALUE,
    "--max-turns": VALUE,
    "--mcp-config": WIDER_VALUES,
    "--name": VALUE,
    "-n": VALUE,
    "--no-chrome": FLAG,
    "--permission-prompt-tool": WIDER_VALUE,
    "--permission-prompts": WIDER_VALUE,
    "--plugin-dir": WIDER_VALUE,
    "--plugin-url": WIDER_VALUE,
    "--remote-control-session-name-prefix": WIDER_VALUE,
    "--restricted": WIDER_FLAG,  # also ignores settings that may forbid more
    "--safe-mode": WIDER_FLAG,
    "--setting-sources": WIDER_VALUE,
    "--settings": WIDER_VALUE,
    "--strict-mcp-config": FLAG,
    "--system-prompt": VALUE,
    "--system-prompt-file": WIDER_VALUE,
    "--system-prompt-snapshot": VALUE,
    "--tools": VALUES,
}
_RULES: Final = ArgumentRules(_OWNED, _KNOWN)
_WITH_A_GATE: Final = ArgumentRules({**_OWNED, **NOT_WITH_A_GATE}, _KNOWN)
#: variables that a surrounding Claude Code sets for its children: with them the agent would behave as such a child
_OF_THE_CALLER: Final = (
    "AI_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_SESSION_ATTENDED",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_EFFORT",
    "CLAUDE_PID",
    "CLAUDE_PROJECT_DIR",
)


class Claude(BaseProvider):
    name = "claude"
    rules_file = RULES / "claude.toml"
    arguments = _RULES

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version_text, help_text = outputs
        distribution, version = read_version(version_text)
        can_resume = offers(help_text, "--resume")
        return Probe(
            version,
            distribution,
            Capabilities(
                can_resume=can_resume,
                can_fork=can_resume and offers(help_text, "--fork-session"),
                chooses_id=offers(help_text, "--session-id"),
                append_only_transcript=True,
                reports_context=True,
                can_defer=knows_defer(distribution, version),
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        rules = _WITH_A_GATE if rights.approve_tools else _RULES
        rules.check(rights.extra_args, allow_wider=allow_wider)

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        return find_foreign_hooks(home, work_dir, rights)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId:
        return ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        headless = ("-p", "--output-format", "stream-json", "--verbose")
        argv = (spec.binary, *headless, *_session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, without=_without(spec))

    def interactive(self, spec: LaunchSpec) -> Command:
        return Command((spec.binary, *_session(spec), *_options(spec)), without=_without(spec))

    def stream(self, spec: LaunchSpec) -> Stream:
        return ClaudeStream(spec)

    def archive(self, home: Path) -> Archive:
        return ClaudeArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    new = ("--session-id", spec.new_id) if spec.new_id is not None else ()
    match spec.decision:
        case Resume(provider_session_id):
            return ("--resume", provider_session_id)
        case Fork(provider_session_id):
            return ("--resume", provider_session_id, "--fork-session", *new)
        case Fresh():
            return new


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    """Each value is tied to its option: several options take a list and would swallow what follows."""
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--permission-mode={rights.permission_mode}",) if rights.permission_mode is not None else ()),
        *(f"--allowedTools={tool}" for tool in sorted(rights.allowed_tools)),
        *(f"--add-dir={directory}" for directory in sorted(rights.extra_dirs)),
        *((f"--settings={hook_settings(spec.gate)}",) if spec.gate is not None else ()),
        # last: an option that misses its value would take the next argument for it
        *rights.extra_args,
    )


def _without(spec: LaunchSpec) -> tuple[str, ...]:
    return _OF_THE_CALLER if spec.gate is None else (*_OF_THE_CALLER, *HOOKS_OFF)
