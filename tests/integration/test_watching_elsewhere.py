"""Watching for a store that is elsewhere: events wait in the spool, and the transcript is read when they leave it."""

from pathlib import Path

import pytest

import holdfast
from holdfast.hooks import spool
from tests.integration.hook_process import call_here, log_of, recorded, write_message

NATIVE = "9322ba9c-c774-4627-a52a-8be33eecc7fc"


@pytest.fixture(autouse=True)
def elsewhere(emptied_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", emptied_postgres_url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spool, "send_carrier", lambda *_: None)  # the tests are the carrier


def test_events_are_taken_there_with_what_the_transcript_says(tmp_path: Path, home: Path) -> None:
    transcript = tmp_path / "transcript.jsonl"
    told = {"session_id": NATIVE, "transcript_path": str(transcript)}
    write_message(transcript, "msg_1", 100)
    for event, name in (
        ("session-start", "session_start_startup"),
        ("stop", "stop"),
        ("pre-compact", "pre_compact"),
        ("session-end", "session_end"),
    ):
        assert call_here(event, recorded(name, **told)) is None
    write_message(transcript, "msg_2", 200)

    for _ in range(2):  # opening it once more finds nothing left to say
        with holdfast.open() as opened:
            seen = opened.store.observed_session("claude", NATIVE)
        assert seen is not None
        assert (seen.source, seen.end_reason, seen.compactions) == ("startup", "other", 1)
        assert (seen.input_tokens, seen.output_tokens) == (300, 10)
    assert log_of(home) == []


def test_paused_work_is_told_as_long_as_the_copy_is_young(tmp_path: Path) -> None:
    with holdfast.open() as opened:
        paused = opened.create_session("terraform-architect", "move the network")
        opened.update_state(paused, phase="approval")
    start = recorded("session_start_startup", cwd=str(tmp_path))
    assert call_here("session-start", start) is None
    holdfast.open().close()  # takes the event there, and brings the copy
    answer = call_here("session-start", start)
    assert answer is not None
    told = answer["hookSpecificOutput"]["additionalContext"]
    assert f"> {paused} (terraform-architect, approval): move the network" in told.splitlines()
