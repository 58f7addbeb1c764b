"""Owns what the server asks of a protocol: how its requests are read and how answers are written in it."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.agents.lab.model_servers.replies import Part

Json = dict[str, Any]

#: what every answer costs besides its own number, so that sums over several turns can be told apart
INPUT_TOKENS = 100
CACHED_TOKENS = 20
OUTPUT_TOKENS = 7


class Message(NamedTuple):
    """One entry of the conversation; ``role`` is user, assistant, call or result."""

    role: str
    text: str


@dataclass(frozen=True)
class Prompt:
    """A request as the model sees it."""

    messages: tuple[Message, ...]
    #: instructions, environment, reminders: all that neither the person nor the model said
    system: tuple[str, ...]
    #: not a step of the conversation but an errand of the program: a title, a choice of model
    errand: bool = False
    streamed: bool = True


class Protocol(ABC):
    session_header: str | None = None

    @abstractmethod
    def serves(self, path: str) -> bool:
        """Whether a POST to this path asks the model."""

    @abstractmethod
    def read(self, path: str, body: Json) -> Prompt: ...

    @abstractmethod
    def stream(self, parts: list[Part], body: Json, step: int) -> Iterator[bytes]:
        """The events of an answer, in order; the parts decide how fast, and whether it ends."""

    @abstractmethod
    def failure(self, status: int, message: str) -> Json: ...

    def whole(self, parts: list[Part], body: Json, step: int) -> Json:
        """The same answer in one piece, for clients that ask without streaming."""
        raise NotImplementedError(f"{type(self).__name__} is only spoken in streams here")

    def errand(self) -> str:
        """What the model answers to an errand."""
        return "an errand"


def event(data: Json | str, name: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def joined(content: str | list[Json] | None) -> str:
    """The text of a content that is either a text or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or "" for block in content or [])


def compact(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments))
