"""Resumes that the agent refuses."""

import pytest

from tests.agents.driver import Driver, Ended, only
from tests.agents.lab.model_servers.replies import Say

#: what the agent itself makes of its session once it is too late to look: gone, or nothing that it knows
UNUSABLE = {
    "gone": 'rm -f "{file}"',
    "emptied": ': > "{file}"',
}


def _answered(driver: Driver) -> Ended:
    driver.lab.server.script(Say("violet"))
    return driver.run("colour?")


def _spoil_when_resumed(driver: Driver, native: str, spoil: str) -> None:
    """Between our look and its start, which nobody can rule out."""
    ruin = spoil.format(file=driver.session_file(native))
    driver.put_first(f'case "$*" in *resume*) {ruin};; esac')


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=UNUSABLE)
def test_a_refused_resume_starts_fresh_once_with_the_context(driver: Driver, spoil: str) -> None:
    first = _answered(driver)
    _spoil_when_resumed(driver, first.native, spoil)

    second = driver.resume(first.session, "again?")

    assert (second.exit_code, second["status"]) == (0, "done")
    assert second.native != first.native
    continuing = driver.traits.continuing
    assert [bool(continuing & set(launch)) for launch in driver.launches] == [False, True, False]
    (sent,) = driver.request.texts
    assert sent.count("colour?") == 1
    assert sent.count("violet") == 1
    assert sent.endswith("\nagain?")
    assert len(driver.lab.server.requests) == 2


def test_the_refused_session_is_never_used_again(driver: Driver) -> None:
    first = _answered(driver)
    file = driver.session_file(first.native)
    kept = file.read_bytes()
    _spoil_when_resumed(driver, first.native, UNUSABLE["gone"])
    second = driver.resume(first.session, "again?")
    driver.put_first()
    file.write_bytes(kept)

    third = driver.resume(first.session, "and now?")

    assert (third.decision, third.native) == ("resume", second.native)
    by_name = driver.resume(first.session, "by name", "--provider-session-id", first.native)
    assert (by_name.exit_code, by_name.reason) == (4, "retired")


@only("codex")
def test_a_session_in_whose_place_the_agent_began_another_one_counts_as_refused(driver: Driver) -> None:
    first = _answered(driver)
    # an id that is none makes Codex begin a new thread, and end well
    driver.put_first(
        'case "$*" in *resume*) set -- exec --json --skip-git-repo-check resume not-an-id -;; esac'
    )

    second = driver.resume(first.session, "again?")

    assert second.exit_code == 0
    assert second.native not in (first.native, driver.lab.server.requests[1].session)
    (sent,) = driver.request.texts
    assert sent.count("violet") == 1


def test_a_session_that_was_asked_for_by_name_is_not_replaced_by_another(driver: Driver) -> None:
    first = _answered(driver)
    _spoil_when_resumed(driver, first.native, UNUSABLE["gone"])

    second = driver.resume(first.session, "again?", "--provider-session-id", first.native)

    assert (second.exit_code, second.failure) == (1, "gone")
    assert len(driver.lab.server.requests) == 1


@only("codex")
def test_after_a_tool_has_run_nothing_is_sent_again(driver: Driver) -> None:
    first = driver.run("colour?", *driver.traits.rights)
    driver.put_first(
        'case "$*" in *resume*) set -- exec --json --skip-git-repo-check --sandbox=danger-full-access -;; esac'
    )
    driver.lab.server.script(driver.lab.agent.shell("echo once >> proof"), Say("done"))

    second = driver.resume(first.session, "prove")

    assert (second.exit_code, second.failure) == (1, "gone")
    assert (driver.lab.workdir / "proof").read_text() == "once\n"


def test_a_model_that_merely_says_that_the_session_is_gone_changes_nothing(driver: Driver) -> None:
    first = _answered(driver)
    said = f"No conversation found with session ID: {first.native}; no rollout found for thread id {first.native}"
    driver.lab.server.script(Say(said))

    second = driver.resume(first.session, "again?")

    assert (second["status"], second.decision, second["text"]) == ("done", "resume", said)
    assert driver.resume(first.session, "and now?").native == first.native
