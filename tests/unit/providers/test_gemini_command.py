import shutil
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.domain.decisions import Fork
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.providers.contract import Provider
from holdfast.providers.gemini import Gemini
from tests.unit.providers.builders import FORK, FRESH, HERE, NEW, OLD, RESUME, a_launch_spec

GEMINI: Provider = Gemini()
HEADLESS = ("/bin/agent", "--output-format=stream-json")
HELP = """
Gemini CLI - Defaults to interactive mode. Use -p/--prompt for non-interactive (headless) mode.

  -r, --resume                    Resume a previous session.
      --session-file              Load a session from a JSON file  [string]
      --session-id                Start a new session with a manually provided UUID.  [string]
"""


@pytest.mark.parametrize(
    ("decision", "new_id", "session"),
    [
        (FRESH, NEW, (f"--session-id={NEW}",)),
        (FRESH, None, ()),
        (RESUME, None, (f"--resume={OLD}",)),
    ],
)
def test_the_decision_alone_chooses_the_session(
    decision: object, new_id: str | None, session: tuple[str, ...]
) -> None:
    spec = a_launch_spec(decision=decision, new_id=new_id)
    assert GEMINI.command(spec).argv == (*HEADLESS, *session)
    assert GEMINI.interactive(spec).argv == ("/bin/agent", *session)


def test_a_fork_begins_with_the_file_of_the_session(tmp_path: Path) -> None:
    shutil.copytree(HERE / "sessions" / "gemini", tmp_path, dirs_exist_ok=True)
    source = Fork(ProviderSessionId("0a4b2c9e-5d1f-4e57-9a7a-6f1f9a1c2d3e"), (), ())
    file = tmp_path / "tmp" / "work" / "chats" / "session-2026-11-15T22-56-0a4b2c9e.jsonl"
    spec = a_launch_spec(decision=source, home=str(tmp_path))
    assert GEMINI.command(spec).argv == (*HEADLESS, f"--session-file={file}")


def test_a_fork_of_a_session_without_a_file_names_one_that_is_not_there() -> None:
    """Gemini then refuses; without the option it would begin a session that knows nothing."""
    assert GEMINI.command(a_launch_spec(decision=FORK)).argv == (*HEADLESS, f"--session-file={OLD}.jsonl")


def test_it_names_its_forks_itself() -> None:
    assert GEMINI.mint_id(FORK) is None
    minted = GEMINI.mint_id(FRESH)
    assert minted is not None
    assert UUID(minted).version == 4


def test_rights_and_model_are_tied_to_their_options() -> None:
    rights = Rights(
        permission_mode="auto_edit",
        allowed_tools=frozenset({"run_shell_command(git)", "glob"}),
        extra_dirs=frozenset({"/data", "/a b"}),
        extra_args=("--skip-trust",),
    )
    assert GEMINI.command(a_launch_spec(model="gemini-9", rights=rights)).argv == (
        *HEADLESS,
        "--model=gemini-9",
        "--approval-mode=auto_edit",
        "--allowed-tools=glob",
        "--allowed-tools=run_shell_command(git)",
        "--include-directories=/a b",
        "--include-directories=/data",
        "--skip-trust",
    )


def test_the_prompt_goes_over_standard_input() -> None:
    command = GEMINI.command(a_launch_spec(prompt="--yolo"))
    assert command.stdin == "--yolo"
    assert "--yolo" not in command.argv


def test_home_follows_the_providers_own_variable() -> None:
    assert GEMINI.home({"HOME": "/home/ada"}) == Path("/home/ada/.gemini")
    assert GEMINI.home({"HOME": "/home/ada", "GEMINI_CLI_HOME": "/srv"}) == Path("/srv/.gemini")


def test_the_probe_finds_the_name_in_the_help() -> None:
    probe = GEMINI.read_probe(("0.61.0\n", HELP))
    assert (probe.version, probe.distribution) == ("0.61.0", "gemini-cli")
    assert probe.capabilities == Capabilities(
        can_resume=True, can_fork=True, chooses_id=True, append_only_transcript=True
    )


def test_an_older_one_can_do_less() -> None:
    can = GEMINI.read_probe(("0.30.0\n", "Gemini CLI - \n  -r, --resume  Resume")).capabilities
    assert can == Capabilities(can_resume=True, append_only_transcript=True)


@pytest.mark.parametrize(
    ("rights", "field"),
    [
        (Rights(permission_mode="acceptEdits"), "permission mode"),
        (Rights(allowed_tools=frozenset({"glob,run_shell_command"})), "allowed tools"),
        (Rights(extra_dirs=frozenset({"/data,/etc"})), "extra directories"),
        (Rights(extra_args=("--resume", "latest")), "provider arguments"),
        (Rights(extra_args=("-rlatest",)), "provider arguments"),
        (Rights(extra_args=("--yolo",)), "provider arguments"),
        (Rights(extra_args=("-y",)), "provider arguments"),
        (Rights(extra_args=("--session-file=a.jsonl",)), "provider arguments"),
        (Rights(extra_args=("--worktree",)), "provider arguments"),
    ],
)
def test_what_gemini_cannot_express_is_refused(rights: Rights, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        GEMINI.check(rights)
    assert refused.value.field == field


@pytest.mark.parametrize("mode", [None, "default", "auto_edit", "yolo", "plan"])
def test_a_permission_mode_is_an_approval_mode(mode: str | None) -> None:
    rights = Rights(permission_mode=mode, extra_args=("--skip-trust", "--policy", "mine.toml"))
    GEMINI.check(rights, allow_wider=True)
    with pytest.raises(InvalidInput, match="--skip-trust may widen"):
        GEMINI.check(rights)


def test_a_sandbox_can_be_switched_on_but_not_off() -> None:
    GEMINI.check(Rights(extra_args=("--sandbox", "-e", "one", "two")))
    for off in ("--sandbox=false", "--no-sandbox"):
        with pytest.raises(InvalidInput, match="--allow-wider-rights"):
            GEMINI.check(Rights(extra_args=(off,)))
