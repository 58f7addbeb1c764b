"""How a server answers those who wait for a turn: at once, in time, and with one watch for all of them."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import closing
from typing import TypeVar
from unittest.mock import Mock

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable, TooMany
from holdfast.store.contract import QueueWatch
from holdfast.store.open import open_store
from holdfast.web import queue_news
from holdfast.web.queue_news import News, Queues
from tests.steps import begin, enqueue

T = TypeVar("T")


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with closing(Holdfast(open_store("sqlite:///:memory:"))) as opened:
        yield opened


@pytest.fixture
def queues() -> Queues:
    return Queues()


def within_its_time(answer: Awaitable[T], queues: Queues) -> T:
    """Long before the question would be answered by its end."""

    async def in_time() -> T:
        try:
            async with asyncio.timeout(20):
                return await answer
        finally:
            queues.close()
            await asyncio.sleep(0)

    return asyncio.run(in_time())


def test_what_comes_after_the_mark_is_news_to_all_who_wait_on_one_watch(
    hf: Holdfast, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_queue = Mock(wraps=hf.store.watch_queue)
    monkeypatch.setattr(hf.store, "watch_queue", watch_queue)

    async def everyone() -> list[News]:
        mark = (await queues.news(hf, "", None, 0)).mark
        waiting = [asyncio.create_task(queues.news(hf, f"{n}", mark, 25)) for n in range(3)]
        await asyncio.sleep(0)
        enqueue(hf.store, begin(hf.store), "go")
        return [await task for task in waiting]

    told = within_its_time(everyone(), queues)

    assert [news.news for news in told] == [True] * 3
    assert watch_queue.call_count == 1


def test_a_question_is_answered_when_its_time_is_over(hf: Holdfast, queues: Queues) -> None:
    async def twice() -> tuple[News, News]:
        first = await queues.news(hf, "", None, 25)
        return first, await queues.news(hf, "", first.mark, 0.05)

    first, second = within_its_time(twice(), queues)

    assert (first.news, second.news) == (False, False)
    assert second.mark == first.mark


def test_whoever_comes_with_a_mark_of_another_server_may_have_missed_something(
    hf: Holdfast, queues: Queues
) -> None:
    assert within_its_time(queues.news(hf, "", "another-7", 25), queues).news


def test_whoever_waits_is_answered_when_the_server_ends(hf: Holdfast, queues: Queues) -> None:
    async def ending() -> News:
        mark = (await queues.news(hf, "", None, 0)).mark
        waiting = asyncio.create_task(queues.news(hf, "", mark, 25))
        await asyncio.sleep(0)
        queues.close()
        return await waiting

    assert not within_its_time(ending(), queues).news
    assert not within_its_time(queues.news(hf, "", None, 25), queues).news


def test_a_watch_that_breaks_is_said_to_whoever_waits_and_another_is_opened(
    hf: Holdfast, queues: Queues
) -> None:
    class Broken(QueueWatch):
        def wait(self, seconds: float) -> bool:
            raise StoreUnavailable("here", "it has just gone away")

        def close(self) -> None:
            pass

    async def wait() -> News:
        mark = (await queues.news(hf, "", None, 0)).mark
        return await queues.news(hf, "", mark, 25)

    async def unlucky() -> News:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hf.store, "watch_queue", Broken)
            with pytest.raises(StoreUnavailable):
                await wait()
        return await queues.news(hf, "", None, 25)

    assert not within_its_time(unlucky(), queues).news


def test_whatever_keeps_a_queue_from_being_watched_is_said(hf: Holdfast, queues: Queues) -> None:
    def out_of_files() -> QueueWatch:
        raise OSError("too many open files")

    async def ask() -> News:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hf.store, "watch_queue", out_of_files)
            with pytest.raises(StoreUnavailable, match="too many open files"):
                await queues.news(hf, "", None, 25)
        return await queues.news(hf, "", None, 25)

    assert not within_its_time(ask(), queues).news


def test_a_watch_that_broke_takes_nothing_from_the_one_in_its_place(
    hf: Holdfast, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_news, "_KEPT_SECONDS", 0.01)

    class Broken(QueueWatch):
        def wait(self, seconds: float) -> bool:
            raise StoreUnavailable("here", "it has just gone away")

        def close(self) -> None:
            pass

    async def replaced() -> tuple[str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hf.store, "watch_queue", Broken)
            with pytest.raises(StoreUnavailable):
                await queues.news(hf, "", (await queues.news(hf, "", None, 0)).mark, 25)
        mark = (await queues.news(hf, "", None, 25)).mark
        waiting = asyncio.create_task(queues.news(hf, "", mark, 0.3))
        return mark, (await waiting).mark

    before, after = within_its_time(replaced(), queues)
    assert before == after


def test_a_queue_in_which_nobody_waits_is_forgotten(
    hf: Holdfast, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_news, "_KEPT_SECONDS", 0.01)

    async def again() -> str:
        mark = (await queues.news(hf, "", None, 25)).mark
        while (answer := await queues.news(hf, "", None, 25)).mark == mark:
            await asyncio.sleep(0.02)
        return answer.mark

    assert within_its_time(again(), queues)


def test_only_so_many_queues_are_watched(
    hf: Holdfast, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_news, "_MOST_QUEUES", 1)

    async def both() -> News:
        await queues.news(hf, "", None, 25)
        return await queues.news(Holdfast(hf.store), "", None, 25)

    with pytest.raises(TooMany):
        within_its_time(both(), queues)
