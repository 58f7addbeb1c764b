"""Owns how Codex is started: its command line, its options, what its binary can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import (
    FLAG,
    VALUE,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUE,
    ArgumentRules,
    Instead,
    Option,
    Takes,
)
from holdfast.providers.codex.archive import CodexArchive
from holdfast.providers.codex.stream import CodexStream
from holdfast.providers.contract import Archive, BaseProvider, LaunchSpec, Probe, Stream
from holdfast.providers.failure_rules import RULES
from holdfast.providers.runtimes import home_folder, offers, read_version

_SANDBOXES: Final = ("read-only", "workspace-write", "danger-full-access")
_KEYS: Final = {
    "cwd": Instead.WORK_DIR,
    "ephemeral": Instead.SAVED,
    "experimental_resume": Instead.RESUME,
    "model": Instead.MODEL,
    "sandbox_mode": Instead.MODE,
    "sqlite_home": "the home of an agent is set where it runs, with CODEX_HOME",
}
_OWNED: Final = {
    "resume": Instead.RESUME,
    "--last": Instead.RESUME,
    "--all": Instead.RESUME,
    "fork": Instead.FORK,
    "review": "ask for the review in the prompt",
    "--ephemeral": Instead.SAVED,
    "--json": Instead.OUTPUT,
    "--skip-git-repo-check": "Holdfast gives it already",
    "--cd": Instead.WORK_DIR,
    "-C": Instead.WORK_DIR,
    "--worktree": Instead.WORK_DIR,
    "--sandbox": Instead.MODE,
    "-s": Instead.MODE,
    "--model": Instead.MODEL,
    "-m": Instead.MODEL,
    "--add-dir": Instead.FOLDERS,
    "help": Instead.NOT_A_TURN,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-V": Instead.NOT_A_TURN,
    **{f"{option} {key}": instead for option in ("-c", "--config") for key, instead in _KEYS.items()},
}
_CONFIG: Final = Option(
    Takes.ONE,
    is_harmless=False,
    harmless_values=frozenset(
        {
            "hide_agent_reasoning",
            "model_auto_compact_token_limit",
            "model_context_window",
            "model_reasoning_effort",
            "model_reasoning_summary",
            "model_verbosity",
            "show_raw_agent_reasoning",
            "tool_output_token_limit",
        }
    ),
)
#: as ``codex exec --help`` and ``codex --help`` have them, and what older ones had
_KNOWN: Final[Mapping[str, Option]] = {
    "--approve-for-me": WIDER_FLAG,
    "--ask-for-approval": WIDER_VALUE,
    "-a": WIDER_VALUE,
    "--color": VALUE,
    "--config": _CONFIG,
    "-c": _CONFIG,
    "--cyber-access-program": WIDER_VALUE,
    "--dangerously-bypass-approvals-and-sandbox": WIDER_FLAG,
    "--dangerously-bypass-hook-trust": WIDER_FLAG,
    "--disable": WIDER_VALUE,
    "--enable": WIDER_VALUE,
    "--full-auto": WIDER_FLAG,
    "--ignore-rules": WIDER_FLAG,
    "--ignore-user-config": WIDER_FLAG,
    "--image": VALUES,
    "-i": VALUES,
    "--local-provider": WIDER_VALUE,
    "--oss": WIDER_FLAG,
    "--output-last-message": WIDER_VALUE,
    "-o": WIDER_VALUE,
    "--output-schema": VALUE,
    "--profile": WIDER_VALUE,
    "-p": WIDER_VALUE,
    "--search": WIDER_FLAG,
    "--strict-config": FLAG,
    "--thread-source": WIDER_VALUE,
    "--yolo": WIDER_FLAG,
}
#: variables that a surrounding Codex sets for its tools
_OF_THE_CALLER: Final = ("CODEX_CI", "CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID")


class Codex(BaseProvider):
    name = "codex"
    rules_file = RULES / "codex.toml"
    probes = (("--version",), ("exec", "--help"))
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version_text, help_text = outputs
        distribution, version = read_version(version_text)
        return Probe(
            version,
            distribution,
            Capabilities(
                can_resume=offers(help_text, "resume"),
                can_fork=offers(help_text, "fork"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "CODEX_HOME", ".codex")

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode is not None and rights.permission_mode not in _SANDBOXES:
            modes = ", ".join(_SANDBOXES)
            raise InvalidInput(
                "permission mode", f"{rights.permission_mode[:40]!r} is not a sandbox of Codex ({modes})"
            )
        if rights.allowed_tools:
            raise InvalidInput("allowed tools", "Codex has no list of them; use a permission mode")
        super().check(rights, allow_wider=allow_wider)

    def command(self, spec: LaunchSpec) -> Command:
        # options of `exec` come before its own commands: `exec resume` knows neither --sandbox nor --add-dir.
        # The extra arguments come first: a list among them ends at the next option.
        options = (*spec.rights.extra_args, "--json", "--skip-git-repo-check", *_options(spec))
        return Command(
            (spec.binary, "exec", *options, *_session(spec), "-"), spec.prompt, without=_OF_THE_CALLER
        )

    def interactive(self, spec: LaunchSpec) -> Command:
        argv = (spec.binary, *spec.rights.extra_args, *_options(spec), *_session(spec))
        return Command(argv, without=_OF_THE_CALLER)

    def stream(self, spec: LaunchSpec) -> Stream:
        return CodexStream()

    def archive(self, home: Path) -> Archive:
        return CodexArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    match spec.decision:
        case Resume(provider_session_id):
            return ("resume", provider_session_id)
        case Fork(provider_session_id):
            return ("fork", provider_session_id)
        case Fresh():
            return ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    mode = spec.rights.permission_mode
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--sandbox={mode}",) if mode is not None else ()),
        *(f"--add-dir={directory}" for directory in sorted(spec.rights.extra_dirs)),
    )
