"""config: every setting with its value and its source, no secret, and an editor for the user's file."""

import stat
from pathlib import Path

import pytest

from holdfast.config import setting_keys
from holdfast.domain.tokens import ENTROPY, Role, make_token
from tests.acceptance.command import holdfast, ok, on_terminal
from tests.acceptance.test_screens import screen

TOKEN = make_token(Role.OPERATOR, "ada", None, bytes(ENTROPY))[1]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "holdfast" / "config.toml"


def wrote(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def shown() -> dict[str, tuple[str, str]]:
    lines = (line.split("\t") for line in ok("config", "show").lines)
    return {key: (value, source) for key, value, source in lines}


def test_every_setting_is_shown_with_its_value_and_where_it_comes_from(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(mine, '[run]\nprovider = "codex"\n[resume.agents]\nreviewer = false\n')
    wrote(tmp_path / "work" / ".holdfast.toml", '[context]\npacket_turns = 7\n[run]\nprovider = "gemini"\n')
    monkeypatch.setenv("HOLDFAST_CONTINUE__MAX_IDLE_SECONDS", "off")

    told = holdfast("config", "show", "--workspace", "payments", cwd=tmp_path / "work")
    rows = {line.split("\t")[0]: tuple(line.split("\t")[1:]) for line in told.lines}

    assert set(setting_keys()) - set(rows) == {"resume.agents"}
    assert rows["workspace"] == ("payments", "flag")
    assert rows["run.provider"] == ("codex", str(mine))  # nobody has trusted the project's file
    assert rows["resume.agents.reviewer"] == ("false", str(mine))
    assert rows["context.packet_turns"] == ("7", str(tmp_path / "work" / ".holdfast.toml"))
    assert rows["continue.max_idle_seconds"] == ("off", "HOLDFAST_CONTINUE__MAX_IDLE_SECONDS")
    assert rows["queue.lease_seconds"] == ("60", "default")
    assert "ignored run.provider" in told.err
    document = holdfast("config", "show", "--json", cwd=tmp_path / "work").json
    assert document["settings"]["run.provider"] == {"value": "codex", "source": str(mine)}
    assert (document["user_file"], document["project_trusted"]) == (str(mine), False)


def test_no_secret_is_shown(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://ada:swordfish@db.example.net/holdfast")
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    wrote(
        mine,
        """
[notify]
command = "curl -u ada:swordfish https://example.net"
webhook = "https://ada:swordfish@hooks.example.net/swordfish"
[vault]
key_command = "echo swordfish"
""",
    )

    for printed in (
        ok("config", "show").out,
        ok("config", "show", "--json").out,
        screen("config", "show", columns=200),
    ):
        assert "swordfish" not in printed
        assert TOKEN not in printed
    rows = shown()
    assert rows["url"] == ("postgresql://db.example.net", "HOLDFAST_URL")
    assert rows["token"] == ("hft_…", "HOLDFAST_TOKEN")
    assert rows["vault.key_command"] == ("echo …", str(mine))


def test_a_screen_names_the_files(mine: Path) -> None:
    wrote(mine, '[run]\nprovider = "scripted"\n')

    told = screen("config", "show")

    assert any(line.split() == ["run.provider", "scripted", "your", "file"] for line in told.splitlines())
    assert "\nyour file:" in told
    assert all(len(line) <= 80 for line in told.splitlines())


def test_edit_makes_the_file_for_its_owner_alone_and_checks_it(mine: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf \'[run]\\nprovider = "codex"\\n\' >> "$1"\n')
    editor.chmod(0o755)

    edited = on_terminal("config", "edit", env={"EDITOR": str(editor)})

    assert (edited.code, "saved: " in edited.out) == (0, True)
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    assert shown()["run.provider"] == ("codex", str(mine))

    editor.write_text("#!/bin/sh\nprintf 'provder = 1\\n' > \"$1\"\n")
    wrong = on_terminal("config", "edit", env={"EDITOR": str(editor)})
    assert wrong.code == 2
    assert "unknown key 'provder'" in wrong.out
    assert "to mend it: holdfast config edit" in " ".join(wrong.out.split())


def test_edit_is_for_people(mine: Path) -> None:
    assert "config edit needs a terminal" in holdfast("config", "edit").one_line_error()
    agent = on_terminal("config", "edit", env={"HOLDFAST_SESSION": "agent-1", "EDITOR": "true"})
    assert (agent.code, "only a person can" in agent.out) == (4, True)
    assert not mine.exists()
