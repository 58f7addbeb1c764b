"""Owns a proxy that forwards what it gets, and loses replies or cuts connections when it is told to."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

#: a host and a port, or the path of a unix socket
Target = tuple[str, int] | Path


class FaultyProxy:
    """``lose`` is how many replies get lost from now on, whichever connection they come on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._clients: set[socket.socket] = set()
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lose = 0
        self.lost = 0

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> int:
        """Every connection, in the middle of whatever is said on it; how many there were."""
        cut = list(self._clients)
        for client in cut:
            _hang_up(client)
        return len(cut)

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        self._clients.add(client)
        with suppress(OSError), client, _connect(self._target) as server:
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            try:
                while data := client.recv(65536):
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)
                back.join()
            except OSError:
                # closing alone does not end a connection that another thread still reads from
                _hang_up(server)
                raise
        self._clients.discard(client)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        """The reply has come: the server has done what was asked. Only the caller never hears of it."""
        with suppress(OSError):
            while data := server.recv(65536):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    break
                client.sendall(data)
        _hang_up(client)


def _connect(target: Target) -> socket.socket:
    if not isinstance(target, Path):
        return socket.create_connection(target)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(str(target))
    except OSError:
        server.close()
        raise
    return server


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def faulty_proxy(target: str | Target) -> Iterator[FaultyProxy]:
    """In front of a URL, an address or a socket."""
    if isinstance(target, str):
        parts = urlsplit(target)
        target = str(parts.hostname), int(parts.port or 0)
    proxy = FaultyProxy(target)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
