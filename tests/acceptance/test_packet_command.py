"""packet: what a fresh start would be told."""

import subprocess
from pathlib import Path

from holdfast import Holdfast
from tests import steps
from tests.acceptance.command import create, holdfast, ok


def test_a_packet_is_markdown_that_begins_with_the_facts(library: Holdfast, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--initial-branch=trunk", tmp_path], check=True)
    session = library.create("terraform-architect", "Move the cluster", name="deploy")
    steps.run(library.store, session, "plan the change")

    shown = ok("packet", "deploy", "--cwd", tmp_path).out

    assert shown.startswith(f"# Where the work of session {session.id} stands\n")
    for expected in (
        "> Move the cluster",
        "No commits yet on trunk",
        "> re: plan the change",
        "## Next step",
    ):
        assert expected in shown, f"{expected}\n{shown}"


def test_a_packet_as_json_says_why_it_would_start_fresh(each_engine: str) -> None:
    session = create("--purpose", "approval_workflow")
    document = ok("packet", session, "--json").json
    assert document["session_id"] == session
    assert document["why_fresh"]["reason"] == "no_pointer"
    assert document["goal"] == "approval_workflow"
    assert document["ground_truth"]["problem"] == "The directory of the work is not known."


def test_nothing_in_a_packet_moves_the_cursor(library: Holdfast) -> None:
    session = library.create("claude", "red \x1b[31m text\ttab\u202e\n## forged")
    shown = ok("packet", session.id).out
    assert "> red \\x1b[31m text\ttab\\u202e\n> ## forged\n" in shown


def test_an_unknown_session_and_a_missing_directory_are_errors(tmp_path: Path) -> None:
    assert holdfast("packet", "nobody").code == 3
    assert holdfast("packet", create(), "--cwd", tmp_path / "gone").code == 2
