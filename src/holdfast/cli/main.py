"""Owns the entry point: nothing is imported here before it is known what was asked for."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from holdfast.cli.endings import run
    except KeyboardInterrupt:
        return 130
    return run(sys.argv[1:])
