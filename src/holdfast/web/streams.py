"""Owns answers that take long: how many of them are open for whom, and when a stream ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.errors import TooMany

MEDIA_TYPE: Final = "text/event-stream"
#: between two signs of life; at each, the caller's token is checked again
SIGN_SECONDS: Final = 15.0
#: then the stream ends, and the caller asks again with the last id
LONGEST_SECONDS: Final = 600.0


class Streams:
    """Counts open streams; ``closing`` is set when the server stops."""

    def __init__(self, most: int = 500, most_each: int = 50) -> None:
        self.closing = False
        self._most = most
        self._most_each = most_each
        self._open: Counter[str] = Counter()

    def open(self, caller: str) -> None:
        if self._open.total() >= self._most or self._open[caller] >= self._most_each:
            raise TooMany("too many streams are open")
        self._open[caller] += 1

    def close(self, caller: str) -> None:
        self._open[caller] -= 1
        self._open += Counter()  # drops counts of zero

    @contextmanager
    def counted(self, caller: str) -> Iterator[None]:
        self.open(caller)
        try:
            yield
        finally:
            self.close(caller)


class TimedStream(StreamingResponse):
    """Also ends if the caller does not read what was sent."""

    def __init__(self, messages: AsyncIterator[str], streams: Streams, caller: str) -> None:
        super().__init__(messages, media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
        self._streams = streams
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.counted(self._caller), suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SECONDS + SIGN_SECONDS):
                await super().__call__(scope, receive, send)
