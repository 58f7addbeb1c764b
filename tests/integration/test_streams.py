"""When a stream of events ends, and when it does not."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.domain.events import Writing
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.engine.session_log import BEGINNING
from holdfast.errors import StoreUnavailable, TooMany
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.web import events
from holdfast.web.admission import Callers
from holdfast.web.events import Follower
from holdfast.web.streams import Streams
from tests.builders import an_event
from tests.steps import begin, claim, enqueue


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(events, "WRITING_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(events, "SIGN_SECONDS", 0.5)  # time to read the first event on a busy machine


@pytest.fixture
def store() -> Iterator[SqlStore]:
    with closing(open_store("sqlite:///:memory:")) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


def follower(store: SqlStore, streams: Streams | None = None, header: str = "") -> Follower:
    session = begin(store)
    enqueue(store, session, "go")
    store.record_events(claim(store, session).lease, [an_event(1)])
    return Follower(store, session.id, Callers(store), [header] if header else [], streams or Streams())


async def messages(following: Follower, most: int) -> list[str]:
    found = []
    async with asyncio.timeout(30):
        async for message in following.messages(BEGINNING):
            found.append(message)
            if len(found) == most:
                break
    return found


def test_it_gives_signs_of_life_as_long_as_nothing_happens(store: SqlStore) -> None:
    first, *signs = asyncio.run(messages(follower(store), 4))

    assert first.startswith("id: 1-1-1\n")
    assert signs == [": still here\n\n"] * 3


def test_it_ends_when_its_token_is_revoked(store: SqlStore) -> None:
    new, text = make_token(Role.READER, "a", None, bytes(ENTROPY))
    store.create_token(new)
    following = follower(store, header=f"Bearer {text}")
    store.revoke_token(new.id)

    assert len(asyncio.run(messages(following, 100))) == 1


def test_it_ends_when_the_server_does(store: SqlStore) -> None:
    streams = Streams()
    following = follower(store, streams)
    streams.closing = True

    assert asyncio.run(messages(following, 100)) == []


def test_it_ends_when_its_session_is_removed(store: SqlStore) -> None:
    session = begin(store)
    following = Follower(store, session.id, Callers(store), [], Streams())
    store.remove_session(session.id)

    assert asyncio.run(messages(following, 100)) == []


def test_it_sits_out_a_store_that_is_away(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    following = follower(store)
    read, failures = store.get_session, iter(range(3))

    def get_session(session_id: str) -> object:
        if next(failures, None) is not None:
            raise StoreUnavailable("there", "is away")
        return read(session_id)

    monkeypatch.setattr(store, "get_session", get_session)

    assert "id: 1-1-1\n" in "".join(asyncio.run(messages(following, 2)))


def test_places_are_given_back() -> None:
    streams = Streams(most=3, most_each=2)
    for caller in ("a", "a", "b"):
        streams.open(caller)
    for caller in ("a", "c"):
        with pytest.raises(TooMany):
            streams.open(caller)
    streams.close("a")
    streams.open("c")


def test_text_that_is_being_written_is_told_without_an_id_and_taken_back_when_it_is_whole(
    store: SqlStore,
) -> None:
    session = begin(store)
    enqueue(store, session, "go")
    lease = claim(store, session).lease
    store.put_partial_text(lease, 1, Writing("half of "))
    following = Follower(store, session.id, Callers(store), [], Streams())

    async def follow() -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(30):
            async for message in following.messages(BEGINNING):
                if message.startswith(":"):
                    continue
                found.append(message)
                match len(found):
                    case 1:
                        store.put_partial_text(lease, 1, Writing("half of the answer "))
                    case 2:
                        store.record_events(lease, [an_event(1)])
                    case 4:
                        return found
        return found

    first, second, event, gone = asyncio.run(follow())
    data = {"turn": 1, "attempt": 1, "number": 1, "text": "half of ", "skipped": 0}
    assert first == f"event: partial_text\ndata: {json.dumps(data)}\n\n"
    assert json.loads(second.partition("data: ")[2])["text"] == "half of the answer "
    assert event.startswith("id: 1-1-1\n")
    assert gone == f"event: partial_text\ndata: {json.dumps(data | {'text': ''})}\n\n"


def test_text_whose_attempt_ended_without_it_is_taken_back(store: SqlStore) -> None:
    session = begin(store)
    enqueue(store, session, "go")
    lease = claim(store, session).lease
    store.put_partial_text(lease, 1, Writing("half of "))
    following = Follower(store, session.id, Callers(store), [], Streams())

    async def follow() -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(30):
            async for message in following.messages(BEGINNING):
                if message.startswith("event: partial_text"):
                    found.append(json.loads(message.partition("data: ")[2])["text"])
                    if len(found) == 2:
                        break
                    store.put_back(lease)
        return found

    assert asyncio.run(follow()) == ["half of ", ""]
