"""Owns the refusal of provider arguments that would override what Holdfast decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import InvalidInput


def check_arguments(owned: Mapping[str, str], arguments: Sequence[str]) -> None:
    """InvalidInput for the first one that is owned: ``--x``, ``--x=value``, ``-x`` or ``-xvalue``."""
    for argument in arguments:
        name = next((name for name in owned if _is(argument, name)), None)
        if name is not None:
            raise InvalidInput(
                "provider arguments", f"{name} is decided by Holdfast: {owned[name]}", argument=name
            )


def _is(argument: str, name: str) -> bool:
    if argument == name:
        return True
    if name.startswith("--"):
        return argument.startswith(f"{name}=")
    is_short = len(name) == 2 and name.startswith("-")
    return is_short and argument.startswith(name) and not argument.startswith("--")
