"""One agent is run: what it is given, what it says, and that nothing of it is left."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.domain.failures import StopCause
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes.owners import ON_LINUX, process_start
from holdfast.processes.process import MAX_LINE, MAX_STDERR, AgentProcess, Command
from tests.integration.agents import (
    ESCAPES,
    MACHINE,
    SLEEPS,
    an_agent,
    first_line,
    lives,
    python,
    said,
    until,
)

linux_only = pytest.mark.skipif(not ON_LINUX, reason="only Linux tells the environment of a process")


# --- what it is given ---


def test_an_agent_gets_its_prompt_directory_and_environment(tmp_path: Path) -> None:
    program = "import json, os, sys; print(json.dumps([sys.stdin.read(), os.getcwd(), dict(os.environ)]))"
    command = python(program, stdin="wörds\n" * 100_000, environ=(("ADDED", "1"),), without=("TAKEN",))
    marker = uuid4().hex
    odd = {"TAKEN": "1", "npm_config_@scope:registry": "odd", "HOLDFAST_ATTEMPT": "another"}

    with AgentProcess.start(command, str(tmp_path), os.environ | odd, marker, MACHINE) as agent:
        agent.go()
        (line,) = said(agent)
        ended = agent.wait()

    assert isinstance(line, bytes)
    prompt, work_dir, environ = json.loads(line)
    assert (prompt, work_dir) == ("wörds\n" * 100_000, str(tmp_path.resolve()))
    assert (environ["ADDED"], environ["HOLDFAST_ATTEMPT"]) == ("1", marker)
    assert environ["npm_config_@scope:registry"] == "odd"
    assert "TAKEN" not in environ
    assert (ended.code, ended.signal, ended.stopped, ended.left_behind) == (0, None, None, False)


def test_what_an_agent_prints_to_a_file_is_read_whole_though_it_ends_at_once() -> None:
    """Some never wait until a pipe has taken what they said."""
    program = (
        "import os; os.set_blocking(1, False); line = b'x' * 999_999 + b'\\n'\n"
        "for _ in range(3): os.write(1, line)\n"
        "os._exit(0)"
    )
    with an_agent(replace(python(program), prints_to_file=True)) as agent:
        agent.go()
        lines = said(agent)
        ended = agent.wait()
    assert [len(line) for line in lines if isinstance(line, bytes)] == [999_999] * 3
    assert ended.code == 0


def test_what_follows_an_agent_that_prints_to_a_file_is_bounded_in_time() -> None:
    chatters = "import time\nwhile True: print('more', flush=True); time.sleep(0.01)"
    program = f"import subprocess, sys; print('mine', flush=True); subprocess.Popen([sys.executable, '-c', {chatters!r}])"
    began = time.monotonic()
    with an_agent(replace(python(program), prints_to_file=True)) as agent:
        agent.go()
        lines = said(agent)
        ended = agent.wait()
    assert lines[0] == b"mine"
    assert (ended.code, ended.left_behind) == (0, False)
    assert time.monotonic() - began < 30


def test_an_agent_without_a_prompt_reads_nothing() -> None:
    with an_agent(python("import sys; print(repr(sys.stdin.read()))")) as agent:
        agent.go()
        assert said(agent) == [b"''"]


def test_an_agent_has_no_descriptors_but_its_own_and_those_it_is_to_keep() -> None:
    kept, other = os.pipe()
    try:
        with an_agent(Command(argv=("/bin/ls", "/dev/fd/")), keep_open=(kept,)) as agent:
            agent.go()
            listed = {int(line) for line in said(agent) if isinstance(line, bytes)}
    finally:
        os.close(kept)
        os.close(other)
    own_listing = max(listed - {kept})
    assert listed == {0, 1, 2, kept, own_listing}


def test_an_agent_is_stopped_by_a_broken_pipe_as_from_a_shell() -> None:
    with an_agent(Command(argv=("/bin/sh", "-c", "kill -PIPE $$"))) as agent:
        agent.go()
        assert agent.wait().signal == signal.SIGPIPE


# --- the gate ---


def test_nothing_runs_before_go_and_the_mark_stays_true(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    program = f"import os; open({str(proof)!r}, 'w').write('x'); print(os.getpid(), os.getsid(0))"
    with an_agent(python(program)) as agent:
        assert process_start(agent.mark.pgid) == agent.mark.started_at
        assert not proof.exists()
        agent.go()
        assert said(agent) == [f"{agent.mark.pgid} {agent.mark.pgid}".encode()]
    assert proof.exists()


def test_an_agent_that_is_never_let_run_just_ends(tmp_path: Path) -> None:
    with an_agent(python(f"open({str(tmp_path / 'ran')!r}, 'w')")) as agent:
        ended = agent.wait()
    assert (ended.code, ended.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_nothing_runs_when_holdfast_is_killed_before_go(tmp_path: Path) -> None:
    driver = f"""
