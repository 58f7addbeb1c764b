"""Owns how many large answers are made and sent at the same time: so that no reader fills the server's memory.

Most of them are read and sent in parts (``store_calls``), so that each takes a few megabytes, however long it is.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import TooMany

_VERBS: Final = (
    "approvals|attempts|attempts_in|children|delegations|events|free_sessions|history|late_reports|list_sessions"
    "|newest_events|newest_turns|observed_sessions|open_delegations|orphans|phase_history|trail|turns"
)
#: where whole records are asked for, as many as there are; the stream of events sends a page at a time
_LARGE_CALL: Final = re.compile(rf".*/v1/store/(?:{_VERBS})/?\Z")
_LARGE_PAGE: Final = re.compile(r".*/v1/(?:approvals|sessions(?:/[^/]+/(?:history|turns(?:/[^/]+)?))?)/?\Z")
#: for all callers, for those of one workspace, and for one of them
MOST: Final = 12
MOST_OF_WORKSPACE: Final = 8
MOST_OF_ONE: Final = 4
#: how many of one caller may wait for their turn, and for how long
MOST_WAITING: Final = 40
WAIT_SECONDS: Final = 20.0


def is_large(method: str, path: str) -> bool:
    """What is put in with POST at the place of a list is answered with one record."""
    return (_LARGE_PAGE if method == "GET" else _LARGE_CALL).match(path) is not None


class LargeAnswers:
    """An answer is under way from the look at the store until its last byte was taken."""

    def __init__(self) -> None:
        self._under_way: Counter[tuple[str, str]] = Counter()  #: by caller and workspace
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def one(self, caller: str, workspace: str) -> AsyncIterator[None]:
        """TooMany if too many of this caller wait already, or it takes too long."""
        await self._begin(caller, workspace)
        try:
            yield
        finally:
            async with self._changed:
                self._under_way[caller, workspace] -= 1
                self._under_way += Counter()  # forget whoever has none under way
                self._changed.notify_all()

    async def _begin(self, caller: str, workspace: str) -> None:
        if self._waiting[caller] >= MOST_WAITING:
            raise TooMany(
                f"more than {MOST_WAITING} large answers wait for this token: come back a little later"
            )
        self._waiting[caller] += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._has_room(caller, workspace))
                self._under_way[caller, workspace] += 1
        except TimeoutError:
            raise TooMany(
                "the server makes as many large answers as it can: come back a little later"
            ) from None
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()

    def _has_room(self, caller: str, workspace: str) -> bool:
        of_workspace = sum(n for (_, place), n in self._under_way.items() if place == workspace)
        return (
            self._under_way.total() < MOST
            and of_workspace < MOST_OF_WORKSPACE
            and self._under_way[caller, workspace] < MOST_OF_ONE
        )
