"""``holdfast hooks``: Claude Code's settings get our entries and are otherwise left as they are."""

import json
import os
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.hooks.installation import HOOKS
from tests.acceptance.command import HOLDFAST, holdfast, ok, without_privileges
from tests.acceptance.served import server

THEIRS = """\
{
    "model": "opus",   "numbers": [1, 2.50],
    "permissions": {"allow": ["Bash(ls:*)"]},
    "unheardOf": {"ä": "\\u00e4"}
}
"""


@pytest.fixture
def settings(home: Path) -> Path:
    """The user's own settings, which are not there yet."""
    return home / ".claude" / "settings.json"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "src").mkdir()
    return folder


def hooks_in(path: Path) -> Any:
    return json.loads(path.read_text())["hooks"]


def beside(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()} - {path.name}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hooks_are_installed_for_the_user_and_removed_again(settings: Path) -> None:
    installed = ok("hooks", "install")

    assert set(hooks_in(settings)) == set(HOOKS)
    assert str(settings) in installed.out
    assert ok("hooks", "status", "--json").json["installed"]

    ok("hooks", "uninstall")
    assert json.loads(settings.read_text()) == {}
    assert holdfast("hooks", "status").code == 1


def test_everything_else_in_the_file_stays_and_comes_back_byte_for_byte(settings: Path) -> None:
    write(settings, THEIRS)
    settings.chmod(0o640)

    ok("hooks", "install")
    changed = settings.read_text()
    assert changed.startswith('{\n    "model": "opus",\n    "numbers": [\n')
    assert list(json.loads(changed).items())[:-1] == list(json.loads(THEIRS).items())
    assert (settings.parent / "settings.json.before-holdfast").read_text() == THEIRS

    ok("hooks", "uninstall")
    assert settings.read_text() == THEIRS
    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    assert beside(settings) == {"settings.json.before-holdfast"}


def test_what_was_changed_since_the_installation_stays_changed(settings: Path) -> None:
    write(settings, '{"trusted": 1}')
    ok("hooks", "install")
    write(settings, settings.read_text().replace('"trusted": 1', '"trusted": true'))

    ok("hooks", "uninstall")

    assert settings.read_text() == '{\n  "trusted": true\n}'


def test_what_is_kept_is_the_file_before_holdfast_came(settings: Path) -> None:
    write(settings, THEIRS)
    ok("hooks", "install")

    ok("hooks", "install", "--http", "http://127.0.0.1:8787")
    ok("hooks", "uninstall")

    assert (settings.parent / "settings.json.before-holdfast").read_text() == THEIRS


def test_status_says_whether_the_server_answers() -> None:
    with server() as (url, _):
        ok("hooks", "install", "--http", url)
        answered = ok("hooks", "status", "--json").json
    assert answered["servers"] == [{"address": url, "answers": True, "problem": None}]

    silent = holdfast("hooks", "status", "--json")
    assert (silent.code, silent.json["installed"]) == (1, True)
    assert not silent.json["servers"][0]["answers"]
    told = holdfast("hooks", "status").out
    assert "are sent to a server that does not answer" in told
    assert f"{url}: no answer: Connection refused" in told


@pytest.mark.parametrize("role", [None, "reader", "revoked"])
def test_a_server_that_refuses_every_hook_is_found_out(role: str | None) -> None:
    token = ok("token", "create", "--role", "worker" if role == "revoked" else "reader").out.strip()
    with server() as (url, _):
        ok("hooks", "install", "--http", url)
        if role == "revoked":
            ok("token", "revoke", token.split("_")[1])
        env = {} if role is None else {"HOLDFAST_TOKEN": token}
        document, told = (holdfast("hooks", "status", *flag, env=env) for flag in (["--json"], []))

    (found,) = document.json["servers"]
    assert (document.code, told.code, found["answers"]) == (1, 1, True)
    assert found["problem"].endswith("set HOLDFAST_TOKEN to one of the role worker")
    assert "are refused by the server" in told.out


def test_a_token_that_hooks_may_use_is_said_to_do(home: Path) -> None:
    token = ok("token", "create", "--role", "worker").out.strip()
    with server() as (url, _):
        ok("hooks", "install", "--http", url)
        told = ok("hooks", "status", env={"HOLDFAST_TOKEN": token}).out

    assert "are called" in told
    assert "never, as far as the log goes" in told


