"""Owns the entry point; it imports nothing before it knows which command was called."""

from __future__ import annotations

import sys


def main() -> int:
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "hook" and not arguments[1].startswith("-"):
        from holdfast.hooks.main import main as answer_hook

        return answer_hook(arguments[1])
    prepare_streams()
    try:
        from holdfast.cli.light import answer

        code = answer(arguments)
        if code is not None:
            return code
        from holdfast.cli.exit_codes import run
    except KeyboardInterrupt:
        return 130
    return run(arguments)


def prepare_streams() -> None:
    """Replaces characters that the locale cannot encode, so that writing never fails."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
