"""Which of the calls in an agent's session the record lacks."""

from collections.abc import Mapping
from typing import Any

from holdfast.domain.events import Called
from holdfast.engine.running.launching import MAX_EVENT
from holdfast.engine.running.provider_sessions import lacking_calls


def saved(call_id: str, command: str, tool: str = "command_execution") -> Called:
    return Called(call_id, tool, {"command": command})


def known(call_id: str, command: str, tool: str = "command_execution") -> Mapping[str, Any]:
    """As a stream reports it."""
    return {"call_id": call_id, "tool": tool, "arguments": {"command": f'/bin/bash -lc "{command}"'}}


def test_a_call_is_known_by_its_id_alone_where_both_name_it_so() -> None:
    calls = [saved("a", "ls"), saved("b", "ls")]
    assert lacking_calls(calls, [known("a", "pwd"), known("c", "ls")], renamed=False) == {"b"}


def test_elsewhere_it_is_known_by_what_it_asks_as_often_as_it_asks_it() -> None:
    calls = [saved("a", "echo 'x'; ls"), saved("b", "pwd"), saved("c", "pwd"), saved("d", "sleep 9")]
    streamed = [known("item_1", "pwd"), known("item_2", "echo 'x'; ls")]
    assert lacking_calls(calls, streamed, renamed=True) == {"c", "d"}


def test_what_reads_otherwise_in_the_record_stands_for_the_oldest_of_the_others() -> None:
    calls = [saved("a", "x" * 2 * MAX_EVENT), saved("b", "ls"), saved("c", "sleep 9")]
    streamed = [known("item_1", "cut"), known("item_2", "ls")]
    assert lacking_calls(calls, streamed, renamed=True) == {"c"}
    assert lacking_calls(calls, [*streamed, known("item_3", "?", "file_change")], renamed=True) == set()


def test_a_secret_in_a_command_hides_nothing() -> None:
    token = "ghp_" + "a" * 36
    calls = [saved("a", f"deploy {token}"), saved("b", "sleep 9")]
    assert lacking_calls(calls, [known("item_1", "deploy [redacted:github_token]")], renamed=True) == {"b"}


def test_what_was_taken_from_the_session_before_is_not_taken_again() -> None:
    calls = [saved("a", "ls"), saved("b", "sleep 9")]
    before = [known("item_1", "ls"), {"call_id": "b", "tool": "command_execution", "arguments": {}}]
    assert lacking_calls(calls, before, renamed=True) == set()
