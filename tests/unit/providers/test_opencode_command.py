from pathlib import Path

import pytest

from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.errors import InvalidInput
from holdfast.providers.contract import Provider
from holdfast.providers.opencode import Opencode
from tests.unit.providers.builders import FORK, FRESH, OLD, RESUME, a_launch_spec

OPENCODE: Provider = Opencode()
HEADLESS = ("/bin/agent", "run", "--format=json", "--dir=/lab/work")
HELP = """
opencode run [message..]

Options:
  -s, --session      session id to continue                                                 [string]
      --fork         fork the session before continuing (requires --continue or --session) [boolean]
"""


@pytest.mark.parametrize(
    ("decision", "session"),
    [(FRESH, ()), (RESUME, (f"--session={OLD}",)), (FORK, (f"--session={OLD}", "--fork"))],
)
def test_the_decision_alone_chooses_the_session(decision: object, session: tuple[str, ...]) -> None:
    spec = a_launch_spec(decision=decision)
    assert OPENCODE.command(spec).argv == (*HEADLESS, *session)
    assert OPENCODE.interactive(spec).argv == ("/bin/agent", "/lab/work", *session)


def test_the_prompt_goes_over_standard_input_where_it_gets_no_quotes() -> None:
    command = OPENCODE.command(a_launch_spec(prompt="two words"))
    assert command.stdin == "two words"
    assert "two words" not in command.argv


def test_model_and_rights_are_sent() -> None:
    rights = Rights(permission_mode="auto", extra_args=("--agent", "plan"))
    argv = OPENCODE.command(a_launch_spec(model="lab/model", rights=rights)).argv
    assert argv == (*HEADLESS, "--model=lab/model", "--auto", "--agent", "plan")


def test_another_database_is_not_passed_on() -> None:
    """Its sessions are looked for in its home."""
    assert OPENCODE.command(a_launch_spec()).without == ("OPENCODE_DB",)
    assert OPENCODE.interactive(a_launch_spec()).without == ("OPENCODE_DB",)


def test_it_names_its_sessions_itself() -> None:
    assert OPENCODE.mint_id(FRESH) is None
    assert OPENCODE.mint_id(FORK) is None


def test_home_is_where_the_desktop_keeps_data() -> None:
    assert OPENCODE.home({"HOME": "/home/ada"}) == Path("/home/ada/.local/share/opencode")
    assert OPENCODE.home({"HOME": "/home/ada", "XDG_DATA_HOME": "/srv"}) == Path("/srv/opencode")


def test_the_probe_finds_the_name_in_the_help() -> None:
    probe = OPENCODE.read_probe(("1.18.33\n", HELP))
    assert (probe.version, probe.distribution) == ("1.18.33", "opencode")
    assert probe.capabilities == Capabilities(can_resume=True, can_fork=True, append_only_transcript=True)


def test_another_product_of_that_name_is_told_apart() -> None:
    probe = OPENCODE.read_probe(("opencode-go 0.1.0\n", "Usage: opencode run [flags]"))
    assert (probe.version, probe.distribution) == ("0.1.0", "opencode-go")
    assert not probe.capabilities.can_resume


@pytest.mark.parametrize(
    ("rights", "field"),
    [
        (Rights(permission_mode="acceptEdits"), "permission mode"),
        (Rights(permission_mode=""), "permission mode"),
        (Rights(allowed_tools=frozenset({"bash"})), "allowed tools"),
        (Rights(extra_dirs=frozenset({"/data"})), "extra directories"),
        (Rights(extra_args=("--continue",)), "provider arguments"),
        (Rights(extra_args=("-sses_1",)), "provider arguments"),
        (Rights(extra_args=("--dir=/tmp",)), "provider arguments"),
        (Rights(extra_args=("--attach", "http://127.0.0.1:4096")), "provider arguments"),
        (Rights(extra_args=("--yolo",)), "provider arguments"),
        (Rights(extra_args=("--dangerously-skip-permissions",)), "provider arguments"),
    ],
)
def test_what_opencode_cannot_express_is_refused(rights: Rights, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        OPENCODE.check(rights)
    assert refused.value.field == field


def test_its_own_settings_pass() -> None:
    OPENCODE.check(Rights(permission_mode="auto", extra_args=("--agent", "plan", "--variant=high", "--pure")))
    for arguments in (("--agent", "build"), ("--agent=mine",), ("--share",), ("--file", "/etc/passwd")):
        with pytest.raises(InvalidInput, match="--allow-wider-rights"):
            OPENCODE.check(Rights(extra_args=arguments))
