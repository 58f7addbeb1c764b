"""Whose turns stand in an agent's session, and what that session has really seen."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.config import default_url
from tests.agents.driver import Driver, await_that, only
from tests.agents.lab.model_servers.replies import Hang, Say
from tests.agents.test_two_writers import IMPATIENT

#: an agent that has been launched, and that never gets to what it was sent
STUCK = """case "$1" in --version|--help) ;; *) touch '{note}'; exec sleep 300;; esac"""


def _sent(driver: Driver) -> str:
    return "\n".join(driver.request.texts)


def test_a_queued_turn_that_repeats_the_one_before_it_is_run_after_a_kill(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    note = driver.lab.home.parent / "stuck"
    driver.put_first(STUCK.format(note=note))
    driver.holdfast("enqueue", first.session, "colour?")
    with driver.started("worker", "--once") as worker:
        await_that(note.exists, lambda: "the agent was not launched")
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
    driver.end_survivors()
    driver.put_first()
    driver.lab.server.script(Say("amber"))

    driver.holdfast("worker", "--once")

    assert [turn["response"] for turn in driver.show(first.session)["turns"]] == ["violet", "amber"]
    assert _sent(driver).count("colour?") == 2


def test_a_session_is_not_told_of_turns_that_it_holds(driver: Driver) -> None:
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    hang.release()
    driver.lab.server.otherwise(Say("oak"))

    third = driver.resume(first.session, "tree?")

    assert (third.exit_code, third.native) == (0, first.native)
    assert [_sent(driver).count(said) for said in ("colour?", "stone?", "tree?")] == [1, 1, 1]
    assert "not in your session" not in _sent(driver)


def test_a_database_that_was_put_back_adopts_the_turns_that_it_does_not_know(driver: Driver) -> None:
    first = driver.run("colour?")
    database = Path(default_url(driver.environment).removeprefix("sqlite:///"))
    copy = shutil.copy(database, driver.lab.home.parent / "older.db")
    driver.resume(first.session, "stone?")
    shutil.copy(copy, database)

    again = driver.resume(first.session, "tree?")

    assert (again.exit_code, again.native) == (0, first.native)
    assert "1 turn was made outside Holdfast" in " ".join(again["notices"])
    assert [turn["prompt"] for turn in driver.show(first.session)["turns"]] == ["colour?", "stone?", "tree?"]
    assert _sent(driver).count("stone?") == 1


class Person:
    """At Claude's own program, with a session open."""

    def __init__(self, driver: Driver, process: subprocess.Popen[str], answers: Path) -> None:
        self._driver, self._process, self._answers = driver, process, answers

    def types(self, prompt: str) -> None:
        told = len(self._results())
        assert self._process.stdin is not None
        message = {"type": "user", "message": {"role": "user", "content": prompt}}
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        await_that(lambda: len(self._results()) > told, self._answers.read_text)

    def _results(self) -> list[str]:
        return [line for line in self._answers.read_text().splitlines() if '"type":"result"' in line]


@contextmanager
def _at_claude(driver: Driver, native: str) -> Iterator[Person]:
    streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    answers = driver.lab.home.parent / "answers"
    with answers.open("w") as file:
        process = subprocess.Popen(
            [driver.lab.program, "-p", *streams, "--resume", native],
            cwd=driver.lab.workdir, env=driver.lab.environment, stdin=subprocess.PIPE, stdout=file,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield Person(driver, process, answers)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _claudes_own_list(driver: Driver) -> list[Path]:
    return list((driver.lab.home / ".claude" / "sessions").glob("*.json"))


@only("claude")
def test_nothing_is_written_beside_a_person(driver: Driver) -> None:
    first = driver.run("colour?")
    with _at_claude(driver, first.native) as person:
        person.types("by hand?")
        refused = driver.resume(first.session, "granite?", **IMPATIENT)

    assert (refused.exit_code, refused.failure or refused["error"]["code"]) in [(4, "busy"), (4, "locked")]
    assert "claude (process " in refused.stdout
    assert "granite?" not in _sent(driver)

    after = driver.resume(first.session, "stone?")

    assert (after.exit_code, after.native, after.decision) == (0, first.native, "resume")
    assert [_sent(driver).count(said) for said in ("colour?", "by hand?", "stone?")] == [1, 1, 1]


@contextmanager
def _at_a_terminal(driver: Driver, *arguments: str) -> Iterator[None]:
    """The agent's own program in front of a person, as soon as it has drawn something."""
    screen, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [driver.lab.program, *arguments], cwd=driver.lab.workdir, stdin=terminal, stdout=terminal,
            stderr=terminal, env=driver.lab.environment | {"TERM": "xterm-256color"}, start_new_session=True,
        )  # fmt: skip
        try:
            assert select.select([screen], [], [], 60)[0], "it has drawn nothing"
            yield
            assert process.poll() is None, "it has ended by itself"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        os.close(screen)
        os.close(terminal)


