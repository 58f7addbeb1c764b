"""Forks."""

from tests.agents.driver import Driver, finish, only
from tests.agents.lab.model_servers.replies import Hang, Say


def test_a_fork_has_an_id_of_its_own_the_whole_history_and_leaves_its_parent_as_it_was(
    driver: Driver,
) -> None:
    driver.lab.server.script(Say("violet"))
    parent = driver.run("colour?")
    before = driver.session_file(parent.native).read_bytes()

    child = driver.fork(parent.session, "again?")

    assert (child.exit_code, child.decision) == (0, "fork")
    assert child.native not in (None, parent.native)
    assert driver.request.session == child.native
    assert driver.request.texts[:2] == ["colour?", "violet"]
    assert driver.request.texts[2].endswith("\nagain?")
    assert len(driver.request.texts) == 3
    assert driver.session_file(parent.native).read_bytes() == before
    shown = driver.show(child.session)
    assert shown["parent_session_id"] == parent.session
    assert shown["provider_session_forked_from"] == parent.native


def test_parent_and_fork_go_on_apart(driver: Driver) -> None:
    parent = driver.run("one")
    child = driver.fork(parent.session, "of the fork")

    further = driver.resume(child.session, "fork goes on")
    of_the_fork = " ".join(driver.request.texts)
    driver.resume(parent.session, "parent goes on")
    of_the_parent = " ".join(driver.request.texts)

    assert (further.decision, further.native) == ("resume", child.native)
    assert "one" in of_the_fork
    assert "of the fork" in of_the_fork
    assert "of the fork" not in of_the_parent


def test_a_fork_of_an_interrupted_session_is_told_of_the_interruption(driver: Driver) -> None:
    parent = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", parent.session, "stone?") as process:
        hang.await_reached()
        driver.kill_agent()
        assert finish(process)["status"] == "interrupted"
    hang.release()
    driver.lab.server.otherwise(Say("oak"))

    child = driver.fork(parent.session, "tree?")

    assert (child.exit_code, child.decision) == (0, "fork")
    sent = "\n".join(driver.request.texts)
    assert "turn 2 was stopped before the end. Check what was already done" in sent
    assert [sent.count(asked) for asked in ("colour?", "stone?", "tree?")] == [1, 1, 1]


def test_a_fork_of_an_earlier_turn_knows_that_turn_and_none_after_it(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"), Say("amber"))
    parent = driver.run("colour?")
    driver.resume(parent.session, "stone?")

    child = driver.fork(parent.session, "again?", "--at", "1")

    assert (child.exit_code, child.decision, child.reason) == (0, "fresh", "fork_point_moved")
    (sent,) = driver.request.texts
    assert "violet" in sent
    assert "amber" not in sent
    assert not driver.traits.continuing & set(driver.launches[-1])


def test_a_fork_of_a_session_that_is_gone_starts_fresh_with_the_context(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    parent = driver.run("colour?")
    driver.session_file(parent.native).unlink()

    child = driver.fork(parent.session, "again?", HOLDFAST_RESUME__RESTORE="off")

    assert (child.exit_code, child.decision) == (0, "fresh")
    (sent,) = driver.request.texts
    assert sent.count("violet") == 1


@only("codex")
def test_a_fork_whose_parent_went_missing_goes_on_with_the_context(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"), Say("amber"))
    parent = driver.run("colour?")
    child = driver.fork(parent.session, "stone?")
    driver.session_file(parent.native).unlink()

    further = driver.resume(child.session, "again?", HOLDFAST_RESUME__RESTORE="off")

    assert (further.exit_code, further.decision, further.reason) == (0, "fresh", "transcript_missing")
    (sent,) = driver.request.texts
    assert (sent.count("violet"), sent.count("amber")) == (1, 1)
