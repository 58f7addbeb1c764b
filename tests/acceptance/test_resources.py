"""The server's resources: sessions, turns, events and figures, as scripts and pages ask for them."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from holdfast.errors import LeaseLost
from holdfast.store.open import open_store
from tests.acceptance.command import holdfast, ok
from tests.acceptance.served import ask, server
from tests.builders import a_runtime, done
from tests.steps import claim

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('resources')}/holdfast.db"


@pytest.fixture(scope="module")
def url(store: str) -> Iterator[str]:
    with server("--url", store) as (url, _):
        yield url


def send(url: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = None if body is None else json.dumps(body)
    response, told = ask(url, method, path, text, {**JSON, **named})
    return response.status, told


def begin(url: str, **fields: object) -> str:
    status, made = send(url, "POST", "/v1/sessions", {"agent": "terraform-architect", **fields})
    assert status == 201
    return str(made["session_id"])


def work(url: str) -> None:
    ended = holdfast("worker", "--provider", "scripted", "--once", env={"HOLDFAST_URL": url})
    assert ended.code == 0, ended


def test_a_session_is_made_changed_and_closed(url: str) -> None:
    session = begin(url, purpose="plan", metadata={"task": "T1"}, name="infra")

    status, changed = send(
        url, "PATCH", "/v1/sessions/infra", {"phase": "planning", "expected_phase": "initializing"}
    )
    assert (status, changed["phase"]) == (200, "planning")
    status, problem = send(
        url, "PATCH", f"/v1/sessions/{session}", {"phase": "executing", "expected_phase": "approval"}
    )
    assert (status, problem["code"], problem["details"]["actual"]) == (409, "phase_conflict", "planning")
    status, closed = send(
        url, "POST", f"/v1/sessions/{session}/finalize", {"outcome": "completed", "summary": "ok"}
    )
    assert (status, closed["phase"], closed["summary"]) == (200, "completed", "ok")
    status, read = send(url, "GET", f"/v1/sessions/{session}")
    assert [change["to_phase"] for change in read["history"]] == ["planning", "completed"]
    assert (
        send(url, "POST", f"/v1/sessions/{session}/finalize", {"outcome": "failed"})[1]["code"]
        == "session_closed"
    )


def test_a_turn_tells_what_it_repeats_and_what_came_too_late(store: str, url: str) -> None:
    session = begin(url)
    send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "plan", "provider": "claude"})
    with closing(open_store(store)) as opened:
        lost = claim(opened, opened.get_session(session)).lease
        orphan = opened.holder(session)
        assert orphan is not None
        opened.recover(orphan, owner_is_gone=True)
        claim(opened, opened.get_session(session))
        with pytest.raises(LeaseLost):
            opened.finish_turn(lost, done("too late"))

    _, turn = send(url, "GET", f"/v1/sessions/{session}/turns/1")

    assert [attempt["cause"] for attempt in turn["attempts"]] == ["first", "recovery"]
    (late,) = turn["late_reports"]
    assert (late["turn"], late["report"]["response"]) == (1, "too late")
    _, history = send(url, "GET", f"/v1/sessions/{session}/history")
    assert [(one["retry_of"], one["attempts"]) for one in history["turns"]] == [(None, 2)]


def test_a_turn_is_put_in_for_later_and_with_what_it_may_do(url: str) -> None:
    session = begin(url, provider="scripted")
    call = 'TOOL shell {"command": "echo applied"}'
    body = {"prompt": call, "approve_tools": ["shell(echo applied*)"], "permission_mode": "default"}
    assert send(url, "POST", f"/v1/sessions/{session}/turns", body)[0] == 201
    work(url)
    _, page = send(url, "GET", f"/v1/approvals?session={session}")
    assert [one["tool"] for one in page["approvals"]] == ["shell"]

    later = begin(url, provider="scripted")
    path = f"/v1/sessions/{later}/turns"
    status, put = send(url, "POST", path, {"prompt": "SAY later", "delay": 3600})
    work(url)

    assert (status, put["not_before"] > put["created_at"]) == (201, True)
    assert send(url, "GET", f"{path}/1")[1]["status"] == "queued"
    waits = send(url, "GET", f"/v1/sessions/{later}/decision")[1]
    assert waits["waits_for_time"] == {"turn": 1, "attempt": 1, "not_before": put["not_before"]}
    for wrong in ({"delay": -1}, {"delay": "soon"}, {"approve_tools": "shell"}, {"approve_tools": [1]}):
        assert send(url, "POST", path, {"prompt": "SAY never", **wrong})[0] == 422


def test_a_decision_names_the_runtime_that_its_turn_waits_for(url: str) -> None:
    session = begin(url)
    with closing(open_store(url)) as opened:
        opened.register_runtime(a_runtime())
    path = f"/v1/sessions/{session}/turns"
    assert send(url, "POST", path, {"prompt": "here", "runtime_id": a_runtime().id})[0] == 201

    decision = send(url, "GET", f"/v1/sessions/{session}/decision")[1]

    waits = decision["waits_for_runtime"]
    assert (waits["turn"], waits["runtime_id"]) == (1, a_runtime().id)
    assert decision["waits_for_time"] is None


def pages(url: str, path: str, field: str, place: str) -> Iterator[Any]:
    """Every record, by pages of two."""
    behind = ""
    while True:
        status, page = send(url, "GET", f"{path}{'&' if '?' in path else '?'}limit=2{behind}")
        assert (status, len(page[field]) <= 2) == (200, True)
        yield page[field]
        if page[f"next_{place}"] is None:
            return
        behind = f"&{place}={page[f'next_{place}']}"


def test_every_turn_of_a_history_is_on_one_page(url: str) -> None:
    session = begin(url)
    for number in range(5):
        send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": f"{number}", "provider": "claude"})

    found = list(pages(url, f"/v1/sessions/{session}/history", "turns", "before"))

    assert [[turn["turn"] for turn in page] for page in found] == [[4, 5], [2, 3], [1]]


def test_every_approval_is_on_one_page(url: str) -> None:
    session = begin(url)
    asked = [
        ok("request-approval", session, f"step {number}", "--json", env={"HOLDFAST_URL": url}).json
        for number in range(5)
    ]

    found = list(pages(url, f"/v1/approvals?session={session}", "approvals", "after"))

    told = [[one["approval_id"] for one in page] for page in found]
    ids = [one["approval_id"] for one in asked]
    assert told == [ids[:2], ids[2:4], ids[4:]]
    assert send(url, "GET", "/v1/approvals?after=apr-nobody")[0] == 404


def test_every_session_is_on_one_page_of_the_list(url: str) -> None:
    made = [begin(url) for _ in range(5)]
    found: list[str] = []
    path = "/v1/sessions?limit=2"
    while True:
        status, page = send(url, "GET", path)
        assert status == 200
        found += [session["session_id"] for session in page["sessions"]]
        if page["next_cursor"] is None:
            break
        path = f"/v1/sessions?limit=2&cursor={page['next_cursor']}"

    assert len(found) == len(set(found))
    assert set(made) <= set(found)
    assert found[:5] == made[::-1]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions?limit=501",
        "/v1/sessions?limit=0",
        f"/v1/sessions/{'a' * 201}",
        "/v1/sessions?cursor=%00",
    ],
)
def test_what_is_too_much_is_refused(url: str, path: str) -> None:
    status, problem = send(url, "GET", path)

    assert (status, problem["code"]) == (422, "invalid_input")


def test_a_turn_is_enqueued_run_edited_and_retried(url: str) -> None:
    session = begin(url, provider="scripted")
    status, turn = send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "hello"})
    assert (status, turn["turn"], turn["status"]) == (201, 1, "queued")
    work(url)

    status, ran = send(url, "GET", f"/v1/sessions/{session}/turns/1")
    assert (ran["status"], ran["attempts"][0]["decision"]["kind"]) == ("done", "fresh")
    assert send(url, "GET", f"/v1/sessions/{session}/decision")[1]["kind"] == "resume"
    status, edited = send(url, "PATCH", f"/v1/sessions/{session}/turns/1", {"prompt": "hello there"})
    assert (status, edited["prompt"]) == (200, "hello there")
    decision = send(url, "GET", f"/v1/sessions/{session}/decision")[1]
    assert (decision["kind"], decision["reason"]) == ("fresh", "history_changed"), (
        "an edit counts over HTTP too"
    )
    status, again = send(url, "POST", f"/v1/sessions/{session}/turns/1/retry", {})
    assert (status, again["retry_of"], again["prompt"]) == (201, 1, "hello there")
    status, cancelled = send(url, "POST", f"/v1/sessions/{session}/turns/{again['turn']}/cancel")
    assert (status, cancelled["status"]) == (200, "cancelled")
    pages = send(url, "GET", f"/v1/sessions/{session}/turns?limit=1")[1]
    assert ([one["turn"] for one in pages["turns"]], pages["next_after"]) == ([1], 1)
    history = send(url, "GET", f"/v1/sessions/{session}/history")[1]["turns"]
    assert [one["turn"] for one in history] == [2], "the one that was retried is out of it"


def test_an_approval_is_answered_for_exactly_what_was_shown(url: str) -> None:
    session = begin(url)
    asked = holdfast("request-approval", session, "apply the plan", env={"HOLDFAST_URL": url}).out.split()[0]
    _, shown = send(url, "GET", f"/v1/approvals/{asked}")
    _, listed = send(url, "GET", f"/v1/approvals?session={session}")
    assert [one["approval_id"] for one in listed["approvals"]] == [asked]
    bound = {"arguments_hash": shown["arguments_hash"], "nonce": shown["nonce"]}
    answer = f"/v1/approvals/{asked}/answer"

    status, problem = send(url, "POST", answer, {**bound, "approved": True, "nonce": "0"})
    assert (status, problem["code"]) == (409, "refused")
    assert send(url, "POST", answer, {"approved": True})[0] == 422
    assert send(url, "POST", answer, {**bound, "approved": False, "note": " "})[0] == 422
    status, denied = send(url, "POST", answer, {**bound, "approved": False})
    assert (status, denied["status"], denied["note"]) == (200, "denied", None)
    status, problem = send(url, "POST", answer, {**bound, "approved": True})
    assert (status, problem["code"]) == (409, "refused")
    assert send(url, "GET", "/v1/approvals/apr-nobody")[0] == 404


def test_a_post_with_a_key_happens_once(url: str) -> None:
    new = {"agent": "terraform-architect", "purpose": "once"}
    first, second = (send(url, "POST", "/v1/sessions", new, Idempotency_Key="make-it")[1] for _ in range(2))
    assert first == second
    status, problem = send(url, "POST", "/v1/sessions", {**new, "purpose": "two"}, Idempotency_Key="make-it")
    assert (status, problem["code"]) == (409, "conflict")
    path = f"/v1/sessions/{first['session_id']}/turns"
    turns = [send(url, "POST", path, {"prompt": "go"}, Idempotency_Key="enqueue-it")[1] for _ in range(2)]
    assert turns[0] == turns[1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"agent": "a", "unknown": 1}', 422),
        (b'{"agent": 7}', 422),
        (b'{"agent": "a", "metadata": ' + b'{"a":' * 2000 + b"1" + b"}" * 2001, 422),
        (b'{"agent": "a", "metadata": ' + b"[" * 100_000, 422),
        (b'{"agent": "a", "metadata": {"a": NaN}}', 422),
        (b'{"agent": "\\ud800"}', 422),
        (b'{"agent": "a\\u0000"}', 422),
        (b"agent=a", 422),
        (b"", 422),
    ],
)
def test_a_body_that_cannot_be_used_is_a_problem_and_no_more(url: str, body: bytes, status: int) -> None:
    response, problem = ask(url, "POST", "/v1/sessions", body, JSON)

    assert response.status in (400, status)
    assert "Traceback" not in json.dumps(problem)


# --- events -----------------------------------------------------------------------------------------------------


class Stream:
    """The events of a session, as they come."""

    def __init__(self, url: str, path: str, **headers: str) -> None:
        parts = urlsplit(url)
        self.connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", path, headers=named)
        self.response: HTTPResponse = self.connection.getresponse()

    def __enter__(self) -> Self:
        assert self.response.headers["content-type"].startswith("text/event-stream")
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self.connection.close()

    def message(self) -> dict[str, str]:
        """The next one; empty at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line == "\n" and fields:
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
        return {}


