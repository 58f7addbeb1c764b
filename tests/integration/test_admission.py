"""What is asked of a request before any route sees it: how large it is, how fast it comes, how often."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from holdfast.domain.ids import TokenId, Workspace
from holdfast.domain.tokens import Role, Token
from holdfast.web import admission
from holdfast.web.admission import Admission, Callers, Rates
from tests.clock import NOON
from tests.contract.served import NoTokens


async def reads_everything(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


A_BODY = [
    (b"host", b"localhost"),
    (b"content-type", b"application/json"),
    (b"transfer-encoding", b"chunked"),
]


def status_of(pieces: list[Message], *, pause: float = 0.0) -> int:
    """Of a request whose body comes in these pieces, with pauses in between."""
    sent: list[Any] = []
    left = iter(pieces)

    async def receive() -> Message:
        await asyncio.sleep(pause)
        return next(left)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/work", "headers": A_BODY}
    asyncio.run(Admission(reads_everything, Callers(NoTokens()), Rates(1000))(scope, receive, send))
    return int(sent[0]["status"])


def a_piece(size: int, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": b" " * size, "more_body": more}


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "BODY_SECONDS", 0.2)

    assert status_of([a_piece(1), a_piece(1, more=False)]) == 200
    assert status_of([a_piece(1)] * 1000, pause=0.05) == 408, "a byte now and then does not help"


def test_pieces_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_BODY", 100)

    assert status_of([a_piece(50), a_piece(50, more=False)]) == 200
    assert status_of([a_piece(50), a_piece(51, more=False)]) == 413


def test_more_than_can_be_answered_are_told_so_and_a_supervisor_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_REQUESTS", 1)
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

        entrance = Admission(stay, Callers(NoTokens()), Rates(1000))
        staying = asyncio.create_task(ask("/stay"))
        await stays.wait()
        await ask("/healthz")
        await ask("/work")
        left.set()
        await staying
        await ask("/work")

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
        self._door = Admission(reads_everything, Callers(book, lambda: self.seconds), Rates(1, lambda: 0.0))

    def ask(self, token_id: str) -> int:
        sent: list[Any] = []

        async def receive() -> Message:
            return a_piece(0, more=False)

        async def send(message: Message) -> None:
            sent.append(message)

        authorization = f"Bearer hft_{token_id}_{'0' * 64}".encode()
        headers = [(b"host", b"localhost"), (b"authorization", authorization)]
        client = ("10.0.0.7", 1)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/work",
            "headers": headers,
            "client": client,
        }
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


# --- what one caller may have under way ---------------------------------------------------------------------------


class Everyone:
    """Two callers, by their tokens."""

    def asks_for_tokens(self) -> bool:
        return True

    def check_token(self, token_id: str, secret: str) -> Token:
        workspace = Workspace(f"w{int(token_id, 16) // 100}")
        return Token(TokenId(token_id), workspace, Role.READER, token_id, NOON, None, None, None)


def a_token(number: int) -> bytes:
    return f"Bearer hft_{number:012x}_{number:064x}".encode()


class Visits:
    """Requests at one door, each answered when its app ends."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0
        self.answered: list[tuple[str, int]] = []
        self.go = asyncio.Event()
        self.door = Admission(self._app, Callers(Everyone()), Rates(1e9))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            while (await receive()).get("more_body"):
                pass
            await self.go.wait()
        finally:
            self.under_way -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def visit(self, caller: int, path: str = "/work", *, body: asyncio.Event | None = None) -> None:
        headers = [*(A_BODY if body else A_BODY[:1]), (b"authorization", a_token(caller))]

        async def receive() -> Message:
            if body is not None:
                await body.wait()
            return a_piece(1, more=False)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = dict(message["headers"])
                assert message["status"] == 200 or b"retry-after" in sent
                self.answered.append((str(caller), message["status"]))

        method = "POST" if body or path.startswith("/v1/store/") else "GET"
        await self.door({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0.001)


def test_a_caller_with_many_slow_bodies_keeps_nobody_else_out() -> None:
    async def crowd() -> Visits:
        visits, come = Visits(), asyncio.Event()
        slow = [asyncio.create_task(visits.visit(1, body=come)) for _ in range(705)]
        await settled()
        refused = [status for _, status in visits.answered]
        assert len(refused) == 705 - admission.MOST_BODIES
        assert set(refused) <= {429, 503}
        visits.go.set()
        await visits.visit(2, body=_set())
        await visits.visit(2)
        come.set()
        await asyncio.gather(*slow)
        return visits

    answered = asyncio.run(crowd()).answered
    assert answered.count(("2", 200)) == 2
    assert answered.count(("1", 200)) == admission.MOST_BODIES


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def test_one_caller_has_no_more_than_its_share_of_requests_under_way() -> None:
    async def crowd() -> Visits:
        visits = Visits()
        waiting = [asyncio.create_task(visits.visit(1)) for _ in range(admission.MOST_REQUESTS_OF_ONE + 10)]
        await settled()
        assert visits.answered == [("1", 429)] * 10
        visits.go.set()
        await visits.visit(2)
        await asyncio.gather(*waiting)
        return visits

    assert asyncio.run(crowd()).answered.count(("2", 200)) == 1


def test_the_tokens_of_one_workspace_leave_room_for_another() -> None:
    async def crowd() -> Visits:
        visits = Visits()
        crowds = [(token, admission.MOST_REQUESTS_OF_ONE) for token in (1, 2)]
        waiting = [asyncio.create_task(visits.visit(token)) for token, many in crowds for _ in range(many)]
        await settled()
        assert visits.under_way == admission.MOST_REQUESTS_OF_WORKSPACE
        visits.go.set()
        await visits.visit(200)
        await asyncio.gather(*waiting)
        return visits

    assert asyncio.run(crowd()).answered.count(("200", 200)) == 1


def test_the_tokens_of_one_workspace_leave_large_answers_to_another() -> None:
    async def crowd() -> Visits:
        visits = Visits()
        many = [asyncio.create_task(visits.visit(token, "/v1/store/turns")) for token in range(1, 10)]
        await settled()
        assert visits.under_way == admission.MOST_LARGE_OF_WORKSPACE
        other = asyncio.create_task(visits.visit(200, "/v1/store/turns"))
        await settled()
        assert visits.under_way == admission.MOST_LARGE_OF_WORKSPACE + 1
        visits.go.set()
        await asyncio.gather(*many, other)
        return visits

    assert asyncio.run(crowd()).answered.count(("200", 200)) == 1


def test_bodies_of_one_caller_are_kept_up_to_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_BYTES", 5)

    async def crowd() -> Visits:
        visits = Visits()
        waiting = [asyncio.create_task(visits.visit(1, body=_set())) for _ in range(8)]
        await settled()
        visits.go.set()
        await visits.visit(2, body=_set())
        await asyncio.gather(*waiting)
        return visits

    answered = asyncio.run(crowd()).answered
    assert (answered.count(("1", 200)), answered.count(("1", 429)), answered.count(("2", 200))) == (5, 3, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/store/history",
        "/v1/store/list_sessions",
        "/v1/store/free_sessions",
        "/v1/store/observed_sessions",
        "/v1/store/trail",
        "/v1/approvals",
        "/v1/sessions",
        "/v1/sessions/x/history",
        "/v1/sessions/x/turns",
        "/v1/sessions/x/turns/1",
    ],
)
def test_large_answers_are_made_and_sent_a_few_at_a_time(path: str) -> None:
    async def crowd() -> Visits:
        visits = Visits()
        readers = [asyncio.create_task(visits.visit(1, path)) for _ in range(12)]
        others = [asyncio.create_task(visits.visit(100 * n, path)) for n in range(2, 12)]
        await settled()
        assert visits.under_way == admission.MOST_LARGE
        small = asyncio.create_task(visits.visit(1, "/v1/store/now"))
        visits.go.set()
        await asyncio.gather(*readers, *others, small)
        return visits

    visits = asyncio.run(crowd())
    assert [status for _, status in visits.answered] == [200] * 23


def test_whoever_waits_too_long_for_a_large_answer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LARGE_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(admission, "MOST_LARGE_WAITING", 3)

    async def crowd() -> Visits:
        visits = Visits()
        readers = [asyncio.create_task(visits.visit(1, "/v1/store/turns")) for _ in range(8)]
        await settled()
        visits.go.set()
        await asyncio.gather(*readers)
        return visits

    answered = asyncio.run(crowd()).answered
    assert answered.count(("1", 200)) == admission.MOST_LARGE_OF_ONE
    assert answered.count(("1", 429)) == 8 - admission.MOST_LARGE_OF_ONE
