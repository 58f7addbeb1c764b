"""Approvals of tool calls."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.approvals import ApprovalStatus
from holdfast.errors import Refused
from tests.agents.driver import Driver, Ended, only
from tests.agents.lab.model_servers.replies import CallTool, Reply, Say, Together
from tests.agents.lab.model_servers.server import ModelRequest

GATED = ("--allow-tool", "Bash", "--approve-tools", "Bash(echo applied*)")
COMMAND = "echo applied >> applied.txt"


def bash(command: str) -> CallTool:
    return CallTool("Bash", {"command": command, "description": "Run it"})


def applied(driver: Driver) -> int:
    """How often the command ran."""
    file = driver.lab.workdir / "applied.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def results(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.role == "result"]


def deferred(driver: Driver, *replies: Reply, prompt: str = "apply it") -> Ended:
    """A run that ends because the model called what a person must approve."""
    driver.lab.server.script(*(replies or (bash(COMMAND),)))
    ended = driver.run(prompt, *GATED)
    assert (ended.exit_code, ended["status"]) == (5, "waiting"), ended
    assert applied(driver) == 0
    return ended


def approve(driver: Driver, waiting: Ended) -> None:
    with driver.library() as hf:
        hf.approve(waiting["approval"]["id"])


@only("claude")
def test_a_call_waits_for_approval_and_no_process_waits_with_it(driver: Driver) -> None:
    waiting = deferred(driver)

    assert waiting["approval"]["tool"] == "Bash"
    assert waiting["approval"]["arguments"]["command"] == COMMAND
    assert waiting["continue_with"] == f"holdfast approve {waiting['approval']['id']}"
    assert driver.alive() == []
    assert len(driver.lab.server.requests) == 1
    assert driver.resume(waiting.session).exit_code == 5
    assert driver.resume(waiting.session, "something else").exit_code == 5
    assert len(driver.lab.server.requests) == 1


@only("claude")
def test_an_approved_call_is_made_once_and_the_turn_goes_on(driver: Driver) -> None:
    waiting = deferred(driver)
    driver.lab.server.script(Say("finished"), Say("later"))
    approve(driver, waiting)

    done = driver.resume(waiting.session)

    assert (done.exit_code, done["text"], done.decision) == (0, "finished", "resume")
    assert (done.native, done["turn"]) == (waiting.native, waiting["turn"])
    assert applied(driver) == 1
    calls = [message.text for message in driver.request.messages if message.role == "call"]
    assert [json.loads(call.removeprefix("Bash "))["command"] for call in calls] == [COMMAND]
    assert driver.request.texts.count("apply it") == 1
    next_turn = driver.resume(waiting.session, "and now?")
    assert (next_turn.exit_code, next_turn.decision, applied(driver)) == (0, "resume", 1)


@only("claude")
def test_a_denied_call_is_not_made_and_the_agent_is_told_why(driver: Driver) -> None:
    waiting = deferred(driver)
    driver.lab.server.script(Say("I understand"))
    with driver.library() as hf:
        hf.deny(waiting["approval"]["id"], "not before the freeze is over")

    done = driver.resume(waiting.session)

    assert (done.exit_code, done["text"], applied(driver)) == (0, "I understand", 0)
    (result,) = results(driver.request)
    assert "not before the freeze is over" in result


@only("claude")
def test_a_call_with_words_before_it_waits_too(driver: Driver) -> None:
    waiting = deferred(driver, Together((Say("I will apply it now"), bash(COMMAND))))
    driver.lab.server.script(Say("finished"))
    approve(driver, waiting)

    assert driver.resume(waiting.session)["text"] == "finished"
    assert applied(driver) == 1


@only("claude")
def test_of_several_calls_at_once_none_waits_and_the_agent_is_told_to_call_it_alone(driver: Driver) -> None:
    driver.lab.server.script(Together((bash("echo free > free.txt"), bash(COMMAND))), bash(COMMAND))

    waiting = driver.run("apply it", *GATED)

    assert (waiting.exit_code, applied(driver)) == (5, 0)
    assert (driver.lab.workdir / "free.txt").exists()
    (refusal,) = (result for result in results(driver.request) if "approval" in result)
    assert "call it alone" in refusal
    approve(driver, waiting)
    assert driver.resume(waiting.session).exit_code == 0
    assert applied(driver) == 1


@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "asynchronous"])
@only("claude")
def test_a_subagent_cannot_make_such_a_call(driver: Driver, background: bool) -> None:
    task = {"description": "d", "prompt": "sub task", "subagent_type": "general-purpose"}

    def answer(request: ModelRequest) -> Reply:
        has_called = any(message.role == "call" for message in request.messages)
        if request.texts[0] == "sub task":
            return Say("I could not") if has_called else bash(COMMAND)
        return Say("done") if has_called else CallTool("Agent", task | {"run_in_background": background})

    driver.lab.server.otherwise(answer)
    ended = driver.run("delegate it", *GATED)

    assert (ended.exit_code, applied(driver)) == (0, 0)
    told = [result for request in driver.lab.server.requests for result in results(request)]
    assert any("a subagent cannot wait" in result for result in told)


@only("claude")
def test_an_approval_that_has_expired_cannot_be_given_and_the_call_is_not_made(driver: Driver) -> None:
    driver.lab.server.script(bash(COMMAND))
    waiting = driver.run("apply it", *GATED, HOLDFAST_APPROVALS__EXPIRES_SECONDS="0.001")
    assert waiting.exit_code == 5

    with pytest.raises(Refused):
        approve(driver, waiting)
    assert driver.resume(waiting.session).exit_code == 4
    assert driver.holdfast("cancel", waiting.session).exit_code == 0
    later = driver.resume(waiting.session, "leave it")
    assert (later.exit_code, later["text"], applied(driver)) == (0, "ok", 0)


def edit_history(driver: Driver, waiting: Ended) -> None:
    with driver.library() as hf:
        hf.edit(waiting.session, 1, response="something else")


def alter_session(driver: Driver, waiting: Ended) -> None:
    file = driver.session_file(waiting.native)
    file.write_text(file.read_text().replace("apply it", "destroy it"))


def move_directory(driver: Driver, waiting: Ended) -> None:
    moved = driver.lab.home.parent / "moved"
    Path(waiting["work_dir"]).rename(moved)
    with driver.library() as hf:
        hf.relocate(waiting.session, str(moved))


@pytest.mark.parametrize(
    "change",
    [edit_history, alter_session, move_directory],
    ids=["the history", "the session's file", "the directory"],
)
@only("claude")
def test_what_changes_in_between_makes_the_approval_void_and_the_call_is_not_made(
    driver: Driver, change: Callable[[Driver, Ended], None]
) -> None:
    project = driver.lab.home.parent / "project"
    project.mkdir()
    first = driver.run("hello", *GATED, "--cwd", str(project))
    driver.lab.server.script(bash(COMMAND))
    waiting = driver.resume(first.session, "apply it")
    approve(driver, waiting)
    change(driver, waiting)
    asked = len(driver.lab.server.requests)

    refused = driver.resume(waiting.session)

    assert (refused.exit_code, len(driver.lab.server.requests)) == (4, asked)
    assert f"approval {waiting['approval']['id']} is void" in refused.stdout
    assert not list(driver.lab.home.parent.glob("*/applied.txt"))
    with driver.library() as hf:
        assert hf.approval(waiting["approval"]["id"]).status is ApprovalStatus.VOIDED


@only("claude")
def test_hooks_that_the_project_switches_off_still_run(driver: Driver) -> None:
    settings = driver.lab.workdir / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"disableAllHooks": true}')

    deferred(driver)


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions", "dontAsk"])
@only("claude")
def test_no_permission_mode_lets_such_a_call_through(driver: Driver, mode: str) -> None:
    driver.lab.server.script(bash(COMMAND))

    waiting = driver.run("apply it", *GATED, "--permission-mode", mode, IS_SANDBOX="1")

    assert (waiting.exit_code, applied(driver)) == (5, 0)


@only("claude")
def test_an_agent_that_runs_no_hooks_is_ended_before_it_calls_a_tool(driver: Driver) -> None:
    driver.put_first("export CLAUDE_CODE_SIMPLE=1")
    driver.lab.server.script(bash(COMMAND))

    ended = driver.run("apply it", *GATED)

    assert (ended.exit_code, ended.failure, applied(driver)) == (1, "config", 0)


@only("claude")
def test_variables_and_options_that_switch_hooks_off_do_not_reach_it(driver: Driver) -> None:
    driver.lab.server.script(bash(COMMAND))
    assert driver.run("apply it", *GATED, CLAUDE_CODE_SIMPLE="1").exit_code == 5

    for option in ("--bare", "--safe-mode", "--settings={}"):
        refused = driver.run("apply it", *GATED, "--", option)
        assert refused.exit_code == 2, option


@only("claude")
def test_a_call_whose_approval_is_void_is_not_made_even_when_its_kind_needs_none_any_more(
    driver: Driver,
) -> None:
    waiting = deferred(driver)
    assert driver.holdfast("cancel", waiting.session).exit_code == 0
    rights = ("--allow-tool", "Bash", "--allow-wider-rights")

    later = driver.resume(waiting.session, "leave it", *rights)

    assert (later.exit_code, applied(driver)) == (0, 0)


@only("claude")
def test_an_agent_that_was_killed_while_it_made_the_call_does_not_make_it_again(
    driver: Driver, tmp_path: Path
) -> None:
    slow = f"echo applied >> applied.txt; touch {tmp_path}/began; python3 -c 'import time; time.sleep(60)'"
    waiting = deferred(driver, bash(slow))
    approve(driver, waiting)
    driver.put_first(f"(while [ ! -e {tmp_path}/began ]; do sleep 0.05; done; kill -9 $$) &")

    killed = driver.resume(waiting.session)
    driver.put_first()
    again = driver.resume(waiting.session)

    assert killed.exit_code == 1
    assert again.exit_code == 0
    assert applied(driver) == 1