def ran(url: str, prompt: str = "hello") -> str:
    result = holdfast("run", prompt, "--provider", "scripted", "--json", env={"HOLDFAST_URL": url})
    return str(result.json["session_id"])


def test_events_come_in_order_and_go_on_behind_the_last_one(url: str) -> None:
    session = ran(url)
    path = f"/v1/sessions/{session}/events"
    send(url, "POST", f"/v1/sessions/{session}/finalize", {"outcome": "completed"})
    with Stream(url, path) as stream:
        messages = list(iter(stream.message, {}))

    *events, ended, end = messages
    assert (ended["id"], ended["event"]) == ("1-end", "turn_ended")
    assert end == {"event": "end", "data": "{}"}
    places = [tuple(map(int, event["id"].split("-"))) for event in events]
    assert places == sorted(set(places))
    assert [json.loads(event["data"])["kind"] for event in events] == [event["event"] for event in events]
    assert "text" in [event["event"] for event in events]
    with Stream(url, path, Last_Event_ID=events[0]["id"]) as stream:
        assert list(iter(stream.message, {})) == messages[1:]


def test_what_happens_is_told_to_who_listens(url: str) -> None:
    session = begin(url, provider="scripted")
    with Stream(url, f"/v1/sessions/{session}/events") as stream:
        send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "hello"})
        work(url)

        assert json.loads(stream.message()["data"])["turn"] == 1


