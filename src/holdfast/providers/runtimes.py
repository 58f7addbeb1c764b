"""Owns finding the agents of this machine: where a provider's binary is, and what it says it can do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.domain.records import record
from holdfast.domain.runtimes import Runtime
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes.command import Command, find_program
from holdfast.processes.machine import Machine
from holdfast.processes.process import AgentProcess, StopCause
from holdfast.providers.contract import Provider
from holdfast.providers.probe_cache import ProbeCache

PROBE_SECONDS = 20.0
_MAX_OUTPUT = 1024 * 1024


@record
class FoundRuntime:
    runtime: Runtime
    binary: str  #: absolute; a link is not followed, because some programs act by the name they are called


def find_runtime(
    provider: Provider,
    environ: Mapping[str, str],
    cache_dir: Path,
    machine: Machine,
    binary: str | None = None,
) -> FoundRuntime:
    """``binary`` > ``HOLDFAST_<PROVIDER>_BINARY`` > PATH. MissingBinary also for one that does not answer."""
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
    variable = f"HOLDFAST_{provider.name.upper()}_BINARY"
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
    """What it prints; on its error channel only if nothing else."""
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
