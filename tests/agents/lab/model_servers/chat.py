"""Owns the OpenAI Chat Completions protocol, as opencode speaks it."""

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


class ChatCompletions(Protocol):
    session_header = "x-session-affinity"

    def serves(self, path: str) -> bool:
        return path == "/v1/chat/completions"

    def read(self, path: str, body: Json) -> Prompt:
        messages = [message for entry in body["messages"] for message in _spoken(entry)]
        return Prompt(
            messages=tuple(message for message in messages if message.role != "system"),
            system=tuple(message.text for message in messages if message.role == "system"),
            # the request for a title is the one that offers no tools
            errand=not body.get("tools"),
        )

    def stream(self, parts: list[Part], body: Json, number: int) -> Iterator[bytes]:
        yield _chunk(body, number, {"role": "assistant", "content": ""})
        for index, part in enumerate(parts):
            match part:
                case Text(pieces):
                    for piece in pieces:
                        yield _chunk(body, number, {"content": piece})
                case Call(name, arguments):
                    function = {"name": name, "arguments": compact(arguments)}
                    call = {
                        "index": index,
                        "id": f"call_lab{number:06}",
                        "type": "function",
                        "function": function,
                    }
                    yield _chunk(body, number, {"tool_calls": [call]})
        called = any(isinstance(part, Call) for part in parts)
        yield _chunk(body, number, {}, finish="tool_calls" if called else "stop")
        yield event("[DONE]")

    def failure(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": "lab_error"}}


def _spoken(entry: Json) -> Iterator[Message]:
    role = "result" if entry["role"] == "tool" else entry["role"]
    if text := joined(entry.get("content")):
        yield Message(role, text)
    for call in entry.get("tool_calls") or []:
        yield Message("call", f"{call['function']['name']} {call['function']['arguments']}")


def _chunk(body: Json, number: int, delta: Json, finish: str | None = None) -> bytes:
    chunk = {
        "id": f"chatcmpl-lab{number:06}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return event(chunk | {"usage": _usage(number)} if finish else chunk)


def _usage(number: int) -> Json:
    return {
        "prompt_tokens": INPUT_TOKENS + number,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + number + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }
