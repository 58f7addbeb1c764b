"""Owns the model that the agents talk to: a loopback server that follows a script and remembers every request.

It also stands in as the agents' proxy, so whatever they try to fetch from elsewhere ends here, refused and noted.
"""

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.agents.lab.model_servers.protocol import Json, Message, Prompt, Protocol
from tests.agents.lab.model_servers.replies import EmptyStream, Fail, Hang, Reply, Say, Silence, StreamCut

Behaviour = Callable[["ModelRequest"], Reply]


@dataclass(frozen=True)
class ModelRequest:
    """One question to the model."""

    #: its place in the conversation, from 1; errands have none and get 0
    step: int
    path: str
    headers: dict[str, str]
    raw: Json
    prompt: Prompt
    #: the session that the agent says it is in, where it says so
    session: str | None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.prompt.messages

    @property
    def system(self) -> tuple[str, ...]:
        return self.prompt.system

    @property
    def texts(self) -> list[str]:
        """What was said, by whomever, in order."""
        return [message.text for message in self.messages]


class ModelServer:
    """Answers with the scripted replies in order, then as ``otherwise`` says; at first that is ``ok``.

    Errands of the program (a title, a choice of model) are answered without touching the script.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._arrival = threading.Condition()
        self._requests: list[ModelRequest] = []
        self._strays: list[str] = []
        self._script: deque[Reply] = deque()
        self._otherwise: Behaviour = lambda request: Say("ok")
        self._given: list[Reply] = []
        self._faults: list[BaseException] = []
        self._http = _Listener(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Let every client go. Raises what went wrong inside the server, unless something else already did."""
        for reply in self._given:
            if isinstance(reply, Hang):
                reply.release()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        if self._faults and error is None:
            raise self._faults[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def script(self, *replies: Reply) -> None:
        with self._arrival:
            self._script.extend(replies)

    def otherwise(self, behaviour: Reply | Behaviour) -> None:
        """What to answer when the script is at its end: always the same, or what a function says."""
        self._otherwise = behaviour if callable(behaviour) else lambda request: behaviour

    @property
    def requests(self) -> list[ModelRequest]:
        """The steps of the conversation so far."""
        with self._arrival:
            return [request for request in self._requests if not request.prompt.errand]

    @property
    def errands(self) -> list[ModelRequest]:
        with self._arrival:
            return [request for request in self._requests if request.prompt.errand]

    @property
    def strays(self) -> list[str]:
        """Method and target of all that did not ask the model; a target with a host is one beyond this machine."""
        with self._arrival:
            return list(self._strays)

    def await_requests(self, count: int, seconds: float = 30.0) -> list[ModelRequest]:
        with self._arrival:
            came = self._arrival.wait_for(lambda: len(self.requests) >= count, seconds)
        assert came, f"{len(self.requests)} of {count} requests came in {seconds:.0f} s"
        return self.requests

    # --- called by the connections' threads -----------------------------------------------------------

    def receive(self, path: str, headers: dict[str, str], raw: Json) -> tuple[ModelRequest, Reply]:
        prompt = self.protocol.read(path, raw)
        header = self.protocol.session_header
        with self._arrival:
            session = headers.get(header) if header else None
            step = 0 if prompt.errand else len(self.requests) + 1
            request = ModelRequest(step, path, headers, raw, prompt, session)
            self._requests.append(request)
            self._arrival.notify_all()
            reply = self._choose(request)
            self._given.append(reply)
        return request, reply

    def turn_away(self, method: str, target: str) -> None:
        with self._arrival:
            self._strays.append(f"{method} {target}")

    def note_fault(self, fault: BaseException) -> None:
        self._faults.append(fault)

    def _choose(self, request: ModelRequest) -> Reply:
        if request.prompt.errand:
            return Say(self.protocol.errand())
        if self._script:
            return self._script.popleft()
        return self._otherwise(request)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ModelServer) -> None:
        self.model = model
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        fault = sys.exception()
        # an agent that is killed or interrupted drops its connection
        if fault is not None and not isinstance(fault, ConnectionError):
            self.model.note_fault(fault)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.server.model.protocol.serves(path):
            self._turn_away()
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request, reply = self.server.model.receive(path, headers, json.loads(body))
        self._answer(request, reply)

    def _turn_away(self) -> None:
        self.server.model.turn_away(self.command, self.path)
        self._send_json(404, {"error": {"message": f"the laboratory has no {self.path}"}}, {})

    do_GET = do_HEAD = do_CONNECT = _turn_away  # noqa: N815 - the names that http.server looks for

    def _answer(self, request: ModelRequest, reply: Reply) -> None:
        protocol = self.server.model.protocol
        match reply:
            case Fail(status, message, headers, body):
                self._send_json(status, dict(body or protocol.failure(status, message)), dict(headers))
            case EmptyStream():
                self._send_chunks([])
            case Silence() as silence:
                silence.keep()
                self.close_connection = True
            case answer if request.prompt.streamed:
                self._send_chunks(protocol.stream(answer.parts(), request.raw, request.step))
            case answer:
                self._send_whole(lambda: protocol.whole(answer.parts(), request.raw, request.step))

    def _send_json(self, status: int, body: Json, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_whole(self, make: Callable[[], Json]) -> None:
        try:
            self._send_json(200, make(), {})
        except StreamCut:
            self.close_connection = True

    def _send_chunks(self, events: Iterable[bytes]) -> None:
        """Chunked, because only there a client can tell the end of an answer from a broken connection."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for data in events:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except StreamCut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """The requests are remembered; nothing is printed."""
