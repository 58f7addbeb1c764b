"""Turns."""

from pathlib import Path

import pytest

from tests.agents.driver import Driver, await_that, finish, only
from tests.agents.lab.model_servers.protocol import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from tests.agents.lab.model_servers.replies import Hang, Say

FRESH = "[holdfast] fresh session"


def test_the_first_turn_is_sent_as_it_was_asked_and_its_session_is_kept(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))

    first = driver.run("colour?")

    assert (first.exit_code, first["status"], first["text"]) == (0, "done", "violet")
    assert (first.decision, first.reason) == ("fresh", "no_pointer")
    assert driver.request.texts == ["colour?"]
    assert driver.request.session == first.native
    assert driver.session_file(first.native).is_file()
    assert driver.show(first.session)["provider_session_id"] == first.native


@only("claude")
def test_the_id_of_a_session_is_on_record_before_its_agent_runs(driver: Driver, tmp_path: Path) -> None:
    reached, go = tmp_path / "reached", tmp_path / "go"
    driver.put_first(
        f'case "$*" in *--session-id*) touch {reached}; while [ ! -e {go} ]; do sleep 0.05; done;; esac'
    )
    with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
        await_that(reached.exists, lambda: "the agent was not launched")
        on_record = driver.show("first")["last"]["provider_session_id"]
        go.touch()
        first = finish(process)

    assert on_record == first.native
    assert f"--session-id {on_record}" in " ".join(driver.launches[0])


@only("codex")
def test_the_id_that_the_agent_chose_is_on_record_while_it_still_works(driver: Driver) -> None:
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", driver.provider, "--name", "first", "colour?") as process:
        hang.await_reached()
        native = driver.request.session
        await_that(
            lambda: driver.show("first")["last"]["provider_session_id"] == native,
            lambda: f"{native} is not on record",
        )
        hang.release()
        assert finish(process).native == native


def test_a_resumed_turn_is_sent_with_the_agents_own_history_and_none_of_ours(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")

    second = driver.resume(first.session, "again?")

    assert (second.exit_code, second.decision, second.native) == (0, "resume", first.native)
    assert driver.request.session == first.native
    assert driver.request.texts[:2] == ["colour?", "violet"]
    (request,) = driver.request.texts[2:]
    assert request.endswith("\nagain?")
    assert FRESH not in request
    assert "violet" not in request
    assert "colour?" not in request


@pytest.mark.parametrize("tasks", [2, 10])
def test_tasks_in_a_row_have_sessions_of_their_own(driver: Driver, tasks: int) -> None:
    ended = [driver.run(f"task {number}") for number in range(tasks)]

    assert {task.exit_code for task in ended} == {0}
    assert len({task.session for task in ended}) == len({task.native for task in ended}) == tasks
    assert [request.texts for request in driver.lab.server.requests] == [
        [f"task {number}"] for number in range(tasks)
    ]
    with driver.library() as hf:
        assert hf.store.orphans() == ()
        for task in ended:
            assert hf.store.holder(task.session) is None
            (attempt,) = hf.store.attempts(hf.session(task.session).conversation_id, 1)
            assert (attempt.provider_session_id, str(attempt.status)) == (task.native, "done")
            (pointer,) = hf.store.pointers(task.session)
            assert pointer.provider_session_id == task.native


def test_what_is_counted_over_resumes_and_forks_is_what_the_model_counted(driver: Driver) -> None:
    first = driver.run("one")
    driver.resume(first.session, "two")
    fork = driver.fork(first.session, "three")
    driver.resume(fork.session, "four")

    total = driver.holdfast("usage")["total"]

    steps = len(driver.lab.server.requests)
    assert steps == 4
    besides = CACHED_TOKENS * steps if driver.traits.counts_cache_apart else 0
    assert total["input_tokens"] == sum(INPUT_TOKENS + step for step in range(1, steps + 1)) + besides
    assert total["cached_input_tokens"] == CACHED_TOKENS * steps
    assert total["output_tokens"] == OUTPUT_TOKENS * steps


def test_the_rights_of_the_first_launch_hold_on_resume_and_more_are_refused(driver: Driver) -> None:
    first = driver.run("one", *driver.traits.rights)
    second = driver.resume(first.session, "two")
    wider = driver.resume(first.session, "three", "--add-dir", str(driver.lab.home))

    value = driver.traits.rights[-1]
    assert [any(value in argument for argument in launch) for launch in driver.launches] == [True, True]
    assert second.decision == "resume"
    assert (wider.exit_code, wider.decision, wider.reason) == (4, "refuse", "rights_wider")


@only("codex", "opencode", "gemini")
def test_an_agent_that_cannot_wait_for_approvals_says_so(driver: Driver) -> None:
    refused = driver.run("apply it", "--approve-tools", "shell")

    assert refused.exit_code == 2
    assert "not supported by this provider" in refused["error"]["message"]
    assert driver.lab.server.requests == []


def test_an_agents_own_option_that_would_choose_another_session_is_refused(driver: Driver) -> None:
    owned = min(driver.traits.continuing)

    refused = driver.run("one", "--", owned, "x")

    assert refused.exit_code == 2
    assert "use holdfast" in refused["error"]["message"]
    assert driver.lab.server.requests == []


def test_a_session_of_a_project_that_was_moved_is_resumed(driver: Driver, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    first = driver.run("colour?", "--cwd", str(old))
    old.rename(new)
    assert driver.holdfast("relocate", first.session, str(new)).exit_code == 0

    for prompt in ("stone?", "again?"):
        later = driver.resume(first.session, prompt)
        assert (later.exit_code, later.decision, later.native) == (0, "resume", first.native)
    assert driver.request.texts.count("colour?") == 1
