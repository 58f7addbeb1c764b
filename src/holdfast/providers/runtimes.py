"""Owns finding the agents of this machine: where a provider's binary is, and what the binary says about itself."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.domain.records import record
from holdfast.domain.runtimes import Runtime
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes.machine import Machine
from holdfast.processes.process import AgentProcess, Command, StopCause, find_program
from holdfast.providers.contract import Provider

PROBE_SECONDS = 20.0
_MAX_OUTPUT = 1024 * 1024
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+[\w.+-]*)")
_NOT_A_NAME = re.compile(r"[^a-z0-9]+")
#: a binary's arguments when it was asked
Arguments = tuple[str, ...]
_NAME = "probes.json"


@record
class FoundRuntime:
    runtime: Runtime
    binary: str  #: absolute; links are not followed, because some programs behave by the name they are called with


def find_runtime(
    provider: Provider,
    environ: Mapping[str, str],
    cache_dir: Path,
    machine: Machine,
    binary: str | None = None,
) -> FoundRuntime:
    """``binary`` takes precedence over ``HOLDFAST_<PROVIDER>_BINARY``, and that over PATH.

    Raises MissingBinary also for a program that does not answer.
    """
    path = _locate(provider, environ, binary)
    cache = ProbeCache(cache_dir)
    said = cache.get(path, provider.probes)
    if said is None:
        said = tuple(_ask(path, arguments, environ, machine) for arguments in provider.probes)
        cache.put(path, provider.probes, said)
    probe = provider.read_probe(said)
    home = os.path.realpath(provider.home(environ))
    return FoundRuntime(
        Runtime(machine.id, provider.name, probe.distribution, home, probe.capabilities, probe.version), path
    )


def _locate(provider: Provider, environ: Mapping[str, str], binary: str | None) -> str:
    variable = f"HOLDFAST_{provider.name.upper().replace('-', '_')}_BINARY"
    chosen = binary or environ.get(variable)
    for name in (chosen,) if chosen else provider.binaries:
        found = find_program(name, environ)
        if found:
            return found
    if chosen:
        raise MissingBinary(
            chosen, f"is not there, or cannot be executed; it was named to run {provider.name}"
        )
    commands = " or ".join(provider.binaries)
    raise MissingBinary(
        provider.name,
        f"its command {commands} is not on PATH; install {provider.name}, or name its binary with {variable}",
    )


def _ask(binary: str, arguments: tuple[str, ...], environ: Mapping[str, str], machine: Machine) -> str:
    """What the binary prints; what it writes to standard error counts only if it prints nothing."""
    asked = " ".join(arguments)
    printed = bytearray()
    deadline = time.monotonic() + PROBE_SECONDS
    try:
        with AgentProcess.start(
            Command((binary, *arguments)), "/", environ, f"probe-{os.urandom(16).hex()}", machine
        ) as agent:
            agent.go()
            for line in agent.lines(tick=0.5):
                if isinstance(line, bytes) and len(printed) < _MAX_OUTPUT:
                    printed += line + b"\n"
                if time.monotonic() > deadline:
                    agent.stop(StopCause.TIMEOUT)
                    break
            ended = agent.wait()
    except ConfigError as exc:
        raise MissingBinary(binary, exc.problem) from None
    if ended.stopped:
        raise MissingBinary(binary, f"did not answer {asked} within {PROBE_SECONDS:.0f} seconds")
    answer = printed.decode(errors="replace") or ended.stderr
    if ended.code != 0 or not answer.strip():
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise MissingBinary(binary, f"does not answer {asked}: {how}, {last[:200]}")
    return answer


def read_version(printed: str) -> tuple[str, str | None]:
    """Product and version from the line that has one, such as ``2.1.325 (Claude Code)`` or ``codex-cli 0.166.0``."""
    for line in printed.splitlines():
        found = _VERSION.search(line)
        if found and not line.startswith("WARNING"):
            name = line[: found.start()] + " " + line[found.end() :]
            return _NOT_A_NAME.sub("-", name.lower()).strip("-")[:40] or "unnamed", found[1]
    return "unnamed", None


def offers(help_text: str, word: str) -> bool:
    """Does the help text list this option or command?"""
    return re.search(rf"^\s*(?:-\w, )?{re.escape(word)}(?![\w-])", help_text, re.MULTILINE) is not None


def home_folder(environ: Mapping[str, str], variable: str, name: str) -> Path:
    """The folder in the provider's own variable, or else ``name`` in the user's home."""
    own = environ.get(variable)
    return Path(own) if own else Path(environ.get("HOME") or "~").expanduser() / name


class ProbeCache:
    """Remembers what binaries said, as long as their files stay the same.

    A damaged cache counts as an empty one; a directory that cannot be written only costs time.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME

    def get(self, binary: str, asked: tuple[Arguments, ...]) -> tuple[str, ...] | None:
        match self._read().get(binary):
            case {"state": state, "asked": before, "said": list(said)} if (
                state == _state(binary)
                and before == [list(arguments) for arguments in asked]
                and all(isinstance(text, str) for text in said)
            ):
                return tuple(said) if len(said) == len(asked) else None
            case _:
                return None

    def put(self, binary: str, asked: tuple[Arguments, ...], said: tuple[str, ...]) -> None:
        known = self._read() | {binary: {"state": _state(binary), "asked": asked, "said": said}}
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(prefix=_NAME, dir=self._path.parent)
            with os.fdopen(descriptor, "w") as file:
                json.dump(known, file)
            Path(fresh).replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _state(binary: str) -> list[int] | None:
    """Changes whenever the file does. Some installers give every file the same modification time, so that is not enough."""
    try:
        found = Path(binary).stat()
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size]
