"""Owns the agents of this machine: each provider with its binary, what the binary says about itself, its home and its locks."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from holdfast.config import TOKEN_VARIABLE, cache_dir, data_dir
from holdfast.domain.failures import StopCause
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.records import record, replace
from holdfast.domain.runtimes import Runtime
from holdfast.domain.tokens import split_token
from holdfast.errors import ConfigError, HoldfastError, MissingBinary
from holdfast.processes.locks import SessionLock
from holdfast.processes.machine import Machine, this_machine
from holdfast.processes.process import AgentProcess, Command, find_program
from holdfast.providers.contract import Archive, Provider
from holdfast.providers.registry import get_provider, provider_names

log = logging.getLogger("holdfast")

#: the token that agents get instead of one for their own session; deprecated
AGENT_TOKEN_VARIABLE = "HOLDFAST_AGENT_TOKEN"  # noqa: S105 - its name, not a token


@record
class Agent:
    """One provider as it can be run here."""

    provider: Provider
    runtime: Runtime
    binary: str
    archive: Archive
    environ: Mapping[str, str]
    lock_dir: Path
    machine: Machine
    agents: Agents  #: all agents of this machine

    def lock(self, session_id: ProviderSessionId) -> SessionLock:
        """The lock on a provider session: no other process on this machine writes to the session while it is held."""
        return SessionLock(self.lock_dir, Path(self.runtime.home), self.provider.name, session_id)

    def saved(self, session_id: ProviderSessionId, work_dir: str | None) -> TranscriptMark | None:
        """The mark of a provider session as it is on disk now; None if it is not there or cannot be read."""
        path = self.archive.find(session_id, work_dir)
        if path is None:
            return None
        return self.archive.mark(path, session_id)


class Agents:
    """Finds each agent once. ``environ`` becomes the environment of the agents, without Holdfast's own token."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = _for_agents(environ)
        self._found: dict[str, Agent] = {}

    @cached_property
    def machine(self) -> Machine:
        return this_machine(data_dir(self._environ))

    def get(self, name: str) -> Agent:
        """Raises MissingBinary if the agent is not installed."""
        if name not in self._found:
            provider = get_provider(name)
            found = find_runtime(provider, self._environ, cache_dir(self._environ), self.machine)
            self._found[name] = Agent(
                provider,
                found.runtime,
                found.binary,
                provider.archive(Path(found.runtime.home)),
                self._environ,
                data_dir(self._environ) / "locks",
                self.machine,
                self,
            )
        return self._found[name]

    def archives(self, home: str | None = None) -> Iterator[tuple[str, str, Archive]]:
        """By name and home: the sessions that each provider keeps here, whether the provider is installed or not.

        ``home`` takes the place of the provider's usual one.
        """
        for name in provider_names():
            provider = get_provider(name)
            folder = os.path.realpath(home or provider.home(self._environ))
            yield name, folder, provider.archive(Path(folder))

    def in_home(self, name: str, home: str) -> Agent | None:
        """The agent as it would be with this home; None if it is not installed."""
        try:
            agent = self.get(name)
        except MissingBinary:
            return None
        if agent.runtime.home == home:
            return agent
        archive = agent.provider.archive(Path(home))
        return replace(agent, runtime=replace(agent.runtime, home=home), archive=archive)

    def of_runtime(self, name: str, runtime_id: str | None) -> Agent | None:
        """The agent of this runtime; None if this machine does not have it."""
        try:
            # to look for the folder is quicker than to look for a program that is not there
            if name not in self._found and not get_provider(name).home(self._environ).exists():
                return None
            agent = self.get(name)
        except HoldfastError:
            return None
        return agent if agent.runtime.id == runtime_id else None

    def all(self) -> Mapping[str, Agent | HoldfastError]:
        """By the provider's name: the agent, or the error that says why it cannot be run here."""
        found: dict[str, Agent | HoldfastError] = {}
        for name in provider_names():
            try:
                found[name] = self.get(name)
            except HoldfastError as exc:
                found[name] = exc
        return found


