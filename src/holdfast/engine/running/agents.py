"""Owns the agents of this machine: each provider with the binary, the home and the locks it has here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from holdfast.config import TOKEN_VARIABLE, cache_dir, data_dir
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.runtimes import Runtime
from holdfast.domain.tokens import split_token
from holdfast.errors import ConfigError, HoldfastError
from holdfast.processes.locks import SessionLock
from holdfast.processes.machine import Machine, this_machine
from holdfast.providers.contract import Archive, Provider
from holdfast.providers.registry import get_provider, provider_names
from holdfast.providers.runtimes import find_runtime

log = logging.getLogger("holdfast")

#: what agents are given as their token, instead of one for their own session; deprecated
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
    agents: Agents  #: all that this machine has

    def lock(self, session_id: ProviderSessionId) -> SessionLock:
        """Nobody else on this machine writes to the provider session while it is held."""
        return SessionLock(self.lock_dir, Path(self.runtime.home), self.provider.name, session_id)

    def saved(self, session_id: ProviderSessionId, work_dir: str | None) -> TranscriptMark | None:
        """What the provider's own store holds of a session; None if it holds nothing that was answered."""
        path = self.archive.find(session_id, work_dir)
        if path is None:
            return None
        return self.archive.mark(path, session_id)


class Agents:
    """Finds each agent once; the environment is the one that agents are given, but for our token."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = _for_agents(environ)
        self._found: dict[str, Agent] = {}

    @cached_property
    def machine(self) -> Machine:
        return this_machine(data_dir(self._environ))

    def get(self, name: str) -> Agent:
        """MissingBinary if it is not installed."""
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

    def of_runtime(self, name: str, runtime_id: str | None) -> Agent | None:
        """The agent with the home that an attempt ran in; None if this machine does not have it."""
        try:
            agent = self.get(name)
        except HoldfastError:
            return None
        return agent if agent.runtime.id == runtime_id else None

    def all(self) -> Mapping[str, Agent | HoldfastError]:
        """By the provider's name: each agent, or why it cannot be run here."""
        found: dict[str, Agent | HoldfastError] = {}
        for name in provider_names():
            try:
                found[name] = self.get(name)
            except HoldfastError as exc:
                found[name] = exc
        return found


def _for_agents(environ: Mapping[str, str]) -> dict[str, str]:
    """Whatever an agent prints is kept and read by others: it does without our token, or has one of its own."""
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
