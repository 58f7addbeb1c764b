"""Owns marks of sessions whose provider rewrites its store: how many turns there were, and a digest of them.

What the provider itself takes away (undo, rewind, a compacted context) is seen as well as an edit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.domain.pointers import TranscriptMark
from holdfast.providers.contract import ArchivedTurn


def mark_turns(path: str, turns: Iterable[ArchivedTurn]) -> TranscriptMark | None:
    """None if there are none: such a session has nothing to go on with.

    Of a last turn that is not answered to its end only the request is marked: what was said may still grow.
    """
    known = list(turns)
    if not known:
        return None
    return TranscriptMark(path, len(known), _digest(known, is_open=not known[-1].complete), len(known))


def are_turns_intact(recorded: TranscriptMark, turns: Iterable[ArchivedTurn]) -> bool:
    known = list(islice(turns, recorded.size))
    if len(known) < recorded.size:
        return False
    # the two are digests of different things: a mark of an answer is never met by its request alone
    return recorded.digest in (_digest(known, is_open=False), _digest(known, is_open=True))


def _digest(turns: Sequence[ArchivedTurn], *, is_open: bool) -> str:
    hasher = hashlib.sha256()
    for number, turn in enumerate(turns, 1):
        is_request_alone = is_open and number == len(turns)
        marked = [turn.key, turn.prompt] if is_request_alone else [turn.key, turn.prompt, turn.response]
        hasher.update(json.dumps(marked).encode())
    return hasher.hexdigest()
