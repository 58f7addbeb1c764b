import json
import os
from pathlib import Path

import pytest

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.usage import Usage
from holdfast.processes.owners import process_start
from holdfast.providers.claude.provider import ClaudeArchive
from holdfast.providers.contract import ArchivedTurn
from tests.unit.providers.builders import HERE

SESSION = ProviderSessionId("c65d4adf-4fd1-4819-8505-e11048e9b831")
RECORDED = HERE / "sessions" / "claude"
PARENT = (RECORDED / "parent.jsonl").read_bytes()


@pytest.fixture
def archive(tmp_path: Path) -> ClaudeArchive:
    return ClaudeArchive(tmp_path)


def keep(tmp_path: Path, content: bytes, folder: str = "-lab-work", session: str = SESSION) -> Path:
    file = tmp_path / "projects" / folder / f"{session}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_turns_are_what_people_asked_and_the_agent_answered(archive: ClaudeArchive) -> None:
    turns = list(archive.turns(str(RECORDED / "parent.jsonl"), SESSION))
    assert [(turn.prompt[:16], turn.complete) for turn in turns] == [
        ("SAY violet", True),
        ('TOOL Bash {"comm', True),
        ("HTTP 500", False),  # the call to the model failed
        ("SLEEP 20 killed", False),  # kill -9 while the answer came
        ('TOOL Agent {"des', True),  # a subagent in the background: two answers
        ("SLEEP 20 stopped", False),  # SIGINT while the answer came
        ("SAY after", True),  # /compact before it is no turn
    ]
    assert turns[0].response == "violet"
    assert turns[1].response is not None
    assert turns[1].response.startswith("TOOLDONE: ")
    assert turns[2].response is turns[3].response is None
    assert turns[4].response is not None
    assert turns[4].response.startswith("TOOLDONE: ")
    assert turns[4].response.endswith("\n\nok (no directive): ")
    assert turns[5].response == "slept 20"
    assert len({turn.key for turn in turns}) == len(turns)


def test_a_turn_holds_its_calls_with_their_results(archive: ClaudeArchive) -> None:
    path, call_id = str(RECORDED / "parent.jsonl"), "toolu_1cd264cfcb674303951a266a"
    second = list(archive.turns(path, SESSION))[1]
    assert [event for key, event in archive.calls(path, SESSION) if key == second.key] == [
        Called(call_id, "Bash", {"command": "echo hi"}),
        Returned(call_id, "hi", is_error=False),
    ]


def test_a_fork_keeps_the_keys_of_the_turns_it_copied(archive: ClaudeArchive) -> None:
    parent = {turn.key for turn in archive.turns(str(RECORDED / "parent.jsonl"), SESSION)}
    copied, own = archive.turns(str(RECORDED / "fork.jsonl"), ProviderSessionId("fork"))
    assert copied.key in parent
    assert own.key not in parent
    assert own.prompt == "SAY forked"


def test_a_mark_hides_what_was_already_there(archive: ClaudeArchive, tmp_path: Path) -> None:
    lines = PARENT.splitlines(keepends=True)
    begins = next(number for number, line in enumerate(lines) if b'"content":"SAY after"' in line)
    file = keep(tmp_path, b"".join(lines[:begins]))
    mark = archive.mark(str(file), SESSION)
    assert mark is not None
    file.write_bytes(PARENT)
    assert [turn.prompt for turn in archive.turns(str(file), SESSION, mark)] == ["SAY after"]
    assert archive.is_intact(mark, SESSION) is True


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (b'{"type":"queue-operation","operation":"enqueue","content":"more"}', 0),
        (b'{"type":"mode","mode":"default"}', 0),
        (b'{"type":"user","isMeta":true,"uuid":"1","message":{"role":"user","content":"caveat"}}', 0),
        (b'{"type":"user","uuid":"1","message":{"role":"user","content":[{"type":"tool_result"}]}}', 0),
        (b'{"type":"user","uuid":"1","message":{"role":"user","content":"cut o', 0),
        (b'{"type":"user","uuid":"1","message":{"role":"user","content":"more"}}', 1),
        (rb'{"type":"user","uuid":"1","message":{"role":"user","content":"a \"tool_result\"?"}}', 1),
    ],
)
def test_a_mark_counts_what_was_asked_and_not_what_the_cli_keeps_books_of(
    archive: ClaudeArchive, tmp_path: Path, line: bytes, asked: int
) -> None:
    before = archive.mark(str(keep(tmp_path, PARENT)), SESSION)
    after = archive.mark(str(keep(tmp_path, PARENT + line + b"\n")), SESSION)
    assert before is not None
    assert after is not None
    assert after.size > before.size
    assert (after.turns or 0) - (before.turns or 0) == asked


