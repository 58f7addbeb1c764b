"""Sessions that Claude Code's hooks watch are ours: hooks leave marks, and whoever comes next takes the sessions in."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.clock import SECOND, system_clock
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.engine import watched
from holdfast.engine.default import open_with
from holdfast.engine.importing import ImportRequest
from holdfast.engine.watched import take_in_watched
from holdfast.errors import Forbidden, StoreUnavailable
from holdfast.hooks import spool
from holdfast.hooks.settings import spool_dir
from holdfast.hooks.spool import MARK_SECONDS
from tests.integration.hook_process import call_here, log_of, recorded, run_hook
from tests.integration.test_importing import ONE, TWO, claude, claude_session, copy_of, session_of
from tests.integration.workshop import PATIENCE, Workshop, ended, eventually

__all__ = ["claude"]  #: a fixture

EVENTS = {"session-start": "session_start_startup", "stop": "stop", "session-end": "session_end"}
#: what a hook leaves, and what a list, a worker and a carrier open
OPENERS: dict[str, Callable[[Workshop], object]] = {
    "list --json": lambda shop: ended(shop.start("list", "--json")),
    "list": lambda shop: ended(shop.start("list")),
    "worker": lambda shop: ended(shop.start("worker", "--once", "--provider", "scripted")),
}


@pytest.fixture
def alone(claude: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """No carrier is sent: the tests empty the spool."""
    monkeypatch.setattr(spool, "send_carrier", lambda *_: None)
    return claude


def payload(shop: Workshop, event: str, path: Path, **changes: Any) -> dict[str, Any]:
    told = {"session_id": path.stem, "transcript_path": str(path), "cwd": str(shop.work_dir)}
    return recorded(EVENTS[event], **told, **changes)


def call(shop: Workshop, event: str, path: Path, **variables: str) -> None:
    """The hook, in this process."""
    call_here(event, payload(shop, event, path), **{**shop.environ, **variables})


def marks(shop: Workshop) -> list[str]:
    folder = spool_dir(shop.environ, shop.url, "default")
    assert folder is not None
    found = Path(folder)
    return sorted(file.name for file in found.glob("*.watched")) if found.exists() else []


def opened(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """As a command opens it."""
    for name, value in shop.environ.items():
        monkeypatch.setenv(name, value)
    return holdfast.open()


def listed(shop: Workshop) -> list[Session]:
    return list(shop.open().store.list_sessions(SessionFilter(), 10).sessions)


# --- who takes a session in ---


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("event", EVENTS)
def test_a_session_is_ours_when_anybody_looks_after_its_first_hook(
    alone: Workshop, event: str, opener: Callable[[Workshop], object]
) -> None:
    path = claude_session(alone, ONE, "colour?")
    call(alone, event, path)
    opener(alone)
    (session,) = listed(alone)
    assert (session.purpose, session.imported_at is not None) == ("colour?", True)
    name = str(path.relative_to(alone.root / "claude"))
    assert copy_of(alone.open(), ONE, "claude") == {name: path.read_bytes()}
    assert marks(alone) == []


def test_the_list_that_takes_it_in_has_it(alone: Workshop) -> None:
    call(alone, "stop", claude_session(alone, ONE, "colour?"))
    told = json.loads(ended(alone.start("list", "--json"))[1])
    assert [one["purpose"] for one in told["sessions"]] == ["colour?"]


def test_the_vault_gets_what_is_new_though_the_agent_is_not_found(alone: Workshop) -> None:
    for turns in (("colour?",), ("colour?", "stone?")):
        path = claude_session(alone, ONE, *turns)
        call(alone, "stop", path)
        ended(alone.start("list"))
        assert list(copy_of(alone.open(), ONE, "claude").values()) == [path.read_bytes()]
    assert (len(listed(alone)), marks(alone)) == (1, [])


def test_it_gets_there_without_a_command(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "colour?")
    run_hook("stop", payload(claude, "stop", path), claude.environ).harmless()
    eventually(lambda: copy_of(claude.open(), ONE, "claude"))
    assert [session.purpose for session in listed(claude)] == ["colour?"]
    eventually(lambda: not claude.left_running())
    assert marks(claude) == []


def test_it_gets_to_postgresql_without_a_command(claude: Workshop, postgres_url: str) -> None:
    claude.database = postgres_url
    path = claude_session(claude, ONE, "colour?")
    run_hook("session-end", payload(claude, "session-end", path), claude.environ).harmless()
    eventually(lambda: copy_of(claude.open(), ONE, "claude"))
    assert [session.purpose for session in listed(claude)] == ["colour?"]
    eventually(lambda: not claude.left_running())
    assert marks(claude) == []


def test_a_server_of_this_machine_takes_it_in_after_its_answer(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "colour?")
    serving = claude.start("serve", "--port", "0", "--json")
    try:
        assert serving.stdout is not None
        address = urlsplit(json.loads(serving.stdout.readline())["url"])
        with closing(HTTPConnection(address.netloc, timeout=PATIENCE)) as connection:
            body = json.dumps(payload(claude, "stop", path))
            connection.request("POST", "/v1/hooks/stop", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
        eventually(lambda: copy_of(claude.open(), ONE, "claude"))
        assert [session.purpose for session in listed(claude)] == ["colour?"]
    finally:
        serving.terminate()
        ended(serving)


def test_subagents_come_with_their_session(alone: Workshop) -> None:
    work_dir = os.path.realpath(alone.work_dir)
    folder = "".join(each if each.isalnum() else "-" for each in work_dir)
    path = claude_session(alone, ONE, "colour?", folder=folder, cwd=work_dir)
    sidechain = {"agentId": "a1", "isSidechain": True, "cwd": work_dir}
    claude_session(alone, "agent-a1", "look", folder=f"{folder}/{ONE}/subagents", **sidechain)
    call(alone, "stop", path)
    ended(alone.start("list"))
    (session,) = listed(alone)
    assert [child.session.purpose for child in alone.open().tree(session.id).children] == ["look"]


# --- marks ---


def test_a_session_is_marked_once(alone: Workshop) -> None:
    path = claude_session(alone, ONE, "colour?")
    for event in EVENTS:
        call(alone, event, path)
    call(alone, "stop", claude_session(alone, TWO, "stone?"))
    assert len(marks(alone)) == 2


def test_a_session_waits_until_something_is_said_in_it(alone: Workshop) -> None:
    path = alone.root / "claude/projects/-w" / f"{ONE}.jsonl"
    call(alone, "session-start", path)
    ended(alone.start("list"))
    claude_session(alone, ONE)
    ended(alone.start("list"))
    assert (listed(alone), len(marks(alone))) == ([], 1)
    claude_session(alone, ONE, "colour?")
    ended(alone.start("list"))
    assert ([session.purpose for session in listed(alone)], marks(alone)) == (["colour?"], [])


def test_nothing_is_waited_for_in_a_session_that_has_ended(alone: Workshop) -> None:
    path = alone.root / "claude/projects/-w" / f"{ONE}.jsonl"
    call(alone, "session-start", path)
    call(alone, "session-end", path)
    ended(alone.start("list"))
    assert marks(alone) == []


def test_nothing_is_waited_for_longer_than_a_day(alone: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    call(alone, "session-start", alone.root / "claude/projects/-w" / f"{ONE}.jsonl")
    later = system_clock() + (MARK_SECONDS + 60) * SECOND
    with opened(alone, monkeypatch) as hf:
        monkeypatch.setattr(spool, "system_clock", lambda: later)
        with monkeypatch.context() as broken:
            broken.setattr(Holdfast, "take_in", lambda *_, **__: _fail())
            assert len(take_in_watched(hf, math.inf)) == 1, "it could not be tried"
        assert take_in_watched(hf, math.inf) == frozenset()
    assert marks(alone) == []


def _fail() -> bool:
    raise StoreUnavailable("the database", "gone")


def test_a_turn_of_holdfast_needs_no_mark(alone: Workshop) -> None:
    path = claude_session(alone, ONE, "colour?")
    for event in EVENTS:
        call(alone, event, path, HOLDFAST_SESSION="agent-20260108-180530-abc12345")
    assert marks(alone) == []


def test_what_is_marked_while_it_is_taken_in_is_taken_in_again(
    alone: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = claude_session(alone, ONE, "colour?")
    call(alone, "stop", path)
    (first,) = marks(alone)
    taking_in = Holdfast.take_in

    def meanwhile(self: Holdfast, provider: str, native: str, **more: Any) -> bool:
        taken = taking_in(self, provider, native, **more)
        call(alone, "stop", path)
        return taken

    with opened(alone, monkeypatch) as hf:
        monkeypatch.setattr(Holdfast, "take_in", meanwhile)
        take_in_watched(hf)
        (second,) = marks(alone)
        assert first != second
        monkeypatch.setattr(Holdfast, "take_in", taking_in)
        take_in_watched(hf)
    assert marks(alone) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), StoreUnavailable("the database", "gone"), Forbidden("")]
)
def test_whoever_does_not_come_to_the_end_leaves_the_mark(
    alone: Workshop, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    call(alone, "stop", claude_session(alone, ONE, "colour?"))
    taking_in = Holdfast.take_in

    def fail(self: Holdfast, provider: str, native: str, **more: Any) -> bool:
        taking_in(self, provider, native, **more)
        raise error

    with opened(alone, monkeypatch) as hf:
        monkeypatch.setattr(Holdfast, "take_in", fail)
        try:
            take_in_watched(hf)
        except KeyboardInterrupt:
            pass
        assert len(marks(alone)) == 1
        monkeypatch.setattr(Holdfast, "take_in", taking_in)
        assert take_in_watched(hf) == frozenset()
    assert len(listed(alone)) == 1, "it is not doubled"


def test_nobody_waits_long_for_many_sessions(alone: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for native in (ONE, TWO):
        call(alone, "stop", claude_session(alone, native, native))
    with opened(alone, monkeypatch) as hf:
        assert len(take_in_watched(hf, -1.0)) == 2
        assert take_in_watched(hf) == frozenset()
    assert len(listed(alone)) == 2


def test_a_session_that_is_large_is_left_to_a_process_that_nobody_waits_for(
    alone: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(alone, "stop", claude_session(alone, ONE, "large " * 200))
    call(alone, "stop", claude_session(alone, TWO, "small"))
    monkeypatch.setattr(watched, "MOST_BYTES", 1000)
    with opened(alone, monkeypatch) as hf:
        (left,) = take_in_watched(hf)
        assert (ONE in left, [session.purpose for session in listed(alone)]) == (True, ["small"])
        assert take_in_watched(hf, math.inf) == frozenset()
    assert len(listed(alone)) == 2


def test_many_that_come_at_once_make_one_session_of_it(alone: Workshop) -> None:
    path = claude_session(alone, ONE, *(f"turn {n}" for n in range(50)))
    call(alone, "stop", path)
    for process in [alone.start("list", "--json") for _ in range(4)]:
        code, out, err = ended(process)
        assert (code, err, len(json.loads(out)["sessions"])) == (0, "", 1)
    (session,) = listed(alone)
    assert len(alone.open().history(session.id)) == 50
    assert list(copy_of(alone.open(), ONE, "claude").values()) == [path.read_bytes()]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_whoever_is_killed_while_it_takes_a_session_in_loses_and_doubles_nothing(
    alone: Workshop, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "postgres":
        alone.database = request.getfixturevalue("postgres_url")
    path = claude_session(alone, ONE, "colour?", "stone?")
    call(alone, "stop", path)
    for fatal in range(100):
        environ = {**alone.environ, "FATAL": str(fatal)}
        killed = subprocess.run([sys.executable, "-c", MORTAL], env=environ, timeout=PATIENCE, check=False)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
        assert len(marks(alone)) == 1
    assert fatal >= 3, "it died somewhere"
    assert marks(alone) == []
    (session,) = listed(alone)
    assert [turn.prompt for turn in alone.open().history(session.id)] == ["colour?", "stone?"]
    assert list(copy_of(alone.open(), ONE, "claude").values()) == [path.read_bytes()]


MORTAL = """
import os
import holdfast
from holdfast.engine.watched import take_in_watched
from tests.integration.mortal import MortalDriver