def _for_agents(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for agents. What an agent prints is stored and read by others, so it does not get our token."""
    given = dict(environ)
    given.pop(TOKEN_VARIABLE, None)
    own = given.pop(AGENT_TOKEN_VARIABLE, "")
    if own and split_token(own) is None:
        raise ConfigError(AGENT_TOKEN_VARIABLE, "must be what `holdfast token create` has shown: hft_…")
    if not own:
        return given
    log.warning(
        "%s is deprecated: an agent gets a token for its own session from the server", AGENT_TOKEN_VARIABLE
    )
    return {**given, TOKEN_VARIABLE: own}


# --- finding a runtime ---

PROBE_SECONDS = 20.0
_MAX_OUTPUT = 1024 * 1024
_PROBES = "probes.json"


@record
class FoundRuntime:
    runtime: Runtime
    binary: str  #: absolute; links are not followed, because some programs behave by the name they are called with


def find_runtime(
    provider: Provider,
    environ: Mapping[str, str],
    cache_dir: Path,
    machine: Machine,
) -> FoundRuntime:
    """``HOLDFAST_<PROVIDER>_BINARY`` takes precedence over PATH. Raises MissingBinary also for a program that does not answer."""
    path = _locate(provider, environ)
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


def _locate(provider: Provider, environ: Mapping[str, str]) -> str:
    variable = f"HOLDFAST_{provider.name.upper().replace('-', '_')}_BINARY"
    chosen = environ.get(variable)
    for name in (chosen,) if chosen else provider.binaries:
        found = find_program(name, environ)
        if found:
            return found
    if chosen:
        raise MissingBinary(
            chosen, f"is not there, or cannot be executed; it was named to run {provider.name}"
        )
    commands = " or ".join(provider.binaries)
    install = f"install it with {provider.install}" if provider.install else f"install {provider.name}"
    raise MissingBinary(
        provider.name, f"its command {commands} is not on PATH; {install}, or name its binary with {variable}"
    )


def _ask(binary: str, arguments: tuple[str, ...], environ: Mapping[str, str], machine: Machine) -> str:
    try:
        return printed_by(Command((binary, *arguments)), "/", environ, machine, PROBE_SECONDS)
    except NoAnswer as exc:
        raise MissingBinary(binary, f"does not answer {' '.join(arguments)}: {exc}") from None
    except ConfigError as exc:
        raise MissingBinary(binary, exc.problem) from None


class NoAnswer(Exception):
    """A program failed, took too long, or printed nothing."""


def printed_by(
    command: Command, work_dir: str, environ: Mapping[str, str], machine: Machine, seconds: float
) -> str:
    """What a program prints; what it writes to standard error counts only if it prints nothing.

    Raises NoAnswer, and ConfigError if it cannot be started. Nothing of it runs on.
    """
    printed = bytearray()
    deadline = time.monotonic() + seconds
    with AgentProcess.start(command, work_dir, environ, f"probe-{os.urandom(16).hex()}", machine) as agent:
        agent.go()
        for line in agent.lines(tick=0.5):
            if isinstance(line, bytes) and len(printed) < _MAX_OUTPUT:
                printed += line + b"\n"
            if time.monotonic() > deadline:
                agent.stop(StopCause.TIMEOUT, gently=False)
                break
        ended = agent.wait()
    if ended.stopped:
        raise NoAnswer(f"it did not end within {seconds:.0f} seconds")
    answer = printed.decode(errors="replace") or ended.stderr
    if ended.code != 0 or not answer.strip():
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NoAnswer(f"{how}, {last[:200]}")
    return answer


class ProbeCache:
    """Remembers what binaries said, as long as their files stay the same.

    A damaged cache counts as an empty one; a directory that cannot be written only costs time.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _PROBES

    def get(self, binary: str, asked: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
        match self._read().get(binary):
            case {"state": state, "asked": before, "said": list(said)} if (
                state == _state(binary)
                and before == [list(arguments) for arguments in asked]
                and all(isinstance(text, str) for text in said)
            ):
                return tuple(said) if len(said) == len(asked) else None
            case _:
                return None

    def put(self, binary: str, asked: tuple[tuple[str, ...], ...], said: tuple[str, ...]) -> None:
        known = self._read() | {binary: {"state": _state(binary), "asked": asked, "said": said}}
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(prefix=_PROBES, dir=self._path.parent)
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
