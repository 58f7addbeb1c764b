"""A hook's process imports what a bare one with sqlite3 and json has, and light modules of ours; nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.hooks.main import EVENTS
from tests.integration.hook_process import RECORDED, a_stop, a_tool_call, environment, run_hook

#: what the standard library may give: these, and whatever they bring along
ALLOWED = "import sqlite3, json, signal, fcntl, zlib, __future__"
TELL = "import sys; {}; print(*sys.modules)"
RUN = """
import sys
sys.argv = ["holdfast", "hook", {!r}]
from holdfast.cli.main import main
main()
print(*sys.modules, file=sys.stderr)
"""
HEAVY = {"holdfast.config", "holdfast.store.open", "holdfast.domain.redaction"}
URLS = {"sqlite": None, "postgres": "postgresql://127.0.0.1:1/none"}


def modules_of(program: str, stdin: bytes, url: str | None) -> set[str]:
    environ = environment({"HOLDFAST_URL": url} if url else {})
    done = subprocess.run(
        [sys.executable, "-c", program], input=stdin, env=environ, capture_output=True, check=True
    )
    return set((done.stderr or done.stdout).decode().split())


def payload_of(event: str, tmp_path: Path) -> bytes:
    if event == "pre-delegate":
        return json.dumps(a_tool_call()).encode()
    if event == "subagent-stop":
        return json.dumps(a_stop(tmp_path, "toolu_1")).encode()
    return next(RECORDED.glob(f"{event.replace('-', '_')}*.json")).read_bytes()


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_is_imported_that_the_moment_does_not_need(
    event: str, url: str | None, tmp_path: Path
) -> None:
    environ = {"HOLDFAST_URL": url} if url else {}
    run_hook(
        "pre-delegate", a_tool_call(), environ
    ).harmless()  # the first one makes the database and the cache
    bare = modules_of(TELL.format(ALLOWED), b"", None)
    found = modules_of(RUN.format(event), payload_of(event, tmp_path), url)
    assert "holdfast.hooks.main" in found
    assert {name for name in found - bare if not name.startswith("holdfast")} == set()
    assert found & HEAVY == set()


def test_an_event_that_there_is_not_costs_even_less() -> None:
    found = modules_of(RUN.format("nothing"), b"{}", None)
    assert not any(name.startswith(("holdfast.store", "holdfast.domain")) for name in found)