import os, signal, sys
from tests.integration.agents import MACHINE, python
from holdfast.processes.process import AgentProcess
agent = AgentProcess.start(python("open('ran', 'w')"), {str(tmp_path)!r}, os.environ, "killed", MACHINE)
print(agent.mark.pgid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    until(lambda: not lives(int(ran.stdout)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["no-such-agent", "/no/such/agent", "/etc/passwd"])
def test_a_missing_binary_is_told_before_anything_starts(name: str) -> None:
    with pytest.raises(MissingBinary) as caught:
        AgentProcess.start(Command(argv=(name,)), "/", os.environ, "m", MACHINE)
    assert caught.value.binary == name


def test_a_binary_that_the_system_refuses_to_run_is_a_missing_one(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with an_agent(Command(argv=(str(script),))) as agent:
        with pytest.raises(MissingBinary, match="No such file"):
            agent.go()
        assert agent.wait().is_missing_binary


def test_a_script_whose_interpreter_is_not_on_the_path_is_a_missing_binary(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/usr/bin/env no-such-interpreter\n")
    script.chmod(0o755)
    with an_agent(Command(argv=(str(script),))) as agent:
        agent.go()
        ended = agent.wait()
    assert (ended.code, ended.is_missing_binary) == (127, True)


def test_an_agent_that_spoke_was_not_missing() -> None:
    with an_agent(python("print(1, flush=True); raise SystemExit(127)")) as agent:
        agent.go()
        assert not agent.wait().is_missing_binary


def test_a_directory_that_is_not_there_is_told_by_its_name() -> None:
    with pytest.raises(ConfigError, match="/no/such/place"):
        AgentProcess.start(python("pass"), "/no/such/place", os.environ, "m", MACHINE)


# --- what it says ---


def test_lines_come_while_the_agent_runs_and_ticks_between_them() -> None:
    read, write = os.pipe()
    program = f"import os\nprint('first', flush=True)\nos.read({read}, 1)\nprint('second', end='')"
    try:
        with an_agent(python(program), keep_open=(read,)) as agent:
            agent.go()
            lines = agent.lines(0.05)
            assert next(line for line in lines if line is not None) == b"first"
            assert [next(lines), next(lines)] == [None, None]
            os.write(write, b"x")
            assert [line for line in lines if line is not None] == [b"second"]
    finally:
        os.close(read)
        os.close(write)


def test_ticks_come_also_while_only_the_error_channel_is_busy() -> None:
    program = "import sys\nwhile True: sys.stderr.write('x' * 1000)"
    with an_agent(python(program)) as agent:
        agent.go()
        assert next(agent.lines(0.2)) is None


def test_only_the_last_of_the_error_channel_is_kept() -> None:
    with an_agent(python("import sys; sys.stderr.write('x' * 1_000_000 + 'end')")) as agent:
        agent.go()
        stderr = agent.wait().stderr
    assert len(stderr) == MAX_STDERR
    assert stderr.endswith("xend")


def test_a_line_of_200_megabytes_is_passed_over_without_holding_it() -> None:
    driver = """
import resource
from tests.integration.agents import an_agent, python, said
program = "import sys\\nfor _ in range(200): sys.stdout.write('x' * 1_000_000)\\nprint(); print('after')"
with an_agent(python(program)) as agent:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    agent.go()
    print(said(agent), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    ran = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, check=True)
    lines, _, grown = ran.stdout.rpartition(" ")
    assert lines == "[Overlong(size=200000000), b'after']"
    unit = 1024 if ON_LINUX else 1
    assert int(grown) * unit < 4 * MAX_LINE


# --- its end ---


def test_a_grandchild_that_holds_the_output_open_does_not_hold_us() -> None:
    program = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid)"
    with an_agent(python(program)) as agent:
        agent.go()
        began = time.monotonic()
        pid, *_ = said(agent)
        ended = agent.wait()
    assert time.monotonic() - began < 20
    assert (ended.code, ended.left_behind) == (0, False)
    assert isinstance(pid, bytes)
    assert not lives(int(pid))


@pytest.mark.parametrize(
    ("program", "gently", "number"),
    [
        (SLEEPS, False, signal.SIGTERM),
        (SLEEPS.replace("import time;", "import time, signal; signal.signal(2, signal.SIG_DFL);"), True, 2),
        (SLEEPS.replace("import time;", "import time, signal; signal.signal(15, signal.SIG_IGN);"), False, 9),
    ],
    ids=["asked", "interrupted", "killed"],
)
def test_a_stopped_agent_tells_by_what_it_was_ended(program: str, gently: bool, number: int) -> None:
    with an_agent(python(program)) as agent:
        agent.go()
        assert first_line(agent) == b"here"
        agent.stop(StopCause.CANCELLED, gently=gently)
        ended = agent.wait()
    assert (ended.signal, ended.stopped, ended.left_behind) == (number, StopCause.CANCELLED, False)


def test_what_an_interrupted_agent_says_last_is_still_read() -> None:
    program = """
import time
try:
    print('here', flush=True); time.sleep(600)
except KeyboardInterrupt:
    print('partial text', flush=True)
"""
    with an_agent(python(program)) as agent:
        agent.go()
        first_line(agent)
        agent.stop(StopCause.TIMEOUT, gently=True)
        assert said(agent) == [b"partial text"]
        ended = agent.wait()
    assert (ended.code, ended.stopped) == (0, StopCause.TIMEOUT)


@linux_only
@pytest.mark.parametrize("how", ["ends", "is stopped", "is killed"])
def test_a_tool_that_has_left_the_group_is_ended(how: str) -> None:
    with an_agent(python(ESCAPES + ("" if how == "ends" else "time.sleep(600)"))) as agent:
        agent.go()
        tool = int(first_line(agent))
        assert os.getpgid(tool) != agent.mark.pgid
        if how == "is stopped":
            agent.stop(StopCause.CANCELLED)
            assert not lives(tool)
        elif how == "is killed":
            os.kill(agent.mark.pgid, signal.SIGKILL)
        ended = agent.wait()
    assert not ended.left_behind
    assert not lives(tool)


def test_a_child_without_group_and_environment_is_ended_with_its_parent() -> None:
    program = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], start_new_session=True, env={{}})
print(child.pid, flush=True)
child.wait()
"""
    with an_agent(python(program)) as agent:
        agent.go()
        child = int(first_line(agent))
        until(lambda: os.getpgid(child) == child)
        agent.stop(StopCause.CANCELLED)
    assert not lives(child)


def test_a_stop_after_the_end_says_nothing_about_it() -> None:
    with an_agent(python("print(1)")) as agent:
        agent.go()
        said(agent)
        agent.stop(StopCause.CANCELLED)
        first = agent.wait()
        agent.stop(StopCause.TIMEOUT)
        assert agent.wait() == first
    assert (first.code, first.stopped) == (0, None)


def test_several_threads_may_stop_an_agent_that_is_being_read() -> None:
    with an_agent(python(SLEEPS)) as agent:
        agent.go()
        first_line(agent)
        together = threading.Barrier(2)

        def stop(cause: StopCause) -> None:
            together.wait()
            agent.stop(cause)

        threads = [
            threading.Thread(target=stop, args=(cause,))
            for cause in (StopCause.UNGATED, StopCause.LEASE_LOST)
        ]
        for thread in threads:
            thread.start()
        assert said(agent) == []
        ended = agent.wait()
        for thread in threads:
            thread.join()
    assert ended.signal == signal.SIGTERM
    assert ended.stopped in (StopCause.UNGATED, StopCause.LEASE_LOST)


def test_an_interrupt_while_reading_leaves_the_agent_stoppable() -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with an_agent(python(SLEEPS)) as agent:
        agent.go()
        first_line(agent)
        timer = threading.Timer(0.3, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            said(agent)
        timer.join()
        agent.stop(StopCause.EXIT)
        ended = agent.wait()
    assert (ended.signal, ended.stopped) == (signal.SIGINT, StopCause.EXIT)


def test_an_exception_in_the_block_ends_the_agent() -> None:
    def fail() -> None:
        with an_agent(python(SLEEPS)) as agent:
            groups.append(agent.mark.pgid)
            agent.go()
            first_line(agent)
            raise ZeroDivisionError

    groups: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not lives(groups[0])


def test_no_descriptor_and_no_zombie_is_left() -> None:
    before = sorted(Path("/dev/fd").iterdir())
    with an_agent(python("print(1)")) as agent:
        agent.go()
        agent.wait()
    assert sorted(Path("/dev/fd").iterdir()) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(agent.mark.pgid, os.WNOHANG)
