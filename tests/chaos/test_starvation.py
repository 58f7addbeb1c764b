"""The campaign notices who gets no processor, and only those."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.clock import system_clock
from holdfast.processes.owners import ON_LINUX
from tests.chaos.starvation import Starvation

pytestmark = pytest.mark.skipif(not ON_LINUX, reason="only Linux keeps account of who waits")
CPU = min(os.sched_getaffinity(0)) if ON_LINUX else 0
SPIN = f"import os; os.sched_setaffinity(0, {{{CPU}}}); print('begun', flush=True)\nwhile True: pass"
SLEEP = "import time; print('begun', flush=True); time.sleep(60)"


@contextmanager
def running(program: str, times: int) -> Iterator[list[int]]:
    command = [sys.executable, "-I", "-S", "-c", program]
    with ExitStack() as ended:
        started = [
            ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(times)
        ]
        for process in started:
            ended.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]


def test_processes_that_share_a_processor_starve() -> None:
    starvation, since = Starvation(lease_seconds=0.5), system_clock()
    deadline = time.monotonic() + 30
    with running(SPIN, 4) as pids:
        while not starvation.spans and time.monotonic() < deadline:
            starvation.look(pids)
            time.sleep(0.05)

    assert starvation.seconds > 0
    assert starvation.covers(since, system_clock())


def test_a_process_that_wants_no_processor_does_not_starve() -> None:
    starvation = Starvation(lease_seconds=0.5)
    with running(SLEEP, 1) as pids:
        for _ in range(10):
            starvation.look(pids)
            time.sleep(0.05)

    assert starvation.spans == []
