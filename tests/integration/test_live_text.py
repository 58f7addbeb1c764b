"""Text that an agent is writing: told while it is written, to observers and to other processes, and to nobody later."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from holdfast import Holdfast
from holdfast.domain.events import Called, PartialText, Said, Writing
from holdfast.domain.policy import Policy
from holdfast.domain.turns import NewTurn, TurnRequest, TurnStatus
from holdfast.engine.result import RunResult
from tests.counted_store import CountedStore
from tests.integration.workshop import Workshop, ended, eventually, kill

#: no look whether somebody wants the turn to stop falls into a test
PATIENT = replace(Policy(), queue=replace(Policy().queue, poll_seconds=10.0, heartbeat_seconds=10.0))
SECRET = "sk-ant-api03-" + "x7Qp2mZ9" * 6
WRITES = "WRITE The answer is\nAWAIT go\nSAY 42"


class Watching:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __call__(self, seen: object) -> None:
        self.seen.append(seen)

    @property
    def texts(self) -> list[object]:
        return [one for one in self.seen if isinstance(one, Said | Writing)]


@contextmanager
def running(
    shop: Workshop, prompt: str, observer: Watching | None = None
) -> Iterator[tuple[Future[RunResult], str]]:
    """A turn on a second thread, and its session; the agent goes on when the file ``go`` is there."""
    hf, session = shop.open(), shop.open().create("agent", provider="scripted")
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(
            hf.resume, session.id, prompt, cwd=str(shop.work_dir), observer=observer or Watching()
        )
        try:
            yield turn, session.id
        finally:
            (shop.work_dir / "go").touch()
            turn.exception(60)


def shown(hf: Holdfast, session_id: str) -> str | None:
    found = hf.store.partial_text(session_id)
    return None if found is None else found.text


def test_another_process_sees_the_text_while_it_is_written_and_not_afterwards(shop: Workshop) -> None:
    other = shop.open()
    with running(shop, "SAY before\nWRITE The answer is not\nAWAIT go\nSAY known") as (turn, session_id):
        found = eventually(lambda: other.store.partial_text(session_id))
        assert found == PartialText(1, 1, 2, "\nThe answer is ", 0), "the last word may not be whole"
        assert not turn.done()
    assert turn.result().text == "before\nThe answer is not known"
    assert shown(other, session_id) is None


def test_an_observer_is_told_the_newest_text_and_then_the_whole(shop: Workshop) -> None:
    watching = Watching()
    with running(shop, WRITES, watching) as _:
        eventually(lambda: watching.texts)
        assert watching.texts == [Writing("The answer is")]
    assert watching.texts == [Writing("The answer is"), Said("The answer is 42")]


def test_it_is_told_four_times_a_second_at_most_and_always_the_newest(shop: Workshop) -> None:
    lines = "\n".join(f"WRITE w{number}" for number in range(400))
    watching = Watching()
    began = time.monotonic()
    with running(shop, f"{lines}\nAWAIT go\nSAY end", watching) as (_, session_id):
        whole = " ".join(f"w{number}" for number in range(400))
        eventually(lambda: watching.texts and watching.texts[-1] == Writing(whole))
        told, took = len(watching.texts), time.monotonic() - began
        eventually(lambda: shown(shop.open(), session_id) == whole.removesuffix("w399"))
    assert told <= 4 * took + 1


def test_a_text_that_is_whole_at_once_is_told_by_its_event_alone(shop: Workshop) -> None:
    counted = CountedStore(shop.open(PATIENT).store)
    hf = Holdfast(counted.as_store, PATIENT, environ=shop.environ)
    hf.run("SAY quick", provider="scripted", cwd=str(shop.work_dir))
    assert "put_partial_text" not in counted.calls


def test_a_tool_call_after_it_hides_nothing_that_is_recorded(shop: Workshop) -> None:
    watching = Watching()
    prompt = 'WRITE I will look\nSAY now\nTOOL shell {"command": "true"}\nWRITE It is\nAWAIT go\nSAY done'
    with running(shop, prompt, watching) as (_, session_id):
        found = eventually(lambda: shop.open().store.partial_text(session_id))
        assert found.text == "\nIt "
    kinds = [type(one) for one in watching.seen if isinstance(one, Said | Called | Writing)]
    assert kinds == [Said, Called, Writing, Said]


def test_secrets_are_not_in_the_store_while_they_are_written(shop: Workshop) -> None:
    watching = Watching()
    with running(shop, f"WRITE the key is {SECRET} and\nAWAIT go\nSAY that", watching) as (_, session_id):
        text = eventually(lambda: shown(shop.open(), session_id))
        assert text == "the key is [redacted:anthropic_key] "


def test_a_turn_that_a_worker_runs_is_seen_and_its_next_attempt_does_not_have_its_text(
    shop: Workshop,
) -> None:
    hf = shop.open()
    session = hf.create("agent", provider="scripted")
    request = TurnRequest(work_dir=str(shop.work_dir))
    hf.enqueue(session.id, "WRITE only half of\nHANG", NewTurn("", "scripted", request))
    worker = shop.start("worker", "--once", "--provider", "scripted")
    eventually(lambda: shown(hf, session.id) == "only half ")

    kill(worker)
    shop.kill_agent()
    assert shown(hf, session.id) == "only half ", "nobody knows yet that it is gone"
    hf.recover()

    assert hf.turn(session.id, 1).status is TurnStatus.QUEUED
    assert shown(hf, session.id) is None


def test_a_worker_that_lost_its_lease_writes_no_more_and_ends_its_agent(shop: Workshop) -> None:
    """Each write renews nothing: only the fence counts."""
    watching = Watching()
    with running(shop, "WRITE half of it\nAWAIT go\nHANG", watching) as (turn, session_id):
        hf = shop.open()
        eventually(lambda: shown(hf, session_id))
        orphan = hf.store.holder(session_id)
        assert orphan is not None
        hf.store.recover(orphan, owner_is_gone=True)
        assert shown(hf, session_id) is None
        turn.exception(60)
        assert shown(hf, session_id) is None


def test_the_end_of_a_turn_without_an_answer_takes_the_text_with_it(shop: Workshop) -> None:
    with running(shop, "WRITE half of it\nAWAIT go\nCRASH") as (turn, session_id):
        eventually(lambda: shown(shop.open(), session_id))
    assert not turn.result().ok
    assert shown(shop.open(), session_id) is None


def test_the_json_stream_of_the_command_has_it(shop: Workshop) -> None:
    with shop.start("run", "--json-stream", WRITES) as command:
        assert command.stdout is not None
        texts = []
        for line in command.stdout:
            seen = json.loads(line)
            if seen["type"] in ("partial_text", "text"):
                texts.append({**seen, "schema_version": None})
                (shop.work_dir / "go").touch()
    assert command.returncode == 0
    assert texts == [
        {"schema_version": None, "type": "partial_text", "text": "The answer is", "skipped": 0},
        {"schema_version": None, "type": "text", "text": "The answer is 42"},
    ]


def test_in_a_pipe_the_command_prints_the_answer_once(shop: Workshop) -> None:
    command = shop.start("run", WRITES)
    eventually(lambda: [one for one in shop.open().running() if shown(shop.open(), one.session.id)])
    (shop.work_dir / "go").touch()

    code, out, _ = ended(command)

    assert (code, out) == (0, "The answer is 42\n")
