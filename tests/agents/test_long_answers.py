"""Long answers."""

from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say

#: what is kept of an answer
KEPT = 1024 * 1024
#: nothing in it is repeated: Gemini stops a model that repeats itself
LONG = " ".join(map(str, range(36_000)))
LONGER = " ".join(map(str, range(200_000)))

all_agents = only("claude", "codex", "opencode", "gemini")


@all_agents
def test_an_answer_of_200_kilobytes_arrives_whole(driver: Driver) -> None:
    driver.lab.server.script(Say(LONG))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"], ended["notices"]) == (0, "done", [])
    assert ended["text"] == LONG


@all_agents
def test_of_an_answer_that_is_too_long_the_beginning_is_kept_and_the_cut_is_said(driver: Driver) -> None:
    driver.lab.server.script(Say(LONGER))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"]) == (0, "done")
    assert ended["text"] == f"{LONGER[:KEPT]}\n[cut: the answer was longer]"
    assert ended["notices"] == ["the answer was too long: its first 1,048,576 characters are kept"]


@only("codex")
def test_an_answer_in_a_line_that_is_too_long_is_taken_from_the_session(driver: Driver) -> None:
    driver.lab.server.script(Say(LONGER * 7))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"]) == (0, "done")
    assert ended["text"] == f"{LONGER[:KEPT]}\n[cut: the answer was longer]"
    assert ended["notices"] == ["the answer was too long: its first 1,048,576 characters are kept"]


@only("gemini")
def test_a_model_that_gemini_stops_for_repeating_itself_has_not_answered(driver: Driver) -> None:
    repeated = Say("0123456789" * 500 + "!")
    driver.lab.server.script(repeated, repeated)

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"]) == (1, "failed")
    assert (ended.failure, ended["failure"]["message"]) == ("unknown", "Loop detected, stopping execution")
