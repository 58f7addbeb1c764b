"""What is asked of a request before any route sees it: how large it is, how fast it comes, how often."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from holdfast.domain.ids import TokenId, Workspace
from holdfast.domain.tokens import Role, Token
from holdfast.testing.clock import NOON
from holdfast.web import door
from holdfast.web.callers import Callers
from holdfast.web.door import Door
from holdfast.web.rates import Rates
from tests.contract.served import NoTokens


async def reads_everything(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def status_of(pieces: list[Message], *, pause: float = 0.0) -> int:
    """Of a request whose body comes in these pieces, with pauses in between."""
    sent: list[Any] = []
    left = iter(pieces)

    async def receive() -> Message:
        await asyncio.sleep(pause)
        return next(left)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"localhost")]}
    asyncio.run(Door(reads_everything, Callers(NoTokens()), Rates(1000))(scope, receive, send))
    return int(sent[0]["status"])


def a_piece(size: int, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": b" " * size, "more_body": more}


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_SECONDS", 0.2)

    assert status_of([a_piece(1), a_piece(1, more=False)]) == 200
    assert status_of([a_piece(1)] * 1000, pause=0.05) == 408, "a byte now and then does not help"


def test_pieces_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_BODY", 100)

    assert status_of([a_piece(50), a_piece(50, more=False)]) == 200
    assert status_of([a_piece(50), a_piece(51, more=False)]) == 413


def test_more_than_can_be_answered_are_told_so_and_a_supervisor_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "MOST_AT_ONCE", 1)
    answers: list[Any] = []

    async def meet() -> None:
        stays, left = asyncio.Event(), asyncio.Event()

        async def stay(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/stay":
                stays.set()
                await left.wait()
            await reads_everything(scope, receive, send)

        async def receive() -> Message:
            return a_piece(0, more=False)

        async def send(message: Message) -> None:
            answers.append(message)

        async def ask(path: str) -> None:
            headers = [(b"host", b"localhost")]
            await entrance({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)

        entrance = Door(stay, Callers(NoTokens()), Rates(1000))
        staying = asyncio.create_task(ask("/stay"))
        await stays.wait()
        await ask("/healthz")
        await ask("/")
        left.set()
        await staying
        await ask("/")

    asyncio.run(meet())

    starts = [sent for sent in answers if "status" in sent]
    assert [sent["status"] for sent in starts] == [200, 503, 200, 200]
    refused = dict(starts[1]["headers"])
    assert (refused[b"content-type"], refused[b"retry-after"]) == (b"application/problem+json", b"1")


class Book:
    """Knows the tokens that it is given, and counts how often it is asked."""

    def __init__(self, *good: str) -> None:
        self._good = good
        self.asked = 0

    def asks_for_tokens(self) -> bool:
        return True

    def check_token(self, token_id: str, secret: str) -> Token | None:
        self.asked += 1
        if token_id not in self._good:
            return None
        return Token(TokenId(token_id), Workspace("default"), Role.READER, "a", NOON, None, None, None)


class Entrance:
    """A door behind a proxy, all from one address; two requests of each caller at once, and time stands still."""

    def __init__(self, book: Book) -> None:
        self.seconds = 0.0  #: as far as it matters for how long a token is believed
        self._door = Door(reads_everything, Callers(book, lambda: self.seconds), Rates(1, lambda: 0.0))

    def ask(self, token_id: str) -> int:
        sent: list[Any] = []

        async def receive() -> Message:
            return a_piece(0, more=False)

        async def send(message: Message) -> None:
            sent.append(message)

        authorization = f"Bearer hft_{token_id}_{'0' * 64}".encode()
        headers = [(b"host", b"localhost"), (b"authorization", authorization)]
        client = ("10.0.0.7", 1)
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": client}
        asyncio.run(self._door(scope, receive, send))
        return int(sent[0]["status"])


GOOD, OTHER = "a" * 12, "b" * 12
STRANGERS = [f"{number:012x}" for number in range(5)]


def test_strangers_at_the_same_address_use_up_nothing_of_a_good_caller() -> None:
    book = Book(GOOD)
    entrance = Entrance(book)
    assert entrance.ask(GOOD) == 200

    assert [entrance.ask(stranger) for stranger in STRANGERS] == [401, 401, 429, 429, 429]
    assert book.asked == 3, "the store is not asked about all of them"
    entrance.seconds = 60.0
    assert [entrance.ask(GOOD), entrance.ask(GOOD)] == [200, 429], "its own rate holds"


def test_good_callers_use_up_nothing_of_their_address() -> None:
    entrance = Entrance(Book(GOOD, OTHER))

    assert [entrance.ask(token) for token in (GOOD, OTHER, GOOD, OTHER)] == [200] * 4
    assert [entrance.ask(stranger) for stranger in STRANGERS[:3]] == [401, 401, 429]


def test_a_bucket_fills_again_and_is_each_callers_own() -> None:
    now = 0.0
    rates = Rates(10, lambda: now)

    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a") == pytest.approx(0.1)
    assert rates.take("b") == 0.0
    now = 0.1
    assert rates.take("a") == 0.0
    assert rates.take("a") > 0


def test_buckets_of_callers_that_never_come_back_are_forgotten() -> None:
    rates = Rates(1, lambda: 0.0)
    for number in range(20_000):
        rates.take(str(number))

    assert len(rates._left) <= 10_000
