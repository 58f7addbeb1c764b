"""Wrong input: one clear line, the right exit code, nothing changed, never a traceback."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests import steps
from tests.acceptance.command import HOLDFAST, Argument, environment, holdfast, ok

LONG = "x" * 300
BAD_UTF8 = b"caf\xe9"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["update", "deploy", "--phase", "bogus"], 2, "phase: 'bogus' is not a phase (one of initializing, "),
        (["update", "deploy", "--expect", "bogus"], 2, "phase: 'bogus' is not a phase"),
        (["finalize", "deploy", "planning"], 2, "outcome: 'planning' is not an outcome (one of completed, "),
        (["get", "agent-20260108-180530-abc12345"], 3, "session not found: agent-20260108-180530-abc12345"),
        (["get", "agent-"], 3, "'agent-' fits several sessions: agent-"),
        (["get", "../../etc/passwd"], 3, "session not found: ../../etc/passwd"),
        (["get", LONG], 2, "session: is 300 characters long; the limit is 200"),
        (["get", ""], 2, "session: must not be empty"),
        (["get", "a\nb"], 2, "session: contains a control character at position 1"),
        (["get", "\x1b[31m"], 2, "session: contains a control character at position 0"),
        (["get", BAD_UTF8], 2, "session: contains invalid UTF-8 at position 3"),
        (["rename", "deploy", BAD_UTF8], 2, "name: contains invalid UTF-8 at position 3"),
        (["create", "--agent", BAD_UTF8], 2, "agent: contains invalid UTF-8 at position 3"),
        (["create", "--agent", "a", "--purpose", BAD_UTF8], 2, "purpose: contains invalid UTF-8"),
        (["create", "--agent", ""], 2, "agent: must not be empty"),
        (["create", "--agent", "a", "--provider", "Not One"], 2, "provider: 'Not One' is not a provider's name"),
        (["create", "--agent", "a", "--metadata", "{"], 2, "metadata: is not valid JSON: "),
        (["create", "--agent", "a", "--metadata", "[1]"], 2, "metadata: must be a JSON object, not a list"),
        (["create", "--agent", "a", "--metadata", "null"], 2, "metadata: must be a JSON object, not null"),
        (["create", "--agent", "a", "--metadata", BAD_UTF8], 2, "metadata: contains invalid UTF-8"),
        (["create", "--agent", "a", "--metadata", '{"a": NaN}'], 2, "metadata: cannot be written as JSON: "),
        (["create", "--agent", "a", "--metadata", '{"a": "\\u0000"}'], 2, "metadata: contains a NUL byte"),
        (["create", "--agent", "a", "--metadata", "[" * 100_000], 2, "metadata: is not valid JSON: "),
        (["create"], 2, "Missing option '--agent' (see: holdfast create --help)"),
        (["cleanup", "--hours", "-1"], 2, "hours: must be a number between 0 and 10000000, not -1.0"),
        (
            ["cleanup", "--conversation-hours", "-1"],
            2,
            "conversation_hours: must be a number between 0 and 10000000, not -1.0",
        ),
        (["cleanup", "--hours", "nan"], 2, "hours: must be a number between 0 and 10000000, not nan"),
        (["cleanup", "--hours", "inf"], 2, "hours: must be a number between 0 and 10000000, not inf"),
        (["cleanup", "--hours", "1e300"], 2, "hours: must be a number between 0 and 10000000, not 1e+300"),
        (["rename", "deploy", "agent-20260108-180530-abc12345"], 2, "name: 'agent-20260108-180530-abc12345' looks "),
        (["cleanup", "--hours", "soon"], 2, "Invalid value for '--hours': 'soon' is not a valid float"),
        (["list", "--since", "yesterday-ish"], 2, "since: 'yesterday-ish' is not a moment; write 2h, "),
        (["list", "--until", "999999999w"], 2, "until: '999999999w' is more than 100 years ago"),
        (["list", "--limit", "0"], 2, "Invalid value for '--limit': 0 is not in the range"),
        (["show", "deploy", "--turns", "-1"], 2, "Invalid value for '--turns': -1 is not in the range"),
        (["completion", "tcsh"], 2, "Invalid value for "),
        (["lits"], 2, "command not found: lits; did you mean list? (see: holdfast --help)"),
        ([b"\xff\x1b[31m"], 2, "command not found: \\udcff\\x1b[31m"),
        (["list", "--bogus"], 2, "No such option"),
        (["list", "extra"], 2, "Got unexpected extra argument (extra) (see: holdfast list --help)"),
        (["--url", "", "list"], 2, "flag: url must not be empty"),
        (["list", "--url", "mysql://host/db"], 2, "url: 'mysql' is not a store (sqlite:///path, postgresql://"),
        (["list", "--workspace", "a/b"], 2, "flag: workspace must be an id: "),
    ],
    ids=repr,
)  # fmt: skip
def test_bad_input_is_one_line_and_changes_nothing(
    arguments: list[Argument], code: int, message: str, library: Holdfast
) -> None:
    library.create("a", name="deploy")
    library.create("a")
    before = steps.snapshot(library.store)

    wrong = holdfast(*arguments)

    assert wrong.one_line_error().startswith(message)
    assert (wrong.code, wrong.out) == (code, "")
    assert steps.snapshot(library.store) == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b'{"a": "' + b"x" * (256 * 1024) + b'"}', "metadata: is 262153 bytes as JSON; the limit is 262144"),
        (b'{"a": "caf\xe9"}', "metadata: contains invalid UTF-8 at position 10"),
        (b'{"a": "\x00"}', "metadata: contains a NUL byte at position 7"),
        (b"", "metadata: is not valid JSON: "),
    ],
    ids=["too large", "invalid UTF-8", "NUL byte", "empty"],
)
def test_bad_metadata_on_standard_input(given: bytes, message: str, library: Holdfast) -> None:
    session = library.create("a", metadata={"kept": True})

    wrong = holdfast("update", session.id, "--phase", "planning", "--metadata", "-", stdin=given)

    assert wrong.one_line_error().startswith(message)
    assert wrong.code == 2
    assert library.session(session.id) == session


def test_metadata_just_within_the_limit_is_taken(library: Holdfast) -> None:
    session = library.create("a")
    text = "x" * (256 * 1024 - len('{"a": ""}'))

    ok("update", session.id, "--metadata", "-", stdin=json.dumps({"a": text}))

    assert library.session(session.id).metadata == {"a": text}


def test_errors_are_json_on_standard_output_when_json_was_asked_for(library: Holdfast) -> None:
    library.create("a")
    library.create("a")

    missing = holdfast("--json", "get", "nope")
    assert (missing.code, missing.err) == (3, "")
    assert missing.json["error"] == {
        "code": "not_found",
        "message": "session not found: nope",
        "details": {"kind": "session", "id": "nope"},
    }
    ambiguous = holdfast("get", "agent-", "--json").json["error"]
    assert (ambiguous["code"], len(ambiguous["details"]["candidates"])) == ("ambiguous_id", 2)
    assert holdfast("list", "--bogus", "--json").json["error"]["code"] == "usage"
    assert holdfast("update", BAD_UTF8, "--json").json["error"]["details"] == {"field": "session"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (".config/holdfast/config.toml", "colour = 1", "unknown key 'colour'"),
        (".config/holdfast/config.toml", "[resume]\nsame_modle = true", "did you mean resume.same_model?"),
        (".config/holdfast/config.toml", "url = ", "is not valid TOML: "),
        (".holdfast.toml", "[continue]\nmax_errors = 0", "continue.max_errors must be between 1 and "),
    ],
)
def test_a_wrong_configuration_names_the_file_and_the_key(
    file: str, content: str, message: str, home: Path
) -> None:
    path = home / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)

    wrong = holdfast("list", cwd=home)

    assert wrong.code == 2
    assert wrong.one_line_error().startswith(f"{path}: ")
    assert message in wrong.err
    assert not (home / ".local").exists()


def test_a_wrong_environment_variable_is_named() -> None:
    wrong = holdfast("list", "--json", env={"HOLDFAST_QUEUE__LEASE_SECONDS": "soon"})

    assert wrong.code == 2
    assert wrong.json["error"]["code"] == "config_error"
    assert wrong.json["error"]["details"]["where"] == "HOLDFAST_QUEUE__LEASE_SECONDS"


def test_interrupted_while_it_waits_for_input_it_ends_with_130() -> None:
    process = subprocess.Popen(
        [HOLDFAST, "create", "--agent", "a", "--metadata", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(
        b" " * 1_000_000
    )  # far more than a pipe holds: once it is gone, the command is reading
    process.stdin.flush()

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"holdfast: interrupted\n")


def test_an_output_that_cannot_be_written_is_said_and_not_a_traceback(
    library: Holdfast, tmp_path: Path
) -> None:
    library.create("a")
    (tmp_path / "read-only").touch()

    for options in ([], ["--json"]):
        with (tmp_path / "read-only").open("rb") as unwritable:
            done = subprocess.run(
                [HOLDFAST, "list", *options],
                stdout=unwritable,
                stderr=subprocess.PIPE,
                env=environment(),
                check=False,
            )
        assert (done.returncode, done.stderr) == (
            1,
            b"holdfast: cannot write the output: Bad file descriptor\n",
        )


def test_closed_streams_are_no_reason_to_fail() -> None:
    closed = subprocess.run(
        ["sh", "-c", f"'{HOLDFAST}' list >&-; '{HOLDFAST}' get nope 2>&-; echo $?"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (closed.stdout, closed.stderr) == ("3\n", "")


def test_any_locale_can_print_any_name(library: Holdfast) -> None:
    session = library.create("a", name="Größe ☃")

    for locale in ("C", "POSIX", "en_US.ISO-8859-1"):
        env = {"LC_ALL": locale, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        assert ok("list", env=env).out.startswith(session.id)
        assert ok("show", session.id, "--json", env=env).json["name"] == "Größe ☃"


def test_a_directory_that_was_deleted_is_no_reason_to_fail(library: Holdfast, tmp_path: Path) -> None:
    session = library.create("a")
    gone = tmp_path / "gone"
    gone.mkdir()

    done = subprocess.run(
        ["sh", "-c", f"cd '{gone}' && rmdir '{gone}' && '{HOLDFAST}' list"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(session.id)


BROKEN = "import holdfast.engine.default as d\ndef broken(settings): raise RuntimeError('one\\ntwo')\nd.open_with = broken"


def test_an_error_nobody_expected_is_one_line_and_a_traceback_on_request(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    env = {"PYTHONPATH": str(tmp_path)}

    quiet = holdfast("list", env=env)
    assert (quiet.code, quiet.err) == (
        1,
        "holdfast: internal error: RuntimeError: one two, please report; HOLDFAST_DEBUG=1 shows the traceback\n",
    )
    loud = holdfast("list", env={**env, "HOLDFAST_DEBUG": "1"})
    assert loud.code == 1
    assert "Traceback (most recent call last):" in loud.err
    assert holdfast("list", "--json", env=env).json["error"]["code"] == "internal_error"


def test_no_command_at_all_shows_the_help_and_is_wrong_usage() -> None:
    bare = holdfast()

    assert bare.code == 2
    assert bare.out.startswith("Usage: holdfast [OPTIONS] [COMMAND]")
