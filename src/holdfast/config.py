"""Owns settings: read from flags, the environment, the project file and the user file, in this order of precedence.

The accepted keys and their types are derived from ``Settings`` and ``Policy``; there is no second list.
No message shows a URL, because a URL may hold a password.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from holdfast.config_files import (
    is_trusted,
    parse_toml,
    project_file,
    read_file,
    trust,
    user_file,
    xdg,
)
from holdfast.domain.ids import check_workspace
from holdfast.domain.policy import InvalidRule, Policy
from holdfast.domain.records import field, fields, frozen_record, record
from holdfast.errors import ConfigError, InvalidInput

DEFAULT = "default"
FLAG = "flag"
_USER, _PROJECT, _ENVIRONMENT = "user", "project", "environment"
_HTTP = ("http://", "https://")
_PORTS = {"http": 80, "https": 443}

_PREFIX = "HOLDFAST_"
TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - its name, not a token
#: beginnings of variables that are not settings
_NOT_SETTINGS = ("HOLDFAST_TEST_", "HOLDFAST_LOG", "HOLDFAST_SESSION")
#: variables that are not settings, and the end of those that name an agent's program
_OTHERS = (
    "HOLDFAST_AGENT_TOKEN",
    "HOLDFAST_ATTEMPT",
    "HOLDFAST_CONFIG",
    "HOLDFAST_DEBUG",
    "HOLDFAST_REQUIRE",
)
_BINARY = "_BINARY"
#: tables and keys that a project file may set without trust: how existing work continues, and what an agent is told of
#: it. Not where anything is stored, sent or deleted, what is started, or what may be done
_HARMLESS = ("context.", "continue.", "resume.", "run.timeout_seconds")
#: keys that only the user file may set: where a secret is. A project's author must not choose it, and agents inherit
#: the environment
_OF_THE_USER = ("vault.key_command", "vault.key_file")

_T = TypeVar("_T")


@frozen_record
class Settings:
    """What a command or a library call works with; valid once it exists."""

    url: str | None = field(default=None, repr=False)  #: the store; None: ``default_url``
    token: str | None = field(default=None, repr=False)  #: for a Holdfast server
    workspace: str = "default"
    durability: Literal["full", "normal"] = "full"  #: SQLite: sync at each commit, or at checkpoints only
    policy: Policy = field(default_factory=Policy)
    #: for people, one sentence each: which settings are ignored, and what to do about it
    notices: tuple[str, ...] = field(default=(), compare=False)
    #: key -> file, variable, ``flag`` or ``default``; a table's entries one by one (``resume.agents.NAME``)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.strip():
            raise InvalidRule("must not be empty", "url")
        if self.token is not None and not _is_token(self.token):
            raise InvalidRule("must be what `holdfast token create` has shown: hft_…", "token")
        try:
            check_workspace(self.workspace)
        except InvalidInput:  # its message shows the value, which may be a URL in the wrong place
            problem = "must be an id: at most 128 letters, digits and . _ : @ + = -"
            raise InvalidRule(problem, "workspace") from None


@record
class Key:
    """One setting that a source may give."""

    name: str  #: as in a file, with its table: ``resume.same_model``
    kind: Any  #: the annotation of its field
    default: object

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper().replace(".", "__")

    @property
    def expected(self) -> str:
        """The type in words, for messages and for the reference page."""
        return _in_words(self.kind)


def _in_words(kind: Any) -> str:
    kind, optional = _required(kind)
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is Mapping:
        entries = _in_words(_entry_kind(kind))
        return f"table of {entries}" if " " in entries else f"table of {entries}s"
    words = {
        bool: "true or false",
        int: "integer",
        float: "number",
        str: "string",
        frozenset: "list of strings",
    }
    return words[get_origin(kind) or kind] + (' or "off"' if optional and kind is not str else "")


def _is_token(text: str) -> bool:
    from holdfast.domain.tokens import split_token  # imported only if there is a token

    return split_token(text) is not None


@cache
def setting_keys() -> Mapping[str, Key]:
    """Every setting by its name, in the order of the records."""
    keys = list(_keys_of(Settings, "", skip=("policy", "notices", "sources")))
    for table, rules in get_type_hints(Policy).items():
        keys += _keys_of(rules, f"{_table_name(table)}.")
    return {key.name: key for key in keys}


def load_settings(
    *, overrides: Mapping[str, object] | None = None, environ: Mapping[str, str], cwd: Path
) -> Settings:
    """Read, check and merge all sources; every problem is a ``ConfigError``.

    ``overrides`` are flags by key name. None means "not given"; text is read as in the environment.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys((name for name, key in setting_keys().items() if not _is_table(key)), DEFAULT)
    project = read_project(environ, cwd)
    layers = {
        _USER: list(_from_file(user_file(environ, cwd))),
        _PROJECT: [] if project is None else list(project.in_force),
        _ENVIRONMENT: list(_from_environment(environ, cwd)),
        FLAG: list(_from_overrides(overrides or {})),
    }
    for layer in layers.values():
        for given in layer:
            _merge(given, values, sources)
    given_anyway = {given.key.name for name in (_ENVIRONMENT, FLAG) for given in layers[name]}
    ignored = () if project is None else project.notices(given_anyway)
    withheld = _withhold_token(layers, values, sources)
    return _build(values, sources, (*ignored, *withheld, *_unknown_variables(environ)))


