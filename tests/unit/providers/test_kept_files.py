"""What the vault keeps of a provider's own session, where it goes back, and how the two are compared."""

import json
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.providers.claude.provider import ClaudeArchive
from holdfast.providers.codex import CodexArchive
from holdfast.providers.contract import Archive, Comparison, SessionFile, own_names
from holdfast.providers.gemini import GeminiArchive
from holdfast.providers.opencode import OpencodeArchive
from holdfast.providers.scripted import ScriptedArchive
from tests.unit.providers.builders import HERE

ID = ProviderSessionId("6a13a176-0000-4000-8000-000000000001")
OTHER = "6a13a176-0000-4000-8000-000000000002"
CODEX_PARENT = ProviderSessionId("01a1e167-7227-7f42-aba3-284d1ae84e5e")
CODEX_FORK = ProviderSessionId("01a1e167-90db-7133-bdac-bf5e4cbee153")
CODEX_SECOND_FORK = ProviderSessionId("01a1e167-9729-72e0-a8d6-ee7a79d5865e")
GEMINI = ProviderSessionId("0a4b2c9e-5d1f-4e57-9a7a-6f1f9a1c2d3e")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kept(archive: Archive, session: ProviderSessionId, work_dir: str | None = None) -> list[SessionFile]:
    path = archive.find(session, work_dir)
    assert path is not None
    return list(archive.files(path, session))


def content(file: SessionFile) -> bytes:
    return file.data if file.data is not None else Path(str(file.path)).read_bytes()


def left_out(
    archive: Archive, session: ProviderSessionId, files: Iterable[SessionFile], *planted: str
) -> list[str]:
    """Those of the names that are not put back with the session."""
    contents = {file.name: content(file) for file in files} | dict.fromkeys(planted, b'{"evil": 1}\n')
    own = own_names(archive, tuple(contents), session, lambda name: [contents[name]])
    return [name for name in contents if name not in own]


#: names that no provider gives to a file of a session
HOSTILE = (
    "settings.json", "config.toml", "plugins/x.js", "hooks/x.sh", "projects.json", "auth.json", ".env", "a\\b", "",
    "/etc/passwd", "..", "../settings.json", "sessions/../config.toml", "projects/-w/../../settings.json", "tmp/./x/y",
)  # fmt: skip


# --- bytes ---


@pytest.mark.parametrize(
    ("on_disk", "comparison"),
    [
        (None, Comparison.ABSENT),
        ("one\ntwo\n", Comparison.EQUAL),
        ("one\ntwo\nthree\n", Comparison.AHEAD),
        ("one\ntw", Comparison.BEHIND),
        ("", Comparison.BEHIND),
        ("one\nTWO\n", Comparison.DIVERGED),
        ("one\nTWO and more\n", Comparison.DIVERGED),
    ],
)
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_files_are_compared_byte_by_byte(
    tmp_path: Path, on_disk: str | None, comparison: Comparison, cut: int
) -> None:
    recorded = b"one\ntwo\n"
    if on_disk is not None:
        write(tmp_path / f"projects/-w/{ID}.jsonl", on_disk)
    blocks = [recorded[at : at + cut] for at in range(0, len(recorded), cut)]

    assert ClaudeArchive(tmp_path).compare(f"projects/-w/{ID}.jsonl", blocks, ID, "/w") is comparison


# --- the agent that comes with Holdfast ---


def test_a_scripted_session_is_its_file_and_nothing_else(tmp_path: Path) -> None:
    archive = ScriptedArchive(tmp_path)
    write(tmp_path / f"sessions/{ID}.jsonl", "main")
    planted = (
        *HOSTILE,
        "sessions/another.jsonl",
        f"{ID}.jsonl",
        f"plugins/{ID}.jsonl",
        f"sessions/{ID}/x.js",
    )

    assert left_out(archive, ID, kept(archive, ID), *planted) == list(planted)
    for name in ("../settings", "a/b", ""):
        assert left_out(archive, ProviderSessionId(name), (), f"sessions/{name}.jsonl")


# --- Claude Code ---


