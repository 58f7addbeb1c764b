"""The real agents lose their session files: Holdfast restores them, and each agent continues natively with everything."""

import json
import shutil
from pathlib import Path

import pytest

from tests.agents.driver import Driver, Ended, only
from tests.agents.lab.model_servers.replies import Say

ALL = ("claude", "codex", "opencode", "gemini")
#: of Holdfast, so that the agent runs commands without asking
RIGHTS = {
    "claude": ("--allow-tool", "Bash"),
    "codex": ("--permission-mode", "danger-full-access"),
    "opencode": ("--permission-mode", "auto"),
    "gemini": ("--permission-mode", "yolo"),
}
FILES = {
    "claude": ".claude/projects/*/{}.jsonl",
    "codex": ".codex/sessions/*/*/*/rollout-*-{}.jsonl",
    "gemini": ".gemini/tmp/*/chats/session-*-{:.8}.jsonl",
}
RESTORED = "restored from the vault"
SAID = ["colour?", "echo from-the-tool", "from-the-tool", "violet", "stone?", "amber"]


def two_turns(driver: Driver) -> Ended:
    """One with a call, and one more."""
    driver.lab.server.script(driver.lab.agent.shell("echo from-the-tool"), Say("violet"), Say("amber"))
    first = driver.run("colour?", *RIGHTS[driver.provider])
    second = driver.resume(first.session, "stone?")
    assert (first.exit_code, second.exit_code, second.decision) == (0, 0, "resume")
    return first


def session_file(driver: Driver, native: str) -> Path:
    (file,) = driver.lab.home.glob(FILES[driver.provider].format(native))
    return file


def lose(driver: Driver, native: str) -> None:
    """As the agent's own retention or a person does it; opencode only by itself."""
    if driver.provider == "opencode":
        assert driver.lab.run(["session", "delete", native]).exit_code == 0
    else:
        session_file(driver, native).unlink()


def has_everything(driver: Driver, prompt: str) -> None:
    """Whether the model got the whole history in order, each call with one result, and nothing of it as text in the prompt."""
    texts = driver.request.texts
    found = [next((text for text in texts if said in text), None) for said in SAID]
    assert None not in found, texts
    places = [texts.index(str(text)) for text in found]
    assert places == sorted(places)
    assert [sum(said in text for text in texts) for said in ("colour?", "violet", "stone?", "amber")] == [
        1
    ] * 4
    results = [text for text in texts if "from-the-tool" in text and "echo from-the-tool" not in text]
    assert len(results) == 1
    assert texts[-1].endswith(prompt)


@only(*ALL)
def test_a_session_whose_files_are_gone_is_restored_and_resumed_natively(driver: Driver) -> None:
    first = two_turns(driver)
    lose(driver, first.native)
    driver.lab.server.script(Say("jade"), Say("onyx"))

    third = driver.resume(first.session, "again?")

    assert (third.exit_code, third.decision, third.native) == (0, "resume", first.native), third
    assert any(RESTORED in notice for notice in third["notices"])
    has_everything(driver, "again?")
    fourth = driver.resume(first.session, "and now?")
    assert (fourth.decision, fourth.native) == ("resume", first.native)
    assert not any(RESTORED in notice for notice in fourth["notices"])
    has_everything(driver, "and now?")


@only("claude", "codex", "gemini")
def test_a_restored_file_is_the_same_to_the_byte(driver: Driver) -> None:
    first = two_turns(driver)
    file = session_file(driver, first.native)
    before = file.read_bytes()
    file.unlink()

    restored = driver.holdfast("restore", first.session)

    assert restored.exit_code == 0, restored
    assert [each["outcome"] for each in restored["restored"]] == ["restored"]
    assert session_file(driver, first.native) == file
    assert file.read_bytes() == before


@only("claude", "codex")
def test_a_file_that_was_cut_off_is_restored(driver: Driver) -> None:
    first = two_turns(driver)
    file = session_file(driver, first.native)
    before = file.read_bytes()
    lines = before.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))

    third = driver.resume(first.session, "again?")

    assert (third.exit_code, third.decision, third.native) == (0, "resume", first.native)
    has_everything(driver, "again?")
    assert file.read_bytes().startswith(before)


