"""Owns the gate: holds an agent's process back until it is on record, then becomes the agent.

Run as a program, with the number of a socket and the agent's command. When Holdfast goes away before it
has said go, the socket ends and nothing is run. A shell would not do: some drop environment variables
whose names they cannot spell.
"""

from __future__ import annotations

import os
import signal
import sys

GO = b"g"


def main() -> None:
    # a shell's background job ignores it, and so would the agent: it is how it is stopped gently
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel, argv = int(sys.argv[1]), sys.argv[2:]
    if os.read(channel, 1) != GO:
        os._exit(0)
    os.set_inheritable(channel, False)  # its end tells Holdfast that the agent runs
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - without a shell is what is meant
    except OSError as exc:
        os.write(channel, str(exc.errno).encode())
    os._exit(127)


if __name__ == "__main__":
    main()
