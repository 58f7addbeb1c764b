"""Owns the installed command on a machine whose clock is wrong: ``python shifted.py SECONDS COMMAND…``."""

import sys
import time

from holdfast.cli.main import main


def shift(seconds: float) -> None:
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + round(seconds * 1e9)


if __name__ == "__main__":
    shift(float(sys.argv.pop(1)))
    sys.exit(main())
