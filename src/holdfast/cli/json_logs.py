"""Owns the log as JSON: one object a line, for whoever collects them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from holdfast.cli.command import Invocation
from holdfast.clock import SECOND, Instant, to_iso
from holdfast.domain.redaction import redact_text
from holdfast.engine.running.log_subject import log_subject
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast")


class JsonLines(logging.Formatter):
    """What the thread works for, and what the line itself is about, are fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": to_iso(Instant(int(record.created * SECOND))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **log_subject(),
        }
        about = getattr(record, "about", None)
        if isinstance(about, dict):
            line |= about
        if record.exc_info is not None:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


@contextmanager
def logged_as_json(run: Invocation) -> Iterator[None]:
    """Everything that is logged in the block; what it fails with is the last line."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    log.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_lost_thread
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as exc:
        _log_failure(exc)
        if run.json:
            raise
        raise click.exceptions.Exit(getattr(exc, "exit_code", 1)) from exc


def _log_failure(error: Exception) -> None:
    if isinstance(error, HoldfastError):
        log.error("%s", error.message, extra={"about": {"code": error.code}})
    else:
        log.error("internal error: %r", error, exc_info=error, extra={"about": {"code": "internal_error"}})


def _log_lost_thread(lost: threading.ExceptHookArgs) -> None:
    log.error("a thread was lost: %r", lost.exc_value, exc_info=lost.exc_value)
