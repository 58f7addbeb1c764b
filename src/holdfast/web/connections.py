"""Owns the connections to the server: who has one and asks nothing does not keep it for long, nor from others."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: for a whole head, from the connection's beginning or the end of the answer before
HEAD_SECONDS: Final = 10.0
#: for whoever does not take an answer that is there
UNREAD_SECONDS: Final = 30.0
#: more are not kept open: with the files of a store, they fit into the 1024 descriptors that a process usually has
MOST_CONNECTIONS: Final = 800


class Connection(H11Protocol):
    """Is silent while no request of it is being answered."""

    silent_since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        self._watch_silence()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_silence()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_deadline()
        self._forget_unread()

    def pause_writing(self) -> None:
        """Closing would wait until the rest is taken: it is thrown away."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()

    @property
    def is_silent(self) -> bool:
        # uvicorn declares that there is always one
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _watch_silence(self) -> None:
        if not self.is_silent or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self.silent_since = self.loop.time()
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _make_room(self) -> None:
        """Whoever has said nothing for the longest goes: those who ask have done so by then."""
        silent = [
            other
            for other in self.connections
            if isinstance(other, Connection) and other.is_silent and not other.transport.is_closing()
        ]
        if silent:
            min(silent, key=lambda other: other.silent_since).transport.close()
