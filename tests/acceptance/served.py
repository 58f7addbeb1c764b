"""Owns a real server process of the installed command."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import IO, Any
from urllib.parse import urlsplit

from tests.acceptance.command import HOLDFAST


@contextmanager
def server(*arguments: str, stderr: IO[str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, and its process, which is ended by SIGTERM if it still runs."""
    process = subprocess.Popen(
        [HOLDFAST, "serve", "--port", "0", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def ask(
    url: str,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[HTTPResponse, Any]:
    """The response and its JSON. A body is JSON unless its headers say otherwise."""
    kind = {} if body is None else {"Content-Type": "application/json"}
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.request(method, path, body, {**kind, **(headers or {})})
        response = connection.getresponse()
        return response, json.loads(response.read())
    finally:
        connection.close()
