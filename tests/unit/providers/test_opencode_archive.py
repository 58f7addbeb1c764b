import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.providers.opencode import OpencodeArchive
from tests.unit.providers.builders import HERE

PARENT = ProviderSessionId("ses_e1e947058ffe7jWjNoD3rqWDgl")
FORK = ProviderSessionId("ses_e1e9428c3ffeMaD6A42XSwFeZo")  #: of the parent, which went on afterwards
COMPACTED = ProviderSessionId("ses_e1e8826baffe94lty2AoGCkPuc")
FAILED, LATER = "msg_1e16c1704001Jn45m88U079UGJ", "msg_1e16c668b001pE0LdQHeKOeWbn"

Change = Callable[..., None]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript((HERE / "sessions" / "opencode" / "database.sql").read_text("utf-8"))
    return path


@pytest.fixture
def archive(database: Path) -> OpencodeArchive:
    return OpencodeArchive(database.parent)


@pytest.fixture
def change(database: Path) -> Change:
    """By a program that has ended since."""

    def execute(statement: str, *values: str) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement, values)

    return execute


def prompts(archive: OpencodeArchive, database: Path, session: ProviderSessionId) -> list[str]:
    return [turn.prompt for turn in archive.turns(str(database), session)]


def test_turns_are_what_people_asked_and_the_agent_answered(archive: OpencodeArchive, database: Path) -> None:
    turns = list(archive.turns(str(database), PARENT))
    assert [(turn.prompt, turn.response, turn.complete) for turn in turns] == [
        ('  what colour?\n--really "x"\n', "violet", True),
        ("use a tool", "done now", True),
        ("fails", None, False),  # the call to the model failed
        ("killed mid stream", None, False),  # kill -9 while the answer came
        ("stopped mid stream", None, False),  # SIGINT while the answer came
        ("killed in tool", None, False),
        ("after all", "after", True),
    ]
    assert len({turn.key for turn in turns}) == len(turns)


def test_a_turn_holds_its_calls_with_their_results(archive: OpencodeArchive, database: Path) -> None:
    called = list(archive.calls(str(database), PARENT))
    found = {
        turn.prompt: [event for key, event in called if key == turn.key]
        for turn in archive.turns(str(database), PARENT)
    }
    ended, running = "call_lab000002", "call_lab000008"
    assert {prompt: calls for prompt, calls in found.items() if calls} == {
        "use a tool": [
            Called(ended, "bash", {"command": "echo hi; echo err >&2", "description": "Run it"}),
            Returned(ended, "hi\nerr\n", is_error=False),
        ],
        "killed in tool": [
            Called(running, "bash", {"command": "touch begun; sleep 30", "description": "Run it"})
        ],
    }


def test_a_call_that_the_model_was_still_writing_is_none(
    archive: OpencodeArchive, database: Path, change: Change
) -> None:
    change('UPDATE part SET data = replace(data, \'"status":"running"\', \'"status":"pending"\')')
    keys = [turn.key for turn in archive.turns(str(database), PARENT) if turn.prompt == "killed in tool"]
    assert not set(keys) & {key for key, _ in archive.calls(str(database), PARENT)}


def test_a_fork_has_a_copy_of_its_parents_turns(archive: OpencodeArchive, database: Path) -> None:
    assert prompts(archive, database, FORK) == [*prompts(archive, database, PARENT)[:2], "fork it"]


def test_a_summary_of_the_context_is_no_answer(archive: OpencodeArchive, database: Path) -> None:
    """When the context was full opencode summed it up and asked again."""
    turns = list(archive.turns(str(database), COMPACTED))
    assert [(turn.prompt, turn.response, turn.complete) for turn in turns] == [
        ("what colour?", "violet", True),
        ("too long", None, False),
        ("too long", "summary of it all", True),
        ("one more", "the answer", True),
    ]


def test_an_answer_after_its_own_prompt_belongs_to_the_turn(
    archive: OpencodeArchive, database: Path, change: Change
) -> None:
    change("UPDATE part SET data = json_set(data, '$.synthetic', json('true')) WHERE message_id = ?", LATER)
    turns = {turn.prompt: turn for turn in archive.turns(str(database), PARENT)}
    assert "killed mid stream" not in turns
    answer = (
        "UPDATE message SET data = json_set(data, '$.time.completed', 1, '$.finish', 'stop') WHERE id = ?"
    )
    change(answer, "msg_1e16c75ef0011eJoU7G4ZOwmpx")
    turns = {turn.prompt: turn for turn in archive.turns(str(database), PARENT)}
    assert turns["fails"].complete


def test_find_needs_the_session(archive: OpencodeArchive, database: Path) -> None:
    assert archive.find(PARENT, "/lab/work") == str(database)
    assert archive.find(PARENT, None) == str(database)
    assert archive.find(ProviderSessionId("ses_nowhere"), "/lab/work") is None
    assert archive.find(ProviderSessionId("\ud800"), None) is None


