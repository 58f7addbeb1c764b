"""Hooks of others that could change a call behind the gate."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.pointers import Rights
from holdfast.providers.claude import tool_gate
from holdfast.providers.claude.tool_gate import find_foreign_hooks

COMMAND = "/opt/rewrite --all"


class Places:
    def __init__(self, folder: Path) -> None:
        self.home = folder / "home" / ".claude"
        self.project = folder / "project"
        self.work_dir = self.project / "infra"
        self.managed = folder / "managed"
        for made in (self.home, self.work_dir, self.project / ".git", self.managed):
            made.mkdir(parents=True)

    def found(self, *patterns: str, extra_args: tuple[str, ...] = ()) -> list[str]:
        rights = Rights(
            approve_tools=frozenset(patterns or {"Bash(terraform apply*)"}), extra_args=extra_args
        )
        return [hook.what for hook in find_foreign_hooks(self.home, self.work_dir, rights)]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    places = Places(tmp_path)
    monkeypatch.setattr(tool_gate, "MANAGED", places.managed)
    return places


def hooks(event: str = "PreToolUse", matcher: str | None = None, **hook: Any) -> dict[str, Any]:
    entry = {"hooks": [hook or {"type": "command", "command": COMMAND}]}
    return {"hooks": {event: [entry if matcher is None else {"matcher": matcher, **entry}]}}


def put(path: Path, content: dict[str, Any] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_where_nobody_has_hooks_there_are_none(places: Places) -> None:
    put(places.home / "settings.json", {"model": "opus", "hooks": {"Stop": [{"hooks": [{"command": "x"}]}]}})
    assert places.found() == []


@pytest.mark.parametrize(
    "file",
    [
        "home/.claude/settings.json", "home/.claude/settings.local.json", "home/.claude/remote-settings.json",
        "project/.claude/settings.json", "project/infra/.claude/settings.json",
        "project/infra/.claude/settings.local.json", "managed/managed-settings.json",
        "managed/managed-settings.d/10-all.json",
    ],
)  # fmt: skip
def test_settings_are_looked_at_wherever_claude_code_reads_them(places: Places, file: str) -> None:
    put(places.managed.parent / file, hooks())
    assert places.found() == [COMMAND]


def test_above_the_repository_nothing_is_looked_at(places: Places) -> None:
    put(places.project.parent / ".claude" / "settings.json", hooks())
    assert places.found() == []


@pytest.mark.parametrize("event", ["PreToolUse", "PermissionRequest"])
def test_every_event_that_may_change_a_call_counts(places: Places, event: str) -> None:
    put(places.home / "settings.json", hooks(event, type="http", url="http://localhost/rewrite"))
    assert places.found() == ["http://localhost/rewrite"]


@pytest.mark.parametrize(
    ("matcher", "pattern", "concerns"),
    [
        (None, "Bash(x)", True), ("", "Bash(x)", True), ("*", "Bash(x)", True), ("Bash", "Bash(x)", True),
        ("Edit|Bash", "Bash", True), ("B.*", "Bash", True), ("Task|Agent", "Bash(x)", False),
        ("Task|Agent", "*", True), ("mcp__github__merge", "mcp__github__*", True), ("Edit", "mcp__x__*", False),
    ],
)  # fmt: skip
def test_only_hooks_for_the_tools_that_wait_count(
    places: Places, matcher: str | None, pattern: str, concerns: bool
) -> None:
    put(places.home / "settings.json", hooks(matcher=matcher))
    assert bool(places.found(pattern)) is concerns


@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_a_file_that_cannot_be_read_may_hold_any(places: Places, content: str) -> None:
    put(places.home / "settings.json", content)
    assert places.found() == ["cannot be read"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("hooks/hooks.json", hooks()),
        (".claude-plugin/plugin.json", {"hooks": hooks()["hooks"]}),
        (".claude-plugin/plugin.json", {"hooks": hooks()}),
        ("agents/one.md", f"---\nhooks:\n  PreToolUse:\n    - {COMMAND}\n---\nbe nice"),
    ],
    ids=["its hooks", "its manifest", "a whole table in it", "an agent of it"],
)
def test_plugins_are_looked_at(places: Places, file: str, content: dict[str, Any] | str) -> None:
    plugin = places.home / "plugins" / "cache" / "one"
    put(plugin / file, content)
    assert places.found() == []
    assert len(places.found(extra_args=(f"--plugin-dir={plugin}",))) == 1
    assert len(places.found(extra_args=("--plugin-dir", str(plugin)))) == 1
    installed = {"version": 2, "plugins": {"one@shop": [{"scope": "user", "installPath": str(plugin)}]}}
    put(places.home / "plugins" / "installed_plugins.json", installed)
    assert len(places.found()) == 1


def test_a_plugin_may_name_the_file_of_its_hooks(places: Places, tmp_path: Path) -> None:
    put(tmp_path / "plugin" / ".claude-plugin" / "plugin.json", {"hooks": ["./mine.json"]})
    put(tmp_path / "plugin" / "mine.json", hooks())
    assert places.found(extra_args=("--plugin-dir", str(tmp_path / "plugin"))) == [COMMAND]


@pytest.mark.parametrize("part", ["agents/a.md", "skills/s/SKILL.md", "commands/c.md"])
def test_agents_skills_and_commands_may_bring_hooks(places: Places, part: str) -> None:
    put(places.project / ".claude" / part, "---\nname: x\n---\nmentions PreToolUse only in its text")
    assert places.found() == []
    put(places.project / ".claude" / part, "---\nhooks:\n  PreToolUse: []\n---\n")
    assert places.found() == ["hooks in its header"]


def test_agents_on_the_command_line_may_bring_hooks(places: Places) -> None:
    assert places.found(extra_args=("--agents", '{"a": {"prompt": "p"}}')) == []
    assert len(places.found(extra_args=("--agents", '{"a": {"hooks": {"PreToolUse": []}}}'))) == 1
    assert len(places.found(extra_args=("--agents", r'{"a": {"hooks": {"Pre\u0054oolUse": []}}}'))) == 1


HOOKS = "hooks:\n  PreToolUse: []\n"


@pytest.mark.parametrize(
    "text",
    [
        f"\ufeff---\n{HOOKS}---\n",
        '---\nhooks:\n  "Pre\\x54oolUse": []\n---\n',
        f"---\nname: |\n  a\n---x\n{HOOKS}---\n",
        f"---\nname: {'x' * 20_000}\n{HOOKS}---\n",
    ],
    ids=["a byte order mark", "an escape", "a line like the end", "a long header"],
)
def test_no_spelling_of_a_header_hides_its_hooks(places: Places, text: str) -> None:
    put(places.project / ".claude" / "skills" / "s" / "SKILL.md", text)
    assert len(places.found()) == 1


def test_hooks_behind_links_are_found(places: Places, tmp_path: Path) -> None:
    put(tmp_path / "shared" / "SKILL.MD", f"---\n{HOOKS}---\n")
    skills = places.project / ".claude" / "skills"
    skills.mkdir(parents=True)
    (skills / "linked").symlink_to(tmp_path / "shared")
    (tmp_path / "shared" / "loop").symlink_to(skills)
    assert places.found() == ["hooks in its header"]


def test_a_directory_by_another_name_has_the_hooks_of_its_repository(places: Places, tmp_path: Path) -> None:
    put(places.project / ".claude" / "settings.json", hooks())
    (tmp_path / "link").symlink_to(places.work_dir)
    places.work_dir = tmp_path / "link"
    assert places.found() == [COMMAND]