def test_a_mark_ends_with_the_last_whole_line(archive: ClaudeArchive, tmp_path: Path) -> None:
    """A line that is half written is neither part of what was there, nor lost to who reads on from the mark."""
    lines = PARENT.splitlines(keepends=True)
    begins = next(number for number, line in enumerate(lines) if b'"content":"SAY after"' in line)
    before, half = b"".join(lines[:begins]), lines[begins][:40]
    file = keep(tmp_path, before + half)
    torn = archive.mark(str(file), SESSION)
    assert torn is not None
    assert torn == archive.mark(str(keep(tmp_path, before)), SESSION)

    keep(tmp_path, before)  # whoever goes on with the session may cut the half line off
    assert archive.is_intact(torn, SESSION)
    keep(tmp_path, PARENT)
    assert archive.is_intact(torn, SESSION)
    assert [turn.prompt for turn in archive.turns(str(file), SESSION, after=torn)] == ["SAY after"]


def test_an_edited_session_is_not_intact(archive: ClaudeArchive, tmp_path: Path) -> None:
    file = keep(tmp_path, PARENT)
    mark = archive.mark(str(file), SESSION)
    assert mark is not None
    file.write_bytes(PARENT.replace(b"violet", b"indigo", 1))
    assert archive.is_intact(mark, SESSION) is False
    file.unlink()
    assert archive.is_intact(mark, SESSION) is False


@pytest.mark.parametrize(
    "damaged",
    [
        PARENT[:-200],
        b"garbage\n" + PARENT,
        PARENT + b'{"type":"user","mess',
        PARENT.replace(b"\n", b"\n\x00\x00\xff\xfe\n"),
        PARENT + b'[1, 2]\n"text"\nnull\n{"type":["user"],"message":3}\n',
    ],
)
def test_damaged_lines_are_passed_over(archive: ClaudeArchive, tmp_path: Path, damaged: bytes) -> None:
    turns = list(archive.turns(str(keep(tmp_path, damaged)), SESSION))
    assert turns[0].prompt == "SAY violet"
    assert len(turns) == 7


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"type":"queue-operation","operation":"enqueue"}\n'])
def test_a_file_without_a_conversation_has_no_turns(
    archive: ClaudeArchive, tmp_path: Path, content: bytes
) -> None:
    assert list(archive.turns(str(keep(tmp_path, content)), SESSION)) == []


