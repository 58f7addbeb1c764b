"""opencode and Gemini."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.agents.driver import Driver, Ended, await_that, finish, only
from tests.agents.lab.model_servers.protocol import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from tests.agents.lab.model_servers.replies import Fail, Hang, Say

pytestmark = only("opencode", "gemini")

FRESH = "[holdfast] fresh session"
DATABASE = ".local/share/opencode/opencode.db"
#: the options of their command lines that continue a session, and how each loses one behind our back
CONTINUING = {"opencode": ("--session=",), "gemini": ("--resume=", "--session-file=")}
LOSING = {"opencode": f'rm -f "$HOME"/{DATABASE}*', "gemini": 'rm -f "$HOME"/.gemini/tmp/*/chats/*'}
IMPATIENT = {"HOLDFAST_QUEUE__LOCK_TRIES": "2", "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0.2"}


def _answered(driver: Driver) -> Ended:
    driver.lab.server.script(Say("violet"))
    return driver.run("colour?")


def _kept(driver: Driver, native: str) -> object:
    """All that the agent itself keeps of a session."""
    if driver.provider == "gemini":
        return {file: file.read_bytes() for file in _files(driver, native)}
    with closing(sqlite3.connect(driver.lab.home / DATABASE)) as database:
        queries = (
            "SELECT * FROM session WHERE id = ?",
            "SELECT * FROM message WHERE session_id = ? ORDER BY id",
            "SELECT * FROM part WHERE session_id = ? ORDER BY id",
        )
        return [row for query in queries for row in database.execute(query, (native,))]


def _files(driver: Driver, native: str) -> list[Path]:
    return sorted(driver.lab.home.glob(f".gemini/tmp/*/chats/session-*-{native[:8]}.jsonl"))


def _on_record(driver: Driver) -> str:
    return str(driver.show("first")["last"]["provider_session_id"] or "")


def _continues(driver: Driver) -> list[bool]:
    """Of each launch."""
    return [
        any(word.startswith(CONTINUING[driver.provider]) for word in launch) for launch in driver.launches
    ]


def _counted(driver: Driver, step: int) -> dict[str, float]:
    """What a turn of one step costs; Gemini also counts that it asks which model to use."""
    calls = 2 if driver.provider == "gemini" else 1
    return {
        "input_tokens": INPUT_TOKENS * calls + step,
        "cached_input_tokens": CACHED_TOKENS * calls,
        "output_tokens": OUTPUT_TOKENS * calls,
        "cost_usd": 0.0,
    }


def _knows(driver: Driver, *said: str) -> list[int]:
    """How often each of these is in what the model was asked last."""
    sent = "\n".join(driver.request.texts)
    return [sent.count(words) for words in said]


def test_a_session_is_begun_resumed_and_forked(driver: Driver) -> None:
    first = _answered(driver)

    assert (first.exit_code, first["text"], first.decision) == (0, "violet", "fresh")
    assert driver.request.texts == ["colour?"]
    assert _kept(driver, first.native)
    was_chosen = any(word == f"--session-id={first.native}" for word in driver.launches[0])
    assert was_chosen == (driver.provider == "gemini")

    second = driver.resume(first.session, "again please?")

    assert (second.exit_code, second.decision, second.native) == (0, "resume", first.native)
    assert driver.request.texts[:2] == ["colour?", "violet"]
    (request,) = driver.request.texts[2:]
    assert request.endswith("\nagain please?")
    assert FRESH not in request
    assert "violet" not in request

    before = _kept(driver, first.native)
    fork = driver.fork(first.session, "elsewhere?")

    assert (fork.exit_code, fork.decision) == (0, "fork")
    assert fork.native != first.native
    assert driver.request.texts[:4] == ["colour?", "violet", request, "ok"]
    assert driver.request.texts[4].endswith("\nelsewhere?")
    assert _kept(driver, first.native) == before
    assert _kept(driver, fork.native)
    assert [ended["usage"] for ended in (first, second, fork)] == [
        _counted(driver, step) for step in (1, 2, 3)
    ]


def test_another_directory_and_another_history_start_fresh_with_the_context(driver: Driver) -> None:
    first = _answered(driver)

    moved = driver.resume(first.session, "again?", "--cwd", str(driver.lab.home))

    assert (moved.exit_code, moved.decision, moved.reason) == (0, "fresh", "workdir_changed")
    assert moved.native != first.native
    assert driver.request.texts[0].startswith(f"{FRESH}: workdir_changed")
    assert _knows(driver, "colour?", "violet") == [1, 1]

    assert driver.holdfast("edit", first.session, "1", "--prompt", "which colour?").exit_code == 0
    edited = driver.resume(first.session, "and now?")

    assert (edited.exit_code, edited.decision, edited.reason) == (0, "fresh", "history_changed")
    assert len(driver.request.texts) == 1
    assert _knows(driver, "which colour?", "violet", "again?") == [1, 1, 1]
    assert _continues(driver) == [False, False, False]


def test_a_resume_that_the_agent_refuses_starts_fresh_once_with_the_context(driver: Driver) -> None:
    first = _answered(driver)
    losing, continuing = LOSING[driver.provider], CONTINUING[driver.provider][0]
    driver.put_first(f'case "$*" in *{continuing}*) {losing};; esac')

    second = driver.resume(first.session, "again?")

    assert (second.exit_code, second["status"]) == (0, "done")
    assert second.native != first.native
    assert _continues(driver) == [False, True, False]
    assert len(driver.request.texts) == 1
    assert _knows(driver, "colour?", "violet", "again?") == [1, 1, 1]


def test_neither_a_killed_holdfast_nor_a_killed_agent_loses_anything(driver: Driver) -> None:
    first = _answered(driver)
    of_holdfast, of_agent = Hang(), Hang()
    driver.lab.server.script(of_holdfast, of_agent)
    with driver.started("resume", first.session, "stone?") as process:
        of_holdfast.await_reached()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert driver.alive()

    with driver.started("resume", first.session) as process:
        of_agent.await_reached()
        driver.kill_agent()
        killed = finish(process)

    assert (killed.exit_code, killed["status"], killed.failure) == (1, "interrupted", "interrupted")
    driver.await_nothing_alive()
    driver.lab.server.script(Say("slate"))
    last = driver.resume(first.session)

    assert (last.exit_code, last["text"]) == (0, "slate")
    assert {killed.native, last.native} == {first.native}
    assert _knows(driver, "colour?", "violet") == [1, 1]
    assert "stone?" in "\n".join(driver.request.texts)


def test_a_first_turn_that_is_killed_has_its_session_on_record_and_goes_on_in_it(driver: Driver) -> None:
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
        hang.await_reached()
        await_that(lambda: _on_record(driver), lambda: "no session is on record")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    killed = _on_record(driver)
    assert _kept(driver, killed)
    driver.lab.server.script(Say("violet"))

    second = driver.resume("first")

    assert (second.exit_code, second["text"]) == (0, "violet")
    assert (second.decision, second.native) == ("resume", killed)
    assert driver.request.texts[0] == "colour?"
    assert _knows(driver, "colour?") == [1]


def test_a_session_goes_on_after_the_model_refused_it(driver: Driver) -> None:
    first = _answered(driver)
    # the first is tried afresh too, once
    driver.lab.server.script(Fail(400), Fail(400), Fail(401))
    refused = [driver.resume(first.session, f"stone {number}?") for number in range(2)]

    last = driver.resume(first.session, "again?")

    assert [(ended.exit_code, ended.failure) for ended in refused] == [(1, "not_accepted"), (1, "auth")]
    assert (last.exit_code, last.decision, last.native) == (0, "resume", first.native)
    assert driver.request.texts[:2] == ["colour?", "violet"]


def test_a_second_holdfast_on_a_session_is_refused_while_the_first_one_works(driver: Driver) -> None:
    first = _answered(driver)
    hang = Hang("slate")
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        refused = driver.resume(first.session, "tree?", **IMPATIENT)
        hang.release()
        second = finish(process)

    assert (refused.exit_code, refused["error"]["code"]) == (4, "busy")
    assert (second.exit_code, second["text"], second.native) == (0, "slate", first.native)
    assert len(driver.lab.server.requests) == 2


@pytest.mark.parametrize("leaves_a_link", [False, True], ids=["nothing is left", "a link is left"])
def test_a_session_of_a_project_that_was_moved_continues_or_starts_fresh_with_the_context(
    driver: Driver, tmp_path: Path, leaves_a_link: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?", "--cwd", str(old))
    old.rename(new)
    if leaves_a_link:
        old.symlink_to(new)
    assert driver.holdfast("relocate", first.session, str(new)).exit_code == 0

    second = driver.resume(first.session, "stone?", "--timeout", "60")

    # Gemini's session is restored in the folder of the new directory; opencode ties it to the old one
    expected = {"opencode": ("fresh", "transcript_missing"), "gemini": ("resume", "resumable")}
    assert (second.exit_code, second.decision, second.reason) == (0, *expected[driver.provider])
    assert _knows(driver, "colour?", "violet") == [1, 1]
    third = driver.resume(first.session, "again?", "--timeout", "60")
    assert (third.exit_code, third.decision, third.native) == (0, "resume", second.native)


def test_a_session_that_began_in_a_link_is_resumed_by_any_name_of_its_directory(
    driver: Driver, tmp_path: Path
) -> None:
    directory, link = tmp_path / "project", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    first = driver.run("colour?", "--cwd", str(link))
    for name in (link, directory):
        later = driver.resume(first.session, "again?", "--cwd", str(name), "--timeout", "60")
        assert (later.exit_code, later.decision, later.native) == (0, "resume", first.native)
