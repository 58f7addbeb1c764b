"""Owns the entry point; it imports nothing before it knows which command was called."""

from __future__ import annotations

import sys


def main() -> int:
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "hook" and not arguments[1].startswith("-"):
        from holdfast.hooks.main import main as answer_hook

        return answer_hook(arguments[1])
    try:
        from holdfast.cli.exit_codes import run
    except KeyboardInterrupt:
        return 130
    return run(arguments)
