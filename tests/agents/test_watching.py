"""Sessions that Claude Code's hooks watch are Holdfast's, from the first request on and without a command."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.sessions import SessionFilter
from tests.agents.driver import Driver, await_that, only
from tests.agents.lab.model_servers.replies import Hang, Say
from tests.agents.test_vault import at_its_provider, kept

pytestmark = only("claude")


@pytest.fixture
def watched(driver: Driver) -> Driver:
    """Claude Code with Holdfast's hooks in its settings; used by hand."""
    assert driver.holdfast("hooks", "install", "--user").exit_code == 0
    # the hooks' own processes find the program as those of a person do
    driver.lab.environment["HOLDFAST_CLAUDE_BINARY"] = driver.environment["HOLDFAST_CLAUDE_BINARY"]
    return driver


def by_hand(driver: Driver, prompt: str, answer: str, resume: str | None = None) -> str:
    driver.lab.server.script(Say(answer))
    return driver.lab.session_of(driver.lab.turn(prompt, resume=resume))


def is_kept(driver: Driver, native: str) -> bool:
    """Whether the vault has the session as it is, without a command that may see to it."""
    with driver.library() as holdfast:
        if holdfast.store.bundle("claude", ProviderSessionId(native)) is None:
            return False
    return kept(driver, native) == at_its_provider(driver, native)


def sessions(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.holdfast("list")["sessions"]
    return found


def prompts(driver: Driver, session: str) -> list[str]:
    return [turn["prompt"] for turn in driver.show(session)["turns"]]


def marks(driver: Driver) -> list[Path]:
    return list(driver.lab.home.glob(".local/state/holdfast/spool/*/*.watched"))


def test_a_session_and_each_turn_of_it_get_into_history_and_vault_without_a_command(watched: Driver) -> None:
    native = by_hand(watched, "colour?", "violet")
    await_that(lambda: is_kept(watched, native), lambda: "it is not in the vault")
    assert by_hand(watched, "stone?", "amber", resume=native) == native
    await_that(lambda: is_kept(watched, native), lambda: "its second turn is not in the vault")

    with watched.library() as holdfast:
        (session,) = holdfast.store.list_sessions(SessionFilter(), 10).sessions
        assert session.imported_at is not None
        assert [turn.prompt for turn in holdfast.history(session.id)] == ["colour?", "stone?"]


def test_a_list_of_a_script_has_it_and_it_continues_natively(watched: Driver) -> None:
    native = by_hand(watched, "colour?", "violet")
    (session,) = sessions(watched)
    assert (session["provider_session_id"], session["purpose"]) == (native, "colour?")
    by_hand(watched, "stone?", "amber", resume=native)

    def both() -> bool:  # the hook's own process may be at it
        (again,) = sessions(watched)
        return prompts(watched, again["session_id"]) == ["colour?", "stone?"]

    await_that(both, lambda: "its second turn is not there")
    watched.lab.server.script(Say("oak"))

    resumed = watched.resume(session["session_id"], "wood?")

    assert (resumed.decision, resumed.native) == ("resume", native)
    assert prompts(watched, session["session_id"]) == ["colour?", "stone?", "wood?"]
    sent = "\n".join(watched.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?", "amber", "wood?")] == [1] * 5
    assert is_kept(watched, native)


def test_a_turn_made_since_the_last_hook_was_taken_in_is_there_when_it_is_resumed(watched: Driver) -> None:
    native = by_hand(watched, "colour?", "violet")
    (session,) = sessions(watched)
    by_hand(watched, "stone?", "amber", resume=native)
    watched.lab.server.script(Say("oak"))

    watched.resume(session["session_id"], "wood?")

    assert prompts(watched, session["session_id"]) == ["colour?", "stone?", "wood?"]


def test_it_is_restored_when_its_files_are_gone(watched: Driver) -> None:
    native = by_hand(watched, "colour?", "violet")
    await_that(lambda: is_kept(watched, native), lambda: "it is not in the vault")
    watched.session_file(native).unlink()
    watched.lab.server.script(Say("amber"))

    resumed = watched.resume(native, "stone?")

    assert (resumed.decision, resumed.native) == ("resume", native)
    assert "violet" in "\n".join(watched.request.texts)


def test_a_session_is_in_the_list_while_its_first_request_is_answered(watched: Driver) -> None:
    hang = Hang()
    watched.lab.server.script(hang)
    with watched.lab.started(watched.lab.agent.command("colour?")) as process:
        hang.await_reached()
        # Claude Code writes its file a moment later
        await_that(lambda: sessions(watched), lambda: "it is not in the list")
        (session,) = sessions(watched)
        assert session["purpose"] == "colour?"
        hang.release()
        process.communicate()


def test_a_session_that_holdfast_runs_stays_one_session(watched: Driver) -> None:
    hang = Hang()
    watched.lab.server.script(hang)
    with watched.started("run", "--provider", "claude", "colour?") as running:
        hang.await_reached()
        assert len(sessions(watched)) == 1
        hang.release()
        out, _ = running.communicate()
    told = json.loads(out)
    (session,) = sessions(watched)
    assert (session["session_id"], prompts(watched, session["session_id"])) == (
        told["session_id"],
        ["colour?"],
    )
    assert marks(watched) == []
