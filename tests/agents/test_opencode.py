"""opencode alone."""

from pathlib import Path

from tests.agents.driver import Driver, only
from tests.agents.lab import homes
from tests.agents.lab.laboratory import Laboratory
from tests.agents.lab.model_servers.replies import EmptyStream, Fail, Say

pytestmark = only("opencode")


def test_a_session_is_resumed_in_its_directory_from_anywhere_and_by_any_name_of_it(
    driver: Driver, tmp_path: Path
) -> None:
    directory, link = tmp_path / "project", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    first = driver.run("colour?", "--cwd", str(directory))

    # in another directory than the session's it would run the turn, say nothing and never end
    from_elsewhere = driver.resume(first.session, "stone?", "--timeout", "60")
    by_a_link = driver.resume(first.session, "again?", "--timeout", "60", "--cwd", str(link))

    for ended in (from_elsewhere, by_a_link):
        assert (ended.exit_code, ended["text"]) == (0, "ok")
        assert (ended.decision, ended.native) == ("resume", first.native)


def test_its_silence_after_failures_and_empty_answers_ends_at_the_time_limit(driver: Driver) -> None:
    soon = {"retry-after": "1"}
    driver.lab.server.script(Fail(429, headers=soon), Fail(500, headers=soon))
    driver.lab.server.otherwise(EmptyStream())

    # it starts and tries more than once within the limit, also on a machine that is busy
    ended = driver.run("colour?", "--timeout", "45")

    assert (ended.exit_code, ended["status"], ended.failure) == (1, "interrupted", "interrupted")
    assert "time limit" in ended["failure"]["message"]
    assert driver.alive() == []
    # it tried after each failure, and after an empty answer more than once
    assert len(driver.lab.server.requests) > 4


def test_it_and_gemini_take_turns_in_one_conversation(driver: Driver, gemini: Laboratory) -> None:
    both = homes.gemini(driver.lab.home, gemini.server.url) | {"HOLDFAST_GEMINI_BINARY": str(gemini.program)}
    driver.lab.server.script(Say("violet"))
    gemini.server.script(Say("slate"))

    first = driver.run("colour?")
    second = driver.resume(first.session, "stone?", "--provider", "gemini", **both)
    third = driver.resume(first.session, "again?", "--provider", "opencode", **both)

    assert [turn.exit_code for turn in (first, second, third)] == [0, 0, 0]
    (told,) = gemini.server.requests[-1].texts
    assert [told.count(said) for said in ("colour?", "violet")] == [1, 1]
    assert (third.decision, third.native) == ("resume", first.native)
    assert driver.request.texts[:2] == ["colour?", "violet"]
    (caught_up,) = driver.request.texts[2:]
    assert [caught_up.count(said) for said in ("violet", "stone?", "slate")] == [0, 1, 1]
