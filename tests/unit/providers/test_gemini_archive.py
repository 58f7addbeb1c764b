import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.providers.gemini import GeminiArchive
from tests.unit.providers.builders import HERE

PARENT = ProviderSessionId("0a4b2c9e-5d1f-4e57-9a7a-6f1f9a1c2d3e")
FORK = ProviderSessionId("f8b22beb-10a1-4c68-afa7-d2eca428d533")  #: of the parent, which went on afterwards


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "sessions" / "gemini", tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def archive(home: Path) -> GeminiArchive:
    return GeminiArchive(home)


@pytest.fixture
def file(archive: GeminiArchive) -> Path:
    found = archive.find(PARENT, "/lab/work")
    assert found is not None
    return Path(found)


def prompts(archive: GeminiArchive, file: Path) -> list[str]:
    return [turn.prompt for turn in archive.turns(str(file), PARENT)]


def append(file: Path, *lines: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)


def asked(key: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"id": key, "type": "user", "content": [{"text": text}]} | fields


def answered(key: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"id": key, "type": "gemini", "content": text} | fields


def test_turns_are_what_people_asked_and_the_agent_answered(archive: GeminiArchive, file: Path) -> None:
    turns = list(archive.turns(str(file), PARENT))
    assert [(turn.prompt, turn.response, turn.complete) for turn in turns] == [
        ('  what colour?\n--really "x"\n', "violet", True),
        ("resumed once", "again", True),
        ("resumed with tool", "after tool", True),
        # one whose call to the model failed was taken back by the CLI
        ("killed mid stream", None, False),  # kill -9 while the answer came
        ("stopped mid stream", None, False),  # SIGINT while the answer came
        ("killed in tool", None, False),
        ("after all", "at last", True),
    ]
    assert len({turn.key for turn in turns}) == len(turns)


def test_a_fork_has_its_parents_turns_up_to_where_it_began(archive: GeminiArchive, file: Path) -> None:
    fork = archive.find(FORK, "/lab/work")
    assert fork is not None
    assert prompts(archive, Path(fork)) == [*prompts(archive, file)[:2], "forked"]


def test_what_each_resume_leaves_behind_is_not_the_session(archive: GeminiArchive, file: Path) -> None:
    stubs = [other for other in file.parent.glob("*-0a4b2c9e.jsonl") if other != file]
    assert len(stubs) == 4
    file.unlink()
    assert archive.find(PARENT, "/lab/work") is None


def test_the_id_is_compared_not_only_its_beginning(archive: GeminiArchive) -> None:
    assert archive.find(ProviderSessionId(PARENT[:-1] + "0"), "/lab/work") is None


def test_a_session_is_found_in_its_own_directory_only(archive: GeminiArchive, home: Path, file: Path) -> None:
    assert archive.find(PARENT, "/elsewhere") is None
    assert archive.find(PARENT, None) == str(file)
    shutil.copytree(home / "tmp" / "work", home / "tmp" / "work-1")
    (home / "tmp" / "work-1" / ".project_root").write_text("/lab/other")
    assert archive.find(PARENT, "/lab/work") == str(file)
    assert archive.find(PARENT, None) is None


def test_of_two_files_in_one_folder_the_one_that_was_written_last_counts(
    archive: GeminiArchive, file: Path
) -> None:
    copy = Path(shutil.copy(file, file.with_name("session-2026-11-16T00-00-0a4b2c9e.jsonl")))
    os.utime(copy, (1, 1))
    assert archive.find(PARENT, "/lab/work") == str(file)
    os.utime(file, (0, 0))
    assert archive.find(PARENT, "/lab/work") == str(copy)


def test_a_prompt_is_what_was_typed_without_the_files_that_it_names(
    archive: GeminiArchive, file: Path
) -> None:
    append(file, asked("1", "see @a\n--- Content", displayContent=[{"text": "see @a"}]))
    assert prompts(archive, file)[-1] == "see @a"


def test_a_message_that_calls_tools_is_not_the_answer(archive: GeminiArchive, file: Path) -> None:
    append(file, asked("1", "go"), answered("2", "let me see"), answered("2", "let me see", toolCalls=[{}]))
    *_, last = archive.turns(str(file), PARENT)
    assert (last.prompt, last.complete) == ("go", False)


