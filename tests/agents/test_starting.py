"""Sessions that a person begins in the agent's own program: everything said there is in the history."""

import os
import signal
from typing import Any

from tests.agents.driver import HOLDFAST, Driver, await_that, only
from tests.agents.lab.model_servers.replies import Say
from tests.agents.person import at_terminal
from tests.agents.test_two_writers import IMPATIENT

EVERY = only("claude", "codex", "opencode", "gemini")
#: a busy Gemini puts its commands aside and then sends them to the model, as a person's request
TAKES_COMMANDS = only("claude", "codex", "opencode")


def sessions(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.holdfast("list").document["sessions"]
    return found


def said(driver: Driver, session: str) -> list[tuple[str, str]]:
    return [(turn["prompt"], turn["response"]) for turn in driver.show(session)["turns"]]


def sent(driver: Driver, prompt: str) -> str:
    """What the model was asked last with this prompt; Codex also asks for a title of each."""
    asked = ("\n".join(request.texts) for request in reversed(driver.lab.server.requests))
    return next(text for text in asked if prompt in text and "single-line task title" not in text)


def is_saved(driver: Driver) -> bool:
    """Whether the agent's own session has the whole answer: a screen shows it a moment before."""
    with driver.library() as library:
        archive = library.agents.get(driver.provider).archive
        found = [turn for one in archive.sessions() for turn in archive.turns(one.path, one.id)]
    return bool(found) and all(turn.complete for turn in found)


def is_free(driver: Driver, session: str) -> bool:
    """A process that was killed holds its locks until all of its memory is gone."""
    (native,) = (one["provider_session_id"] for one in driver.show(session)["provider_sessions"])
    with driver.library() as library:
        return library.agents.get(driver.provider).lock(native).is_free()


@EVERY
def test_what_is_said_in_a_new_program_continues_headless_and_the_other_way_round(driver: Driver) -> None:
    with at_terminal(driver, [HOLDFAST, driver.provider]) as person:
        person.asks("amber")
        assert person.quits() == 0
        person.sees("1 turn is in the history; continue with: holdfast resume ")
    (session,) = (one["agent_id"] for one in sessions(driver))
    assert said(driver, session) == [("amber", "amber-answered")]
    driver.lab.server.otherwise(Say("granite-answered"))

    resumed = driver.resume(session, "granite")

    assert (resumed.exit_code, resumed.decision) == (0, "resume"), resumed
    assert [sent(driver, "granite").count(word) for word in ("amber-answered", "granite")] == [1, 1]
    with at_terminal(driver, [HOLDFAST, "open", session]) as person:
        person.asks("oak")
        person.quits()
    assert [prompt for prompt, _ in said(driver, session)] == ["amber", "granite", "oak"]
    assert sent(driver, "oak").count("amber-answered") == 1
    with driver.library() as library:
        kept = library.store.bundle(driver.provider, resumed["provider_session_id"])
        assert kept is not None  # the vault has it


@TAKES_COMMANDS
def test_a_session_that_is_begun_inside_of_the_program_is_one_of_its_own(driver: Driver) -> None:
    with at_terminal(driver, [HOLDFAST, driver.provider]) as person:
        person.asks("amber")
        person.clears()
        person.asks("granite")
        person.quits()
        person.sees("1 more session was used in the program")
    found = [said(driver, one["agent_id"]) for one in sessions(driver)]
    assert sorted(found) == [[("amber", "amber-answered")], [("granite", "granite-answered")]]

    driver.lab.server.otherwise(Say("oak-answered"))
    for one in sessions(driver):
        ((prompt, _),) = said(driver, one["agent_id"])
        resumed = driver.resume(one["agent_id"], "oak")
        assert (resumed.exit_code, resumed.decision) == (0, "resume"), resumed
        assert [sent(driver, "oak").count(f"{word}-answered") for word in ("amber", "granite")] == [
            int(prompt == word) for word in ("amber", "granite")
        ]


@only("claude")
def test_a_session_that_is_continued_inside_of_the_program_gets_its_turns(driver: Driver) -> None:
    first = driver.run("slate")
    with at_terminal(driver, [HOLDFAST, "claude"]) as person:
        person.asks("amber")
        person.types(f"/resume {first.native}")
        person.sees("slate")  # keys that come while the program loads the session may be lost
        person.asks("granite")
        person.quits()
        person.sees("1 more session was used in the program")

    assert [prompt for prompt, _ in said(driver, first.session)] == ["slate", "granite"]
    (other,) = (one["agent_id"] for one in sessions(driver) if one["agent_id"] != first.session)
    assert said(driver, other) == [("amber", "amber-answered")]


@EVERY
def test_no_other_process_writes_to_the_session_while_the_program_runs(driver: Driver) -> None:
    with at_terminal(
        driver, [HOLDFAST, "open", "--new", "--provider", driver.provider, "--name", "it"]
    ) as person:
        person.asks("amber")
        await_that(lambda: driver.show("it")["provider_sessions"], lambda: str(driver.show("it")))
        refused = driver.resume("it", "granite", **IMPATIENT)
        assert (refused.exit_code, refused.failure or refused["error"]["code"]) in [
            (4, "busy"),
            (4, "locked"),
        ], refused
        person.quits()
    assert [prompt for prompt, _ in said(driver, "it") if prompt == "amber"] == ["amber"]


def live(driver: Driver) -> dict[str, Any] | None:
    """What ps says of the only session, as soon as the session has a title."""
    (one,) = driver.holdfast("ps").document["running"] or [{"title": ""}]
    return one if one["title"] else None


@EVERY
def test_a_session_in_a_live_program_is_running_and_has_a_title(driver: Driver) -> None:
    with at_terminal(driver, [HOLDFAST, driver.provider]) as person:
        person.asks("amber")
        await_that(lambda: live(driver), lambda: str(driver.holdfast("ps").document))
        (listed,), shown = sessions(driver), live(driver)
        assert shown is not None
        assert (listed["status"], listed["title"]) == ("running", shown["title"])
        assert (shown["provider"], shown["turn"]) == (driver.provider, None)
        assert shown["seconds"] > 0
        person.quits()
    assert [one["status"] for one in sessions(driver)] == ["idle"]
    assert driver.holdfast("ps").document["running"] == []
    with at_terminal(driver, [HOLDFAST, "open", listed["agent_id"]]) as person:
        person.asks("oak")
        assert [one["status"] for one in sessions(driver)] == ["running"]
        person.quits()
    assert [one["status"] for one in sessions(driver)] == ["idle"]


@EVERY
def test_a_program_in_which_nothing_is_said_leaves_no_session(driver: Driver) -> None:
    with at_terminal(driver, [HOLDFAST, driver.provider]) as person:
        person.quits()
        person.sees("nothing was said: no session was kept")
    assert sessions(driver) == []


@only("claude", "codex")
def test_a_killed_holdfast_leaves_the_session_to_the_next_command(driver: Driver) -> None:
    with at_terminal(
        driver, [HOLDFAST, "open", "--new", "--provider", driver.provider, "--name", "it"]
    ) as person:
        person.asks("amber")
        await_that(lambda: driver.show("it")["provider_sessions"], lambda: str(driver.show("it")))
        await_that(lambda: is_saved(driver), lambda: "the agent has not saved its answer")
        assert [one["status"] for one in sessions(driver)] == ["running"]
        os.kill(person.process.pid, signal.SIGKILL)
        person.process.wait()
    assert [one["status"] for one in sessions(driver)] == ["idle"]
    driver.end_survivors()
    await_that(lambda: is_free(driver, "it"), lambda: "the agent still has the session")

    driver.lab.server.otherwise(Say("granite-answered"))
    resumed = driver.resume("it", "granite")

    assert (resumed.exit_code, resumed.decision) == (0, "resume"), resumed
    assert said(driver, "it")[0] == ("amber", "amber-answered")
    assert sent(driver, "granite").count("amber-answered") == 1


@only("claude")
def test_the_program_gets_its_own_arguments_and_none_that_continue_another_session(driver: Driver) -> None:
    with at_terminal(driver, [HOLDFAST, "claude", "--model", "haiku", "--permission-mode=plan"]) as person:
        person.asks("amber")
        person.quits()
    arguments = driver.launches[-1]
    assert arguments[0] == "--session-id"
    assert arguments[2:] == ["--model", "haiku", "--permission-mode=plan"]

    for refused in ("--resume", "-c", "--session-id=1", "--no-session-persistence"):
        ended = driver.holdfast("claude", refused)
        assert (ended.exit_code, "holdfast open ID" in ended["error"]["message"]) == (2, True), ended
    assert len(sessions(driver)) == 1
