"""What goes wrong on the way into the spool and out of it: a record is whole or not there, and stays until it is taken."""

import json
import os
from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.engine.spooling import empty_spool
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
from holdfast.hooks.configuration import read_configuration
from holdfast.hooks.settings import HookSettings
from holdfast.hooks.spool import SpoolStore
from holdfast.store.contract import Store
from tests.integration.hook_process import log_of

ELSEWHERE = "http://127.0.0.1:1"


@pytest.fixture
def said(home: Path, monkeypatch: pytest.MonkeyPatch) -> SpoolStore:
    monkeypatch.setenv("HOLDFAST_URL", ELSEWHERE)
    return SpoolStore(HookSettings(**read_configuration(os.environ, str(home))), str(home))


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
        Forbidden("another role"),
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
