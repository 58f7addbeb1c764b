"""Text while it is written."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.domain.events import EventKind
from tests.acceptance.screen import terminal
from tests.agents.driver import HOLDFAST, Driver, await_that, finish, only
from tests.agents.lab.model_servers.replies import Hang, Say, SlowText

PIECES = ("The ", "answer ", "is ", "violet")


@contextmanager
def half_written(driver: Driver, hang: Hang) -> Iterator[str]:
    """A turn whose model has written only the beginning, and the id of its session."""
    with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
        hang.await_reached()
        yield driver.show("first")["session_id"]
        hang.release()
        ended = finish(process)
        assert (ended.exit_code, ended["status"], ended["text"]) == (0, "done", "The answer is")


@only("claude")
def test_another_process_sees_the_text_that_is_written_until_the_turn_ends(driver: Driver) -> None:
    hang = Hang("The answer is")
    driver.lab.server.script(hang)
    with driver.library() as library:
        with half_written(driver, hang) as session:
            await_that(lambda: library.store.partial_text(session), lambda: "nothing was shown")
            found = library.store.partial_text(session)
            assert found is not None
            assert (found.turn, found.attempt, found.text, found.skipped) == (1, 1, "The answer ", 0)
        assert library.store.partial_text(session) is None


@only("gemini")
def test_gemini_says_its_text_in_pieces_which_are_events(driver: Driver) -> None:
    hang = Hang("The answer is")
    driver.lab.server.script(hang)
    with driver.library() as library, half_written(driver, hang) as session:
        conversation = library.session(session).conversation_id

        def said() -> str:
            events = library.store.events(conversation, 1)
            return "".join(str(event.data["text"]) for _, event in events if event.kind is EventKind.TEXT)

        await_that(lambda: said() == "The answer is", lambda: f"recorded: {said()}")
        assert library.store.partial_text(session) is None


@only("codex", "opencode")
def test_an_agent_that_tells_a_text_when_it_is_whole_shows_nothing_before(driver: Driver) -> None:
    driver.lab.server.script(SlowText(PIECES, pause=0.5))

    ended = driver.run("colour?", "--json-stream")

    seen = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.exit_code == 0
    assert [one["text"] for one in seen if one["type"] == "text"] == ["".join(PIECES)]
    assert [one for one in seen if one["type"] == "partial_text"] == []


@only("claude")
def test_a_person_sees_the_text_as_it_is_written_and_each_line_once(driver: Driver) -> None:
    hang = Hang("First line\nThe answer is")
    driver.lab.server.script(driver.lab.agent.shell("echo looked"), hang, Say("unused"))
    with terminal(
        "run", "--provider", driver.provider, *driver.traits.rights, "colour?",
        program=HOLDFAST, cwd=driver.lab.workdir, env=driver.environment,
    ) as run:  # fmt: skip
        hang.await_reached()
        run.wait_for("First line\nThe answer is\n")
        hang.release()
        assert run.end() == 0
    assert "First line\nThe answer is\nholdfast: turn 1 of " in run.shown
    assert run.shown.count("First line") == 1
    assert "echo looked" in run.shown


@only("claude")
def test_after_a_kill_the_text_is_not_that_of_the_next_attempt(driver: Driver) -> None:
    hang = Hang("The answer is")
    driver.lab.server.script(hang, Say("violet"))
    with driver.library() as library:
        with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
            hang.await_reached()
            session = driver.show("first")["session_id"]
            await_that(lambda: library.store.partial_text(session), lambda: "nothing was shown")
            process.kill()
            process.wait()
        driver.end_survivors()
        hang.release()
        driver.await_nothing_alive()

        resumed = driver.resume("first", "go on")

        assert (resumed.exit_code, resumed["text"]) == (0, "violet")
        assert library.store.partial_text(session) is None
        assert [turn.response for turn in library.store.turns(session)][-1] == "violet"