def test_what_is_no_token_is_not_shown() -> None:
    ok("token", "create", "--role", "worker")
    with server() as (url, _):
        ok("hooks", "install", "--http", url)
        told = holdfast("hooks", "status", env={"HOLDFAST_TOKEN": "not\na token"})

    assert told.code == 1
    assert "refuses the token" in told.out
    assert "a token" not in told.out


def test_whoever_else_answers_is_no_server_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as beside_us:
        told = beside_us.submit(say_once, listening, b"HTTP/1.0 404 Not Found\r\n\r\n")
        port = listening.getsockname()[1]
        ok("hooks", "install", "--http", f"http://127.0.0.1:{port}")
        silent = holdfast("hooks", "status", "--json")
        told.result()
    assert silent.code == 1
    assert "answers 404" in silent.json["servers"][0]["problem"]


def say_once(listening: socket.socket, words: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(words)


@pytest.mark.parametrize("kind", ["hole", "pipe"])
def test_settings_of_a_project_that_no_program_wrote_keep_nobody_waiting(project: Path, kind: str) -> None:
    file = project / ".claude" / "settings.json"
    write(file, "{}")
    if kind == "hole":
        os.truncate(file, 4 << 40)
    else:
        file.unlink()
        os.mkfifo(file)

    status = holdfast("hooks", "status", cwd=project)

    assert (status.code, "unreadable" in status.out) == (1, True)


def test_it_is_for_one_of_both() -> None:
    assert holdfast("hooks", "install", "--user", "--project").code == 2


def test_installing_twice_writes_once(settings: Path) -> None:
    write(settings, THEIRS)
    ok("hooks", "install")
    before = settings.stat()
    (settings.parent / "settings.json.before-holdfast").unlink()

    again = ok("hooks", "install", "--json").json

    assert (again["changed"], again["backup"]) == (False, None)
    after = settings.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert beside(settings) == set()


def test_uninstalling_where_nothing_is_installed_makes_no_file(settings: Path) -> None:
    ok("hooks", "uninstall")

    assert not settings.parent.exists()


def test_a_link_to_the_file_stays_a_link(settings: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "claude.json"
    dotfiles.write_text(THEIRS)
    settings.parent.mkdir()
    settings.symlink_to(dotfiles)

    ok("hooks", "install")

    assert settings.is_symlink()
    assert set(hooks_in(dotfiles)) == set(HOOKS)


def test_another_configuration_directory_is_honoured(tmp_path: Path, home: Path) -> None:
    ok("hooks", "install", env={"CLAUDE_CONFIG_DIR": str(tmp_path / "elsewhere")})

    assert (tmp_path / "elsewhere" / "settings.json").is_file()
    assert not (home / ".claude").exists()


def test_a_project_is_the_repository_around_the_directory(project: Path) -> None:
    ok("hooks", "install", "--project", cwd=project / "src")

    assert set(hooks_in(project / ".claude" / "settings.json")) == set(HOOKS)
    assert ok("hooks", "status", "--json", cwd=project / "src").json["settings"][1]["hooks"] == "installed"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{\n  // a comment\n  "model": "opus"\n}\n', 2),
        ('{\n  "hooks": []\n}', 2),
        ('{\n  "model": "opus",\n  "hooks": {\n    "Stop": "say done"\n  }\n}', 4),
        ('{\n  "hooks": {},\n  "hooks": {}\n}', 3),
    ],
)
@pytest.mark.parametrize("action", ["install", "uninstall"])
def test_a_file_that_cannot_be_understood_is_refused_with_its_line_and_left_alone(
    action: str, text: str, line: int, settings: Path
) -> None:
    write(settings, text)

    refused = holdfast("hooks", action)

    assert refused.code == 2
    assert f"{settings}: line {line}: " in refused.one_line_error()
    assert settings.read_text() == text
    assert beside(settings) == set()


def test_a_file_that_cannot_be_written_is_an_error_and_nothing_is_left_behind(settings: Path) -> None:
    write(settings, THEIRS)
    settings.parent.chmod(0o500)

    refused = holdfast("hooks", "install", before=without_privileges)

    settings.parent.chmod(0o700)
    assert refused.code == 2
    assert "cannot be written" in refused.one_line_error()
    assert (settings.read_text(), beside(settings)) == (THEIRS, set())


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8787", "ftp://127.0.0.1", "http://", "http://me:secret@127.0.0.1:8787"]
)
def test_an_address_that_is_none_is_refused_without_being_shown(url: str, settings: Path) -> None:
    refused = holdfast("hooks", "install", "--http", url)

    assert refused.code == 2
    assert "secret" not in refused.one_line_error()
    assert not settings.exists()


