"""The configuration; one file, because all of it needs the same home, checkout and list of keys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from holdfast.config import Key, Settings, data_dir, default_url, load_settings, setting_keys
from holdfast.config_files import is_trusted, project_file, revoke_trust, trust
from holdfast.domain.policy import Policy
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
KEYS = list(setting_keys().values())
SECRET = "hunter2"


@dataclass(frozen=True)
class Machine:
    """A home with a user file, and a checkout in it with a project file."""

    home: Path

    @property
    def user_file(self) -> Path:
        return self.home / ".config" / "holdfast" / "config.toml"

    @property
    def checkout(self) -> Path:
        return self.home / "code" / "checkout"

    @property
    def project_file(self) -> Path:
        return self.checkout / ".holdfast.toml"

    def load(
        self,
        *,
        cwd: Path | None = None,
        flags: Mapping[str, object] | None = None,
        trusted: bool = True,
        **env: str,
    ) -> Settings:
        """The person has trusted the project file as it is, unless a test says otherwise."""
        environ = {"HOME": str(self.home), **env}
        if trusted:
            self.trust(cwd)
        return load_settings(overrides=flags, environ=environ, cwd=cwd or self.checkout)

    def trust(self, cwd: Path | None = None) -> None:
        environ = {"HOME": str(self.home)}
        path = project_file(environ, cwd or self.checkout)
        if path is not None and path.is_file() and path.stat().st_size < 1_000_000:
            trust(environ, path, path.read_bytes())

    def fail(self, **given: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            self.load(**given)
        assert caught.value.exit_code == 2
        return caught.value


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "home")
    machine.user_file.parent.mkdir(parents=True)
    (machine.checkout / ".git").mkdir(parents=True)
    return machine


def value_of(settings: Settings, key: Key) -> object:
    table, _, name = key.name.rpartition(".")
    if not table:
        return getattr(settings, name)
    policy = settings.policy
    rules = getattr(policy, f"{table}_" if table in ("continue", "import") else table)
    return getattr(rules, name)


OTHER_LISTS = {
    "import.exclude": {"/srv/private", "~/elsewhere"},
    "server.public_origins": {"https://another.example", "http://10.0.0.7:8080"},
}

OTHER_TEXTS = {
    "notify.webhook": "https://another.example",
    "notify.page": "https://another.example",
    "server.base_path": "/another",
}

#: by the type of a table's entries
OTHER_ENTRIES: dict[type, tuple[object, object]] = {bool: (False, True), float: (1.5, 2.5)}


def another_value(key: Key) -> object:
    """A valid value that is not the default; near it, so that rules between keys still hold."""
    if key.name == "token":
        return make_token(Role.READER, "a", None, bytes(ENTROPY))[1]
    if get_origin(key.kind) is Literal:
        return next(choice for choice in get_args(key.kind) if choice != key.default)
    if key.kind == int | None:
        return 40_000
    if key.default is None and float in get_args(key.kind):
        return 1.5
    match key.default:
        case bool():
            return not key.default
        case int():
            return key.default + 1
        case float():
            return round(key.default * 1.01, 4)
        case frozenset():
            return frozenset(sorted(key.default)[1:] or OTHER_LISTS.get(key.name, {"another"}))
        case dict():
            return dict(zip(("reviewer", "planner"), OTHER_ENTRIES[get_args(key.kind)[1]], strict=True))
        case _:
            return OTHER_TEXTS.get(key.name, "another")


def as_toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case frozenset():
            return "[" + ", ".join(f'"{item}"' for item in sorted(value)) + "]"
        case dict():
            return "{" + ", ".join(f'"{name}" = {as_toml(item)}' for name, item in value.items()) + "}"
        case float():
            return f"{value:.15g}"
        case _:
            return str(value)


def as_text(value: object) -> str:
    match value:
        case str():
            return value
        case frozenset():
            return ", ".join(sorted(value))
        case dict():
            return ",".join(f"{name}={as_toml(item)}" for name, item in value.items())
        case _:
            return as_toml(value)


def in_file(key: Key, value: object) -> str:
    table, _, name = key.name.rpartition(".")
    return (f"[{table}]\n" if table else "") + f"{name} = {as_toml(value)}\n"


each_key = pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
#: only the user file may set these
PERSONAL = [key for key in KEYS if key.name in ("vault.key_file", "vault.key_command")]


# the keys


def test_every_field_of_the_policy_is_a_key() -> None:
    names = {"url", "token", "workspace", "durability"}
    for part in fields(Policy):
        rules = getattr(Policy(), part.name)
        names |= {f"{part.name.rstrip('_')}.{rule.name}" for rule in fields(rules)}
    assert {key.name for key in KEYS} == names


def test_without_any_source_everything_is_the_default(machine: Machine) -> None:
    settings = machine.load()
    assert (settings.url, settings.workspace, settings.durability) == (None, "default", "full")
    assert settings.policy == Policy()
    assert set(settings.sources.values()) == {"default"}


@each_key
def test_each_key_can_be_set_in_a_file(machine: Machine, key: Key) -> None:
    machine.user_file.write_text(in_file(key, another_value(key)))
    settings = machine.load()
    assert value_of(settings, key) == another_value(key) != key.default
    assert str(machine.user_file) in settings.sources.values()


@pytest.mark.parametrize("key", [key for key in KEYS if key not in PERSONAL], ids=lambda key: key.name)
def test_each_key_can_be_set_in_the_environment(machine: Machine, key: Key) -> None:
    given: dict[str, Any] = {key.variable: as_text(another_value(key))}
    settings = machine.load(**given)
    assert value_of(settings, key) == another_value(key) != key.default
    assert key.variable in settings.sources.values()


@each_key
def test_each_key_can_be_set_by_a_flag(machine: Machine, key: Key) -> None:
    settings = machine.load(flags={key.name: another_value(key)})
    assert value_of(settings, key) == another_value(key) != key.default
    assert "flag" in settings.sources.values()


@each_key
def test_each_key_refuses_a_value_of_another_type(machine: Machine, key: Key) -> None:
    file = machine.user_file if key in PERSONAL else machine.project_file
    file.write_text(in_file(key, "x").replace('"x"', "1979-05-27"))
    error = machine.fail()
    assert error.where == str(file)
    assert f"{key.name}: expected {key.expected}, found" in error.problem


@pytest.mark.parametrize("key", PERSONAL, ids=lambda key: key.name)
def test_where_the_key_of_the_vault_is_only_the_user_file_says(machine: Machine, key: Key) -> None:
    machine.user_file.write_text(in_file(key, "mine"))
    machine.project_file.write_text(in_file(key, "theirs"))

    settings = machine.load()
    error = machine.fail(**{key.variable: "theirs"})

    assert value_of(settings, key) == "mine"
    assert settings.notices == (
        f"{machine.project_file}: ignored {key.name}: only your user file may set it",
    )
    assert str(error) == f"{key.variable}: agents inherit the environment: set {key.name} in your user file"


def test_the_vault_has_one_key(machine: Machine) -> None:
    machine.user_file.write_text('[vault]\nkey_file = "a"\nkey_command = "b"')
    assert machine.fail().problem == "vault.key_file and vault.key_command cannot both be set"


# precedence


def test_a_flag_wins_over_the_environment(machine: Machine) -> None:
    settings = machine.load(flags={"workspace": "flag"}, HOLDFAST_WORKSPACE="environment")
    assert settings.workspace == "flag"
    assert settings.sources["workspace"] == "flag"


def test_the_environment_wins_over_the_project_file(machine: Machine) -> None:
    machine.project_file.write_text('workspace = "project"')
    settings = machine.load(HOLDFAST_WORKSPACE="environment")
    assert settings.workspace == "environment"
    assert settings.sources["workspace"] == "HOLDFAST_WORKSPACE"


def test_the_project_file_wins_over_the_user_file(machine: Machine) -> None:
    machine.user_file.write_text('workspace = "user"')
    machine.project_file.write_text('workspace = "project"')
    settings = machine.load()
    assert settings.workspace == "project"
    assert settings.sources["workspace"] == str(machine.project_file)


def test_the_user_file_wins_over_the_default(machine: Machine) -> None:
    machine.user_file.write_text('workspace = "user"')
    settings = machine.load()
    assert settings.workspace == "user"
    assert settings.sources["workspace"] == str(machine.user_file)


def test_sources_are_merged_key_by_key(machine: Machine) -> None:
    machine.user_file.write_text("[queue]\nmax_attempts = 7\nlock_tries = 7")
    machine.project_file.write_text("[queue]\nlock_tries = 8")
    queue = machine.load(HOLDFAST_QUEUE__SAME_ERROR_LIMIT="9").policy.queue
    assert (queue.max_attempts, queue.lock_tries, queue.same_error_limit) == (7, 8, 9)


def test_tables_are_merged_entry_by_entry(machine: Machine) -> None:
    machine.user_file.write_text("[resume.agents]\nreviewer = false\nplanner = false")
    machine.project_file.write_text("[resume.agents]\nplanner = true")
    settings = machine.load(HOLDFAST_RESUME__AGENTS="terraform-architect=off")
    assert settings.policy.resume.agents == {"reviewer": False, "planner": True, "terraform-architect": False}
    assert settings.sources["resume.agents.reviewer"] == str(machine.user_file)
    assert settings.sources["resume.agents.planner"] == str(machine.project_file)
    assert settings.sources["resume.agents.terraform-architect"] == "HOLDFAST_RESUME__AGENTS"


def test_a_flag_that_is_none_is_not_given(machine: Machine) -> None:
    assert machine.load(flags={"workspace": None}, HOLDFAST_WORKSPACE="team").workspace == "team"


def test_an_empty_variable_counts_as_not_set(machine: Machine) -> None:
    machine.user_file.write_text('workspace = "user"')
    assert machine.load(HOLDFAST_WORKSPACE="", HOLDFAST_RESUME__SAME_MODEL=" ").workspace == "user"


# where the files are


def test_the_user_file_follows_xdg_config_home(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "xdg" / "holdfast").mkdir(parents=True)
    (tmp_path / "xdg" / "holdfast" / "config.toml").write_text('workspace = "xdg"')
    assert machine.load(XDG_CONFIG_HOME=str(tmp_path / "xdg")).workspace == "xdg"


def test_a_relative_xdg_directory_is_ignored(machine: Machine) -> None:
    machine.user_file.write_text('workspace = "user"')
    (machine.checkout / "holdfast").mkdir()
    (machine.checkout / "holdfast" / "config.toml").write_text('workspace = "wrong"')
    assert machine.load(XDG_CONFIG_HOME=".").workspace == "user"
    assert data_dir({"HOME": "/home/ada", "XDG_DATA_HOME": "data"}) == Path("/home/ada/.local/share/holdfast")


def test_holdfast_config_replaces_the_user_file(machine: Machine) -> None:
    machine.user_file.write_text('workspace = "user"')
    (machine.checkout / "mine.toml").write_text('workspace = "mine"')
    assert machine.load(HOLDFAST_CONFIG="mine.toml").workspace == "mine"
    assert machine.load(HOLDFAST_CONFIG=os.devnull).workspace == "default"


def test_a_file_named_by_holdfast_config_must_exist(machine: Machine) -> None:
    error = machine.fail(HOLDFAST_CONFIG="missing.toml")
    assert error.where == "HOLDFAST_CONFIG"
    assert str(machine.checkout / "missing.toml") in error.problem


def test_without_a_home_there_is_no_user_file(tmp_path: Path) -> None:
    assert load_settings(environ={}, cwd=tmp_path).policy == Policy()


def test_the_nearest_project_file_is_taken(machine: Machine) -> None:
    machine.project_file.write_text('workspace = "top"')
    deep = machine.checkout / "src" / "deep"
    deep.mkdir(parents=True)
    assert machine.load(cwd=deep).workspace == "top"
    (deep.parent / ".holdfast.toml").write_text('workspace = "nearer"')
    assert machine.load(cwd=deep).workspace == "nearer"


@pytest.mark.parametrize("path", [".holdfast/team.db", "team.db"])
def test_a_relative_path_in_a_file_is_meant_from_where_the_file_is(machine: Machine, path: str) -> None:
    machine.project_file.write_text(f'url = "sqlite:///{path}"')
    below = machine.checkout / "src" / "deep"
    below.mkdir(parents=True)
    assert machine.load(cwd=below).url == f"sqlite:///{machine.checkout.resolve() / path}"


@pytest.mark.parametrize(
    "url", ["sqlite:////srv/team.db", "sqlite:///~/team.db", "sqlite:///:memory:", "postgresql://db/team"]
)
def test_any_other_url_in_a_file_is_taken_as_it_is(machine: Machine, url: str) -> None:
    machine.project_file.write_text(f'url = "{url}"')
    assert machine.load().url == url


def test_the_search_for_a_project_file_stops_at_a_repository(machine: Machine) -> None:
    (machine.checkout.parent / ".holdfast.toml").write_text('workspace = "above"')
    assert machine.load().workspace == "default"


def test_the_git_file_of_a_worktree_marks_a_repository_too(machine: Machine) -> None:
    (machine.home / "worktree").mkdir()
    (machine.home / "worktree" / ".git").write_text("gitdir: elsewhere")
    (machine.home / ".holdfast.toml").write_text('workspace = "above"')
    assert machine.load(cwd=machine.home / "worktree").workspace == "default"


def test_the_search_for_a_project_file_stops_at_the_home(machine: Machine) -> None:
    (machine.home.parent / ".holdfast.toml").write_text('workspace = "above"')
    assert machine.load(cwd=machine.checkout.parent).workspace == "default"
    (machine.home / ".holdfast.toml").write_text('workspace = "home"')
    assert machine.load(cwd=machine.checkout.parent).workspace == "home"


def test_a_project_file_in_a_shared_directory_is_not_taken(machine: Machine, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "work").mkdir(parents=True)
    (shared / ".holdfast.toml").write_text('workspace = "planted"')
    shared.chmod(0o1777)
    assert machine.load(cwd=shared / "work").workspace == "default"
    assert machine.load(cwd=shared).workspace == "default"


def test_a_project_file_may_name_the_store(machine: Machine) -> None:
    machine.project_file.write_text('url = "postgresql://db.example.net/team"\nworkspace = "team"')
    assert machine.load().url == "postgresql://db.example.net/team"


def test_the_data_directory_follows_xdg_data_home() -> None:
    assert data_dir({"HOME": "/home/ada"}) == Path("/home/ada/.local/share/holdfast")
    assert data_dir({"HOME": "/home/ada", "XDG_DATA_HOME": "/data"}) == Path("/data/holdfast")


def test_the_default_url_is_a_file_in_the_data_directory() -> None:
    assert default_url({"XDG_DATA_HOME": "/data"}) == "sqlite:////data/holdfast/holdfast.db"


def test_without_a_home_the_data_directory_asks_for_one() -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_URL"):
        data_dir({"HOME": "not/absolute"})


# what is refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('workspcae = "x"', "unknown key 'workspcae'; did you mean workspace?"),
        ("[resume]\nsame_modell = true", "unknown key 'resume.same_modell'; did you mean resume.same_model?"),
        ("[resume.agent]\nreviewer = true", "unknown key 'resume.agent'; did you mean resume.agents?"),
        ("max_attempts = 3", "unknown key 'max_attempts'; did you mean queue.max_attempts?"),
        ("[retentoin]\nmax_age_hours = 3", "unknown key 'retentoin'; did you mean retention?"),
        ("zzz = 1", "unknown key 'zzz'"),
        ("queue = 3", "queue: expected table, found 3"),
        ("[resume]\nsame_model = 'true'", "resume.same_model: expected true or false, found 'true'"),
        ("[resume]\nsame_model = 1", "resume.same_model: expected true or false, found 1"),
        ("[resume.agents]\nreviewer = 1", "resume.agents: expected table of true or false, found a table"),
        ("[resume.agents]\n'' = true", "resume.agents: expected table of true or false, found a table"),
        ("[queue]\nmax_attempts = 3.0", "queue.max_attempts: expected integer, found 3.0"),
        ("[queue]\nmax_attempts = true", "queue.max_attempts: expected integer, found True"),
        ("[queue]\nlease_seconds = true", "queue.lease_seconds: expected number, found True"),
        ("[queue]\nlease_seconds = 'off'", "queue.lease_seconds: expected number, found 'off'"),
        ("[continue]\nmax_idle_seconds = 'no'", 'continue.max_idle_seconds: expected number or "off", found'),
        ("[continue]\nresumable_phases = [1]", "continue.resumable_phases: expected list of strings, found"),
        ("durability = 'fast'", 'durability: expected "full" or "normal", found \'fast\''),
        ("[queue]\nmax_attempts = 0", "queue.max_attempts must be between 1 and 1000000"),
        ("[queue]\nlease_seconds = nan", "queue.lease_seconds must be above 0"),
        ("[queue]\nlease_seconds = inf", "queue.lease_seconds must be above 0"),
        (f"[queue]\nlease_seconds = 1{'0' * 400}", "queue.lease_seconds: expected number, found 1000"),
        (f"[queue]\nmax_attempts = 1{'0' * 5000}", "is not valid TOML"),
        ("[continue]\nresumable_phases = ['completed']", "continue.resumable_phases may only hold"),
        (
            "[resume]\ncontext_warn = 0.9",
            "resume.context_warn (0.9) must be less than resume.context_refresh (0.8)",
        ),
        ("workspace = ''", "workspace must be an id"),
        ("workspace = 'a/../b'", "workspace must be an id"),
        ("url = ' '", "url must not be empty"),
        ("workspace = 'a'\nurl = ", "is not valid TOML: Invalid value (at "),
        ("workspace = 'a'\nworkspace = 'b'\n", "Cannot overwrite a value (at line 2, column"),
        (f"url = {'[' * 5000}", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(machine: Machine, text: str, problem: str) -> None:
    machine.project_file.write_text(text)
    error = machine.fail()
    assert error.where == str(machine.project_file)
    assert error.problem.startswith(problem) or f": {problem}" in error.problem


def test_a_rule_between_two_files_names_both(machine: Machine) -> None:
    machine.user_file.write_text("[queue]\nheartbeat_seconds = 30")
    machine.project_file.write_text("[queue]\nlease_seconds = 20")
    error = machine.fail()
    assert error.where == f"{machine.user_file} and {machine.project_file}"
    assert error.problem == "queue.heartbeat_seconds (30) must be less than queue.lease_seconds (20)"


def test_a_wrong_file_is_refused_even_when_a_flag_overrides_it(machine: Machine) -> None:
    machine.user_file.write_text("workspace = 3")
    assert machine.fail(flags={"workspace": "team"}).where == str(machine.user_file)


def test_invalid_utf_8_is_refused_with_its_line(machine: Machine) -> None:
    machine.user_file.write_bytes(b'workspace = "a"\n# caf\xe9\n')
    assert machine.fail().problem == "is not valid UTF-8 (at line 2)"


def test_a_byte_order_mark_is_accepted(machine: Machine) -> None:
    machine.user_file.write_bytes(b'\xef\xbb\xbfworkspace = "a"')
    assert machine.load().workspace == "a"


def test_a_directory_in_place_of_a_file_is_refused(machine: Machine) -> None:
    machine.project_file.mkdir()
    error = machine.fail()
    assert (error.where, error.problem) == (str(machine.project_file), "is a directory, not a file")


def test_a_project_file_that_is_a_device_or_a_pipe_is_refused(machine: Machine) -> None:
    machine.project_file.symlink_to("/dev/zero")
    assert machine.fail().problem == "is not a regular file"
    machine.project_file.unlink()
    os.mkfifo(machine.project_file)
    assert machine.fail().problem == "is not a regular file"


def test_a_file_of_more_than_a_megabyte_is_refused(machine: Machine) -> None:
    machine.project_file.write_text("#" * 1_000_001)
    assert machine.fail().problem == "is larger than 1000000 bytes"


def test_a_dangling_link_is_refused(machine: Machine) -> None:
    machine.user_file.symlink_to(machine.home / "nowhere")
    error = machine.fail()
    assert error.where == str(machine.user_file)
    assert error.problem == "cannot be read: No such file or directory"


def test_a_file_that_may_not_be_read_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.user_file.write_text("")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so a mode would not do
    assert machine.fail().problem == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HOLDFAST_RESUME__SAME_MODEL", "maybe"),
        ("HOLDFAST_RESUME__AGENTS", "reviewer"),
        ("HOLDFAST_RESUME__AGENTS", "=on"),
        ("HOLDFAST_RESUME__AGENTS", "reviewer=perhaps"),
        ("HOLDFAST_QUEUE__MAX_ATTEMPTS", "three"),
        ("HOLDFAST_QUEUE__MAX_ATTEMPTS", "off"),
        ("HOLDFAST_QUEUE__MAX_ATTEMPTS", "0"),
        ("HOLDFAST_QUEUE__LEASE_SECONDS", "off"),
        ("HOLDFAST_QUEUE__LEASE_SECONDS", "nan"),
        ("HOLDFAST_CONTINUE__RESUMABLE_PHASES", "planing"),
        ("HOLDFAST_DURABILITY", "fast"),
        ("HOLDFAST_WORKSPACE", "caf\udce9"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(machine: Machine, variable: str, text: str) -> None:
    error = machine.fail(**{variable: text})
    assert error.where == variable
    assert variable.removeprefix("HOLDFAST_").replace("__", ".").lower() in error.problem


@pytest.mark.parametrize("variable", ["HOLDFAST_RESUME__SAME_MODLE", "HOLDFAST__URL", "HOLDFAST_X__Y"])
def test_an_unknown_variable_with_two_underscores_is_refused(machine: Machine, variable: str) -> None:
    assert f"unknown key '{variable}'" in machine.fail(**{variable: "1"}).problem


def test_a_mistyped_variable_gets_a_suggestion(machine: Machine) -> None:
    error = machine.fail(HOLDFAST_RESUME__SAME_MODLE="1")
    assert error.problem.endswith("did you mean HOLDFAST_RESUME__SAME_MODEL?")


@pytest.mark.parametrize(
    "variable",
    [
        "HOLDFAST_REQUIRE",
        "HOLDFAST_TEST_A__B",
        "HOLDFAST_SESSION",
        "HOLDFAST_LOG__FORMAT",
        "A__B",
    ],
)
def test_other_variables_are_not_settings(machine: Machine, variable: str) -> None:
    given: dict[str, Any] = {variable: "x"}
    assert machine.load(**given).policy == Policy()


@pytest.mark.parametrize("word", ["true", "ON", "yes", "1"])
def test_a_variable_says_true_in_several_words(machine: Machine, word: str) -> None:
    assert machine.load(HOLDFAST_RESUME__SAME_MODEL=word).policy.resume.same_model


@pytest.mark.parametrize("word", ["false", "Off", "no", "0"])
def test_a_variable_says_false_in_several_words(machine: Machine, word: str) -> None:
    assert not machine.load(HOLDFAST_RESUME__NATIVE_RESUME=word).policy.resume.native_resume


def test_a_limit_can_be_switched_off_everywhere(machine: Machine) -> None:
    assert machine.load(HOLDFAST_CONTINUE__MAX_IDLE_SECONDS="off").policy.continue_.max_idle_seconds is None
    assert machine.load(flags={"continue.max_idle_seconds": "off"}).policy.continue_.max_idle_seconds is None
    machine.user_file.write_text('[continue]\nmax_idle_seconds = "off"')
    assert machine.load().policy.continue_.max_idle_seconds is None


def test_a_flag_given_as_text_is_read_like_a_variable(machine: Machine) -> None:
    flags = {"queue.max_attempts": "7", "resume.providers": "codex=off", "resume.same_model": "on"}
    policy = machine.load(flags=flags).policy
    assert (policy.queue.max_attempts, policy.resume.providers) == (7, {"codex": False})
    assert policy.resume.same_model


def test_a_wrong_flag_is_refused_by_key(machine: Machine) -> None:
    assert machine.fail(flags={"queue.max_attempts": 0}).where == "flag"
    assert machine.fail(flags={"queue.max_attempt": 1}).problem.endswith("did you mean queue.max_attempts?")
    assert machine.fail(flags={"workspace": ""}).problem.startswith("workspace must")


@pytest.mark.parametrize("name", [key.name for key in KEYS])
@pytest.mark.parametrize("url", [f"postgresql://ada:{SECRET}@db/x", f"postgresql://db/x?password={SECRET}"])
def test_no_message_shows_a_password(machine: Machine, name: str, url: str) -> None:
    error = machine.fail(flags={name: [{url: url}]})
    assert SECRET not in f"{error} {error.details} {error.__cause__}"
    if name not in ("url", "approvals.allow_hooks"):  # which are right with it
        error = machine.fail(flags={name: url})
        assert SECRET not in f"{error} {error.details} {error.__cause__}"


@pytest.mark.parametrize(
    "origin", ["https://fleet.example", "http://fleet.example:8080", "https://10.0.0.7", "http://[::1]:8787"]
)
def test_an_origin_is_taken_as_browsers_send_it(machine: Machine, origin: str) -> None:
    assert machine.load(HOLDFAST_SERVER__PUBLIC_ORIGINS=origin).policy.server.public_origins == {origin}


@pytest.mark.parametrize(
    ("origin", "wrong"),
    [
        ("fleet.example", "does not begin with http:// or https://"),
        ("fleet.example:8787", "does not begin with http:// or https://"),
        ("//fleet.example", "does not begin with http:// or https://"),
        ("ftp://fleet.example", "does not begin with http:// or https://"),
        ("https://", "does not begin with http:// or https:// and a host"),
        ("null", "does not begin with http:// or https://"),
        ("*", "does not begin with http:// or https://"),
        ("https://fleet.example/", "has more than a scheme, a host and a port"),
        ("https://fleet.example/holdfast", "has more than a scheme, a host and a port"),
        ("https://fleet.example?a=b", "has more than a scheme, a host and a port"),
        (f"https://ada:{SECRET}@fleet.example", "has more than a scheme, a host and a port"),
        ("https://fleet.example:443", "names the usual port"),
        ("http://fleet.example:80", "names the usual port"),
        ("https://fleet.example:99999", "is no address"),
        ("https://fleet.example:", "is written in another way"),
        ("https://fleet.example:08787", "is written in another way"),
        ("https://Fleet.example", "is written in another way"),
        ("HTTPS://fleet.example", "is written in another way"),
        ("https://flëet.example", "is written in another way"),
        ("https://fleet example", "is written in another way"),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused_in_words(
    machine: Machine, origin: str, wrong: str
) -> None:
    error = machine.fail(flags={"server.public_origins": ["https://right.example", origin]})

    assert error.problem.startswith("server.public_origins must be origins as browsers send them")
    assert wrong in error.problem
    assert SECRET not in str(error)


def test_settings_do_not_show_addresses_when_printed(machine: Machine) -> None:
    assert SECRET not in repr(machine.load(HOLDFAST_URL=f"postgresql://ada:{SECRET}@db/x"))
    assert SECRET not in repr(machine.load(HOLDFAST_NOTIFY__WEBHOOK=f"https://chat.example/{SECRET}"))


@pytest.mark.parametrize("rule", ['command = "rm -rf ~"', 'webhook = "https://elsewhere.example"'])
def test_a_checkout_cannot_choose_what_is_run_or_who_is_told(machine: Machine, rule: str) -> None:
    machine.project_file.write_text(f"[notify]\n{rule}")
    settings = machine.load(trusted=False)
    assert settings.policy.notify == Policy().notify
    (notice,) = settings.notices
    assert notice.startswith(f"{machine.project_file}: ignored notify.{rule.split(' ')[0]}: ")
    assert machine.load().policy.notify != Policy().notify
    assert machine.load().notices == ()


# trust

HARMLESS = ("continue", "resume", "context")


def is_harmless(key: Key) -> bool:
    return key.name.split(".")[0] in HARMLESS or key.name == "run.timeout_seconds"


@each_key
def test_a_file_that_nobody_trusted_sets_only_what_is_harmless(machine: Machine, key: Key) -> None:
    machine.project_file.write_text(in_file(key, another_value(key)))
    settings = machine.load(trusted=False)
    if is_harmless(key):
        assert value_of(settings, key) == another_value(key)
        assert settings.notices == ()
    else:
        assert value_of(settings, key) == value_of(machine.load(cwd=machine.home), key)
        (notice,) = settings.notices
        assert f"{machine.project_file}: ignored {key.name}: " in notice
        assert notice.endswith("holdfast trust")
        assert "another" not in notice


def test_what_is_ignored_is_not_an_error_and_not_told_where_it_would_not_count_anyway(
    machine: Machine,
) -> None:
    machine.project_file.write_text("url = 5\nworkspace = 'clone'")
    settings = machine.load(trusted=False, HOLDFAST_URL="sqlite:////a.db", flags={"workspace": "mine"})
    assert (settings.url, settings.workspace, settings.notices) == ("sqlite:////a.db", "mine", ())


def test_a_typing_error_is_told_in_a_file_that_nobody_trusted_too(machine: Machine) -> None:
    machine.project_file.write_text("workspcae = 'x'")
    assert "did you mean workspace?" in machine.fail(trusted=False).problem


@pytest.mark.parametrize("change", ["workspace = 'b'", "workspace = 'a' ", ""])
def test_trust_ends_when_the_content_changes(machine: Machine, change: str) -> None:
    machine.project_file.write_text("workspace = 'a'")
    assert machine.load().workspace == "a"
    machine.project_file.write_text(change)
    assert machine.load(trusted=False).workspace == "default"
    machine.project_file.write_text("workspace = 'a'")
    assert machine.load(trusted=False).workspace == "a"


def test_trust_is_for_one_directory(machine: Machine) -> None:
    machine.project_file.write_text("workspace = 'a'")
    machine.trust()
    other = machine.home / "other"
    other.mkdir()
    (other / ".holdfast.toml").write_text("workspace = 'a'")
    assert machine.load(cwd=other, trusted=False).workspace == "default"
    (machine.home / "link").symlink_to(machine.checkout)
    assert machine.load(cwd=machine.home / "link", trusted=False).workspace == "a"


def test_trust_is_kept_for_this_person_alone_and_can_be_taken_back(machine: Machine) -> None:
    environ = {"HOME": str(machine.home)}
    machine.project_file.write_text("workspace = 'a'")
    content = machine.project_file.read_bytes()
    machine.trust()
    (record,) = (machine.home / ".local/share/holdfast/trusted").iterdir()
    assert (record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert is_trusted(environ, machine.project_file, content)
    assert not is_trusted({}, machine.project_file, content)
    assert not is_trusted({"HOME": str(machine.home / "else")}, machine.project_file, content)
    assert revoke_trust(environ, machine.project_file)
    assert not revoke_trust(environ, machine.project_file)
    assert not is_trusted(environ, machine.project_file, content)


# tokens go where they belong

TOKEN = make_token(Role.READER, "a", None, bytes(ENTROPY))[1]
OURS, THEIRS = "https://ours.example/holdfast", "https://theirs.example"


@pytest.mark.parametrize(
    ("user", "project", "environment", "flag", "goes"),
    [
        # the token is in the environment, and so is the address, or in the user's file, or typed
        ("", "", {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS}, None, True),
        (f"url = '{OURS}'", "", {"HOLDFAST_TOKEN": TOKEN}, None, True),
        ("", "", {"HOLDFAST_TOKEN": TOKEN}, OURS, True),
        # another path at the same origin is the same server, another port or scheme is not
        ("", "", {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS}, "https://OURS.example:443/x", True),
        ("", "", {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS}, "https://ours.example:444", False),
        ("", "", {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS}, "http://ours.example", False),
        (
            "",
            "",
            {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS},
            f"https://ours.example@{THEIRS[8:]}",
            False,
        ),
        ("", "", {"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": OURS}, THEIRS, False),
        # a trusted project names the store
        ("", f"url = '{THEIRS}'", {"HOLDFAST_TOKEN": TOKEN}, None, False),
        (f"url = '{OURS}'", f"url = '{THEIRS}'", {"HOLDFAST_TOKEN": TOKEN}, None, False),
        (f"url = '{OURS}'", f"url = '{OURS}'", {"HOLDFAST_TOKEN": TOKEN}, None, True),
        (f"url = '{OURS}'\ntoken = '{TOKEN}'", f"url = '{THEIRS}'", {}, None, False),
        ("", f"url = '{THEIRS}'\ntoken = '{TOKEN}'", {}, None, True),
        # a token in the user's file belongs to the address in it, else to the one in the environment
        (f"url = '{OURS}'\ntoken = '{TOKEN}'", "", {}, None, True),
        (f"url = '{OURS}'\ntoken = '{TOKEN}'", "", {"HOLDFAST_URL": THEIRS}, None, False),
        (f"token = '{TOKEN}'", "", {"HOLDFAST_URL": OURS}, None, True),
    ],
)
def test_a_token_goes_only_to_the_server_that_it_was_configured_for(
    machine: Machine, user: str, project: str, environment: dict[str, str], flag: str | None, goes: bool
) -> None:
    machine.user_file.write_text(user)
    machine.project_file.write_text(project)
    settings = machine.load(flags={"url": flag}, **environment)  # type: ignore[arg-type] # names of variables
    assert settings.token == (TOKEN if goes else None)
    assert (settings.notices == ()) is goes
    assert TOKEN not in "".join(settings.notices)


def test_no_message_shows_a_password_that_stands_in_the_place_of_something_else(machine: Machine) -> None:
    url = f"postgresql://ada:{SECRET}@db/x"
    machine.project_file.write_text(f'"{url}" = 1')
    errors = [machine.fail(), machine.fail(HOLDFAST_CONFIG=url)]
    machine.project_file.write_text(f"workspace = {url}")
    errors.append(machine.fail())
    assert not any(SECRET in f"{error} {error.details}" for error in errors)


# the reference page


def shown_default(key: Key) -> str:
    if key.default is None or key.default == {}:
        return "—"
    return f"`{as_toml(key.default)}`"


def test_the_reference_page_lists_every_key_with_its_type_and_default() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [row[:3] for row in rows] == [[f"`{key.name}`", key.expected, shown_default(key)] for key in KEYS]
    assert all(len(row) == 4 and row[3] for row in rows)


def test_the_examples_of_the_reference_page_are_accepted(machine: Machine) -> None:
    page = PAGE.read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    variables = dict(line.split("=", 1) for line in re.findall(r"`(HOLDFAST_\w+__\w+=[^`]+)`", page))
    assert examples
    assert variables
    for example in examples:
        machine.user_file.write_text(example)
        assert tomllib.loads(example)
        assert machine.load().policy != Policy()
    assert machine.load(**variables).sources["resume.same_model"] == "HOLDFAST_RESUME__SAME_MODEL"


# the cost of importing it


def test_importing_the_configuration_loads_neither_parsers_nor_guessers() -> None:
    code = "import sys, holdfast.config; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"tomllib", "difflib", "sqlite3", "logging", "subprocess", "json"}
