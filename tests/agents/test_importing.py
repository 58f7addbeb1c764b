"""Stores that the real agents made are imported, also damaged ones, and their sessions continue natively."""

import json
import shutil
from pathlib import Path

from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say
from tests.agents.test_restoring import RESTORED, lose, session_file

ALL = ("claude", "codex", "opencode", "gemini")


def by_hand(driver: Driver, *answers: str) -> str:
    """A session in the agent's own program, a turn for each answer; its first turn calls a tool."""
    driver.lab.server.script(driver.lab.agent.shell("echo from-the-tool"), Say(answers[0]))
    return driver.lab.session_of(driver.lab.turn("colour?", tools=True))


def imported(driver: Driver, *arguments: str) -> dict[str, object]:
    told: dict[str, object] = json.loads(
        driver.holdfast("import", driver.provider, "--json", *arguments).stdout
    )
    return told


def figures(told: dict[str, object]) -> tuple[object, ...]:
    assert isinstance(told["skipped"], list)
    return told["found"], told["imported"], told["updated"], told["unchanged"], len(told["skipped"])


def session_of(driver: Driver, native: str) -> str:
    listed = json.loads(driver.holdfast("list", "--json").stdout)["sessions"]
    (found,) = [one["agent_id"] for one in listed if one["provider_session_id"] == native]
    return str(found)


@only(*ALL)
def test_an_imported_session_is_resumed_natively(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    assert figures(imported(driver)) == (1, 1, 0, 0, 0)
    assert figures(imported(driver)) == (1, 0, 0, 1, 0)
    session = session_of(driver, native)
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(session, "stone?")

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    assert [turn["prompt"] for turn in driver.show(session)["turns"]] == ["colour?", "stone?"]
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]
    logged = driver.holdfast("log", session, "--turn", "1").stdout
    assert "echo from-the-tool" in logged
    again = imported(driver)
    assert (again["imported"], again["updated"]) == (0, 0)


@only(*ALL)
def test_an_imported_session_that_its_agent_has_lost_is_resumed_natively(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    vault = imported(driver)["vault"]
    assert isinstance(vault, dict)
    assert (vault["sessions"], vault["failed"]) == (1, 0)
    lose(driver, native)
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(session_of(driver, native), "stone?")

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    assert any(RESTORED in notice for notice in resumed["notices"])
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]


@only("claude")
def test_an_agent_that_is_installed_after_the_import_resumes_natively(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    missing = {"HOLDFAST_CLAUDE_BINARY": str(driver.lab.home / "none")}
    assert driver.holdfast("import", "claude", **missing)["imported"] == 1
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(session_of(driver, native), "stone?")

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]


