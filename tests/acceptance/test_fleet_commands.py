"""The commands of a fleet: enqueue, and a worker that runs what waits."""

import re
from pathlib import Path

import pytest

from tests.acceptance.command import holdfast, ok


@pytest.fixture(autouse=True)
def place(scripted_place: Path) -> Path:
    return scripted_place


def sessions() -> list[object]:
    found: list[object] = ok("list", "--json").json["sessions"]
    return found


def test_a_session_is_begun_by_a_turn_that_waits(place: Path) -> None:
    begun = ok("enqueue", "--agent", "reviewer", "--name", "review", "--cwd", str(place), "SAY hello")
    assert begun.out.split()[1:] == ["1", "queued"]

    ended = holdfast("worker", "--once")

    assert (ended.code, ended.out) == (0, "")
    shown = ok("show", "review", "--json").json
    assert shown["agent_name"] == "reviewer"
    assert ok("log", "review").out.count("\n  hello\n") == 1


def test_a_session_goes_on_with_what_is_put_in_behind(place: Path) -> None:
    ok("enqueue", "--agent", "a", "--name", "s", "--cwd", str(place), "the password is swordfish")
    document = ok("enqueue", "s", "RECALL swordfish", "--priority", "5", "--json").json
    assert (document["turn"], document["status"]) == (2, "queued")

    assert holdfast("worker", "--provider", "scripted", "--once").code == 0

    assert "from the session" in ok("log", "s").out


def test_a_prompt_comes_from_standard_input() -> None:
    begun = ok("enqueue", "--agent", "a", "-", stdin="SAY - or not").out.split()[0]

    assert ok("enqueue", begun, "-", stdin="SAY more").out.split() == [begun, "2", "queued"]


@pytest.mark.parametrize(
    ("provider", "given", "field"),
    [
        ("codex", ("--approve-tools", "shell"), "approve_tools"),
        ("gemini", ("--approve-tools", "shell"), "approve_tools"),
        ("opencode", ("--approve-tools", "shell"), "approve_tools"),
        ("scripted", ("--approve-tools", "shell("), "approve_tools"),
        ("codex", ("--allow-tool", "shell"), "allowed tools"),
    ],
)
def test_rights_that_no_worker_could_give_are_refused_at_once(
    provider: str, given: tuple[str, ...], field: str
) -> None:
    refused = holdfast("enqueue", "--agent", "a", "--provider", provider, "go", *given, "--json")

    assert (refused.code, refused.json["error"]["details"]["field"]) == (2, field)
    assert sessions() == []


def test_the_same_key_puts_nothing_in_again() -> None:
    session = ok("enqueue", "--agent", "a", "SAY one").out.split()[0]
    first = ok("enqueue", session, "SAY two", "--key", "k").out

    assert ok("enqueue", session, "SAY two", "--key", "k").out == first


def test_a_turn_can_wait_for_its_time() -> None:
    session = ok("enqueue", "--agent", "a", "--delay", "3600", "SAY later").out.split()[0]

    assert holdfast("worker", "--once").code == 0

    assert ok("show", session, "--json").json["turns"][0]["status"] == "queued"


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["SAY hello"], 2, "--agent"),
        (["--agent", "a", "some-id", "SAY hello"], 2, "no ID yet"),
        (["--agent", "a", "--key", "k", "SAY hello"], 2, "--key"),
        (["--agent", "a", ""], 2, "must not be empty"),
        (["--agent", "a", "--cwd", "here", "SAY hello"], 2, "must be absolute"),
        (["--agent", "a", "--add-dir", "here", "SAY hello"], 2, "must be absolute"),
        (["--agent", "a", "--model", "a\nb", "SAY hello"], 2, "model"),
        (["--agent", "a", "--provider", "no one", "SAY hello"], 2, "provider"),
        (["--agent", "a", "--runtime", "rt-none", "SAY hello"], 3, "rt-none"),
        (["nobody", "SAY hello"], 3, "nobody"),
    ],
)
def test_what_could_not_be_run_begins_nothing(arguments: list[str], code: int, word: str) -> None:
    ended = holdfast("enqueue", *arguments)

    assert ended.code == code
    assert word in ended.one_line_error()
    assert sessions() == []


def test_a_turn_is_pinned_to_a_runtime_that_was_here_once(place: Path) -> None:
    assert holdfast("worker", "--once").code == 0
    (known,) = (r for r in ok("runtimes", "--all", "--json").json["runtimes"] if r["provider"] == "scripted")
    here = known["runtime_id"]
    ok("enqueue", "--agent", "a", "--name", "s", "--runtime", here, "--cwd", str(place), "SAY pinned")

    assert holdfast("worker", "--once").code == 0

    assert "pinned" in ok("log", "s").out


def test_a_turn_says_which_runtime_it_waits_for_and_when_that_was_seen(place: Path) -> None:
    assert holdfast("worker", "--once").code == 0
    (known,) = (r for r in ok("runtimes", "--all", "--json").json["runtimes"] if r["provider"] == "scripted")
    assert known["runtime_id"] in ok("runtimes", "--all").out
    ok("enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", "SAY first")
    assert holdfast("worker", "--once").code == 0
    assert ok("why", "s", "--json").json["waits_for_runtime"] is None
    ok("enqueue", "s", "--runtime", known["runtime_id"], "SAY pinned")

    shown = ok("show", "s", "--json").json["waits_for_runtime"]

    assert (shown["turn"], shown["runtime_id"]) == (2, known["runtime_id"])
    assert shown["last_seen_at"] >= known["last_seen_at"]
    words = f"Turn 2 waits for the runtime {known['runtime_id']} only (scripted in {known['home']}"
    for command in ("show", "why"):
        told = ok(command, "s").out
        assert words in told
        assert re.search(rf"last seen at {shown['last_seen_at']} \(\d+s ago\)\.", told)


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_turn_that_waits_for_its_time_says_so(command: str) -> None:
    ok("enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", "--delay", "600", "SAY later")

    told = ok(command, "s", "--json").json
    (turn,) = ok("show", "s", "--json").json["turns"]

    assert told["waits_for_time"] == {"turn": 1, "attempt": 1, "not_before": turn["not_before"]}
    assert f"Turn 1 does not start before {turn['not_before']} (in 9m)." in ok(command, "s").out


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_turn_that_waits_for_its_retry_says_so(command: str) -> None:
    ok("enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", "FAIL 503 try later")
    env = {"HOLDFAST_QUEUE__RETRY_DELAY_SECONDS": "3600"}
    holdfast("worker", "--once", env=env)

    told = ok(command, "s", "--json").json["waits_for_time"]

    assert (told["turn"], told["attempt"]) == (1, 2)
    assert f"Turn 1 is tried again at {told['not_before']} (in " in ok(command, "s").out
    assert "attempt 2)." in ok(command, "s").out


def test_a_worker_for_an_agent_that_is_not_installed_says_so() -> None:
    ended = holdfast("worker", "--provider", "gemini", "--once", env={"PATH": "/nowhere"})

    assert ended.code == 2
    assert "gemini" in ended.one_line_error()
