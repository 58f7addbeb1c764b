"""Owns reading a session's row, and telling one that no Holdfast wrote.

SQLite keeps whatever it is given in any column, and a person may have been at the file: such a row
is named, and never trusted.
"""

from __future__ import annotations

import json
from types import NoneType

from holdfast.clock import Instant
from holdfast.domain.metadata import Metadata
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionError, SessionKind
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.errors import UnreadableSession
from holdfast.store.driver import Row

COLUMNS = """id, conversation_id, agent, kind, purpose, name, provider, phase, resume_ready, metadata,
    error_count, last_error, last_error_at, created_at, updated_at, finalized_at, summary,
    parent_session_id, input_tokens, cached_input_tokens, output_tokens, cost_usd"""

_KINDS = {kind.value: kind for kind in SessionKind}
_PHASES = {phase.value: phase for phase in Phase}
#: the end of the year 9999
_LAST_INSTANT = 253_402_300_799_999_999

_TEXT, _TEXT_OR_NONE = (str,), (str, NoneType)
_WHOLE, _WHOLE_OR_NONE, _NUMBER, _FLAG = (int,), (int, NoneType), (int, float), (int, bool)
_TYPES: tuple[tuple[type, ...], ...] = (
    _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT_OR_NONE, _TEXT_OR_NONE, _TEXT, _FLAG, _TEXT,
    _WHOLE, _TEXT_OR_NONE, _WHOLE_OR_NONE, _WHOLE, _WHOLE, _WHOLE_OR_NONE, _TEXT_OR_NONE,
    _TEXT_OR_NONE, _WHOLE, _WHOLE, _WHOLE, _NUMBER,
)  # fmt: skip
#: the combinations of types that were found good: there are few, and rows are many
_good_shapes: set[tuple[type, ...]] = set()

_decode = json.JSONDecoder().decode


def read_session(row: Row, where: str) -> Session:
    """Raises UnreadableSession."""
    try:
        shape = tuple(map(type, row))
        if shape not in _good_shapes:
            _check_types(shape)
        error = None if row[11] is None else SessionError(row[11], read_instant(row[12]))
        usage = Usage(row[18], row[19], row[20], row[21]) if row[18] or row[20] or row[21] else NO_USAGE
        return Session(
            row[0], row[1], row[2], _KINDS[row[3]], row[4], row[5], row[6], _PHASES[row[7]],
            _flag(row[8]), read_metadata(row[9]), row[10], error, read_instant(row[13]),
            read_instant(row[14]), None if row[15] is None else read_instant(row[15]), row[16], row[17],
            usage,
        )  # fmt: skip
    except KeyError as exc:
        raise UnreadableSession(where, str(row[0]), f"{exc.args[0][:40]!r} is unknown") from exc
    except (ValueError, RecursionError) as exc:
        raise UnreadableSession(where, str(row[0]), str(exc)) from exc


def _check_types(shape: tuple[type, ...]) -> None:
    names = COLUMNS.replace("\n", "").split(",")
    for name, found, allowed in zip(names, shape, _TYPES, strict=True):
        if found not in allowed:
            raise ValueError(f"{name.strip()} is of type {found.__name__}")
    _good_shapes.add(shape)


def read_metadata(text: str) -> Metadata:
    if text == "{}":
        return {}
    value = _decode(text)
    if type(value) is not dict:
        raise ValueError("its metadata is not a JSON object")
    return value


def read_instant(value: object) -> Instant:
    if type(value) is not int or not 0 <= value <= _LAST_INSTANT:
        raise ValueError(f"{str(value)[:40]!r} is not an instant")
    return Instant(value)


def _flag(value: int) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value} is neither true nor false")
    return bool(value)
