"""Owns reading the usage in Claude's session files as they grow. Hooks import this: it stays light.

A message takes one line for each of its blocks, each with the usage of the whole message: the last line counts.
"""

from __future__ import annotations

import json
import os
import stat

from holdfast.domain.observed import Reading
from holdfast.providers.loose_json import as_count, as_object, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from holdfast.domain.redaction import Json

#: the model name of messages that the CLI wrote in the agent's place
SYNTHETIC = "<synthetic>"
#: bytes that are read at a time; the next reading continues behind them
MOST = 8 * 1024 * 1024
#: further bytes in which the end of a longer line is searched; no agent writes such lines, but a file may be sparse
LONGEST_LINE = 4 * MOST


def read_usage(path: str, offset: int = 0, counted: str | None = None, since: str = "") -> Reading | None:
    """The usage behind ``offset``; None if the file cannot be read.

    ``counted`` is the last message of the reading before: more of its lines may follow. ``since`` is
    a time as the file writes it: a fork's file begins with copies of messages that its parent paid for.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a hook's process
            return None
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        begin = offset if _begins_line(file, offset) else 0
        block = os.pread(file, MOST, begin)
        whole = block[: block.rfind(b"\n") + 1]
        is_complete = len(block) < MOST
        end = begin + len(whole) if whole or is_complete else _end_of_line(file, begin)
    except OSError:
        return None
    finally:
        os.close(file)
    replaced = begin != offset
    return Reading(
        start=offset,
        end=end,
        replaced=replaced,
        is_complete=is_complete,
        **_sums(_usages(whole.split(b"\n"), since), None if replaced else counted),
    )


def _begins_line(file: int, offset: int) -> bool:
    """Every reading ends at the end of a line: if no line begins here, the file was replaced."""
    return offset == 0 or os.pread(file, 1, offset - 1) == b"\n"


def _end_of_line(file: int, begin: int) -> int:
    """The end of a line that is too long to be read; ``begin`` if no end is found, because it is still being written."""
    for at in range(begin + MOST, begin + MOST + LONGEST_LINE, MOST):
        found = os.pread(file, MOST, at).find(b"\n")
        if found >= 0:
            return at + found + 1
    return begin


def _usages(lines: Iterable[bytes], since: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Message ids with the usage in each line; only lines that may have one are parsed."""
    for line in lines:
        if b'"usage"' not in line or b'"assistant"' not in line:
            continue
        try:
            entry = as_object(json.loads(line))
        except (ValueError, RecursionError):
            continue  # damaged, or only half written
        message = as_object(entry.get("message"))
        message_id, usage = as_text(message.get("id")), as_object(message.get("usage"))
        is_aside = entry.get("isSidechain") is True or message.get("model") == SYNTHETIC
        is_own = entry.get("type") == "assistant" and as_text(entry.get("timestamp")) >= since
        if is_own and not is_aside and message_id:
            yield message_id, usage


def _sums(usages: Iterable[tuple[str, Mapping[str, Json]]], counted: str | None) -> dict[str, Any]:
    """The figures of a ``Reading``."""
    taken = cached = given = 0
    context = None
    messages = {found: usage for found, usage in usages if found != counted}
    for usage in messages.values():
        fresh, read, written = (
            as_count(usage.get(kind))
            for kind in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
        taken += fresh + read + written
        cached += read
        given += as_count(usage.get("output_tokens"))
        # messages that were copied from a compacted session have no usage
        context = fresh + read + written or context
    return {
        "input_tokens": taken,
        "cached_input_tokens": cached,
        "output_tokens": given,
        "context_tokens": context,
        "last_message": next(reversed(messages), None),
    }
