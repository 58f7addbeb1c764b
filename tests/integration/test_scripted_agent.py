"""The scripted agent as a process: what it says, remembers, refuses and how it dies."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.integration.scripted import MODULE, Agent


def test_a_turn_names_its_session_answers_counts_and_ends(agent: Agent) -> None:
    ran = agent.ask("hello\nthere", "--session-id", "s", "--model", "m")

    assert [event["type"] for event in ran.events] == ["session", "text", "usage", "end"]
    assert ran.events[0]["session_id"] == "s"
    assert ran.events[0]["model"] == "m"
    assert ran.answer == "turn 1 of this session: I was told: there"
    assert (ran.code, ran.events[-1]["ok"], ran.stderr) == (0, True, "")
    assert agent.turns("s") == [("hello\nthere", ran.answer, True)]


def test_a_resumed_session_knows_what_was_said_and_a_new_one_does_not(agent: Agent) -> None:
    agent.ask("the password is swordfish", "--session-id", "s")

    resumed = agent.ask("HISTORY\nRECALL swordfish", "--resume", "s")
    fresh = agent.ask("HISTORY\nRECALL swordfish", "--session-id", "t")

    assert resumed.answer.splitlines() == [
        "1. the password is swordfish",
        "RECALL swordfish: from the session: the password is swordfish",
    ]
    assert fresh.answer.splitlines() == ["no earlier prompts", "RECALL swordfish: unknown"]


def test_only_the_current_request_is_obeyed_and_the_rest_is_known(agent: Agent) -> None:
    told = "EXIT 3 from the past\nthe password is swordfish\n"
    ran = agent.ask(f"{told}[holdfast] turn 7: new request\nRECALL swordfish\nSAY done", "--session-id", "s")

    assert (ran.code, ran.answer.splitlines()) == (
        0,
        ["RECALL swordfish: from the prompt: the password is swordfish", "done"],
    )
    assert agent.ask("HISTORY", "--resume", "s").answer == "1. RECALL swordfish / SAY done"


def test_a_fork_knows_everything_and_leaves_its_parent_alone(agent: Agent) -> None:
    agent.ask("one", "--session-id", "parent")
    parent = (agent.home / "sessions" / "parent.jsonl").read_bytes()

    forked = agent.ask("HISTORY", "--resume", "parent", "--fork", "--session-id", "child")

    assert (forked.events[0]["session_id"], forked.answer) == ("child", "1. one")
    assert (agent.home / "sessions" / "parent.jsonl").read_bytes() == parent
    assert [prompt for prompt, _, _ in agent.turns("child")] == ["one", "HISTORY"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--session-id", "s"), "Error: Session ID s is already in use.\n"),
        (("--resume", "s", "--fork", "--session-id", "s"), "Error: Session ID s is already in use.\n"),
        (("--resume", "nobody"), "No conversation found with session ID: nobody\n"),
        (("--resume", "../sessions/s"), "No conversation found with session ID: ../sessions/s\n"),
        (("--session-id", "../s"), "Error: Invalid session ID.\n"),
    ],
)
def test_a_session_that_it_cannot_use_is_refused(
    agent: Agent, arguments: tuple[str, ...], message: str
) -> None:
    agent.ask("one", "--session-id", "s")

    ran = agent.ask("two", *arguments)

    assert (ran.code, ran.stderr) == (1, message)
    assert len(ran.of("end")) == ("No conversation" in message)
    assert len(agent.turns("s")) == 1


def test_an_empty_session_file_can_neither_be_resumed_nor_made_again(agent: Agent) -> None:
    (agent.home / "sessions").mkdir(parents=True)
    (agent.home / "sessions" / "s.jsonl").touch()

    assert "No conversation found" in agent.ask("x", "--resume", "s").stderr
    assert "already in use" in agent.ask("x", "--session-id", "s").stderr


def test_a_second_writer_is_refused_unless_told_otherwise(agent: Agent, busy: subprocess.Popen[str]) -> None:
    refused = agent.ask("SAY other", "--resume", "s")
    allowed = agent.ask("SAY other", "--resume", "s", "--no-lock")

    assert (refused.code, refused.stderr) == (1, "Error: session s already has an active writer\n")
    assert (allowed.code, allowed.answer) == (0, "other")


@pytest.mark.parametrize(
    ("stop", "code", "turn"),
    [
        (signal.SIGINT, 0, ("SAY half\nHANG", "half", False)),
        (signal.SIGTERM, -signal.SIGTERM, ("SAY half\nHANG", None, False)),
        (signal.SIGKILL, -signal.SIGKILL, ("SAY half\nHANG", None, False)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_stopped_turn_says_no_end_and_can_be_gone_on_with(
    agent: Agent, busy: subprocess.Popen[str], stop: signal.Signals, code: int, turn: tuple[str, str, bool]
) -> None:
    busy.send_signal(stop)
    out, _ = busy.communicate(timeout=60)

    assert (busy.returncode, out) == (code, "")
    assert agent.turns("s") == [turn]
    assert agent.ask("HISTORY", "--resume", "s").answer == "1. SAY half / HANG"


def test_tools_really_run_within_their_rights(agent: Agent) -> None:
    prompt = 'TOOL shell {"command": "echo hi; exit 3"}\nTOOL write {"path": "a.txt", "text": "b"}'

    free = agent.ask(prompt)
    only_write = agent.ask(prompt, "--allow-tool", "write")
    plan = agent.ask(prompt, "--permission-mode", "plan")
    outside = agent.ask('TOOL write {"path": "../a.txt", "text": "b"}')

    assert [call["name"] for call in free.of("tool_call")] == ["shell", "write"]
    shell, _ = free.of("tool_result")
    assert (shell["output"], shell["is_error"]) == ("hi\n", True)
    assert (agent.work_dir / "a.txt").read_text() == "b"
    assert [r["is_error"] for r in only_write.of("tool_result")] == [True, False]
    assert [r["is_error"] for r in plan.of("tool_result")] == [True, True]
    assert "permission denied" in outside.of("tool_result")[0]["output"]
    assert not (agent.work_dir.parent / "a.txt").exists()


@pytest.mark.parametrize(
    ("directive", "code", "end"),
    [
        ("FAIL 529 Overloaded", 1, ("Overloaded", 529, "")),
        ("FAIL poisoned bad history", 1, ("bad history", None, "poisoned")),
        ("SLEEP soon", 1, ("cannot do 'SLEEP soon'", None, "bad_directive")),
        ("EXIT 42 gone wrong", 42, None),
        ("NO_END", 0, None),
        ("CRASH", -signal.SIGKILL, None),
    ],
)
def test_it_ends_badly_as_told(
    agent: Agent, directive: str, code: int, end: tuple[str, int | None, str] | None
) -> None:
    ran = agent.ask(f"SAY before\n{directive}\n", "--session-id", "s")

    assert ran.code == code
    assert ran.answer == "before"
    assert len(ran.of("end")) == (end is not None)
    if end is not None:
        (event,) = ran.of("end")
        assert (event["ok"], event["status"], event["code"]) == (False, *end[1:])
        assert event["error"].startswith(end[0])
    assert agent.turns("s") == [(f"SAY before\n{directive}\n", "before" if code == 0 else None, code == 0)]


def test_what_fails_once_works_the_next_time(agent: Agent) -> None:
    assert agent.ask("FAIL_ONCE net 503 try again").of("end")[0]["status"] == 503
    assert agent.ask("FAIL_ONCE net 503 try again").of("end")[0]["ok"]


def test_what_it_says_about_itself_can_be_false(agent: Agent) -> None:
    other = agent.ask("OTHER_ID", "--session-id", "s")
    unsaved = agent.ask("NO_SAVE", "--session-id", "t")
    full = agent.ask("CONTEXT 95 100")

    assert other.events[0]["session_id"] != "s"
    assert (unsaved.code, agent.turns("t")) == (0, [])
    assert full.of("usage")[0]["context"] == {"tokens": 95, "window": 100}


def test_a_big_line_is_one_line_of_that_size_and_is_not_remembered(agent: Agent) -> None:
    ran = agent.ask("BIG 300000", "--session-id", "s")

    assert len(ran.of("text")[0]["text"]) == 300_000
    assert (agent.home / "sessions" / "s.jsonl").stat().st_size < 1000


@pytest.mark.parametrize(("directive", "holds"), [("SPAWN", False), ("SPAWN_HOLDING", True)])
def test_it_leaves_a_process_behind_in_a_session_of_its_own(
    agent: Agent, directive: str, holds: bool
) -> None:
    with agent.start("--session-id", "s", directive) as process:
        process.wait(60)
        ((_, answer, _),) = agent.turns("s")
        assert answer is not None
        child = int(answer.removeprefix("spawned "))
        try:
            assert os.getsid(child) == child
            assert reaches_its_end(process) is not holds
        finally:
            os.kill(child, signal.SIGKILL)


def reaches_its_end(ended: subprocess.Popen[str]) -> bool:
    """Whether the output of a process that has ended is at its end, too."""
    assert ended.stdout is not None
    os.set_blocking(ended.stdout.fileno(), False)
    os.read(ended.stdout.fileno(), 65536)
    try:
        return os.read(ended.stdout.fileno(), 1) == b""
    except BlockingIOError:
        return False


def test_a_line_that_a_crash_cut_off_does_not_damage_the_next(agent: Agent) -> None:
    agent.ask("one", "--session-id", "s")
    with (agent.home / "sessions" / "s.jsonl").open("a") as file:
        file.write('{"type": "user", "id": "cut')

    agent.ask("two", "--resume", "s")

    assert [prompt for prompt, _, _ in agent.turns("s")] == ["one", "two"]


def test_a_person_can_talk_to_it_until_quit(agent: Agent) -> None:
    agent.ask("one", "--session-id", "s")
    with agent.start("--resume", "s", "--interactive") as process:
        out, _ = process.communicate("HISTORY\nSAY bye\nquit\nSAY never\n", timeout=60)

    assert (process.returncode, out) == (0, "1. one\nbye\n")
    assert [prompt for prompt, _, _ in agent.turns("s")] == ["one", "HISTORY", "SAY bye"]


def test_it_loads_nothing_of_holdfast_but_itself() -> None:
    script = f"import sys, {MODULE}.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("holdfast")}

    assert {name for name in loaded if not name.startswith(MODULE)} == {"holdfast", "holdfast.providers"}


TOUCH = 'SAY before\nTOOL shell {"command": "touch made"}\nSAY after'


def hook(agent: Agent, decision: str) -> str:
    """A gate that always says this."""
    answer = {"hookSpecificOutput": {"permissionDecision": decision, "permissionDecisionReason": "because"}}
    agent.home.mkdir(exist_ok=True)
    (agent.home / decision).write_text(json.dumps(answer))
    return f"cat '{agent.home / decision}'"


def test_a_call_that_is_deferred_is_made_by_a_later_run_without_a_prompt(agent: Agent) -> None:
    first = agent.ask(TOUCH, "--session-id", "s", "--gate", hook(agent, "defer"))
    assert (first.code, first.answer, first.of("end")) == (0, "before", [])
    (call,) = first.of("deferred")
    again = agent.ask("", "--resume", "s", "--gate", hook(agent, "defer"))
    assert (again.code, again.of("deferred")) == (0, [call])
    assert not (agent.work_dir / "made").exists()
    made = agent.ask("", "--resume", "s", "--gate", hook(agent, "allow"))
    assert (made.code, made.answer, made.of("tool_result")[0]["id"]) == (0, "after", call["id"])
    assert (agent.work_dir / "made").exists()
    assert agent.turns("s") == [(TOUCH, "before\nafter", True)]


def test_without_a_prompt_there_must_be_a_call_that_waits(agent: Agent) -> None:
    agent.ask("SAY hello", "--session-id", "s")
    assert agent.ask("", "--resume", "s").code == 1


def test_a_prompt_leaves_the_call_that_waits_behind(agent: Agent) -> None:
    agent.ask(TOUCH, "--session-id", "s", "--gate", hook(agent, "defer"))
    assert agent.ask("SAY next", "--resume", "s").answer == "next"
    assert agent.ask("", "--resume", "s", "--gate", hook(agent, "allow")).code == 1
    assert not (agent.work_dir / "made").exists()


@pytest.mark.parametrize("gate", ["exit 2", "exit 1", "no-such-program"])
def test_a_gate_that_fails_forbids_the_call(agent: Agent, gate: str) -> None:
    ran = agent.ask(TOUCH, "--gate", gate)
    assert ran.of("tool_result")[0]["is_error"]
    assert not (agent.work_dir / "made").exists()


def test_it_can_answer_with_what_its_tool_gave_out(agent: Agent) -> None:
    ran = agent.ask('OUTPUT\nTOOL shell {"command": "echo first"}\nTOOL shell {"command": "echo 42"}\nOUTPUT')

    assert ran.answer.splitlines() == ["no output", "42"]


GO_ON = "[holdfast] turn 1: interrupted before it ended\nCheck what was already done, then continue"


def test_an_interrupted_request_is_done_again_when_it_says_so(agent: Agent) -> None:
    agent.ask("AGAIN\nSAY red\nCRASH", "--session-id", "s")
    agent.ask(GO_ON, "--resume", "s")

    ran = agent.ask(GO_ON, "--resume", "s")

    assert (ran.code, ran.answer) == (-signal.SIGKILL, "red")


def test_an_interrupted_request_is_otherwise_only_heard_of(agent: Agent) -> None:
    agent.ask("SAY red\nCRASH", "--session-id", "s")

    assert "continue" in agent.ask(GO_ON, "--resume", "s").answer
