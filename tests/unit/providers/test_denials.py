"""Calls that an agent was not allowed to make: how each provider says so, and the rights that allow them."""

import pytest

from holdfast.domain.events import Called, Returned
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.providers.gemini import GeminiStream
from holdfast.providers.registry import get_provider
from tests.unit.providers.builders import read_all, recorded, report_of

WORK = "/work/project"


def test_a_denied_call_is_named_with_what_it_was_about() -> None:
    report = report_of(read_all(GeminiStream(), recorded("gemini", "tool_with_default_rights")))

    (denied,) = report.denied
    assert denied.words == "run_shell_command: touch not-allowed"
    assert denied.why == "the approval mode does not allow it"
    assert report.is_answered


SILENT = "Process exited with code {}\nOutput:\ntouch: cannot touch 'b.txt': Read-only file system\n"


@pytest.mark.parametrize(
    ("mode", "output", "is_error", "is_denied"),
    [
        (None, SILENT.format(1), False, True),
        ("workspace-write", SILENT.format(1), False, True),
        ("danger-full-access", SILENT.format(1), False, False),
        (None, SILENT.format(0), False, False),
        ("read-only", "touch: cannot touch 'c.txt': Read-only file system\n", True, True),
        (None, "make: *** [all] Error 2", True, False),
    ],
)
def test_the_sandbox_of_codex_shows_in_what_a_failed_command_writes(
    mode: str | None, output: str, is_error: bool, is_denied: bool
) -> None:
    denial = get_provider("codex").denial(Rights(mode), Returned("1", output, is_error))

    assert (denial is not None) is is_denied


def test_a_command_that_fails_was_not_denied() -> None:
    assert report_of(read_all(GeminiStream(), recorded("gemini", "failed_tool"))).denied == []


def test_a_tool_that_does_not_exist_was_not_denied() -> None:
    error = {"type": "tool_not_registered", "message": 'Tool "invented" not found.'}
    lines = [
        {"type": "tool_use", "tool_id": "1", "tool_name": "invented", "parameters": {}},
        {"type": "tool_result", "tool_id": "1", "status": "error", "output": "x", "error": error},
    ]
    assert report_of(read_all(GeminiStream(), lines)).denied == []


@pytest.mark.parametrize(
    ("provider", "tool", "arguments", "had", "wanted"),
    [
        ("claude", "Write", {"file_path": f"{WORK}/a"}, NO_RIGHTS, Rights("acceptEdits")),
        ("claude", "Edit", {"file_path": "a"}, Rights("plan"), Rights("acceptEdits")),
        (
            "claude",
            "Write",
            {"file_path": "/elsewhere/a"},
            NO_RIGHTS,
            Rights("acceptEdits", extra_dirs=frozenset({"/elsewhere"})),
        ),
        (
            "claude",
            "Bash",
            {"command": "touch a b"},
            Rights("acceptEdits"),
            Rights("acceptEdits", frozenset({"Bash(touch *)"})),
        ),
        ("claude", "Bash", {"command": "a && b"}, NO_RIGHTS, Rights(allowed_tools=frozenset({"Bash"}))),
        ("claude", "Bash", {"command": "X=1 b"}, NO_RIGHTS, Rights(allowed_tools=frozenset({"Bash"}))),
        (
            "claude",
            "WebFetch",
            {},
            Rights(allowed_tools=frozenset({"Bash"})),
            Rights(allowed_tools=frozenset({"Bash", "WebFetch"})),
        ),
        ("codex", "command_execution", {}, NO_RIGHTS, Rights("workspace-write")),
        ("codex", "command_execution", {}, Rights("read-only"), Rights("workspace-write")),
        ("codex", "command_execution", {}, Rights("workspace-write"), Rights("danger-full-access")),
        ("opencode", "bash", {}, NO_RIGHTS, Rights("auto")),
        ("gemini", "write_file", {"file_path": f"{WORK}/a"}, NO_RIGHTS, Rights("auto_edit")),
        (
            "gemini",
            "run_shell_command",
            {},
            Rights("auto_edit"),
            Rights("auto_edit", frozenset({"run_shell_command"})),
        ),
        ("scripted", "write", {"path": "a"}, Rights("plan"), Rights("default")),
    ],
)
def test_the_rights_that_allow_a_call_are_no_wider_than_they_must_be(
    provider: str, tool: str, arguments: dict[str, str], had: Rights, wanted: Rights
) -> None:
    allowed = get_provider(provider).allowing(had, Called("1", tool, arguments), WORK)

    assert allowed == wanted
    get_provider(provider).check(allowed)
    assert allowed.permission_mode in (None, *get_provider(provider).modes)
