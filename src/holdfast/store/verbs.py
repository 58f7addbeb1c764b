"""Owns the Store's verbs as HTTP calls: their arguments and answers as JSON, and the headers of a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from holdfast.domain.inputs import clean_text
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.errors import InvalidInput
from holdfast.store.contract import FACTS, Facts, Store
from holdfast.store.wire import Coder, coder, declared

#: names the workspace of a call; without it, the token's, or the one that the server was started for
WORKSPACE_HEADER: Final = "Holdfast-Workspace"
#: a call that is made again under the same key happens once
KEY_HEADER: Final = "Idempotency-Key"
#: names the version of the contract that a client and a server speak
CONTRACT_HEADER: Final = "Holdfast-Contract"
#: counted up with each change of the contract that an older Holdfast could not work with
CONTRACT: Final = "3"
#: how long a server lets a watch of the queue wait: proxies give up on answers that take half a minute
LONGEST_WATCH_SECONDS: Final = 25.0


@record
class Verb:
    name: str
    signature: inspect.Signature
    hints: Mapping[str, Any]  #: the types of its arguments, and of its answer as ``return``
    arguments: Mapping[str, Coder]
    answer: Coder
    words: str  #: its docstring in the contract
    facts: Facts

    def needs(self, argument: str) -> bool:
        parameter = self.signature.parameters[argument]
        return parameter.default is parameter.empty

    def encode_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Json]:
        given = self.signature.bind(None, *args, **kwargs).arguments
        return {name: part.encode(given[name]) for name, part in self.arguments.items() if name in given}

    def decode_call(self, call: Json) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise InvalidInput(self.name, "must be an object")
        for name in call:
            if name not in self.arguments:
                raise InvalidInput(f"{self.name}.{clean_text(name[:40])}", "is not known")
        given = {
            name: self.arguments[name].decode(value, f"{self.name}.{name}") for name, value in call.items()
        }
        for name in self.arguments:
            if name not in given and self.needs(name):
                raise InvalidInput(f"{self.name}.{name}", "is missing")
        return given


@cache
def verbs() -> Mapping[str, Verb]:
    """Those that can be called over HTTP."""
    return {name: _verb(name, facts) for name, facts in FACTS.items() if not facts.local}


def _verb(name: str, facts: Facts) -> Verb:
    function = vars(Store)[name]
    hints = declared(function)
    coders = {key: coder(hint) for key, hint in hints.items()}
    answer = coders.pop("return")
    return Verb(
        name, inspect.signature(function), hints, coders, answer, inspect.getdoc(function) or "", facts
    )
