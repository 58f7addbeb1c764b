"""Turns that are cut off."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.providers.registry import get_provider
from tests.agents.driver import Driver, Ended, await_that, only
from tests.agents.lab.install import PROGRAMS
from tests.agents.lab.model_servers.replies import Hang, Reply, Say, Silence

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "providers.md"
AGENTS = tuple(PROGRAMS)
RIGHTS = {
    "claude": ("--allow-tool", "Bash"),
    "codex": ("--permission-mode", "danger-full-access"),
    "opencode": ("--permission-mode", "auto"),
    "gemini": ("--permission-mode", "yolo"),
}
QUICK = "echo quick-result"
#: refuses to be a plain sleep, which some agents do not let run
LONG = "touch started; python3 -c 'import time; time.sleep(300)'"
#: does something in the place of the agent, but for questions about its version
INSTEAD = 'case "$*" in *--version*|*--help*) ;; *) {} ;; esac'

NOTHING = "nothing"
UNNAMED = "the request, under an id that nobody was told"
REQUEST = "the request"
CALL = "the request, the call"
RESULT = "the request, the call, its result"
SECOND = "the request, both calls, the first result"
#: point of a kill -> what each agent's own session holds by then, once it has saved what it saves
HELD = {
    "before it has begun": dict.fromkeys(AGENTS, NOTHING),
    "before the first byte": dict.fromkeys(AGENTS, REQUEST) | {"opencode": UNNAMED},
    "in text": dict.fromkeys(AGENTS, REQUEST),
    "in a tool": dict.fromkeys(AGENTS, CALL) | {"gemini": REQUEST},
    "after a result": dict.fromkeys(AGENTS, RESULT),
    "in a second call": dict.fromkeys(AGENTS, SECOND) | {"gemini": RESULT},
}
#: the commands that have begun by then
BEGUN = {"in a tool": (LONG,), "after a result": (QUICK,), "in a second call": (QUICK, LONG)}

Kill = Callable[[Driver, subprocess.Popen[str]], None]

every_point = pytest.mark.parametrize("point", HELD)
every_agent = only(*AGENTS)


def of_agent(driver: Driver, process: subprocess.Popen[str]) -> None:
    driver.kill_agent()


def of_holdfast(driver: Driver, process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)


def cut_off(driver: Driver, point: str, kill: Kill, *command: str) -> None:
    """Start a turn of the session ``work``, and kill it there."""
    (driver.lab.workdir / "started").unlink(missing_ok=True)
    replies = _replies(driver, point)
    driver.lab.server.script(*replies)
    if point == "before it has begun":
        driver.put_first(INSTEAD.format(f"touch '{driver.lab.workdir}/started'; sleep 300"))
    with driver.started(*command) as process:
        for reply in replies:
            if isinstance(reply, Hang):
                reply.await_reached()
        if LONG in BEGUN.get(point, ()) or point == "before it has begun":
            await_that((driver.lab.workdir / "started").exists, lambda: "it has not come so far")
        await_that(lambda: _has_saved(driver, HELD[point][driver.provider]), lambda: f"not saved at {point}")
        kill(driver, process)
        process.communicate(timeout=90)
    if point == "before it has begun":
        driver.put_first()
    for reply in replies:
        if isinstance(reply, Hang):
            reply.release()


def _replies(driver: Driver, point: str) -> list[Reply]:
    shell = driver.lab.agent.shell
    match point:
        case "before the first byte":
            return [Silence()]
        case "in text":
            return [Hang("partial words")]
        case "in a tool":
            return [shell(LONG)]
        case "after a result":
            return [shell(QUICK), Silence()]
        case "in a second call":
            return [shell(QUICK), shell(LONG)]
        case _:
            return []


def _has_saved(driver: Driver, held: str) -> bool:
    if held in (NOTHING, UNNAMED):
        return True
    with driver.library() as hf:
        newest = hf.store.newest_attempt(hf.find("work"))
    native = None if newest is None else newest.provider_session_id
    provider = get_provider(driver.provider)
    archive = provider.archive(provider.home(driver.environment))
    path = None if native is None else archive.find(native, str(driver.lab.workdir))
    turns = [] if path is None or native is None else list(archive.turns(path, native))
    if not turns or turns[-1].complete:
        return False
    calls = {REQUEST: [], CALL: [False], RESULT: [True], SECOND: [True, False]}[held]
    return turns[-1].calls is None or list(turns[-1].calls.values()) == calls


def goes_on(driver: Driver, point: str, request: str, before: str | None) -> Ended:
    """What the next ``resume`` decides and sends is what the agent's own session asks for."""
    held = HELD[point][driver.provider]
    driver.lab.server.script(Say("done"))

    resumed = driver.resume("work")

    assert (resumed.exit_code, resumed["text"]) == (0, "done"), resumed
    messages = driver.request.messages
    said = [message.text for message in messages]
    asked = next(number for number, text in enumerate(said) if request in text)
    own = [message.text for message in messages[asked:] if message.role == "call"]
    ours = said[-1]
    assert "Check what was already done, so that nothing is done twice" in ours
    assert "new request" not in ours
    is_held = held not in (NOTHING, UNNAMED)
    # a first turn whose session holds nothing has no other session to go on in
    assert resumed.decision == ("resume" if is_held or before else "fresh"), resumed["decision"]
    if before is not None:
        assert resumed.native == before
    if is_held:
        assert "\n".join(said).count(request) == 1, said
        assert "not in your session" not in ours
    # every command that had begun is known: by the agent's own session, or by our record
    assert len(own) == {CALL: 1, RESULT: 1, SECOND: 2}.get(held, 0), messages
    for command in BEGUN.get(point, ()):
        assert any(_spells(text, command) for text in (*own, ours)), (command, messages)
    if QUICK in BEGUN.get(point, ()):
        results = [message.text for message in messages[asked:] if message.role == "result"]
        assert any("quick-result" in text for text in results), messages
    return resumed


