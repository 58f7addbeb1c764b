"""Owns the list of providers; each one's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from holdfast.errors import InvalidInput
from holdfast.providers.contract import Provider

#: name -> where it is, in the order in which they are shown
_PROVIDERS: Final = {
    "claude": "claude.provider:Claude",
    "codex": "codex.provider:Codex",
    "opencode": "opencode.provider:Opencode",
    "gemini": "gemini.provider:Gemini",
    "scripted": "scripted:Scripted",
}


def provider_names() -> tuple[str, ...]:
    return tuple(_PROVIDERS)


def get_provider(name: str) -> Provider:
    place = _PROVIDERS.get(name)
    if place is None:
        raise InvalidInput("provider", f"{name[:40]!r} is none of {', '.join(_PROVIDERS)}")
    module, _, attribute = place.partition(":")
    return cast("Provider", getattr(import_module(f"holdfast.providers.{module}"), attribute)())