def test_a_turn_holds_its_calls_with_their_results(archive: GeminiArchive, file: Path) -> None:
    path = str(file)
    called = list(archive.calls(path, PARENT))
    found = {
        turn.prompt: [event for key, event in called if key == turn.key]
        for turn in archive.turns(path, PARENT)
    }
    call_id = "run_shell_command__run_shell_command_1794783511220_0"
    assert {prompt: calls for prompt, calls in found.items() if calls} == {
        "resumed with tool": [
            Called(call_id, "run_shell_command", {"command": "echo hi; echo err >&2; exit 3"}),
            Returned(call_id, "hi\nerr", is_error=False),
        ]
    }


def test_a_mark_hides_what_was_already_there(archive: GeminiArchive, file: Path) -> None:
    mark = archive.mark(str(file), PARENT)
    assert mark is not None
    assert list(archive.turns(str(file), PARENT, mark)) == []
    append(file, asked("1", "by hand"), answered("2", "yes"))
    assert [turn.prompt for turn in archive.turns(str(file), PARENT, mark)] == ["by hand"]
    assert archive.is_intact(mark, PARENT) is True


def test_every_turn_of_its_own_leaves_the_earlier_ones_as_they_were(
    archive: GeminiArchive, file: Path
) -> None:
    """It writes the whole history again at each resume."""
    lines = file.read_bytes().splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith(b'{"$set":{"sessionId"')]
    assert len(starts) == 7
    for start in starts:
        file.write_bytes(b"".join(lines[:start]))
        mark = archive.mark(str(file), PARENT)
        file.write_bytes(b"".join(lines))
        assert mark is not None
        assert archive.is_intact(mark, PARENT) is True


@pytest.mark.parametrize(
    "line",
    [
        {"$rewindTo": "b2ca33b5-c249-4f4a-8f2d-a5f9ad851306"},
        {"$rewindTo": "unknown"},
        {"$set": {"messages": [asked("1", "<state_snapshot> what was said"), answered("2", "Got it.")]}},
        answered("4ce567cf-90e9-46e0-8684-914b489156b9", "indigo"),
    ],
    ids=["rewound", "rewound to nothing", "compressed", "edited"],
)
def test_a_change_of_what_was_there_is_noticed(
    archive: GeminiArchive, file: Path, line: dict[str, Any]
) -> None:
    mark = archive.mark(str(file), PARENT)
    assert mark is not None
    append(file, line)
    assert archive.is_intact(mark, PARENT) is False


def test_a_mark_made_in_the_middle_of_a_turn_still_fits_when_that_was_answered(
    archive: GeminiArchive, file: Path
) -> None:
    append(file, asked("q", "one more"))
    asked_only = archive.mark(str(file), PARENT)
    append(file, answered("a", "let me"), answered("a", "let me see", toolCalls=[{"id": "t"}]))
    half_answered = archive.mark(str(file), PARENT)
    append(file, answered("b", "done"))
    whole = archive.mark(str(file), PARENT)

    assert asked_only is not None
    assert asked_only == half_answered
    assert whole is not None
    assert archive.is_intact(asked_only, PARENT)
    assert archive.is_intact(whole, PARENT)
    append(file, answered("b", "something else"))
    assert not archive.is_intact(whole, PARENT)
    append(file, asked("q", "another request"))
    assert not archive.is_intact(asked_only, PARENT)


def test_a_session_is_rewound_as_the_cli_does_it(archive: GeminiArchive, file: Path) -> None:
    append(file, {"$rewindTo": "b2ca33b5-c249-4f4a-8f2d-a5f9ad851306"}, asked("1", "otherwise"))
    assert prompts(archive, file) == ['  what colour?\n--really "x"\n', "otherwise"]


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda whole: whole[:-300], 7),
        (lambda whole: whole + b"garbage", 7),
        (lambda whole: whole.replace(b"\n", b"\n\x00\xff\n"), 7),
        (lambda whole: whole + b'{"$set":[]}\n{"$set":{"messages":[3,{}]},"id":7}\n{"id":null}\nnull\n', 0),
        (lambda whole: whole + b'{"id":"1","type":["user"],"content":{"text":3}}\n', 7),
        (lambda whole: b"", 0),
    ],
)
def test_damaged_lines_are_passed_over(
    archive: GeminiArchive, file: Path, damage: Callable[[bytes], bytes], left: int
) -> None:
    file.write_bytes(damage(file.read_bytes()))
    assert len(prompts(archive, file)) == left
    assert (archive.mark(str(file), PARENT) is None) == (left == 0)
