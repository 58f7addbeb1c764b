"""Owns sending a process that takes the spool to its store, apart from the agent, and not with every hook."""

from __future__ import annotations

import os
import sys

from holdfast.clock import SECOND, system_clock

#: whoever is sent looks once more after this time: nobody else is sent meanwhile
AGAIN_SECONDS = 5
_SENT = "sent"
#: a hook may run in a stranger's checkout: nothing of it may be imported
_ELSEWHERE = 'cd / && exec "$0" "$@"'
#: this package from where it is, everything else as the environment of the interpreter has it
_PROGRAM = """
import sys
root, directory = sys.argv[1:]
sys.path.insert(0, root)
import holdfast
sys.path.append(sys.path.pop(0))
from holdfast.engine.default import carry_spool
carry_spool(directory)
"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def send_carrier(spool: str, directory: str) -> None:
    """It outlives the hook and says nothing; ``directory`` is where the hook's settings were looked for."""
    mark = f"{spool}/{_SENT}"
    try:
        sent_at = os.stat(mark).st_mtime_ns // 1000
    except FileNotFoundError:
        sent_at = 0
    if 0 <= system_clock() - sent_at < AGAIN_SECONDS * SECOND:
        return
    with open(mark, "w"):
        pass
    os.utime(mark)
    nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    program = [sys.executable, "-I", "-c", _PROGRAM, _ROOT, directory]
    os.posix_spawn(
        "/bin/sh", ["sh", "-c", _ELSEWHERE, *program], os.environ, file_actions=nothing, setsid=True
    )
