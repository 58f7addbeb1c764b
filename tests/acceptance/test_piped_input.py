"""What is piped into a command that sends a prompt: it is sent, waited for, or left to the program whose input it is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.command import HOLDFAST, environment, holdfast, on_terminal

LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def place(scripted_place: Path) -> Path:
    return scripted_place


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in which ``holdfast`` is the installed command; it has no input of its own."""
    path = f"{HOLDFAST.parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/bash", "-c", script], env=environment({"PATH": path}), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip


def prompts(session: str) -> list[str]:
    return [turn["prompt"] for turn in holdfast("show", session, "--json").json["turns"]]


def test_what_is_piped_in_follows_the_prompt() -> None:
    piped = "diff --git a b\n-old\n+new\n"

    assert holdfast("run", "--name", "it", "review this", stdin=piped).code == 0
    assert holdfast("resume", "it", "and this", stdin="+more").code == 0
    forked = holdfast("fork", "it", "another way", "--json", stdin="+other").json["session_id"]

    assert prompts("it") == ["review this\n\ndiff --git a b\n-old\n+new", "and this\n\n+more"]
    assert prompts(forked)[-1] == "another way\n\n+other"


def test_without_a_prompt_what_is_piped_in_is_the_prompt() -> None:
    assert holdfast("run", "--name", "it", stdin="SAY one").out == "one\n"
    assert holdfast("resume", "it", stdin="SAY two").out == "two\n"
    assert holdfast("fork", "it", stdin="SAY three").out == "three\n"


def test_blank_input_is_no_input() -> None:
    assert holdfast("run", "--name", "it", "SAY one", stdin=" \n\n").out == "one\n"
    assert prompts("it") == ["SAY one"]
    assert holdfast("run", stdin="\n").code == 2


def test_a_dash_and_a_job_file_are_not_read_twice(tmp_path: Path) -> None:
    assert holdfast("run", "--name", "dash", "-", stdin="SAY one").out == "one\n"
    assert prompts("dash") == ["SAY one"]
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"prompt": "SAY two", "name": "job"}))

    ran = shell(f"holdfast run --job /dev/stdin < {job}")

    assert (ran.returncode, ran.stdout) == (0, "two\n"), ran
    assert prompts("job") == ["SAY two"]


def test_text_of_another_encoding_is_sent_all_the_same() -> None:
    assert holdfast("run", "--name", "it", "review this", stdin=b"-caf\xe9\n+\x00\n").code == 0
    assert prompts("it") == ["review this\n\n-caf�\n+�"]


def test_input_that_is_too_long_is_refused_before_anything_is_recorded() -> None:
    refused = holdfast("run", "review this", stdin=b"x" * (16 * 1024 * 1024 + 1))

    assert (refused.code, "the limit is" in refused.one_line_error()) == (2, True)
    assert holdfast("list", "--json").json["sessions"] == []


def test_a_loop_around_the_command_keeps_its_input(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.write_text("SAY one\nSAY two\nSAY three\n")

    from_pipe = shell(f'cat {asked} | while read -r line; do holdfast run "$line"; done')
    from_file = shell(f'while read -r line; do holdfast run "$line"; done < {asked}')

    for loop in (from_pipe, from_file):
        assert (loop.returncode, loop.stdout) == (0, "one\ntwo\nthree\n"), loop
        assert "standard input was not read" in loop.stderr
        assert loop.stderr.count("standard input was not read") == 2  # the last one has left nothing


def test_a_loop_of_another_program_keeps_its_input() -> None:
    loop = (
        "import os, subprocess\n"
        "while line := os.read(0, len('SAY one\\n')):\n"
        f"    subprocess.run([{str(HOLDFAST)!r}, 'run', line.strip()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", loop], input="SAY one\nSAY two\n", env=environment(), capture_output=True,
        text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip

    assert done.stdout == "one\ntwo\n", done


@pytest.mark.parametrize("wrapper", ["timeout 50", "nice", "env"])
def test_a_wrapper_passes_the_input_on(wrapper: str) -> None:
    ran = shell(f"echo '+new' | {wrapper} holdfast run --name it 'review this'")

    assert ran.returncode == 0, ran
    assert prompts("it") == ["review this\n\n+new"]


def test_a_script_is_told_how_to_pass_its_input_on(tmp_path: Path) -> None:
    script = tmp_path / "review.sh"
    script.write_text(
        "#!/bin/sh\nholdfast run --name left 'review this'\nholdfast run --stdin --name sent 'review this'\n"
    )
    script.chmod(0o755)

    ran = shell(f"echo '+new' | {script}")

    assert ran.returncode == 0, ran
    assert "to send it, too: --stdin" in ran.stderr
    assert (prompts("left"), prompts("sent")) == (["review this"], ["review this\n\n+new"])


def test_a_pipe_that_never_closes_is_given_up() -> None:
    reading, writing = os.pipe()
    try:
        began = time.monotonic()
        ran = subprocess.run(
            [HOLDFAST, "run", "SAY one"], stdin=reading, env=environment(), capture_output=True, text=True,
            timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    finally:
        os.close(reading)
        os.close(writing)

    assert (ran.returncode, ran.stdout) == (0, "one\n")
    assert "nothing came in 3 s: continuing without it" in ran.stderr
    assert time.monotonic() - began >= 3


def test_a_slow_program_before_it_is_waited_for() -> None:
    ran = shell("{ sleep 4; echo '+new'; } | holdfast run --name it 'review this'")

    assert ran.returncode == 0, ran
    assert "waiting for standard input from " in ran.stderr
    assert prompts("it") == ["review this\n\n+new"]


def test_a_terminal_is_not_read() -> None:
    assert "one\n" in on_terminal("run", "SAY one").out
