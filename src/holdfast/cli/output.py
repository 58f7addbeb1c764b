"""Owns standard output: a person's terminal, a pipe, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from holdfast.cli import report
from holdfast.cli.harmless import harmless_json, one_line, visible

SCHEMA_VERSION = 1


def prepare() -> None:
    """No character ever makes writing fail, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def document(content: Mapping[str, object]) -> None:
    """One JSON object: on one line, or indented for a person who looks at it."""
    whole = {"schema_version": SCHEMA_VERSION, **content}
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(whole, ensure_ascii=not utf8, indent=2 if is_terminal() else None, default=str)
    _write("\n".join(map(harmless_json, text.split("\n"))))


def record(content: Mapping[str, object]) -> None:
    """One JSON object on one line, at once: someone is following."""
    _write(harmless_json(json.dumps({"schema_version": SCHEMA_VERSION, **content}, default=str)))
    flush()


def flush() -> None:
    """Let whoever follows see what was written so far."""
    if sys.stdout is not None:
        sys.stdout.flush()


def line(*fields: object) -> None:
    """For a pipe: the fields on one line with tabs between them, a dash for an empty one."""
    _write("\t".join(one_line(field) or "-" for field in fields))


def say(sentence: str) -> None:
    _write(one_line(sentence))


def text(content: str) -> None:
    """Text of several lines, as it is but for what could do harm on a terminal."""
    for part in content.split("\n"):
        _write(visible(part))


def blocks(content: Sequence[report.Block]) -> None:
    if is_terminal():
        from holdfast.cli import screen  # rich is for terminals only

        screen.show(content)
    else:
        _write(report.plain(content).rstrip("\n"))


def _write(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.write(f"{text}\n")
