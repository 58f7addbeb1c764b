"""Owns a process that has loaded the command, and forks for each run of it: a run costs a third of the CPU time.

Each run is a real process with its own arguments, environment, directory, standard streams and end. What only a start
from nothing can show (which modules a command imports, what Python reads from its environment) is tested by the tests
that start the installed command: every example of the help, every page, and whatever runs in the background.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import IO, Any

#: variables that Python reads when it starts: a process serves the runs that have the same
AT_START = ("LANG", "LC_", "PYTHON", "TZ")
#: a run that takes longer hangs
LIMIT_SECONDS = 60.0
#: for the process to see that nobody can ask any more
END_SECONDS = 10.0
#: slow to load, and not needed by a command that ends by itself
LEFT_OUT = ("holdfast.web", "holdfast.testing", "holdfast.providers.scripted_agent")
PROGRAM = str(Path(sys.executable).with_name("holdfast"))


class Loaded:
    """The process; it ends with the one that started it, if not before."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._at_start = at_start(environ)
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            # pipes, as its forks have: Python asks at its start whether its streams can be rewound
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], env=dict(environ), pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

    def end(self) -> None:
        self._control.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()  # not read to their end: whoever waits for a run that does not end holds them too
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # a fork of the test holds the other end of the control socket
            self._process.kill()
            self._process.wait()

    def run(
        self,
        arguments: Sequence[str],
        stdin: bytes,
        environ: Mapping[str, str],
        cwd: Path | None,
        seconds: float = LIMIT_SECONDS,
    ) -> subprocess.CompletedProcess[bytes]:
        """To its end. Raises ``TimeoutExpired`` after so many seconds; the run is killed then."""
        assert at_start(environ) == self._at_start
        request = {"arguments": arguments, "environ": dict(environ), "cwd": str(cwd or Path.cwd())}
        with ExitStack() as opened:
            asked = opened.enter_context(tempfile.TemporaryFile())
            asked.write(json.dumps(request).encode())
            asked.seek(0)
            pipes = [_pipe(opened) for _ in range(4)]
            (its_in, our_in), (our_out, its_out), (our_err, its_err), (our_end, its_end) = pipes
            its = [asked, its_in, its_out, its_err, its_end]
            with self._asking:
                socket.send_fds(self._control, [b"r"], [file.fileno() for file in its])
            for file in its:
                file.close()
            said: dict[str, bytes] = {}
            threads = [
                threading.Thread(target=_write, args=(our_in, stdin)),
                threading.Thread(target=_read, args=(our_out, said, "out")),
                threading.Thread(target=_read, args=(our_err, said, "err")),
            ]
            for thread in threads:
                thread.start()
            code = _await_end(our_end, arguments, seconds)
            for thread in threads:
                thread.join()
        return subprocess.CompletedProcess([PROGRAM, *arguments], code, said["out"], said["err"])


def loaded(environ: Mapping[str, str]) -> Loaded:
    """The process for all runs with the same variables at the start; made for the first one."""
    return _loaded(frozenset(at_start(environ).items()))


@cache
def _loaded(at_start: frozenset[tuple[str, str]]) -> Loaded:
    made = Loaded({"PATH": os.environ["PATH"], **dict(at_start)})
    atexit.register(made.end)
    return made


def at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(AT_START)}


def _pipe(opened: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return opened.enter_context(os.fdopen(reading, "rb", 0)), opened.enter_context(
        os.fdopen(writing, "wb", 0)
    )


def _write(file: IO[bytes], data: bytes) -> None:
    try:
        while data:
            data = data[file.write(data) :]
    except BrokenPipeError:
        pass  # whoever does not read it does not need it
    file.close()


def _read(file: IO[bytes], said: dict[str, bytes], name: str) -> None:
    said[name] = file.read()


def _await_end(file: IO[bytes], arguments: Sequence[str], seconds: float) -> int:
    """Its exit code; negative if a signal ended it."""
    lines, deadline = b"", time.monotonic() + seconds
    while lines.count(b"\n") < 2:
        if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(int(lines), signal.SIGKILL)
            raise subprocess.TimeoutExpired([PROGRAM, *arguments], seconds)
        part = file.read(100)
        assert part, "the process that has loaded the command is gone"
        lines += part
    return int(lines.split()[1])


# --- the process ------------------------------------------------------------------------------------


def serve(control: socket.socket) -> int:
    """Load everything, and fork for each request until nobody can ask any more; a fork returns its exit code."""
    from holdfast.cli.main import main

    _load()
    gc.freeze()  # so that no fork touches, and copies, what they share
    while True:
        try:
            word, files, _, _ = socket.recv_fds(control, 1, 5)
        except KeyboardInterrupt:  # Ctrl-C is for the tests
            return 0
        if not word:
            return 0
        _reap()
        if os.fork() == 0:
            control.close()
            asked, *streams, end = files
            _fork_run(end, [asked, *streams])
            _become(asked, streams)
            return main()
        for file in files:
            os.close(file)


def _load() -> None:
    import holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _fork_run(end: int, files: list[int]) -> None:
    """Return in the run only. Its parent waits for the run, tells of its end, and ends."""
    pid = os.fork()
    if pid == 0:
        os.close(end)
        return
    for file in files:
        os.close(file)
    os.write(end, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(end, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(asked: int, streams: list[int]) -> None:
    with os.fdopen(asked, encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    sys.argv = [PROGRAM, *request["arguments"]]


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # there is none


if __name__ == "__main__":
    sys.path[0] = str(Path(PROGRAM).parent)
    with closing(socket.socket(fileno=int(sys.argv[1]))) as told:
        code = serve(told)
    sys.exit(code)