@record
class ProjectFile:
    """The project file of a directory, and whether this person has trusted its present content."""

    path: Path
    content: bytes = field(repr=False)
    is_trusted: bool

    @property
    def given(self) -> Iterator[Given]:
        return _from_content(self.path, self.content)

    @property
    def in_force(self) -> Iterator[Given]:
        """The settings that take effect; without trust the others are not even checked."""
        return _from_content(self.path, self.content, self.takes_effect)

    def takes_effect(self, name: str) -> bool:
        return name not in _OF_THE_USER if self.is_trusted else is_harmless(name)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys that are ignored because the file is not trusted."""
        return () if self.is_trusted else tuple(name for name in self._names if not is_harmless(name))

    @property
    def _names(self) -> list[str]:
        return sorted({name for name, _ in _flat(parse_toml(self.path, self.content), str(self.path))})

    def notices(self, but: Collection[str] = ()) -> tuple[str, ...]:
        keys = ", ".join(key for key in self.ignored if key not in but)
        told = f"{self.path}: ignored {keys}: you have not trusted this file; read it, then: holdfast trust"
        personal = ", ".join(name for name in self._names if self.is_trusted and name in _OF_THE_USER)
        meant = f"{self.path}: ignored {personal}: only your user file may set it"
        return (*((told,) if keys else ()), *((meant,) if personal else ()))


def read_project(environ: Mapping[str, str], cwd: Path) -> ProjectFile | None:
    path = project_file(environ, cwd)
    if path is None:
        return None
    content = read_file(path)  # read once: the bytes that are compared are the bytes that take effect
    return ProjectFile(path, content, is_trusted(environ, path, content))


def trust_project(environ: Mapping[str, str], project: ProjectFile) -> ProjectFile:
    """Trusts the file until its content changes. Raises ConfigError if a setting in it is wrong."""
    for _ in project.given:
        pass
    trust(environ, project.path, project.content)
    return ProjectFile(project.path, project.content, is_trusted=True)


def data_dir(environ: Mapping[str, str]) -> Path:
    return _own_dir(environ, "XDG_DATA_HOME", ".local/share", "set it, XDG_DATA_HOME or HOLDFAST_URL")


def cache_dir(environ: Mapping[str, str]) -> Path:
    return _own_dir(environ, "XDG_CACHE_HOME", ".cache", "set it or XDG_CACHE_HOME")


def state_dir(environ: Mapping[str, str]) -> Path:
    """The directory for logs and spools."""
    return _own_dir(environ, "XDG_STATE_HOME", ".local/state", "set it or XDG_STATE_HOME")


def _own_dir(environ: Mapping[str, str], variable: str, under_home: str, remedy: str) -> Path:
    base = xdg(environ, variable, under_home)
    if base is None:
        raise ConfigError("HOME", f"is not set; {remedy}")
    return base / "holdfast"


def default_url(environ: Mapping[str, str]) -> str:
    return f"sqlite:///{data_dir(environ) / 'holdfast.db'}"


def _keys_of(rules: type, prefix: str, skip: tuple[str, ...] = ()) -> Iterator[Key]:
    hints = get_type_hints(rules)
    for name, declared in fields(rules).items():
        if name not in skip:
            yield Key(prefix + name, hints[name], declared.make_default())


def _table_name(policy_field: str) -> str:
    return policy_field.rstrip("_")  # ``continue`` is a keyword, so its field is ``continue_``


def _tables() -> list[str]:
    return [_table_name(name) for name in fields(Policy)]


def _is_table(key: Key) -> bool:
    return get_origin(key.kind) is Mapping


@record
class Given:
    """A checked value and where it was found."""

    key: Key
    value: Any
    where: str


def _from_file(path: Path | None) -> Iterator[Given]:
    return iter(()) if path is None else _from_content(path, read_file(path))


def _from_content(path: Path, content: bytes, wanted: Callable[[str], bool] | None = None) -> Iterator[Given]:
    where = str(path)
    for name, value in _flat(parse_toml(path, content), where):
        key = _known(name, where, setting_keys())
        if wanted is not None and not wanted(name):
            continue
        checked = _checked(key, value, where)
        yield Given(key, _from_there(path.parent, checked) if name == "url" else checked, where)


def is_harmless(name: str) -> bool:
    return name.startswith(_HARMLESS)


def _from_there(directory: Path, url: object) -> object:
    """A relative SQLite path in a file is relative to that file's directory, in the environment to the current directory."""
    path = str(url).removeprefix("sqlite:///")
    if path == url or path in ("", ":memory:") or path.startswith(("/", "~")):
        return url
    return f"sqlite:///{directory.resolve() / path}"