def test_a_stream_of_nothing_is_refused(url: str) -> None:
    assert send(url, "GET", "/v1/sessions/nobody/events")[0] == 404
    session = begin(url)
    for last in ("1", "a-b-c", "1-1-9999999999999999"):
        status, problem = send(url, "GET", f"/v1/sessions/{session}/events", Last_Event_ID=last)
        assert (status, problem["code"]) == (422, "invalid_input")


def test_nobody_takes_all_the_streams(url: str) -> None:
    session = begin(url)
    path = f"/v1/sessions/{session}/events"
    with ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(Stream(url, path))

        status, problem = send(url, "GET", path)

        assert (status, problem["code"]) == (429, "too_many")


def test_a_server_that_is_stopped_ends_its_streams(tmp_path: Path) -> None:
    with (
        server("--url", f"sqlite:///{tmp_path}/holdfast.db") as (url, process),
        Stream(url, f"/v1/sessions/{begin(url)}/events") as stream,
    ):
        process.send_signal(signal.SIGTERM)

        assert stream.message() == {}
        assert process.wait(timeout=9) == 0, "sooner than streams are cut off"


# --- figures and logs -------------------------------------------------------------------------------------------


def figures(url: str) -> dict[str, float]:
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.headers["content-type"].startswith("text/plain")
        lines = response.read().decode().splitlines()
    finally:
        connection.close()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_figures_count_what_happened_and_name_nobody(tmp_path: Path) -> None:
    with server("--url", f"sqlite:///{tmp_path}/holdfast.db") as (url, _):
        session = begin(url, provider="scripted", name="infra")
        send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "hello"})
        send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "and on"})
        work(url)
        send(url, "GET", "/v1/sessions/nobody")
        send(url, "GET", "/v1/sessions/infra")

        found = figures(url)

    assert found['holdfast_sessions{kind="delegated",phase="initializing"}'] == 1
    assert found['holdfast_turns{failure="",status="done"}'] == 2
    assert found['holdfast_decisions_total{decision="fresh",reason="no_pointer"}'] == 1
    assert found['holdfast_decisions_total{decision="resume",reason="resumable"}'] == 1
    assert found["holdfast_queue_depth"] == 0
    assert found["holdfast_claim_latency_seconds_count"] == 2
    assert found['holdfast_refusals_total{code="not_found"}'] == 1
    assert found['holdfast_requests_total{status="201",verb="enqueue_turn"}'] == 2
    assert found["holdfast_store_bytes"] > 0
    assert not [name for name in found if session in name or "infra" in name or "nobody" in name]


def test_paths_that_there_are_not_make_no_figures(url: str) -> None:
    def ask_for(number: int) -> set[str]:
        send(url, "GET", f"/v1/{number}")
        send(url, "GET", f"/v1/sessions/{number}")
        send(url, "POST", f"/v1/store/{number}", {})
        return set(figures(url))

    names = ask_for(0) | ask_for(0)

    assert set().union(*map(ask_for, range(1, 20))) == names


def test_the_log_says_as_json_which_turn_a_request_was_about(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        with server("--url", f"sqlite:///{tmp_path}/holdfast.db", "--log-json", stderr=log) as (url, _):
            session = begin(url, provider="scripted")
            send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "hello"})
            work(url)
        log.seek(0)
        lines = [json.loads(line) for line in log]

    (finished,) = [line for line in lines if line["message"] == "POST finish_turn"]
    assert (finished["session"], finished["turn"], finished["attempt"]) == (session, 1, 1)
    assert (finished["status"], finished["level"]) == (200, "info")
    assert all("hello" not in json.dumps(line) for line in lines), "no texts"


# --- what the command does, over HTTP, too ---


def test_sessions_of_either_kind_are_made_and_filtered(url: str) -> None:
    talk = begin(url, agent="talker", kind="conversation")
    work_of_it = begin(url, agent="talker")
    joined = begin(url, agent="another", joins=talk)

    _, read = send(url, "GET", f"/v1/sessions/{talk}")
    assert read["kind"] == "conversation"
    assert send(url, "GET", f"/v1/sessions/{work_of_it}")[1]["kind"] == "delegated"
    assert send(url, "GET", f"/v1/sessions/{joined}")[1]["conversation_id"] == read["conversation_id"]
    assert send(url, "POST", "/v1/sessions", {"agent": "a", "kind": "subagent"})[0] == 422
    for query, count in (("since=2020-01-01", 2), ("until=2020-01-01", 0), ("subagents=true", 2)):
        _, page = send(url, "GET", f"/v1/sessions?agent=talker&{query}")
        assert len(page["sessions"]) == count, query
    assert send(url, "GET", "/v1/sessions?since=yesterday")[0] == 422


