"""Owns a session as one file: its forms, Markdown and JSON; both are made as they are read, and never held whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum

from holdfast.clock import Instant, to_datetime
from holdfast.domain.turns import Attempt
from holdfast.engine.documents import (
    approval_document,
    attempt_document,
    conversation_document,
    event_document,
    failure_document,
    history_turn_document,
    session_document,
    totals_document,
)
from holdfast.engine.reading import (
    Answers,
    AttemptBegins,
    CallEnds,
    Notes,
    Piece,
    Reader,
    ReadTurn,
    Says,
    TurnBegins,
    TurnEnds,
)
from holdfast.engine.session_log import AuditEntry
from holdfast.errors import ConfigError
from holdfast.escape import escape_json, lines, one_line
from holdfast.store.contract import Store

EXPORT_SCHEMA_VERSION = 1
_LONGEST = 300  #: characters of something that is folded to a line
_PAGE = 500
_BACKTICKS = re.compile("`+")
#: what a viewer of Markdown may take for HTML, or for a picture to load
_ACTIVE = re.compile(r"<[A-Za-z/!?]|!\[")


class ExportForm(StrEnum):
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


def export(store: Store, session_id: str, form: ExportForm) -> Iterator[str]:
    """The pieces of the file, in order. Raises ConfigError for HTML if the extra ``export`` is not installed."""
    reader = Reader(store, session_id)
    match form:
        case ExportForm.MARKDOWN:
            return _markdown(reader)
        case ExportForm.JSON:
            return _json(reader)
        case ExportForm.HTML:
            try:
                from holdfast.engine.html_page import html_page
            except ImportError as exc:
                raise ConfigError(
                    "export", "HTML needs an extra: pip install 'holdfast-sessions[export]'"
                ) from exc
            return html_page(reader, utc)


def utc(instant: Instant) -> str:
    """A moment in a file that others read elsewhere."""
    return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC"


# --- Markdown: every foreign text is a quotation or code, so that it cannot end early, nor look like a line of ours ---


def _markdown(reader: Reader) -> Iterator[str]:
    yield f"# Session {_code(reader.session.name or reader.session.id)}\n\n"
    for name, value in reader.facts(utc):
        yield f"- {name}: {_code(value)}\n"
    was_item = False
    for piece in reader.walk():
        is_item = isinstance(piece, CallEnds)
        text = _markdown_piece(piece)
        if text:
            gap = "" if is_item and was_item else "\n"
            yield f"{gap}{text}\n"
            was_item = is_item


def _markdown_piece(piece: Piece) -> str:
    match piece:
        case TurnBegins(read):
            marks = "".join(f" · {_code(mark)}" for mark in read.marks)
            return f"## Turn {read.turn.seq} · {utc(read.turn.at)}{marks}\n\n**Prompt**\n\n{_quote(read.turn.prompt)}"
        case Says(text):
            return f"**Agent**\n\n{_quote(text)}"
        case Answers(text):
            return f"**Answer**\n\n{_quote(text)}"
        case CallEnds(call):
            note = f": {_code(piece.note)}" if piece.note else ""
            return f"- {piece.mark} {_code(call.words)}{note}"
        case Notes(text):
            return f"Note: {_code(text)}"
        case AttemptBegins():
            return f"Note: {_code(piece.words)}"
        case TurnEnds():
            said = [_code(words) for words in (piece.words(utc), piece.spent) if words]
            return f"End: {', '.join(said)}" if said else ""
        case AuditEntry():
            by = "" if piece.by is None else f" (by {piece.by})"
            return f"{utc(piece.at)}: {_code(f'{piece.kind}: {piece.words}{by}')}"


def _quote(text: str) -> str:
    """As Markdown. A text with HTML or with a picture is shown as code: nothing in it is run or loaded."""
    shown = list(lines(text))
    if _ACTIVE.search(text):
        fence = "`" * max(3, _longest_run(text) + 1)
        shown = [f"{fence}text", *shown, fence]
    return "\n".join(f"> {line}".rstrip() for line in shown)


def _longest_run(text: str) -> int:
    """Of backticks."""
    return max(map(len, _BACKTICKS.findall(text)), default=0)


def _code(text: str) -> str:
    """One line as code, whatever backticks are in it."""
    line = one_line(text, _LONGEST) or " "
    fence = "`" * (_longest_run(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


# --- JSON: everything on record, one turn after the other ---


def _json(reader: Reader) -> Iterator[str]:
    store, session = reader.store, reader.session
    head = {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "session": session_document(
            session, store.session_state(session.id), store.phase_history(session.id)
        ),
        "conversation": conversation_document(reader.conversation()),
        "provider_sessions": [totals_document(one) for one in store.provider_sessions(session.id)],
    }
    yield _text(head).removesuffix("}") + ',\n"turns": ['
    comma = "\n"
    for read in reader.turns():
        yield comma
        yield from _json_turn(reader, read)
        comma = ",\n"
    yield '\n],\n"approvals": ['
    comma = "\n"
    now, last = store.now(), None
    while page := store.approvals(session_id=session.id, open_only=False, after=last, limit=_PAGE):
        for approval in page:
            yield comma + _text(approval_document(approval, now))
            comma = ",\n"
        last = page[-1].id
    yield "\n]}\n"


def _json_turn(reader: Reader, read: ReadTurn) -> Iterator[str]:
    turn = read.turn
    document = {
        **history_turn_document(turn),
        "conversation_id": read.conversation_id,
        "is_inherited": read.is_inherited,
        "is_dropped": read.is_dropped,
        "is_edited": turn.is_edited,
        "failure": failure_document(turn.failure),
        # in the history document this is how many there are
        "attempts": [_attempt(attempt) for attempt in reader.attempts(read)],
    }
    yield _text(document).removesuffix("}") + ', "events": ['
    comma = ""
    for attempt, event in reader.events(read):
        yield comma + _text(event_document(attempt, event))
        comma = ", "
    yield "]}"


def _attempt(attempt: Attempt) -> dict[str, object]:
    return {
        **attempt_document(attempt),
        "model": attempt.model,
        "work_dir": attempt.work_dir,
        "usage": asdict(attempt.usage),
    }


def _text(document: dict[str, object]) -> str:
    return escape_json(json.dumps(document, ensure_ascii=False, default=str))
