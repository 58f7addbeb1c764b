import asyncio
import threading
from functools import partial

import pytest

from holdfast.web.threads import Threads

PATIENCE = 10.0


def test_an_answer_and_an_error_come_back_to_whoever_called() -> None:
    async def both() -> None:
        threads = Threads()
        assert await threads.run(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)

    asyncio.run(both())


def test_calls_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(8)

    async def all_at_once() -> None:
        threads = Threads()
        calls = (threads.run(lambda: together.wait(PATIENCE)) for _ in range(together.parties))
        assert sorted(await asyncio.gather(*calls)) == list(range(together.parties))

    asyncio.run(all_at_once())


def test_more_calls_than_threads_are_all_answered() -> None:
    async def many() -> list[int]:
        threads = Threads()
        return await asyncio.gather(*(threads.run(partial(abs, n)) for n in range(200)))

    assert asyncio.run(many()) == list(range(200))


def test_a_thread_that_nobody_waits_for_any_more_is_not_counted_as_free() -> None:
    goes_on = threading.Event()

    async def cancelled() -> None:
        threads = Threads()
        given_up = asyncio.ensure_future(threads.run(lambda: goes_on.wait(PATIENCE)))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await asyncio.wait_for(threads.run(lambda: "answered"), PATIENCE) == "answered"
        goes_on.set()

    asyncio.run(cancelled())
