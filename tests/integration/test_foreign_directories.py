"""A stranger's checkout: whatever lies in it, nothing of it is run by looking at it, hooking into it or working there."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.packets import ground_truth
from holdfast.hooks.installation import HOOKS, command_entries
from holdfast.hooks.main import EVENTS
from tests.integration.hook_process import HOLDFAST, environment
from tests.integration.test_hook_imports import payload_of
from tests.integration.test_hook_spool import waiting
from tests.processes import until

SOURCE = Path(holdfast.__file__).parent
PLUGIN = Path(__file__).parents[2] / "hooks" / "hooks.json"
MODULES = ("holdfast", "json", "sqlite3", "signal", "sitecustomize", "usercustomize", "psycopg")
PROGRAMS = ("holdfast", "holdfast-scripted-agent", "git", "sh", "sleep", "python", "python3", "true")


class Clone:
    """A directory whose every file tells when it is run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        (directory / ".git").mkdir()
        tell = f"open({str(self._told)!r}, 'a').write(__name__ + chr(10))\n"
        for name in MODULES:
            (directory / f"{name}.py").write_text(tell)
        (directory / "evil.pth").write_text(f"import os; {tell}")
        (directory / "pyvenv.cfg").write_text(f"home = {directory}\n")
        for name in PROGRAMS:
            program = directory / name
            program.write_text(f"#!/bin/sh\necho {name} >> '{self._told}'\n")
            program.chmod(0o755)

    @property
    def _told(self) -> Path:
        return self.directory.parent / "told"

    @property
    def has_run(self) -> list[str]:
        return self._told.read_text().splitlines() if self._told.exists() else []

    def variables(self) -> dict[str, str]:
        """What careless people have in their shells, and what leads straight to the clone."""
        return {
            "PATH": f".::{HOLDFAST.parent}:{os.environ['PATH']}",
            "PYTHONPATH": f":.:{self.directory}",
            "PYTHONSTARTUP": str(self.directory / "json.py"),
            "PYTHONPYCACHEPREFIX": "pycache",
        }


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    clone = Clone(tmp_path / "clone")
    yield clone
    assert clone.has_run == []


