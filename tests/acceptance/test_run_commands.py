"""The commands that run agents, as a person, a pipe and a program use them."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import (
    HOLDFAST,
    Ended,
    default_database,
    environment,
    holdfast,
    on_terminal,
    without_privileges,
)

OPENING = "the password is swordfish"
RECALL = "RECALL swordfish"
KNOWN = f"{RECALL}: from the session: {OPENING}"


@pytest.fixture(autouse=True)
def place(scripted_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing of what ran there is left running in the end."""
    monkeypatch.setenv("HOLDFAST_QUEUE__LOCK_TRIES", "1")
    yield scripted_place
    wanted = f"SCRIPTED_HOME={tmp_path / 'agent'}".encode()
    found = {path.parent.name: _read(path) for path in Path("/proc").glob("[0-9]*/environ")}
    agents = [
        pid
        for pid, environ in found.items()
        if wanted in environ and b"HOLDFAST_ATTEMPT=" in b" ".join(environ)
    ]
    assert agents == []


def _read(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


def done(*arguments: Any, **options: Any) -> Ended:
    ended = holdfast(*arguments, **options)
    assert ended.code == 0, ended
    return ended


def test_a_pipe_gets_the_answer_and_nothing_else() -> None:
    first = done("run", "--name", "it", OPENING)
    assert first.out == f"turn 1 of this session: I was told: {OPENING}\n"
    decided, summary, go_on = first.err.splitlines()
    assert decided == "holdfast: Starting a new scripted session."
    assert "turn 1 of it" in summary
    command = go_on.partition("continue with: holdfast ")[2].split()
    assert done(*command[:2], RECALL).out == f"{KNOWN}\n"


def test_json_is_one_object_and_a_stream_is_one_for_each_event() -> None:
    order = 'SAY hello\nTOOL shell {"command": "echo hi"}'
    result = done("run", order, "--json").json
    assert set(result) >= {"session_id", "turn", "status", "text", "decision", "provider",
                           "provider_session_id", "work_dir", "usage", "failure", "notices", "continue_with"}  # fmt: skip
    assert (result["status"], result["text"], result["decision"]["kind"]) == ("done", "hello", "fresh")
    lines = [json.loads(line) for line in done("resume", result["session_id"], order, "--json-stream").lines]
    kinds = [line["type"] for line in lines]
    assert kinds == [
        "decision",
        "provider_session",
        "text",
        "tool_call",
        "tool_result",
        "usage",
        "end",
        "result",
    ]
    assert lines[-1]["provider_session_id"] == result["provider_session_id"]


def test_a_failure_is_told_in_each_form(place: Path) -> None:
    failed = holdfast("run", "SAY half\nFAIL 401 who are you", "--json")
    assert (failed.code, failed.json["status"], failed.json["failure"]["class"]) == (1, "failed", "auth")
    told = holdfast("resume", failed.json["session_id"], "SAY half\nFAIL 401 who are you")
    assert (told.code, told.out) == (1, "half\n")
    assert "auth: who are you" in told.err


def test_show_tells_which_provider_session_it_is_and_where_it_came_from() -> None:
    parent = done("run", OPENING, "--name", "parent", "--json").json
    child = done("fork", "parent", RECALL, "--json").json
    assert (child["text"], child["decision"]["kind"]) == (KNOWN, "fork")
    shown = done("show", child["session_id"], "--json").json
    assert shown["provider_session_id"] == child["provider_session_id"]
    assert shown["provider_session_forked_from"] == parent["provider_session_id"]
    assert shown["parent_session_id"] == parent["session_id"]
    assert shown["provider_session_last_seen_at"] is not None
    only = done("fork", "parent", "--name", "later").out.strip()
    assert done("show", only, "--json").json["forked_from"] is not None


def test_rights_are_replayed_and_wider_ones_refused() -> None:
    done("run", OPENING, "--name", "it", "--permission-mode", "plan")
    wider = holdfast("resume", "it", RECALL, "--permission-mode", "bypass")
    assert wider.code in (2, 4), wider
    refused = holdfast("resume", "it", RECALL, "--permission-mode", "plan", "--allow-tool", "shell", "--json")
    assert (refused.code, refused.json["decision"]["reason"]) == (4, "rights_wider")
    allowed = done("resume", "it", RECALL, "--permission-mode", "plan", "--allow-tool", "shell",
                   "--allow-wider-rights")  # fmt: skip
    assert allowed.out == f"{KNOWN}\n"


def test_a_job_file_may_say_objective_inputs_and_constraints(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    written = {
        "objective": "HISTORY\nlist the directory",
        "constraints": {"must_use_tools": True},
        "inputs": {"file": "ä.txt"},
        "workspace_dir": ".",
    }
    job.write_text(json.dumps(written))

    ran = done("run", "--job", str(job), "--json").json

    (turn,) = done("show", ran["session_id"], "--json").json["turns"]
    assert turn["prompt"] == (
        'HISTORY\nlist the directory\n\nInputs:\n{\n  "file": "ä.txt"\n}\n\n'
        'Constraints:\n{\n  "must_use_tools": true\n}'
    )
    assert ran["work_dir"] == str(tmp_path)
    done("run", "--job", str(job), "SAY typed", "--name", "typed")
    (typed,) = done("show", "typed", "--json").json["turns"]
    assert typed["prompt"].startswith("SAY typed\n\nInputs:")
    for wrong, why in (
        ({**written, "prompt": "x"}, "prompt and objective mean the same"),
        ({"objective": 3}, "objective must be a string"),
        ({"objective": "x", "constraint": {}}, "unknown key 'constraint'"),
    ):
        job.write_text(json.dumps(wrong))
        refused = holdfast("run", "--job", str(job))
        assert (refused.code, why in refused.one_line_error()) == (2, True), refused


def test_without_a_prompt_only_what_was_stopped_goes_on() -> None:
    done("run", OPENING, "--name", "it")
    nothing = holdfast("resume", "it")
    assert (nothing.code, "no turn" in nothing.one_line_error()) == (2, True)
    assert nothing.one_line_error().endswith('say what to do next: holdfast resume it "..."')
    assert holdfast("resume", "it", "SAY half\nCRASH").code == 1
    assert done("resume", "it", "--json").json["decision"]["kind"] == "resume"


@pytest.mark.parametrize(
    ("argument", "instead"),
    [("--resume", "holdfast resume"), ("--session-id=x", "--provider-session-id"), ("--model", "--model")],
)
def test_provider_arguments_that_would_override_a_decision_are_refused(argument: str, instead: str) -> None:
    refused = holdfast("run", OPENING, "--", argument, "x")
    assert (refused.code, instead in refused.one_line_error()) == (2, True)
    assert holdfast("list").out == ""


def test_other_provider_arguments_are_handed_on_and_replayed() -> None:
    done("run", OPENING, "--name", "it", "--", "--no-lock")
    assert done("resume", "it", RECALL).out == f"{KNOWN}\n"
    refused = holdfast("resume", "it", RECALL, "--", "--unheard-of")
    assert (refused.code, "--allow-wider-rights" in refused.one_line_error()) == (2, True)
    failed = holdfast("run", OPENING, "--json", "--allow-wider-rights", "--", "--unheard-of")
    assert (failed.code, failed.json["failure"]["class"]) == (1, "config")


def _job(content: object) -> str:
    path = Path("job.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path.absolute())


def test_a_job_is_a_run_written_down(place: Path) -> None:
    (place / "sub").mkdir()
    job = _job({"prompt": "SAY from the job", "name": "it", "work_dir": "sub", "timeout": 60,
                "allowed_tools": ["shell"], "model": "small"})  # fmt: skip
    result = done("run", "--job", job, "--json", cwd=place.parent).json
    assert (result["text"], result["work_dir"]) == ("from the job", str(place / "sub"))
    assert done("run", "--job", job, "--name", "other", "SAY from the line").out == "from the line\n"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"prompt": "x", "promt": "y"}, "promt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": "x", "timeout": "soon"}, "timeout"),
        ({"prompt": "x", "timeout": 10**400}, "timeout"),
        ({"prompt": "x", "allowed_tools": "shell"}, "allowed_tools"),
        ({"prompt": "x", "fresh": 1}, "fresh"),
        ({"prompt": "x", "work_dir": "nowhere"}, "nowhere"),
        ({"prompt": "x", "work_dir": "~nobody-of-that-name"}, "nobody-of-that-name"),
        ({"prompt": "x", "model": "a\0b"}, "model"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({}, "PROMPT"),
        ([], "object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_job_that_is_wrong_says_where(content: object, named: str) -> None:
    refused = holdfast("run", "--job", _job(content))
    assert refused.code == 2
    assert named in refused.one_line_error()


@pytest.mark.parametrize(
    ("prompt", "stdin"),
    [(b"\xff\xfe", b""), ("-", b"a\0b"), ("-", b"\xff"), ("   ", b""), ("", b"")],
    ids=["not-utf8", "nul", "input-not-utf8", "blank", "empty"],
)
def test_a_prompt_that_cannot_be_sent_leaves_nothing_behind(prompt: str | bytes, stdin: bytes) -> None:
    refused = holdfast("run", prompt, stdin=stdin)
    assert refused.code == 2, refused
    assert "prompt" in refused.one_line_error()
    assert holdfast("list").out == ""


def test_a_long_prompt_and_one_with_a_dash_arrive_whole() -> None:
    long = "x" * 1_000_000
    done("run", "--name", "it", "-", stdin=f"SAY noted\n{long}")
    transcript = next(Path(os.environ["SCRIPTED_HOME"]).glob("sessions/*.jsonl"))
    assert long in transcript.read_text()
    assert done("resume", "it", "-", stdin="--resume is a word").out.endswith("--resume is a word\n")


def test_what_an_agent_says_cannot_reach_into_the_terminal() -> None:
    order = "SAY \x1b[2J\x1b]0;owned\x07 shown\nSTDERR \x1b[2Jnoise\nFAIL 400 \x1b[31mred"
    for ended in (holdfast("run", order), on_terminal("run", order)):
        assert ended.code == 1
        assert "shown" in ended.out
        for text in (ended.out, ended.err):
            assert "\x1b[2J" not in text
            assert "\x1b]0;" not in text
            assert "\x1b[31mred" not in text


@pytest.mark.parametrize(
    "odd",
    [r'"\ud800\u0000"', "NaN", "1e999", "[" * 900 + r'"\udfff"' + "]" * 900],
    ids=["text", "nan", "inf", "deep"],
)
def test_output_that_no_store_can_keep_does_not_end_a_turn(each_engine: str, odd: str) -> None:
    order = rf'TOOL shell {{"command": "printf a\\\\0b", "odd": {odd}}}'
    assert done("run", order, "--name", "it", "--json").json["status"] == "done"
    kinds = [line.split("\t")[3] for line in done("log", "it", "--raw").lines]
    assert kinds[:2] == ["tool_call", "tool_result"]
    done("packet", "it")


def test_a_reader_that_has_seen_enough_does_not_cost_the_work() -> None:
    piped = f"{HOLDFAST} run 'REPEAT 5000 line\nSAY the end' --name it --json-stream | head -2"
    subprocess.run(["sh", "-c", piped], env=environment(), capture_output=True, check=True, timeout=60)
    (turn,) = done("show", "it", "--json").json["turns"]
    assert turn["status"] == "done"
    assert turn["response"].endswith("the end")


def test_a_terminal_shows_text_tools_and_how_to_go_on() -> None:
    shown = on_terminal("run", 'SAY working\nTOOL shell {"command": "echo hi"}\nSAY ready').out
    for part in (
        "Starting a new scripted session.",
        "working",
        "shell",
        "echo hi",
        "ready",
        "tokens in",
        "continue with:",
    ):
        assert part in shown, part


def test_chat_goes_on_line_by_line_and_pauses() -> None:
    talked = done("chat", stdin=f"{OPENING}\n\n{RECALL}\nquit\nSAY never\n")
    assert talked.lines == [f"turn 1 of this session: I was told: {OPENING}", KNOWN]
    (session,) = json.loads(done("list", "--json").out)["sessions"]
    again = done("chat", session["agent_id"], stdin=RECALL)
    assert again.out == f"{KNOWN}\n"
    forked = done("chat", "--fork", session["agent_id"], stdin=f"{RECALL}\n")
    assert forked.out == f"{KNOWN}\n"
    assert len(json.loads(done("list", "--json").out)["sessions"]) == 2
    assert holdfast("chat", "--fork", stdin="x").code == 2
    afresh = done("chat", session["agent_id"], "--fresh", stdin="SAY anew\nHISTORY\n")
    assert afresh.lines == ["anew", "1. SAY anew"]
    assert done("chat", stdin="quit\n").out == ""


@pytest.mark.parametrize("word", ["exit", "EXIT", "Quit", "  quit  "])
def test_chat_ends_with_quit_or_exit_in_any_case(word: str) -> None:
    talked = done("chat", stdin=f"SAY one\n{word}\nSAY never\n")
    assert talked.out == "one\n"
    (session,) = done("list", "--json").json["sessions"]
    assert talked.err.endswith(f"paused; continue with: holdfast chat {session['session_id']}\n")


def test_chat_leaves_no_session_that_nothing_was_said_in() -> None:
    parent = done("run", OPENING, "--json").json["session_id"]
    for said in ("", "quit\n", "\n\nEXIT\n"):
        assert done("chat", stdin=said).err == ""
        assert done("chat", "--fork", parent, stdin=said).err == ""
    other = holdfast("chat", "--provider-session-id", "../x", stdin="SAY one\n")
    assert (other.code, "continue with" in other.err) == (2, False)
    assert [one["session_id"] for one in done("list", "--json").json["sessions"]] == [parent]


def test_chat_says_the_id_of_a_session_whose_first_turn_failed() -> None:
    failed = holdfast("chat", stdin="FAIL 401 who are you\n")
    (session,) = done("list", "--json").json["sessions"]
    assert (failed.code, session["status"]) == (1, "failed")
    assert f"continue with: holdfast chat {session['session_id']}" in failed.err


def test_chat_says_the_id_when_it_is_interrupted_between_two_lines() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [HOLDFAST, "chat"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), text=True, bufsize=1
    ) as talk:
        assert talk.stdin is not None
        assert talk.stdout is not None
        talk.stdin.write("SAY one\n")
        assert talk.stdout.readline() == "one\n"
        (session,) = done("list", "--json").json["sessions"]
        talk.send_signal(signal.SIGINT)
        _, told = talk.communicate(timeout=60)
    assert (talk.returncode, session["status"]) == (130, "idle")
    assert f"paused; continue with: holdfast chat {session['session_id']}\n" in told


def test_open_is_the_agents_own_program_and_what_was_said_there_is_remembered() -> None:
    done("run", OPENING, "--name", "it")
    opened = done("open", "it", stdin="SAY by hand\nSAY and again\nquit\n")
    assert opened.out == "by hand\nand again\n"
    turns = done("show", "it", "--json").json["turns"]
    assert [(turn["prompt"], turn["response"]) for turn in turns[1:]] == [
        ("SAY by hand", "by hand"), ("SAY and again", "and again"),
    ]  # fmt: skip
    assert done("resume", "it", RECALL, "--json").json["decision"]["kind"] == "resume"


def test_open_says_as_json_how_many_turns_were_made() -> None:
    session_id = done("run", OPENING, "--name", "it", "--json").json["session_id"]
    opened = done("open", "it", "--json", stdin="SAY by hand\nquit\n")
    *said, document = opened.out.splitlines()
    assert said == ["by hand"]
    assert json.loads(document) == {
        "schema_version": 1, "session_id": session_id, "turns": 1, "exit_code": 0,
    }  # fmt: skip


def test_the_command_that_continues_a_session_never_reads_as_an_option() -> None:
    ran = done("run", OPENING, "--name=-dash", "--json").json
    assert ran["continue_with"] == f'holdfast resume {ran["session_id"]} "..."'


def test_open_refuses_what_cannot_be_resumed_here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RESUME__RESTORE", "off")
    done("run", OPENING, "--name", "it", "--cwd", str(place))
    fresh = done("create", "--agent", "a", "--provider", "scripted").out.strip()
    assert holdfast("open", fresh).code == 4
    next(Path(os.environ["SCRIPTED_HOME"]).glob("sessions/*.jsonl")).unlink()
    gone = holdfast("open", "it")
    assert (gone.code, "cannot be opened" in gone.one_line_error()) == (4, True)


def test_open_restores_what_is_gone(place: Path) -> None:
    done("run", OPENING, "--name", "it", "--cwd", str(place))
    next(Path(os.environ["SCRIPTED_HOME"]).glob("sessions/*.jsonl")).unlink()
    opened = holdfast("open", "it", stdin=f"{RECALL}\nquit\n")
    assert (opened.code, "restored from the vault" in opened.err) == (0, True)
    assert "from the session" in opened.out


def test_open_says_that_a_fork_has_to_run_first() -> None:
    done("run", OPENING, "--name", "it")
    done("fork", "it", "--name", "branch")
    refused = holdfast("open", "branch")
    assert (refused.code, "has not run yet" in refused.one_line_error()) == (4, True)
    done("resume", "branch", "SAY first")
    assert done("open", "branch", stdin="SAY by hand\nquit\n").out == "by hand\n"


def test_a_project_that_moved_goes_on_natively(place: Path) -> None:
    done("run", OPENING, "--name", "it")
    place.rename(place.parent / "moved")
    assert "does not exist" in holdfast("resume", "it", RECALL, cwd=place.parent).err
    assert str(place.parent / "moved") in done("relocate", "it", "moved", cwd=place.parent).out
    assert done("resume", "it", RECALL, cwd=place.parent).out == f"{KNOWN}\n"
    assert holdfast("relocate", "it", "nowhere", cwd=place.parent).code == 2
    (place.parent / "moved").rename(place)


def test_the_log_and_what_it_cost() -> None:
    done("run", 'SAY hello\nTOOL shell {"command": "echo hi"}', "--name", "it", "--agent", "builder")
    rows = [line.split("\t") for line in done("log", "it", "--raw").lines]
    assert [row[3] for row in rows] == ["text", "tool_call", "tool_result", "usage", "notice"]
    events = [json.loads(line) for line in done("log", "it", "--json").lines]
    assert events[1]["data"]["arguments"] == {"command": "echo hi"}
    for by, key in (("session", None), ("agent", "builder"), ("provider", "scripted"), ("day", None)):
        report = done("usage", "--by", by, "--json").json
        (one,) = report[f"{by}s"]
        assert one["runs"] == report["total"]["runs"] == 1
        assert one["output_tokens"] > 0
        assert key is None or one[by] == key
    assert done("usage", "--until", "2020-01-01", "--json").json["sessions"] == []


def test_the_log_is_followed_until_someone_has_seen_enough() -> None:
    done("run", "SAY hello", "--name", "it")
    following = subprocess.Popen(
        [HOLDFAST, "log", "it", "-f"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert following.stdout is not None
    while following.stdout.readline() != "  hello\n":
        pass
    done("resume", "it", "SAY later")
    while following.stdout.readline() != "  later\n":
        pass
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=30)
    assert following.returncode == 130


def test_recover_says_what_it_took_over() -> None:
    done("run", OPENING)
    assert done("recover", "--json").json["recovered"] == []


@pytest.mark.parametrize("provider", ["claude"])
def test_an_agent_that_is_not_installed_is_named(provider: str) -> None:
    missing = holdfast("run", OPENING, "--provider", provider, env={"PATH": "/nowhere"})
    assert (missing.code, provider in missing.one_line_error()) == (2, True)
    assert holdfast("list").out == ""


def _most_memory(prompt: str) -> int:
    """Bytes, of the command and whatever it started."""
    running = subprocess.Popen([HOLDFAST, "run", prompt], env=environment(), stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    return used.ru_maxrss * (1024 if sys.platform == "linux" else 1)


def test_a_line_of_200_megabytes_needs_no_memory() -> None:
    assert _most_memory("BIG 200000000") - _most_memory("BIG 1000") < 25_000_000


def test_a_store_that_cannot_be_written_runs_nothing(place: Path) -> None:
    done("run", OPENING, "--name", "it")
    database = default_database()
    for path in (*database.parent.glob("holdfast.db*"), database.parent):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        refused = holdfast("resume", "it", 'TOOL shell {"command": "touch ran"}', before=without_privileges)
    finally:
        for path in (database.parent, *database.parent.glob("holdfast.db*")):
            path.chmod(0o700)
    assert refused.code == 1
    assert str(database) in refused.one_line_error()
    assert not (place / "ran").exists()


def test_a_work_dir_that_nobody_may_enter_is_a_matter_of_configuration(place: Path) -> None:
    done("run", OPENING, "--name", "it")
    place.chmod(0)
    try:
        failed = holdfast("resume", "it", RECALL, "--json", cwd=place.parent, before=without_privileges)
    finally:
        place.chmod(0o700)
    assert (failed.code, failed.json["failure"]["class"]) == (1, "config")
    assert str(place) in failed.json["failure"]["message"]
    assert done("resume", "it", RECALL).out == f"{KNOWN}\n"


def test_where_nothing_can_be_written_nothing_is_pretended(tmp_path: Path) -> None:
    done("run", OPENING, "--name", "it")
    home = Path(os.environ["SCRIPTED_HOME"])
    for folder in (home, home / "sessions"):
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    for file in (home / "sessions").iterdir():
        file.chmod(stat.S_IRUSR)
    try:
        failed = holdfast("resume", "it", RECALL, before=without_privileges)
        assert failed.code == 1
        assert "Permission denied" in failed.err
        assert "Traceback" not in failed.err
    finally:
        for path in (home, home / "sessions", *(home / "sessions").iterdir()):
            path.chmod(0o700)
    assert done("resume", "it", RECALL).out == f"{KNOWN}\n"


def test_the_options_that_are_typed_most_have_short_forms() -> None:
    assert holdfast("run", "-p", "scripted", "-n", "short", "-m", "tiny", "SAY hello").code == 0

    (pointer,) = holdfast("show", "short", "--json").json["pointers"]
    assert (pointer["provider"], pointer["model"]) == ("scripted", "tiny")
