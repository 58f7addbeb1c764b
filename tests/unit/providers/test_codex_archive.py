import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.providers.codex import CodexArchive
from tests.unit.providers.builders import HERE

PARENT = ProviderSessionId("01a1e167-7227-7f42-aba3-284d1ae84e5e")
FORK = ProviderSessionId("01a1e167-90db-7133-bdac-bf5e4cbee153")  #: of the parent, which went on afterwards
SECOND_FORK = ProviderSessionId("01a1e167-9729-72e0-a8d6-ee7a79d5865e")  #: of the fork


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "sessions" / "codex", tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def archive(home: Path) -> CodexArchive:
    return CodexArchive(home)


def rollout(archive: CodexArchive, session: ProviderSessionId) -> Path:
    found = archive.find(session, "/lab/work")
    assert found is not None
    return Path(found)


def prompts(archive: CodexArchive, session: ProviderSessionId) -> list[str]:
    return [turn.prompt for turn in archive.turns(str(rollout(archive, session)), session)]


def test_turns_are_what_people_asked_and_the_agent_answered(archive: CodexArchive) -> None:
    turns = list(archive.turns(str(rollout(archive, PARENT)), PARENT))
    assert [(turn.prompt[:16], turn.complete) for turn in turns] == [
        ("SAY violet", True),
        ("TOOL exec_comman", True),
        ("HTTP 500", False),  # the call to the model failed
        ("SLEEP 20 killed", False),  # kill -9 while the answer came
        ("SLEEP 20 stopped", False),  # SIGINT while the answer came
        ("SAY later", True),
    ]
    assert turns[0].response == "violet"
    assert turns[3].response is None
    assert len({turn.key for turn in turns}) == len(turns)


def test_a_mark_counts_what_was_asked_in_the_file_itself(archive: CodexArchive) -> None:
    marks = [archive.mark(str(rollout(archive, session)), session) for session in (PARENT, FORK)]
    assert [mark and mark.turns for mark in marks] == [6, 1]
    with rollout(archive, FORK).open("a") as file:
        file.write('{"type":"event_msg","payload":{"type":"task_started","turn_id":"1"}}\n')
    grown = archive.mark(str(rollout(archive, FORK)), FORK)
    assert grown is not None
    assert not grown.has_more_turns_than(marks[1])


def test_a_fork_has_its_parents_turns_up_to_where_it_began(archive: CodexArchive) -> None:
    assert prompts(archive, FORK) == [*prompts(archive, PARENT)[:-1], "SAY forked"]
    assert prompts(archive, SECOND_FORK) == [*prompts(archive, FORK), "SAY twice"]


def test_a_fork_without_its_parents_file_is_no_session(archive: CodexArchive) -> None:
    """Codex refuses it: missing source rollout."""
    rollout(archive, PARENT).unlink()
    assert archive.find(FORK, None) is None
    assert archive.find(SECOND_FORK, None) is None


def test_an_archived_session_cannot_be_resumed_but_its_forks_can(archive: CodexArchive, home: Path) -> None:
    file = rollout(archive, PARENT)
    archived = home / "archived_sessions" / file.name
    archived.parent.mkdir()
    file.rename(archived)
    assert archive.find(PARENT, None) is None
    assert prompts(archive, FORK)[0] == "SAY violet"


def test_files_that_name_each_other_as_parents_are_no_session(archive: CodexArchive) -> None:
    fork = rollout(archive, FORK)
    fork.write_text(fork.read_text().replace(PARENT, SECOND_FORK))
    assert archive.find(FORK, None) is None
    assert [turn.prompt for turn in archive.turns(str(fork), FORK)][-1] == "SAY forked"


def test_a_mark_hides_what_was_already_there(archive: CodexArchive) -> None:
    file = rollout(archive, PARENT)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"task_started"' in line)
    file.write_bytes(b"".join(lines[:last]))
    mark = archive.mark(str(file), PARENT)
    assert mark is not None
    file.write_bytes(whole)
    assert [turn.prompt for turn in archive.turns(str(file), PARENT, mark)] == ["SAY later"]
    assert archive.is_intact(mark, PARENT) is True
    file.write_bytes(whole.replace(b"violet", b"indigo"))
    assert archive.is_intact(mark, PARENT) is False


