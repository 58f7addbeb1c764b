"""Two at once."""

from tests.agents.driver import Driver, finish
from tests.agents.lab.model_servers.replies import Hang, Say

IMPATIENT = {"HOLDFAST_QUEUE__LOCK_TRIES": "2", "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0.2"}

#: a busy machine may take its time
PATIENT = {
    "HOLDFAST_QUEUE__LOCK_TRIES": "100",
    "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0.2",
    "HOLDFAST_QUEUE__LOCK_BACKOFF": "1",
}


def test_the_second_one_on_a_session_is_refused_while_the_first_one_works(driver: Driver) -> None:
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        refused = driver.resume(first.session, "tree?", **IMPATIENT)
        hang.release()
        second = finish(process)

    assert (refused.exit_code, refused["error"]["code"]) == (4, "busy")
    assert (second.exit_code, second.native) == (0, first.native)
    assert not any("tree?" in text for text in driver.request.texts)


def test_the_second_one_waits_for_the_first_and_no_turn_is_lost(driver: Driver) -> None:
    first = driver.run("colour?")
    hang = Hang("granite")
    driver.lab.server.script(hang, Say("oak"))
    with (
        driver.started("resume", first.session, "stone?", **PATIENT) as one,
        driver.started("resume", first.session, "tree?", **PATIENT) as other,
    ):
        hang.await_reached()
        hang.release()
        ended = [finish(one), finish(other)]

    assert [(turn.exit_code, turn.decision, turn.native) for turn in ended] == [
        (0, "resume", first.native)
    ] * 2
    driver.resume(first.session, "all?")
    sent = " ".join(driver.request.texts)
    assert [sent.count(said) for said in ("colour?", "stone?", "granite", "tree?", "oak")] == [1] * 5


def test_two_forks_and_their_parent_may_work_at_once(driver: Driver) -> None:
    parent = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("fork", parent.session, "one way") as one:
        hang.await_reached()
        other = driver.fork(parent.session, "another way")
        of_the_parent = driver.resume(parent.session, "go on")
        hang.release()
        first = finish(one)

    assert (first.exit_code, other.exit_code, of_the_parent.exit_code) == (0, 0, 0)
    assert len({first.native, other.native, of_the_parent.native}) == 3
