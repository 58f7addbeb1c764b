"""Owns reading what ``claude -p --output-format stream-json`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.domain.decisions import Fresh
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Deferred,
    Ended,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
)
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from holdfast.providers.claude.transcript import SYNTHETIC
from holdfast.providers.contract import LaunchSpec
from holdfast.providers.loose_json import as_amount, as_count, as_list, as_object, as_text, joined_text

_SYSTEM_PROMPT: Final = ("--system-prompt", "--append-system-prompt")
_SNAPSHOT: Final = "--system-prompt-snapshot"
_NO_HOOKS_RUN: Final = (
    "the agent does not run the hook that makes tool calls wait for approval: hooks are switched off, perhaps by "
    "managed settings; it was ended as soon as it had begun"
)
#: some versions name the HTTP status only in their text
_STATUS: Final = re.compile(r"\AAPI Error: (\d{3})\b")
_NOT_COMPARED: Final = "what the agent ran cannot be compared with what was approved: it was ended"


class ClaudeStream:
    """One run. It may have several results: a subagent in the background leads to another answer."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._session_id: str | None = None
        self._model: str | None = None  #: of the main agent's last call
        self._prompt_tokens = 0  #: of the same call
        self._message: str | None = None  #: id of the message that is being written
        self._refusal: str | None = None  #: the CLI's name for the error it wrote last
        self._resets_at = 0
        self._denied: set[str] = set()
        self._is_gated = spec.gate is None  #: no gate, or its hooks have shown that they run

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        yield from self._named(as_text(line.get("session_id")))
        if line.get("isReplay") is True:
            return
        match line.get("type"):
            # the first of these comes when the session's hooks have run, and before the model is asked
            case "command_lifecycle":
                yield from self._gated()
            case "system":
                yield from self._system(line)
            case "assistant":
                yield from self._assistant(line)
            case "user":
                for result in calls_in(as_object(line.get("message"))):
                    if isinstance(result, Returned):
                        yield result
                        yield from self._compared(result)
            case "rate_limit_event":
                self._limit(as_object(line.get("rate_limit_info")))
            case "result":
                yield from self._compared(None)
                yield from self._end(line)

    def _named(self, session_id: str) -> Iterator[AgentEvent]:
        if session_id and session_id != self._session_id:
            if self._session_id is None and _ignores_system_prompt(self._spec):
                yield Noted(
                    "Claude keeps the system prompt this session began with; "
                    f"add {_SNAPSHOT} off for another one to count"
                )
            self._session_id = session_id
            yield Named(ProviderSessionId(session_id))

    def _system(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line.get("subtype"):
            case "init":
                yield from self._gated()
            case "api_retry":
                why = as_text(line.get("error")) or "error"
                status = as_count(line.get("error_status"))
                attempt, most = as_count(line.get("attempt")), as_count(line.get("max_retries"))
                yield Noted(f"the model's service failed ({why}, {status}): retry {attempt} of {most}")
            case "model_fallback":
                models = [as_text(line.get(key)) for key in ("original_model", "fallback_model", "trigger")]
                yield Noted("{} was replaced by {} ({})".format(*models))
            case "permission_denied":
                yield from self._denial(line, as_text(line.get("message")))
            case "compact_boundary":
                metadata = as_object(line.get("compact_metadata"))
                before, after = as_count(metadata.get("pre_tokens")), as_count(metadata.get("post_tokens"))
                yield Noted(f"Claude compacted its context from {before} to {after} tokens")

    def _gated(self) -> Iterator[AgentEvent]:
        if not self._is_gated:
            assert self._spec.gate is not None
            self._is_gated = True
            if not self._spec.gate.armed.exists():
                yield Ungated(_NO_HOOKS_RUN)

    def _compared(self, returned: Returned | None) -> Iterator[AgentEvent]:
        """After each result, and at the end: checks that the call that ran is the call that was let through."""
        gate = self._spec.gate
        if gate is None or gate.done is None:
            return
        if gate.changed.exists():
            yield Ungated(gate.changed.read_text(errors="replace") or _NOT_COMPARED)
        elif not gate.armed.exists():
            yield Ungated(_NOT_COMPARED)
        elif gate.approved is not None and returned is not None and not returned.is_error:
            call_id, executed = gate.approved
            if returned.call_id == call_id and not executed.exists():
                yield Ungated(_NOT_COMPARED)

    def _assistant(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        message = as_object(line.get("message"))
        if message.get("model") == SYNTHETIC:
            self._refusal = as_text(line.get("error"))
            return
        is_subagent = line.get("parent_tool_use_id") is not None
        if not is_subagent:
            self._refusal = None
            self._count(message)
        for block in map(as_object, as_list(message.get("content"))):
            match block.get("type"):
                case "text" if not is_subagent:
                    yield self._say(as_text(message.get("id")), as_text(block.get("text")))
                case "tool_use":
                    yield _called(block)

    def _say(self, message_id: str, text: str) -> Said:
        is_next = self._message not in (None, message_id)
        self._message = message_id
        return Said(f"\n\n{text}" if is_next else text)

    def _count(self, message: Mapping[str, Json]) -> None:
        usage = as_object(message.get("usage"))
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self._model = as_text(message.get("model"))
        self._prompt_tokens = sum(as_count(usage.get(kind)) for kind in kinds)

    def _limit(self, info: Mapping[str, Json]) -> None:
        self._resets_at = as_count(info.get("resetsAt")) if info.get("status") == "rejected" else 0

    def _denial(self, denial: Mapping[str, Json], why: str) -> Iterator[AgentEvent]:
        call_id = as_text(denial.get("tool_use_id"))
        if call_id not in self._denied:
            self._denied.add(call_id)
            yield Noted(f"{as_text(denial.get('tool_name'))} was not allowed: {why}".removesuffix(": "))

    def _end(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        for denial in map(as_object, as_list(line.get("permission_denials"))):
            yield from self._denial(denial, "")
        models = as_object(line.get("modelUsage"))
        if models:  # a run that called no model reports zeros, not the session's totals
            yield Spent(self._usage(models, as_amount(line.get("total_cost_usd"))))
        self._message = None
        # subtype says "success" for a failed call to the model too
        if line.get("is_error") is not False:
            yield self._failure(line)
        elif call_id := as_text((call := as_object(line.get("deferred_tool_use"))).get("id")):
            yield Deferred(call_id, as_text(call.get("name")), as_object(call.get("input")))
        else:
            yield Ended(ok=True, response=as_text(line.get("result")) or None)

    def _failure(self, line: Mapping[str, Json]) -> Ended:
        errors = [as_text(error) for error in as_list(line.get("errors"))]
        if not errors and (self._refusal is not None or self._model is None):
            # only then is it the CLI's own text; otherwise it is the agent's
            errors = [as_text(line.get("result"))]
        if self._resets_at:
            errors.append(f"resets_at={self._resets_at}")
        code = as_text(line.get("terminal_reason")) or as_text(line.get("subtype"))
        error = "\n".join(errors)
        named = _STATUS.match(error)
        return Ended(
            ok=False,
            error=error,
            status=as_count(line.get("api_error_status")) or (int(named[1]) if named else None),
            code=self._refusal if code == "api_error" and self._refusal else code,
        )

    def _usage(self, models: Mapping[str, Json], cost: float) -> UsageReport:
        """``modelUsage`` and the cost are totals since the session began, and a fork inherits them."""
        usage = total_usage(models, cost)
        context = ContextUse(self._prompt_tokens, self._window(models)) if self._prompt_tokens else None
        return UsageReport(usage, cumulative=True, context=context)

    def _window(self, models: Mapping[str, Json]) -> int:
        """The same model may be listed with its window in the name, such as ``opus[1m]``."""
        for name, model in models.items():
            entry = as_object(model)
            if self._model in (name, name.partition("[")[0], entry.get("canonicalModel")):
                return as_count(entry.get("contextWindow"))
        return 0


def total_usage(models: Mapping[str, Json], cost: float) -> Usage:
    usage = Usage(cost_usd=cost)
    for model in map(as_object, models.values()):
        read, written = (as_count(model.get(f"cache{kind}InputTokens")) for kind in ("Read", "Creation"))
        usage += Usage(
            as_count(model.get("inputTokens")) + read + written, read, as_count(model.get("outputTokens"))
        )
    return usage


def calls_in(message: Mapping[str, Json]) -> Iterator[Called | Returned]:
    """The tool calls and the results of tool calls in a message."""
    for block in map(as_object, as_list(message.get("content"))):
        match block.get("type"):
            case "tool_use":
                yield _called(block)
            case "tool_result":
                call_id, output = as_text(block.get("tool_use_id")), joined_text(block.get("content"))
                yield Returned(call_id, output, block.get("is_error") is True)


def _called(block: Mapping[str, Json]) -> Called:
    return Called(as_text(block.get("id")), as_text(block.get("name")), as_object(block.get("input")))


def _ignores_system_prompt(spec: LaunchSpec) -> bool:
    names = {argument.partition("=")[0].removesuffix("-file") for argument in spec.rights.extra_args}
    is_set = not names.isdisjoint(_SYSTEM_PROMPT) and _SNAPSHOT not in names
    return is_set and not isinstance(spec.decision, Fresh)