def test_claude_has_the_folder_of_the_session_beside_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "projects/-w"
    write(folder / f"{ID}.jsonl", "main")
    write(folder / f"{ID}/subagents/agent-1.jsonl", "sub")
    write(folder / f"{ID}/tool-results/toolu_1.txt", "long")
    write(folder / "another.jsonl", "other")
    (folder / ID / "link").symlink_to("/etc/hostname")

    found = kept(ClaudeArchive(tmp_path), ID)

    assert [(file.name, file.is_main) for file in found] == [
        (f"projects/-w/{ID}.jsonl", True),
        (f"projects/-w/{ID}/subagents/agent-1.jsonl", False),
        (f"projects/-w/{ID}/tool-results/toolu_1.txt", False),
    ]
    planted = (
        *HOSTILE, f"projects/-w/{OTHER}.jsonl", f"projects/-w/{OTHER}/subagents/agent-1.jsonl", "projects/-w/memory/MEMORY.md",
        f"projects/{ID}.jsonl", f"plugins/{ID}/x.js", f"plugins/-w/{ID}.jsonl", f"projects/-w/{ID}/../settings.json",
        f"projects/-w/{ID}.json", f"projects/-w/x/{ID}.jsonl", f"{ID}/x.js",
    )  # fmt: skip
    assert left_out(ClaudeArchive(tmp_path), ID, found, *planted) == list(planted)


def test_what_lies_beside_the_sessions_of_claude_is_none_of_them(tmp_path: Path) -> None:
    names = ("projects/-w/memory.jsonl", "projects/-w/memory/MEMORY.md")
    assert left_out(ClaudeArchive(tmp_path), ProviderSessionId("memory"), (), *names) == list(names)


def test_claude_files_go_back_to_their_folder_or_to_the_one_that_has_the_session(tmp_path: Path) -> None:
    archive, name = ClaudeArchive(tmp_path), f"projects/-w/{ID}/subagents/agent-1.jsonl"
    assert archive.place(name, ID, "/w") == str(tmp_path / name)

    write(tmp_path / f"projects/-moved/{ID}.jsonl", "main")
    assert archive.place(name, ID, "/w") == str(tmp_path / f"projects/-moved/{ID}/subagents/agent-1.jsonl")


def test_a_claude_session_beside_its_diverged_file_is_the_one_that_counts(tmp_path: Path) -> None:
    archive, name = ClaudeArchive(tmp_path), f"projects/-w/{ID}.jsonl"
    write(tmp_path / name, "diverged")
    aside = archive.aside(name, ID)
    assert aside is not None
    assert archive.find(ID, "/w") == str(tmp_path / name)

    write(Path(aside), "recorded")

    assert archive.find(ID, "/w") == aside
    (file,) = kept(archive, ID)
    assert archive.place(file.name, ID, "/w") == aside
    assert left_out(archive, ID, [file], f"holdfast/{ID}/subagents/agent-1.jsonl") == []
    assert left_out(archive, ID, [file], f"holdfast/{OTHER}.jsonl") == [f"holdfast/{OTHER}.jsonl"]


# --- Codex ---


@pytest.fixture
def codex(tmp_path: Path) -> CodexArchive:
    shutil.copytree(HERE / "sessions" / "codex", tmp_path, dirs_exist_ok=True)
    return CodexArchive(tmp_path)


def test_a_codex_fork_has_the_files_of_all_its_ancestors(codex: CodexArchive) -> None:
    found = kept(codex, CODEX_SECOND_FORK)
    assert [file.name[-42:-6] for file in found] == [CODEX_SECOND_FORK, CODEX_FORK, CODEX_PARENT]
    assert [file.is_main for file in found] == [True, False, False]


def test_a_codex_session_is_its_file_and_those_of_its_ancestors(codex: CodexArchive, tmp_path: Path) -> None:
    found = kept(codex, CODEX_SECOND_FORK)
    second, first, parent = (file.name for file in found)
    planted = (
        *HOSTILE, f"sessions/2031/01/02/rollout-1-{ID}.jsonl", f"plugins/{Path(second).name}", f"{second}.js",
        f"sessions/../../x/{Path(second).name}", f"sessions/2031/01/02/rollout-1-{CODEX_SECOND_FORK}.toml",
    )  # fmt: skip

    assert left_out(codex, CODEX_SECOND_FORK, found, *planted) == list(planted)
    assert left_out(codex, CODEX_FORK, found) == [second]
    assert left_out(codex, CODEX_PARENT, found) == [second, first]
    # without the file between them it is not known that the last one is an ancestor
    assert left_out(codex, CODEX_SECOND_FORK, (found[0], found[2])) == [parent]


