"""The help and the reference page: complete, true, and every example in them works as written."""

import json
import re
import subprocess
from pathlib import Path

import click
import pytest

from docs import generate_cli
from holdfast import Holdfast
from holdfast.cli.command import Command
from holdfast.cli.group import SECTIONS, cli
from tests import steps
from tests.acceptance.command import HOLDFAST, environment, holdfast, ok, on_terminal

PAGE = generate_cli.PAGE
COMMANDS = [name for section in SECTIONS.values() for name in section]


def command(name: str) -> Command:
    with click.Context(cli) as context:
        found = cli.get_command(context, name)
    assert isinstance(found, Command)
    return found


#: until somebody stops them
ENDLESS = ("serve", "ui")
#: their examples need the agent itself: tests/agents/test_starting.py runs them
OF_AN_AGENT = ("claude", "codex", "opencode", "gemini")
EXAMPLES = [
    (name, example)
    for name in COMMANDS
    if name not in (*ENDLESS, *OF_AN_AGENT)
    for example in command(name).examples
]


def test_the_reference_page_is_what_would_be_generated_now() -> None:
    current = PAGE.read_text("utf-8")

    assert generate_cli.page(current) == current, "run: make docs"


def test_the_overview_is_what_would_be_generated_now() -> None:
    assert generate_cli.OVERVIEW.read_text("utf-8") == generate_cli.overview(), "run: make docs"


@pytest.mark.parametrize("columns", [80, 90, 100, 200])
def test_the_help_is_the_same_at_every_width(columns: int) -> None:
    settings = {**cli.context_settings, "terminal_width": min(columns, 100) - 2}
    with click.Context(cli, info_name="holdfast", **settings) as root:
        expected = cli.get_help(root)

    assert on_terminal("--help", columns=columns).out == f"{expected}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["list", "--help"], ["--json", "why", "x", "-h"]])
def test_the_reference_page_holds_the_help_as_it_is_printed(arguments: list[str]) -> None:
    printed = ok(*arguments).out

    assert printed.startswith("Usage: holdfast ")
    assert f"```text\n{printed}```\n" in PAGE.read_text("utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_an_example(name: str) -> None:
    documented = command(name)

    assert documented.examples
    assert 20 < len(documented.get_short_help_str(200)) < 62, "fits a line of the overview"
    for parameter in documented.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith((".", "…")), parameter.help


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_example_works_as_written(name: str, example: str, library: Holdfast, tmp_path: Path) -> None:
    needs_agent = name in SECTIONS["Work with agents"] or name in ("relocate", "restore")
    if needs_agent:
        library.run("plan", provider="scripted", name="deploy", cwd=str(tmp_path))
    else:
        session = library.create("terraform-architect", "approval_workflow", name="deploy")
        for prompt in ("plan", "apply src/network/main.tf"):
            steps.run(library.store, session, prompt)
        library.update(session.id, phase="planning")

    done = subprocess.run(
        ["sh", "-ec", example],
        env=environment({"PATH": f"{HOLDFAST.parent}:/usr/bin:/bin"}),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    # commands that run an agent say there what they decided
    assert (done.returncode, needs_agent or done.stderr) == (0, needs_agent or ""), done.stderr
    assert name in example or name == "list"


@pytest.mark.parametrize("example", [example for name in ENDLESS for example in command(name).examples])
def test_an_example_that_goes_on_until_it_is_stopped(example: str) -> None:
    process = subprocess.Popen(
        ["sh", "-ec", f"exec {example}"],
        env=environment({"PATH": f"{HOLDFAST.parent}:/usr/bin:/bin", "BROWSER": "true"}),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert re.match(r"(listening on|open) http://127\.0\.0\.1:\d+", process.stdout.readline())
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_error_on_the_page_is_the_error_that_is_printed() -> None:
    (shown,) = re.findall(r"```json\n(.*)\n```", PAGE.read_text("utf-8"))

    assert json.loads(shown) == holdfast("get", "deploy", "--json").json


def test_version_is_told_without_loading_the_commands_or_the_engine() -> None:
    script = (
        "import sys; sys.argv = ['holdfast', '--version']\n"
        "from holdfast.cli.main import main\n"
        "code = main()\n"
        "print(sorted(name for name in sys.modules if name.startswith(('holdfast', 'rich', 'sqlite3'))), code)"
    )
    version, modules = _python(script)

    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+", version)
    for heavy in ("engine", "store", "domain", "config", "lifecycle", "terminal", "rich", "sqlite3"):
        assert heavy not in modules
    assert modules.endswith("] 0")


def test_the_entry_point_imports_nothing_before_it_is_called() -> None:
    script = (
        "import sys\nfrom holdfast.cli.main import main\n"
        "print('ready'); print('click' in sys.modules, 'holdfast.errors' in sys.modules)"
    )

    assert _python(script) == ["ready", "False False"]


def test_what_draws_on_a_terminal_is_only_imported_there() -> None:
    script = (
        "import sys; sys.argv = ['holdfast', 'create', '--agent', 'a']\n"
        "from holdfast.cli.main import main\nmain()\n"
        "sys.argv = ['holdfast', 'why', 'agent-']; main()\n"
        "sys.argv = ['holdfast', 'chat', '--help']; main()\n"
        "print('rich' in sys.modules, 'prompt_toolkit' in sys.modules)"
    )

    assert _python(script)[-1] == "False False"


@pytest.mark.parametrize(
    "arguments", [["list"], ["get"], ["should-resume"], ["update", "--phase", "planning"]]
)
def test_what_hooks_call_often_loads_nothing_that_runs_processes(
    arguments: list[str], library: Holdfast
) -> None:
    name, *options = arguments
    session = library.create("terraform-architect")
    library.update(session.id, phase="planning")
    given = [] if name == "list" else [session.id]
    script = (
        f"import sys; arguments = {[name, *given, *options]}\n"
        "from holdfast.cli.exit_codes import run\n"  # as if it were not plain; of the light entrance there are tests
        "code = run(arguments); print(); print(code, *sys.modules)"
    )
    code, *loaded = _python(script)[-1].split()

    assert code == "0"
    assert "holdfast.engine.holdfast" in loaded
    heavy = {
        "holdfast.engine.running.runs",
        "importlib.resources",
        "selectors",
        "subprocess",
        "tempfile",
        "tomllib",
    }
    assert not heavy & set(loaded)
    assert not [module for module in loaded if module.startswith("holdfast.providers")]


def _python(script: str) -> list[str]:
    python = HOLDFAST.with_name("python")
    done = subprocess.run(
        [python, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()
