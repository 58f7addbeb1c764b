"""Owns the launch barrier: a process that waits until it is on record, and then becomes the agent.

It is run as a program, with the number of a socket and the agent's command. If Holdfast ends before it has sent
``GO``, the socket closes and nothing is run. A shell cannot do this: some shells drop environment variables whose
names they cannot spell.
"""

from __future__ import annotations

import os
import signal
import sys

GO = b"g"


def main() -> None:
    # a background job of a shell ignores SIGINT, and the agent would inherit that; SIGINT is how agents are stopped gently
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel, argv = int(sys.argv[1]), sys.argv[2:]
    if os.read(channel, 1) != GO:
        os._exit(0)
    os.set_inheritable(channel, False)  # when it closes, Holdfast knows that the agent runs
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - without a shell is what is meant
    except OSError as exc:
        os.write(channel, str(exc.errno).encode())
    os._exit(127)


if __name__ == "__main__":
    main()
