"""Owns reading tool calls out of recorded events: what was called, how it ended, which files it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from holdfast.domain.events import Event, EventKind, call_words
from holdfast.domain.records import record, replace
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
    words: str = ""  #: the tool and what it is about, in one line

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
    words = call_words(tool, arguments)
    return ToolCall(turn, tool, text, outcome, output, written, call_id, unrecorded, words)


class CallPairs:
    """Pairs the calls of one turn with their results, one event at a time: only calls without a result are kept.

    Calls come out in the order in which they ended; those without a result when their attempt has ended, and those
    that waited for a person when the turn has.
    """

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._open: dict[str, list[Mapping[str, Any]]] = {}  #: of the attempt that is read, by their ids
        self._withheld: set[str] = set()

    @property
    def has_withheld(self) -> bool:
        """Whether a call of the turn waited for a person."""
        return bool(self._withheld)

    def take(self, event: Event) -> ToolCall | None:
        """The call that ended with this event."""
        call_id = str(event.data.get("call_id", ""))
        same = self._open.setdefault(call_id, [])
        ended = None
        if event.kind is EventKind.TOOL_CALL:
            if call_id in self._withheld:
                same.clear()  # asked in one attempt, and made in the next
            same.append(event.data)
        elif same:
            outcome = CallOutcome.ERROR if event.data.get("is_error") else CallOutcome.OK
            output = str(event.data.get("output", ""))
            ended = _call(self._turn, same.pop(0), event.data, outcome, output)
        if not same:
            del self._open[call_id]
        return ended

    def withhold(self, call_id: str) -> None:
        """This call waits for a person: a later attempt may make it."""
        self._withheld.add(call_id)

    def end_attempt(self) -> list[ToolCall]:
        """The calls of the attempt that have no result."""
        gone = [call_id for call_id in self._open if call_id not in self._withheld]
        return [self._unended(data) for call_id in gone for data in self._open.pop(call_id)]

    def end_turn(self, waited: Mapping[str, str | None], *, settled: bool) -> list[ToolCall]:
        """The calls that are left; ``waited`` and ``settled`` are as in ``tool_calls``."""
        found = []
        for call_id, same in self._open.items():
            found += [self._unended(data, waited.get(call_id), settled=settled) for data in same]
        self._open = {}
        return found

    def _unended(
        self, data: Mapping[str, Any], why_not: str | None = None, *, settled: bool = False
    ) -> ToolCall:
        open_end = CallOutcome.NOT_REPORTED if settled else CallOutcome.IN_FLIGHT
        return _call(self._turn, data, {}, *_ended(None, why_not, open_end))


def _written(tool: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not any(word in tool.lower() for word in _WRITING):
        return
    changes = arguments.get("changes")  # one call, several files
    several = changes if isinstance(changes, list) else []
    for found in (arguments, *(change for change in several if isinstance(change, Mapping))):
        yield from (path for name in _PATHS if isinstance(path := found.get(name), str) and path)