def _from_environment(environ: Mapping[str, str], cwd: Path) -> Iterator[Given]:
    by_variable = {key.variable: key for key in setting_keys().values()}
    for variable in sorted(environ):
        if not _is_setting(variable, by_variable):
            continue
        key = _known(variable, "environment", by_variable)
        if key.name in _OF_THE_USER:
            raise ConfigError(variable, f"agents inherit the environment: set {key.name} in your user file")
        if environ[variable].strip():  # an empty variable counts as not set
            checked = _checked(key, environ[variable], variable, text=True)
            yield Given(key, _from_there(cwd, checked) if key.name == "url" else checked, variable)


def _is_setting(variable: str, known: Mapping[str, Key]) -> bool:
    if variable in known:
        return True
    return variable.startswith(_PREFIX) and "__" in variable and not variable.startswith(_NOT_SETTINGS)


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like ours and mean nothing: one underscore where two are needed, a name that was guessed.

    A notice only: the variable may be another program's.
    """
    known = [key.variable for key in setting_keys().values()]
    for variable in sorted(environ):
        ours = variable in known or variable in _OTHERS or variable.endswith(_BINARY)
        if ours or not variable.startswith(_PREFIX) or variable.startswith(_NOT_SETTINGS):
            continue
        # without the beginning that all of them share, which would make any two alike
        names = [name.removeprefix(_PREFIX) for name in (*known, *_OTHERS)]
        close = _close(variable.removeprefix(_PREFIX), names)
        meant = f"; did you mean {_PREFIX}{close}?" if close else ""
        yield f"environment: {variable} is not a setting and is ignored{meant}"


def _from_overrides(overrides: Mapping[str, object]) -> Iterator[Given]:
    for name, value in overrides.items():
        key = _known(name, FLAG, setting_keys())
        if value is not None:
            yield Given(key, _checked(key, value, FLAG, text=isinstance(value, str)), FLAG)


def _merge(given: Given, values: dict[str, Any], sources: dict[str, str]) -> None:
    """A later value takes precedence; in a table, entry by entry."""
    name = given.key.name
    if not _is_table(given.key):
        values[name] = given.value
        sources[name] = given.where
        return
    values[name] = values.get(name, {}) | given.value
    sources |= {f"{name}.{entry}": given.where for entry in given.value}


def _withhold_token(
    layers: Mapping[str, Iterable[Given]], values: dict[str, Any], sources: dict[str, str]
) -> Iterator[str]:
    """Take the token out, and say so, unless the store is the server that the token was configured for.

    That is the server whose address is configured in the same place as the token; if there is none there, the one that
    the person names elsewhere. A project's address applies to a project's token only.
    """
    url = values.get("url", "")
    if "token" not in values or not url.startswith(_HTTP):
        return
    giver = [name for name in layers if any(given.key.name == "token" for given in layers[name])][-1]
    addresses = {name: g.value for name in layers for g in layers[name] if g.key.name == "url"}
    places = (giver,) if giver == _PROJECT else (giver, _ENVIRONMENT, _USER, FLAG)
    meant = next((addresses[p] for p in places if addresses.get(p, "").startswith(_HTTP)), None)
    if meant is not None and origin(meant) == origin(url):
        return
    del values["token"]
    where, sources["token"] = sources["token"], DEFAULT
    named = "no server that you have named" if meant is None else origin(meant)
    yield (
        f"{where}: this token is for {named} and is not sent to {origin(url)}; "
        "if that is the right one, set HOLDFAST_URL to it"
    )


def origin(url: str) -> str:
    """Scheme, host and port of an address, without the parts that may hold a secret."""
    from urllib.parse import urlsplit  # imported only if the store is a server

    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "an address that cannot be understood"
    shown = "" if port == _PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{parts.hostname}{shown}"


def _build(values: Mapping[str, Any], sources: dict[str, str], notices: tuple[str, ...]) -> Settings:
    rules: dict[str, Any] = {}
    for policy_field, kind in get_type_hints(Policy).items():
        table = f"{_table_name(policy_field)}."
        rules[policy_field] = _construct(kind, table, values, sources)
    top = {name: value for name, value in values.items() if "." not in name}
    return _construct(
        Settings, "", {**top, "policy": Policy(**rules), "notices": notices, "sources": sources}, sources
    )


def _construct(
    kind: Callable[..., _T], prefix: str, values: Mapping[str, Any], sources: Mapping[str, str]
) -> _T:
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    try:
        return kind(**own)
    except InvalidRule as exc:
        names = [prefix + key for key in exc.keys]
        given_by = dict.fromkeys(sources[name] for name in names if sources[name] != DEFAULT)
        raise ConfigError(" and ".join(given_by), exc.told(prefix), keys=names) from None


def _flat(document: Mapping[str, object], where: str) -> Iterator[tuple[str, object]]:
    """The keys of the tables, with the table's name before them."""
    tables = _tables()
    for name, value in document.items():
        if name not in tables:
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            raise ConfigError(where, f"{name}: expected table, found {_shown(value)}", key=name)


