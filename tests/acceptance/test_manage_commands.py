"""rename, rm and completion."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.domain.turns import NewTurn
from tests.acceptance.command import default_database, holdfast, ok, on_terminal
from tests.builders import a_claim, a_runtime


def test_a_session_is_found_by_id_by_name_and_by_the_beginning_of_its_id(library: Holdfast) -> None:
    session = library.create("a", name="deploy")

    for given in (session.id, "deploy", session.id[:-3]):
        assert ok("get", given).json["agent_id"] == session.id


def test_rename_gives_and_takes_a_name(each_engine: str, library: Holdfast) -> None:
    session = library.create("a")

    assert ok("rename", session.id, "Größe 1").lines == [f"{session.id}\tGröße 1"]
    assert ok("rename", "Größe 1", "deploy", "--json").json["name"] == "deploy"
    assert library.find("deploy") == session.id
    assert ok("rename", "deploy", "--clear").lines == [f"{session.id}\t-"]
    assert library.session(session.id).name is None


def test_a_name_that_is_taken_is_refused(library: Holdfast) -> None:
    holder, other = library.create("a", name="deploy"), library.create("a")

    taken = holdfast("rename", other.id, "deploy")

    assert taken.code == 4
    assert taken.one_line_error() == (
        f"the name 'deploy' is taken by {holder.id}; 'deploy-2' is free; "
        f"to continue the one that has it: holdfast resume {holder.id}"
    )


def test_the_name_that_is_offered_is_the_next_free_one(library: Holdfast) -> None:
    for name in ("deploy", "deploy-2", "deploy-3", "2026-11"):
        library.create("a", name=name)

    offered = [
        holdfast("create", "--agent", "a", "--name", name, "--json").json["error"]["details"]["free"]
        for name in ("deploy", "deploy-2", "2026-11")
    ]

    assert offered == ["deploy-4", "deploy-4", "2026-12"]


def test_rename_needs_a_name_or_clear_but_not_both(library: Holdfast) -> None:
    session = library.create("a", name="deploy")

    for arguments in (["rename", "deploy"], ["rename", "deploy", "x", "--clear"]):
        wrong = holdfast(*arguments)
        assert (wrong.code, "give a NAME or --clear" in wrong.one_line_error()) == (2, True)
    assert library.session(session.id).name == "deploy"


def test_rm_removes_for_good(each_engine: str, library: Holdfast) -> None:
    first, second = library.create("a"), library.create("a")

    assert ok("rm", first.id, "--yes").lines == [f"{first.id} was removed"]
    assert ok("rm", second.id, "--yes", "--json").json["removed"] is True
    gone = holdfast("rm", first.id, "--yes")
    assert (gone.code, gone.one_line_error()) == (
        3,
        f"session not found: {first.id}; holdfast list shows the sessions",
    )


def test_rm_without_a_terminal_needs_yes(library: Holdfast) -> None:
    session = library.create("a")

    asked = holdfast("rm", session.id, stdin="y\n")

    assert asked.code == 2
    assert "give --yes" in asked.one_line_error()
    assert library.session(session.id) == session


def test_rm_of_a_session_with_forks_is_refused(library: Holdfast) -> None:
    session = library.create("a")
    fork = library.fork(session.id)

    refused = holdfast("rm", session.id, "--yes")

    assert refused.code == 4
    assert fork.id in refused.one_line_error()


@pytest.mark.parametrize(
    ("keys", "code", "removed"), [(b"y\n", 0, True), (b"n\n", 1, False), (b"\x04", 1, False)]
)
def test_rm_asks_on_a_terminal(keys: bytes, code: int, removed: bool, library: Holdfast) -> None:
    session = library.create("terraform-architect", "approval_workflow")

    asked = on_terminal("rm", session.id, question=b"[y/N]", keys=keys)

    question = f"Permanently remove {session.id} (terraform-architect, initializing, approval_workflow)?"
    assert question in " ".join(asked.out.split())
    assert asked.code == code
    assert (library.get_session(session.id) is None) is removed


def test_rm_that_is_interrupted_at_the_question_removes_nothing(library: Holdfast) -> None:
    session = library.create("a")

    assert on_terminal("rm", session.id, question=b"[y/N]", keys=b"\x03").code == 130
    assert library.session(session.id) == session


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    script = ok("completion", shell).out

    assert "_HOLDFAST_COMPLETE" in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


def test_completion_knows_commands_options_phases_and_sessions(library: Holdfast) -> None:
    session = library.create("a", name="deploy")

    commands = {"cancel", "chat", "claude", "cleanup", "codex", "completion", "config", "create"}
    assert commands == set(_completed("holdfast", "c"))
    assert "--active-only" in _completed("holdfast", "list", "--a")
    assert _completed("holdfast", "update", "x", "--phase", "app") == ["approval"]
    assert _completed("holdfast", "finalize", "x", "") == ["completed", "failed", "abandoned"]
    assert set(_completed("holdfast", "show", "")) == {session.id, "deploy"}
    assert _completed("holdfast", "show", "dep") == ["deploy"]


def test_completion_knows_providers_and_the_models_that_were_used(scripted_place: Path) -> None:
    ok_run = [
        holdfast("run", "-n", f"n{n}", "-m", model, "SAY x").code
        for n, model in enumerate(["tiny", "big", "tiny"])
    ]
    assert ok_run == [0, 0, 0]

    assert _completed("holdfast", "run", "-p", "c") == ["claude", "codex"]
    assert _completed("holdfast", "list", "--provider", "scr") == ["scripted"]
    assert _completed("holdfast", "worker", "--provider", "gem") == ["gemini"]
    assert _completed("holdfast", "resume", "n1", "--model", "") == ["tiny", "big"]
    assert _completed("holdfast", "chat", "-m", "b") == ["big"]
    assert _completed("holdfast", "run", "-p", "claude", "-m", "") == []
    for command in ("resume", "chat", "enqueue", "fork", "open", "log"):
        assert {"n0", "n1", "n2"} <= set(_completed("holdfast", command, "n"))


def test_completion_offers_what_was_active_last_first(library: Holdfast) -> None:
    library.create("a", name="deploy-1")
    library.create("a", name="deploy-2")
    library.update(library.find("deploy-1"), summary="so far")

    assert _completed("holdfast", "show", "dep") == ["deploy-1", "deploy-2"]


def test_completing_a_session_never_makes_a_store_and_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _completed("holdfast", "show", "") == []
    assert not default_database().exists()

    monkeypatch.setenv("HOLDFAST_URL", "nonsense://")
    assert _completed("holdfast", "show", "") == []


def _completed(*words: str) -> list[str]:
    """What the shell would be offered for the last word."""
    done = holdfast(
        env={
            "_HOLDFAST_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
    )
    assert (done.code, done.err) == (0, "")
    return [line.partition(",")[2] for line in done.lines if line]


@pytest.mark.parametrize("foreground", [False, True], ids=["from the queue", "a person's own"])
def test_a_turn_whose_worker_never_comes_back_can_be_taken_away_from_it(
    each_engine: str, library: Holdfast, foreground: bool
) -> None:
    session = library.create("a", name="deploy")
    there = a_runtime()
    library.store.register_runtime(there)
    taken = a_claim(runtime=there, owner="1/2/elsewhere/boot/pids/host", lease_seconds=3600.0)
    if foreground:
        library.store.start_turn(session.id, NewTurn("go", there.provider, foreground=True), taken)
    else:
        library.store.enqueue_turn(session.id, NewTurn("go", there.provider))
        library.store.claim_turn(taken)

    assert "was asked to stop" in ok("cancel", "deploy").lines[0]
    assert holdfast("rm", "deploy", "--yes").code == 4
    forced = ok("cancel", "deploy", "--force").lines

    assert forced == ["turn 1 is cancelled"]
    assert ok("rm", "deploy", "--yes").code == 0