@pytest.mark.parametrize(
    "path",
    ["/v1/sessions?statsu=idle", "/v1/runtimes?all=1", "/v1/approvals?open=1", "/v1/search?q=a&word=b"],
)
def test_a_query_parameter_that_is_not_known_is_an_error(url: str, path: str) -> None:
    status, problem = send(url, "GET", path)

    assert (status, problem["code"]) == (422, "invalid_input")
    assert path.partition("?")[2].rpartition("&")[2].partition("=")[0] in problem["details"]["field"]


def test_a_session_is_forked_renamed_emptied_and_deleted(url: str) -> None:
    session = begin(url, provider="scripted", kind="conversation")
    path = f"/v1/sessions/{session}"
    for prompt in ("SAY one", "SAY two"):
        send(url, "POST", f"{path}/turns", {"prompt": prompt})
        work(url)

    status, child = send(url, "POST", f"{path}/fork", {"at": 1, "name": "a-try"})
    assert (status, child["parent_session_id"], child["name"], child["notices"]) == (
        201,
        session,
        "a-try",
        [],
    )
    assert len(send(url, "GET", "/v1/sessions/a-try/history")[1]["turns"]) == 1
    assert send(url, "POST", f"{path}/fork", {"at": 9})[0] in (404, 409)
    key = {"Idempotency_Key": "once"}
    again = [send(url, "POST", f"{path}/fork", {}, **key)[1]["session_id"] for _ in range(2)]
    assert again[0] == again[1]

    status, problem = send(url, "PUT", f"{path}/name", {"name": "a-try"})
    assert (status, problem["code"]) == (409, "conflict")
    assert send(url, "PUT", f"{path}/name", {"name": "main"})[1]["name"] == "main"
    assert send(url, "PUT", f"{path}/name", {"name": None})[1]["name"] is None

    assert send(url, "POST", f"{path}/truncate", {"keep": 1})[0] == 200
    assert [turn["turn"] for turn in send(url, "GET", f"{path}/history")[1]["turns"]] == [1]
    assert send(url, "POST", f"{path}/new", {})[1]["generation"] == 1
    assert send(url, "GET", f"{path}/history")[1]["turns"] == []

    status, problem = send(url, "DELETE", path)
    assert (status, problem["code"]) == (409, "conflict")  # its forks read through to it
    for fork in ("a-try", again[0]):
        assert send(url, "DELETE", f"/v1/sessions/{fork}")[0] == 200
    assert send(url, "DELETE", path) == (200, {"session_id": session, "removed": True})
    assert send(url, "GET", path)[0] == 404
    assert send(url, "DELETE", path)[0] == 404


