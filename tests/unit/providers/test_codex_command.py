from pathlib import Path

import pytest

from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.providers.codex import Codex
from holdfast.providers.contract import Provider
from tests.unit.providers.builders import FORK, FRESH, OLD, RESUME, a_launch_spec

CODEX: Provider = Codex()
HEADLESS = ("--json", "--skip-git-repo-check")
HELP = """
Commands:
  resume  Resume a previous session by id or pick the most recent with --last
  fork    Fork a previous session by id into a new session
  review  Run a code review against the current repository
"""


@pytest.mark.parametrize(
    ("decision", "session"), [(FRESH, ()), (RESUME, ("resume", OLD)), (FORK, ("fork", OLD))]
)
def test_the_decision_alone_chooses_the_session(decision: object, session: tuple[str, ...]) -> None:
    spec = a_launch_spec(decision=decision)
    assert CODEX.command(spec).argv == ("/bin/agent", "exec", *HEADLESS, *session, "-")
    # a server in the background would write to the session after the program has ended
    alone = ("-c", "features.daemon_auto_start=false")
    assert CODEX.interactive(spec).argv == ("/bin/agent", *session, *alone)


@pytest.mark.parametrize(
    ("decision", "session"), [(FRESH, ()), (RESUME, ("resume", OLD)), (FORK, ("fork", OLD))]
)
def test_rights_stand_before_the_command_that_would_not_know_them(
    decision: object, session: tuple[str, ...]
) -> None:
    rights = Rights(
        permission_mode="workspace-write",
        extra_dirs=frozenset({"/data", "/a b"}),
        extra_args=("--image", "one.png", "two.png"),
    )
    spec = a_launch_spec(decision=decision, model="gpt-6", rights=rights)
    options = ("--model=gpt-6", "--sandbox=workspace-write", "--add-dir=/a b", "--add-dir=/data")
    assert CODEX.command(spec).argv == (
        *("/bin/agent", "exec", "--image", "one.png", "two.png"),
        *HEADLESS,
        *options,
        *session,
        "-",
    )


def test_the_prompt_goes_over_standard_input() -> None:
    command = CODEX.command(a_launch_spec(prompt="-m other"))
    assert command.stdin == "-m other"
    assert "-m other" not in command.argv


def test_a_run_inside_codex_is_not_the_same_thread() -> None:
    without = CODEX.command(a_launch_spec()).without
    assert "CODEX_THREAD_ID" in without
    assert "CODEX_HOME" not in without


def test_home_follows_the_providers_own_variable() -> None:
    assert CODEX.home({"HOME": "/home/ada"}) == Path("/home/ada/.codex")
    assert CODEX.home({"HOME": "/home/ada", "CODEX_HOME": "/srv/codex"}) == Path("/srv/codex")


def test_the_probe_looks_past_warnings() -> None:
    warning = "WARNING: proceeding, even though 1.2 PATH aliases could not be created\n"
    probe = CODEX.read_probe((warning + "codex-cli 0.166.0\n", warning + HELP))
    assert (probe.version, probe.distribution) == ("0.166.0", "codex-cli")
    assert probe.capabilities == Capabilities(can_resume=True, can_fork=True, append_only_transcript=True)


def test_a_binary_without_the_commands_cannot_resume() -> None:
    can = CODEX.read_probe(("codex-cli 0.20.0", "Usage: codex exec [PROMPT]")).capabilities
    assert not can.can_resume
    assert not can.can_fork


@pytest.mark.parametrize("mode", [None, "read-only", "workspace-write", "danger-full-access"])
def test_a_permission_mode_is_a_sandbox(mode: str | None) -> None:
    CODEX.check(Rights(permission_mode=mode))


@pytest.mark.parametrize(
    ("rights", "field"),
    [
        (Rights(permission_mode="acceptEdits"), "permission mode"),
        (Rights(allowed_tools=frozenset({"Bash"})), "allowed tools"),
        (Rights(extra_args=("--last",)), "provider arguments"),
        (Rights(extra_args=("resume", "abc")), "provider arguments"),
        (Rights(extra_args=("-C/tmp",)), "provider arguments"),
        (Rights(extra_args=("--sandbox=read-only",)), "provider arguments"),
        (Rights(extra_args=("--ephemeral",)), "provider arguments"),
    ],
)
def test_what_codex_cannot_express_is_refused(rights: Rights, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        CODEX.check(rights)
    assert refused.value.field == field


def test_its_own_settings_pass() -> None:
    CODEX.check(Rights(extra_args=("-c", "model_reasoning_effort=low", "--image", "a.png", "b.png")))
    wider = Rights(extra_args=("-c", "model_reasoning_effort=low", "--profile", "work", "--oss"))
    CODEX.check(wider, allow_wider=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "approval_policy=never"),
        ("--config=sandbox_workspace_write.network_access=true",),
        ("-cmcp_servers.x.command=sh",),
        ("-c", "model_reasoning_effort=low", "-c", "features.x=true"),
        ("--profile", "work"),
        ("-pwork",),
        ("--full-auto",),
        ("--yolo",),
        ("--dangerously-bypass-approvals-and-sandbox",),
        ("--enable", "x"),
        ("-o", "/etc/x"),
    ],
)
def test_settings_that_may_widen_the_rights_must_be_accepted(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="--allow-wider-rights"):
        CODEX.check(Rights(extra_args=arguments))
    CODEX.check(Rights(extra_args=arguments), allow_wider=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "sandbox_mode=danger-full-access"),
        ("-c", ' "sandbox_mode" = "danger-full-access"'),
        ("-csandbox_mode=x",),
        ("--config=sandbox_mode=x",),
        ("-c=experimental_resume=/tmp/x.jsonl",),
        ("--image", "a.png", "resume", "x"),
        ("--oss", "fork"),
    ],
)
def test_settings_that_override_a_decision_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="use holdfast"):
        CODEX.check(Rights(extra_args=arguments), allow_wider=True)
