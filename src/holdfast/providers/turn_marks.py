"""Owns marks of sessions whose provider rewrites its store: how many turns there were, and a digest of them.

What the provider itself takes away (undo, rewind, a compacted context) is seen as well as an edit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice

from holdfast.domain.pointers import TranscriptMark
from holdfast.providers.contract import ArchivedTurn


def mark_turns(path: str, turns: Iterable[ArchivedTurn]) -> TranscriptMark | None:
    """None if there are none: such a session has nothing to go on with."""
    count, digest = _digest(turns)
    return TranscriptMark(path, count, digest, turns=count) if count else None


def are_turns_intact(recorded: TranscriptMark, turns: Iterable[ArchivedTurn]) -> bool:
    return _digest(islice(turns, recorded.size)) == (recorded.size, recorded.digest)


def _digest(turns: Iterable[ArchivedTurn]) -> tuple[int, str]:
    hasher, count = hashlib.sha256(), 0
    for turn in turns:
        hasher.update(json.dumps([turn.key, turn.prompt, turn.response]).encode())
        count += 1
    return count, hasher.hexdigest()