@only("opencode", "gemini")
def test_nothing_is_written_beside_a_program_that_was_started_on_the_session(driver: Driver) -> None:
    first = driver.run("colour?")
    option = {"opencode": "--session", "gemini": "--resume"}[driver.provider]
    with _at_a_terminal(driver, option, first.native):
        refused = driver.resume(first.session, "granite?", **IMPATIENT)

    assert (refused.exit_code, refused.failure or refused["error"]["code"]) in [(4, "busy"), (4, "locked")]
    assert f"{driver.provider} (process " in refused.stdout
    assert "granite?" not in _sent(driver)
    after = driver.resume(first.session, "stone?")
    assert (after.exit_code, after.native, after.decision) == (0, first.native, "resume")


@only("claude")
def test_what_a_killed_claude_left_in_its_own_list_holds_up_nobody(driver: Driver) -> None:
    first = driver.run("colour?")
    with _at_claude(driver, first.native) as person:
        person.types("by hand?")
        (listed,) = _claudes_own_list(driver)
        os.kill(int(listed.stem), signal.SIGKILL)
    assert listed.exists()

    assert driver.resume(first.session, "stone?").exit_code == 0


def _beside_a_person(driver: Driver, session: str, native: str, ours: Callable[[], object]) -> None:
    """A turn of ours that nobody could see coming: the person goes on from where the session stood before it."""
    with _at_claude(driver, native) as person:
        person.types("by hand?")
        for listed in _claudes_own_list(driver):
            listed.unlink()
        ours()
        person.types("and this?")


@only("claude")
def test_a_turn_that_fell_on_a_dead_branch_is_told_again(driver: Driver) -> None:
    first = driver.run("colour?")
    driver.lab.server.otherwise(Say("granite"))
    _beside_a_person(driver, first.session, first.native, lambda: driver.resume(first.session, "stone?"))

    after = driver.resume(first.session, "tree?")

    assert (after.exit_code, after.native, after.decision) == (0, first.native, "resume")
    sent = _sent(driver)
    assert [sent.count(said) for said in ("colour?", "by hand?", "and this?", "stone?", "tree?")] == [1] * 5
    assert "not in your session" in sent
    again = driver.resume(first.session, "all?")
    assert again.exit_code == 0
    assert _sent(driver).count("stone?") == 1, "it has been told"


@only("claude")
def test_what_a_turn_on_a_dead_branch_had_been_told_is_told_again(driver: Driver) -> None:
    """The turn of another agent went along with ours, and fell with it."""
    first = driver.run("colour?")
    other = driver.resume(first.session, "SAY basalt", "--provider", "scripted")
    assert other.exit_code == 0
    driver.lab.server.otherwise(Say("granite"))
    ours = ("stone?", "--provider", "claude")
    _beside_a_person(driver, first.session, first.native, lambda: driver.resume(first.session, *ours))

    after = driver.resume(first.session, "tree?", "--provider", "claude")

    assert (after.exit_code, after.native, after.decision) == (0, first.native, "resume")
    sent = _sent(driver)
    asked = ("colour?", "SAY basalt", "by hand?", "and this?", "stone?", "tree?")
    assert [sent.count(said) for said in asked] == [1] * 6
    assert driver.resume(first.session, "all?").exit_code == 0
    assert _sent(driver).count("SAY basalt") == 1, "it has been told"


@only("claude", "codex")
def test_what_a_person_used_is_not_booked_to_our_next_turn(driver: Driver) -> None:
    first = driver.run("colour?")
    plain = driver.resume(first.session, "stone?")
    by_hand = driver.lab.turn("by hand?", resume=first.native)
    assert by_hand.exit_code == 0
    driver.lab.turn("and by hand?", resume=first.native)

    after = driver.resume(first.session, "tree?")

    used, before = after["usage"], plain["usage"]
    assert 0 < used["input_tokens"] < 2 * before["input_tokens"], (before, used)
    assert used["output_tokens"] < 2 * before["output_tokens"]


@only("claude")
def test_what_a_command_by_hand_used_is_not_booked_to_our_next_turn(driver: Driver) -> None:
    first = driver.run("colour?")
    plain = driver.resume(first.session, "stone?")
    driver.lab.turn("/compact", resume=first.native)
    assert "stone?" in _sent(driver), "it asked the model for a summary"

    after = driver.resume(first.session, "tree?")

    assert (after.exit_code, after.native) == (0, first.native)
    used, before = after["usage"], plain["usage"]
    assert 0 < used["input_tokens"] < 2 * before["input_tokens"], (before, used)
    assert used["output_tokens"] < 2 * before["output_tokens"]
