"""Owns the list of providers: the built-in ones, and those that other packages offer as entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from holdfast.errors import ConfigError, InvalidInput
from holdfast.providers.contract import Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "holdfast.providers"
#: The entry points of this package, in the order in which they are shown. They stand here a second time because
#: reading entry points takes longer than starting the command does; a test compares both lists.
BUILT_IN: Final = {
    "claude": "holdfast.providers.claude.provider:Claude",
    "codex": "holdfast.providers.codex:Codex",
    "opencode": "holdfast.providers.opencode:Opencode",
    "gemini": "holdfast.providers.gemini:Gemini",
    "scripted": "holdfast.providers.scripted:Scripted",
}


def provider_names() -> tuple[str, ...]:
    return (*BUILT_IN, *(name for name in sorted(_entry_points()) if name not in BUILT_IN))


def is_provider(name: str) -> bool:
    """Reads the entry points of other packages only for a name that is not built in."""
    return name in BUILT_IN or name in _entry_points()


def get_provider(name: str) -> Provider:
    """InvalidInput for an unknown name, ConfigError for a provider of another package that cannot be used.

    A built-in name always means the built-in provider.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast("Provider", getattr(import_module(module), attribute)())
    found = _entry_points().get(name)
    if found is None:
        import difflib  # only needed here

        names = provider_names()
        close = difflib.get_close_matches(name[:40], names, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise InvalidInput("provider", f"{name[:40]!r} is not one of {', '.join(names)}{meant}")
    return _load(found)


@cache
def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and only needed for names that are not ours

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value and point.name not in BUILT_IN:
            raise ConfigError(
                "provider", f"{_package(other)} and {_package(point)} both offer a provider {point.name!r}"
            )
    return found


def _load(point: EntryPoint) -> Provider:
    try:
        provider = cast("Provider", point.load()())
        name = provider.name
    except Exception as exc:
        problem = f"{point.name!r} of {_package(point)} cannot be loaded: {type(exc).__name__}: {exc}"
        raise ConfigError("provider", problem) from exc
    if name != point.name:
        raise ConfigError("provider", f"{_package(point)} offers {point.name!r}, which calls itself {name!r}")
    return provider


def _package(point: EntryPoint) -> str:
    return point.value if point.dist is None else point.dist.name
