"""Owns the OpenAI Responses protocol, as Codex speaks it."""

from collections.abc import Iterable, Iterator

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

#: how the texts begin that Codex puts into the person's mouth
INJECTED = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<turn_aborted>")


class OpenAIResponses(Protocol):
    session_header = "session-id"

    def serves(self, path: str) -> bool:
        return path == "/v1/responses"

    def read(self, path: str, body: Json) -> Prompt:
        messages: list[Message] = []
        system = [body.get("instructions") or ""]
        for item in body["input"]:
            message = _spoken(item)
            if message is None:
                continue
            if message.role in ("developer", "system") or message.text.startswith(INJECTED):
                system.append(message.text)
            else:
                messages.append(message)
        return Prompt(tuple(messages), tuple(system))

    def stream(self, parts: list[Part], body: Json, number: int) -> Iterator[bytes]:
        response = {"id": f"resp_lab{number:06}", "object": "response", "model": body["model"], "output": []}
        yield _event("response.created", response=response | {"status": "in_progress"})
        for index, part in enumerate(parts):
            yield from _item(index, part, number)
        yield _event(
            "response.completed", response=response | {"status": "completed", "usage": _usage(number)}
        )

    def failure(self, status: int, message: str) -> Json:
        code = "rate_limit_exceeded" if status == 429 else None
        return {"error": {"message": message, "type": "lab_error", "code": code}}


def _spoken(item: Json) -> Message | None:
    match item.get("type", "message"):
        case "message":
            return Message(item["role"], joined(item["content"]))
        case "function_call":
            return Message("call", f"{item['name']} {item['arguments']}")
        case "function_call_output":
            return Message("result", joined(item["output"]))
    return None


def _item(index: int, part: Part, number: int) -> Iterator[bytes]:
    match part:
        case Text(pieces):
            yield from _message(index, pieces, f"msg_lab{number:06}")
        case Call(name, arguments):
            call = {
                "type": "function_call",
                "id": f"fc_lab{number:06}",
                "call_id": f"call_lab{number:06}",
                "name": name,
                "arguments": compact(arguments),
            }
            yield _event("response.output_item.added", output_index=index, item=call)
            yield _event("response.output_item.done", output_index=index, item=call)


def _message(index: int, pieces: Iterable[str], id: str) -> Iterator[bytes]:
    message: Json = {"type": "message", "id": id, "role": "assistant", "content": []}
    yield _event("response.output_item.added", output_index=index, item=message)
    said = ""
    for piece in pieces:
        said += piece
        yield _event(
            "response.output_text.delta", item_id=id, output_index=index, content_index=0, delta=piece
        )
    content = [{"type": "output_text", "text": said, "annotations": []}]
    yield _event("response.output_item.done", output_index=index, item=message | {"content": content})


def _usage(number: int) -> Json:
    return {
        "input_tokens": INPUT_TOKENS + number,
        "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + number + OUTPUT_TOKENS,
    }


def _event(name: str, **fields: object) -> bytes:
    return event({"type": name, **fields}, name)
