"""Owns how opencode is started: its command line, its options, what its binary can do."""

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
    WIDER_FLAG,
    WIDER_VALUE,
    WIDER_VALUES,
    ArgumentRules,
    Instead,
    Option,
    Takes,
)
from holdfast.providers.contract import Archive, BaseProvider, LaunchSpec, Probe, Stream
from holdfast.providers.failure_rules import RULES
from holdfast.providers.opencode.archive import OpencodeArchive, opencode_home
from holdfast.providers.opencode.stream import OpencodeStream
from holdfast.providers.runtimes import offers, read_version

#: the only permission mode: everything is allowed that the settings do not forbid
_AUTO: Final = "auto"
_MODEL: Final = "use holdfast run --model PROVIDER/MODEL"
_MODE: Final = f"use holdfast run --permission-mode {_AUTO}"
_OWNED: Final = {
    "--session": Instead.RESUME,
    "-s": Instead.RESUME,
    "--continue": Instead.RESUME,
    "-c": Instead.RESUME,
    "--fork": Instead.FORK,
    "--format": Instead.OUTPUT,
    "--dir": Instead.WORK_DIR,
    "--model": _MODEL,
    "-m": _MODEL,
    "--auto": _MODE,
    "--yolo": _MODE,
    "--dangerously-skip-permissions": _MODE,
    "--interactive": Instead.OPEN,
    "-i": Instead.OPEN,
    "--mini": Instead.OPEN,
    "--prompt": Instead.PROMPT,
    "--command": Instead.PROMPT,
    "--attach": Instead.FOREGROUND,
    "--password": Instead.FOREGROUND,
    "-p": Instead.FOREGROUND,
    "--username": Instead.FOREGROUND,
    "-u": Instead.FOREGROUND,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
}
#: as ``opencode run --help`` has them
_KNOWN: Final[Mapping[str, Option]] = {
    # an agent of opencode has permissions of its own; the built-in ``plan`` edits nothing
    "--agent": Option(Takes.ONE, is_harmless=False, harmless_values=frozenset({"plan"})),
    "--file": WIDER_VALUES,
    "-f": WIDER_VALUES,
    "--log-level": VALUE,
    "--port": WIDER_VALUE,
    "--print-logs": FLAG,
    "--pure": FLAG,
    "--share": WIDER_FLAG,
    "--thinking": FLAG,
    "--title": VALUE,
    "--variant": VALUE,
}
#: this variable would select another database than the one in which sessions are looked for
_OTHER_DATABASE: Final = ("OPENCODE_DB",)


class Opencode(BaseProvider):
    name = "opencode"
    rules_file = RULES / "opencode.toml"
    probes = (("--version",), ("run", "--help"))
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        """opencode prints its version without a name; the help begins with the name."""
        version_text, help_text = outputs
        product, version = read_version(version_text)
        can_resume = offers(help_text, "--session")
        return Probe(
            version,
            self.name if help_text.lstrip().startswith(self.name) else product,
            Capabilities(
                can_resume=can_resume,
                can_fork=can_resume and offers(help_text, "--fork"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return opencode_home(environ)

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode not in (None, _AUTO):
            raise InvalidInput(
                "permission mode", f"{rights.permission_mode[:40]!r} is not {_AUTO}, the only one of opencode"
            )
        if rights.allowed_tools:
            raise InvalidInput("allowed tools", "opencode has no such option; use its own settings")
        if rights.extra_dirs:
            raise InvalidInput("extra directories", "opencode has no such option; use its own settings")
        super().check(rights, allow_wider=allow_wider)

    def command(self, spec: LaunchSpec) -> Command:
        """From another directory than the session's, opencode would run the turn, print nothing and never end."""
        headless = ("run", "--format=json", f"--dir={spec.work_dir}")
        argv = (spec.binary, *headless, *_session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, without=_OTHER_DATABASE, prints_to_file=True)

    def interactive(self, spec: LaunchSpec) -> Command:
        argv = (spec.binary, spec.work_dir, *_session(spec), *_options(spec))
        return Command(argv, without=_OTHER_DATABASE)

    def stream(self, spec: LaunchSpec) -> Stream:
        return OpencodeStream()

    def archive(self, home: Path) -> Archive:
        return OpencodeArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    match spec.decision:
        case Resume(provider_session_id):
            return (f"--session={provider_session_id}",)
        case Fork(provider_session_id):
            return (f"--session={provider_session_id}", "--fork")
        case Fresh():
            return ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *(("--auto",) if rights.permission_mode == _AUTO else ()),
        *rights.extra_args,
    )
