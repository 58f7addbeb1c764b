"""ps: what runs now, and nothing else."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.domain.events import Called, Event, Recorded, Said, Spent
from holdfast.domain.sessions import Session
from holdfast.domain.usage import Usage, UsageReport
from tests import steps
from tests.acceptance.command import holdfast, ok, on_terminal
from tests.acceptance.test_screens import ESCAPE, screen

SPENT = UsageReport(Usage(1200, 300, 45))


def runs(library: Holdfast, name: str, *said: Recorded) -> Session:
    """A session whose turn is running, and has said this."""
    session = library.create("claude", name=name, provider="claude")
    steps.enqueue(library.store, session, "go")
    claim = steps.claim(library.store, session)
    at = library.store.now()
    library.store.record_events(
        claim.lease, [Event(n, one.kind, one.data, at) for n, one in enumerate(said, start=1)]
    )
    return session


def test_it_shows_the_running_turns_with_their_last_tool_and_tokens(
    each_engine: str, library: Holdfast
) -> None:
    library.create("claude", name="idle-one")
    queued = library.create("claude", name="queued-one")
    steps.enqueue(library.store, queued, "later")
    quiet = runs(library, "quiet", Said("thinking"))
    call = Called("c1", "Bash", {"command": "make test"})
    busy = runs(library, "busy", Called("c0", "Read", {"file_path": "a.py"}), Spent(SPENT), call)

    lines = [line.split("\t") for line in ok("ps").lines]

    assert [fields[0] for fields in lines] == [busy.id, quiet.id]
    assert (lines[0][1], lines[0][3], *lines[0][6:]) == (
        "claude",
        "1",
        "1200",
        "45",
        "Bash: make test",
        "busy",
    )
    assert lines[1][6:] == ["-", "-", "-", "quiet"]
    first, second = ok("ps", "--json").json["running"]
    assert (first["session_id"], first["status"], first["turn"]) == (busy.id, "running", 1)
    assert first["tokens"] == {"input": 1200, "output": 45}
    assert (second["last_tool"], second["tokens"]) == (None, None)


def test_cumulative_tokens_of_a_continued_session_are_not_taken_for_those_of_the_turn(
    library: Holdfast,
) -> None:
    session = library.create("claude", name="again", provider="claude")
    steps.run(library.store, session, "first")
    steps.enqueue(library.store, session, "second")
    claim = steps.claim(library.store, session)
    spent = Spent(UsageReport(Usage(90_000, 0, 7000), cumulative=True))
    library.store.record_events(claim.lease, [Event(1, spent.kind, spent.data, library.store.now())])

    (fields,) = (line.split("\t") for line in ok("ps").lines)

    assert claim.decision.reason == "resumable"
    assert fields[6:8] == ["-", "-"]


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_it_fits_the_terminal(library: Holdfast, columns: int) -> None:
    runs(library, "x" * 100, Called("c", "Bash", {"command": "\x1b[2J" + "y" * 200}))

    header, row = screen("ps", columns=columns).splitlines()

    assert header.split()[0] == "SESSION"
    assert "\\x1b[2J" in row or columns == 50
    assert len(row) <= columns


def test_nothing_runs() -> None:
    assert screen("ps") == "nothing runs now"
    assert ok("ps").out == ""
    assert ok("ps", "--json").json["running"] == []


def test_it_stays_until_ctrl_c(library: Holdfast) -> None:
    runs(library, "live", Called("c", "Bash", {"command": "sleep 5"}))

    shown = on_terminal("ps", "-w", question=b"Bash: sleep 5", keys=b"\x03")

    assert shown.code == 0
    assert "Traceback" not in shown.out
    assert "live" in ESCAPE.sub("", shown.out)
    assert "\x1b[?25h" in shown.out  # the cursor is back
    assert "--watch needs a terminal" in holdfast("ps", "-w").one_line_error()
