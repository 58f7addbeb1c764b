"""Owns delivering a notice to a command or a webhook: in the background, with a limited number of tries and of seconds.

Runs as a program that reads its job from standard input. The program ends as soon as it has read the job; the
processes that it leaves behind deliver the notice and end within their time limit. It imports nothing else of
the package, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PAUSES = (1.0, 4.0)  #: between the tries: there is one try more than there are pauses
_TRY_SECONDS = 10
_SECONDS = 40  #: for all tries together
_LONGEST_LOG = 1_000_000
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429})


class Undelivered(Exception):
    """The notice did not arrive; ``is_final`` if another try cannot help."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(problem)
        self.is_final = is_final


def main() -> None:
    job = json.load(sys.stdin)
    for name, send in _WAYS.items():
        if job[name] and os.fork() == 0:
            _deliver(job, name, send)
    os._exit(0)


def _deliver(job: dict[str, Any], way: str, send: Callable[[Any, bytes], None]) -> NoReturn:
    """Runs in a process of its own, and ends that process whatever happens."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_SECONDS)
    try:
        _try(lambda: send(job[way], json.dumps(job["notice"]).encode()))
    except Exception as exc:  # noqa: BLE001 - nobody else would see the problem
        signal.alarm(0)
        with contextlib.suppress(OSError):
            _write_log(Path(job["log"]), job["notice"], way, str(exc) or type(exc).__name__)
    finally:
        os._exit(0)


def _try(send: Callable[[], None]) -> None:
    for pause in _PAUSES:
        try:
            return send()
        except Undelivered as exc:
            if exc.is_final:
                raise
            time.sleep(pause)
    return send()


def _run(words: list[str], payload: bytes) -> None:
    import subprocess

    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as exc:
        raise Undelivered(f"{words[0]}: {exc.strerror}", is_final=True) from None
    try:
        process.communicate(payload, timeout=_TRY_SECONDS)
    except subprocess.TimeoutExpired:
        raise Undelivered(f"{words[0]}: did not end within {_TRY_SECONDS} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise Undelivered(f"{words[0]}: ended with {process.returncode}")


def _post(url: str, payload: bytes) -> None:
    """No message names the URL, which may hold a secret."""
    from http.client import HTTPException
    from urllib import error, request

    class NoRedirects(request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """A redirected request would arrive without its content."""

    headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
    asked = request.Request(url, data=payload, headers=headers, method="POST")  # noqa: S310 - http or https, as configured
    try:
        request.build_opener(NoRedirects).open(asked, timeout=_TRY_SECONDS).close()
    except error.HTTPError as exc:
        again = exc.code >= 500 or exc.code in _WORTH_ANOTHER_TRY
        raise Undelivered(f"the server answered {exc.code}", is_final=not again) from None
    except error.URLError as exc:
        raise Undelivered(f"the server cannot be reached: {exc.reason}") from None
    except TimeoutError:
        raise Undelivered(f"the server did not answer within {_TRY_SECONDS} s") from None
    except (OSError, HTTPException) as exc:
        raise Undelivered(f"the connection broke: {type(exc).__name__}") from None


def _too_long(*_: object) -> NoReturn:
    raise Undelivered(f"not delivered within {_SECONDS} s", is_final=True)


def _write_log(path: Path, notice: dict[str, Any], way: str, problem: str) -> None:
    told = {name: notice[name] for name in ("at", "event", "session_id", "turn")}
    line = json.dumps({**told, "to": way, "problem": problem})
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LONGEST_LOG:
            path.replace(path.with_name(f"{path.name}.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a") as file:
        file.write(f"{line}\n")


_WAYS: dict[str, Callable[[Any, bytes], None]] = {"command": _run, "webhook": _post}

if __name__ == "__main__":
    main()
