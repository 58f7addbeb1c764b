"""One pass over a session gives everything that the other readings give, and what only it tells."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard

from holdfast.domain.events import Called, Noted, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import Usage
from holdfast.providers import session_files
from holdfast.providers.claude.provider import ClaudeArchive
from holdfast.providers.codex import CodexArchive
from holdfast.providers.contract import Archive, ReadTurn, SessionFacts
from holdfast.providers.gemini import GeminiArchive
from holdfast.providers.opencode import OpencodeArchive
from tests.unit.providers.builders import HERE

RECORDED = HERE / "sessions"
SESSION = ProviderSessionId("c65d4adf-4fd1-4819-8505-e11048e9b831")
THREAD = ProviderSessionId("01a1e167-7227-7f42-aba3-284d1ae84e5e")
FORK = ProviderSessionId("01a1e167-90db-7133-bdac-bf5e4cbee153")
SMALL = 1_000  #: room for hardly a turn


def read(archive: Archive, path: str | Path, session_id: str = SESSION, room: int | None = None) -> tuple[list[ReadTurn], SessionFacts]:  # fmt: skip
    reading = archive.read(str(path), ProviderSessionId(session_id), None, room)
    return list(reading.turns), reading.facts


def claude_home(tmp_path: Path) -> Path:
    folder = tmp_path / "projects" / "-lab-work"
    folder.mkdir(parents=True)
    shutil.copyfile(RECORDED / "claude" / "parent.jsonl", folder / f"{SESSION}.jsonl")
    shutil.copyfile(RECORDED / "claude" / "fork.jsonl", folder / "1d4e90aa-40fd-44cf-b856-93dae5adef53.jsonl")
    return tmp_path


def every_archive(tmp_path: Path) -> list[Archive]:
    for name in ("codex", "gemini"):
        shutil.copytree(RECORDED / name, tmp_path / name)
    return [
        ClaudeArchive(claude_home(tmp_path / "claude")),
        CodexArchive(tmp_path / "codex"),
        GeminiArchive(tmp_path / "gemini"),
    ]


def line(kind: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "timestamp": "2026-11-15T10:00:00.000Z", "cwd": "/w", "gitBranch": "main",
        "message": {"role": kind, "content": text, **more.pop("message", {})}, **more,
    }  # fmt: skip


def write(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines))  # fmt: skip
    return path


def test_it_gives_what_the_other_readings_give(tmp_path: Path) -> None:
    seen = 0
    for archive in every_archive(tmp_path):
        for source in archive.sources():
            turns, facts = read(archive, source.path, source.id or "")
            assert [one.turn for one in turns] == list(archive.turns(source.path, facts.id))
            calls = [(one.turn.key, e) for one in turns for e in one.events if not isinstance(e, Noted)]
            assert calls == list(archive.calls(source.path, facts.id))
            assert facts.mark == archive.mark(source.path, facts.id)
            assert facts.spent == archive.spent(source.path, facts.id)
            seen += len(turns)
    assert seen > 20


def test_little_room_gives_the_same_in_parts(tmp_path: Path) -> None:
    for archive in every_archive(tmp_path):
        for source in archive.sources():
            whole, facts = read(archive, source.path, source.id or "")
            parts, same = read(archive, source.path, source.id or "", SMALL)
            events: dict[str, list[Any]] = {}
            texts = {}
            for part in parts:
                events.setdefault(part.turn.key, []).extend(part.events)
                if not part.is_part:
                    texts[part.turn.key] = (part.turn.prompt, part.turn.response)
            assert texts == {one.turn.key: (one.turn.prompt, one.turn.response) for one in whole}
            assert {key: list(found) for key, found in events.items()} == {
                one.turn.key: list(one.events) for one in whole
            }
            assert (same.mark, same.dead, same.spent) == (facts.mark, facts.dead, facts.spent)


def test_a_claude_session_tells_everything_about_itself(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "…"}}
    asked = line("user", "look", uuid="u1", parentUuid=None)
    asked["message"]["content"] = [{"type": "text", "text": "look"}, image]
    usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 2}
    said = {"id": "m1", "model": "opus", "stop_reason": "end_turn", "usage": usage}
    path = write(
        tmp_path / "s.jsonl",
        asked,
        line("assistant", "a cat", uuid="a1", parentUuid="u1", gitBranch="next", message=said),
        line("assistant", "a cat", uuid="a1b", parentUuid="a1", message={**said, "stop_reason": None}),
        {"type": "system", "subtype": "compact_boundary", "uuid": "c1", "parentUuid": "a1b"},
        {"type": "ai-title", "aiTitle": "Cats"},
        {"type": "custom-title", "customTitle": "My cats"},
        {"type": "brand-new", "uuid": "n1", "parentUuid": "c1"},
        {"type": "brand-new"},
        b'{"type": "user", "torn',
    )

    [turn], facts = read(ClaudeArchive(tmp_path), path)

    assert (facts.work_dir, facts.branch, facts.title, facts.model) == ("/w", "main", "My cats", "opus")
    assert (facts.images, facts.compactions, facts.damaged) == (1, 1, 1)
    assert facts.unknown == Counter({"brand-new": 2})
    assert (turn.usage, turn.model) == (Usage(8, 3, 2), "opus")
    assert turn.events == (Noted("the context was compacted to a summary"),)


def test_turns_on_a_branch_that_was_left_are_marked(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        line("user", "one", uuid="u1", parentUuid=None),
        line("assistant", "1", uuid="a1", parentUuid="u1", message={"id": "m1", "stop_reason": "end_turn"}),
        line("user", "left", uuid="u2", parentUuid="a1"),
        line("user", "kept", uuid="u3", parentUuid="a1"),
    )

    turns, facts = read(ClaudeArchive(tmp_path), path)

    assert [(one.turn.prompt, one.turn.live) for one in turns] == [("one", True), ("left", False), ("kept", True)]  # fmt: skip
    assert facts.dead == {"u2"}


def test_a_line_that_is_too_long_leaves_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_files, "LONGEST_READ", 2000)
    path = write(
        tmp_path / "s.jsonl",
        line("user", "one", uuid="u1", parentUuid=None),
        line("assistant", "x" * 5000, uuid="a1", parentUuid="u1"),
        line("assistant", "done", uuid="a2", parentUuid="a1", message={"id": "m2", "stop_reason": "end_turn"}),
    )  # fmt: skip
    archive = ClaudeArchive(tmp_path)

    [turn], facts = read(archive, path, room=10**6)

    assert facts.too_long == 1
    assert turn.turn.response == "done"
    assert [note.text for note in turn.events if isinstance(note, Noted)] == [
        f"a line of {len(path.read_bytes().splitlines()[1]) + 1:,} bytes is in the agent's own session only"
    ]
    assert facts.mark == archive.mark(str(path), SESSION)


def test_a_fork_of_claude_is_known_by_the_copy_that_it_begins_with(tmp_path: Path) -> None:
    archive = ClaudeArchive(claude_home(tmp_path))
    _, parent = read(archive, tmp_path / "projects" / "-lab-work" / f"{SESSION}.jsonl")
    _, fork = read(archive, RECORDED / "claude" / "fork.jsonl", "1d4e90aa-40fd-44cf-b856-93dae5adef53")
    assert parent.forked_at is None
    assert fork.forked_at is not None


def test_subagents_of_claude_are_found_below_their_session(tmp_path: Path) -> None:
    home = claude_home(tmp_path)
    below = home / "projects" / "-lab-work" / SESSION / "subagents" / "agent-a1.jsonl"
    asked = line("user", "count", uuid="u1", parentUuid=None, isSidechain=True, sessionId=SESSION)
    told = {"id": "m1", "stop_reason": "end_turn"}
    answer = line("assistant", "3", uuid="a1", parentUuid="u1", isSidechain=True, message=told)
    write(below, asked, answer)
    beside = write(home / "projects" / "-lab-work" / "agent-b2.jsonl", asked, answer)
    archive = ClaudeArchive(home)

    found = {source.path: source for source in archive.sources()}

    assert found[str(below)].id == f"{SESSION}/agent-a1"
    for path, own_id in ((below, f"{SESSION}/agent-a1"), (beside, "agent-b2")):
        [turn], facts = read(archive, path, own_id)
        assert (turn.turn.prompt, turn.turn.response, facts.subagent_of) == ("count", "3", SESSION)


def test_only_the_folder_of_a_directory_is_looked_at(tmp_path: Path) -> None:
    home = claude_home(tmp_path)
    write(home / "projects" / "-elsewhere" / "5b1c2d3e.jsonl", line("user", "one", uuid="u1"))
    archive = ClaudeArchive(home)
    assert len(list(archive.sources())) == 3
    assert [source.id for source in archive.sources("/elsewhere")] == ["5b1c2d3e"]


# --- Codex ---


def rollout(home: Path, thread: str, folder: str = "sessions/2026/11/15", ending: str = "") -> Path:
    return home / folder / f"rollout-2026-11-15T10-00-00-{thread}.jsonl{ending}"


def codex_line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-11-15T10:00:00.000Z", "type": kind, "payload": payload}


def old_session(thread: str) -> list[dict[str, Any]]:
    """As versions wrote it that did not have items yet."""
    return [
        codex_line("session_meta", id=thread, cwd="/w", git={"branch": "main"}),
        codex_line("turn_context", model="gpt-5"),
        codex_line("event_msg", type="user_message", message="one", images=["data:…"]),
        codex_line("event_msg", type="agent_message", message="looking"),
        codex_line("response_item", type="function_call", name="shell", call_id="c1", arguments="{}"),
        codex_line("response_item", type="function_call_output", call_id="c1", output="ok"),
        codex_line("event_msg", type="agent_message", message="first"),
        codex_line("event_msg", type="user_message", message="two"),
        codex_line("compacted", message="a summary"),
        codex_line("event_msg", type="agent_message", message="second"),
    ]


def test_sessions_of_older_versions_of_codex_are_read(tmp_path: Path) -> None:
    path = write(rollout(tmp_path, THREAD), *old_session(THREAD))
    archive = CodexArchive(tmp_path)

    turns, facts = read(archive, path, THREAD)

    assert [(one.turn.prompt, one.turn.response) for one in turns] == [("one", "looking\n\nfirst"), ("two", "second")]  # fmt: skip
    assert turns[0].events == (Called("c1", "shell", {}), Returned("c1", "ok", is_error=False))
    assert (facts.work_dir, facts.branch, facts.model, facts.images) == ("/w", "main", "gpt-5", 1)
    assert facts.compactions == 1
    assert len({one.turn.key for one in turns}) == 2
    assert facts.mark == archive.mark(str(path), THREAD)


def test_archived_and_compressed_sessions_of_codex_are_read(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", *old_session(THREAD)).read_bytes()
    packed = rollout(tmp_path, THREAD, ending=".zst")
    packed.parent.mkdir(parents=True)
    packed.write_bytes(zstandard.compress(plain))
    write(rollout(tmp_path, FORK, "archived_sessions"), *old_session(FORK))
    archive = CodexArchive(tmp_path)

    found = {source.id: source for source in archive.sources()}

    assert found.keys() == {THREAD, FORK}
    turns, facts = read(archive, found[THREAD].path, THREAD)
    assert [one.turn.prompt for one in turns] == ["one", "two"]
    assert facts.mark is not None
    packed.unlink()
    packed.with_suffix("").write_bytes(plain)  # Codex does this when the session is used again
    assert archive.is_intact(facts.mark, THREAD) is True


@pytest.mark.parametrize(
    ("damage", "least", "most"),
    [
        (lambda one, two: one[: len(one) // 2], 100, 300),
        (lambda one, two: one + b"\xff" * 9 + two[9:], 500, 500),
        (lambda one, two: one + two + b"junk", 1000, 1000),
        (lambda one, two: one + two[:-1], 500, 999),
        (lambda one, two: b"no such format", 0, 0),
    ],
    ids=["cut off", "overwritten", "followed by junk", "without its last byte", "something else"],
)
def test_a_damaged_compressed_file_is_read_as_far_as_it_goes(
    tmp_path: Path, damage: Callable[[bytes, bytes], bytes], least: int, most: int
) -> None:
    noise = random.Random(1)
    old = old_session(THREAD)
    asked = next(one for one in old if one["payload"].get("type") == "user_message")
    texts = [f"{number} {noise.randbytes(300).hex()}" for number in range(1000)]
    lines = [{**asked, "payload": {**asked["payload"], "message": text}} for text in texts]
    halves = [write(tmp_path / "part.jsonl", *part).read_bytes() for part in (lines[:500], lines[500:])]
    packed = rollout(tmp_path, THREAD, ending=".zst")
    packed.parent.mkdir(parents=True)
    packed.write_bytes(damage(*map(zstandard.compress, halves)))

    turns, facts = read(CodexArchive(tmp_path), packed, THREAD)

    assert least <= len(turns) <= most
    assert [one.turn.prompt for one in turns] == texts[: len(turns)]
    assert facts.damaged in (1, 2), "what is missing, and the line that it begins in"
    assert facts.mark is not None
    assert b"".join(halves)[: facts.mark.size].count(b"\n") == facts.mark.turns == len(turns)


def test_without_the_package_a_compressed_file_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    packed = rollout(tmp_path, THREAD, ending=".zst")
    packed.parent.mkdir(parents=True)
    packed.write_bytes(b"")
    archive = CodexArchive(tmp_path)
    [source] = archive.sources()
    assert source.problem is not None
    assert "pip install 'holdfast-sessions[vault]'" in source.problem
    assert read(archive, packed, THREAD)[1].mark is None


def test_names_and_ancestors_are_not_looked_for_again_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(rollout(tmp_path, THREAD), *old_session(THREAD))
    base = {"thread_id": THREAD, "end_ordinal_exclusive": 100}
    forks = [f"{FORK[:-2]}{number:02}" for number in range(5)]
    for fork in forks:
        write(rollout(tmp_path, fork), codex_line("session_meta", id=fork, history_base=base))
    names = write(tmp_path / "session_index.jsonl", *({"id": fork, "thread_name": "first"} for fork in forks))
    archive, opened, real = CodexArchive(tmp_path), Counter[Path](), session_files.open_content

    def counted(path: Path) -> BinaryIO:
        opened[path] += 1
        return real(path)

    monkeypatch.setattr(session_files, "open_content", counted)
    monkeypatch.setattr(Path, "glob", lambda *_: pytest.fail("it searches the whole home"))

    sources = list(archive.sources())
    found = [read(archive, source.path, source.id or "") for source in sources]

    assert sorted(len(turns) for turns, _ in found) == [2] * 6
    assert opened[names] == 1
    write(names, *({"id": fork, "thread_name": "second"} for fork in forks))
    _, facts = read(archive, rollout(tmp_path, forks[0]), forks[0])
    assert facts.title == "second"


def test_a_title_is_read_without_the_turns(tmp_path: Path) -> None:
    native = ProviderSessionId(SESSION)
    claude = write(
        tmp_path / "s.jsonl", line("user", "look", uuid="u1"), {"type": "ai-title", "aiTitle": "Cats"}
    )
    gemini = write(tmp_path / "g.jsonl", {"sessionId": SESSION}, {"$set": {"summary": "Dogs"}}, {"$set": {}})
    write(tmp_path / "session_index.jsonl", {"id": SESSION, "thread_name": "Birds"})

    assert ClaudeArchive(tmp_path).title(str(claude), native) == "Cats"
    assert GeminiArchive(tmp_path).title(str(gemini), native) == "Dogs"
    assert CodexArchive(tmp_path).title(str(claude), native) == "Birds"
    for archive in (ClaudeArchive(tmp_path), GeminiArchive(tmp_path)):
        assert archive.title(str(tmp_path / "nothing"), native) is None


def test_lines_that_are_too_long_are_not_read_in_the_file_of_an_ancestor_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "LONGEST_READ", 2_000)
    lengthy = codex_line("event_msg", type="agent_message", message="x" * 3_000)
    write(rollout(tmp_path, THREAD), *old_session(THREAD)[:3], lengthy, *old_session(THREAD)[3:])
    base = {"thread_id": THREAD, "end_ordinal_exclusive": 100}
    fork = write(rollout(tmp_path, FORK), codex_line("session_meta", id=FORK, history_base=base))

    turns, _ = read(CodexArchive(tmp_path), fork, FORK, room=SMALL)

    assert max(len(one.turn.response or "") for one in turns) < 1_000


def test_copies_that_codex_made_of_other_agents_sessions_are_told_apart(tmp_path: Path) -> None:
    copy = write(rollout(tmp_path, THREAD), *old_session(THREAD))
    continued = write(rollout(tmp_path, FORK), *old_session(FORK))
    for path, at in ((copy, 1_000_060), (continued, 1_009_000)):
        os.utime(path, (at, at))
    records = [{"imported_thread_id": thread, "imported_at": 1_000_000} for thread in (THREAD, FORK)]
    write(tmp_path / "external_agent_session_imports.json", {"records": records})

    problems = {source.id: source.problem for source in CodexArchive(tmp_path).sources()}

    assert problems == {THREAD: "it is Codex's copy of another agent's session", FORK: None}


def test_a_fork_of_codex_names_its_parent(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "codex", tmp_path / "codex")
    archive = CodexArchive(tmp_path / "codex")
    path = archive.find(FORK, None)
    assert path is not None
    _, facts = read(archive, path, FORK)
    assert (facts.forked_from, facts.work_dir) == (THREAD, "/lab/work")
    assert facts.forked_at is not None


def test_a_subagent_of_codex_names_its_parent(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": FORK, "depth": 1}}}
    path = write(
        rollout(tmp_path, THREAD),
        codex_line("session_meta", id=THREAD, cwd="/w", source=source),
        codex_line("session_meta", id=FORK, cwd="/elsewhere", source="exec"),
        *old_session(THREAD)[1:],
    )
    archive = CodexArchive(tmp_path)
    assert list(archive.sessions()) == []
    _, facts = read(archive, path, THREAD)
    assert (facts.subagent_of, facts.work_dir) == (FORK, "/w")


def test_what_cannot_be_looked_at_is_a_source_with_its_problem(tmp_path: Path) -> None:
    """Links that lead to themselves: root, too, cannot follow them."""
    loops = {
        ClaudeArchive(tmp_path): ("projects/-w", "projects/-x/5b1c2d3e.jsonl", "projects/-x/1d4e90aa/subagents"),
        CodexArchive(tmp_path): (
            "sessions/2026", "sessions/2025/11/02", f"archived_sessions/rollout-2026-11-15T10-00-00-{THREAD}.jsonl",
        ),
        GeminiArchive(tmp_path): ("tmp/app/chats", "tmp/web/chats/session-2026-11-15T10-00-5b1c2d3e.jsonl"),
    }  # fmt: skip
    for archive, names in loops.items():
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(path)

        found = {source.place: source.problem or "" for source in archive.sources()}

        assert sorted(found) == sorted(str(tmp_path / name) for name in names)
        assert all(
            "cannot be read: Too many levels of symbolic links" in problem for problem in found.values()
        )


def test_a_database_of_opencode_that_cannot_be_read_is_a_source_with_its_problem(tmp_path: Path) -> None:
    archive = OpencodeArchive(tmp_path)
    assert list(archive.sources()) == []
    (tmp_path / "opencode.db").write_bytes(b"not a database" * 100)
    [source] = archive.sources()
    assert source.problem == "the database cannot be read: file is not a database"


def test_a_home_that_is_not_there_or_holds_other_files_has_no_problem(tmp_path: Path) -> None:
    for home in (tmp_path, tmp_path / "none"):
        for archive in (ClaudeArchive(home), CodexArchive(home), GeminiArchive(home)):
            assert list(archive.sources()) == []
    for name in ("projects/.DS_Store", "sessions/.DS_Store", "tmp/.DS_Store"):
        write(tmp_path / name, b"")
    for archive in (ClaudeArchive(tmp_path), CodexArchive(tmp_path), GeminiArchive(tmp_path)):
        assert list(archive.sources()) == []


def test_a_byte_order_mark_hides_no_turn(tmp_path: Path) -> None:
    for archive in every_archive(tmp_path):
        for source in archive.sources():
            path = Path(source.path)
            plain, _ = read(archive, path, source.id or "")
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
            marked, facts = read(archive, path, source.id or "")
            assert [one.turn.key for one in marked] == [one.turn.key for one in plain], path
            assert facts.damaged == 0
            path.write_bytes(path.read_bytes()[3:])
