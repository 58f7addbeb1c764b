"""Owns cutting an agent's output into lines without ever holding one that is too long."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.domain.records import record

MAX_LINE = 8 * 1024 * 1024


@record
class Overlong:
    """Stands for a line that was passed over; ``size`` is without its newline."""

    size: int


class LineSplitter:
    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._begun = bytearray()
        self._dropped = 0

    def feed(self, block: bytes) -> Iterator[bytes | Overlong]:
        """The lines that this block ends."""
        *ended, begun = block.split(b"\n")
        for part in ended:
            self._add(part)
            yield self._take()
        self._add(begun)

    def rest(self) -> bytes | Overlong | None:
        """What came after the last newline; None if nothing did."""
        return self._take() if self._begun or self._dropped else None

    def _add(self, part: bytes) -> None:
        if not self._dropped and len(self._begun) + len(part) <= self._max_line:
            self._begun += part
        else:
            self._dropped += len(self._begun) + len(part)
            self._begun.clear()

    def _take(self) -> bytes | Overlong:
        line = Overlong(self._dropped) if self._dropped else bytes(self._begun)
        self._begun.clear()
        self._dropped = 0
        return line
