"""Owns reading tool calls out of recorded events: what was called, how it ended, which files it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from holdfast.domain.records import record
from holdfast.domain.telling.quoting import shortened
from holdfast.domain.turns import Event, EventKind

_LONGEST = 2000
#: tools that write files, whatever their provider calls them: Write, MultiEdit, apply_patch, write_file
_WRITING = ("write", "edit", "patch", "create", "replace", "file_change")
_PATHS = ("file_path", "path", "filePath", "notebook_path", "absolute_path")


class CallOutcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    NOT_REPORTED = "not_reported"  #: the turn ended well without a word about it
    IN_FLIGHT = "in_flight"  #: it began, and nobody knows how it ended


@record
class ToolCall:
    turn: int
    tool: str
    arguments: str
    outcome: CallOutcome
    output: str = ""
    written: tuple[str, ...] = ()  #: the files that it was asked to write
    call_id: str = ""  #: as the provider named it


def tool_calls(turn: int, events: Iterable[tuple[int, Event]], *, settled: bool) -> list[ToolCall]:
    """The calls among a turn's events, pairs of attempt and event, in the order in which they began.

    ``settled``: the turn or a later one was answered, so that nothing of it is in flight any more.
    """
    open_end = CallOutcome.NOT_REPORTED if settled else CallOutcome.IN_FLIGHT
    called: list[tuple[tuple[int, str], Mapping[str, Any]]] = []
    returned: dict[tuple[int, str], Mapping[str, Any]] = {}
    for attempt, event in events:
        key = (attempt, str(event.data.get("call_id", "")))
        if event.kind is EventKind.TOOL_CALL:
            called.append((key, event.data))
        elif event.kind is EventKind.TOOL_RESULT:
            returned[key] = event.data
    return [_call(turn, data, returned.get(key), open_end) for key, data in called]


def _call(
    turn: int, called: Mapping[str, Any], returned: Mapping[str, Any] | None, open_end: CallOutcome
) -> ToolCall:
    tool = str(called.get("tool", "?"))
    arguments = called.get("arguments")
    outcome, output = open_end, ""
    if returned is not None:
        outcome = CallOutcome.ERROR if returned.get("is_error") else CallOutcome.OK
        output = shortened(str(returned.get("output", "")), _LONGEST)
    text = shortened(json.dumps(arguments, ensure_ascii=False), _LONGEST)
    written = tuple(_written(tool, arguments)) if isinstance(arguments, Mapping) else ()
    call_id = str(called.get("call_id", ""))
    return ToolCall(turn, shortened(tool, _LONGEST), text, outcome, output, written, call_id)


def _written(tool: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not any(word in tool.lower() for word in _WRITING):
        return
    changes = arguments.get("changes")  # one call, several files
    several = changes if isinstance(changes, list) else []
    for found in (arguments, *(change for change in several if isinstance(change, Mapping))):
        yield from (path for name in _PATHS if isinstance(path := found.get(name), str) and path)