def test_the_ancestors_of_a_compressed_codex_session_are_known(codex: CodexArchive) -> None:
    zstandard = pytest.importorskip("zstandard")
    fork, parent = kept(codex, CODEX_FORK)
    packed = SessionFile(f"{fork.name}.zst", None, zstandard.ZstdCompressor().compress(content(fork)))

    assert left_out(codex, CODEX_FORK, [packed, parent]) == []
    assert left_out(codex, CODEX_FORK, [packed, fork, parent]) == []
    damaged = SessionFile(packed.name, None, b"not compressed")
    assert left_out(codex, CODEX_FORK, [damaged, parent]) == [parent.name]


def test_a_codex_file_goes_where_its_list_of_threads_says(codex: CodexArchive, tmp_path: Path) -> None:
    (file,) = kept(codex, CODEX_PARENT)
    Path(str(file.path)).unlink()
    assert codex.place(file.name, CODEX_PARENT, None) == str(tmp_path / file.name)

    listed = tmp_path / "sessions/2031/01/02" / Path(file.name).name
    for number, path in ((5, tmp_path / "sessions/old.jsonl"), (12, listed)):
        database = sqlite3.connect(tmp_path / f"state_{number}.sqlite")
        database.execute("CREATE TABLE threads (id TEXT, rollout_path TEXT)")
        database.execute("INSERT INTO threads VALUES (?, ?)", (CODEX_PARENT, str(path)))
        database.commit()
        database.close()

    assert codex.place(file.name, CODEX_PARENT, None) == str(listed)


def test_an_archived_codex_session_is_there(codex: CodexArchive, tmp_path: Path) -> None:
    (file,) = kept(codex, CODEX_PARENT)
    data = content(file)
    archived = tmp_path / "archived_sessions" / Path(file.name).name
    archived.parent.mkdir(exist_ok=True)
    Path(str(file.path)).rename(archived)

    assert codex.place(file.name, CODEX_PARENT, None) == str(archived)
    assert codex.compare(file.name, [data], CODEX_PARENT, None) is Comparison.EQUAL


def test_a_codex_session_that_was_compressed_since_is_left_alone(codex: CodexArchive) -> None:
    (file,) = kept(codex, CODEX_PARENT)
    data, path = content(file), Path(str(file.path))
    path.rename(f"{path}.zst")

    assert codex.compare(file.name, [data], CODEX_PARENT, None) is Comparison.AHEAD


# --- opencode ---


@pytest.fixture
def opencode(tmp_path: Path) -> OpencodeArchive:
    database = sqlite3.connect(tmp_path / "opencode.db")
    database.executescript(
        """
        CREATE TABLE session (id, project_id, parent_id, slug, directory, title, version, revert, cost,
            tokens_cache_read, permission, time_created, time_updated);
        CREATE TABLE message (id, session_id, time_created, data);
        CREATE TABLE part (id, message_id, session_id, data);
        INSERT INTO session VALUES ('ses_1', 'global', NULL, 'a-slug', '/w', 'it', '1', NULL, 0.5, 7, '[{"action":"deny"}]', 1, 9);
        INSERT INTO session VALUES ('ses_2', 'global', 'ses_1', 'b-slug', '/w', 'sub', '1', NULL, 0, 0, NULL, 2, 3);
        INSERT INTO session VALUES ('ses_3', 'global', NULL, 'c-slug', '/w', 'other', '1', NULL, 0, 0, NULL, 2, 3);
        INSERT INTO message VALUES ('msg_2', 'ses_1', 20, '{"role":"assistant","parentID":"msg_1"}');
        INSERT INTO message VALUES ('msg_1', 'ses_1', 10, '{"role":"user"}');
        INSERT INTO part VALUES ('prt_2', 'msg_2', 'ses_1', '{"type":"text","text":"vi\\u00f6let"}');
        INSERT INTO part VALUES ('prt_1', 'msg_1', 'ses_1', '{"type":"text","text":"colour?"}');
        """
    )
    database.commit()
    database.close()
    return OpencodeArchive(tmp_path)