opened = holdfast.open()
opened.store._driver = MortalDriver(opened.store._driver, int(os.environ["FATAL"]))
assert take_in_watched(opened) == frozenset()
"""


def test_it_gets_to_a_server_that_the_hooks_do_not_call(alone: Workshop) -> None:
    """The store is a server: its client reads the files, on the machine that has them."""
    path = claude_session(alone, ONE, "colour?")
    serving = alone.start("serve", "--port", "0", "--json")
    try:
        assert serving.stdout is not None
        url = json.loads(serving.stdout.readline())["url"]
        call(alone, "stop", path, HOLDFAST_URL=url)
        listing = alone.start("list", "--json", environ={"HOLDFAST_URL": url})
        assert [one["purpose"] for one in json.loads(ended(listing)[1])["sessions"]] == ["colour?"]
    finally:
        serving.terminate()
        ended(serving)
    assert list(copy_of(alone.open(), ONE, "claude").values()) == [path.read_bytes()]


# --- what stays out ---


def test_what_was_removed_or_is_excluded_stays_out(alone: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    path = claude_session(alone, ONE, "colour?")
    hf = alone.open()
    hf.import_sessions(ImportRequest(("claude",)))
    hf.remove(session_of(hf, ONE, "claude"))
    call(alone, "stop", path)
    call(alone, "stop", claude_session(alone, TWO, "stone?", cwd="/private"))
    monkeypatch.setenv("HOLDFAST_IMPORT__EXCLUDE", "/private")
    ended(alone.start("list"))
    assert (listed(alone), marks(alone)) == ([], [])


def test_a_file_outside_of_the_agents_home_is_left_alone(alone: Workshop, tmp_path: Path) -> None:
    path = claude_session(alone, ONE, "colour?")
    other = tmp_path / f"{ONE}.jsonl"
    path.rename(other)
    call(alone, "session-end", other)
    ended(alone.start("list"))
    assert (listed(alone), len(marks(alone))) == ([], 1), "it may be in a home that another process knows"


def test_a_vault_that_keeps_only_turns_of_holdfast_gets_nothing(alone: Workshop) -> None:
    alone.changes["HOLDFAST_VAULT__MODE"] = "run"
    call(alone, "stop", claude_session(alone, ONE, "colour?"))
    ended(alone.start("list"))
    assert ([session.purpose for session in listed(alone)], copy_of(alone.open(), ONE, "claude")) == (["colour?"], {})  # fmt: skip


# --- hooks ---


def test_a_spool_that_cannot_be_written_to_costs_no_answer(alone: Workshop, home: Path) -> None:
    folder = spool_dir(alone.environ, alone.url, "default")
    assert folder is not None
    Path(folder).parent.mkdir(parents=True)
    Path(folder).write_text("not a directory")
    call(alone, "stop", claude_session(alone, ONE, "colour?"))
    assert alone.open().store.observed_session("claude", ONE) is not None
    assert [line["error"] for line in log_of(home)] == ["FileExistsError"]


def test_a_list_without_marks_opens_nothing_of_the_agents(
    alone: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(alone, monkeypatch) as hf:
        monkeypatch.setattr(Holdfast, "_runner", property(lambda _: pytest.fail("it looks at agents")))
        assert take_in_watched(hf) == frozenset()
        assert hf.settings is not None
        with open_with(hf.settings) as again:
            assert take_in_watched(again) == frozenset()
