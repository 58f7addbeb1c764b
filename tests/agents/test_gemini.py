"""Gemini alone."""

import os
import signal
from pathlib import Path

from tests.agents.driver import Driver, finish, only
from tests.agents.lab import homes
from tests.agents.lab.model_servers.replies import EmptyStream, Fail, Hang, Say

pytestmark = only("gemini")

#: makes a program believe that it is some minutes ago
EARLIER = """
globalThis.Date = class extends Date {
  constructor(...given) { super(...(given.length ? given : [new.target.now()])) }
  static now() { return super.now() - 300_000 }
}
"""


def test_its_retention_does_not_delete_a_session_that_was_resumed(driver: Driver, tmp_path: Path) -> None:
    homes.gemini(driver.lab.home, driver.lab.server.url, retention=True)
    clock = tmp_path / "earlier.cjs"
    clock.write_text(EARLIER)
    driver.lab.server.script(Say("violet"))
    driver.put_first(f"export NODE_OPTIONS='--require {clock}'")
    first = driver.run("colour?")
    driver.put_first()

    second = driver.resume(first.session, "stone?")

    # a resume in a later minute leaves a second file, for which another start would delete both
    assert (second.exit_code, second.decision, second.native) == (0, "resume", first.native)
    (file,) = driver.lab.home.glob(f".gemini/tmp/*/chats/session-*-{first.native[:8]}.jsonl")
    driver.run("something else")
    assert file.exists()

    third = driver.resume(first.session, "again?")

    assert (third.exit_code, third.decision, third.native) == (0, "resume", first.native)
    sent = "\n".join(driver.request.texts)
    assert [sent.count(said) for said in ("colour?", "violet", "stone?")] == [1, 1, 1]


def test_an_agent_that_is_interrupted_did_not_answer_though_it_ends_well(
    driver: Driver, tmp_path: Path
) -> None:
    hang, leader = Hang(), tmp_path / "leader"
    driver.lab.server.script(hang)
    driver.put_first(f"echo $$ > {leader}")
    with driver.started("run", "--provider", "gemini", "colour?") as process:
        hang.await_reached()
        # as a terminal does: the first of its processes only waits for the second
        os.killpg(int(leader.read_text()), signal.SIGINT)
        ended = finish(process)

    assert ended.exit_code == 1
    assert (ended["status"], ended.failure) == ("interrupted", "interrupted")
    assert "exit code 0" in ended["failure"]["message"]


def test_an_empty_answer_is_a_failure_though_it_ends_well(driver: Driver) -> None:
    driver.lab.server.otherwise(EmptyStream())

    ended = driver.run("colour?")

    assert (ended.exit_code, ended.failure) == (1, "transient")


def test_an_answer_without_a_word_is_an_answer(driver: Driver) -> None:
    driver.lab.server.otherwise(Say(""))

    ended = driver.run("colour?")

    assert (ended.exit_code, ended["status"], ended["text"], ended.failure) == (0, "done", None, None)


def test_a_killed_process_of_its_own_is_no_failure_of_the_turn(driver: Driver) -> None:
    """As the kernel does for want of memory: the first of its processes lives, and tells of it by its exit code."""
    hang = Hang("partial")
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", "gemini", "--name", "first", "colour?") as process:
        hang.await_reached()
        driver.kill_inner()
        ended = finish(process)
    hang.release()
    resumed = driver.resume("first")

    assert (ended.exit_code, ended["status"], ended.failure) == (1, "interrupted", "interrupted")
    assert "Warning" not in ended["failure"]["message"]
    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", ended.native)


#: as with a person: the first one starts a second one, which does the work
TWO_PROCESSES = {"GEMINI_CLI_NO_RELAUNCH": ""}
#: the process that does the work kills itself when it would end; the one that has started it does not
KILLED_AT_THE_END = """
if (process.env.GEMINI_CLI_NO_RELAUNCH) process.on('exit', () => process.kill(process.pid, 'SIGKILL'))
"""


def test_an_answer_counts_although_the_process_that_gave_it_was_killed_afterwards(
    driver: Driver, tmp_path: Path
) -> None:
    killed = tmp_path / "killed.cjs"
    killed.write_text(KILLED_AT_THE_END)
    driver.lab.server.script(Say("violet"), Say("amber"))
    driver.put_first(f"case $* in *stream-json*) export NODE_OPTIONS='--require {killed}';; esac")

    first = driver.run("colour?", **TWO_PROCESSES)
    second = driver.resume(first.session, "stone?", **TWO_PROCESSES)

    assert [(turn.exit_code, turn["status"], turn["text"]) for turn in (first, second)] == [
        (0, "done", "violet"),
        (0, "done", "amber"),
    ]
    assert (second.decision, second.native) == ("resume", first.native)


def test_its_retries_end_at_the_time_limit(driver: Driver) -> None:
    driver.lab.server.script(Fail(429))
    driver.lab.server.otherwise(Fail(500))

    # it starts and tries more than once within the limit, also on a machine that is busy
    ended = driver.run("colour?", "--timeout", "45")

    assert (ended.exit_code, ended["status"], ended.failure) == (1, "interrupted", "interrupted")
    assert "time limit" in ended["failure"]["message"]
    assert len(driver.lab.server.requests) > 1