def test_the_installed_command_is_found_without_path_and_one_that_is_gone_does_no_harm(
    settings: Path, tmp_path: Path
) -> None:
    other = tmp_path / "it's elsewhere" / "holdfast"
    other.parent.mkdir()
    other.symlink_to(HOLDFAST)
    subprocess.run([other, "hooks", "install"], check=True, capture_output=True)
    (handler,) = hooks_in(settings)["Stop"][0]["hooks"]
    other.unlink()
    other.write_text('#!/bin/sh\necho "called with $@"\n')
    other.chmod(0o755)

    def run() -> tuple[int, str, str]:
        done = subprocess.run(
            handler["command"],
            shell=True,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert run() == (0, "called with hook stop\n", "")
    other.unlink()
    assert run() == (0, "", "")


class TestStatus:
    def test_a_part_of_the_hooks_is_not_enough(self, settings: Path) -> None:
        ok("hooks", "install")
        hooks = hooks_in(settings)
        del hooks["Stop"]
        write(settings, json.dumps({"hooks": hooks}))

        told = holdfast("hooks", "status", "--json")

        assert (told.code, told.json["settings"][0]["hooks"]) == (1, "partly")
        assert told.json["settings"][0]["missing"] == ["Stop"]

    def test_a_command_that_cannot_be_started_is_named(self, settings: Path, tmp_path: Path) -> None:
        gone = tmp_path / "gone" / "holdfast"
        gone.parent.mkdir()
        gone.symlink_to(HOLDFAST)
        subprocess.run([gone, "hooks", "install"], check=True, capture_output=True)
        gone.unlink()
        gone.write_text("#!/gone/python\n")
        gone.chmod(0o755)

        told = holdfast("hooks", "status", "--json", env={"PATH": "/usr/bin:/bin"})

        assert (told.code, told.json["settings"][0]["broken"]) == (1, [str(gone)])

    @pytest.mark.parametrize("scope", ["settings.json", "settings.local.json"])
    def test_hooks_that_are_switched_off_are_not_called(self, scope: str, project: Path) -> None:
        ok("hooks", "install")
        write(project / ".claude" / scope, '{"disableAllHooks": true}')

        told = holdfast("hooks", "status", "--json", cwd=project)

        assert (told.code, told.json["hooks_disabled"]) == (1, True)
        assert "disableAllHooks" in holdfast("hooks", "status", cwd=project).out

    def test_the_plugin_does_as_well_and_both_together_are_pointed_out(self, settings: Path) -> None:
        write(settings, '{"enabledPlugins": {"holdfast@holdfast": true}}')
        assert ok("hooks", "status", "--json").json["plugin_enabled"]

        ok("hooks", "install")
        assert ok("hooks", "status", "--json").json["called_twice"]
        assert "called twice" in ok("hooks", "status").out

    def test_a_plugin_that_is_switched_off_for_the_project_does_not_count(
        self, settings: Path, project: Path
    ) -> None:
        write(settings, '{"enabledPlugins": {"holdfast@holdfast": true}}')
        write(project / ".claude" / "settings.json", '{"enabledPlugins": {"holdfast@holdfast": false}}')

        assert holdfast("hooks", "status", cwd=project).code == 1

    def test_a_file_that_cannot_be_understood_is_told_not_fatal(self, settings: Path, project: Path) -> None:
        ok("hooks", "install")
        write(project / ".claude" / "settings.json", "{")

        told = ok("hooks", "status", "--json", cwd=project).json

        assert told["settings"][1]["hooks"] == "unreadable"
        assert "line 1" in told["settings"][1]["problem"]

    def test_a_store_that_cannot_be_opened_is_told(self, tmp_path: Path) -> None:
        ok("hooks", "install")
        (tmp_path / "file").write_text("no database")

        told = ok("hooks", "status", "--json", "--url", f"sqlite:///{tmp_path / 'file'}").json

        assert "file" in told["store_problem"]

    def test_the_last_call_is_the_age_of_the_log(self, home: Path) -> None:
        ok("hooks", "install")
        assert ok("hooks", "status", "--json").json["last_call_at"] is None
        log = home / ".local" / "state" / "holdfast" / "hooks.log"
        write(log, "{}\n")
        os.utime(log, (0, 0))

        assert ok("hooks", "status", "--json").json["last_call_at"] == "1970-01-01T00:00:00Z"
