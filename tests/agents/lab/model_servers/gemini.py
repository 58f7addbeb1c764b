"""Owns the Gemini protocol, as the Gemini CLI speaks it."""

import json
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

#: how the texts begin that the CLI puts into the person's mouth
INJECTED = ("<session_context>", "This is the Gemini CLI")
STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}


class Gemini(Protocol):
    def serves(self, path: str) -> bool:
        return path.endswith((":generateContent", ":streamGenerateContent"))

    def read(self, path: str, body: Json) -> Prompt:
        messages: list[Message] = []
        system = [joined(body.get("systemInstruction", {}).get("parts"))]
        for content in body["contents"]:
            for message in _spoken(content):
                if message.text.startswith(INJECTED):
                    system.append(message.text)
                else:
                    messages.append(message)
        return Prompt(
            messages=tuple(messages),
            system=tuple(system),
            # the CLI asks for JSON when it chooses a model or the next speaker, never in the conversation
            errand="responseMimeType" in body.get("generationConfig", {}),
            streamed=path.endswith(":streamGenerateContent"),
        )

    def stream(self, parts: list[Part], body: Json, number: int) -> Iterator[bytes]:
        for part in parts:
            match part:
                case Text(pieces):
                    for piece in pieces:
                        yield event(_response([{"text": piece}]))
                case Call():
                    yield event(_response([_content(part)]))
        yield event(_ending([{"text": ""}], number))

    def whole(self, parts: list[Part], body: Json, number: int) -> Json:
        return _ending([_content(part) for part in parts], number)

    def failure(self, status: int, message: str) -> Json:
        return {"error": {"code": status, "message": message, "status": STATUSES.get(status, "UNKNOWN")}}

    def errand(self) -> str:
        choice = {"reasoning": "lab", "next_speaker": "user", "model_choice": "flash"}
        return json.dumps(choice | {"complexity_score": 1, "complexity_reasoning": "lab"})


def _spoken(content: Json) -> Iterator[Message]:
    role = "assistant" if content.get("role") == "model" else "user"
    for part in content["parts"]:
        match part:
            case {"functionCall": call}:
                yield Message("call", f"{call['name']} {compact(call.get('args', {}))}")
            case {"functionResponse": result}:
                yield Message("result", compact(result["response"]))
            case {"text": text}:
                yield Message(role, text)


def _content(part: Part) -> Json:
    match part:
        case Text(pieces):
            return {"text": "".join(pieces)}
        case Call(name, arguments):
            return {"functionCall": {"name": name, "args": dict(arguments)}}


def _response(parts: list[Json]) -> Json:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": "lab"}


def _ending(parts: list[Json], number: int) -> Json:
    response = _response(parts)
    response["candidates"][0]["finishReason"] = "STOP"
    return response | {"usageMetadata": _usage(number)}


def _usage(number: int) -> Json:
    return {
        "promptTokenCount": INPUT_TOKENS + number,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": INPUT_TOKENS + number + OUTPUT_TOKENS,
        "cachedContentTokenCount": CACHED_TOKENS,
    }
