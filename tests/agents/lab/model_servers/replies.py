"""Owns what a test can make a model do: say something, call a tool, fail, fall silent."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: no reply keeps a connection longer than this, whatever the test forgets
LIMIT_SECONDS = 100.0


class StreamCut(Exception):
    """The connection is dropped here, in the middle of the answer."""


@dataclass(frozen=True)
class Text:
    """A text that arrives in pieces; asking for the next piece may take time, or raise ``StreamCut``."""

    pieces: Iterable[str]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


Part = Text | Call


@dataclass(frozen=True)
class Say:
    text: str

    def parts(self) -> list[Part]:
        return [Text([self.text])]


@dataclass(frozen=True)
class CallTool:
    name: str
    arguments: Mapping[str, Any]

    def parts(self) -> list[Part]:
        return [Call(self.name, self.arguments)]


@dataclass(frozen=True)
class Together:
    """Several answers in one message."""

    answers: tuple[Say | CallTool, ...]

    def parts(self) -> list[Part]:
        return [part for answer in self.answers for part in answer.parts()]


@dataclass(frozen=True)
class SlowText:
    """One piece after the other, with a pause before each but the first."""

    pieces: tuple[str, ...]
    pause: float

    def parts(self) -> list[Part]:
        return [Text(self._paced())]

    def _paced(self) -> Iterator[str]:
        for number, piece in enumerate(self.pieces):
            if number:
                time.sleep(self.pause)
            yield piece


@dataclass(frozen=True)
class CutStream:
    """The connection breaks after some text."""

    after: str = "partial"

    def parts(self) -> list[Part]:
        return [Text(self._broken())]

    def _broken(self) -> Iterator[str]:
        yield self.after
        raise StreamCut


@dataclass(frozen=True)
class Hang:
    """Silence after some text, until ``release()`` or for ``seconds``; then the answer ends in order."""

    after: str = "partial"
    seconds: float = LIMIT_SECONDS
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def parts(self) -> list[Part]:
        return [Text(self._silent())]

    def await_reached(self) -> None:
        """Return when the client has been sent the text and waits for more."""
        came = self.reached.wait(LIMIT_SECONDS)
        assert came, f"no client came to wait for this reply in {LIMIT_SECONDS:.0f} s"

    def release(self) -> None:
        self.released.set()

    def _silent(self) -> Iterator[str]:
        yield self.after
        self.reached.set()
        self.released.wait(self.seconds)


@dataclass(frozen=True)
class Silence(Hang):
    """Not one byte, not even a header, until ``release()`` or for ``seconds``; then the connection is dropped."""

    def keep(self) -> None:
        self.reached.set()
        self.released.wait(self.seconds)


@dataclass(frozen=True)
class EmptyStream:
    """HTTP 200 and not one event."""


@dataclass(frozen=True)
class Fail:
    """An HTTP error; without a ``body`` it says ``message`` in the words of the protocol."""

    status: int
    message: str = "the laboratory refuses"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


Answer = Say | CallTool | Together | SlowText | CutStream | Hang
Reply = Answer | EmptyStream | Fail