def test_words_are_searched(url: str) -> None:
    session = begin(url, provider="scripted", purpose="find me")
    send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "SAY quokka habitats"})
    work(url)

    status, found = send(url, "GET", "/v1/search?q=quokka&provider=scripted&limit=5")

    assert (status, found["all_words"]) == (200, True)
    (hit,) = found["hits"]
    assert (hit["session_id"], hit["turn"]) == (session, 1)
    assert send(url, "GET", "/v1/search?q=wombat")[1]["hits"] == []
    for wrong in ("q=", "", "q=a&limit=0", "q=a&since=never", "q=%20"):
        assert send(url, "GET", f"/v1/search?{wrong}")[0] == 422, wrong


def test_a_caller_waits_for_the_end_of_the_work(url: str) -> None:
    session = begin(url, provider="scripted", kind="conversation")
    path = f"/v1/sessions/{session}/wait"
    assert send(url, "GET", f"{path}?seconds=0")[1]["reached"] == "still_open"
    send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "SAY done"})

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(send, url, "GET", f"{path}?seconds=25")
        work(url)
        status, waited = waiting.result(60)

    assert (status, waited["reached"], waited["turn"]["response"]) == (200, "done", "done")
    assert send(url, "GET", f"{path}?seconds=26")[0] == 422
    assert send(url, "GET", "/v1/sessions/nobody/wait")[0] == 404


def test_the_runtimes_of_workers_are_listed(url: str) -> None:
    work(url)

    status, page = send(url, "GET", "/v1/runtimes")

    assert status == 200
    assert "scripted" in {one["provider"] for one in page["runtimes"]}
    assert all(one["runtime_id"] and one["last_seen_at"] for one in page["runtimes"])


def test_a_stream_tells_when_a_turn_has_ended(url: str) -> None:
    session = begin(url, provider="scripted")
    for prompt in ("SAY one", "FAIL 400 no"):
        send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": prompt})
        work(url)
    send(url, "POST", f"/v1/sessions/{session}/finalize", {"outcome": "completed"})

    path = f"/v1/sessions/{session}/events"
    with Stream(url, path) as stream:
        ends = [message for message in iter(stream.message, {}) if message["event"] == "turn_ended"]
    with Stream(url, path, Last_Event_ID="1-end") as stream:
        behind = [json.loads(message["data"]) for message in iter(stream.message, {})]

    told = [json.loads(message["data"]) for message in ends]
    assert [message["id"] for message in ends] == ["1-end", "2-end"]
    assert [(one["turn"], one["status"]) for one in told] == [(1, "done"), (2, "failed")]
    assert told[0]["failure"] is None
    assert told[1]["failure"]["class"]
    assert {one["turn"] for one in behind if one} == {2}


def test_files_are_restored_where_the_session_ran_and_nowhere_else(tmp_path: Path) -> None:
    """The server has the home of this test, and so has the worker."""
    store = f"sqlite:///{tmp_path}/restored.db"
    with server("--url", store) as (url, _):
        restore_here_and_elsewhere(store, url)


def restore_here_and_elsewhere(store: str, url: str) -> None:
    session = begin(url, provider="scripted")
    send(url, "POST", f"/v1/sessions/{session}/turns", {"prompt": "SAY kept"})
    work(url)
    path = f"/v1/sessions/{session}/restore"
    _, would = send(url, "POST", path, {"dry_run": True})
    (file,) = [Path(file["path"]) for one in would["restored"] for file in one["files"]]
    before = file.read_bytes()
    file.unlink()

    _, dry = send(url, "POST", path, {"dry_run": True})
    assert (dry["restored"][0]["outcome"], file.exists()) == ("restored", False)
    status, restored = send(url, "POST", path)
    assert (status, restored["restored"][0]["outcome"]) == (200, "restored")
    assert file.read_bytes() == before

    with closing(open_store(store)) as opened:
        elsewhere = a_runtime(provider="scripted", machine="another-machine", home="/home/ada")
        opened.register_runtime(elsewhere)
        (pointer,) = opened.pointers(session)
        opened.set_pointer(replace(pointer, runtime_id=elsewhere.id))
    status, problem = send(url, "POST", path)
    assert (status, problem["code"], problem["details"]["reason"]) == (409, "refused", "runtime_changed")
    assert "/home/ada on the machine another-machine" in problem["detail"]
    assert f"holdfast restore {session}" in problem["detail"]
    assert send(url, "POST", f"/v1/sessions/{begin(url)}/restore")[0] == 404