def test_a_missing_file_is_no_exception(archive: ClaudeArchive, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.jsonl")
    assert archive.find(SESSION, "/lab/work") is None
    assert list(archive.turns(nowhere, SESSION)) == []
    assert archive.mark(nowhere, SESSION) is None
    assert archive.is_intact(TranscriptMark(nowhere, 1, ""), SESSION) is False


def test_a_session_is_found_wherever_it_began(archive: ClaudeArchive, tmp_path: Path) -> None:
    file = keep(tmp_path, PARENT)
    for work_dir in ("/lab/work", "/somewhere/else", None):
        assert archive.find(SESSION, work_dir) == str(file)


def test_of_two_sessions_with_one_id_the_directory_decides(archive: ClaudeArchive, tmp_path: Path) -> None:
    here, _ = keep(tmp_path, PARENT, "-lab-my-work-"), keep(tmp_path, PARENT, "-lab-other")
    assert archive.find(SESSION, "/lab/my.work_") == str(here)
    assert archive.find(SESSION, "/lab/third") is None
    assert archive.find(SESSION, None) is None


def test_the_folder_of_a_long_path_is_cut(archive: ClaudeArchive, tmp_path: Path) -> None:
    deep = "/" + "l" * 120 + "/" + "m" * 120
    here = keep(tmp_path, PARENT, "-" + "l" * 120 + "-" + "m" * 78 + "-mkce57")
    keep(tmp_path, PARENT, "-lab-other")
    assert archive.find(SESSION, deep) == str(here)


def test_the_folder_of_a_link_is_its_targets(archive: ClaudeArchive, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    here = keep(tmp_path, PARENT, str(target.resolve()).replace("/", "-").replace("_", "-").replace(".", "-"))
    keep(tmp_path, PARENT, "-lab-other")
    assert archive.find(SESSION, str(link)) == str(here)


def test_a_directory_in_the_files_place_is_no_session(archive: ClaudeArchive, tmp_path: Path) -> None:
    (tmp_path / "projects" / "-lab-work" / f"{SESSION}.jsonl").mkdir(parents=True)
    assert archive.find(SESSION, "/lab/work") is None


class Branches:
    """Lines as Claude writes them: a tree."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def turn(self, name: str, parent: str | None, *, answered: bool = True) -> None:
        self.line(type="user", uuid=f"ask-{name}", parentUuid=parent, message={"content": f"ask {name}"})
        if answered:
            self.answer(name)

    def answer(self, name: str) -> None:
        message = {"id": name, "stop_reason": "end_turn", "content": [{"type": "text", "text": f"re {name}"}]}
        self.line(type="assistant", uuid=name, parentUuid=f"ask-{name}", message=message)

    def left_at(self, leaf: str) -> None:
        """A program has ended there, in order."""
        self.line(type="last-prompt", leafUuid=leaf)

    def line(self, **entry: object) -> None:
        self.lines.append(json.dumps(entry).encode())

    def read(self, tmp_path: Path, after: TranscriptMark | None = None) -> list[ArchivedTurn]:
        file = keep(tmp_path, b"\n".join([*self.lines, b""]))
        return list(ClaudeArchive(tmp_path).turns(str(file), SESSION, after))

    def live(self, tmp_path: Path) -> list[str]:
        return [turn.prompt.removeprefix("ask ") for turn in self.read(tmp_path) if turn.live]


@pytest.fixture
def branches() -> Branches:
    begun = Branches()
    begun.turn("a", None)
    return begun


def test_a_session_that_was_left_in_order_goes_on_from_there(branches: Branches, tmp_path: Path) -> None:
    branches.turn("x", "a")
    branches.left_at("x")
    branches.turn("y", "a")
    assert branches.live(tmp_path) == ["a", "x"]
    branches.left_at("y")
    assert branches.live(tmp_path) == ["a", "y"]


def test_what_was_said_after_that_counts_though_its_program_was_killed(
    branches: Branches, tmp_path: Path
) -> None:
    branches.turn("x", "a")
    branches.left_at("x")
    branches.turn("y", "x", answered=False)
    assert branches.live(tmp_path) == ["a", "x", "y"]


def test_without_a_word_of_where_it_was_left_the_newest_line_counts(
    branches: Branches, tmp_path: Path
) -> None:
    branches.turn("y", "a")
    branches.turn("x", "a")
    assert branches.live(tmp_path) == ["a", "x"]
    branches.left_at("nobody knows")
    assert branches.live(tmp_path) == ["a", "x"]


def test_an_answer_belongs_to_the_request_that_it_goes_on_from(branches: Branches, tmp_path: Path) -> None:
    branches.turn("x", "a", answered=False)
    branches.turn("y", "a")
    branches.answer("x")
    turns = branches.read(tmp_path)
    assert [(turn.prompt, turn.response, turn.live) for turn in turns] == [
        ("ask a", "re a", True),
        ("ask x", "re x", True),
        ("ask y", "re y", False),
    ]


def test_a_line_that_was_lost_takes_none_of_the_earlier_ones_along(
    branches: Branches, tmp_path: Path
) -> None:
    branches.turn("x", "a")
    branches.turn("y", "x")
    branches.lines = [line for line in branches.lines if b'"uuid": "x"' not in line]
    assert branches.live(tmp_path) == ["a", "x", "y"]


def test_a_session_goes_on_behind_its_summary(branches: Branches, tmp_path: Path) -> None:
    branches.line(type="system", subtype="compact_boundary", uuid="cut", logicalParentUuid="a")
    branches.turn("x", "cut")
    branches.left_at("x")
    assert branches.live(tmp_path) == ["a", "x"]


def test_a_command_after_a_turn_leaves_it_answered(branches: Branches, tmp_path: Path) -> None:
    summary = {"content": "This session is being continued"}
    branches.line(type="user", uuid="summary", parentUuid="a", message=summary, isCompactSummary=True)
    caveat = {"content": "<local-command-caveat>not a request</local-command-caveat>"}
    branches.line(type="user", uuid="caveat", parentUuid="summary", message=caveat, isMeta=True)
    (turn,) = branches.read(tmp_path)
    assert (turn.response, turn.complete) == ("re a", True)


def test_what_a_session_has_cost_is_what_its_last_process_wrote_down(
    archive: ClaudeArchive, branches: Branches, tmp_path: Path
) -> None:
    for cost in (1, 2):
        models = {"opus": {"inputTokens": cost, "cacheReadInputTokens": 10, "outputTokens": cost}}
        branches.line(type="cost-state", totalCostUSD=cost / 2, modelUsage=models)
    file = keep(tmp_path, b"\n".join(branches.lines))
    assert archive.spent(str(file), SESSION) == Usage(12, 10, 2, 1.0)
    assert archive.spent(str(keep(tmp_path, b"")), SESSION) == Usage()


def listed(tmp_path: Path, **changes: object) -> None:
    """This very process, in Claude's own list."""
    entry = {
        "pid": os.getpid(),
        "sessionId": SESSION,
        "procStart": str(process_start(os.getpid())),
        "startedAt": (process_start(os.getpid()) or 0) * 1000,
        **changes,
    }
    file = tmp_path / "sessions" / f"{entry['pid']}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(entry))


def test_a_session_that_claude_itself_lists_as_open_has_a_writer(
    archive: ClaudeArchive, tmp_path: Path
) -> None:
    listed(tmp_path)
    assert archive.writer("", SESSION) == f"claude (process {os.getpid()})"
    assert archive.writer("", ProviderSessionId("another")) is None


@pytest.mark.parametrize(
    "stale",
    [
        {"procStart": "1", "startedAt": 1},  # the pid was given out again
        {"pid": 2**22 + 1},  # there is no such process
        {"pid": "many"},
        {"procStart": None, "startedAt": None},
    ],
)
def test_what_cannot_be_verified_in_claudes_list_is_no_writer(
    archive: ClaudeArchive, tmp_path: Path, stale: dict[str, object]
) -> None:
    listed(tmp_path, **stale)
    assert archive.writer("", SESSION) is None
    (tmp_path / "sessions" / "1.json").write_text("not JSON")
    assert archive.writer("", SESSION) is None
