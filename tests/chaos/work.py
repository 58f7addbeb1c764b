"""Owns the work of a turn as a tool does it: a while of it, marked at both ends, and alone in its session.

A program of its own, and quick to start. The lock tells whether another tool of the session is at work: the
kernel lets go of it however this process ends.
"""

import fcntl
import os
import sys
import time

MARKER = "HOLDFAST_ATTEMPT"


def main(folder: str, session: str, turn: str, seconds: str) -> None:
    marker = os.environ[MARKER]
    lock = os.open(f"{folder}/{session}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    marks = os.open(f"{folder}/{session}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(lock, f"{marker}\n".encode(), 0)
        begun, besides = "begin", ""
    except BlockingIOError:
        begun, besides = "beside", os.pread(lock, 400, 0).decode().partition("\n")[0]
    os.write(marks, f"{begun} {turn} {marker} {besides}\n".encode())
    time.sleep(float(seconds))
    os.write(marks, f"end {turn} {marker}\n".encode())
    print(f"answered:{marker}")


if __name__ == "__main__":
    main(*sys.argv[1:])
