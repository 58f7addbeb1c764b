"""Owns how Gemini CLI is started: its command line, its options, what its binary can do."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import (
    FLAG,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUES,
    ArgumentRules,
    Instead,
    Option,
)
from holdfast.providers.contract import Archive, BaseProvider, LaunchSpec, Probe, Stream
from holdfast.providers.failure_rules import RULES
from holdfast.providers.gemini.archive import GeminiArchive, gemini_home
from holdfast.providers.gemini.stream import GeminiStream
from holdfast.providers.runtimes import offers, read_version

_MODES: Final = ("default", "auto_edit", "yolo", "plan")
_OWNED: Final = {
    "--resume": Instead.RESUME,
    "-r": Instead.RESUME,
    "--session-id": Instead.SESSION_ID,
    "--session-file": Instead.FORK,
    "--output-format": Instead.OUTPUT,
    "-o": Instead.OUTPUT,
    "--prompt": Instead.PROMPT,
    "-p": Instead.PROMPT,
    "--prompt-interactive": Instead.OPEN,
    "-i": Instead.OPEN,
    "--model": Instead.MODEL,
    "-m": Instead.MODEL,
    "--approval-mode": Instead.MODE,
    "--yolo": Instead.MODE,
    "-y": Instead.MODE,
    "--allowed-tools": Instead.TOOLS,
    "--include-directories": Instead.FOLDERS,
    "--worktree": Instead.WORK_DIR,
    "-w": Instead.WORK_DIR,
    "--acp": Instead.NOT_A_TURN,
    "--experimental-acp": Instead.NOT_A_TURN,
    "--list-sessions": Instead.NOT_A_TURN,
    "--delete-session": Instead.NOT_A_TURN,
    "--list-extensions": Instead.NOT_A_TURN,
    "-l": Instead.NOT_A_TURN,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
    **dict.fromkeys(
        ("mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"), Instead.NOT_A_TURN
    ),
}
#: as ``gemini --help`` has them; a trusted directory brings its own settings and servers of tools
_KNOWN: Final[Mapping[str, Option]] = {
    "--accept-raw-output-risk": WIDER_FLAG,
    "--admin-policy": WIDER_VALUES,
    "--allowed-mcp-server-names": VALUES,
    "--debug": FLAG,
    "-d": FLAG,
    "--extensions": VALUES,
    "-e": VALUES,
    "--policy": WIDER_VALUES,
    "--raw-output": WIDER_FLAG,
    "--sandbox": FLAG,
    "-s": FLAG,
    "--screen-reader": FLAG,
    "--skip-trust": WIDER_FLAG,
}


class Gemini(BaseProvider):
    name = "gemini"
    rules_file = RULES / "gemini.toml"
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        """Gemini prints its version without a name; the name is in the help."""
        version_text, help_text = outputs
        product, version = read_version(version_text)
        return Probe(
            version,
            "gemini-cli" if "Gemini CLI - " in help_text else product,
            Capabilities(
                can_resume=offers(help_text, "--resume"),
                can_fork=offers(help_text, "--session-file"),
                chooses_id=offers(help_text, "--session-id"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return gemini_home(environ)

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode not in (None, *_MODES):
            raise InvalidInput(
                "permission mode",
                f"{rights.permission_mode[:40]!r} is not an approval mode of Gemini ({', '.join(_MODES)})",
            )
        for field, values in (
            ("allowed tools", rights.allowed_tools),
            ("extra directories", rights.extra_dirs),
        ):
            if any("," in value for value in values):
                raise InvalidInput(
                    field, "Gemini would take a comma for the end of one and the start of another"
                )
        super().check(rights, allow_wider=allow_wider)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        return None if isinstance(decision, Fork) else ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        """Gemini runs without a person when its input is not a terminal."""
        argv = (spec.binary, "--output-format=stream-json", *self._session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, prints_to_file=True)

    def interactive(self, spec: LaunchSpec) -> Command:
        return Command((spec.binary, *self._session(spec), *_options(spec)))

    def stream(self, spec: LaunchSpec) -> Stream:
        return GeminiStream()

    def archive(self, home: Path) -> Archive:
        return GeminiArchive(home)

    def _session(self, spec: LaunchSpec) -> tuple[str, ...]:
        match spec.decision:
            case Resume(provider_session_id):
                return (f"--resume={provider_session_id}",)
            case Fork(provider_session_id):
                file = self.archive(Path(spec.home)).find(provider_session_id, spec.work_dir)
                # Gemini refuses a file that does not exist
                return (f"--session-file={file or f'{provider_session_id}.jsonl'}",)
            case Fresh():
                return (f"--session-id={spec.new_id}",) if spec.new_id is not None else ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    """Each value is tied to its option: several options take a list and would swallow what follows."""
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--approval-mode={rights.permission_mode}",) if rights.permission_mode is not None else ()),
        *(f"--allowed-tools={tool}" for tool in sorted(rights.allowed_tools)),
        *(f"--include-directories={directory}" for directory in sorted(rights.extra_dirs)),
        *rights.extra_args,
    )