def test_a_session_is_found_in_its_own_directory_only(
    archive: OpencodeArchive, database: Path, change: Change, tmp_path: Path
) -> None:
    project, link = tmp_path / "project", tmp_path / "link"
    project.mkdir()
    link.symlink_to(project)
    change("UPDATE session SET directory = ?", str(project.resolve()))
    assert archive.find(PARENT, str(project)) == str(database)
    assert archive.find(PARENT, str(link)) == str(database)
    assert archive.find(PARENT, str(tmp_path)) is None
    assert archive.find(PARENT, "/lab/work") is None


def test_a_link_from_where_the_project_was_is_not_where_the_session_began(
    archive: OpencodeArchive, change: Change, tmp_path: Path
) -> None:
    old, new = tmp_path.resolve() / "old", tmp_path.resolve() / "new"
    new.mkdir()
    old.symlink_to(new)
    change("UPDATE session SET directory = ?", str(old))
    assert archive.find(PARENT, str(new)) is None
    assert archive.find(PARENT, str(old)) is None


def test_a_mark_hides_what_was_already_there(
    archive: OpencodeArchive, database: Path, change: Change
) -> None:
    mark = archive.mark(str(database), FORK)
    assert mark is not None
    assert list(archive.turns(str(database), FORK, mark)) == []
    change("UPDATE message SET session_id = ? WHERE id = ?", FORK, LATER)
    assert [turn.prompt for turn in archive.turns(str(database), FORK, mark)] == ["killed mid stream"]
    assert archive.is_intact(mark, FORK) is True


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE part SET data = replace(data, 'violet', 'indigo')", ()),
        ("DELETE FROM message WHERE id = ?", (FAILED,)),
        ("DELETE FROM session WHERE id = ?", (PARENT,)),
        # undone in its own program: the next prompt deletes what comes after
        (f"""UPDATE session SET revert = '{{"messageID": "{LATER}"}}'""", ()),
    ],
    ids=["edited", "shortened", "deleted", "undone"],
)
def test_a_change_is_noticed(
    archive: OpencodeArchive, database: Path, change: Change, statement: str, values: tuple[str, ...]
) -> None:
    mark = archive.mark(str(database), PARENT)
    assert mark is not None
    assert archive.is_intact(mark, PARENT) is True
    change(statement, *values)
    assert archive.is_intact(mark, PARENT) is False


def test_reading_leaves_nothing_behind(archive: OpencodeArchive, database: Path) -> None:
    before = database.read_bytes()
    assert archive.mark(str(database), PARENT) is not None
    assert list(database.parent.iterdir()) == [database]
    assert database.read_bytes() == before


def test_what_is_not_in_the_main_file_yet_is_read(archive: OpencodeArchive, database: Path) -> None:
    """opencode ends without moving its log into the database; and it may be running."""
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("UPDATE part SET data = replace(data, 'violet', 'indigo')")
        writer.execute("BEGIN IMMEDIATE")
        assert next(archive.turns(str(database), PARENT)).response == "indigo"
        writer.execute("COMMIT")


@pytest.mark.parametrize(
    ("given", "title"),
    [("Violets", "Violets"), ("New session - 2026-01-08T18:05:30.000Z", None), ("New session - mine", "New session - mine")],
)  # fmt: skip
def test_a_title_that_nobody_chose_is_none(
    archive: OpencodeArchive, database: Path, given: str, title: str | None
) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("UPDATE session SET title = ?", (given,))

    assert archive.title(str(database), PARENT) == title
    assert archive.read(str(database), PARENT).facts.title is None  # until its turns are read
    assert {one.title for one in archive.sessions()} == {title}


def test_reading_does_not_stop_a_writer(archive: OpencodeArchive, database: Path, change: Change) -> None:
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as writer:
        writer.execute("UPDATE session SET title = 'a'")
        turns = archive.turns(str(database), PARENT)
        next(turns)
        writer.execute("UPDATE session SET title = 'b'")
        assert len(list(turns)) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"x" * 16 + whole[16:],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:4096] + bytes(len(whole) - 4096),
        lambda whole: b"",
    ],
    ids=["no header", "half", "emptied", "empty"],
)
def test_a_damaged_database_is_no_exception(
    archive: OpencodeArchive, database: Path, damage: Callable[[bytes], bytes]
) -> None:
    mark = archive.mark(str(database), PARENT)
    assert mark is not None
    database.write_bytes(damage(database.read_bytes()))
    archive.find(PARENT, None)
    assert len(list(archive.turns(str(database), PARENT))) < 7
    assert archive.mark(str(database), PARENT) is None
    assert archive.is_intact(mark, PARENT) is False


@pytest.mark.parametrize("data", ["", "{", "[]", '{"role": 3}', "[" * 10_000, "7"])
def test_rows_of_another_shape_are_passed_over(
    archive: OpencodeArchive, database: Path, change: Change, data: str
) -> None:
    change("UPDATE message SET data = ? WHERE id = ?", data, FAILED)
    change("UPDATE session SET revert = ?", data)
    assert "fails" not in prompts(archive, database, PARENT)
    assert len(prompts(archive, database, PARENT)) == 6


def test_another_schema_is_no_exception(archive: OpencodeArchive, database: Path, change: Change) -> None:
    change("ALTER TABLE message RENAME TO messages")
    assert prompts(archive, database, PARENT) == []
    assert archive.mark(str(database), PARENT) is None
