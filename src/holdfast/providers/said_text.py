"""Owns the text that an agent says in pieces and that may be its answer: bounded, and joined once."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.providers.report import MAX_RESPONSE


@dataclass(slots=True)
class SaidText:
    _pieces: list[str] = field(default_factory=list)
    _size: int = 0

    def __bool__(self) -> bool:
        return self._size > 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        """One character more than is reported is kept, so that the report says that it was cut."""
        kept = text[: MAX_RESPONSE + 1 - self._size]
        if kept:
            self._pieces.append(kept)
            self._size += len(kept)
