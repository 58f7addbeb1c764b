import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.hooks.installation import (
    HOOKS,
    WrongShape,
    addresses,
    command_entries,
    http_entries,
    installed_events,
    shell_command,
    tried_programs,
    with_entries,
    without_entries,
)

THEIRS = {"hooks": [{"type": "command", "command": "say done"}]}
WANTED = command_entries("/opt/hold fast/holdfast", "holdfast")


def test_every_event_is_installed_and_taken_away_again() -> None:
    hooks = with_entries({}, WANTED)

    assert installed_events(hooks) == set(HOOKS)
    assert hooks["PreToolUse"][0]["matcher"] == "Task|Agent"
    assert without_entries(hooks) == {}


def test_installing_again_changes_nothing() -> None:
    hooks = with_entries({"Stop": [THEIRS]}, WANTED)

    assert with_entries(hooks, WANTED) is hooks
    assert with_entries({**hooks, "Stop": [*hooks["Stop"], THEIRS]}, WANTED)["Stop"][-1] == THEIRS


def test_what_others_put_there_stays_where_it_is() -> None:
    before = {
        "Notification": "whatever",
        "Stop": [THEIRS],
        "SessionStart": [],
        "PreToolUse": [THEIRS, THEIRS],
    }

    hooks = with_entries(before, WANTED)

    assert (hooks["Notification"], hooks["Stop"][0]) == ("whatever", THEIRS)
    assert hooks["PreToolUse"][:2] == [THEIRS, THEIRS]
    assert list(hooks)[:4] == list(before)
    assert without_entries(hooks) == {name: value for name, value in before.items() if value}


@pytest.mark.parametrize(
    "older",
    [
        "holdfast hook stop",
        "'/opt/hold fast/holdfast' hook stop || true",
        shell_command("stop", "/gone/holdfast"),
    ],
)
def test_an_older_entry_of_ours_is_replaced(older: str) -> None:
    mixed = {"hooks": [{"type": "command", "command": older}, *THEIRS["hooks"]]}

    hooks = with_entries({"Stop": [mixed]}, WANTED)

    assert hooks["Stop"] == [THEIRS, WANTED["Stop"]]


@pytest.mark.parametrize(
    "command",
    ["my-holdfast-wrapper hook stop", "holdfast list", "echo hook stop", "holdfast hook unheard-of"],
)
def test_what_only_looks_like_ours_is_left_alone(command: str) -> None:
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": command}, "odd", None]}]}

    assert without_entries(hooks) is hooks
    assert installed_events(hooks) == frozenset()


def test_over_http_the_token_comes_from_the_environment_and_a_start_stays_a_command() -> None:
    hooks = with_entries({}, http_entries("http://127.0.0.1:8787/", "holdfast"))

    (handler,) = hooks["Stop"][0]["hooks"]
    assert handler["url"] == "http://127.0.0.1:8787/v1/hooks/stop"
    assert handler["headers"] == {"Authorization": "Bearer $HOLDFAST_TOKEN"}
    assert handler["allowedEnvVars"] == ["HOLDFAST_TOKEN"]
    assert hooks["SessionStart"] == [command_entries("holdfast")["SessionStart"]]
    assert addresses(hooks) == ("http://127.0.0.1:8787",)
    assert without_entries(hooks) == {}
    assert with_entries(hooks, WANTED) == with_entries({}, WANTED)


@pytest.mark.parametrize(
    ("hooks", "path"),
    [
        ([], ("hooks",)),
        ("x", ("hooks",)),
        ({"Stop": {}}, ("hooks", "Stop")),
        ({"Stop": ["x"]}, ("hooks", "Stop")),
        ({"Stop": [{"matcher": "x"}]}, ("hooks", "Stop")),
    ],
)
def test_hooks_of_another_shape_are_not_touched(hooks: Any, path: tuple[str, ...]) -> None:
    for act in (without_entries, installed_events, lambda found: with_entries(found, WANTED)):
        with pytest.raises(WrongShape) as refused:
            act(hooks)
        assert refused.value.path == path


def test_a_command_knows_the_programs_it_tries() -> None:
    odd = "/it's (odd)/holdfast"

    assert tried_programs(with_entries({}, command_entries(odd, "holdfast"))) == ((odd, "holdfast"),)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_command_calls_the_first_program_that_is_there_and_succeeds_whatever_happens(
    shell: str, tmp_path: Path
) -> None:
    def run(*programs: object) -> tuple[int, str, str]:
        command = shell_command("stop", *map(str, programs))
        done = subprocess.run(
            [shell, "-c", command],
            input="given",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    there = tmp_path / "it's here" / "holdfast"
    there.parent.mkdir()
    there.write_text('#!/bin/sh\necho "$@"; cat; exit 2\n')
    there.chmod(0o755)
    broken = tmp_path / "holdfast"
    broken.write_text("#!/gone/python\n")
    broken.chmod(0o755)

    assert run("/gone/holdfast", there) == (0, "hook stop\ngiven", "")
    assert run("/gone/holdfast", "holdfast-is-not-on-path") == (0, "", "")
    assert run(broken)[:2] == (0, "")