@only("claude")
def test_claude_resumes_what_was_recorded_beside_a_file_that_went_another_way(driver: Driver) -> None:
    first = two_turns(driver)
    file = session_file(driver, first.native)
    other = file.read_bytes().replace(b"violet", b"purple")
    file.write_bytes(other)

    third = driver.resume(first.session, "again?")

    assert (third.exit_code, third.decision, third.native) == (0, "resume", first.native), third
    has_everything(driver, "again?")
    assert file.read_bytes() == other
    fourth = driver.resume(first.session, "and now?")
    assert (fourth.decision, fourth.native) == ("resume", first.native)
    has_everything(driver, "and now?")
    assert "again?" in "\n".join(driver.request.texts)
    assert file.read_bytes() == other
    with driver.library() as hf:
        assert len(hf.store.bundles("claude", first.native)) == 2  # type: ignore[arg-type] # the provider's id


@only("codex", "opencode", "gemini")
def test_others_start_fresh_beside_a_session_that_went_another_way(driver: Driver) -> None:
    first = two_turns(driver)
    if driver.provider == "opencode":
        export = driver.lab.run(["export", first.native]).stdout
        told = json.loads(export[export.index("{") :])
        lose(driver, first.native)
        *kept, last = told["messages"]
        last["info"]["id"] = f"{last['info']['id'][:-1]}X"
        for part in last["parts"]:
            part["id"], part["messageID"] = f"{part['id'][:-1]}X", last["info"]["id"]
        for part in last["parts"]:
            part["text"] = part.get("text", "").replace("amber", "ochre")
        changed = driver.lab.home / "changed.json"
        changed.write_text(json.dumps({**told, "messages": [*kept, last]}))
        assert driver.lab.run(["import", str(changed)]).exit_code == 0
    else:
        file = session_file(driver, first.native)
        file.write_bytes(file.read_bytes().replace(b"amber", b"ochre"))

    third = driver.resume(first.session, "again?")

    assert (third.exit_code, third.decision, third.reason) == (0, "fresh", "transcript_altered"), third
    assert any("kept as a branch" in notice for notice in third["notices"])
    (sent,) = driver.request.texts
    assert [sent.count(said) for said in ("colour?", "violet", "amber")] == [1, 1, 1]


@only("claude")
def test_the_files_of_subagents_and_long_results_are_restored_with_their_session(driver: Driver) -> None:
    first = two_turns(driver)
    folder = session_file(driver, first.native).with_suffix("")
    sidecars = {"subagents/agent-1.jsonl": b"{}\n", "tool-results/toolu_1.txt": b"long\n"}
    for name, content in sidecars.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
    driver.resume(first.session, "more?")
    shutil.rmtree(driver.lab.home / ".claude" / "projects")

    assert driver.resume(first.session, "again?").decision == "resume"

    assert {name: (folder / name).read_bytes() for name in sidecars} == sidecars


@only("gemini")
def test_gemini_sends_each_result_once_however_often_it_is_resumed(driver: Driver) -> None:
    first = two_turns(driver)
    for prompt in ("once?", "twice?", "again?"):
        assert driver.resume(first.session, prompt).decision == "resume"
        has_everything(driver, prompt)


@only("gemini")
def test_a_gemini_home_without_its_projects_is_restored(driver: Driver) -> None:
    first = two_turns(driver)
    shutil.rmtree(driver.lab.home / ".gemini" / "tmp")
    (driver.lab.home / ".gemini" / "projects.json").unlink()

    third = driver.resume(first.session, "again?")

    assert (third.decision, third.native) == ("resume", first.native)
    has_everything(driver, "again?")


@only("codex")
@pytest.mark.parametrize("gone", ["parent", "both"])
def test_a_codex_fork_is_restored_with_its_parent(driver: Driver, gone: str) -> None:
    first = two_turns(driver)
    fork = driver.fork(first.session, "other?")
    assert fork.decision == "fork"
    session_file(driver, first.native).unlink()
    if gone == "both":
        session_file(driver, fork.native).unlink()

    again = driver.resume(fork.session, "again?")

    assert (again.exit_code, again.decision, again.native) == (0, "resume", fork.native), again
    has_everything(driver, "again?")


@only("codex")
def test_a_codex_file_goes_to_where_its_list_of_threads_has_it(driver: Driver) -> None:
    first = two_turns(driver)
    shutil.rmtree(driver.lab.home / ".codex" / "sessions")

    third = driver.resume(first.session, "again?")

    assert (third.decision, third.native) == ("resume", first.native)
    has_everything(driver, "again?")
