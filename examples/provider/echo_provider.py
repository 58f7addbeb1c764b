"""Owns what Holdfast has to know about the echo agent: its command line, its output, its session files."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.events import AgentEvent, Called, Ended, Named, Returned, Said
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import FLAG, ArgumentRules, Instead
from holdfast.providers.contract import (
    ArchivedTurn,
    BaseProvider,
    LaunchSpec,
    Probe,
    home_folder,
    offers,
    read_version,
)
from holdfast.providers.session_files import AppendOnlyArchive, parse_line, read_lines

_ID = re.compile(r"[0-9a-f-]{36}")


class Echo(BaseProvider):
    name = "echo"
    arguments = ArgumentRules(
        owned={
            "--session-id": Instead.SESSION_ID,
            "--resume": Instead.RESUME,
            "--model": Instead.MODEL,
            "--interactive": Instead.OPEN,
            **dict.fromkeys(("--help", "-h", "--version"), Instead.NOT_A_TURN),
        },
        known={"--loud": FLAG},
    )

    @property
    def binaries(self) -> tuple[str, ...]:
        return ("echo-agent",)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version_text, help_text = outputs
        distribution, version = read_version(version_text)
        return Probe(
            version,
            distribution,
            Capabilities(
                can_resume=offers(help_text, "--resume"),
                chooses_id=offers(help_text, "--session-id"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "ECHO_HOME", ".echo")

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode or rights.allowed_tools or rights.extra_dirs:
            raise InvalidInput("rights", "the echo agent has no tools that could be allowed")
        super().check(rights, allow_wider=allow_wider)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        return ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        return Command(_arguments(spec), stdin=spec.prompt)

    def interactive(self, spec: LaunchSpec) -> Command:
        return Command((*_arguments(spec), "--interactive"))

    def stream(self, spec: LaunchSpec) -> EchoStream:
        return EchoStream()

    def archive(self, home: Path) -> EchoArchive:
        return EchoArchive(home)


def _arguments(spec: LaunchSpec) -> tuple[str, ...]:
    model = () if spec.model is None else (f"--model={spec.model}",)
    return (spec.binary, *_session(spec), *model, *spec.rights.extra_args)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    """A fork is never asked for: the capabilities say that the agent cannot fork a session."""
    if isinstance(spec.decision, Resume):
        return (f"--resume={spec.decision.provider_session_id}",)
    return () if spec.new_id is None else (f"--session-id={spec.new_id}",)


class EchoStream:
    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line:
            case {"session": str(session_id)} if session_id:
                yield Named(ProviderSessionId(session_id))
            case {"say": str(text)}:
                yield Said(text)
            case {"done": bool(ok)}:
                yield Ended(ok)


class EchoArchive(AppendOnlyArchive):
    def __init__(self, home: Path) -> None:
        self._home = home

    def is_prompt(self, line: bytes) -> bool:
        return "prompt" in (parse_line(line) or {})

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        file = self._home / f"{session_id}.jsonl"
        return str(file) if _ID.fullmatch(session_id) and file.is_file() else None

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        for line in read_lines(Path(path), 0 if after is None else after.size):
            match line:
                case {"turn": str(key), "prompt": str(prompt), "answer": str(answer)}:
                    yield ArchivedTurn(key, prompt, answer, complete=True)

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        return iter(())
