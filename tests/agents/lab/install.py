"""Owns the programs under test: pinned versions of the agents out of npm, in a cache inside the checkout.

``python -m tests.agents.lab.install [NAME...]`` installs what is missing.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache" / "agents"

# the person's own, which may say where npm finds its packages: a test soon gets another home
ENVIRONMENT = dict(os.environ)

NPM_SECONDS = 600.0
# a registry that does not answer is told to the person within a minute
NPM_PATIENCE = ["--fetch-retries=1", "--fetch-timeout=30000"]


class InstallFailed(Exception):
    """The program cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Program:
    name: str
    title: str
    package: str
    version: str

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.name


PROGRAMS = {
    program.name: program
    for program in (
        Program("claude", "Claude Code", "@anthropic-ai/claude-code", "2.1.325"),
        Program("codex", "Codex", "@openai/codex", "0.166.0"),
        Program("opencode", "opencode", "opencode-ai", "1.18.33"),
        Program("gemini", "Gemini CLI", "@google/gemini-cli", "0.61.0"),
    )
}


def is_installed(program: Program) -> bool:
    return program.path.exists()


def install(program: Program) -> Path:
    """The program's path. Any number of processes may ask at once: one installs, the others wait for it.

    Raises ``InstallFailed``; nothing is left in the program's place then.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with program.folder.with_suffix(f"{program.folder.suffix}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed(program):
            _fetch(program)
    return program.path


def _fetch(program: Program) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallFailed(f"{program.name}: npm is not on PATH; it comes with Node.js >= 20")
    unfinished = CACHE / f"{program.folder.name}.unfinished"
    for stale in (unfinished, program.folder):
        shutil.rmtree(stale, ignore_errors=True)
    _run_npm(program, [npm, "install", "--no-fund", "--no-audit", *NPM_PATIENCE, "--prefix", str(unfinished)])
    unfinished.rename(program.folder)
    if not is_installed(program):
        raise InstallFailed(f"{program.name}: {program.package}@{program.version} has no such command")


def _run_npm(program: Program, command: list[str]) -> None:
    wanted = f"{program.package}@{program.version}"
    try:
        run = subprocess.run(
            [*command, wanted],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NPM_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise InstallFailed(f"{program.name}: npm did not install {wanted} in {NPM_SECONDS:.0f} s") from exc
    if run.returncode != 0:
        said = run.stderr.splitlines()
        errors = [line for line in said if line.startswith("npm error")] or said[-3:]
        raise InstallFailed(f"{program.name}: npm could not install {wanted}: {'; '.join(errors[:3])}")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        print(f"install: no such agent: {', '.join(unknown)}; known: {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    for name in names or PROGRAMS:
        try:
            print(f"{name} {PROGRAMS[name].version}: {install(PROGRAMS[name])}")
        except InstallFailed as exc:
            print(f"install: {exc}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
