"""The plugin for Claude Code, which is the repository itself; the real CLI is asked in tests/agents."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.hooks.installation import command_entries
from tests.acceptance.command import HOLDFAST, create, environment

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "skills" / "holdfast" / "SKILL.md").read_text("utf-8")
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", SKILL, re.MULTILINE | re.DOTALL)


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text("utf-8"))


def test_the_plugin_has_the_version_of_the_package() -> None:
    assert read(".claude-plugin/plugin.json")["version"] == holdfast.__version__


def test_the_marketplace_offers_the_plugin_of_this_repository() -> None:
    (offered,) = read(".claude-plugin/marketplace.json")["plugins"]

    assert offered["name"] == read(".claude-plugin/plugin.json")["name"]
    assert offered["source"] == "./"


def test_the_plugin_installs_what_the_command_installs() -> None:
    wanted = {event: [entry] for event, entry in command_entries("holdfast").items()}

    assert read("hooks/hooks.json")["hooks"] == wanted


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_skill_tells_an_agent_to_type_works(command: str) -> None:
    done = subprocess.run(
        ["sh", "-ec", command],
        env=environment({"HOLDFAST_SESSION": create(), "PATH": f"{HOLDFAST.parent}:{os.defpath}"}),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
