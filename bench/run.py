"""Owns the way in: ``python bench/run.py``, from anywhere."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    # the folder above, so that `bench` and `tests` are packages
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.exit(import_module("bench.suite").main())
