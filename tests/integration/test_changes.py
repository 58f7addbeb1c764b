"""The stream of changes: what is told of which session, by one watcher, and when callers must read again."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from holdfast.clock import Instant, after
from holdfast.domain.sessions import Pulse, SessionMark, SessionStatus, SessionUpdate
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.web import changes
from holdfast.web.changes import Gap, Marks
from tests.builders import an_answer, an_import, done
from tests.contract.served import Served, serving
from tests.steps import begin, claim, defer, enqueue

PATIENCE = 60.0
NOW = Instant(10**15)


def a_mark(session_id: str = "s1", **changed: Any) -> SessionMark:
    usual: dict[str, Any] = {
        "status": SessionStatus.IDLE, "created_at": Instant(1), "updated_at": NOW, "fence": 1, "head_seq": None,
        "next_seq": 2, "revision": 0, "open_approvals": 0,
    }  # fmt: skip
    return SessionMark(**{"id": session_id, **usual, **changed})


def a_pulse(*marks: SessionMark, sessions: int = 5, now: Instant = NOW, is_whole: bool = True) -> Pulse:
    return Pulse(now, sessions, marks, is_whole)


def told(before: Pulse, now: Pulse) -> dict[str, tuple[str, ...]]:
    return {change.session_id: change.what for change in Marks(before).changes(now)}


# --- what two looks tell ---


def test_nothing_is_told_if_nothing_has_changed() -> None:
    assert told(a_pulse(a_mark()), a_pulse(a_mark())) == {}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"updated_at": Instant(NOW + 1)}, ("session",)),
        ({"status": SessionStatus.RUNNING}, ("status",)),
        ({"next_seq": 3, "head_seq": 2}, ("turn",)),
        ({"fence": 2}, ("turn",)),
        ({"next_seq": 3}, ("turn", "turn_ended")),
        ({"revision": 1}, ("history",)),
        ({"open_approvals": 1}, ("approval",)),
    ],
)
def test_a_mark_tells_what_has_changed(changed: dict[str, Any], what: tuple[str, ...]) -> None:
    assert told(a_pulse(a_mark()), a_pulse(a_mark(**changed))) == {"s1": what}


def test_a_turn_has_ended_if_another_one_is_the_oldest_open_one() -> None:
    before = a_pulse(a_mark(head_seq=1, next_seq=3))

    assert told(before, a_pulse(a_mark(head_seq=2, next_seq=3))) == {"s1": ("turn", "turn_ended")}
    assert told(before, a_pulse(a_mark(head_seq=1, next_seq=3, fence=2))) == {"s1": ("turn",)}


def test_a_session_that_is_missing_while_it_was_active_was_removed() -> None:
    assert told(a_pulse(a_mark()), a_pulse(sessions=4)) == {"s1": ("removed",)}


def test_a_session_that_was_active_long_ago_is_forgotten() -> None:
    later = after(NOW, 3600.0)

    assert told(a_pulse(a_mark()), a_pulse(now=later)) == {}
    assert told(a_pulse(a_mark(head_seq=1)), a_pulse(now=later)) == {"s1": ("status", "turn", "approval")}


def test_a_new_session_is_told_and_an_imported_one_is_a_gap() -> None:
    new = a_mark("s2", created_at=NOW)
    assert told(a_pulse(), a_pulse(new, sessions=6)) == {"s2": ("session", "status")}

    with pytest.raises(Gap):
        told(a_pulse(), a_pulse(sessions=6))
    with pytest.raises(Gap):
        told(a_pulse(), a_pulse(sessions=4))
    with pytest.raises(Gap):
        told(a_pulse(), a_pulse(is_whole=False))


def test_after_a_gap_changes_are_told_again() -> None:
    marks = Marks(a_pulse(a_mark()))
    with pytest.raises(Gap):
        marks.changes(a_pulse(a_mark(), sessions=9))

    assert [one.what for one in marks.changes(a_pulse(a_mark(revision=1), sessions=9))] == [("history",)]


# --- on a server ---


class Message(NamedTuple):
    id: str
    event: str
    data: dict[str, Any]


class Listener:
    def __init__(self, url: str, room: str, last: str | None = None, token: str | None = None) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((str(parts.hostname), parts.port), timeout=PATIENCE)
        lines = [
            "GET /v1/changes HTTP/1.1", f"Host: {parts.netloc}", f"Holdfast-Workspace: {room}",
            *([] if last is None else [f"Last-Event-ID: {last}"]),
            *([] if token is None else [f"Authorization: Bearer {token}"]),
        ]  # fmt: skip
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._file = self._socket.makefile("r", encoding="utf-8", newline="\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def message(self) -> Message:
        """The next one. A head, chunk sizes and signs of life are passed over."""
        fields: dict[str, str] = {}
        while "data" not in fields:
            line = self._file.readline()
            assert line, "the stream has ended"
            name, _, value = line.strip().partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = value
        return Message(fields["id"], fields["event"], json.loads(fields["data"]))

    def change_of(self, session_id: str, what: str) -> Message:
        """Waits for it, past other messages."""
        while True:
            found = self.message()
            assert found.event == "change", found
            if found.data["session"] == session_id and what in found.data["what"]:
                return found


@contextmanager
def listening(url: str, room: str, last: str | None = None, token: str | None = None) -> Iterator[Listener]:
    with closing(Listener(url, room, last, token)) as listener:
        yield listener


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    """Another process's store: nothing that it does passes the server."""
    with closing(open_store(database)) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


