"""Long answers."""

from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say

#: what is kept of an answer
KEPT = 1024 * 1024
LONG = "0123456789" * 20_000
LONGER = "0123456789" * (KEPT // 8)

all_agents = only("claude", "codex", "opencode", "gemini")


@only("claude", "codex", "opencode")
def test_an_answer_of_200_kilobytes_arrives_whole(driver: Driver) -> None:
    driver.lab.server.script(Say(f"{LONG}!"))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"], ended["notices"]) == (0, "done", [])
    assert ended["text"] == f"{LONG}!"


@all_agents
def test_of_an_answer_that_is_too_long_the_beginning_is_kept_and_the_cut_is_said(driver: Driver) -> None:
    driver.lab.server.script(Say(LONGER))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"]) == (0, "done")
    assert ended["text"] == f"{LONGER[:KEPT]}\n[cut: the answer was longer]"
    assert ended["notices"] == ["the answer was too long: its first 1,048,576 characters are kept"]


@only("codex")
def test_an_answer_in_a_line_that_is_too_long_is_taken_from_the_session(driver: Driver) -> None:
    driver.lab.server.script(Say("0123456789" * 900_000))

    ended = driver.run("tell all")

    assert (ended.exit_code, ended["status"]) == (0, "done")
    assert ended["text"] == f"{LONGER[:KEPT]}\n[cut: the answer was longer]"
    assert ended["notices"] == ["the answer was too long: its first 1,048,576 characters are kept"]