def call(command: str, clone: Clone, payload: bytes, variables: Mapping[str, str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=clone.directory,
        input=json.dumps({**json.loads(payload), "cwd": str(clone.directory)}).encode(),
        env=environment({**clone.variables(), **variables}),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def installed_commands(way: str, home: Path) -> dict[str, str]:
    """event of ours -> the command that Claude Code runs for it."""
    if way == "plugin":
        settings = PLUGIN
    else:
        subprocess.run([HOLDFAST, "hooks", "install"], check=True, env=environment(), capture_output=True)
        settings = home / ".claude" / "settings.json"
    hooks = json.loads(settings.read_text())["hooks"]
    return {HOOKS[event]: entries[0]["hooks"][0]["command"] for event, entries in hooks.items()}


@pytest.mark.parametrize("way", ["plugin", "install"])
def test_hooks_run_nothing_of_the_directory_that_they_are_called_in(
    way: str, clone: Clone, home: Path, tmp_path: Path
) -> None:
    commands = installed_commands(way, home)
    assert set(commands) == set(EVENTS)
    for event, command in commands.items():
        call(command, clone, payload_of(event, tmp_path), {})
    with holdfast.open() as opened:
        assert opened.list_sessions()  # they did work


@pytest.mark.parametrize("way", ["plugin", "install"])
def test_the_carrier_runs_nothing_of_the_directory_that_it_is_sent_from(
    way: str, clone: Clone, home: Path, tmp_path: Path, postgres_url: str
) -> None:
    command = installed_commands(way, home)["pre-delegate"]
    call(command, clone, payload_of("pre-delegate", tmp_path), {"HOLDFAST_URL": postgres_url})
    until(lambda: not waiting(home))
    with holdfast.open(postgres_url) as opened:
        assert opened.list_sessions()


def test_a_bare_hook_command_sends_a_carrier_that_runs_nothing_of_the_directory(
    clone: Clone, home: Path, tmp_path: Path, postgres_url: str
) -> None:
    """As older settings call it: in the directory of the project, on a clean path."""
    call(
        f"'{HOLDFAST}' hook pre-delegate",
        clone,
        payload_of("pre-delegate", tmp_path),
        {"HOLDFAST_URL": postgres_url, "PYTHONPATH": "", "PYTHONPYCACHEPREFIX": ""},
    )
    until(lambda: not waiting(home))


def test_a_run_starts_no_program_of_the_directory_but_the_agent(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is called elsewhere: with such a path Python itself runs what lies where it is started."""
    noticed = tmp_path / "noticed"
    variables = {
        **clone.variables(),
        "PYTHONPATH": ":.",
        "HOLDFAST_NOTIFY__COMMAND": f"/bin/sh -c 'cat > {noticed}'",
        "HOLDFAST_NOTIFY__EVENTS": "approval_wanted",
    }
    done = subprocess.run(
        [str(HOLDFAST), "run", "--provider", "scripted", "--cwd", str(clone.directory)]
        + ["--approve-tools", "shell(rm *)"]
        + ['TOOL shell {"command": "echo made"}\nTOOL shell {"command": "rm it"}'],
        cwd=tmp_path,
        env=environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "approval" in done.stdout + done.stderr
    assert (
        json.loads(until(lambda: noticed.read_text() if noticed.exists() else ""))["event"]
        == "approval_wanted"
    )


def test_git_is_not_taken_from_the_directory_that_it_is_asked_about(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone.directory)
    monkeypatch.setenv("PATH", clone.variables()["PATH"])
    assert ground_truth(str(clone.directory)).work_dir == str(clone.directory)


def test_a_clone_that_is_run_tells(clone: Clone) -> None:
    """The tests above could see it."""
    for words in ([sys.executable, "-c", "import holdfast, json"], ["git", "status"]):
        subprocess.run(words, cwd=clone.directory, env={**os.environ, **clone.variables()}, check=False)
    told = set(clone.has_run)
    (clone.directory.parent / "told").unlink()
    assert {"holdfast", "sitecustomize", "json", "git"} <= told


# --- the rule, in the source ---

STARTERS = ("Popen", "run", "call", "check_call", "check_output", "posix_spawn", "posix_spawnp", "execv", "execve",
            "execvp", "execvpe", "spawnv", "spawnve", "system", "popen", "getoutput", "create_subprocess_exec")  # fmt: skip


def trees() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def is_interpreter(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def test_every_interpreter_that_the_source_starts_is_isolated() -> None:
    found = []
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple) and any(map(is_interpreter, node.elts)):
                (at,) = (at for at, element in enumerate(node.elts) if is_interpreter(element))
                following = [ast.unparse(element) for element in node.elts[at + 1 : at + 2]]
                assert following == ["'-I'"], f"{name}:{node.lineno}: {ast.unparse(node)}"
                found.append(name)
    assert sorted(found) == [
        "engine/reading_ahead.py",
        "engine/running/tool_gate.py",
        "hooks/spool.py",
        "notifying/__init__.py",
        "processes/process.py",
    ]


def test_the_source_starts_no_program_by_a_bare_name() -> None:
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            where = f"{name}:{node.lineno}: {ast.unparse(node)}"
            called = ast.unparse(node.func)
            assert called != "shutil.which" or name == "processes/process.py", where
            if called.split(".")[0] not in ("os", "subprocess", "asyncio") or node.func.attr not in STARTERS:
                continue
            first = node.args[0]
            while isinstance(first, ast.BinOp):
                first = first.left
            first = first.elts[0] if isinstance(first, ast.List) else first
            assert not isinstance(first, ast.Constant) or str(first.value).startswith("/"), where


def test_the_commands_of_hooks_begin_elsewhere() -> None:
    for entry in command_entries("/opt/holdfast", "holdfast").values():
        assert entry["hooks"][0]["command"].startswith("cd / && PYTHONPATH= PYTHONHOME= ")
