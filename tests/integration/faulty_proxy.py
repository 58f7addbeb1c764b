"""Owns a proxy that forwards what it gets and loses replies when it is told to."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class FaultyProxy:
    """One connection at a time is enough for one caller; ``lose`` is how many replies get lost from now on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.lose = 0
        self.lost = 0

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server, suppress(OSError):
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            back.join()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        """The reply has come: the server has done what was asked. Only the caller never hears of it."""
        with suppress(OSError):
            while data := server.recv(65536):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@contextmanager
def faulty_proxy(url: str) -> Iterator[FaultyProxy]:
    parts = urlsplit(url)
    proxy = FaultyProxy((str(parts.hostname), int(parts.port or 0)))
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