def _spells(text: str, command: str) -> bool:
    """Quotes are written in several ways."""
    return command.partition("'")[0] in text


@every_point
@every_agent
def test_a_turn_goes_on_from_what_the_agent_holds(driver: Driver, point: str) -> None:
    """The first turn, and a later one."""
    options = ("--provider", driver.provider, "--name", "work", *RIGHTS[driver.provider])
    cut_off(driver, point, of_agent, "run", *options, "paint the shed")
    first = goes_on(driver, point, "paint the shed", None)

    cut_off(driver, point, of_agent, "resume", "work", "mend the roof")
    goes_on(driver, point, "mend the roof", first.native)


@every_agent
def test_a_first_turn_whose_holdfast_is_killed_goes_on_in_its_session(driver: Driver) -> None:
    options = ("--provider", driver.provider, "--name", "work", *RIGHTS[driver.provider])
    cut_off(driver, "in a tool", of_holdfast, "run", *options, "paint the shed")

    resumed = goes_on(driver, "in a tool", "paint the shed", None)

    altered = [found for found in resumed["decision"]["guards"] if found["guard"] == "transcript_altered"]
    assert [found["verdict"] for found in altered] == ["passed"]


@every_agent
def test_one_that_has_answered_and_is_then_killed_has_answered(driver: Driver) -> None:
    driver.put_first(INSTEAD.format(f"'{driver.lab.program}' \"$@\"; kill -9 $$"))
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?", "--name", "work")
    driver.put_first()

    second = driver.resume("work", "stone?")

    assert (first.exit_code, first["status"], first["text"], first.failure) == (0, "done", "violet", None)
    assert (second.exit_code, second.decision, second.native) == (0, "resume", first.native)
    assert "interrupted" not in driver.request.texts[-1]


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@only("claude", "opencode", "gemini")
def test_what_is_answered_after_a_kill_of_holdfast_counts(driver: Driver, is_first: bool) -> None:
    options = ("--provider", driver.provider, "--name", "work")
    command: tuple[str, ...] = ("run", *options, "paint the shed")
    if not is_first:
        driver.run("colour?", "--name", "work")
        command = ("resume", "work", "paint the shed")
    hang = Hang("the shed is mauve")
    driver.lab.server.script(hang)
    with driver.started(*command) as process:
        hang.await_reached()
        await_that(lambda: _has_saved(driver, REQUEST), lambda: "the request was not saved")
        of_holdfast(driver, process)
        process.wait(timeout=90)
        hang.release()
        driver.await_nothing_alive()
    driver.lab.server.script(Say("done"))

    after = driver.resume("work", "what next?")

    assert (after.exit_code, after.decision, after["text"]) == (0, "resume", "done"), after
    said = [message.text for message in driver.request.messages]
    assert "\n".join(said).count("paint the shed") == 1, said
    assert any("the shed is mauve" in text for text in said[:-1]), said
    assert "interrupted" not in said[-1]
    with driver.library() as hf:
        answers = [turn.response for turn in hf.history(hf.find("work"))]
    assert answers[-2:] == ["the shed is mauve", "done"]


