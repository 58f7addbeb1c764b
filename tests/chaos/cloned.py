"""Owns the installed command on a machine made from another one's image: ``python cloned.py BOOT COMMAND…``.

It shares every id on the disk and the name, as its data directory is a copy; only its boot is its own.
"""

import sys
import tempfile
from pathlib import Path

from holdfast.cli.main import main
from holdfast.processes import owners


def boot(name: str) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="holdfast-boot-", delete=False) as file:
        file.write(name)
    owners._BOOT_ID = file.name


if __name__ == "__main__":
    boot(sys.argv.pop(1))
    try:
        code = main()
    finally:
        Path(owners._BOOT_ID).unlink()
    sys.exit(code)
