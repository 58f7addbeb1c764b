"""The first refusal teaches: what an agent was not allowed to do, and the command that really allows it."""

import shlex
from pathlib import Path

from tests.agents.driver import Driver, Ended, only
from tests.agents.lab.model_servers.replies import CallTool, Say


def writes(driver: Driver, path: Path) -> CallTool:
    text = {"content": "x"}
    match driver.provider:
        case "claude":
            return CallTool("Write", {"file_path": str(path), **text})
        case "gemini":
            return CallTool("write_file", {"file_path": str(path), **text})
        case "opencode":
            return CallTool("write", {"filePath": str(path), **text})
        case _:
            return driver.lab.agent.shell(f"touch {path}")


def allowed(driver: Driver, denied: Ended, call: CallTool) -> Ended:
    """Runs the command that is said to allow it; the agent tries the same again."""
    driver.lab.server.script(call, Say("done"))
    _, *words = shlex.split(denied["allow_with"])
    return driver.holdfast(*words)


@only("claude", "codex", "gemini")
def test_the_command_that_a_denial_names_allows_the_call(driver: Driver) -> None:
    target = driver.lab.workdir / "made.txt"
    call = writes(driver, target)
    driver.lab.server.script(call, Say("I may not"))

    denied = driver.run("write it", "--fail-on-denied")

    assert (denied.exit_code, denied["status"], target.exists()) == (6, "done", False)
    (refused,) = denied["denied"]
    assert str(target) in refused["what"]
    again = allowed(driver, denied, call)
    assert (again.exit_code, again["denied"], target.exists()) == (0, [], True), again
    assert again.native == denied.native


@only("opencode")
def test_a_turn_that_opencode_ends_with_a_denial_names_the_command(driver: Driver) -> None:
    outside = driver.lab.home.parent / "outside" / "made.txt"
    outside.parent.mkdir()
    call = writes(driver, outside)
    driver.lab.server.script(call)

    denied = driver.run("write it")

    assert (denied.exit_code, denied.failure, outside.exists()) == (1, "config", False), denied
    assert [one["tool"] for one in denied["denied"]] == ["write"]
    again = allowed(driver, denied, call)
    assert (again.exit_code, outside.exists()) == (0, True), again


@only("claude")
def test_commands_and_other_directories_are_allowed_one_by_one(driver: Driver) -> None:
    outside = driver.lab.home.parent / "outside" / "made.txt"
    outside.parent.mkdir()
    call = writes(driver, outside)
    driver.lab.server.script(call, Say("I may not"))
    denied = driver.run("write it")

    assert f"--permission-mode acceptEdits --add-dir {outside.parent} " in denied["allow_with"]
    again = allowed(driver, denied, call)
    assert (again["denied"], outside.exists()) == ([], True), again

    shell = driver.lab.agent.shell("python3 -c pass")
    driver.lab.server.script(shell, Say("I may not"))
    denied = driver.resume(again.session, "run it")

    assert "--allow-tool 'Bash(python3 *)'" in denied["allow_with"]
    assert allowed(driver, denied, shell)["denied"] == []


@only("claude")
def test_a_call_that_a_person_denied_is_not_offered_again(driver: Driver) -> None:
    shell = driver.lab.agent.shell("touch made.txt")
    driver.lab.server.script(shell)
    asked = driver.run("do it", "--allow-tool", "Bash", "--approve-tools", "Bash(touch*)")
    driver.holdfast("deny", asked["approval"]["id"], "--note", "not today")
    driver.lab.server.script(Say("then not"))

    told = driver.resume(asked.session)

    assert (told.exit_code, told["denied"], told["allow_with"]) == (0, [], None), told