@pytest.fixture
def room(database: str) -> Iterator[tuple[Served, str]]:
    with closing(open_store(database)) as behind, serving() as served:
        yield served, served.room_of(behind)


def test_it_tells_what_others_do_beside_the_server(store: SqlStore, room: tuple[Served, str]) -> None:
    served, name = room
    with listening(served.url, name) as listener:
        assert listener.message().event == "ready"

        session = begin(store)
        listener.change_of(session.id, "session")
        enqueue(store, session, "a secret prompt")
        queued = listener.change_of(session.id, "turn")
        lease = claim(store, session).lease
        running = listener.change_of(session.id, "status")
        store.finish_turn(lease, done())
        ended = listener.change_of(session.id, "turn_ended")
        approval = defer(store, session)
        listener.change_of(session.id, "approval")
        store.answer_approval(approval.id, an_answer(approval))
        listener.change_of(session.id, "approval")
        store.update_session(session.id, SessionUpdate(summary="half"))
        listener.change_of(session.id, "session")

    assert (queued.data["status"], queued.data["turns"], queued.data["open_turn"]) == ("queued", 1, 1)
    assert running.data["status"] == "running"
    assert (ended.data["status"], ended.data["open_turn"]) == ("idle", None)
    assert "secret" not in json.dumps(ended.data)


def test_a_removed_session_is_told(store: SqlStore, room: tuple[Served, str]) -> None:
    served, name = room
    with listening(served.url, name) as listener:
        listener.message()
        session = begin(store)
        listener.change_of(session.id, "session")
        store.remove_session(session.id)

        assert listener.change_of(session.id, "removed").data["status"] is None


def test_a_caller_who_was_away_gets_what_it_missed(store: SqlStore, room: tuple[Served, str]) -> None:
    served, name = room
    with listening(served.url, name) as listener, listening(served.url, name) as other:
        assert {listener.message().event, other.message().event} == {"ready"}
        first = begin(store)
        last = listener.change_of(first.id, "session")
        listener.close()
        second, third = begin(store), begin(store)
        other.change_of(third.id, "session")

        with listening(served.url, name, last.id) as again:
            assert again.message() == Message(last.id, "ready", {})
            missed = {again.message().data["session"], again.message().data["session"]}

    assert missed == {second.id, third.id}


@pytest.mark.parametrize("last", ["0123456789abcdef-7", "nonsense", ""])
def test_an_id_that_is_not_known_says_reload(room: tuple[Served, str], last: str) -> None:
    served, name = room
    with listening(served.url, name, last) as listener:
        assert listener.message().event == "reload"


def test_an_id_that_is_too_old_says_reload(
    monkeypatch: pytest.MonkeyPatch, store: SqlStore, room: tuple[Served, str]
) -> None:
    monkeypatch.setattr(changes, "_KEPT_MESSAGES", 2)
    served, name = room
    with listening(served.url, name) as listener:
        first = listener.message()
        for _ in range(4):
            listener.change_of(begin(store).id, "session")

        with listening(served.url, name, first.id) as again:
            assert again.message().event == "reload"


def test_what_was_imported_says_reload(store: SqlStore, room: tuple[Served, str]) -> None:
    served, name = room
    with listening(served.url, name) as listener:
        listener.message()
        store.import_sessions([an_import()])

        assert listener.message().event == "reload"


def test_an_outage_says_reload(
    monkeypatch: pytest.MonkeyPatch, store: SqlStore, room: tuple[Served, str]
) -> None:
    served, name = room
    failed = threading.Event()

    def fail(*_: object) -> Pulse:
        failed.set()
        raise StoreUnavailable("here", "not now")

    with listening(served.url, name) as listener:
        listener.message()
        with monkeypatch.context() as broken:
            broken.setattr(SqlStore, "pulse", fail)
            assert failed.wait(PATIENCE)
        assert listener.message().event == "reload"
        session = begin(store)
        listener.change_of(session.id, "session")


def test_one_watcher_serves_two_hundred_callers(
    monkeypatch: pytest.MonkeyPatch, store: SqlStore, room: tuple[Served, str]
) -> None:
    served, name = room
    watchers = set()
    pulse = SqlStore.pulse

    def counted(self: SqlStore, *asked: Any) -> Pulse:
        watchers.add(threading.get_ident())
        return pulse(self, *asked)

    monkeypatch.setattr(SqlStore, "pulse", counted)
    listeners = [Listener(served.url, name) for _ in range(200)]
    try:
        assert {listener.message().event for listener in listeners} == {"ready"}
        session = begin(store)
        for listener in listeners:
            listener.change_of(session.id, "session")
    finally:
        for listener in listeners:
            listener.close()

    assert len(watchers) == 1


def test_it_ends_when_its_token_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SIGN_SECONDS", 0.1)
    with closing(open_store("sqlite:///:memory:")) as book:
        assert isinstance(book, SqlStore)
        new, text = make_token(Role.READER, "a", None, bytes(ENTROPY))
        with serving(book) as served:
            name = served.room_of(book)
            book.within(name).create_token(new)  # type: ignore[arg-type] # a name that the test has made
            with listening(served.url, name, token=text) as listener:
                assert listener.message().event == "ready"
                book.within(name).revoke_token(new.id)  # type: ignore[arg-type]
                with pytest.raises(AssertionError, match="has ended"):
                    listener.message()
