"""Sudden ends."""

import os
import signal

import pytest

from tests.agents.driver import Driver, await_that, finish
from tests.agents.lab.model_servers.replies import Hang, Say

#: refuses to be a plain sleep, which some agents do not let run
LONG = "touch started; python3 -c 'import time; time.sleep(300)'"


def _started_tool(driver: Driver) -> None:
    await_that((driver.lab.workdir / "started").exists, lambda: "the tool was not run")
    await_that(lambda: any("sleep(300)" in line for line in driver.alive()), lambda: str(driver.alive()))


def test_an_agent_that_is_killed_while_it_answers_loses_nothing(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        driver.kill_agent()
        second = finish(process)
    driver.await_nothing_alive()
    hang.release()

    third = driver.resume(first.session)

    assert (second.exit_code, second["status"], second.failure) == (1, "interrupted", "interrupted")
    assert (third.exit_code, third.native) == (0, first.native)
    sent = " ".join(driver.request.texts)
    assert [sent.count(said) for said in ("colour?", "violet", "stone?")] == [1, 1, 1]


def test_an_agent_that_is_killed_while_a_tool_runs_takes_the_tool_along(driver: Driver) -> None:
    driver.lab.server.script(driver.lab.agent.shell(LONG))
    with driver.started("run", "--provider", driver.provider, *driver.traits.rights, "work") as process:
        _started_tool(driver)
        driver.kill_agent()
        first = finish(process)

    assert (first.exit_code, first["status"]) == (1, "interrupted")
    driver.await_nothing_alive()
    driver.lab.server.script(Say("done"))
    second = driver.resume(first.session)
    assert (second.exit_code, second["text"]) == (0, "done")
    sent = " ".join(driver.request.texts)
    assert "work" in sent
    assert "sleep(300)" in sent


def test_what_a_killed_holdfast_left_running_is_ended_by_the_next_who_comes(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?", *driver.traits.rights)
    driver.lab.server.script(driver.lab.agent.shell(LONG))
    with driver.started("resume", first.session, "work") as process:
        _started_tool(driver)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert driver.alive()
    driver.lab.server.otherwise(Say("done"))

    second = driver.resume(first.session)

    assert (second.exit_code, second["text"], second.native) == (0, "done", first.native)
    assert driver.alive() == []
    sent = " ".join(driver.request.texts)
    assert [sent.count(said) for said in ("colour?", "violet")] == [1, 1]
    assert "sleep(300)" in sent


def test_a_holdfast_that_is_killed_in_the_first_turn_leaves_a_session_that_goes_on(driver: Driver) -> None:
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
        hang.await_reached()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    driver.lab.server.script(Say("violet"))

    second = driver.resume("first")

    assert (second.exit_code, second["text"]) == (0, "violet")
    assert driver.alive() == []
    assert "colour?" in " ".join(driver.request.texts)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminate"]
)
def test_a_holdfast_that_is_stopped_ends_the_agent_and_commits_the_turn(
    driver: Driver, number: signal.Signals, exit_code: int
) -> None:
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        os.kill(process.pid, number)
        second = finish(process)

    assert (second.exit_code, second["status"]) == (exit_code, "interrupted")
    assert driver.alive() == []
    third = driver.resume(first.session)
    assert (third.exit_code, third.native) == (0, first.native)


def test_an_agent_that_is_interrupted_itself_did_not_answer(driver: Driver) -> None:
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", driver.provider, "colour?") as process:
        hang.await_reached()
        driver.kill_agent(signal.SIGINT)
        ended = finish(process)

    assert ended.exit_code == 1
    assert (ended["status"], ended.failure) == ("interrupted", "interrupted")


def test_a_turn_that_hangs_ends_at_its_time_limit(driver: Driver) -> None:
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.otherwise(hang)

    second = driver.resume(first.session, "stone?", "--timeout", "3")
    hang.release()

    assert (second.exit_code, second["status"], second.failure) == (1, "interrupted", "interrupted")
    assert "time limit" in second["failure"]["message"]
    assert driver.alive() == []
    assert driver.resume(first.session, "again?").native == first.native
