"""Owns reading JSON of other programs: a value of an unexpected type reads as empty, never as an error.

Hooks import this: it stays light.
"""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.clock import Instant, from_datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.domain.redaction import Json

#: a larger number is not a count of tokens, and no database column would take it
_MOST = 2**53


def as_object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def as_text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else 0


def as_amount(value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 <= value <= _MOST else 0.0  # also for NaN: it compares false with everything


def as_instant(value: Json) -> Instant | None:
    """An ISO time, or milliseconds since 1970; None for anything else."""
    try:
        if isinstance(value, str):
            found = from_datetime(datetime.fromisoformat(value))
        else:
            found = from_datetime(datetime.fromtimestamp(as_count(value) / 1000, UTC))
    except (ValueError, OverflowError, OSError):
        return None
    return found if found > 0 else None


def joined_text(content: Json) -> str:
    """The text of a message: itself, or that of its blocks."""
    if isinstance(content, str):
        return content
    return "".join(as_text(as_object(block).get("text")) for block in as_list(content))
