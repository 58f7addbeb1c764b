"""Owns reading tool calls out of recorded events: what was called, how it ended, which files it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from holdfast.domain.events import Event, EventKind
from holdfast.domain.records import record
from holdfast.domain.telling.quoting import shortened

#: tools that write files, whatever their provider calls them: Write, MultiEdit, apply_patch, write_file
_WRITING = ("write", "edit", "patch", "create", "replace", "file_change")
_PATHS = ("file_path", "path", "filePath", "notebook_path", "absolute_path")


class CallOutcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    NOT_REPORTED = "not_reported"  #: the turn ended well and did not report its end
    NOT_RUN = "not_run"  #: it waited for a person, and was never made
    IN_FLIGHT = "in_flight"  #: it began, and its end is not known

    @property
    def words(self) -> str:
        return "did NOT run" if self is CallOutcome.NOT_RUN else self.value


@record
class ToolCall:
    turn: int
    tool: str
    arguments: str
    outcome: CallOutcome
    output: str = ""
    written: tuple[str, ...] = ()  #: the files that it was asked to write
    call_id: str = ""  #: as the provider named it
    unrecorded: int = 0  #: of its arguments and its result, how many were too long to be recorded whole

    def within(self, limit: int) -> ToolCall:
        """The same call with every text shortened to ``limit`` characters."""
        return replace(
            self,
            tool=shortened(self.tool, limit),
            arguments=shortened(self.arguments, limit),
            output=shortened(self.output, limit),
        )


def tool_calls(
    turn: int,
    events: Iterable[tuple[int, Event]],
    *,
    settled: bool,
    waited: Mapping[str, str | None] = MappingProxyType({}),
) -> list[ToolCall]:
    """The calls among a turn's events, pairs of attempt and event, in the order in which they began.

    ``settled``: the turn or a later one was answered, so that nothing of it is in flight any more.
    ``waited`` has the ids of the calls that waited for a person: why one was never made, or None. What was
    asked in one attempt may have been made in the next.
    """
    open_end = CallOutcome.NOT_REPORTED if settled else CallOutcome.IN_FLIGHT
    called: dict[tuple[int, str], Mapping[str, Any]] = {}
    returned: dict[tuple[int, str], Mapping[str, Any]] = {}
    nameless = 0
    for attempt, event in events:
        call_id = str(event.data.get("call_id", ""))
        key = (0 if call_id in waited else attempt, call_id)
        if event.kind is EventKind.TOOL_CALL:
            while key in called and call_id not in waited:
                nameless -= 1
                key = (nameless, call_id)
            called[key] = event.data
        elif event.kind is EventKind.TOOL_RESULT:
            returned[key] = event.data
    return [
        _call(turn, data, returned.get(key, {}), *_ended(returned.get(key), waited.get(key[1]), open_end))
        for key, data in called.items()
    ]


def _ended(
    returned: Mapping[str, Any] | None, why_not: str | None, open_end: CallOutcome
) -> tuple[CallOutcome, str]:
    if returned is not None:
        outcome = CallOutcome.ERROR if returned.get("is_error") else CallOutcome.OK
        return outcome, str(returned.get("output", ""))
    return (open_end, "") if why_not is None else (CallOutcome.NOT_RUN, why_not)


def _call(
    turn: int, called: Mapping[str, Any], returned: Mapping[str, Any], outcome: CallOutcome, output: str
) -> ToolCall:
    tool, arguments = str(called.get("tool", "?")), called.get("arguments")
    written = tuple(_written(tool, arguments)) if isinstance(arguments, Mapping) else ()
    call_id = str(called.get("call_id", ""))
    text = json.dumps(arguments, ensure_ascii=False)
    unrecorded = sum(bool(data.get("is_cut")) for data in (called, returned))
    return ToolCall(turn, tool, text, outcome, output, written, call_id, unrecorded)


def _written(tool: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not any(word in tool.lower() for word in _WRITING):
        return
    changes = arguments.get("changes")  # one call, several files
    several = changes if isinstance(changes, list) else []
    for found in (arguments, *(change for change in several if isinstance(change, Mapping))):
        yield from (path for name in _PATHS if isinstance(path := found.get(name), str) and path)
