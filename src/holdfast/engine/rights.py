"""Owns which rights may be asked for: texts that can become arguments and rows, and that the provider can express."""

from __future__ import annotations

from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.pointers import Rights
from holdfast.errors import InvalidInput
from holdfast.hooks.tool_patterns import read_pattern
from holdfast.providers.contract import Provider


def check_rights(rights: Rights, provider: Provider, *, allow_wider: bool = False) -> None:
    """Wherever it will run: neither directories nor the version of the agent are looked at.

    ``allow_wider``: arguments that may widen the rights were accepted. Those that override a decision never are.
    """
    if rights.permission_mode is not None:
        check_name("permission_mode", rights.permission_mode)
    named = {
        "allowed_tools": rights.allowed_tools,
        "extra_dirs": rights.extra_dirs,
        "arguments": rights.extra_args,
        "approve_tools": rights.approve_tools,
    }
    for field, values in named.items():
        if isinstance(values, str):  # whose letters would count as values
            raise InvalidInput(field, "must be several texts, not one")
        for value in values:
            check_text(field, value)
    for pattern in rights.approve_tools:
        try:
            read_pattern(pattern)
        except ValueError as exc:
            raise InvalidInput("approve_tools", str(exc)) from None
    provider.check(rights, allow_wider=allow_wider)