def test_an_opencode_session_is_exported_with_those_of_its_subagents(opencode: OpencodeArchive) -> None:
    main, child = kept(opencode, ProviderSessionId("ses_1"))

    assert [(file.name, file.is_main) for file in (main, child)] == [
        ("opencode.db/ses_1.json", True),
        ("opencode.db/ses_2.json", False),
    ]
    exported = json.loads(content(main))
    assert exported["info"] == {
        "id": "ses_1", "projectID": "global", "slug": "a-slug", "directory": "/w", "title": "it", "version": "1",
        "cost": 0.5, "tokens": {"cache": {"read": 7}}, "permission": [{"action": "deny"}],
        "time": {"created": 1, "updated": 9},
    }  # fmt: skip
    assert [message["info"]["id"] for message in exported["messages"]] == ["msg_1", "msg_2"]
    (part,) = exported["messages"][1]["parts"]
    assert part == {
        "type": "text", "text": "vi\u00f6let", "id": "prt_2", "messageID": "msg_2", "sessionID": "ses_1"
    }  # fmt: skip
    assert json.loads(content(child))["info"]["parentID"] == "ses_1"


def test_an_opencode_session_is_its_export_and_those_of_its_subagents(opencode: OpencodeArchive) -> None:
    session = ProviderSessionId("ses_1")
    found = kept(opencode, session)
    (other,) = kept(opencode, ProviderSessionId("ses_3"))
    planted = (*HOSTILE, "opencode.db/ses_9.json", "plugins/ses_1.js", "opencode.db/x/ses_1.json")

    assert left_out(opencode, session, found, *planted) == list(planted)
    assert left_out(opencode, session, [*found, other]) == [other.name]
    odd = SessionFile("opencode.db/ses_4.json", None, b'{"info": {"id": "ses_4", "parentID": {}}}')
    assert left_out(opencode, session, [*found, odd]) == [odd.name]
    renamed = SessionFile("opencode-next.db/ses_1.json", None, content(found[0]))
    assert left_out(opencode, session, [*found, renamed]) == []
    # opencode goes by the id in the export
    disguised = SessionFile("opencode.db/ses_1.json", None, content(other))
    assert left_out(opencode, session, [disguised]) == [disguised.name]


def test_an_export_of_an_unchanged_opencode_session_is_the_same_to_the_byte(
    opencode: OpencodeArchive, tmp_path: Path
) -> None:
    before = kept(opencode, ProviderSessionId("ses_1"))
    assert kept(opencode, ProviderSessionId("ses_1")) == before

    database = sqlite3.connect(tmp_path / "opencode.db")
    database.execute("INSERT INTO message VALUES ('msg_3', 'ses_1', 30, '{}')")
    database.commit()
    database.close()
    first, grown = content(before[0]), content(kept(opencode, ProviderSessionId("ses_1"))[0])
    assert grown.startswith(first[: first.index(b'\n],"info"')])


def test_opencode_sessions_are_compared_by_the_ids_of_their_messages(
    opencode: OpencodeArchive, tmp_path: Path
) -> None:
    session = ProviderSessionId("ses_1")
    name, data = "opencode.db/ses_1.json", content(kept(opencode, session)[0])

    def compared(statement: str) -> Comparison:
        database = sqlite3.connect(tmp_path / "opencode.db")
        database.execute(statement)
        database.commit()
        database.close()
        return opencode.compare(name, [data], session, "/w")

    assert compared("UPDATE session SET title = 'renamed'") is Comparison.EQUAL
    assert compared("DELETE FROM message WHERE id = 'msg_2'") is Comparison.BEHIND
    assert compared("INSERT INTO message VALUES ('msg_9', 'ses_1', 30, '{}')") is Comparison.DIVERGED
    assert compared("UPDATE message SET id = 'msg_2' WHERE id = 'msg_9'") is Comparison.EQUAL
    assert compared("INSERT INTO message VALUES ('msg_9', 'ses_1', 40, '{}')") is Comparison.AHEAD
    assert compared("DELETE FROM session") is Comparison.ABSENT
    assert OpencodeArchive(tmp_path / "none").compare(name, [data], session, "/w") is Comparison.ABSENT


# --- Gemini CLI ---


@pytest.fixture
def gemini(tmp_path: Path) -> GeminiArchive:
    shutil.copytree(HERE / "sessions" / "gemini", tmp_path, dirs_exist_ok=True)
    return GeminiArchive(tmp_path)


def test_a_gemini_session_needs_the_mark_of_its_project_beside_it(
    gemini: GeminiArchive, tmp_path: Path
) -> None:
    (main,) = kept(gemini, GEMINI, "/lab/work")
    ((mark, content),) = gemini.companions(str(main.path), "/lab/work")
    assert (Path(mark), content) == (tmp_path / "tmp/work/.project_root", b"/lab/work")


