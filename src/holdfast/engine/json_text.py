"""Owns changing one member of a JSON object's text: every byte outside of it stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_INDENT = re.compile(r"\n([ \t]+)$")
_USUAL_INDENT = "  "


class JsonProblem(ValueError):
    """The text is not the JSON that it should be; ``line`` says where."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member of an object stands in the text: from its name to the end of its value."""

    name: str
    start: int
    value: int
    end: int


def read_object(text: str) -> dict[str, Any]:
    """JsonProblem for anything but one object in which no name is said twice."""
    try:
        found = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as exc:
        raise JsonProblem(f"is not valid JSON: {exc.msg}", exc.lineno) from None
    except _SaidTwice as exc:
        raise JsonProblem(str(exc), text.count("\n", 0, text.rfind(json.dumps(exc.name))) + 1) from None
    except RecursionError:
        raise JsonProblem("is nested too deeply", 1) from None
    if not isinstance(found, dict):
        raise JsonProblem("is not a JSON object", 1)
    return found


def line_of(text: str, *names: str) -> int:
    """The line of a member inside of members; of the nearest one around it that is there."""
    at, line = _start(text), 1
    for name in names:
        found = next((member for member in _members(text, at) if member.name == name), None)
        if found is None:
            break
        line, at = text.count("\n", 0, found.start) + 1, found.value
    return line


def set_member(text: str, name: str, value: object) -> str:
    """The text of the object with this member: in its place, or behind the others."""
    members = list(_members(text, _start(text)))
    written = _written(value, _indent(text, members), _newline(text))
    old = next((member for member in members if member.name == name), None)
    if old is not None:
        return text[: old.value] + written + text[old.end :]
    new = f"{_newline(text)}{_indent(text, members)}{json.dumps(name)}: {written}"
    if members:
        return f"{text[: members[-1].end]},{new}{text[members[-1].end :]}"
    return f"{text[: _start(text) + 1]}{new}{_newline(text)}{text[text.rindex('}') :]}"


def remove_member(text: str, name: str) -> str:
    """The text of the object without this member."""
    members = list(_members(text, _start(text)))
    at = next((number for number, member in enumerate(members) if member.name == name), None)
    if at is None:
        return text
    if at > 0:
        return text[: members[at - 1].end] + text[members[at].end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: _start(text) + 1] + text[text.rindex("}") :]


class _SaidTwice(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"says {name!r} twice")
        self.name = name


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _SaidTwice(next(name for name in names if names.count(name) > 1))
    return found


def _start(text: str) -> int:
    return text.index("{")


def _members(text: str, at: int) -> Iterator[Member]:
    """Of the object that begins at this place; none for anything else that begins there."""
    decoder = json.JSONDecoder()
    if text[at] != "{":
        return
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, behind = decoder.raw_decode(text, at)
        value = _skip(text, _skip(text, behind) + 1)
        _, end = decoder.raw_decode(text, value)
        yield Member(name, at, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it also fits nothing"
    return found.end()


def _indent(text: str, members: list[Member]) -> str:
    before = _INDENT.search(text[: members[0].start]) if members else None
    return before[1] if before else _USUAL_INDENT


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _written(value: object, indent: str, newline: str) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", newline + indent)
