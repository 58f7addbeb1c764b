"""Owns the taking out of secrets before text is written; each becomes ``[redacted:<kind>]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.domain.secret_names import may_name_secret, redact_named, secret_kind
from holdfast.domain.secret_tokens import ascii_re, mark, may_hold_token, redact_tokens, redact_urls

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_SHORTEST = 8  #: text that can hold a secret
_PASSES = 3
_MARK = r"\[redacted:\w+\]"
#: fields whose value is an opaque blob that a provider wants back unchanged
_OPAQUE = frozenset(["signature", "encrypted_content"])


def redact_text(text: str) -> str:
    """The text without its secrets; the same object when there are none. Idempotent, never raises."""
    if len(text) < _SHORTEST:
        return text
    # One pass that finds nothing, nearly always. The last one is there in case a mark uncovers a neighbour.
    for _ in range(_PASSES):
        clean = _redact_once(text)
        if clean == text:
            break
        text = clean
    return text


def redact_value(value: Json) -> Json:
    """The same for JSON of any depth; a text under a secret's name is replaced whole.

    What holds no secret stays the same object, up to the value itself. Keys are redacted too.
    """
    stack = [_Node([value])]
    above: set[int] = set()
    while True:
        node = stack[-1]
        child = node.next_child()
        if child is None:
            stack.pop()
            above.discard(id(node.source))
            if not stack:
                clean: Json = node.clean()[0]
                return clean
            stack[-1].keep(node.slot, node.source, node.clean())
        elif id(child.source) not in above:  # a cycle is no JSON: it stays for the encoder to refuse
            above.add(id(child.source))
            stack.append(child)


def encode_redacted(value: Json, encode: Callable[[Json], str]) -> str:
    """The value's JSON text without its secrets. Nearly always the text alone shows that there are none."""
    text = encode(value)
    if may_name_secret(text) or may_hold_token(text) or ("@" in text and "://" in text):
        clean = redact_value(value)
        return text if clean is value else encode(clean)
    return text


class _Node:
    """A dict or list on the way through a value: what is still to be looked at, and what has changed."""

    __slots__ = ("changes", "items", "name", "slot", "source")

    def __init__(self, source: Any, slot: Any = None, name: str = "") -> None:
        self.source = source
        self.slot = slot
        self.name = name  #: of the key above, for the texts in a list
        self.items: Iterator[tuple[Any, Any]] = iter(
            source.items() if isinstance(source, dict) else enumerate(source)
        )
        self.changes: dict[Any, Any] = {}

    def next_child(self) -> _Node | None:
        """Redacts texts up to the next dict or list, and returns that; None at the end."""
        for slot, item in self.items:
            if isinstance(item, str):
                self.keep(slot, item, _redact_leaf(self._name_of(slot), item))
            elif isinstance(item, dict):
                return _Node(item, slot)
            elif isinstance(item, list | tuple):
                return _Node(item, slot, self._name_of(slot))
        return None

    def keep(self, slot: Any, old: object, new: object) -> None:
        if new is not old:
            self.changes[slot] = new

    def clean(self) -> Any:
        if not isinstance(self.source, dict):
            return (
                [self.changes.get(i, v) for i, v in enumerate(self.source)] if self.changes else self.source
            )
        keys = {
            key: _redact_key(key) for key in self.source if isinstance(key, str) and len(key) >= _SHORTEST
        }
        if not self.changes and all(key == clean for key, clean in keys.items()):
            return self.source
        copy: dict[Any, Any] = {}
        for number, (key, value) in enumerate(self.source.items()):
            name = keys.get(key, key)
            if name in copy:  # two keys that differed only in their secret
                name = f"{name}#{number}"
            copy[name] = self.changes.get(key, value)
        return copy

    def _name_of(self, slot: Any) -> str:
        if isinstance(self.source, dict):
            if slot == "value":  # {"name": "API_KEY", "value": ...}
                slot = self.source.get("name", slot)
            return slot if isinstance(slot, str) else ""
        if self.name and secret_kind(self.name) is not None:
            return self.name  # whatever stands in a secret's list is secret
        before, item = self.source[slot - 1] if slot else "", self.source[slot]
        is_option = isinstance(before, str) and before.startswith("--") and not str(item).startswith("-")
        return before if is_option else self.name  # ["--password", ...]


@lru_cache(maxsize=1024)
def _redact_key(key: str) -> str:
    return redact_text(key)


def _redact_leaf(name: str, text: str) -> str:
    if name in _OPAQUE or not text.strip():
        return text
    kind = secret_kind(name) if name else None
    clean = redact_text(text)
    if kind is None or ascii_re(_MARK).fullmatch(clean):
        return clean
    if kind == "password" and name.lower().endswith("pwd") and text.startswith(("/", "~")):
        return clean  # $PWD is a directory
    return mark(kind)


def _redact_once(text: str) -> str:
    return redact_named(redact_urls(redact_tokens(text)))