@only(*ALL)
def test_what_was_continued_by_hand_is_taken_in_and_resumed(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    imported(driver)
    session = session_of(driver, native)
    driver.lab.server.script(Say("amber"))
    driver.lab.turn("stone?", resume=native)

    told = imported(driver)

    assert (told["imported"], told["updated"]) == (0, 1)
    driver.lab.server.script(Say("oak"))
    resumed = driver.resume(session, "tree?")
    assert (resumed.decision, resumed.native) == ("resume", native)
    assert [turn["prompt"] for turn in driver.show(session)["turns"]] == ["colour?", "stone?", "tree?"]


@only("claude")
def test_a_session_whose_folder_was_renamed_keeps_its_history(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    imported(driver)
    session = session_of(driver, native)
    (folder,) = (_home(driver) / "projects").iterdir()
    shutil.move(folder, folder.with_name("-moved-away"))

    assert figures(imported(driver)) == (1, 0, 0, 1, 0)
    driver.lab.server.script(Say("amber"))
    assert driver.resume(session, "stone?").decision == "resume"


@only("claude", "codex")
def test_sessions_of_a_home_that_was_moved_continue_natively_or_are_told_their_history(
    driver: Driver,
) -> None:
    """Codex has the paths of its sessions in a database, refuses those that were moved, and is told everything instead."""
    native = by_hand(driver, "violet")
    imported(driver)
    session = session_of(driver, native)
    moved = driver.lab.home / "moved"
    shutil.move(_home(driver), moved)
    there = {{"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME"}[driver.provider]: str(moved)}

    assert figures(driver.holdfast("import", driver.provider, **there).document) == (1, 0, 0, 1, 0)
    driver.lab.server.script(Say("amber"))
    resumed = driver.resume(session, "stone?", **there)

    expected = "fresh" if driver.provider == "codex" else "resume"
    assert (resumed.exit_code, resumed.decision, resumed.native == native) == (
        0,
        expected,
        expected == "resume",
    )
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]


@only("claude", "codex")
def test_an_imported_session_continues_natively_where_its_project_was_moved(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    imported(driver)
    session = session_of(driver, native)
    moved = driver.lab.workdir.with_name("moved-project")
    driver.lab.workdir.rename(moved)
    driver.lab.workdir.mkdir()  # the command runs here; the project is elsewhere
    assert driver.holdfast("relocate", session, str(moved)).exit_code == 0
    assert figures(imported(driver)) == (1, 0, 0, 1, 0)
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(session, "stone?")

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]


@only("codex")
def test_a_fork_without_its_parent_is_taken_in_and_continues_with_what_there_is(driver: Driver) -> None:
    """Codex itself refuses it: its history begins in the file of its parent."""
    driver.lab.server.script(Say("violet"), Say("amber"))
    parent = driver.run("colour?")
    fork = driver.fork(parent.session, "stone?")
    assert fork.decision == "fork"
    file = session_file(driver, parent.native)
    whole = file.read_bytes()
    file.unlink()
    fresh = {"HOLDFAST_URL": f"sqlite:///{driver.lab.home}/another.db"}

    told = driver.holdfast("import", "codex", **fresh).document

    assert figures(told) == (1, 1, 0, 0, 0)
    (listed,) = driver.holdfast("list", **fresh)["sessions"]
    session = listed["agent_id"]
    driver.lab.server.script(Say("oak"))
    resumed = driver.resume(session, "tree?", **fresh)
    assert (resumed.exit_code, resumed.decision, resumed.reason) == (0, "fresh", "transcript_missing")
    sent = "\n".join(driver.request.texts)
    assert ("stone?" in sent, "amber" in sent) == (True, True)

    file.write_bytes(whole)
    told = driver.holdfast("import", "codex", **fresh).document
    assert (told["imported"], told["updated"]) == (1, 0)
    shown = driver.holdfast("show", session, **fresh).document
    (above,) = [
        one["agent_id"] for one in driver.holdfast("list", **fresh)["sessions"] if one["agent_id"] != session
    ]
    assert shown["parent_session_id"] == above


@only("claude", "codex")
def test_a_damaged_session_is_taken_in_and_resumed(driver: Driver) -> None:
    native = by_hand(driver, "violet")
    (path,) = (file for file in _home(driver).rglob("*.jsonl") if native in file.name)
    with path.open("ab") as file:
        file.write(
            b"\x00" * 4096 + b"\n" + b"\xff\xfe{}\n" + b'{"type":"brand-new"}\n' + b'{"type":"user","to'
        )

    told = imported(driver)

    assert (told["imported"], told["damaged_lines"], told["unknown_lines"]) == (1, 3, 1)
    driver.lab.server.script(Say("amber"))
    resumed = driver.resume(session_of(driver, native), "stone?")
    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)


def _home(driver: Driver) -> Path:
    return driver.lab.home / {"claude": ".claude", "codex": ".codex"}[driver.provider]


@only("claude")
def test_of_two_sessions_that_share_an_id_each_directory_has_its_own(driver: Driver) -> None:
    """Claude begins a second session under the same id in another directory, and resumes each in its own."""
    native, elsewhere = "6a13a176-1111-4222-8333-123456789abc", driver.lab.workdir.with_name("elsewhere")
    elsewhere.mkdir()
    for folder, word in ((driver.lab.workdir, "violet"), (elsewhere, "granite")):
        driver.lab.server.script(Say(word))
        arguments = driver.lab.agent.command(f"remember {word}", resume=None, fork=None, tools=False)
        driver.lab.run([*arguments, "--session-id", native], folder)
    assert len(list((driver.lab.home / ".claude" / "projects").glob(f"*/{native}.jsonl"))) == 2
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(native, "which?")  # of the directory that it is called in

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    sent = "\n".join(driver.request.texts)
    assert ("violet" in sent, "granite" in sent) == (True, False)
    skipped = imported(driver)["skipped"]
    assert isinstance(skipped, list)
    assert [one["reason"] for one in skipped] == ["duplicate"]
