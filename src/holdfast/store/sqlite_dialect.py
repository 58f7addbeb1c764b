"""Owns how a SQLite file of ours is marked, and how the statements of the store are said to it."""

from __future__ import annotations

#: marks a file as Holdfast's: "Hold"
APPLICATION_ID = 0x486F6C64


class _Dialect(dict[str, str]):
    """Each statement as SQLite says it. It locks the whole database for a writer: row locks have nothing to add."""

    def __missing__(self, sql: str) -> str:
        self[sql] = said = sql.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", "")
        return said


SAID = _Dialect()
