"""Owns the Anthropic Messages protocol, as Claude Code speaks it."""

import re
from collections.abc import Iterator

from tests.agents.lab.model_servers.protocol import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Json,
    Message,
    Prompt,
    Protocol,
    compact,
    event,
    joined,
)
from tests.agents.lab.model_servers.replies import Call, Part, Text

REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicMessages(Protocol):
    session_header = "x-claude-code-session-id"

    def serves(self, path: str) -> bool:
        return path == "/v1/messages"

    def read(self, path: str, body: Json) -> Prompt:
        messages: list[Message] = []
        system = [joined([block]) for block in body.get("system", [])]
        for entry in body["messages"]:
            for message in _spoken(entry):
                system += REMINDER.findall(message.text)
                said = Message(message.role, REMINDER.sub("", message.text).strip())
                if said.role == "system":
                    system.append(said.text)
                elif said.text:
                    messages.append(said)
        return Prompt(tuple(messages), tuple(system), streamed=bool(body.get("stream")))

    def stream(self, parts: list[Part], body: Json, number: int) -> Iterator[bytes]:
        yield _event("message_start", message=_message(body, number, [], stop=None))
        for index, part in enumerate(parts):
            yield from _block(index, part, number)
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(parts), "stop_sequence": None},
            usage=_usage(number),
        )
        yield _event("message_stop")

    def whole(self, parts: list[Part], body: Json, number: int) -> Json:
        blocks = [_content(part, _call_id(number, index)) for index, part in enumerate(parts)]
        return _message(body, number, blocks, stop=_stop_reason(parts))

    def failure(self, status: int, message: str) -> Json:
        kind = ERROR_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_lab"}


def _spoken(entry: Json) -> Iterator[Message]:
    content = entry["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in content:
        match block["type"]:
            case "text":
                yield Message(entry["role"], block["text"])
            case "tool_use":
                yield Message("call", f"{block['name']} {compact(block['input'])}")
            case "tool_result":
                yield Message("result", joined(block.get("content")))


def _block(index: int, part: Part, number: int) -> Iterator[bytes]:
    match part:
        case Text(pieces):
            yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for piece in pieces:
                delta = {"type": "text_delta", "text": piece}
                yield _event("content_block_delta", index=index, delta=delta)
        case Call(_, arguments):
            block = _content(part, _call_id(number, index)) | {"input": {}}
            yield _event("content_block_start", index=index, content_block=block)
            delta = {"type": "input_json_delta", "partial_json": compact(arguments)}
            yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _content(part: Part, call_id: str) -> Json:
    match part:
        case Text(pieces):
            return {"type": "text", "text": "".join(pieces)}
        case Call(name, arguments):
            return {
                "type": "tool_use",
                "id": call_id,
                "name": name,
                "input": dict(arguments),
            }


def _call_id(number: int, index: int) -> str:
    return f"toolu_lab{number:06}" + ("" if index == 0 else chr(ord("a") + index))


def _message(body: Json, number: int, content: list[Json], stop: str | None) -> Json:
    return {
        "id": f"msg_lab{number:06}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _usage(number),
    }


def _stop_reason(parts: list[Part]) -> str:
    return "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"


def _usage(number: int) -> Json:
    return {
        "input_tokens": INPUT_TOKENS + number,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
    }


def _event(name: str, **fields: object) -> bytes:
    return event({"type": name, **fields}, name)
