"""What goes wrong on the way into the spool and out of it: a record is whole or not there, and stays until it is taken."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SECOND, Instant, system_clock
from holdfast.config import Settings
from holdfast.domain.delegations import DelegatedSession, DelegationReason, FreeSession, Question
from holdfast.errors import (
    Busy,
    Conflict,
    Forbidden,
    HoldfastError,
    InvalidInput,
    NotFound,
    StoreCorrupt,
    StoreUnavailable,
    TooMany,
    Unauthenticated,
)
from holdfast.hooks import spool
from holdfast.hooks.settings import load_hook_settings
from holdfast.hooks.spool import SpoolStore, empty_spool
from holdfast.store.contract import Store
from tests.builders import a_delegation
from tests.integration.hook_process import log_of, run_hook, start_hook
from tests.processes import until

ELSEWHERE = "http://127.0.0.1:1"


@pytest.fixture
def said(home: Path, monkeypatch: pytest.MonkeyPatch) -> SpoolStore:
    monkeypatch.setenv("HOLDFAST_URL", ELSEWHERE)
    return SpoolStore(load_hook_settings(os.environ, str(home)), str(home))


def files(home: Path) -> list[str]:
    """How the names end of what lies in the spool, but for the lock."""
    return sorted(path.suffix for path in home.glob(".local/state/holdfast/spool/*/*") if path.suffix)


class Refuses:
    """A store that answers everything with one error."""

    def __init__(self, error: HoldfastError) -> None:
        self._error = error
        self.asked = 0

    def lose_delegations(self, provider_session_id: str) -> int:
        self.asked += 1
        raise self._error

    def free_sessions(self) -> tuple[()]:
        return ()


def empty(refuses: Refuses) -> int:
    store: Store = refuses  # type: ignore[assignment] # as much of one as is asked
    return empty_spool(store, Settings(url=ELSEWHERE), os.environ)


@pytest.mark.parametrize(
    "error",
    [
        Unauthenticated("no token"),
        TooMany("later"),
        Busy("it"),
        StoreUnavailable("there", "away"),
        StoreCorrupt("there", "damaged"),
    ],
    ids=lambda error: error.code,
)
def test_a_store_that_does_not_take_records_now_finds_them_later(
    home: Path, said: SpoolStore, error: HoldfastError
) -> None:
    said.lose_delegations("1")
    said.lose_delegations("2")
    store = Refuses(error)

    assert empty(store) == 0
    assert files(home) == [".record", ".record"]
    assert store.asked == 1, "nobody goes on asking"
    assert [line["error"] for line in log_of(home)] == [type(error).__name__]


def test_a_record_that_somebody_else_may_say_is_left_and_the_next_is_tried(
    home: Path, said: SpoolStore
) -> None:
    said.lose_delegations("1")
    said.lose_delegations("2")
    store = Refuses(Forbidden("another agent's"))

    assert empty(store) == 0
    assert files(home) == [".json", ".record", ".record"]
    assert store.asked == 2
    assert [line["message"] for line in log_of(home)] == ["another agent's"] * 2


@pytest.mark.parametrize(
    "error", [InvalidInput("id", "is none"), NotFound("session", "x"), Conflict("x")], ids=lambda e: e.code
)
def test_a_record_that_no_store_will_ever_take_is_set_aside(
    home: Path, said: SpoolStore, error: HoldfastError
) -> None:
    said.lose_delegations("1")
    said.lose_delegations("2")

    assert empty(Refuses(error)) == 0
    assert files(home) == [".broken", ".broken", ".json"]


def test_a_record_is_written_whole_by_a_disk_that_takes_a_little_at_a_time(
    home: Path, said: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))

    said.lose_delegations("the-one")

    (record,) = home.glob(".local/state/holdfast/spool/*/*.record")
    assert json.loads(record.read_bytes())["fields"] == {"provider_session_id": "the-one"}


def test_a_record_that_cannot_be_written_leaves_nothing(
    home: Path, said: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space"):
        said.lose_delegations("1")
    assert files(home) == []


def test_only_records_that_wait_count_as_too_many(
    home: Path, said: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MOST_RECORDS", 2)
    said.lose_delegations("1")
    (directory,) = home.glob(".local/state/holdfast/spool/*")
    for number in range(5):
        (directory / f"{number}.broken").touch()

    said.lose_delegations("2")
    with pytest.raises(StoreUnavailable, match="2 records wait"):
        said.lose_delegations("3")


# --- the copy of free sessions ---


def a_free_session(session_id: str, **changes: Any) -> FreeSession:
    now = system_clock()
    session = DelegatedSession(id=session_id, phase="planning", created_at=now, metadata={}, history=())
    usual = {"agent": "architect", "project": "/p", "purpose": "", "session": session, "resume_ready": True}
    figures = {"error_count": 0, "updated_at": now}
    window = {"answered_at": None, "expires_at": None, "is_waiting": False}
    return FreeSession(**{**usual, **figures, **window, **changes})


def with_copy(said: SpoolStore, *free: FreeSession) -> None:
    class Knows(Refuses):
        def free_sessions(self) -> tuple[FreeSession, ...]:  # type: ignore[override]
            return free

        def lose_delegations(self, provider_session_id: str) -> int:
            return 0

    said.lose_delegations("1")
    assert empty(Knows(NotFound("session", "x"))) == 1


def test_a_session_of_the_copy_is_judged_by_the_rules_of_the_store(said: SpoolStore) -> None:
    long_ago = Instant(system_clock() - 3600 * SECOND)
    with_copy(
        said,
        a_free_session("too-old", updated_at=long_ago),
        a_free_session("too-many-errors", error_count=3),
        a_free_session("another-agents", agent="gardener"),
        a_free_session("elsewhere", project="/q"),
        a_free_session("waits", updated_at=long_ago, is_waiting=True),
    )

    found = said.delegate(a_delegation(id="toolu_1", agent="architect", project="/p"))

    assert found.session is not None
    assert (found.session.id, found.resumed) == ("waits", True)


def test_an_id_that_no_session_can_have_is_found_nowhere(said: SpoolStore) -> None:
    with_copy(said, a_free_session("agent-1"))

    asked = said.ask_delegation(Question(id="d-1", agent="architect", project="/p", session_id=""))

    assert (asked.reason, asked.session) == (DelegationReason.NONE, None)


# --- what killed hooks leave ---


def spool_of(home: Path) -> Path:
    (directory,) = home.glob(".local/state/holdfast/spool/*")
    return directory


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_what_a_killed_hook_left_half_written_is_removed_by_whoever_comes_next(
    home: Path, said: SpoolStore
) -> None:
    said.lose_delegations("1")
    half, fresh = spool_of(home) / "00-1-0.new", spool_of(home) / "00-2-0.new"
    for path in (half, fresh):
        path.write_text('{"verb": "lose_deleg')
    age(half, 1000)
    assert empty(Refuses(StoreUnavailable("there", "away"))) == 0
    assert not half.exists()
    assert fresh.exists(), "its hook may still write to it"


def test_a_whole_record_that_a_killed_hook_could_not_name_is_taken(home: Path, said: SpoolStore) -> None:
    said.lose_delegations("1")
    (record,) = spool_of(home).glob("*.record")
    left = record.rename(record.with_suffix(".new"))
    age(left, 1000)

    class Takes(Refuses):
        def lose_delegations(self, provider_session_id: str) -> int:
            self.asked += 1
            return 0

    store = Takes(NotFound("session", "x"))
    assert empty(store) == 1
    assert store.asked == 1
    assert files(home) == [".json"]


@pytest.mark.parametrize("url", [ELSEWHERE, None], ids=["elsewhere", "sqlite"])
def test_hooks_that_are_killed_leave_nothing_for_good(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    """Killed for real, while they write: also the cache of settings, which each first hook makes anew."""
    for number in range(12):
        environ = {"HOLDFAST_CONTINUE__MAX_ERRORS": str(number + 1)} | ({"HOLDFAST_URL": url} if url else {})
        with start_hook("stop", environ) as process:
            assert process.stdin is not None
            process.stdin.write(b'{"session_id": "s"}')
            process.stdin.close()
            time.sleep(number / 60)
            process.kill()
    places = [home / ".local/state/holdfast", home / ".cache/holdfast"]
    for partial in (places[1] / "hook-settings.json.99999", places[1] / "hook-settings.json.99998"):
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("{")
    for path in (path for place in places for path in place.rglob("*") if path.is_file()):
        age(path, 1000)
    run_hook(
        "stop",
        {"session_id": "s"},
        {"HOLDFAST_CONTINUE__MAX_ERRORS": "99"} | ({"HOLDFAST_URL": url} if url else {}),
    )
    if url:
        monkeypatch.setenv("HOLDFAST_URL", url)

    def is_clean() -> bool:
        if url:  # does nothing while the carrier that a hook has started empties the spool
            empty(Refuses(StoreUnavailable("there", "away")))
        names = [path.name for place in places for path in place.rglob("*") if path.is_file()]
        return not any(name.endswith(".new") or name.startswith("hook-settings.json.") for name in names)

    until(is_clean)
