"""Owns the agents of the process tests: short Python programs, and what there is to see of them from outside."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from holdfast.processes.machine import Machine
from holdfast.processes.owners import boot_id, process_start
from holdfast.processes.process import AgentProcess, Command, Overlong
from holdfast.processes.table import carries, processes

MACHINE = Machine("a-machine", boot_id())
LIMIT_SECONDS = 30.0

#: a tool that has left its agent's session, and refuses to end when it is asked to
ESCAPES = """
import os, signal, subprocess, sys, time
tool = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('tool', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", tool], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
"""
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


def python(program: str, **changes: object) -> Command:
    return Command(argv=(sys.executable, "-c", program), **changes)  # type: ignore[arg-type]


@contextmanager
def an_agent(
    command: Command, work_dir: str = "/", keep_open: tuple[int, ...] = ()
) -> Iterator[AgentProcess]:
    """Started and not let run; with a marker of its own that must not be carried by anything afterwards."""
    marker = uuid4().hex
    with AgentProcess.start(command, work_dir, os.environ, marker, MACHINE, keep_open) as agent:
        yield agent
    assert carriers(marker) == []


def carriers(marker: str) -> list[int]:
    return [process.pid for process in processes() if carries(process.pid, marker)]


def said(agent: AgentProcess) -> list[bytes | Overlong]:
    return [line for line in agent.lines(0.1) if line is not None]


def first_line(agent: AgentProcess) -> bytes:
    line = next(line for line in agent.lines(0.1) if line is not None)
    assert isinstance(line, bytes)
    return line


def lives(pid: int) -> bool:
    return process_start(pid) is not None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