def _known(name: str, where: str, known: Mapping[str, Key]) -> Key:
    if name in known:
        return known[name]
    guess = _guess(name, known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise ConfigError(where, f"unknown key {_shown(name)}{hint}")


def _guess(name: str, known: Iterable[str]) -> str | None:
    candidates = [*known, *_tables()]
    elsewhere = [key for key in candidates if key.endswith(f".{name}")]  # the right key outside its table
    return elsewhere[0] if elsewhere else _close(name, candidates)


def _close(name: str, candidates: Sequence[str]) -> str | None:
    import difflib  # imported only for a name that is not known

    return next(iter(difflib.get_close_matches(name, candidates, n=1)), None)


def _checked(key: Key, value: object, where: str, *, text: bool = False) -> object:
    try:
        return _accept(key.kind, _parse(key.kind, str(value).strip()) if text else value)
    except (ValueError, OverflowError):
        problem = f"{key.name}: expected {key.expected}, found {_shown(value)}"
        raise ConfigError(where, problem, key=key.name) from None


# --- how the value of a setting is written: in a file by its type, in the environment as text ---

_MAX_SHOWN = 60
_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")


def _required(kind: Any) -> tuple[Any, bool]:
    """``(float, True)`` for ``float | None``."""
    if get_origin(kind) is UnionType:
        return next(arm for arm in get_args(kind) if arm is not type(None)), True
    return kind, False


def _parse(kind: Any, text: str) -> object:
    """The value that a file would hold for this text; ``ValueError`` if none fits."""
    kind, _ = _required(kind)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        return _truth(text)
    if kind in (int, float) and text != "off":
        return kind(text)
    if get_origin(kind) is frozenset:
        return parts
    if get_origin(kind) is Mapping:
        pairs = (part.rpartition("=") for part in parts)
        return {name.strip(): _parse(_entry_kind(kind), word.strip()) for name, _, word in pairs}
    return text


def _truth(word: str) -> bool:
    if word.lower() not in _TRUE + _FALSE:
        raise ValueError(word)
    return word.lower() in _TRUE


def _accept(kind: Any, value: object) -> object:
    """Converts the value to the type of its field; ``ValueError`` if it has another type."""
    kind, optional = _required(kind)
    origin = get_origin(kind)
    match value:
        case "off" if optional and kind is float:
            return None
        case bool() if kind is bool:
            return value
        case int() | float() if kind is float and not isinstance(value, bool):
            return float(value)
        case int() if kind is int and not isinstance(value, bool):
            return value
        case str() if kind is str or (origin is Literal and value in get_args(kind)):
            return value
        case list() | tuple() | set() | frozenset() if origin is frozenset:
            return frozenset(_accept(str, item) for item in value)
        case Mapping() if origin is Mapping:
            return {_entry_name(name): _accept(_entry_kind(kind), item) for name, item in value.items()}
        case _:
            raise ValueError(value)


def _entry_kind(table: Any) -> Any:
    """``bool`` for ``Mapping[str, bool]``."""
    return get_args(table)[1]


def _entry_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(name)
    return name


def _shown(value: object) -> str:
    """The value for a message, shortened; never a URL, which may hold a password."""
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, Mapping):
        return "a table"
    shown = repr(value)
    if "://" in shown:
        return "a URL"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
