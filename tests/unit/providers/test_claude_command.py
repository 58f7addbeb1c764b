from pathlib import Path
from uuid import UUID

import pytest

from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.providers.claude.provider import Claude
from holdfast.providers.contract import Provider
from tests.unit.providers.builders import FORK, FRESH, NEW, OLD, RESUME, an_order

CLAUDE: Provider = Claude()
HEADLESS = ("/bin/agent", "-p", "--output-format", "stream-json", "--verbose")
HELP = """
  --add-dir <directories...>            Additional directories to allow tool
  --fork-session                        When resuming, create a new session ID
  -r, --resume [value]                  Resume a conversation by session ID or
  --session-id <uuid>                   Use a specific session ID for the
"""


@pytest.mark.parametrize(
    ("decision", "new_id", "session"),
    [
        (FRESH, NEW, ("--session-id", NEW)),
        (RESUME, None, ("--resume", OLD)),
        (FORK, NEW, ("--resume", OLD, "--fork-session", "--session-id", NEW)),
    ],
)
def test_the_decision_alone_chooses_the_session(
    decision: object, new_id: str | None, session: tuple[str, ...]
) -> None:
    order = an_order(decision=decision, new_id=new_id)
    assert CLAUDE.command(order).argv == (*HEADLESS, *session)
    assert CLAUDE.interactive(order).argv == ("/bin/agent", *session)


def test_a_resume_never_chooses_an_id() -> None:
    """The CLI refuses both together."""
    assert "--session-id" not in CLAUDE.command(an_order(decision=RESUME, new_id=NEW)).argv


def test_rights_and_model_are_tied_to_their_options() -> None:
    rights = Rights(
        permission_mode="acceptEdits",
        allowed_tools=frozenset({"Read", "Bash(echo *)"}),
        extra_dirs=frozenset({"/data", "/a b"}),
        extra_args=("--append-system-prompt", "Be brief."),
    )
    assert CLAUDE.command(an_order(model="sonnet", rights=rights)).argv == (
        *HEADLESS,
        "--model=sonnet",
        "--permission-mode=acceptEdits",
        "--allowedTools=Bash(echo *)",
        "--allowedTools=Read",
        "--add-dir=/a b",
        "--add-dir=/data",
        "--append-system-prompt",
        "Be brief.",
    )


def test_the_prompt_goes_over_standard_input_whatever_it_looks_like() -> None:
    command = CLAUDE.command(an_order(prompt="--resume x\n" + "y" * 300_000))
    assert command.stdin == "--resume x\n" + "y" * 300_000
    assert not any("y" * 10 in argument for argument in command.argv)


def test_a_run_inside_claude_is_no_child_of_it() -> None:
    without = CLAUDE.command(an_order()).without
    assert {"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID"} <= set(without)
    assert "ANTHROPIC_API_KEY" not in without
    assert "CLAUDE_CONFIG_DIR" not in without


def test_minted_ids_are_what_the_cli_accepts() -> None:
    assert UUID(CLAUDE.mint_id(FRESH)).version == 4
    assert CLAUDE.mint_id(FRESH) != CLAUDE.mint_id(FRESH)


def test_home_follows_the_providers_own_variable() -> None:
    assert CLAUDE.home({"HOME": "/home/ada"}) == Path("/home/ada/.claude")
    assert CLAUDE.home({"HOME": "/home/ada", "CLAUDE_CONFIG_DIR": "/srv/claude"}) == Path("/srv/claude")
    assert CLAUDE.home({"HOME": "/home/ada", "CLAUDE_CONFIG_DIR": ""}) == Path("/home/ada/.claude")


def test_the_probe_tells_version_product_and_capabilities() -> None:
    probe = CLAUDE.read_probe(("2.1.325 (Claude Code)\n", HELP))
    assert (probe.version, probe.distribution) == ("2.1.325", "claude-code")
    assert probe.capabilities == Capabilities(
        can_resume=True,
        can_fork=True,
        chooses_id=True,
        append_only_transcript=True,
        reports_context=True,
    )


@pytest.mark.parametrize("printed", ["0.9.1 (OpenClaude)", "openclaude 0.9.1", "OpenClaude v0.9.1\n"])
def test_another_product_behind_the_name_is_another_distribution(printed: str) -> None:
    probe = CLAUDE.read_probe((printed, HELP))
    assert (probe.version, probe.distribution) == ("0.9.1", "openclaude")


def test_an_old_binary_has_what_its_help_lists() -> None:
    can = CLAUDE.read_probe(("1.0.0 (Claude Code)", "  -r, --resume [id]\n  --session-identity")).capabilities
    assert (can.can_resume, can.can_fork, can.chooses_id) == (True, False, False)


@pytest.mark.parametrize("printed", ["", "\n", "command failed: no such thing"])
def test_a_binary_that_says_nothing_is_not_claude_code(printed: str) -> None:
    probe = CLAUDE.read_probe((printed, ""))
    assert (probe.version, probe.distribution) == (None, "unnamed")
    assert not probe.capabilities.can_resume


@pytest.mark.parametrize(
    ("argument", "name", "instead"),
    [
        ("--resume", "--resume", "holdfast resume ID"),
        ("--resume=abc", "--resume", "holdfast resume ID"),
        ("-rabc", "-r", "holdfast resume ID"),
        ("-c", "-c", "holdfast resume ID"),
        ("--session-id=abc", "--session-id", "--provider-session-id"),
        ("--fork-session", "--fork-session", "holdfast fork"),
        ("--output-format=text", "--output-format", "--json"),
        ("--allowed-tools", "--allowed-tools", "--allow-tool"),
        ("--no-session-persistence", "--no-session-persistence", "cannot be resumed"),
    ],
)
def test_arguments_that_would_override_the_decision_are_refused(
    argument: str, name: str, instead: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        CLAUDE.check(Rights(extra_args=("--effort", "high", argument, "x")))
    assert refused.value.problem.startswith(f"{name} ")
    assert instead in refused.value.problem


@pytest.mark.parametrize(
    "argument", ["--resume-later", "--continue-on-error", "--effort", "-d", "--print-width=3", "resume", ""]
)
def test_other_arguments_pass(argument: str) -> None:
    CLAUDE.check(Rights(extra_args=(argument,)))