@only("claude")
def test_a_fresh_start_whose_holdfast_is_killed_goes_on_in_its_session(driver: Driver) -> None:
    first = driver.run("colour?", "--name", "work", *RIGHTS["claude"])
    cut_off(driver, "in a tool", of_holdfast, "resume", "work", "--fresh", "paint the shed")

    resumed = goes_on(driver, "in a tool", "paint the shed", None)

    assert resumed.native != first.native


def everybody(driver: Driver, process: subprocess.Popen[str]) -> None:
    """At once: nobody has the time to tell of what has just begun."""
    os.kill(process.pid, signal.SIGKILL)
    driver.end_survivors()


def by_hand(driver: Driver, process: subprocess.Popen[str]) -> None:
    """With Ctrl-C: the agent may end its call in order."""
    os.kill(process.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [everybody, by_hand], ids=["all are killed", "Ctrl-C"])
@only("codex", "opencode")
def test_a_fresh_start_is_told_once_of_a_call_that_was_in_flight(driver: Driver, end: Kill) -> None:
    """They save a call before they make it."""
    options = ("--provider", driver.provider, "--name", "work", *RIGHTS[driver.provider])
    driver.lab.server.script(driver.lab.agent.shell(QUICK), driver.lab.agent.shell(LONG))
    with driver.started("run", *options, "paint the shed") as process:
        await_that((driver.lab.workdir / "started").exists, lambda: "it has not come so far")
        end(driver, process)
        process.communicate(timeout=90)
    driver.lab.server.script(Say("done"))

    resumed = driver.resume("work", "go on then", "--fresh")

    assert (resumed.exit_code, resumed.decision) == (0, "fresh"), resumed
    said = "\n".join(driver.request.texts).partition("# Where the work of session")[0]
    calls = [line for line in said.splitlines() if _spells(line, LONG)]
    assert len(calls) == 1, said
    if end is everybody:
        assert calls[0].startswith("- in_flight: "), said
    assert len([line for line in said.splitlines() if QUICK in line]) == 1, said
    logged = [json.loads(line) for line in driver.holdfast("log", "work").stdout.splitlines()]
    called = [entry["data"]["arguments"] for entry in logged if entry["kind"] == "tool_call"]
    assert [_spells(str(arguments), LONG) for arguments in called] == [False, True]


@only("claude")
def test_a_session_that_holds_no_request_is_begun_anew_under_another_id(driver: Driver) -> None:
    """It can neither be resumed nor begun: ``No conversation found``, and ``already in use``."""
    cut_off(
        driver, "in a tool", of_agent,
        "run", "--provider", "claude", "--name", "work", *RIGHTS["claude"], "paint the shed",
    )  # fmt: skip
    native = driver.show("work")["last"]["provider_session_id"]
    file = driver.session_file(native)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"queue-operation"' in line))
    driver.lab.server.script(Say("done"))

    resumed = driver.resume("work", HOLDFAST_RESUME__RESTORE="off")

    assert (resumed.exit_code, resumed.decision, resumed.reason) == (0, "fresh", "transcript_missing")
    assert resumed.native != native
    (sent,) = driver.request.texts
    assert "paint the shed" in sent
    assert _spells(sent, LONG), "what was in flight is told"
    assert "new request" not in sent


def test_the_page_says_what_was_seen() -> None:
    page = PAGE.read_text("utf-8")
    for point, held in HELD.items():
        assert f"| {point} | {' | '.join(held[agent] for agent in AGENTS)} |\n" in page