def test_a_gemini_file_goes_to_the_folder_of_its_project_and_to_none_of_another(
    gemini: GeminiArchive, tmp_path: Path
) -> None:
    (main,) = kept(gemini, GEMINI, "/lab/work")
    shutil.rmtree(tmp_path / "tmp")
    assert gemini.place(main.name, GEMINI, "/lab/work") == str(tmp_path / main.name)

    planted = (
        *HOSTILE, f"plugins/work/chats/session-1-{GEMINI[:8]}.jsonl", "tmp/work/chats/session-1-0a4b2c9f.jsonl",
        f"tmp/work/chats/{ID}/x.json", f"tmp/work/tool-outputs/session-{ID}/x.txt", "tmp/work/.project_root",
        f"tmp/work/{GEMINI}/x.js", f"tmp/work/tool-outputs/{GEMINI}/x.txt",
    )  # fmt: skip
    assert left_out(gemini, GEMINI, (), *planted) == list(planted)
    own = (main.name, f"tmp/work/chats/{GEMINI}/sub.jsonl", f"tmp/work/tool-outputs/session-{GEMINI}/x.txt")
    assert left_out(gemini, GEMINI, (), *own) == []

    _, slug, *inner = Path(main.name).parts
    write(tmp_path / "tmp" / slug / ".project_root", "/somebody/else")
    assert gemini.place(main.name, GEMINI, "/lab/work") == str(tmp_path.joinpath("tmp", f"{slug}-1", *inner))

    write(tmp_path / "projects.json", json.dumps({"projects": {"/lab/work": "named"}}))
    assert gemini.place(main.name, GEMINI, "/lab/work") == str(tmp_path.joinpath("tmp", "named", *inner))


def test_a_mended_gemini_session_is_still_the_same(gemini: GeminiArchive) -> None:
    (main,) = kept(gemini, GEMINI, "/lab/work")
    before, path = content(main), Path(str(main.path))
    mark, turns = gemini.mark(str(path), GEMINI), list(gemini.turns(str(path), GEMINI))
    assert mark is not None
    mending = gemini.mend(str(path), GEMINI)
    assert mending is not None

    path.write_bytes(mending.data)
    for file in mending.superfluous:
        Path(file).unlink()

    assert gemini.compare(main.name, [before], GEMINI, "/lab/work") is Comparison.EQUAL
    assert gemini.is_intact(mark, GEMINI) is True
    assert list(gemini.turns(str(path), GEMINI)) == turns
    assert gemini.mend(str(path), GEMINI) is None


def test_mending_keeps_one_result_of_each_call_and_deletes_files_without_a_prompt(tmp_path: Path) -> None:
    def result(call: str) -> dict[str, object]:
        return {"functionResponse": {"id": call, "response": {"output": "once"}}}

    chats = tmp_path / "tmp/work/chats"
    header = {"sessionId": GEMINI, "kind": "main"}
    lines = [
        header,
        {"id": "1", "type": "user", "content": [{"text": "colour?"}]},
        {"id": "2", "type": "gemini", "content": "", "toolCalls": [{"id": "a", "result": [result("a")]}]},
        {"id": "3", "type": "user", "content": [result("a")]},
        {"id": "4", "type": "gemini", "content": [{"functionCall": {"id": "b"}}]},
        {"id": "5", "type": "user", "content": [result("b")]},
        {"id": "6", "type": "user", "content": [result("b"), {"text": "and this"}]},
        {"$set": {"summary": "about colours"}},
    ]
    main = write(chats / f"session-1-{GEMINI[:8]}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    stub = write(chats / f"session-2-{GEMINI[:8]}.jsonl", json.dumps(header) + "\n")
    write(chats / f"session-3-{GEMINI[:8]}.jsonl", json.dumps({"sessionId": f"{GEMINI[:8]}-other"}) + "\n")

    mending = GeminiArchive(tmp_path).mend(str(main), GEMINI)

    assert mending is not None
    assert mending.superfluous == (str(stub),)
    first, *messages = map(json.loads, mending.data.splitlines())
    assert first == {**header, "summary": "about colours"}
    assert [message["id"] for message in messages] == ["1", "2", "4", "5", "6"]
    assert messages[-1]["content"] == [{"text": "and this"}]
