"""Hooks in the real Claude Code: installed by the command, by the plugin and over HTTP, and when Holdfast is gone."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.hooks.installation import HOOKS
from tests.agents.driver import HOLDFAST
from tests.agents.lab.hook_notes import HookNotes, Note
from tests.agents.lab.laboratory import Laboratory, Run
from tests.agents.lab.model_servers.replies import CallTool

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "contract" / "recorded" / "hooks"
PLUGIN_FILES = (".claude-plugin", "hooks", "skills", "README.md")
ERRAND = {
    "description": "look",
    "prompt": "look around",
    "subagent_type": "general-purpose",
    "run_in_background": False,
}


@pytest.fixture
def notes(tmp_path: Path) -> HookNotes:
    return HookNotes(tmp_path / "notes")


@pytest.fixture
def stand_in(notes: HookNotes, tmp_path: Path) -> Path:
    """A ``holdfast`` that keeps what it is called with, in a folder that is not on PATH."""
    program = tmp_path / "stand in" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {notes.command} "$@"\n')
    program.chmod(0o755)
    return program


def install(claude: Laboratory, program: Path, *options: str) -> None:
    """As if Holdfast were installed where the stand-in is."""
    link = program.with_name("holdfast")
    kept = program.rename(program.with_name("kept"))
    link.symlink_to(HOLDFAST)
    subprocess.run(
        [link, "hooks", "install", *options],
        cwd=claude.workdir,
        env=claude.environment,
        check=True,
        capture_output=True,
    )
    kept.replace(link)


def install_plugin(claude: Laboratory, folder: Path) -> None:
    for name in PLUGIN_FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for arguments in (
        ["plugin", "validate", "--strict", str(folder)],
        ["plugin", "marketplace", "add", str(folder)],
        ["plugin", "install", "holdfast@holdfast"],
    ):
        run = claude.run(arguments)
        assert run.exit_code == 0, run


def delegate(claude: Laboratory) -> Run:
    """A turn in which a subagent is called, and then the context is compacted."""
    claude.server.script(CallTool("Agent", ERRAND))
    run = claude.turn("look around, by an agent")
    assert (run.exit_code, run.stderr) == (0, ""), run
    compacted = claude.turn("/compact", resume=claude.session_of(run))
    assert (compacted.exit_code, compacted.stderr) == (0, ""), compacted
    return run


def recorded_fields(*cases: str) -> set[str]:
    return set.union(*(set(json.loads((RECORDED / f"{case}.json").read_text())) for case in cases))


def assert_every_hook_was_called(notes: list[Note]) -> None:
    called = [(note["given"]["hook_event_name"], note["arguments"]) for note in notes]
    assert {event for event, _ in called} == set(HOOKS)
    for event, arguments in called:
        assert arguments == ["hook", HOOKS[event]]


@pytest.mark.parametrize("scope", ["--user", "--project"])
def test_installed_hooks_are_called_though_holdfast_is_not_on_path(
    scope: str, claude: Laboratory, stand_in: Path, notes: HookNotes
) -> None:
    install(claude, stand_in, scope)

    delegate(claude)

    assert_every_hook_was_called(notes.take())


def test_a_hook_is_given_what_was_recorded(claude: Laboratory, stand_in: Path, notes: HookNotes) -> None:
    install(claude, stand_in)

    delegate(claude)

    by_event: dict[str, Any] = {}
    for note in notes.take():
        by_event.setdefault(note["given"]["hook_event_name"], note)
    given = {event: set(note["given"]) for event, note in by_event.items()}
    assert given == {
        "SessionStart": recorded_fields("session_start_startup"),
        "PreToolUse": recorded_fields("pre_tool_use_agent_sync"),
        "SubagentStop": recorded_fields("subagent_stop_sync"),
        "Stop": recorded_fields("stop"),
        "PreCompact": recorded_fields("pre_compact"),
        "SessionEnd": recorded_fields("session_end"),
    }
    call = by_event["PreToolUse"]["given"]
    assert by_event["SubagentStop"]["meta"]["toolUseId"] == call["tool_use_id"]
    assert (call["tool_name"], call["tool_input"]) == ("Agent", ERRAND)


def test_the_same_hooks_in_both_settings_are_called_once(
    claude: Laboratory, stand_in: Path, notes: HookNotes
) -> None:
    install(claude, stand_in, "--user")
    install(claude, stand_in, "--project")

    claude.turn("colour?")

    events = [note["given"]["hook_event_name"] for note in notes.take()]
    assert sorted(events) == ["SessionEnd", "SessionStart", "Stop"]


def test_without_the_command_the_agent_goes_on_as_if_there_were_no_hooks(
    claude: Laboratory, stand_in: Path, notes: HookNotes
) -> None:
    install(claude, stand_in)
    stand_in.unlink()

    run = delegate(claude)

    assert "hook_error" not in run.stdout
    assert [event["exit_code"] for event in run.events if event.get("subtype") == "hook_response"] == [0]
    assert notes.take() == []


def test_the_plugin_is_accepted_and_its_hooks_are_called(
    claude: Laboratory, stand_in: Path, notes: HookNotes, tmp_path: Path
) -> None:
    install_plugin(claude, tmp_path)
    claude.environment["PATH"] += f":{stand_in.parent}"

    run = delegate(claude)

    assert_every_hook_was_called(notes.take())
    assert "holdfast:holdfast" in str(run.events), "the skill is offered to the agent"


def test_the_plugin_without_holdfast_does_no_harm(claude: Laboratory, tmp_path: Path) -> None:
    install_plugin(claude, tmp_path)

    run = delegate(claude)

    assert [event["exit_code"] for event in run.events if event.get("subtype") == "hook_response"] == [0]


def test_plugin_and_settings_together_call_twice_with_one_id_and_status_says_so(
    claude: Laboratory, stand_in: Path, notes: HookNotes, tmp_path: Path
) -> None:
    install_plugin(claude, tmp_path)
    install(claude, stand_in)
    claude.environment["PATH"] += f":{stand_in.parent}"

    delegate(claude)

    calls = [note["given"] for note in notes.take() if note["given"]["hook_event_name"] == "PreToolUse"]
    assert len(calls) == 2
    assert len({call["tool_use_id"] for call in calls}) == 1
    status = subprocess.run(
        [HOLDFAST, "hooks", "status", "--json"],
        cwd=claude.workdir,
        env=claude.environment,
        check=True,
        capture_output=True,
    )
    assert json.loads(status.stdout)["called_twice"]


def test_over_http_every_hook_but_the_start_is_sent_to_the_server_with_the_token(
    claude: Laboratory, stand_in: Path, notes: HookNotes
) -> None:
    claude.environment["HOLDFAST_TOKEN"] = "token-of-the-lab"
    with _server() as (url, sent):
        install(claude, stand_in, "--http", url)
        delegate(claude)

    assert {path for path, _, _ in sent} == {
        f"/v1/hooks/{hook}" for event, hook in HOOKS.items() if event != "SessionStart"
    }
    assert {token for _, token, _ in sent} == {"Bearer token-of-the-lab"}
    assert all(HOOKS[given["hook_event_name"]] == path.rpartition("/")[2] for path, _, given in sent)
    assert {note["given"]["hook_event_name"] for note in notes.take()} == {"SessionStart"}


@contextmanager
def _server() -> Iterator[tuple[str, list[tuple[str, str | None, Any]]]]:
    sent: list[tuple[str, str | None, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            sent.append((self.path, self.headers["authorization"], json.loads(body)))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", sent
        finally:
            server.shutdown()
            thread.join()
