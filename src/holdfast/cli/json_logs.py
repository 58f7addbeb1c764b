"""Owns the log as JSON: one object a line, for whoever collects them."""

from __future__ import annotations

import json
import logging

from holdfast.clock import SECOND, Instant, to_iso


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": to_iso(Instant(int(record.created * SECOND))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = getattr(record, "about", None)
        if isinstance(about, dict):
            line |= about
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Everything that is logged, and what the server is asked."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    logging.getLogger("holdfast").setLevel(logging.INFO)
