import json
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.providers.claude.provider import Claude
from holdfast.providers.contract import Provider, ToolGate
from tests.unit.providers.builders import FORK, FRESH, NEW, OLD, RESUME, a_launch_spec

CLAUDE: Provider = Claude()
GATE = ToolGate(
    "gate /run || exit 2", 600, "gate /run --arm", Path("/run/armed"), "gate /run --done", Path("/run/changed"), None
)  # fmt: skip
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
    spec = a_launch_spec(decision=decision, new_id=new_id)
    assert CLAUDE.command(spec).argv == (*HEADLESS, *session)
    assert CLAUDE.interactive(spec).argv == ("/bin/agent", *session)


def test_a_resume_never_chooses_an_id() -> None:
    """The CLI refuses both together."""
    assert "--session-id" not in CLAUDE.command(a_launch_spec(decision=RESUME, new_id=NEW)).argv


def test_rights_and_model_are_tied_to_their_options() -> None:
    rights = Rights(
        permission_mode="acceptEdits",
        allowed_tools=frozenset({"Read", "Bash(echo *)"}),
        extra_dirs=frozenset({"/data", "/a b"}),
        extra_args=("--append-system-prompt", "Be brief."),
    )
    assert CLAUDE.command(a_launch_spec(model="sonnet", rights=rights)).argv == (
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
    command = CLAUDE.command(a_launch_spec(prompt="--resume x\n" + "y" * 300_000))
    assert command.stdin == "--resume x\n" + "y" * 300_000
    assert not any("y" * 10 in argument for argument in command.argv)


def test_a_run_inside_claude_is_no_child_of_it() -> None:
    without = CLAUDE.command(a_launch_spec()).without
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
        can_defer=True,
    )


@pytest.mark.parametrize(
    ("printed", "can"),
    [
        ("2.1.89 (Claude Code)", True),
        ("2.1.88 (Claude Code)", False),
        ("2.0.325 (Claude Code)", False),
        ("3.0.0 (Claude Code)", True),
        ("2.1 (Claude Code)", False),
        ("9.9.9 (OpenClaude)", False),
    ],
)
def test_only_versions_that_know_how_to_defer_a_call_are_trusted_to(printed: str, can: bool) -> None:
    assert CLAUDE.read_probe((printed, HELP)).capabilities.can_defer is can


def test_its_gate_is_asked_before_every_call_and_no_settings_of_others_switch_it_off() -> None:
    command = CLAUDE.command(a_launch_spec(gate=GATE, prompt=None, decision=RESUME))
    (settings,) = (json.loads(a.partition("=")[2]) for a in command.argv if a.startswith("--settings="))
    assert settings["disableAllHooks"] is False
    (before_calls,) = settings["hooks"]["PreToolUse"]
    assert before_calls["matcher"] == "*"
    assert before_calls["hooks"] == [{"type": "command", "command": GATE.command, "timeout": GATE.seconds}]
    for event in ("PostToolUse", "PostToolUseFailure"):
        (after_calls,) = settings["hooks"][event]
        assert (after_calls["matcher"], after_calls["hooks"][0]["command"]) == ("*", GATE.done)
    assert settings["hooks"]["SessionStart"][0]["hooks"] == [{"type": "command", "command": GATE.arm}]
    assert {"CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE"} <= set(command.without)
    assert command.stdin is None
    assert not any("--settings" in argument for argument in CLAUDE.command(a_launch_spec()).argv)


@pytest.mark.parametrize("argument", ["--bare", "--safe-mode", "--settings={}"])
def test_an_option_with_which_no_call_would_wait_is_refused_where_calls_wait(argument: str) -> None:
    CLAUDE.check(Rights(extra_args=(argument,)), allow_wider=True)
    with pytest.raises(InvalidInput, match=argument.partition("=")[0]):
        CLAUDE.check(Rights(extra_args=(argument,), approve_tools=frozenset({"Bash"})), allow_wider=True)


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
    "arguments",
    [
        ("--effort", "high"),
        ("--max-turns=3", "-d"),
        ("-dapi", "--name", "x"),
        ("--disallowedTools", "Bash", "Edit", "--system-prompt=--resume"),
        ("--tools", "Read"),
    ],
)
def test_harmless_arguments_pass(arguments: tuple[str, ...]) -> None:
    CLAUDE.check(Rights(extra_args=arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dangerously-skip-permissions",),
        ("--allow-dangerously-skip-permissions",),
        ("--settings", '{"permissions": {"defaultMode": "bypassPermissions"}}'),
        ("--mcp-config", "a.json", "b.json"),
        ("--permission-prompt-tool=mcp__x__y",),
        ("--agents", "{}"),
        ("--plugin-dir", "/tmp/x"),
        ("--setting-sources=user",),
        ("--effort", "high", "--bare"),
        ("--resume-later",),
        ("--debug=api", "-Z"),
    ],
)
def test_arguments_that_may_widen_the_rights_must_be_accepted(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="--allow-wider-rights"):
        CLAUDE.check(Rights(extra_args=arguments))
    CLAUDE.check(Rights(extra_args=arguments), allow_wider=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--res=x",),
        ("--Resume=x",),
        ("--session_id=x",),
        ("--sessionId=x",),
        ("-Zr",),
        ("--no-print",),
        ("--add-dir=/etc",),
        ("--tools", "Read", "--add-dir", "/etc"),
        ("--effort", "--resume", "x"),
        ("--mcp-config=a.json", "do something else"),
        ("--effort",),
    ],
)
def test_no_spelling_gets_past_the_decision(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        CLAUDE.check(Rights(extra_args=arguments), allow_wider=True)


def test_partial_messages_are_asked_for_where_the_program_has_them() -> None:
    spec = a_launch_spec(partial_text=True)
    option = "--include-partial-messages"
    assert option in CLAUDE.command(spec).argv
    assert option not in CLAUDE.interactive(spec).argv
    assert option not in CLAUDE.command(a_launch_spec()).argv
    for help_text, can in ((HELP, False), (f"{HELP}  {option}  Include partial\n", True)):
        assert CLAUDE.read_probe(("2.1.325 (Claude Code)\n", help_text)).capabilities.partial_text is can
