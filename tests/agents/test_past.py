"""The past of a session."""

from holdfast.domain.turns import NewTurn
from holdfast.domain.usage import NO_USAGE
from tests.agents.driver import Driver, Ended, only
from tests.agents.lab.model_servers.replies import Say

#: with what Holdfast says itself, more than Linux takes as one argument of a command
TURNS, CHARACTERS = 115, 1000


def _talked(driver: Driver) -> Ended:
    """A session with a long past, in which one turn was the agent's."""
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    assert first.exit_code == 0
    with driver.library() as hf:
        for n in range(1, TURNS + 1):
            asked = NewTurn(f"request {n} " + "p" * CHARACTERS, driver.provider)
            hf.store.record_turn(hf.find(first.session), asked, f"answer {n} " + "r" * CHARACTERS, NO_USAGE)
    return first


@only("claude", "codex", "opencode", "gemini")
def test_a_long_past_is_sent_whole_and_the_turns_after_it_are_resumed(driver: Driver) -> None:
    first = _talked(driver)

    fresh = driver.resume(first.session, "go on", "--fresh")

    assert (fresh.exit_code, fresh.decision) == (0, "fresh"), fresh
    told = "\n".join(driver.request.texts)
    assert len(told) > 230_000
    assert "> colour?" in told
    assert all(f"request {n} {'p' * CHARACTERS}\n" in told for n in range(1, TURNS + 1))
    assert all(f"answer {n} {'r' * CHARACTERS}\n" in told for n in range(1, TURNS + 1))
    assert (fresh["past"]["turns"], fresh["past"]["first_lines"]) == (f"1-{TURNS + 1}", "")
    for number in range(10 if driver.provider in ("claude", "codex") else 2):
        on = driver.resume(first.session, f"and {number}?")
        assert (on.exit_code, on.decision, on.native) == (0, "resume", fresh.native)
    assert f"answer 1 {'r' * CHARACTERS}" in "\n".join(driver.request.texts)


@only("claude", "codex", "opencode", "gemini")
def test_a_past_that_is_too_long_is_cut_and_the_agent_is_told(driver: Driver) -> None:
    first = _talked(driver)

    fresh = driver.resume(first.session, "go on", "--fresh", HOLDFAST_CONTEXT__TRANSCRIPT_TOKENS="20000")

    told = "\n".join(driver.request.texts)
    last = fresh["past"]["first_lines"].partition("-")[2]
    assert f"[... turns 1-{last} are summarised to their first lines; `holdfast log" in told
    assert f"answer {TURNS} {'r' * CHARACTERS}" in told
    assert fresh["past"]["turns"] == f"1-{TURNS + 1}"
    assert any(f"turns 1-{last} are summarised" in notice for notice in fresh["notices"])
