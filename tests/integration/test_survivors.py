"""What is left of an attempt whose Holdfast is gone is ended, and nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from holdfast.domain.turns import ProcessMark
from holdfast.processes.owners import ON_LINUX
from holdfast.processes.table import end_survivors
from tests.integration.agents import ESCAPES, MACHINE, SLEEPS, lives, until

linux_only = pytest.mark.skipif(not ON_LINUX, reason="only Linux tells the environment of a process")

#: nothing else on this machine carries it, whoever runs the same test
MARKER = uuid4().hex
DRIVER = """
import os, signal, sys
from tests.integration.agents import MACHINE, first_line, python
from holdfast.processes.process import AgentProcess
agent = AgentProcess.start(python(sys.argv[1]), "/", os.environ, sys.argv[2], MACHINE)
agent.go()
print(agent.mark.pgid, agent.mark.started_at, first_line(agent).decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_alone(program: str) -> tuple[ProcessMark, str]:
    """The mark of an agent whose Holdfast was killed while it ran, and what it said first."""
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, program, MARKER], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    group, started_at, said = ran.stdout.split()
    return MACHINE.mark(int(group), int(started_at)), said


@pytest.fixture
def running() -> Iterator[ProcessMark]:
    """An agent that was left alone; the test decides whether it lives."""
    mark, _ = left_alone(SLEEPS)
    yield mark
    if lives(mark.pgid):
        os.killpg(mark.pgid, signal.SIGKILL)


def test_an_agent_that_was_left_alone_is_ended(running: ProcessMark) -> None:
    assert lives(running.pgid)
    assert end_survivors(running, MARKER, MACHINE)
    assert not lives(running.pgid)


@linux_only
def test_a_tool_that_outlived_its_agent_and_left_its_group_is_ended() -> None:
    mark, tool = left_alone(ESCAPES + "time.sleep(600)")
    os.kill(mark.pgid, signal.SIGKILL)
    until(lambda: not lives(mark.pgid))
    assert lives(int(tool))

    assert end_survivors(mark, MARKER, MACHINE)
    assert not lives(int(tool))


@linux_only
def test_what_is_left_of_a_group_without_its_leader_is_known_by_the_marker() -> None:
    # it keeps quiet, because nobody reads what it says
    child = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    program = f"import subprocess, sys; print(subprocess.Popen({child}).pid, flush=True)"
    mark, pid = left_alone(program)
    until(lambda: not lives(mark.pgid))
    try:
        assert not end_survivors(mark, "another", MACHINE), "nothing proves that it is gone"
        assert lives(int(pid)), "nothing proves that it is ours"
        assert end_survivors(mark, MARKER, MACHINE)
        assert not lives(int(pid))
    finally:
        if lives(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def test_a_group_whose_number_was_used_again_is_not_touched(running: ProcessMark) -> None:
    assert end_survivors(replace(running, started_at=running.started_at - 1), "another", MACHINE)
    assert lives(running.pgid)


def test_a_group_of_an_earlier_boot_is_gone_without_looking(running: ProcessMark) -> None:
    _, _, where = running.boot_id.partition("/")
    assert end_survivors(replace(running, boot_id=f"earlier/{where}"), MARKER, MACHINE)
    assert lives(running.pgid)


def test_a_group_of_another_machine_is_not_known_to_be_gone(running: ProcessMark) -> None:
    assert not end_survivors(replace(running, machine="another"), MARKER, MACHINE)
    assert lives(running.pgid)


def test_nobody_ends_an_attempt_that_he_is_a_part_of() -> None:
    program = """
import os, time
from holdfast.processes.owners import process_start
from holdfast.processes.table import end_survivors
from tests.integration.agents import MACHINE
mark = MACHINE.mark(os.getpid(), process_start(os.getpid()))
print(end_survivors(mark, "self", MACHINE))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