def test_a_compressed_session_is_there_but_shows_no_turns(archive: CodexArchive) -> None:
    file = rollout(archive, PARENT)
    compressed = file.rename(f"{file}.zst")
    assert archive.find(PARENT, None) == str(compressed)
    compressed.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(256)))
    assert list(archive.turns(str(compressed), PARENT)) == []


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda whole: whole[:-300], 6),
        (lambda whole: whole + b"garbage", 6),
        (lambda whole: whole.replace(b"\n", b"\n\x00\xff\n"), 6),
        (lambda whole: whole + b'{"type":"event_msg","payload":[]}\n{"type":3}\nnull\n', 6),
        (lambda whole: b"", 0),
    ],
)
def test_damaged_lines_are_passed_over(
    archive: CodexArchive, damage: Callable[[bytes], bytes], left: int
) -> None:
    file = rollout(archive, PARENT)
    file.write_bytes(damage(file.read_bytes()))
    assert len(list(archive.turns(str(file), PARENT))) == left


def test_what_is_missing_is_no_exception(archive: CodexArchive, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.jsonl")
    assert CodexArchive(tmp_path / "nowhere").find(PARENT, None) is None
    assert list(archive.turns(nowhere, PARENT)) == []
    assert archive.mark(nowhere, PARENT) is None


def calls(archive: CodexArchive, session: ProviderSessionId, place: int) -> list[Called | Returned]:
    """Of one of its turns."""
    path = str(rollout(archive, session))
    own = list(archive.turns(path, session))[place].key
    return [event for key, event in archive.calls(path, session) if key == own]


@pytest.mark.parametrize("session", [PARENT, FORK])
def test_a_turn_holds_its_calls_with_their_results(archive: CodexArchive, session: ProviderSessionId) -> None:
    call_id = "call_65b6cac5863b40d5"
    assert calls(archive, session, 1) == [
        Called(call_id, "command_execution", {"command": "echo hi"}),
        Returned(call_id, "hi\n", is_error=False),
    ]
    assert calls(archive, session, 0) == []


def append(file: Path, kind: str, **payload: Json) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps({"type": kind, "payload": payload}) + "\n")


def append_call(file: Path, name: str, arguments: dict[str, Json], call_id: str) -> None:
    text = json.dumps(arguments)
    append(file, "response_item", type="function_call", name=name, arguments=text, call_id=call_id)


def append_output(file: Path, call_id: str, output: str) -> None:
    append(file, "response_item", type="function_call_output", call_id=call_id, output=output)


def test_a_call_that_has_not_ended_is_there_and_has_no_result(archive: CodexArchive) -> None:
    file = rollout(archive, PARENT)
    append_call(file, "exec_command", {"cmd": "sleep 9"}, "a")
    append_output(file, "a", "Wall time: 10 seconds\nProcess running with session ID 7\nOutput:\n")
    append_call(file, "exec_command", {"cmd": "sleep 8"}, "b")
    append(file, "response_item", type="custom_tool_call", name="apply_patch", input="*** Begin", call_id="c")

    assert calls(archive, PARENT, -1) == [
        Called("a", "command_execution", {"command": "sleep 9"}),
        Called("b", "command_execution", {"command": "sleep 8"}),
        Called("c", "apply_patch", {"input": "*** Begin"}),
    ]


def test_a_call_is_what_it_has_turned_out_to_be(archive: CodexArchive) -> None:
    file = rollout(archive, PARENT)
    append_call(file, "exec_command", {"cmd": "apply_patch <<EOF"}, "a")
    item: Json = {"type": "FileChange", "id": "a", "changes": {"/x": {"type": "add"}}, "status": "completed"}
    append(file, "event_msg", type="item_completed", item=item)
    append_output(file, "a", "Success")

    assert calls(archive, PARENT, -1) == [
        Called("a", "file_change", {"changes": [{"path": "/x", "kind": "add"}]}),
        Returned("a", "add /x", is_error=False),
    ]


def test_what_the_stream_does_not_call_a_call_is_none(archive: CodexArchive) -> None:
    file = rollout(archive, PARENT)
    append_call(file, "update_plan", {"plan": []}, "a")
    append_output(file, "a", "Plan updated")
    append_call(file, "write_stdin", {"session_id": 7, "chars": ""}, "b")

    assert calls(archive, PARENT, -1) == []
