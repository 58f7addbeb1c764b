"""Owns driving the installed command on an agent of the laboratory, and what can be seen of that from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.config import default_url
from holdfast.processes.table import MARKER
from holdfast.store.open import open_store
from tests.agents.lab.laboratory import LIMIT_SECONDS, Laboratory
from tests.agents.lab.model_servers.server import ModelRequest
from tests.agents.traits import TRAITS, Traits
from tests.loaded import loaded

HOLDFAST = Path(sys.executable).with_name("holdfast")

#: stands in for the agent's program: notes how it was called, does what the test adds, and becomes the program;
#: what the program says about itself, which takes some of them seconds, it is asked once for all tests
STAND_IN = """\
#!/bin/sh
{{ printf '%s\\037' "$@"; printf '\\036'; }} >> '{log}'
{first}
case "$*" in
--version|--help|'exec --help'|'run --help')
    said="{told}/$*"
    [ -e "$said" ] || {{ '{program}' "$@" > "$said.$$" 2> "$said.err" && mv "$said.$$" "$said"; }} || exit
    cat "$said.err" >&2
    exec cat "$said";;
esac
exec '{program}' "$@"
"""
PROBES = ("--version", "--help")
#: Gemini starts itself once more, to have more memory, which makes half of what its turns here cost
ONE_PROCESS = {"GEMINI_CLI_NO_RELAUNCH": "true"}


@dataclass(frozen=True)
class Ended:
    """What the command left behind when it ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    @property
    def decision(self) -> str:
        return str(self["decision"]["kind"])

    @property
    def reason(self) -> str:
        return str(self["decision"]["reason"])

    @property
    def session(self) -> str:
        return str(self["session_id"])

    @property
    def native(self) -> str:
        """The provider's id of its session."""
        return str(self["provider_session_id"])

    @property
    def failure(self) -> str | None:
        return None if self["failure"] is None else str(self["failure"]["class"])


@dataclass(frozen=True)
class Driver:
    """Holdfast with the environment of one agent; ``settings`` of its methods are variables besides."""

    provider: str
    lab: Laboratory
    told: Path  #: a folder for what the agent's program says about itself

    @property
    def traits(self) -> Traits:
        return TRAITS[self.provider]

    @property
    def environment(self) -> dict[str, str]:
        return self.lab.environment | {f"HOLDFAST_{self.provider.upper()}_BINARY": str(self._stand_in)}

    def put_first(self, shell: str = "") -> None:
        """Let the agent's stand-in do this, each time, before it becomes the agent."""
        script = STAND_IN.format(log=self._log, program=self.lab.program, first=shell, told=self.told)
        self._stand_in.write_text(script)
        self._stand_in.chmod(0o755)

    # --- running ---

    def run(self, prompt: str, *options: str, **settings: str) -> Ended:
        return self.holdfast(*self._run(prompt, options), **settings)

    def _run(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        at = options.index("--") if "--" in options else len(options)
        return ["run", "--provider", self.provider, *options[:at], prompt, *options[at:]]

    def resume(self, session: str, *prompt_and_options: str, **settings: str) -> Ended:
        return self.holdfast("resume", session, *prompt_and_options, **settings)

    def fork(self, session: str, *prompt_and_options: str, **settings: str) -> Ended:
        return self.holdfast("fork", session, *prompt_and_options, **settings)

    def chat(self, *lines: str) -> Ended:
        command = [str(HOLDFAST), "chat", "--provider", self.provider, "--json-stream"]
        chat = subprocess.run(
            command,
            cwd=self.lab.workdir,
            env=self.environment,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return Ended(chat.returncode, chat.stdout, chat.stderr)

    def holdfast(self, *arguments: str, **settings: str) -> Ended:
        environ = self.environment | ONE_PROCESS | settings
        done = loaded(environ).run(["--json", *arguments], b"", environ, self.lab.workdir, LIMIT_SECONDS)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def started(self, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
        """The command in a process group of its own, which is killed at the end if it still runs.

        What is killed has the processes that it has with a person, Gemini's second one too.
        """
        process = subprocess.Popen(
            [HOLDFAST, "--json", *arguments],
            cwd=self.lab.workdir,
            env=self.environment | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    @contextmanager
    def library(self) -> Iterator[Holdfast]:
        """The same store, without the command."""
        store = open_store(default_url(self.environment))
        try:
            yield Holdfast(store, environ=self.environment)
        finally:
            store.close()

    # --- seeing ---

    @property
    def launches(self) -> list[list[str]]:
        """The arguments of every launch so far, in order; not those that ask the program about itself."""
        calls = (call.split("\037")[:-1] for call in self._log.read_text().split("\036")[:-1])
        return [call for call in calls if not any(probe in call for probe in PROBES)]

    @property
    def request(self) -> ModelRequest:
        """What the model was asked last."""
        return self.lab.server.requests[-1]

    def session_file(self, native: str) -> Path:
        """Where the provider keeps one of its sessions."""
        (file,) = self.traits.session_files(self.lab.home, native)
        return file

    def show(self, session: str) -> dict[str, Any]:
        return self.holdfast("show", session).document

    def alive(self) -> list[str]:
        """The command lines of everything that still runs on behalf of Holdfast in this laboratory."""
        return [_command_line(process) for process in self._processes()]

    def await_nothing_alive(self) -> None:
        await_that(lambda: not self.alive(), lambda: f"still running: {self.alive()}")

    def kill_agent(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Only the process that Holdfast started, and none of those that it started itself."""
        agent, _ = self._agent()
        os.kill(int(agent), number)

    def kill_inner(self) -> None:
        """The process that the agent's own program has started to do its work."""
        _, started = self._agent()
        (inner,) = started
        os.kill(int(inner), signal.SIGKILL)

    def _agent(self) -> tuple[str, list[str]]:
        """The process that Holdfast started, and those that it started itself."""
        parents = {process.name: _parent(process) for process in self._processes()}
        # one that ended between the two looks has no parent any more
        running = {pid: parent for pid, parent in parents.items() if parent}
        (agent,) = (pid for pid, parent in running.items() if parent not in running)
        return agent, [pid for pid, parent in running.items() if parent == agent]

    def end_survivors(self) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(int(process.name), signal.SIGKILL)

    def _processes(self) -> list[Path]:
        home = str(self.lab.home)
        found = ((process, _environ(process)) for process in Path("/proc").glob("[0-9]*"))
        return [process for process, environ in found if environ.get("HOME") == home and MARKER in environ]

    @property
    def _stand_in(self) -> Path:
        return self.lab.home.parent / self.lab.program.name

    @property
    def _log(self) -> Path:
        return self.lab.home.parent / "launches"


def only(*providers: str) -> pytest.MarkDecorator:
    """The test is about what these providers do."""
    return pytest.mark.parametrize("driver", providers, indirect=True)


def finish(process: subprocess.Popen[str], seconds: float = LIMIT_SECONDS) -> Ended:
    stdout, stderr = process.communicate(timeout=seconds)
    return Ended(process.returncode, stdout, stderr)


def await_that(condition: Callable[[], object], otherwise: Callable[[], str]) -> None:
    """Return when the condition holds; AssertionError, with what is the case ``otherwise``, if it never does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


def _environ(process: Path) -> Mapping[str, str]:
    """Of one in /proc; empty for one that is gone, or not ours to look at."""
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(it has just ended)"


def _parent(process: Path) -> str:
    try:
        # the name before it stands in parentheses and may hold anything
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""
