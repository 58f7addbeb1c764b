"""Owns the JSON schemas of the Store contract, made from the types that its records are encoded by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, NewType, Union, get_args, get_origin

from holdfast.clock import Instant
from holdfast.store.verbs import Verb
from holdfast.store.wire import TAG, WHOLE_NUMBERS, declared, fields_of, is_record

Schema = dict[str, Any]

_PLAIN: Final[dict[Any, Schema]] = {
    object: {},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": WHOLE_NUMBERS.start, "maximum": WHOLE_NUMBERS.stop - 1},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    NoneType: {"type": "null"},
}
_REFERENCE: Final = "#/components/schemas/"


class Schemas:
    """Describes records and enums once, under their names; schemas refer to them."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of_call(self, verb: Verb) -> Schema:
        """The object of a verb's arguments."""
        hints = {name: hint for name, hint in verb.hints.items() if name != "return"}
        needed = [name for name in hints if verb.needs(name)]
        return self._object({name: self.of(hint) for name, hint in hints.items()}, needed)

    def of_answer(self, verb: Verb) -> Schema:
        return self.of(verb.hints["return"])

    def of(self, hint: Any) -> Schema:
        if hint is Instant:
            return {**_PLAIN[int], "description": "microseconds since 1970, UTC"}
        if isinstance(hint, NewType):
            return self.of(hint.__supertype__)
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._named(hint.__name__, lambda: {"enum": [member.value for member in hint]})
        if is_record(hint):
            return self._named(hint.__name__, lambda: self._record(hint))
        return self._compound(hint)

    def _compound(self, hint: Any) -> Schema:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._union(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis:
            # every place may hold any of the types: few tools understand prefixItems
            items = {"anyOf": [self.of(argument) for argument in dict.fromkeys(arguments)]}
            return {"type": "array", "items": items, "minItems": len(arguments), "maxItems": len(arguments)}
        if origin in (tuple, frozenset, list, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        assert origin in (dict, Mapping), hint
        return {"type": "object", "additionalProperties": self.of(arguments[1])}

    def _union(self, arms: tuple[Any, ...]) -> Schema:
        records = [arm for arm in arms if is_record(arm)]
        if len(records) < 2:
            return {"anyOf": [self.of(arm) for arm in arms]}
        return {"anyOf": [self._tagged(arm) if arm in records else self.of(arm) for arm in arms]}

    def _tagged(self, kind: Any) -> Schema:
        """Where several records are possible, a tag names the record."""
        name = kind.__name__
        return self._named(f"Tagged{name}", lambda: self._record(kind, {TAG: {"const": name}}))

    def _record(self, kind: type[Any], tag: Schema | None = None) -> Schema:
        hints = declared(kind)
        parts = {name: self.of(hints[name]) for name, _ in fields_of(kind)}
        needed = [name for name, is_needed in fields_of(kind) if is_needed]
        return self._object({**(tag or {}), **parts}, [*(tag or ()), *needed])

    def _object(self, properties: Schema, needed: list[str]) -> Schema:
        return {
            "type": "object",
            "properties": properties,
            "required": needed,
            "additionalProperties": False,
        }

    def _named(self, name: str, describe: Any) -> Schema:
        if name not in self.components:
            self.components[name] = {}  # a record may hold its own kind
            self.components[name] = describe()
        return {"$ref": _REFERENCE + name}
