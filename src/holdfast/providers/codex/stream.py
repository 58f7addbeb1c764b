"""Owns reading what ``codex exec --json`` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.loose_json import as_count, as_list, as_object, as_text

#: the type of an item that runs something -> the fields that say what it was asked to do
_TOOLS: Final = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("server", "tool", "arguments"),
    "web_search": ("query",),
    "collab_tool_call": ("tool", "prompt"),
}
_FAILED: Final = ("failed", "declined")
#: Codex continues by itself after this message
_RETRY: Final = "Reconnecting..."
_STATUS: Final = re.compile(r"unexpected status (\d{3})\b")


class CodexStream:
    def __init__(self) -> None:
        self._called: set[str] = set()
        self._has_said = False

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line.get("type"):
            case "thread.started":
                if thread_id := as_text(line.get("thread_id")):
                    yield Named(ProviderSessionId(thread_id))
            case "item.started":
                yield from self._call(as_object(line.get("item")))
            case "item.completed":
                yield from self._complete(as_object(line.get("item")))
            case "turn.completed":
                yield _spent(as_object(line.get("usage")))
                yield Ended(ok=True)
            case "turn.failed":
                yield _failure(as_text(as_object(line.get("error")).get("message")))
            case "error":
                message = as_text(line.get("message"))
                yield Noted(message) if message.startswith(_RETRY) else _failure(message)

    def _complete(self, item: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match item.get("type"):
            case "agent_message":
                text = as_text(item.get("text"))
                yield Said(f"\n\n{text}" if self._has_said else text)
                self._has_said = True
            case "error":  # a warning: the run continues
                yield Noted(as_text(item.get("message")))
            case _:
                yield from self._call(item)
                yield from returned(item)

    def _call(self, item: Mapping[str, Json]) -> Iterator[AgentEvent]:
        """Some items are reported only when they have ended."""
        for call in called(item):
            if call.call_id not in self._called:
                self._called.add(call.call_id)
                yield call


def called(item: Mapping[str, Json]) -> Iterator[Called]:
    """The call that an item stands for, if the item runs something."""
    kind = as_text(item.get("type"))
    if kind in _TOOLS:
        yield Called(
            as_text(item.get("id")), kind, {name: item[name] for name in _TOOLS[kind] if name in item}
        )


def _failure(message: str) -> Ended:
    """Codex names the HTTP status of an error, except 400: then the message is the answer of the service."""
    named = _STATUS.match(message)
    status = int(named[1]) if named else 400 if _is_answer_of_a_service(message) else None
    return Ended(ok=False, error=message, status=status)


def _is_answer_of_a_service(message: str) -> bool:
    try:
        answer = json.loads(message)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and ("error" in answer or "detail" in answer)


def returned(item: Mapping[str, Json]) -> Iterator[Returned]:
    """The result of such an item, once it is completed."""
    if as_text(item.get("type")) in _TOOLS:
        is_error = item.get("status") in _FAILED or item.get("error") is not None
        yield Returned(as_text(item.get("id")), _output(item), is_error)


def _output(item: Mapping[str, Json]) -> str:
    match item.get("type"):
        case "command_execution":
            return as_text(item.get("aggregated_output"))
        case "file_change":
            changes = map(as_object, as_list(item.get("changes")))
            return "\n".join(f"{as_text(c.get('kind'))} {as_text(c.get('path'))}" for c in changes)
        case _:
            found = item.get("error") or item.get("result")
            return "" if found is None else json.dumps(found, ensure_ascii=False)


def _spent(usage: Mapping[str, Json]) -> Spent:
    """Codex counts since the thread began, and a fork inherits the count."""
    return Spent(UsageReport(total_usage(usage), cumulative=True))


def total_usage(usage: Mapping[str, Json]) -> Usage:
    """The input tokens include the cached ones."""
    kinds = ("input_tokens", "cached_input_tokens", "output_tokens")
    return Usage(*(as_count(usage.get(kind)) for kind in kinds))
